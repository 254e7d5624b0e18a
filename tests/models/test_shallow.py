"""A distilled draft on its target: what it shares, what it computes, and what its cut head leaves out.

Shape suffixes: T tokens, R rows, E hidden width, V vocabulary, C tokens of a cut head.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from models.config import Family, ModelConfig
from models.decoder import Decoder
from models.decoder_tensors import expected_tensors
from models.draft_folder import HEAD_TOKEN_IDS, DraftDesign, DraftTarget, open_draft, write_draft
from models.errors import CheckpointError
from models.feature_model import FeatureReader, FeatureSource
from models.linear import WeightKind, has_packed_kinds, kind_of
from models.positioned_model import PositionedModel
from models.shallow import FeatureDraft, bind_draft
from tests.support.draft_folders import random_draft_tensors, write_random_draft
from tests.support.tiny_decoders import StateDictCheckpoint

pytestmark = pytest.mark.usefixtures("one_thread")

CONFIG = ModelConfig(
    family=Family.QWEN3,
    vocab_size=97,
    hidden_size=32,
    intermediate_size=48,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=256,
    qkv_bias=True,
    qk_norm=True,
    tie_embeddings=True,
)
KINDS = [
    WeightKind.FLOAT32,
    *([WeightKind.FLOAT16, WeightKind.INT8] if has_packed_kinds(torch.device("cpu")) else []),
]
TOKENS_T = torch.tensor([3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26])


def target_tensors(config: ModelConfig) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    return {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * 0.2
        for name, shape in expected_tensors(config)
    }


def load_target(
    kind: WeightKind = WeightKind.FLOAT32, config: ModelConfig = CONFIG, *, smoothed: bool = False
) -> tuple[Decoder, DraftTarget, dict[str, torch.Tensor]]:
    tensors = target_tensors(config)
    scales = {"head": torch.linspace(0.5, 2, config.hidden_size)} if smoothed else None
    model = Decoder.from_checkpoint(StateDictCheckpoint(config, tensors), weights=kind, input_scales=scales)
    return model, DraftTarget(name="tiny", fingerprint="f", config=config), tensors


def feature_draft(target: Decoder, identity: DraftTarget, folder: Path, **options: int) -> FeatureDraft:
    write_random_draft(folder, identity, DraftDesign.FEATURE, **options)
    draft = bind_draft(open_draft(folder, identity), target)
    assert isinstance(draft, FeatureDraft)
    return draft


def run(model: Decoder, token_ids_T: torch.Tensor, *, num_logits: int) -> torch.Tensor:
    return model.forward(token_ids_T, model.new_cache(64), num_logits=num_logits)


@pytest.mark.parametrize("kind", KINDS)
def test_a_token_draft_of_the_targets_first_layers_gives_their_logits(kind: WeightKind, tmp_path: Path) -> None:
    target, identity, tensors = load_target(kind)
    own = {
        name.removeprefix("model."): tensor
        for name, tensor in tensors.items()
        if name.startswith(("model.layers.0.", "model.layers.1."))
    }
    write_draft(tmp_path, design=DraftDesign.TOKEN, num_layers=2, target=identity, tensors=own)
    draft = bind_draft(open_draft(tmp_path, identity), target)
    assert isinstance(draft, PositionedModel)
    expected_TV = run(target.first_layers(2), TOKENS_T, num_logits=12)
    # Beside float16 layers, a draft's own are in int8.
    tolerance = 0.3 if kind is WeightKind.FLOAT16 else 1e-4
    torch.testing.assert_close(run(draft, TOKENS_T, num_logits=12), expected_TV, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_head_gives_the_targets_rows_and_minus_infinity_elsewhere(
    kind: WeightKind, tied: bool, tmp_path: Path
) -> None:
    config = dataclasses.replace(CONFIG, tie_embeddings=tied)
    target, identity, _ = load_target(kind, config, smoothed=True)
    tensors = random_draft_tensors(config, DraftDesign.TOKEN, head_size=40)
    ids_C = tensors.pop(HEAD_TOKEN_IDS)
    logits = {}
    for name, ids in (("whole", {}), ("cut", {HEAD_TOKEN_IDS: ids_C})):
        write_draft(tmp_path, design=DraftDesign.TOKEN, num_layers=1, target=identity, tensors={**tensors, **ids})
        logits[name] = run(bind_draft(open_draft(tmp_path, identity), target), TOKENS_T, num_logits=5)
    kept_C = ids_C.long()
    # Beside a float16 head, the cut one is in int8.
    tolerance = 0.05 if kind is WeightKind.FLOAT16 else 1e-4
    torch.testing.assert_close(logits["cut"][:, kept_C], logits["whole"][:, kept_C], atol=tolerance, rtol=tolerance)
    others = torch.ones(config.vocab_size, dtype=torch.bool)
    others[kept_C] = False
    assert logits["cut"].shape == (5, config.vocab_size)
    assert bool((logits["cut"][:, others] == float("-inf")).all())
    assert bool(logits["whole"].isfinite().all())


@pytest.mark.parametrize("design", DraftDesign)
def test_what_is_the_targets_is_not_copied(design: DraftDesign, tmp_path: Path) -> None:
    target, identity, _ = load_target()
    write_random_draft(tmp_path, identity, design)
    draft = bind_draft(open_draft(tmp_path, identity), target)
    ours, theirs = draft.packed_weights, target.packed_weights
    assert ours.embedding_VE.data_ptr() == theirs.embedding_VE.data_ptr()
    assert ours.final_norm_E.data_ptr() == theirs.final_norm_E.data_ptr()
    assert ours.head is theirs.head
    write_random_draft(tmp_path, identity, design, head_size=10)
    cut = bind_draft(open_draft(tmp_path, identity), target).packed_weights
    assert cut.embedding_VE.data_ptr() == theirs.embedding_VE.data_ptr()
    assert cut.head.num_bytes == 10 * CONFIG.hidden_size * 4 + 10 * 8


@pytest.mark.parametrize("kind", KINDS)
def test_what_it_does_not_share_is_kept_as_short_as_can_be(kind: WeightKind, tmp_path: Path) -> None:
    target, identity, _ = load_target(kind)
    draft = feature_draft(target, identity, tmp_path, head_size=10)
    expected = WeightKind.FLOAT32 if kind is WeightKind.FLOAT32 else WeightKind.INT8
    (layer,) = draft.packed_weights.layers
    assert kind_of(layer.qkv) is kind_of(layer.gate_up) is expected
    head = draft.packed_weights.head
    whole = 10 * CONFIG.hidden_size * 4
    assert head.num_bytes == (whole if kind is WeightKind.FLOAT32 else whole // 4 + 10 * 12) + 10 * 8


def test_features_are_the_residual_stream_before_the_final_norm() -> None:
    target, _, tensors = load_target()
    assert isinstance(target, FeatureSource)
    logits_RV, features_TE = target.forward_with_features(TOKENS_T, target.new_cache(64), num_logits=3)
    assert features_TE.shape == (12, CONFIG.hidden_size)
    unit_TE = features_TE / (features_TE.pow(2).mean(-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt()
    by_hand_TV = unit_TE * tensors["model.norm.weight"] @ tensors["model.embed_tokens.weight"].T
    torch.testing.assert_close(by_hand_TV[-3:], logits_RV, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_features_are_had_without_changing_a_bit(kind: WeightKind) -> None:
    """Also in calls of several blocks, and where no logits are asked for."""
    target, _, _ = load_target(kind)
    ids_T = torch.randint(97, (150,), generator=torch.Generator().manual_seed(1))
    caches = [target.new_cache(200) for _ in range(3)]
    one_by_one_TE = torch.cat(
        [target.forward_with_features(ids_T[i : i + 1], caches[0], num_logits=1)[1] for i in range(150)]
    )
    nothing_0V, features_TE = target.forward_with_features(ids_T[:139], caches[1], num_logits=0)
    logits_RV, last_TE = target.forward_with_features(ids_T[139:], caches[1], num_logits=11)
    assert nothing_0V.shape == (0, 97)
    assert torch.equal(torch.cat([features_TE, last_TE]), one_by_one_TE)
    target.forward(ids_T[:139], caches[2], num_logits=0)
    assert torch.equal(target.forward(ids_T[139:], caches[2], num_logits=11), logits_RV)


@pytest.mark.parametrize("kind", KINDS)
def test_one_call_of_a_feature_draft_equals_single_ones(kind: WeightKind, tmp_path: Path) -> None:
    target, identity, _ = load_target(kind)
    draft = feature_draft(target, identity, tmp_path, num_layers=2, head_size=50)
    assert isinstance(draft, FeatureReader)
    _, features_TE = target.forward_with_features(TOKENS_T, target.new_cache(64), num_logits=0)
    before_TE = torch.cat([torch.zeros(1, CONFIG.hidden_size), features_TE[:-1]])
    kept_TE = before_TE.clone()
    logits_TV, own_TE = draft.forward_on_features(TOKENS_T, before_TE, draft.new_cache(64), num_logits=12)
    assert torch.equal(before_TE, kept_TE)
    cache = draft.new_cache(64)
    singles = [
        draft.forward_on_features(TOKENS_T[i : i + 1], before_TE[i : i + 1], cache, num_logits=1) for i in range(12)
    ]
    # Where the layers are in float16, so are sums of other orders.
    torch.testing.assert_close(torch.cat([row for row, _ in singles]), logits_TV, atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(torch.cat([own for _, own in singles]), own_TE, atol=1e-3, rtol=1e-3)
    assert not torch.equal(own_TE, features_TE)


def test_a_feature_draft_computes_what_its_format_says(tmp_path: Path) -> None:
    """The fusion written out, and the layers as a decoder of the same weights."""
    target, identity, tensors = load_target()
    draft = feature_draft(target, identity, tmp_path)
    own = {name: tensor.float() for name, tensor in random_draft_tensors(CONFIG, DraftDesign.FEATURE).items()}
    features_TE = torch.randn(12, CONFIG.hidden_size, generator=torch.Generator().manual_seed(2))
    logits_TV, own_TE = draft.forward_on_features(TOKENS_T, features_TE, draft.new_cache(64), num_logits=12)

    def unit(x_TE: torch.Tensor) -> torch.Tensor:
        return x_TE / (x_TE.pow(2).mean(-1, keepdim=True) + CONFIG.rms_norm_eps).sqrt()

    embedding_TE = tensors["model.embed_tokens.weight"][TOKENS_T]
    parts = [
        unit(embedding_TE) * own["fusion.embedding_norm.weight"],
        unit(features_TE) * own["fusion.feature_norm.weight"],
    ]
    fused_TE = torch.cat(parts, -1) @ own["fusion.weight"].T
    layer = {f"model.{name}": tensor for name, tensor in own.items() if name.startswith("layers.")}
    config = dataclasses.replace(CONFIG, num_layers=1)
    decoder = Decoder.from_checkpoint(StateDictCheckpoint(config, {**tensors, **layer}), weights=WeightKind.FLOAT32)
    expected_TV, expected_TE = decoder.forward_embedded(fused_TE, decoder.new_cache(64), num_logits=12)
    torch.testing.assert_close(own_TE, expected_TE, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(logits_TV, expected_TV, atol=1e-4, rtol=1e-4)


def test_a_feature_draft_goes_on_from_its_own_features(tmp_path: Path) -> None:
    """Rolled back and read again with the target's features, its cache is as if it had never gone astray."""
    target, identity, _ = load_target()
    draft = feature_draft(target, identity, tmp_path)
    _, features_TE = target.forward_with_features(TOKENS_T, target.new_cache(64), num_logits=0)
    before_TE = torch.cat([torch.zeros(1, CONFIG.hidden_size), features_TE[:-1]])
    straight_TV, _ = draft.forward_on_features(TOKENS_T, before_TE, draft.new_cache(64), num_logits=1)
    cache = draft.new_cache(64)
    _, own_TE = draft.forward_on_features(TOKENS_T[:6], before_TE[:6], cache, num_logits=1)
    for token_id in TOKENS_T[6:9]:
        astray_TV, own_TE = draft.forward_on_features(token_id[None], own_TE[-1:], cache, num_logits=1)
    assert cache.length == 9
    cache.rollback(6)
    again_TV, _ = draft.forward_on_features(TOKENS_T[6:], before_TE[6:], cache, num_logits=1)
    torch.testing.assert_close(again_TV, straight_TV, atol=1e-4, rtol=1e-4)
    # Had features made no difference, this test would say nothing.
    on_true_TV, _ = draft.forward_on_features(TOKENS_T[:9], before_TE[:9], draft.new_cache(64), num_logits=1)
    assert float((on_true_TV - astray_TV).abs().max()) > 0.01
    no_features_TV = draft.forward(TOKENS_T, draft.new_cache(64), num_logits=1)
    assert float((no_features_TV - straight_TV).abs().max()) > 0.01


