"""A wrapped decoder hands on everything but the answers.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from models.causal_model import Cache, CausalModel
from models.decoder import Decoder
from models.linear import WeightKind
from models.positioned_model import PositionedModel
from models.random_model import TOY_DRAFT, random_decoder
from models.wrapped_decoder import WrappedDecoder


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return random_decoder(TOY_DRAFT, weights=WeightKind.FLOAT32, max_block=48)


class Contrary(WrappedDecoder):
    """Likes least what its decoder likes best."""

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        return -self._decoder.forward(token_ids_T, cache, num_logits=num_logits)


def test_names_and_limits_are_the_decoders(decoder: Decoder) -> None:
    wrapped = WrappedDecoder(decoder)
    assert wrapped.name == decoder.name
    assert wrapped.vocab_size == TOY_DRAFT.vocab_size
    assert wrapped.context_length == TOY_DRAFT.context_length
    assert wrapped.max_block == decoder.max_block
    assert wrapped.device == decoder.device
    with pytest.raises(ValueError, match="capacity"):
        wrapped.new_cache(0)


def test_with_an_answer_it_is_a_model_whose_caches_fit_its_decoder(decoder: Decoder) -> None:
    model = Contrary(decoder)
    assert isinstance(model, CausalModel)
    # Whoever asks whether a model can do more must not be told what the decoder alone can do.
    assert isinstance(decoder, PositionedModel)
    assert not isinstance(model, PositionedModel)
    ids_T = torch.arange(5)
    cache = model.new_cache(5)
    logits_TV = model.forward(ids_T, cache, num_logits=5)
    assert (cache.capacity, cache.length) == (5, 5)
    assert torch.equal(logits_TV, -decoder.forward(ids_T, decoder.new_cache(5), num_logits=5))
