"""Random decoders: of the right size, repeatable, and with logits that say something.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch

from models.config import ModelConfig
from models.decoder import Decoder
from models.linear import WeightKind, has_packed_kinds
from models.memory import estimate_memory, num_parameters
from models.random_model import (
    LOGIT_DEVIATION,
    QWEN2_5_0_5B,
    QWEN2_5_7B,
    TOY_DRAFT,
    TOY_TARGET,
    RandomTensors,
    random_decoder,
)

CPU = torch.device("cpu")
KINDS = [kind for kind in WeightKind if kind in {WeightKind.FLOAT32, WeightKind.BFLOAT16} or has_packed_kinds(CPU)]


def rows(decoder: Decoder) -> torch.Tensor:
    ids_T = torch.randint(decoder.vocab_size, (40,), generator=torch.Generator().manual_seed(1))
    return decoder.forward(ids_T, decoder.new_cache(40), num_logits=40)


@pytest.mark.parametrize(
    ("config", "billions", "non_embedding_billions"),
    [(QWEN2_5_7B, 7.61, 6.53), (QWEN2_5_0_5B, 0.49, 0.36)],
    ids=["7B", "0.5B"],
)
def test_the_shapes_have_as_many_weights_as_their_model_cards_say(
    config: ModelConfig, billions: float, non_embedding_billions: float
) -> None:
    embeddings = config.vocab_size * config.hidden_size * (1 if config.tie_embeddings else 2)
    assert num_parameters(config) / 1e9 == pytest.approx(billions, abs=0.01)
    assert (num_parameters(config) - embeddings) / 1e9 == pytest.approx(non_embedding_billions, abs=0.01)


def test_a_large_pair_in_bfloat16_is_estimated_at_two_bytes_a_weight() -> None:
    estimate = estimate_memory(
        QWEN2_5_7B,
        context_length=8192,
        target_weights=WeightKind.BFLOAT16,
        draft=QWEN2_5_0_5B,
        draft_weights=WeightKind.BFLOAT16,
    )
    num_weights = num_parameters(QWEN2_5_7B) + num_parameters(QWEN2_5_0_5B)
    assert estimate.weight_bytes == pytest.approx(2 * num_weights, rel=1e-3)
    assert estimate.cache_bytes_per_token == 2 * 2 * (28 * 4 * 128 + 24 * 2 * 64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("config", [TOY_TARGET, TOY_DRAFT], ids=["target", "draft"])
def test_logits_are_finite_and_of_the_promised_spread(one_thread: None, config: ModelConfig, kind: WeightKind) -> None:
    decoder = random_decoder(config, weights=kind)
    logits_TV = rows(decoder)
    assert logits_TV.isfinite().all()
    assert logits_TV.std(dim=1).mean() == pytest.approx(LOGIT_DEVIATION, rel=0.3)
    # The text shows: no token is always the best, nor is it the one just read.
    assert logits_TV.argmax(dim=1).unique().numel() > 10
    estimate = estimate_memory(config, context_length=40, target_weights=kind)
    assert decoder.num_weight_bytes == pytest.approx(estimate.weight_bytes, rel=0.02)


def test_a_seed_gives_the_same_weights_again(one_thread: None) -> None:
    shallow = dataclasses.replace(TOY_DRAFT, num_layers=1)
    first, again, other = (random_decoder(shallow, weights=WeightKind.FLOAT32, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(rows(first), rows(again))
    assert not torch.equal(rows(first), rows(other))


def test_depth_does_not_make_the_stream_explode(one_thread: None) -> None:
    deep = dataclasses.replace(TOY_DRAFT, num_layers=40, tie_embeddings=False)
    hidden_TE = []
    decoder = random_decoder(deep, weights=WeightKind.FLOAT32, max_block=40)
    logits = decoder._logits

    def watched(hidden_RE: torch.Tensor, *widths: object) -> torch.Tensor:
        hidden_TE.append(hidden_RE)
        return logits(hidden_RE, *widths)  # type: ignore[arg-type]  # handed on as they came

    decoder._logits = watched  # type: ignore[method-assign]  # to see what the head is given
    rows(decoder)
    assert 0.5 < float(hidden_TE[0].square().mean().sqrt()) < 3


def test_tensors_depend_on_their_names_alone() -> None:
    tensors = RandomTensors(TOY_TARGET, device=CPU, seed=1)
    name, other = (f"model.layers.{layer}.mlp.up_proj.weight" for layer in (0, 1))
    first = tensors.tensor(name)
    assert not torch.equal(tensors.tensor(other), first)
    assert torch.equal(tensors.tensor(name), first)
    assert tensors.has(name)
    assert not tensors.has("model.layers.4.mlp.up_proj.weight")
    with pytest.raises(KeyError):
        tensors.tensor("model.layers.4.mlp.up_proj.weight")


def test_nothing_global_is_drawn_from() -> None:
    before = torch.get_rng_state()
    RandomTensors(TOY_DRAFT, device=CPU, seed=1).tensor("model.embed_tokens.weight")
    assert torch.equal(torch.get_rng_state(), before)
