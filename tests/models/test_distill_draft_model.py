"""The draft while it learns: its start, its own steps, and that the runtime computes the same.

Shape suffixes: B sequences, T tokens, E hidden width, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models.decoder import Decoder
from models.distill.batched_target import BatchedTarget, final_head_input
from models.distill.draft_model import DraftModel, frequent_token_ids
from models.draft_folder import DraftDesign, DraftTarget, open_draft, write_draft
from models.linear import WeightKind
from models.shallow import FeatureDraft, bind_draft
from tests.support.toy_distillation import CONFIG, random_draft, toy_checkpoint, toy_target

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS_BT = torch.randint(50, (2, 9), generator=torch.Generator().manual_seed(1))


def rows_written_one_by_one(
    draft: DraftModel, target: BatchedTarget, features_BTE: torch.Tensor, *, step: int, position: int
) -> torch.Tensor:
    """hidden_BE of the `step`-th proposal in a row whose row lies at `position`.

    The round's last known token is `step` - 1 positions before. From there on each row reads what the row before it
    gave, and every row is computed anew in an ordinary causal call.
    """
    read_BTE = features_BTE.clone()
    known = position - step + 1
    for stop in range(known, position + 1):
        (hidden_BTE,) = draft(TOKENS_BT[:, : stop + 1], read_BTE[:, : stop + 1], target)
        read_BTE[:, stop] = hidden_BTE[:, stop]
    return hidden_BTE[:, position]


@pytest.mark.parametrize("num_layers", [1, 2])
def test_own_steps_equal_rows_written_one_by_one(num_layers: int) -> None:
    target = toy_target()
    features_BTE = target.features(TOKENS_BT)
    draft = random_draft(DraftDesign.FEATURE, num_layers=num_layers)
    with torch.no_grad():
        outputs = draft(TOKENS_BT, features_BTE, target, num_steps=3)
        for step, hidden_BTE in enumerate(outputs, start=1):
            for position in range(step - 1, TOKENS_BT.shape[1]):
                expected_BE = rows_written_one_by_one(draft, target, features_BTE, step=step, position=position)
                torch.testing.assert_close(hidden_BTE[:, position], expected_BE, atol=2e-5, rtol=1e-4)
    assert all(bool(hidden_BTE.isfinite().all()) for hidden_BTE in outputs)


def test_own_steps_have_finite_gradients_also_in_rows_that_mean_nothing() -> None:
    target = toy_target()
    draft = random_draft(DraftDesign.FEATURE)
    outputs = draft(TOKENS_BT, target.features(TOKENS_BT).clone(), target, num_steps=3)
    gradients = torch.autograd.grad(sum(output.square().sum() for output in outputs), list(draft.parameters()))
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in gradients)


def test_a_row_reads_the_feature_before_it_and_no_later_one() -> None:
    target = toy_target()
    draft = random_draft(DraftDesign.FEATURE)
    features_BTE = target.features(TOKENS_BT).clone()
    with torch.no_grad():
        (before_BTE,) = draft(TOKENS_BT, features_BTE, target)
        features_BTE[:, 4] += 1
        (after_BTE,) = draft(TOKENS_BT, features_BTE, target)
    assert torch.equal(before_BTE[:, :5], after_BTE[:, :5])
    assert bool((before_BTE[:, 5:] != after_BTE[:, 5:]).any(-1).all())


@pytest.mark.parametrize("design", DraftDesign)
def test_an_exported_draft_computes_in_the_runtime_what_it_did_in_training(design: DraftDesign, tmp_path: Path) -> None:
    checkpoint, target = toy_checkpoint(), toy_target()
    draft = random_draft(design, num_layers=2)
    head_ids_C = torch.tensor([1, 4, 7, 30, 49])
    identity = DraftTarget(name="toy", fingerprint="f", config=CONFIG)
    exported = draft.export(head_ids_C, dtype=torch.float32)
    write_draft(tmp_path, design=design, num_layers=2, target=identity, tensors=exported)
    decoder = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32)
    bound = bind_draft(open_draft(tmp_path, identity), decoder)
    ids_T = TOKENS_BT[0]
    with torch.no_grad():
        (hidden_BTE,) = draft(ids_T[None], target.features(ids_T[None]), target)
        expected_TC = final_head_input(hidden_BTE[0], target) @ target.head_VE[head_ids_C].T
    cache = bound.new_cache(32)
    if isinstance(bound, FeatureDraft):
        # The runtime hands over the residual stream as it is; training reads it over its root mean square.
        _, features_TE = decoder.forward_with_features(ids_T, decoder.new_cache(32), num_logits=0)
        before_TE = torch.cat([torch.zeros(1, CONFIG.hidden_size), features_TE[:-1]])
        logits_TV, _ = bound.forward_on_features(ids_T, before_TE, cache, num_logits=len(ids_T))
    else:
        logits_TV = bound.forward(ids_T, cache, num_logits=len(ids_T))
    torch.testing.assert_close(logits_TV[:, head_ids_C], expected_TC, atol=2e-4, rtol=2e-4)


def test_a_draft_starts_from_the_targets_layers() -> None:
    checkpoint = toy_checkpoint()
    for design, layers in ((DraftDesign.FEATURE, {1: (1,), 2: (0, 1)}), (DraftDesign.TOKEN, {1: (0,), 2: (0, 1)})):
        for num_layers, taken in layers.items():
            draft = DraftModel(CONFIG, design=design, num_layers=num_layers)
            draft.initialise(checkpoint)
            exported = draft.export(None, dtype=torch.float32)
            for index, theirs in enumerate(taken):
                for part in ("self_attn.k_proj", "mlp.up_proj", "post_attention_layernorm"):
                    expected = checkpoint.tensor(f"model.layers.{theirs}.{part}.weight")
                    assert torch.equal(exported[f"layers.{index}.{part}.weight"], expected)


def test_the_most_frequent_ids_ascend() -> None:
    assert frequent_token_ids([5, 0, 9, 5, 5, 1], 3).tolist() == [0, 2, 3]
    assert frequent_token_ids(torch.tensor([0, 3, 1]), 8).tolist() == [0, 1, 2]
