"""The real llama.cpp on a tiny GGUF file, where it is installed: what the made-up one stands for.

OpenVINO has no such test: its reader of GGUF files takes no float32 matrices, which is what tiny files have.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from profiling.peers.peer import PeerName
from profiling.peers.plans import plan_peers
from profiling.peers.process import PeerProcess, ProcessAnswer
from tests.support.tiny_checkpoint import write_tiny_gguf

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


def test_llama_cpp_writes_the_same_with_and_without_lookup(tmp_path: Path) -> None:
    """After a call that wakes it, and again on the same prompt: nothing of earlier prompts is left in its cache."""
    pytest.importorskip("llama_cpp", reason="llama-cpp-python is not installed")
    target = write_tiny_gguf(tmp_path / "tiny.gguf")
    plans = plan_peers(
        (PeerName.LLAMA_CPP,), target=str(target), threads=1, context_length=128, draft=None, num_draft_layers=1
    )

    async def answers() -> list[ProcessAnswer]:
        written = []
        for settings in (*(plan.settings for plan in plans), plans[0].second_try):
            assert settings is not None
            process, _ = await PeerProcess.start_tried(settings, plans[0].second_try, PROMPT)
            try:
                assert "n_batch" in process.settled
                woken = await process.answer(PROMPT[:4], 1)
                assert (len(woken.token_ids), woken.tpot_ms) == (1, None)
                written += [await process.answer(PROMPT, 24), await process.answer(PROMPT, 24)]
            finally:
                await process.close()
        return written

    told = asyncio.run(answers())
    assert len(told) == 8
    assert {answer.token_ids for answer in told} == {told[0].token_ids}
    assert len(told[0].token_ids) == 24
    assert all(answer.tpot_ms is not None and answer.tpot_ms > 0 for answer in told)
