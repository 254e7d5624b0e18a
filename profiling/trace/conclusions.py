"""What a summary says, in sentences.

Owns the rules from figures to conclusions: whether the lanes overlap, what the target waits for, and the one thing that
would help most. Knows nothing of how figures are taken or printed.
"""

from __future__ import annotations

from profiling.trace.summary import TraceSummary

LOW_ACCEPTANCE = 0.4
"""Below this, most of what is drafted and verified is for nothing."""
MUCH_WAITING = 0.05
"""A loss of this share of the time is worth doing something about."""
BUSY_TARGET = 0.9
LOW_BANDWIDTH = 0.5
"""A verify below this share of the memory's bandwidth is bound by something else."""


def conclusions(summary: TraceSummary) -> tuple[str, ...]:
    """Two or three sentences: overlap, waiting, and what would help."""
    if summary.decoding is None:
        return ("No round was recorded, so there is nothing to conclude.",)
    return (_overlap(summary), *_waiting(summary), f"What would help: {_advice(summary)}.")


def _overlap(summary: TraceSummary) -> str:
    times = summary.decoding
    if times is None or times.draft_ms is None:
        return "Nothing was drafted: the target decodes alone."
    if times.both_ms is None:
        return (
            "The lanes take turns on one stream: "
            f"the target runs {_percent(times.share(times.target_ms))} of the time, "
            f"the draft {_percent(times.share(times.draft_ms))}."
        )
    efficiency = times.overlap_efficiency
    hidden = "" if efficiency is None else f", which hides {_percent(efficiency)} of the less busy one"
    return f"The lanes overlap {_percent(times.share(times.both_ms))} of the time{hidden}."


def _waiting(summary: TraceSummary) -> tuple[str, ...]:
    gap, times = summary.host_gap, summary.decoding
    if gap is None or times is None:
        return ()
    waits = [
        f"{bubble.median_ms:.1f} ms after {what}"
        for bubble, what in (
            (summary.after_miss, "a miss"),
            (summary.after_hit, "a hit"),
            (summary.after_no_guess, "a round without a guess"),
            (summary.after_plain, "a plain round"),
        )
        if bubble is not None
    ]
    return (
        f"The target waits {', '.join(waits)} (medians): {_percent(times.share(gap.total_ms))} of the time in all, "
        f"{_percent(times.share(gap.total_draft_wait_ms))} for tokens that are still being drafted.",
    )


def _advice(summary: TraceSummary) -> str:
    """The first of the rules that applies, by how much is to be gained."""
    times, gap = summary.decoding, summary.host_gap
    if times is None or times.draft_ms is None or not summary.acceptance.num_proposed:
        return (
            "proposals, of which there were none: a draft, a mode that uses it, and a gamma above 0, as with --gamma 4"
        )
    rate = summary.acceptance.acceptance_rate
    if rate is not None and rate < LOW_ACCEPTANCE:
        return f"a smaller gamma or another draft, as only {_percent(rate)} of the proposed tokens are accepted"
    if gap is not None:
        for_draft = times.share(gap.total_draft_wait_ms) or 0.0
        for_host = (times.share(gap.total_ms) or 0.0) - for_draft
        if max(for_draft, for_host) >= MUCH_WAITING:
            return _against_host(for_host) if for_host > for_draft else _against_draft(summary, for_draft)
    busy = times.share(times.target_ms) or 0.0
    if busy >= BUSY_TARGET:
        return _against_verify(summary, busy)
    return "nothing that stands out"


def _against_host(share: float) -> str:
    return (
        f"a host that answers sooner, as the target waits for it {_percent(share)} of the time: see what else the "
        "event loop and the machine's cores are doing"
    )


def _against_draft(summary: TraceSummary, share: float) -> str:
    waits = f"as the target waits for it {_percent(share)} of the time"
    if summary.decoding is not None and summary.decoding.both_ms is None:
        return f"drafting beside the target (mode pipelined, where there are cores for both) or a faster draft, {waits}"
    return f"a faster draft, a smaller gamma or a smaller num_awaited, {waits}"


def _against_verify(summary: TraceSummary, busy: float) -> str:
    start = f"the target is busy {_percent(busy)} of the time, so"
    share = None if summary.traffic is None else summary.traffic.share_of_bound
    if share is not None and share < LOW_BANDWIDTH:
        return f"{start} a faster verify: it reads at {_percent(share)} of the memory's bandwidth"
    return f"{start} more tokens a round: a larger gamma, or a draft that is right more often"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
