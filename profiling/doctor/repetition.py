"""Is the text repetitive, and is that the target's own doing?

Owns the measure: the share of different runs of four tokens among all.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.trials import Turn

_RUN = 4
_LEAST_DISTINCT = 0.6
"""Ordinary prose stays above 0.9 over a hundred tokens; a loop falls to its own length over the text's."""
_SAME = 0.1
_OPTIONS = (
    "use a temperature above 0, repetition_penalty=1.1 or frequency_penalty=0.3, stop strings, the model's own chat "
    "template, or a larger model; speculation neither causes nor cures it"
)


def distinct_share(token_ids: Sequence[int]) -> float | None:
    """Different runs of four tokens over all of them; None where the text has fewer than two."""
    runs = [tuple(token_ids[start : start + _RUN]) for start in range(len(token_ids) - _RUN + 1)]
    return len(set(runs)) / len(runs) if len(runs) > 1 else None


async def check_repetition(pair: LoadedPair) -> Finding:
    """The answers in every mode."""
    return judge_repetition(await pair.trials())


def judge_repetition(turns: Sequence[Turn]) -> Finding:
    """The verdict on the answers: any that speculation alone repeats, else the most repetitive one.

    Raises:
        CannotTell: if all answers are too short.
    """
    rows = []
    for turn in turns:
        plain = distinct_share(turn.plain.token_ids)
        others = [share for one in turn.speculative.values() if (share := distinct_share(one.token_ids)) is not None]
        if plain is not None:
            rows.append((str(turn), plain, min(others, default=plain)))
    if not rows:
        raise CannotTell("the answers are too short to repeat themselves")
    # Another answer that is as repetitive without drafts excuses none of these.
    by_drafts = [row for row in rows if row[2] < _LEAST_DISTINCT and row[1] - row[2] > _SAME]
    where, plain, speculative = min(by_drafts or rows, key=lambda row: min(row[1], row[2]))
    figures = {"distinct": {name: {"plain": alone, "speculative": drafted} for name, alone, drafted in rows}}
    measured = f"least {plain:.0%} plain and {speculative:.0%} speculative runs of {_RUN} tokens differ ({where})"
    if min(plain, speculative) >= _LEAST_DISTINCT:
        return Finding(verdict=Verdict.OK, measured=measured, figures=figures)
    if by_drafts:
        return Finding(
            verdict=Verdict.FAIL,
            measured=f"{measured}: speculation repeats what the target alone would not",
            advice="the text is not the target's: see the checks `same-text` and `law`",
            figures=figures,
        )
    return Finding(
        verdict=Verdict.WARN,
        measured=f"{measured}: the target repeats itself when it is alone, so it is the model and not speculation",
        advice=_OPTIONS,
        figures=figures,
    )
