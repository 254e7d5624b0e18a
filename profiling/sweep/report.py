"""What a sweep says: its table and words on the screen, and one JSON object.

Owns both forms. Knows nothing of how runs are made, of plots or of HTML.

The object has these fields:

    machine         processor, versions, date and command
    settings        what was asked for, option by option
    loaded          what it came to: names of target and drafts, weights, threads, device
    batch_size      1
    num_runs        timed runs
    num_different   of these, with an output that is not plain decoding's
    identical       whether there is none
    is_broken       whether there is one where there must be none, which is on a CPU
    noise           median and highest difference of two plain runs of one prompt, as shares
    rows            by temperature, kind, mode and gamma (None in modes plain and auto): draft_acceptance_rate,
                    mean_acceptance_length, speedup (over plain decoding, median of the prompts' ratios),
                    lowest_speedup, highest_speedup, speedups (by prompt), num_wins (prompts of which it beat both plain
                    runs), tpot_ms, round_ms, tokens_per_round,
                    acceptance_rate_per_position, identical_to_plain
    recommendations by temperature, kind and mode, and over all modes: mode, over_all_modes, gamma (None is plain
                    decoding), best_gamma, enough_runs, auto_speedup (that of the runtime's own choice, where the
                    entry is over all modes), speedup, lowest_speedup, highest_speedup, text
    files           what was written, by its ending
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from profiling.sweep.recommendation import Recommendation, recommend
from profiling.sweep.rows import ALL_KINDS, Noise, SweepRow, noise_of, num_different, sweep_rows
from profiling.sweep.run import SweepRun
from profiling.sweep.settings import SweepSettings
from runtime import Mode

COLUMNS = ("temp", "prompts", "mode", "gamma", "accepted", "length", "speed-up", "lowest", "highest", "ms/token")
_MUCH = 0.05
"""Noise above which the gains of neighbouring gammas cannot be told apart."""
_LAYOUT = "{:>4}  {:8}  {:10}  {:>8}  {:>8}  {:>6}  {:>8}  {:>6}  {:>7}  {:>8}"


@dataclass(frozen=True, kw_only=True)
class SweepReport:
    """All that follows from the runs of a sweep."""

    settings: SweepSettings
    machine: Mapping[str, Any]
    loaded: Mapping[str, Any]
    runs: tuple[SweepRun, ...]
    noise: Noise
    rows: tuple[SweepRow, ...]
    recommendations: tuple[Recommendation, ...]
    num_different: int
    """Outputs that are not plain decoding's."""

    @classmethod
    def of(
        cls,
        runs: Sequence[SweepRun],
        *,
        settings: SweepSettings,
        machine: Mapping[str, Any],
        loaded: Mapping[str, Any],
    ) -> SweepReport:
        """Reckon it all."""
        noise, rows = noise_of(runs), sweep_rows(runs)
        return cls(
            settings=settings,
            machine=machine,
            loaded=loaded,
            runs=tuple(runs),
            noise=noise,
            rows=tuple(rows),
            recommendations=tuple(recommend(rows, noise.median, load_arguments=settings.load_arguments())),
            num_different=num_different(runs),
        )

    @property
    def setting_in_words(self) -> str:
        """The pair, and how it was run."""
        drafts = ", ".join(self.loaded["draft"])
        return (
            f"Target {self.loaded['target']}, draft {drafts}, {self.loaded['weights']} weights on "
            f"{self.loaded['device']}; batch size 1, {self.settings.max_tokens} tokens an answer, "
            f"{self.settings.num_prompts} prompt(s) of each kind."
        )

    @property
    def noise_in_words(self) -> str:
        """How far two runs of the same thing differ."""
        return (
            f"Noise: two plain runs of one prompt differ by {100 * self.noise.median:.1f} % in the median, "
            f"{100 * self.noise.highest:.1f} % at most."
        ) + (" That is much; measure again while the machine does nothing else." if self.noise.median > _MUCH else "")

    @property
    def is_broken(self) -> bool:
        """Whether outputs differ where the same bits are promised: on a CPU."""
        return self.num_different > 0 and self.loaded["device"] == "cpu"

    @property
    def identity_in_words(self) -> str:
        """Whether the promise was kept."""
        if self.is_broken:
            return f"OUTPUTS DIFFER: {self.num_different} of {len(self.runs)} are not what plain decoding writes."
        if self.num_different:
            return (
                f"{len(self.runs) - self.num_different} of {len(self.runs)} outputs are identical to plain decoding's. "
                f"On {self.loaded['device']} a logit's last bits depend on how many tokens are read at once, so where "
                "two tokens all but tie, either may be taken; python -m profiling.gpu_check tells such places from "
                "faults."
            )
        return f"All {len(self.runs)} outputs are identical to plain decoding's."

    @property
    def overall(self) -> list[Recommendation]:
        """Over all kinds, one for each temperature and mode, and one over the modes."""
        kinds = {found.kind for found in self.recommendations}
        return [found for found in self.recommendations if found.kind == ALL_KINDS or len(kinds) == 1]

    @property
    def by_kind(self) -> list[Recommendation]:
        """Over all modes, one for each temperature and kind, where there are several kinds."""
        return [found for found in self.recommendations if found.mode is None and found not in self.overall]

    def as_dict(self, files: Mapping[str, str]) -> dict[str, object]:
        """The object that the module's docstring explains."""
        return {
            "machine": dict(self.machine),
            "settings": self.settings.as_dict(),
            "loaded": dict(self.loaded),
            "batch_size": 1,
            "num_runs": len(self.runs),
            "num_different": self.num_different,
            "identical": self.num_different == 0,
            "is_broken": self.is_broken,
            "noise": asdict(self.noise),
            "rows": [row.as_dict() for row in self.rows],
            "recommendations": [found.as_dict() for found in self.recommendations],
            "files": dict(files),
        }

    def as_text(self) -> str:
        """As a person reads it."""
        lines = [self.setting_in_words, "", _LAYOUT.format(*COLUMNS)]
        mark = "  OUTPUTS DIFFER" if self.is_broken else "  some outputs differ"
        for row in self.rows:
            lines.append(_LAYOUT.format(*cells_of(row)) + ("" if row.identical_to_plain else mark))
        lines += ["", self.noise_in_words, self.identity_in_words, ""]
        lines += [f"{_place(found)}: {found.text}" for found in (*self.overall, *self.by_kind)]
        return "\n".join(lines)


def cells_of(row: SweepRow) -> tuple[str, ...]:
    """A row under `COLUMNS`."""
    rate, length = row.acceptance.rate, row.acceptance.mean_length
    return (
        f"{row.temperature:g}",
        row.kind,
        str(row.mode),
        "adaptive" if row.mode is Mode.AUTO else "-" if row.gamma is None else str(row.gamma),
        "-" if rate is None else f"{100 * rate:.0f} %",
        "-" if length is None else f"{length:.2f}",
        f"{row.median:.2f}",
        f"{min(row.speedups):.2f}",
        f"{max(row.speedups):.2f}",
        f"{row.tpot_ms:.2f}",
    )


def _place(found: Recommendation) -> str:
    scope = "All prompts" if found.kind == ALL_KINDS else found.kind.capitalize()
    return f"{scope}, temperature {found.temperature:g}"
