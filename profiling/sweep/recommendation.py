"""Which gamma to take, and why, in words.

Owns the choice among measured rows. Knows nothing of how they were measured.

Of the gammas that pay, the fastest is chosen, by the median of the prompts' ratios; of several that are as fast to
within the noise, or 1 %, the smallest. One pays if its gain over plain decoding is more than the noise, which is what
two plain runs of one prompt differ by, and more than chance: see `profiling.sweep.evidence`. A reason is told in the
two things that a larger gamma changes: a round brings more tokens, as far as the later positions are accepted, and it
takes longer. The first is counted; the second follows from it and the speed. The runtime's own choice, mode `auto`, is
no gamma to be recommended; it is what a recommendation is compared with.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from profiling.sweep.evidence import fewest_turns, least_wins
from profiling.sweep.rows import ALL_KINDS, SweepRow
from profiling.sweep.settings import MAX_GAMMA
from runtime import Mode

_LEAST_NOISE = 0.01
"""Of two speeds that are nearer to each other neither is called the faster."""


@dataclass(frozen=True, kw_only=True)
class _Bar:
    """What a gain must be to count."""

    noise: float
    num_turns: int
    num_cells: int

    @property
    def least_wins(self) -> int | None:
        return least_wins(self.num_turns, self.num_cells)

    @property
    def tie(self) -> float:
        """Ratio of two speeds up to which they are one."""
        return 1 + max(self.noise, _LEAST_NOISE)

    def passed_by(self, row: SweepRow) -> bool:
        return self.least_wins is not None and row.num_wins >= self.least_wins and row.median > 1 + self.noise


@dataclass(frozen=True, kw_only=True)
class Recommendation:
    """What to do on some prompts at one temperature."""

    temperature: float
    kind: str
    """A kind of prompt, or `all`."""
    mode: Mode | None
    """None over all modes: the one to take, and that is `best`'s."""
    best: SweepRow
    """The fastest, whether or not it pays."""
    pays: bool
    """Whether it beats plain decoding by more than noise and chance."""
    enough_runs: bool
    """Whether there are so many that anything could be recommended."""
    text: str
    auto: SweepRow | None = None
    """Over all modes: the runtime's own choice on the same prompts."""

    @property
    def gamma(self) -> int | None:
        """What is recommended; None is plain decoding."""
        return self.best.gamma if self.pays else None

    def as_dict(self) -> dict[str, object]:
        """Every figure, ready for JSON."""
        return {
            "temperature": self.temperature,
            "kind": self.kind,
            "mode": self.mode.value if self.mode else self.best.mode.value if self.pays else Mode.PLAIN.value,
            "over_all_modes": self.mode is None,
            "gamma": self.gamma,
            "best_gamma": self.best.gamma,
            "enough_runs": self.enough_runs,
            "auto_speedup": self.auto.median if self.auto else None,
            "speedup": self.best.median,
            "lowest_speedup": min(self.best.speedups),
            "highest_speedup": max(self.best.speedups),
            "text": self.text,
        }


def recommend(rows: Sequence[SweepRow], noise: float, *, load_arguments: Sequence[str] = ()) -> list[Recommendation]:
    """For each temperature and kind, one for each mode and one over all.

    Args:
        rows: all rows of a sweep.
        noise: a gain of less than this share is none.
        load_arguments: what a command line must name for the same pair to be loaded.
    """
    found = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for kind in dict.fromkeys(row.kind for row in rows):
            all_own = [row for row in rows if (row.temperature, row.kind) == (temperature, kind)]
            own = [row for row in all_own if row.gamma is not None]
            auto = next((row for row in all_own if row.mode is Mode.AUTO), None)
            bar = _Bar(noise=noise, num_turns=len(own[0].speedups), num_cells=len(own))
            by_mode = [
                _for_mode([row for row in own if row.mode is mode], bar)
                for mode in dict.fromkeys(row.mode for row in own)
            ]
            by_kind = [row for row in rows if row.temperature == temperature and row.kind not in (kind, ALL_KINDS)]
            found += [*by_mode, _over_modes(by_mode, by_kind if kind == ALL_KINDS else [], auto, bar, load_arguments)]
    return found


def _for_mode(rows: Sequence[SweepRow], bar: _Bar) -> Recommendation:
    """Among the gammas of one mode on the same prompts."""
    known = sorted(rows, key=_gamma)
    paying = [row for row in known if bar.passed_by(row)]
    best = _fastest(paying or known, bar)
    text = _gain(known, best, bar) if paying else _no_gain(best, bar)
    return Recommendation(
        temperature=best.temperature,
        kind=best.kind,
        mode=best.mode,
        best=best,
        pays=bool(paying),
        enough_runs=bar.least_wins is not None,
        text=f"{best.mode}: {text}.",
    )