def test_calls_outside_their_limits_are_refused(tmp_path: Path) -> None:
    target, identity, _ = load_target()
    draft = feature_draft(target, identity, tmp_path)
    cache = draft.new_cache(4)
    with pytest.raises(ValueError, match=r"features_TE must have shape \(2, 32\), got \(3, 32\)"):
        draft.forward_on_features(TOKENS_T[:2], torch.zeros(3, 32), cache, num_logits=0)
    with pytest.raises(ValueError, match="do not fit"):
        draft.forward_on_features(TOKENS_T[:5], torch.zeros(5, 32), cache, num_logits=0)
    with pytest.raises(ValueError, match="new_cache"):
        draft.forward_on_features(TOKENS_T[:2], torch.zeros(2, 32), target.new_cache(4), num_logits=0)
    with pytest.raises(ValueError, match="num_logits"):
        target.forward_with_features(TOKENS_T[:2], target.new_cache(4), num_logits=3)
    assert cache.length == 0


def test_a_draft_of_another_decoder_is_refused(tmp_path: Path) -> None:
    _, identity, _ = load_target()
    write_random_draft(tmp_path, identity, DraftDesign.TOKEN)
    other, _, _ = load_target(config=dataclasses.replace(CONFIG, intermediate_size=40))
    with pytest.raises(ValueError, match="open the draft"):
        bind_draft(open_draft(tmp_path, identity), other)


@pytest.mark.skipif(WeightKind.FLOAT16 not in KINDS, reason="float16 weights need FBGEMM")
def test_weights_that_the_kind_cannot_hold_are_refused(tmp_path: Path) -> None:
    target, identity, _ = load_target(WeightKind.FLOAT16)
    tensors = random_draft_tensors(CONFIG, DraftDesign.FEATURE, dtype=torch.float32)
    tensors["layers.0.mlp.down_proj.weight"][0, 0] = 1e6
    write_draft(tmp_path, design=DraftDesign.FEATURE, num_layers=1, target=identity, tensors=tensors)
    with pytest.raises(CheckpointError, match=r"cannot be run here.*use float32"):
        bind_draft(open_draft(tmp_path, identity), target)
