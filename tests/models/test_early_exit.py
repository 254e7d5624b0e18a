"""Early exit: the target's first layers, with its own norm and head, as a draft that brings no weights.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers

from models import CausalModel, Decoder, WeightKind, open_checkpoint
from tests.support.checkpoint_files import tiny_model

NUM_LAYERS = 3
IDS_T = torch.randint(48, (90,), generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module", params=[False, True], ids=["untied", "tied"])
def whole(request: pytest.FixtureRequest) -> transformers.PreTrainedModel:
    return tiny_model("llama", num_hidden_layers=NUM_LAYERS, tie_word_embeddings=request.param)


@pytest.fixture(scope="module")
def target(whole: transformers.PreTrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp("target")
    whole.save_pretrained(folder)
    with open_checkpoint(folder) as checkpoint:
        return Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32)


def rows(model: CausalModel) -> torch.Tensor:
    return model.forward(IDS_T, model.new_cache(len(IDS_T)), num_logits=len(IDS_T))


@pytest.mark.parametrize("num_layers", [1, 2, NUM_LAYERS])
def test_logits_are_those_of_the_model_without_its_later_layers(
    whole: transformers.PreTrainedModel, target: Decoder, num_layers: int
) -> None:
    cut = copy.deepcopy(whole)
    cut.model.layers = cut.model.layers[:num_layers]
    cut.config.num_hidden_layers = num_layers
    with torch.inference_mode():
        expected_TV = cut(IDS_T[None], use_cache=False).logits[0]
    torch.testing.assert_close(rows(target.first_layers(num_layers)), expected_TV, rtol=0, atol=1e-4)


def test_the_draft_shares_weights_but_no_cache_with_the_target(target: Decoder) -> None:
    draft = target.first_layers(1)
    assert draft.num_weight_bytes < target.num_weight_bytes
    assert draft._weights.layers[0] is target._weights.layers[0]
    assert draft._weights.head is target._weights.head
    assert (draft.vocab_size, draft.max_block, draft.context_length) == (
        target.vocab_size,
        target.max_block,
        target.context_length,
    )
    assert draft.name != target.name

    expected_TV = rows(target)
    target_cache, draft_cache = target.new_cache(90), draft.new_cache(90)
    assert draft_cache.num_bytes * NUM_LAYERS == target_cache.num_bytes
    taken = []
    for start in range(0, 90, 9):
        draft.forward(IDS_T[start : start + 9].flip(0), draft_cache, num_logits=9)
        taken.append(target.forward(IDS_T[start : start + 9], target_cache, num_logits=9))
    assert torch.equal(torch.cat(taken), expected_TV)
    with pytest.raises(ValueError, match="cache"):
        draft.forward(IDS_T[:2], target.new_cache(90), num_logits=1)


def test_a_rejected_guess_leaves_no_trace(target: Decoder) -> None:
    draft = target.first_layers(2)
    straight_TV = rows(draft)
    cache = draft.new_cache(90)
    draft.forward(IDS_T[:50], cache, num_logits=0)
    for token_id in (7, 8, 9):
        draft.forward(torch.tensor([token_id]), cache, num_logits=1)
    cache.rollback(51)
    cache.rollback(50)
    again_TV = torch.cat([draft.forward(IDS_T[i : i + 1], cache, num_logits=1) for i in range(50, 90)])
    assert torch.equal(again_TV, straight_TV[50:])


@pytest.mark.parametrize("num_layers", [0, -1, NUM_LAYERS + 1])
def test_a_depth_out_of_range_is_an_error(target: Decoder, num_layers: int) -> None:
    with pytest.raises(ValueError, match=f"num_layers .*{NUM_LAYERS}.*got {num_layers}"):
        target.first_layers(num_layers)
