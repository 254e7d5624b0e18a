"""What every peer is: something that loads one model once and answers prompts one at a time.

Owns the settings, the question and the answer that pass between a benchmark and a peer's process, as JSON, and the rule
by which tokens become times. Knows nothing of any peer, nor of processes.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePath


class PeerName(StrEnum):
    """Who is measured."""

    TRANSFORMERS = "transformers"
    LLAMA_CPP = "llama.cpp"
    OPENVINO = "openvino"
    SLIPSTREAM = "slipstream"
    """This project's own runtime, alone in a process, for the memory that it takes."""


class PeerMode(StrEnum):
    """How a peer decodes, always greedily."""

    PLAIN = "plain"
    ASSISTED = "assisted"
    """A draft model proposes."""
    PROMPT_LOOKUP = "prompt lookup"
    """What followed the same tokens before is proposed."""


@dataclass(frozen=True, kw_only=True)
class PeerSettings:
    """What a peer loads."""

    peer: PeerName
    mode: PeerMode
    target: str
    """A folder, a hub id or a GGUF file."""
    threads: int
    context_length: int
    """Most tokens of prompt and output together, proposals included."""
    draft: str | None = None
    """ASSISTED: a model; None takes the target's own first layers."""
    num_draft_layers: int = 1
    """How many of these."""
    lookup_tokens: int = 10
    """PROMPT_LOOKUP: most tokens that are proposed at once."""
    may_repack: bool = True
    """LLAMA_CPP: whether it may keep weights in the layouts of its special kernels, such as AMX's."""
    weights: str | None = None
    """SLIPSTREAM: how matrices are kept."""
    draft_sources: tuple[str, ...] = ()
    """SLIPSTREAM: its drafts."""

    @property
    def draft_name(self) -> str:
        """ASSISTED: what proposes, shortly."""
        if self.draft is not None:
            return PurePath(self.draft).name
        return f"its first {self.num_draft_layers} layer{'s' * (self.num_draft_layers > 1)}"

    @property
    def draft_text(self) -> str:
        """ASSISTED: likewise, and what is to be known of it."""
        if self.draft is not None:
            return f"draft {self.draft_name}"
        return f"draft: {self.draft_name}, which were not trained to draft"

    @classmethod
    def from_json(cls, fields: dict[str, object]) -> PeerSettings:
        """The settings again, after they were a line of JSON."""
        values = dict(fields)
        values |= {"peer": PeerName(str(values["peer"])), "mode": PeerMode(str(values["mode"]))}
        sources = values.get("draft_sources", ())
        if isinstance(sources, list):
            values["draft_sources"] = tuple(sources)
        return cls(**values)  # type: ignore[arg-type]  # the other end wrote them


@dataclass(frozen=True, kw_only=True)
class PeerAnswer:
    """One timed generation."""

    token_ids: tuple[int, ...]
    ttft_ms: float
    tpot_ms: float | None
    """A token after those that came with the first; None where all came at once."""


class PeerRefusal(Exception):
    """A peer cannot do what it is asked for; the message is the reason, in words for a table."""


class Peer(ABC):
    """One model in one runtime; made once, by `load`, and then asked one prompt after the other."""

    settled: str = ""
    """The settings that it runs with, in words, for the report."""
    version: str = ""
    """Of the library."""

    @abstractmethod
    def answer(self, prompt_ids: Sequence[int], max_tokens: int) -> PeerAnswer:
        """Write exactly `max_tokens` tokens, greedily, past any end of sequence, reusing nothing of earlier prompts.

        Raises:
            PeerRefusal: if other than `max_tokens` tokens came.
        """

    def close(self) -> None:  # noqa: B027  # most have nothing to let go of that their process's end does not
        """Let go of everything; nothing can be asked after that."""


class TokenClock:
    """Notes when tokens come, and how many at a time."""

    def __init__(self) -> None:
        """Start the clock."""
        self._token_ids: list[int] = []
        self._started = time.perf_counter()
        self._first_s = self._last_s = 0.0
        self._num_first = 0

    def take(self, token_ids: Sequence[int]) -> None:
        """Note tokens that have come now."""
        if not token_ids:
            return
        self._last_s = time.perf_counter() - self._started
        if not self._token_ids:
            self._first_s, self._num_first = self._last_s, len(token_ids)
        self._token_ids.extend(token_ids)

    def answer(self, max_tokens: int) -> PeerAnswer:
        """The tokens and their times.

        Tokens of the first step came with the reading of the prompt; they do not count as decoded in the time after.

        Raises:
            PeerRefusal: if other than `max_tokens` tokens came.
        """
        if len(self._token_ids) != max_tokens:
            raise PeerRefusal(f"wrote {len(self._token_ids)} tokens where {max_tokens} were asked for")
        num_timed = max_tokens - self._num_first
        return PeerAnswer(
            token_ids=tuple(self._token_ids),
            ttft_ms=self._first_s * 1e3,
            tpot_ms=(self._last_s - self._first_s) * 1e3 / num_timed if num_timed else None,
        )


def need_gguf(settings: PeerSettings, reader: str, way_out: str) -> str:
    """The path of a target that must be one GGUF file.

    Raises:
        PeerRefusal: if it is something else.
    """
    if not settings.target.lower().endswith(".gguf"):
        raise PeerRefusal(f"{reader} reads GGUF files, and {settings.target} is none; {way_out}")
    return settings.target
