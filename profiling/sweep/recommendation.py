"""Which gamma to take, and why, in words.

Owns the choice among measured rows. Knows nothing of how they were measured.

The fastest gamma is chosen, by the median of the prompts' ratios; of several that are as fast to within 1 %, the
smallest. It is recommended only if its gain over plain decoding is more than the noise, which is what two plain runs of
one prompt differ by. A reason is told in the two things that a larger gamma changes: a round brings more tokens, as far
as the later positions are accepted, and it takes longer. The first is counted; the second follows from it and the
speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling.sweep.rows import ALL_KINDS, SweepRow
from profiling.sweep.settings import MAX_GAMMA
from runtime import Mode

_TIE = 1.01


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
    """Whether it beats plain decoding by more than the noise."""
    text: str

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
            "speedup": self.best.median,
            "lowest_speedup": min(self.best.speedups),
            "highest_speedup": max(self.best.speedups),
            "text": self.text,
        }


def recommend(rows: Sequence[SweepRow], noise: float) -> list[Recommendation]:
    """For each temperature and kind, one for each mode and one over all.

    Args:
        rows: all rows of a sweep.
        noise: a gain of less than this share is none.
    """
    found = []
    for temperature in dict.fromkeys(row.temperature for row in rows):
        for kind in dict.fromkeys(row.kind for row in rows):
            own = [row for row in rows if (row.temperature, row.kind) == (temperature, kind)]
            by_mode = [
                recommend_for_mode([row for row in own if row.mode is mode], noise)
                for mode in dict.fromkeys(row.mode for row in own if row.gamma is not None)
            ]
            by_kind = [row for row in rows if row.temperature == temperature and row.kind not in (kind, ALL_KINDS)]
            found += [*by_mode, _over_modes(by_mode, by_kind if kind == ALL_KINDS else [], noise)]
    return found


def recommend_for_mode(rows: Sequence[SweepRow], noise: float) -> Recommendation:
    """Among the gammas of one mode on the same prompts."""
    known = sorted(rows, key=_gamma)
    best = _fastest(known)
    pays = best.median > 1 + noise
    text = _gain(known, best, noise) if pays else _no_gain(best, noise)
    return Recommendation(
        temperature=best.temperature, kind=best.kind, mode=best.mode, best=best, pays=pays, text=f"{best.mode}: {text}."
    )


def _over_modes(by_mode: Sequence[Recommendation], by_kind: Sequence[SweepRow], noise: float) -> Recommendation:
    """Among the modes; of two that cannot be told apart, the earlier one, which is simpler."""
    chosen = by_mode[0]
    for other in by_mode[1:]:
        if other.best.over(chosen.best) > 1 + max(noise, _TIE - 1):
            chosen = other
    best = chosen.best
    if chosen.pays:
        text = f"take gamma {best.gamma}, {best.mode}: {_speed(best)}"
        for row in (other.best for other in by_mode if other is not chosen):
            text += f"; {row.mode} at its best, gamma {row.gamma}, gives {row.median:.2f}x"
            if abs(row.over(best) - 1) <= noise:
                text += ", which is within the noise of it"
        losing = [row for row in by_kind if (row.mode, row.gamma) == (best.mode, best.gamma) and row.median < 1 - noise]
        if losing:
            text += "; it loses on " + " and on ".join(f"{row.kind} ({row.median:.2f}x)" for row in losing)
        text += f" (python -m runtime --mode {best.mode} --gamma {best.gamma})"
    else:
        text = f"take no gamma: nothing that was tried beats plain decoding here; the best is {best.mode}, "
        text += f"gamma {best.gamma}, at {_speed(best)}"
    return Recommendation(
        temperature=best.temperature, kind=best.kind, mode=None, best=best, pays=chosen.pays, text=f"{text}."
    )


def _fastest(rows: Sequence[SweepRow]) -> SweepRow:
    best = max(rows, key=lambda row: row.median)
    return next(row for row in rows if row is best or best.over(row) < _TIE)


def _gain(rows: Sequence[SweepRow], best: SweepRow, noise: float) -> str:
    parts = [f"gamma {best.gamma}: {_speed(best)}"]
    place = rows.index(best)
    if place:
        smaller = rows[place - 1]
        parts.append(f"{smaller.gamma} gives {smaller.median:.2f}x{_unclear(smaller, best, noise)}")
    if place + 1 < len(rows):
        parts.append(_why_no_more(rows[place + 1], best, noise))
    elif _gamma(best) < MAX_GAMMA and len(rows) > 1:
        parts.append(f"it is the largest that was tried, and a larger one may gain more: up to {MAX_GAMMA} can be had")
    return "; ".join(parts)


def _why_no_more(larger: SweepRow, best: SweepRow, noise: float) -> str:
    """What the next larger gamma brings, and what it costs."""
    ratio = larger.over(best)
    words = f"{larger.gamma} " + ("is slower" if ratio < 1 - noise else "gains nothing")
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


def _no_gain(best: SweepRow, noise: float) -> str:
    """Why nothing is recommended."""
    if best.median <= 1:
        text = f"no gamma pays: the best, {best.gamma}, gives {_speed(best)}"
    else:
        text = (
            f"no gamma is sure to pay: the best, {best.gamma}, gives {_speed(best)}, which is within the noise of "
            f"{100 * noise:.1f} %"
        )
    rates = best.acceptance.rate_per_position
    if not rates:
        return f"{text}; nothing was ever proposed"
    return (
        f"{text}; acceptance at position 1 is {100 * rates[0]:.0f} %, and a round brings "
        f"{best.acceptance.tokens_per_round:.2f} tokens in {best.acceptance.tokens_per_round / best.median:.2f} times "
        "the time of a plain step"
    )


def _unclear(row: SweepRow, best: SweepRow, noise: float) -> str:
    return ", which is within the noise of it" if best.over(row) < 1 + noise else ""


def _speed(row: SweepRow) -> str:
    spread = f" ({min(row.speedups):.2f} to {max(row.speedups):.2f} by prompt)" if len(row.speedups) > 1 else ""
    return f"{row.median:.2f}x plain decoding's speed{spread}"


def _percent(change: float) -> str:
    return f"{100 * abs(change):.0f} % {'more' if change >= 0 else 'less'}"


def _gamma(row: SweepRow) -> int:
    return row.gamma or 0
