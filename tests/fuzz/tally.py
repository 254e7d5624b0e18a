"""What many runs came to, added up.

Owns the totals, the failures and their one-line JSON.
"""

from __future__ import annotations

import json
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from scheduler import StreamDeadlock, StreamRace
from tests.fuzz.case import Case, Rule
from tests.fuzz.law import Sample
from tests.fuzz.play import Mismatch, play

_KINDS: dict[str, type[Exception]] = {"races": StreamRace, "deadlocks": StreamDeadlock, "mismatches": Mismatch}


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A case that failed, in words."""

    case: str
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.case}: {self.text}\n  again: python -m tests.fuzz --case {self.case}"


@dataclass(kw_only=True)
class Tally:
    """Totals of many runs."""

    counts: Counter[str] = field(default_factory=Counter)
    sample: Sample = field(default_factory=Sample)
    failures: list[Failure] = field(default_factory=list)

    def play(self, cases: Iterable[Case]) -> Tally:
        """Play cases and add them up; a failure is noted and the next case played."""
        for case in cases:
            try:
                played = play(case)
            except Exception as error:
                self.counts["runs"] += 1
                self.failures.append(_failure(case, error))
                continue
            self.counts.update(played.counts)
            if case.rule is Rule.REJECTION:
                self.sample.add((str(case.pattern), played.law_name), played.first_ids)
        return self

    def merge(self, other: Tally) -> None:
        """Add another tally's totals."""
        self.counts.update(other.counts)
        self.sample.merge(other.sample)
        self.failures += other.failures

    @property
    def has_failed(self) -> bool:
        """Whether any run failed, or the law of all is another one."""
        return bool(self.failures) or not all(
            distance.is_fair for distances in self.sample.distances().values() for distance in distances
        )

    def as_json(self, *, num_seeds: int, duration_s: float) -> str:
        """One line."""
        kinds = Counter(failure.kind for failure in self.failures)
        return json.dumps(
            {
                "runs": self.counts["runs"],
                "seeds": num_seeds,
                **{kind: kinds[kind] for kind in (*_KINDS, "errors")},
                "law": {
                    pattern: [
                        {
                            "num_tokens": distance.num_tokens,
                            "num_runs": distance.num_runs,
                            "total_variation": round(distance.total_variation, 5),
                            "bound": round(distance.bound, 5),
                        }
                        for distance in distances
                    ]
                    for pattern, distances in self.sample.distances().items()
                },
                "hits": self.counts["hits"],
                "misses": self.counts["misses"],
                "discarded": self.counts["discarded"],
                "skipped_launches": self.counts["skipped launches"],
                "cut_short": self.counts["cut short"],
                "rounds": self.counts["rounds"],
                "tokens": self.counts["tokens"],
                "duration_s": round(duration_s, 1),
            }
        )


def _failure(case: Case, error: Exception) -> Failure:
    kind = next((kind for kind, error_type in _KINDS.items() if isinstance(error, error_type)), "errors")
    text = f"{type(error).__name__}: {error}"
    if kind == "errors":
        text = f"{text}\n{''.join(traceback.format_tb(error.__traceback__))}"
    return Failure(case=str(case), kind=kind, text=text)