def _over_modes(
    by_mode: Sequence[Recommendation],
    by_kind: Sequence[SweepRow],
    auto: SweepRow | None,
    bar: _Bar,
    load_arguments: Sequence[str],
) -> Recommendation:
    """Among the modes that pay; of two that cannot be told apart, the earlier one, which is simpler."""
    # One that does not pay must not win a tie with one that does.
    candidates = [one for one in by_mode if one.pays] or by_mode
    chosen = candidates[0]
    for other in candidates[1:]:
        if other.best.over(chosen.best) > bar.tie:
            chosen = other
    best = chosen.best
    if chosen.pays:
        text = f"take gamma {best.gamma}, {best.mode}: {_speed(best)}"
        for row in (other.best for other in by_mode if other is not chosen):
            text += f"; {row.mode} at its best, gamma {row.gamma}, gives {row.median:.2f}x{_tied(row, best, bar)}"
        losing = [
            row for row in by_kind if (row.mode, row.gamma) == (best.mode, best.gamma) and row.median < 1 - bar.noise
        ]
        if losing:
            text += "; it loses on " + " and on ".join(f"{row.kind} ({row.median:.2f}x)" for row in losing)
    elif chosen.enough_runs:
        text = "take no gamma: nothing that was tried is sure to beat plain decoding here; the best is "
        text += f"{best.mode}, gamma {best.gamma}, at {_speed(best)}"
    else:
        text = f"{_too_few(bar)}; the best so far is {best.mode}, gamma {best.gamma}, at {_speed(best)}"
    if auto:
        text += f"; auto, the default, is at {auto.median:.2f}x{_tied(auto, best, bar)}"
    if chosen.pays:
        command = ["python", "-m", "runtime", *load_arguments, "--mode", best.mode.value, "--gamma", str(best.gamma)]
        text += f" ({shlex.join(command)})"
    return Recommendation(
        temperature=best.temperature,
        kind=best.kind,
        mode=None,
        best=best,
        pays=chosen.pays,
        enough_runs=chosen.enough_runs,
        text=f"{text}.",
        auto=auto,
    )


def _fastest(rows: Sequence[SweepRow], bar: _Bar) -> SweepRow:
    best = max(rows, key=lambda row: row.median)
    return next(row for row in rows if row is best or best.over(row) < bar.tie)


def _gain(rows: Sequence[SweepRow], best: SweepRow, bar: _Bar) -> str:
    parts = [f"gamma {best.gamma}: {_speed(best)}"]
    place = rows.index(best)
    if place:
        smaller = rows[place - 1]
        parts.append(f"{smaller.gamma} gives {smaller.median:.2f}x{_tied(smaller, best, bar)}")
    if place + 1 < len(rows):
        parts.append(_why_no_more(rows[place + 1], best, bar))
        fastest = max(rows[place + 1 :], key=lambda row: row.median)
        if fastest.median > best.median and fastest is not rows[place + 1]:
            parts.append(f"{fastest.gamma} gives {fastest.median:.2f}x{_tied(fastest, best, bar)}")
    elif _gamma(best) < MAX_GAMMA and len(rows) > 1:
        parts.append(f"it is the largest that was tried, and a larger one may gain more: up to {MAX_GAMMA} can be had")
    return "; ".join(parts)


def _why_no_more(larger: SweepRow, best: SweepRow, bar: _Bar) -> str:
    """What the next larger gamma brings, and what it costs."""
    ratio = larger.over(best)
    words = f"{larger.gamma} "
    words += "is slower" if ratio < 1 - bar.noise else "gains nothing" if ratio <= 1 else "gains no more than the noise"
    words += f" ({larger.median:.2f}x)"
    more_tokens = larger.acceptance.tokens_per_round / best.acceptance.tokens_per_round - 1
    more_time = (1 + more_tokens) / ratio - 1
    rates = larger.acceptance.rate_per_position
    position = _gamma(best)
    accepted = (
        f"acceptance at position {position + 1} is {100 * rates[position]:.0f} %, so " if position < len(rates) else ""
    )
    return (
        f"{words}, since {accepted}a round brings {_percent(more_tokens)} tokens and takes {_percent(more_time)} time"
    )


def _too_few(bar: _Bar) -> str:
    return (
        f"too few runs to recommend anything: {bar.num_turns} cannot tell the fastest of {bar.num_cells} from chance, "
        f"{fewest_turns(bar.num_cells)} can (see --prompts)"
    )


def _no_gain(best: SweepRow, bar: _Bar) -> str:
    """Why nothing is recommended."""
    gives = f"the best, {best.gamma}, gives {_speed(best)}"
    if bar.least_wins is None:
        text = f"{_too_few(bar)}; {gives}"
    elif best.median <= 1:
        text = f"no gamma pays: {gives}"
    elif best.median <= 1 + bar.noise:
        text = f"no gamma is sure to pay: {gives}, which is within the noise of {100 * bar.noise:.1f} %"
    else:
        text = (
            f"no gamma is sure to pay: {gives}, but beats both plain runs of only {best.num_wins} of {bar.num_turns} "
            f"prompts, which may be chance; {bar.least_wins} would not"
        )
    rates = best.acceptance.rate_per_position
    if not rates:
        return f"{text}; nothing was ever proposed"
    return (
        f"{text}; acceptance at position 1 is {100 * rates[0]:.0f} %, and a round brings "
        f"{best.acceptance.tokens_per_round:.2f} tokens in {best.acceptance.tokens_per_round / best.median:.2f} times "
        "the time of a plain step"
    )


def _tied(row: SweepRow, best: SweepRow, bar: _Bar) -> str:
    return ", which is within the noise of it" if 1 / bar.tie <= row.over(best) <= bar.tie else ""


def _speed(row: SweepRow) -> str:
    spread = f" ({min(row.speedups):.2f} to {max(row.speedups):.2f} by prompt)" if len(row.speedups) > 1 else ""
    return f"{row.median:.2f}x plain decoding's speed{spread}"


def _percent(change: float) -> str:
    return f"{100 * abs(change):.0f} % {'more' if change >= 0 else 'less'}"


def _gamma(row: SweepRow) -> int:
    return row.gamma or 0
