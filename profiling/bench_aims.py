"""What we mean to be ahead of, and whether we are.

Owns the aims and what came of each. Knows nothing of how runs are made, nor of how speeds become ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.bench_standing import Against, Standing
from profiling.peers.peer import PeerName
from profiling.peers.plans import MEASURED_PEERS
from profiling.prompts import PromptKind


@dataclass(frozen=True, kw_only=True)
class Aim:
    """Whom we mean to be ahead of, and where."""

    text: str
    peers: tuple[PeerName, ...]
    against: Against
    kinds: tuple[PromptKind, ...]


AIMS = (
    Aim(
        text="ahead of every peer's speculation on every kind of prompt",
        peers=MEASURED_PEERS,
        against=Against.SPECULATIVE,
        kinds=tuple(PromptKind),
    ),
    Aim(
        text="ahead of the best of transformers and OpenVINO on code and copy",
        peers=(PeerName.TRANSFORMERS, PeerName.OPENVINO),
        against=Against.BEST,
        kinds=(PromptKind.CODE, PromptKind.COPY),
    ),
    Aim(
        text="ahead of llama.cpp's plain decoding on copy",
        peers=(PeerName.LLAMA_CPP,),
        against=Against.PLAIN,
        kinds=(PromptKind.COPY,),
    ),
)


@dataclass(frozen=True, kw_only=True)
class AimResult:
    """What came of an aim with one of our systems at one number of threads."""

    aim: str
    threads: int
    own_system: str
    missed: tuple[str, ...]
    """Where the median ratio is below 1 by more than noise, and what it is."""
    level: tuple[str, ...]
    """Where it is 1 but for noise."""
    not_measured: tuple[str, ...]
    num_met: int

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.missed:
            return "missed"
        if self.level:
            return "not met, level"
        if not self.not_measured:
            return "met"
        return "met where measured" if self.num_met else "not measured"


def judge_aims(found: Sequence[Standing]) -> list[AimResult]:
    """Hold each of our systems that choose for themselves against each aim; nothing where no peer was measured."""
    return [
        _judge(aim, threads, own, [one for one in found if (one.threads, one.own_system) == (threads, own)])
        for threads in sorted({standing.threads for standing in found})
        for aim in AIMS
        for own in dict.fromkeys(standing.own_system for standing in found if standing.threads == threads)
    ]


def _judge(aim: Aim, threads: int, own: str, found: Sequence[Standing]) -> AimResult:
    there = {(standing.peer, standing.kind): standing for standing in found if standing.against is aim.against}
    wanted = [(peer.value, kind) for peer in aim.peers for kind in aim.kinds]
    measured = [(f"{peer} on {kind}", there[peer, kind]) for peer, kind in wanted if (peer, kind) in there]
    ahead = [place for place, standing in measured if standing.is_ahead]
    return AimResult(
        aim=aim.text,
        threads=threads,
        own_system=own,
        missed=tuple(f"{place}, x{standing.median:.2f}" for place, standing in measured if standing.is_behind),
        level=tuple(
            f"{place}, x{standing.median:.2f}"
            for place, standing in measured
            if not standing.is_ahead and not standing.is_behind
        ),
        not_measured=tuple(f"{peer} on {kind}" for peer, kind in wanted if (peer, kind) not in there),
        num_met=len(ahead),
    )


def format_aims(results: Sequence[AimResult]) -> str:
    """One line for each aim and system."""
    lines = []
    for result in results:
        details = [
            *result.missed,
            *(f"{place} level" for place in result.level),
            *(f"{place} not measured" for place in result.not_measured),
        ]
        lines.append(
            f"{result.threads} thread(s), {result.own_system}, {result.aim}: {result.outcome}"
            + (f" ({'; '.join(details)})" if details else "")
        )
    return "\n".join(lines)
