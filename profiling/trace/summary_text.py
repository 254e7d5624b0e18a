"""A summary as a person reads it.

Owns the layout. What is not known is a dash.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiling.trace.conclusions import conclusions
from profiling.trace.gaps import Bubbles, HostGap
from profiling.trace.lane_times import LaneTimes
from profiling.trace.round_table import RoundRow
from profiling.trace.summary import TraceSummary
from profiling.trace.traffic import Traffic

_DASH = "-"
_LEGEND = """\
decoding: from the first round's start to the last verdict; prefill: what came before
overlap efficiency: time in which both lanes ran / time in which the less busy one did
bubble: target idle from the end of a verdict to the start of the next block
verify ms: median; draft ms: the draft's time a token of those that block and guess were cut from
tok/round: committed, the target's own included; ms/tok: from verdict to verdict over these
acceptance: accepted / proposed; mean acceptance length: 1 + accepted / rounds that proposed
read at: (weights + keys and values up to the block's end) / verify ms, medians"""


def format_summary(summary: TraceSummary) -> str:
    """Times of the lanes, bubbles, rounds, acceptance and traffic, what the words mean, and what to read off it."""
    acceptance = summary.acceptance
    parts = [
        f"{summary.num_rounds} rounds of {summary.num_requests} request(s), {acceptance.num_tokens} tokens; "
        f"{summary.num_launches} launches, {summary.num_skipped} skipped as stale, {summary.num_unknown} without times"
        + (f"; {summary.num_dropped} older launches and rounds were forgotten" if summary.num_dropped else ""),
        _lanes(summary.decoding, summary.prefill),
        _bubbles(summary),
        _gap(summary.host_gap),
        _rows("width", summary.by_width),
        _rows("round", summary.by_kind),
        f"acceptance {_percent(acceptance.acceptance_rate)} ({acceptance.num_accepted} of {acceptance.num_proposed}), "
        f"mean acceptance length {_number(acceptance.mean_acceptance_length, 2)}, "
        f"hits {_DASH if acceptance.num_hits is None else acceptance.num_hits} of {acceptance.num_guesses} guesses, "
        f"{acceptance.num_discarded} lookahead tokens discarded",
        _traffic(summary.traffic),
        _LEGEND,
        "\n".join(conclusions(summary)),
    ]
    return "\n\n".join(parts)


def _lanes(decoding: LaneTimes | None, prefill: LaneTimes | None) -> str:
    layout = "{:9} {:>10} {:>18} {:>18} {:>18} {:>18}  {}"
    lines = [layout.format("", "ms", "target busy", "draft busy", "both", "neither", "overlap efficiency")]
    for name, times in (("decoding", decoding), ("prefill", prefill)):
        if times is None:
            lines.append(layout.format(name, *[_DASH] * 6))
            continue
        parts_ms = (times.target_ms, times.draft_ms, times.both_ms, times.neither_ms)
        cells = [_DASH if part is None else f"{part:.1f} ({_percent(times.share(part))})" for part in parts_ms]
        lines.append(layout.format(name, f"{times.span_ms:.1f}", *cells, _percent(times.overlap_efficiency)))
    return "\n".join(lines)


def _bubbles(summary: TraceSummary) -> str:
    layout = "{:22} {:>6} {:>10} {:>10} {:>10}"
    lines = [layout.format("bubble", "count", "median ms", "max ms", "total ms")]
    rows: tuple[tuple[str, Bubbles | None], ...] = (
        ("after a miss", summary.after_miss),
        ("after a hit", summary.after_hit),
        ("after no guess", summary.after_no_guess),
        ("after a plain round", summary.after_plain),
    )
    for name, row in rows:
        cells = (
            [_DASH] * 4 if row is None else [str(row.count), *map(_number, (row.median_ms, row.max_ms, row.total_ms))]
        )
        lines.append(layout.format(name, *cells))
    return "\n".join(lines)


def _gap(gap: HostGap | None) -> str:
    if gap is None:
        return f"host gap {_DASH}"
    return (
        f"host gap, verdict to next block: median {gap.median_ms:.2f} ms, max {gap.max_ms:.2f} ms; medians of its "
        f"parts:\n  until the host knows {gap.hear_ms:.2f}, until it has launched {gap.commit_ms:.2f}, until it starts "
        f"{gap.start_ms:.2f} (of which waiting for the draft {gap.draft_wait_ms:.2f})"
    )


def _rows(head: str, rows: Sequence[RoundRow]) -> str:
    layout = "{:22} {:>6} {:>10} {:>10} {:>10} {:>10}"
    lines = [layout.format(head, "count", "verify ms", "draft ms", "tok/round", "ms/tok")]
    lines += [
        layout.format(
            row.what,
            row.count,
            _number(row.verify_ms),
            _number(row.draft_ms_per_token),
            _number(row.tokens_per_round),
            _number(row.ms_per_token),
        )
        for row in rows
    ]
    return "\n".join(lines if rows else [*lines, _DASH])


def _traffic(traffic: Traffic | None) -> str:
    if traffic is None:
        return f"read a block {_DASH}"
    line = (
        f"read a block {traffic.bytes_per_call / 1e6:,.1f} MB (weights {traffic.weight_bytes / 1e6:,.1f} MB), "
        f"at {traffic.bytes_per_s / 1e9:.1f} GB/s"
    )
    if traffic.bandwidth_bytes_per_s is None:
        return line
    return (
        f"{line}: {_percent(traffic.share_of_bound)} of the {traffic.bandwidth_bytes_per_s / 1e9:.1f} GB/s measured "
        f"here\n  ({traffic.bandwidth_method})"
    )


def _number(value: float | None, digits: int = 2) -> str:
    return _DASH if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return _DASH if share is None else f"{share:.0%}"
