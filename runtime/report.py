"""A finished request in words, in a table and in JSON.

Owns wording and layout. Knows nothing of where they are printed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from runtime.comparison import Comparison, ModeFigures
from runtime.description import RuntimeDescription
from runtime.load_settings import Mode
from runtime.metrics import Metrics
from runtime.options import GenerationOptions
from runtime.result import GenerationResult
from runtime.runtime_metrics import RuntimeMetrics
from scheduler import FinishReason, TokenLogprob, Verification

_UNKNOWN = "–"
_COLUMNS = ("mode", "tokens/s", "ms/token", "first token", "accepted", "tokens/round")
_LOOKAHEAD_COLUMNS = ("hits", "discarded")


def summary(result: GenerationResult, description: RuntimeDescription) -> str:
    """A few lines about a request."""
    lines = [_speed_line(result)]
    if description.draft:
        lines.append(_speculation_line(result.metrics))
        if description.mode is Mode.PIPELINED or result.metrics.num_overlapped_steps:
            lines.append(_lookahead_line(result.metrics))
        if description.mode is Mode.AUTO and result.metrics.decision:
            lines.append(f"decided: {result.metrics.decision}")
    return "\n".join(lines)


def _speed_line(result: GenerationResult) -> str:
    metrics = result.metrics
    limit = " (the limit)" if result.finish_reason is FinishReason.LENGTH else ""
    parts = [f"{_count(metrics.num_output_tokens, 'token')}{limit}"]
    if metrics.tokens_per_s is not None:
        parts.append(f"{metrics.tokens_per_s:.1f} tokens/s")
    if metrics.ttft_ms is not None:
        parts.append(f"first token after {metrics.ttft_ms:.0f} ms")
    parts.append(
        f"prompt of {_count(metrics.num_prompt_tokens, 'token')}, {metrics.num_reused_tokens} reused from the cache"
    )
    return " · ".join(parts)


def _speculation_line(metrics: Metrics) -> str:
    rate, length = metrics.draft_acceptance_rate, metrics.mean_acceptance_length
    if rate is None or length is None:
        return "speculation: no draft token was proposed"
    sources = [f"{name} {accepted} of {proposed}" for name, (proposed, accepted) in metrics.drafts.items()]
    return (
        f"speculation: {rate:.0%} of {_count(metrics.num_draft_tokens, 'draft token')} accepted · "
        f"{length:.2f} tokens a round · {', '.join(sources)}"
    )


def _lookahead_line(metrics: Metrics) -> str:
    discarded = f"{_count(metrics.num_discarded_draft_tokens, 'draft token')} discarded"
    if metrics.hit_rate is None:
        return f"lookahead: no guess was made · {discarded}"
    num_guesses = metrics.num_hits + metrics.num_misses
    return f"lookahead: {metrics.num_hits} of {num_guesses} guesses hit ({metrics.hit_rate:.0%}) · {discarded}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def comparison_table(comparison: Comparison, options: GenerationOptions) -> str:
    """Each mode in a row, the ratios of their speeds, and whether they wrote the same."""
    looks_ahead = any(figures.mode.overlaps for figures in comparison.modes)
    rows = [_COLUMNS + _LOOKAHEAD_COLUMNS * looks_ahead]
    rows += [_row(figures) + _lookahead_cells(figures) * looks_ahead for figures in comparison.modes]
    return "\n".join(
        [
            *_table(rows),
            f"speed-up {_speedups(comparison)}; {_identity(comparison, options)}",
            f"medians of {comparison.num_repetitions} runs each, in turn; the prompt was in the cache",
            *_decision_lines(comparison),
        ]
    )


def _decision_lines(comparison: Comparison) -> list[str]:
    """What was decided in the last run, where that was left open."""
    if comparison.modes[-1].mode is not Mode.AUTO:
        return []
    return [f"auto decided: {comparison.result.metrics.decision}"]


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows with their first column on the left edge and the others on the right edge of equally wide columns."""
    name_width, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    return [
        "  ".join([name.ljust(name_width), *(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))])
        for name, *cells in rows
    ]


def _row(figures: ModeFigures) -> tuple[str, ...]:
    return (
        figures.mode.value,
        _number(figures.tokens_per_s, ".1f"),
        _number(figures.tpot_ms, ".2f"),
        _number(figures.ttft_ms, ".1f", " ms"),
        _number(figures.draft_acceptance_rate, ".0%"),
        _number(figures.mean_acceptance_length, ".2f"),
    )


def _lookahead_cells(figures: ModeFigures) -> tuple[str, ...]:
    return _number(figures.hit_rate, ".0%"), _number(figures.num_discarded_draft_tokens, ".0f")


def _speedups(comparison: Comparison) -> str:
    first, *others = comparison.modes
    ratios = {figures.mode.value: comparison.speedup(figures) for figures in others}
    if None in ratios.values():
        return "unknown, the outputs are too short"
    return f"over {first.mode.value}: " + ", ".join(f"{mode} {ratio:.2f}x" for mode, ratio in ratios.items())


def _number(value: float | None, layout: str, unit: str = "") -> str:
    return _UNKNOWN if value is None else format(value, layout) + unit


def _identity(comparison: Comparison, options: GenerationOptions) -> str:
    if comparison.identical:
        return "the tokens are identical"
    if options.verification is Verification.REJECTION:
        return "the tokens differ, as they may: this rule keeps the distribution, not the draws (a --seed keeps both)"
    return "THE TOKENS DIFFER, which must not happen: please report it with the JSON output (--json)"


def json_record(
    result: GenerationResult,
    description: RuntimeDescription,
    options: GenerationOptions,
    *,
    event_loop: str,
    comparison: Comparison | None = None,
    totals: RuntimeMetrics | None = None,
) -> str:
    """Everything about a request as one line of JSON; `options` are the resolved ones, `totals` over all requests."""
    record: dict[str, object] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason.value,
        "metrics": result.metrics.as_dict(),
        "settings": {**options.as_dict(), **description.as_dict(), "event_loop": event_loop},
    }
    if options.logprobs is not None:
        record["logprobs"] = [_logprob_record(logprob) for logprob in result.logprobs]
    if comparison is not None:
        record["comparison"] = comparison.as_dict()
    if totals is not None:
        record["totals"] = totals.as_dict()
    return json.dumps(record, allow_nan=False)


def _logprob_record(logprob: TokenLogprob) -> dict[str, object]:
    return {
        "token_id": logprob.token_id,
        "logprob": _finite(logprob.logprob),
        "top": [{"token_id": token_id, "logprob": _finite(value)} for token_id, value in logprob.top],
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: a token that the model rules out has none."""
    return value if math.isfinite(value) else None
