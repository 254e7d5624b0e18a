"""Ahead of whom, behind whom, where: what we choose by ourselves beside each peer's systems, prompt by prompt.

Owns the paired ratios, what of them is noise, and their table. Knows nothing of how runs are made.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum

from profiling.bench_run import OWN, Run, runs_by_system
from profiling.peers.label import SystemLabel
from profiling.peers.peer import PeerName
from profiling.peers.plans import MEASURED_PEERS
from profiling.prompts import PromptKind
from runtime import Mode

_DEVIATIONS = 1.96
"""Within so many standard deviations lie 19 of 20 values."""


class Against(StrEnum):
    """Which of a peer's systems ours is held against: the fastest of these on that kind of prompt."""

    SPECULATIVE = "speculation"
    PLAIN = "plain"
    BEST = "best"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What a user of ours gets who chooses nothing but the weights, on one kind of prompt, beside one peer's system."""

    threads: int
    kind: PromptKind
    peer: str
    against: Against
    peer_system: str
    own_system: str
    """One that chooses for itself, `auto`."""
    own_weights: str
    ratios: tuple[float, ...]
    """Prompt by prompt: our speed over the peer's."""
    noise: float | None
    """By how much the median may be off 1 where nobody is faster; None where nothing was asked twice."""
    fastest_system: str
    """Of all of ours, found after the fact."""
    fastest_ratios: tuple[float, ...]

    @property
    def median(self) -> float:
        """Of the prompts' ratios."""
        return statistics.median(self.ratios)

    @property
    def fastest_median(self) -> float:
        """Likewise, with whichever of our systems turned out fastest."""
        return statistics.median(self.fastest_ratios)

    @property
    def is_ahead(self) -> bool:
        """By more than noise."""
        return self.median > 1 + (self.noise or 0.0)

    @property
    def is_behind(self) -> bool:
        """By more than noise."""
        return self.median < 1 / (1 + (self.noise or 0.0))

    @property
    def verdict(self) -> str:
        """In words."""
        if self.is_ahead:
            return "ahead on every prompt" if min(self.ratios) > 1 else "ahead"
        if self.is_behind:
            return "behind on every prompt" if max(self.ratios) < 1 else "behind"
        return "level"

    def as_dict(self) -> dict[str, object]:
        """Every field and figure, ready for JSON."""
        figures = {"median": self.median, "fastest_median": self.fastest_median, "verdict": self.verdict}
        return {**asdict(self), **figures}


def standings(runs: Sequence[Run]) -> list[Standing]:
    """For each number of threads, kind of prompt, peer and `auto` of ours: beside its speculation, plain, and best.

    What is fastest is the lowest median of the time a token. Only greedy runs count.
    """
    found = []
    for by_system in runs_by_system([run for run in runs if run.temperature == 0]):
        own = {system: prompts for system, prompts in by_system.items() if _label(prompts).owner == OWN}
        auto = {system: prompts for system, prompts in own.items() if _label(prompts).mode == Mode.AUTO}
        for peer in MEASURED_PEERS:
            theirs = {system: prompts for system, prompts in by_system.items() if _label(prompts).owner == peer}
            for against in Against:
                rival = _fastest({name: one for name, one in theirs.items() if _counts(_label(one), against)})
                if rival is None:
                    continue
                found += [_standing(peer, against, theirs[rival], mine, own, runs) for mine in auto.values()]
    return [standing for standing in found if standing is not None]


def _standing(
    peer: PeerName,
    against: Against,
    theirs: Mapping[int, Run],
    mine: Mapping[int, Run],
    own: Mapping[str, Mapping[int, Run]],
    runs: Sequence[Run],
) -> Standing | None:
    ratios = _ratios(theirs, mine)
    fastest = _fastest({name: prompts for name, prompts in own.items() if _ratios(theirs, prompts)})
    if not ratios or fastest is None:
        return None
    any_run = next(iter(mine.values()))
    return Standing(
        threads=any_run.threads,
        kind=any_run.kind,
        peer=peer.value,
        against=against,
        peer_system=_label(theirs).name,
        own_system=any_run.system,
        own_weights=any_run.label.weights,
        ratios=ratios,
        noise=median_noise(runs, any_run.threads, len(ratios)),
        fastest_system=fastest,
        fastest_ratios=_ratios(theirs, own[fastest]),
    )


def median_noise(runs: Sequence[Run], threads: int, num_ratios: int) -> float | None:
    """By how much a median of ratios may be off 1 where two systems are equally fast, in 19 of 20 cases.

    The measure is what was asked twice: one system's two runs on one prompt have a ratio that is 1 but for noise. Its
    logarithm's root mean square is the deviation of one ratio; a median of n normal values has
    sqrt(pi / 2n) times that (https://en.wikipedia.org/wiki/Median#Efficiency).
    """
    greedy = [run for run in runs if run.threads == threads and run.temperature == 0]
    first = {(run.system, run.kind, run.prompt): run for run in greedy if run.repeat == 0}
    logarithms = [
        math.log(run.tpot_ms / first[run.system, run.kind, run.prompt].tpot_ms)
        for run in greedy
        if run.repeat and (run.system, run.kind, run.prompt) in first
    ]
    if not logarithms:
        return None
    deviation = math.sqrt(statistics.fmean(value * value for value in logarithms))
    share = math.sqrt(math.pi / (2 * num_ratios)) if num_ratios > 1 else 1.0
    return math.exp(_DEVIATIONS * share * deviation) - 1


def _label(prompts: Mapping[int, Run]) -> SystemLabel:
    return next(iter(prompts.values())).label


def _counts(label: SystemLabel, against: Against) -> bool:
    return against is Against.BEST or label.is_plain == (against is Against.PLAIN)


def _fastest(systems: Mapping[str, Mapping[int, Run]]) -> str | None:
    times_ms = {
        system: statistics.median(run.tpot_ms for run in prompts.values()) for system, prompts in systems.items()
    }
    return min(times_ms, key=lambda system: times_ms[system]) if times_ms else None


def _ratios(theirs: Mapping[int, Run], own: Mapping[int, Run]) -> tuple[float, ...]:
    return tuple(theirs[prompt].tpot_ms / run.tpot_ms for prompt, run in own.items() if prompt in theirs)


def format_standings(found: Sequence[Standing]) -> str:
    """The ratios as a person reads them; a peer's best is one of its other two, and only marked."""
    layout = "{:>7}  {:5}  {:52}  {:17}  {:26}  {:>6}  {:>6}  {:>6}  {:22}  {}"
    titles = ("threads", "kind", "peer's system", "is its", "ours", "median", "lowest", "noise", "we are")
    lines = [layout.format(*titles, "with our fastest")]
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
                "-" if row.noise is None else f"{row.noise:.2f}",
                row.verdict,
                f"{row.fastest_median:.2f} ({row.fastest_system})",
            )
        )
    return "\n".join(lines)
