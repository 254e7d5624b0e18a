"""The batched target against the inference decoder, which computes one sequence at a time.

Shape suffixes: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from models.decoder import Decoder
from models.distill.batched_target import BatchedTarget
from models.linear import WeightKind
from tests.support import tiny_decoders
from tests.support.tiny_decoders import Reference
from tests.support.toy_distillation import CPU, toy_checkpoint

pytestmark = pytest.mark.usefixtures("one_thread")

TOKENS_BT = torch.randint(211, (3, 21), generator=torch.Generator().manual_seed(1))


def build(reference: Reference) -> tuple[BatchedTarget, torch.Tensor]:
    """The batched target, and what the decoder makes of each sequence."""
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32)
    logits = [decoder.forward(ids_T, decoder.new_cache(32), num_logits=len(ids_T)) for ids_T in TOKENS_BT]
    target = BatchedTarget(reference.checkpoint, dtype=torch.float32, device=CPU, num_positions=32)
    return target, torch.stack(logits)


@pytest.mark.parametrize(
    "reference", [tiny_decoders.qwen2, tiny_decoders.qwen3, tiny_decoders.llama_biases, tiny_decoders.llama3_scaling]
)
def test_logits_are_the_decoders_at_once_and_bit_by_bit(reference: Reference) -> None:
    target, expected_BTV = build(reference())  # type: ignore[operator]
    torch.testing.assert_close(target.logits(target.features(TOKENS_BT)), expected_BTV, atol=2e-4, rtol=2e-4)
    cache = target.new_cache(3, 32)
    parts = [target.features(TOKENS_BT[:, start:stop], cache) for start, stop in ((0, 7), (7, 8), (8, 9), (9, 21))]
    assert cache.length == 21
    torch.testing.assert_close(target.logits(torch.cat(parts, 1)), expected_BTV, atol=2e-4, rtol=2e-4)


def test_features_have_a_root_mean_square_of_one() -> None:
    target, _ = build(tiny_decoders.llama())
    mean_squares_BT = target.features(TOKENS_BT).square().mean(-1)
    torch.testing.assert_close(mean_squares_BT, torch.ones(3, 21), atol=1e-3, rtol=0)


def test_bfloat16_is_near() -> None:
    checkpoint = toy_checkpoint()
    ids_BT = TOKENS_BT % checkpoint.config.vocab_size
    logits = []
    for dtype in (torch.float32, torch.bfloat16):
        target = BatchedTarget(checkpoint, dtype=dtype, device=CPU, num_positions=32)
        logits.append(target.logits(target.features(ids_BT)))
    assert logits[1].dtype is torch.float32
    assert not torch.equal(*logits)
    torch.testing.assert_close(logits[1], logits[0], atol=0.3, rtol=0.05)


def test_without_layers_there_are_no_features() -> None:
    target = BatchedTarget(toy_checkpoint(), dtype=torch.float32, device=CPU, num_positions=32, with_layers=False)
    assert target.logits(torch.ones(1, 32)).shape == (1, 50)
    with pytest.raises(RuntimeError, match="without its layers"):
        target.features(TOKENS_BT)
