"""The lean decoder on the demo's real weights: transformers' numbers, and rows equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.call_widths import VERIFY_BLOCK
from models.checkpoint import Checkpoint, open_checkpoint
from models.decoder import Decoder
from models.linear import WeightKind
from profiling.reference import reference_model

pytestmark = pytest.mark.weights

NUM_TOKENS = 100
TEXT = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n"
    "The function above calls itself twice, so its running time grows about as fast as its own result. "
    "Keeping the values that were already found turns it into a walk along the list, once from the left to the right. "
    "Explain to a colleague, in three short sentences, why that is so, and what it costs in memory.\n"
)


@pytest.fixture(scope="module")
def checkpoint(demo_gguf: Path) -> Checkpoint:
    return open_checkpoint(demo_gguf)


@pytest.fixture(scope="module")
def token_ids_T(checkpoint: Checkpoint) -> torch.Tensor:
    ids = checkpoint.tokenizer().encode(TEXT)
    return torch.tensor((ids * 2)[:NUM_TOKENS])


@pytest.fixture(scope="module", params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rows_in_blocks(decoder: Decoder, token_ids_T: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    cache = decoder.new_cache(token_ids_T.shape[0])
    rows = [decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]) for ids_T in token_ids_T.split(sizes)]
    return torch.cat(rows)


def test_logits_equal_those_of_transformers(
    checkpoint: Checkpoint, token_ids_T: torch.Tensor, one_thread: None
) -> None:
    model = reference_model(checkpoint)
    with torch.no_grad():
        expected_TV = model(token_ids_T[None]).logits[0]
    del model

    decoder = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32)
    sizes = [10, 1, 1, 2, 3, 5, 8, 12, 13, 16, 17, 9, 3]
    logits_TV = rows_in_blocks(decoder, token_ids_T, sizes)
    torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [WeightKind.FLOAT16, WeightKind.INT8])
def test_rows_are_equal_to_the_bit(
    checkpoint: Checkpoint, token_ids_T: torch.Tensor, threads: int, kind: WeightKind
) -> None:
    decoder = Decoder.from_checkpoint(checkpoint, weights=kind)
    one_by_one_TV = rows_in_blocks(decoder, token_ids_T, [1] * NUM_TOKENS)
    for sizes in ([NUM_TOKENS], [22, *range(1, 13)], [20, VERIFY_BLOCK, 16, 15, 14, 13, 5]):
        assert torch.equal(rows_in_blocks(decoder, token_ids_T, sizes), one_by_one_TV), f"blocks of {sizes}"
