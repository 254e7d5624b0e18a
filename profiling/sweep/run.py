"""What a sweep measures: cells, turns and runs.

Owns these values and how a run is written as JSON. Knows nothing of how runs are made or what follows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from profiling.prompts import PromptKind
from runtime import Mode


class Round(NamedTuple):
    """One round of an answer."""

    num_tokens: int
    """Of the output."""
    num_proposed: int
    """0 in a plain round."""
    num_accepted: int


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One way to decode: an entry of the table."""

    mode: Mode
    gamma: int | None = None
    """None where nothing is proposed, or where the runtime chooses."""
    again: bool = False
    """Whether it is plain decoding for the second time, which shows how far two runs of the same thing differ."""

    @property
    def name(self) -> str:
        """As a person reads it."""
        if self.gamma is None:
            return f"{self.mode}, again" if self.again else str(self.mode)
        return f"{self.mode}, gamma {self.gamma}"


PLAIN = Cell(mode=Mode.PLAIN)
PLAIN_AGAIN = Cell(mode=Mode.PLAIN, again=True)
AUTO = Cell(mode=Mode.AUTO)
"""What a user gets who asks for nothing: mode and gamma are the runtime's own choice, round by round."""


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What all cells answer before the next is asked."""

    kind: PromptKind
    prompt: int
    """Of the prompts of its kind."""
    temperature: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """One cell's answer in one turn."""

    turn: Turn
    cell: Cell
    tpot_ms: float
    """Milliseconds a token after the first round."""
    ttft_ms: float
    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]

    def as_dict(self) -> dict[str, object]:
        """All of it, ready for JSON and for `from_dict`."""
        figures = {"tpot_ms": self.tpot_ms, "ttft_ms": self.ttft_ms, "token_ids": self.token_ids, "rounds": self.rounds}
        return {**asdict(self.turn), **asdict(self.cell), **figures}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> SweepRun:
        """The run that was written so.

        Raises:
            KeyError, TypeError, ValueError: if it was not.
        """
        return cls(
            turn=Turn(
                kind=PromptKind(values["kind"]),
                prompt=values["prompt"],
                temperature=values["temperature"],
                seed=values["seed"],
            ),
            cell=Cell(mode=Mode(values["mode"]), gamma=values["gamma"], again=values["again"]),
            tpot_ms=values["tpot_ms"],
            ttft_ms=values["ttft_ms"],
            token_ids=tuple(values["token_ids"]),
            rounds=tuple(Round(*counts) for counts in values["rounds"]),
        )
