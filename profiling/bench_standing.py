"""Ahead of whom, behind whom, where: our fastest system beside each peer's, prompt by prompt.

Owns the paired ratios, the aims they are held against, and their tables. Knows nothing of how runs are made.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from profiling.bench_run import OWN, Run, owner_of, plain_of, runs_by_system
from profiling.peers.peer import PeerName
from profiling.peers.plans import MEASURED_PEERS
from profiling.prompts import PromptKind
from runtime import Mode


class Against(StrEnum):
    """Which of a peer's systems ours is held against: the fastest of these on that kind of prompt."""

    SPECULATIVE = "speculation"
    PLAIN = "plain"
    BEST = "best"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Our fastest system on one kind of prompt beside one peer's."""

    threads: int
    kind: PromptKind
    peer: str
    against: Against
    peer_system: str
    own_system: str
    ratios: tuple[float, ...]
    """Prompt by prompt: our speed over the peer's."""
    auto_ratios: tuple[float, ...]
    """The same for the fastest of our systems that choose for themselves; empty where none ran."""

    @property
    def median(self) -> float:
        """Of the prompts' ratios."""
        return statistics.median(self.ratios)

    @property
    def auto_median(self) -> float | None:
        """Likewise, for what a user gets who chooses nothing but the weights."""
        return statistics.median(self.auto_ratios) if self.auto_ratios else None

    @property
    def verdict(self) -> str:
        """In words."""
        if min(self.ratios) > 1:
            return "ahead on every prompt"
        if max(self.ratios) < 1:
            return "behind on every prompt"
        return "ahead" if self.median > 1 else "behind" if self.median < 1 else "level"

    def as_dict(self) -> dict[str, object]:
        """Every field and figure, ready for JSON."""
        figures = {"median": self.median, "auto_median": self.auto_median, "verdict": self.verdict}
        return {**asdict(self), **figures}


def standings(runs: Sequence[Run]) -> list[Standing]:
    """For each number of threads, kind of prompt and peer, against its speculation, its plain decoding and its best.

    What is fastest is the lowest median of the time a token. Only greedy runs count.
    """
    found = []
    for by_system in runs_by_system([run for run in runs if run.temperature == 0]):
        own = {system: prompts for system, prompts in by_system.items() if owner_of(system) == OWN}
        fastest = _fastest(own)
        if fastest is None:
            continue
        auto = _fastest({system: prompts for system, prompts in own.items() if f", {Mode.AUTO.value}" in system})
        for peer in MEASURED_PEERS:
            theirs = {system: prompts for system, prompts in by_system.items() if owner_of(system) == peer.value}
            for against in Against:
                rival = _fastest({system: theirs[system] for system in theirs if _counts(system, against)})
                ratios = () if rival is None else _ratios(theirs[rival], own[fastest])
                if rival is None or not ratios:
                    continue
                any_run = next(iter(theirs[rival].values()))
                found.append(
                    Standing(
                        threads=any_run.threads,
                        kind=any_run.kind,
                        peer=peer.value,
                        against=against,
                        peer_system=rival,
                        own_system=fastest,
                        ratios=ratios,
                        auto_ratios=() if auto is None else _ratios(theirs[rival], own[auto]),
                    )
                )
    return found


def _counts(system: str, against: Against) -> bool:
    is_plain = system == plain_of(system)
    return against is Against.BEST or is_plain == (against is Against.PLAIN)


def _fastest(systems: Mapping[str, Mapping[int, Run]]) -> str | None:
    times_ms = {
        system: statistics.median(run.tpot_ms for run in prompts.values()) for system, prompts in systems.items()
    }
    return min(times_ms, key=lambda system: times_ms[system]) if times_ms else None


def _ratios(theirs: Mapping[int, Run], own: Mapping[int, Run]) -> tuple[float, ...]:
    return tuple(theirs[prompt].tpot_ms / run.tpot_ms for prompt, run in own.items() if prompt in theirs)


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
    """What came of an aim at one number of threads."""

    aim: str
    threads: int
    missed: tuple[str, ...]
    """Where the median ratio is not above 1, and what it is."""
    not_measured: tuple[str, ...]
    num_met: int

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.missed:
            return "missed"
        if not self.not_measured:
            return "met"
        return "met where measured" if self.num_met else "not measured"


def judge_aims(found: Sequence[Standing]) -> list[AimResult]:
    """Hold the aims against what was measured; nothing where no peer was."""
    results = []
    for threads in sorted({standing.threads for standing in found}):
        for aim in AIMS:
            places = {
                (standing.peer, standing.kind): standing
                for standing in found
                if standing.threads == threads and standing.against is aim.against
            }
            wanted = [(peer.value, kind) for peer in aim.peers for kind in aim.kinds]
            results.append(
                AimResult(
                    aim=aim.text,
                    threads=threads,
                    missed=tuple(
                        f"{peer} on {kind}, x{places[peer, kind].median:.2f}"
                        for peer, kind in wanted
                        if (peer, kind) in places and places[peer, kind].median <= 1
                    ),
                    not_measured=tuple(f"{peer} on {kind}" for peer, kind in wanted if (peer, kind) not in places),
                    num_met=sum(places[place].median > 1 for place in wanted if place in places),
                )
            )
    return results


def format_standings(found: Sequence[Standing]) -> str:
    """The ratios as a person reads them; a peer's best is one of its other two, and only marked."""
    layout = "{:>7}  {:5}  {:38}  {:17}  {:38}  {:>6}  {:>6}  {:>6}  {}"
    titles = ("threads", "kind", "peer's system", "is its", "our fastest", "median", "lowest", "auto", "we are")
    lines = [layout.format(*titles)]
    best = {(row.threads, row.kind, row.peer_system) for row in found if row.against is Against.BEST}
    for row in found:
        if row.against is Against.BEST:
            continue
        is_best = (row.threads, row.kind, row.peer_system) in best
        lines.append(
            layout.format(
                row.threads,
                row.kind,
                row.peer_system,
                f"{row.against}, best" if is_best else row.against,
                row.own_system,
                f"{row.median:.2f}",
                f"{min(row.ratios):.2f}",
                "-" if row.auto_median is None else f"{row.auto_median:.2f}",
                row.verdict,
            )
        )
    return "\n".join(lines)


def format_aims(results: Sequence[AimResult]) -> str:
    """One line for each aim."""
    lines = []
    for result in results:
        details = [*result.missed, *(f"{place} not measured" for place in result.not_measured)]
        lines.append(
            f"{result.threads} thread(s), {result.aim}: {result.outcome}"
            + (f" ({'; '.join(details)})" if details else "")
        )
    return "\n".join(lines)
