"""This project's own runtime as one of the peers: alone in a process, to see what memory it takes.

Owns how it is set up and asked. Knows nothing of processes.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections.abc import Sequence

from profiling.peers.peer import Peer, PeerAnswer, PeerRefusal, PeerSettings


class OwnRuntime(Peer):
    """One `Runtime`, on an event loop of its own."""

    def __init__(self, settings: PeerSettings) -> None:
        """Load the pair.

        Raises:
            PeerRefusal: if it cannot be loaded.
        """
        from models import SlipstreamError
        from runtime import Runtime

        drafts = settings.draft_sources
        self._runner = asyncio.Runner()
        try:
            self._runtime = self._runner.run(
                Runtime.load(
                    settings.target,
                    threads=settings.threads,
                    weights=settings.weights,
                    draft=drafts if len(drafts) > 1 else drafts[0],
                    device="cpu",
                )
            )
        except SlipstreamError as error:
            self._runner.close()
            raise PeerRefusal(str(error)) from error
        self.version = importlib.metadata.version("slipstream")

    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Write exactly `max_tokens` tokens; see `Peer`."""
        result = self._runner.run(
            self._runtime.generate(list(prompt_ids), max_tokens=max_tokens, ignore_eos=True, temperature=0)
        )
        metrics = result.metrics
        return PeerAnswer(token_ids=result.token_ids, ttft_ms=metrics.ttft_ms or 0.0, tpot_ms=metrics.tpot_ms)

    def close(self) -> None:
        """Let go of the runtime and its event loop."""
        self._runner.run(self._runtime.close())
        self._runner.close()
