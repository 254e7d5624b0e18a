"""A target and its early-exit draft share their weights and nothing else: called at once, each gives its own bits.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest
import torch

from models import Cache, Decoder, WeightKind
from scheduler import ThreadStream
from tests.support.tiny_decoders import StateDictCheckpoint, llama

NUM_TOKENS = 90
NUM_PASSES = 12
WIDTHS = {"target": (1, 2, 5, 9, 16, 40), "draft": (1, 1, 1, 2, 9)}


@pytest.fixture(scope="module")
def checkpoint() -> StateDictCheckpoint:
    """Wide enough for packed kernels to work in several blocks."""
    return llama(vocab_size=1031, hidden_size=192, intermediate_size=320).checkpoint


def new_target(checkpoint: StateDictCheckpoint, weights: WeightKind, num_threads: int) -> Decoder:
    stream = ThreadStream("loader", num_threads=num_threads)
    launch = stream.launch(lambda: Decoder.from_checkpoint(checkpoint, weights=weights))
    stream.close()
    return launch.result()


def passes(model: Decoder, cache: Cache, widths: tuple[int, ...], seed: int) -> list[torch.Tensor]:
    """All rows of some texts, read in blocks of changing widths with rejected guesses between them."""
    chance = random.Random(seed)
    outputs = []
    for _ in range(NUM_PASSES):
        token_ids_T = torch.tensor([chance.randrange(model.vocab_size) for _ in range(NUM_TOKENS)])
        cache.rollback(0)
        rows = []
        while (start := cache.length) < NUM_TOKENS:
            width = min(chance.choice(widths), NUM_TOKENS - start)
            rows.append(model.forward(token_ids_T[start : start + width], cache, num_logits=width))
            if chance.random() < 0.3 and start + width + 3 <= NUM_TOKENS:
                model.forward(torch.tensor([7, 8, 9]), cache, num_logits=1)
                cache.rollback(start + width)
        outputs.append(torch.cat(rows))
    return outputs


def at_once(*works: tuple[Callable[[], list[torch.Tensor]], int]) -> list[list[torch.Tensor]]:
    """Run each on a worker of its own with that many threads, all starting together."""
    start = threading.Barrier(len(works))

    def begin(work: Callable[[], list[torch.Tensor]]) -> list[torch.Tensor]:
        start.wait(timeout=60)
        return work()

    streams = [ThreadStream(f"worker {index}", num_threads=threads) for index, (_, threads) in enumerate(works)]
    launches = [stream.launch(lambda work=work: begin(work)) for stream, (work, _) in zip(streams, works, strict=True)]
    for stream in streams:
        stream.close()
    return [launch.result() for launch in launches]


@pytest.mark.parametrize("weights", WeightKind)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_target_and_its_early_exit_at_once(
    checkpoint: StateDictCheckpoint, weights: WeightKind, num_threads: int
) -> None:
    target = new_target(checkpoint, weights, num_threads)
    draft = target.first_layers(1)
    target_cache, draft_cache = target.new_cache(NUM_TOKENS + 8), draft.new_cache(NUM_TOKENS + 8)

    def run_target() -> list[torch.Tensor]:
        return passes(target, target_cache, WIDTHS["target"], seed=1)

    def run_draft() -> list[torch.Tensor]:
        return passes(draft, draft_cache, WIDTHS["draft"], seed=2)

    (expected_target,) = at_once((run_target, num_threads))
    (expected_draft,) = at_once((run_draft, 1))
    found_target, found_draft = at_once((run_target, num_threads), (run_draft, 1))
    for found, expected in ((found_target, expected_target), (found_draft, expected_draft)):
        assert all(torch.equal(ours_TV, alone_TV) for ours_TV, alone_TV in zip(found, expected, strict=True))
