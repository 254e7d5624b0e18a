"""What a runtime's metrics are called where vLLM's are known: names, kinds, labels, help.

Owns the list of metric families, each with the figures of `RuntimeMetrics` that it shows. Knows nothing of Prometheus'
client or of how families are sent.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from runtime.latency import Latency
from runtime.runtime_metrics import RuntimeMetrics


class FamilyKind(StrEnum):
    """Kinds of metrics, by Prometheus' names."""

    COUNTER = "counter"
    """Only grows; its name gets `_total` where it is written out."""
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """The value of a histogram."""

    cumulative: tuple[tuple[float, int], ...]
    """Each upper bound, infinity last, with the number of observations up to it."""
    total: float
    """All observations together."""


Value = float | Buckets
Labelled = tuple[tuple[str, ...], Value]
"""Values of the family's own labels, and what they are the labels of."""


@dataclass(frozen=True, kw_only=True)
class MetricFamily:
    """All values under one name."""

    name: str
    """Without prefix and `_total`."""
    kind: FamilyKind
    help: str
    labels: tuple[str, ...] = ()
    """Beside those that every family has."""
    read: Callable[[RuntimeMetrics], Iterable[Labelled]]
    """What there is to show; what is unknown is left out."""


def _one(read: Callable[[RuntimeMetrics], float | Buckets | None]) -> Callable[[RuntimeMetrics], Iterable[Labelled]]:
    def labelled(metrics: RuntimeMetrics) -> Iterable[Labelled]:
        value = read(metrics)
        return () if value is None else (((), value),)

    return labelled


def _counter(name: str, text: str, read: Callable[[RuntimeMetrics], int]) -> MetricFamily:
    return MetricFamily(name=name, kind=FamilyKind.COUNTER, help=text, read=_one(read))


def _gauge(name: str, text: str, read: Callable[[RuntimeMetrics], float | None]) -> MetricFamily:
    return MetricFamily(name=name, kind=FamilyKind.GAUGE, help=text, read=_one(read))


def _latency(name: str, text: str, latency: Latency) -> MetricFamily:
    def read(metrics: RuntimeMetrics) -> Buckets:
        histogram = metrics.latencies[latency]
        return Buckets(cumulative=tuple(histogram.cumulative()), total=histogram.sum_s)

    return MetricFamily(name=name, kind=FamilyKind.HISTOGRAM, help=text, read=_one(read))


def _per_position(name: str, text: str, read: Callable[[RuntimeMetrics], Sequence[int]]) -> MetricFamily:
    """Positions that no round reached yet are there with 0: a rate needs a first value."""

    def labelled(metrics: RuntimeMetrics) -> Iterable[Labelled]:
        counts = read(metrics)
        for position in range(max(metrics.max_gamma, len(counts))):
            yield (str(position),), counts[position] if position < len(counts) else 0

    return MetricFamily(name=name, kind=FamilyKind.COUNTER, help=text, labels=("position",), read=labelled)


def _by_source(name: str, text: str, index: int) -> MetricFamily:
    def labelled(metrics: RuntimeMetrics) -> Iterable[Labelled]:
        return (((source,), counts[index]) for source, counts in metrics.drafts.items())

    return MetricFamily(name=name, kind=FamilyKind.COUNTER, help=text, labels=("source",), read=labelled)


def _outcomes(metrics: RuntimeMetrics) -> Iterable[Labelled]:
    return (((outcome.value,), number) for outcome, number in metrics.num_requests.items())


def _acceptance_histogram(metrics: RuntimeMetrics) -> Buckets:
    counts = metrics.acceptance_histogram
    padded = (*counts, *(0 for _ in range(len(counts), metrics.max_gamma + 1)))
    bounds = (*map(float, range(len(padded))), float("inf"))
    cumulative = tuple(itertools.accumulate((*padded, 0)))
    return Buckets(
        cumulative=tuple(zip(bounds, cumulative, strict=True)), total=float(metrics.num_accepted_draft_tokens)
    )


_UNDER_VLLM_NAMES = (
    _gauge("num_requests_running", "Requests whose turn it is: 0 or 1.", lambda m: m.num_requests_running),
    _gauge("num_requests_waiting", "Requests that wait for their turn.", lambda m: m.num_requests_waiting),
    MetricFamily(
        name="request_success",
        kind=FamilyKind.COUNTER,
        help="Requests that ended, by reason: stop, length, abort, error, refused.",
        labels=("finished_reason",),
        read=_outcomes,
    ),
    _counter("prompt_tokens", "Tokens of prompts that were read, cached ones included.", lambda m: m.num_prompt_tokens),
    _counter("prompt_tokens_cached", "Prompt tokens that were still in the cache.", lambda m: m.num_reused_tokens),
    _counter("prefix_cache_queries", "Prompt tokens looked for in the cache.", lambda m: m.num_prompt_tokens),
    _counter("prefix_cache_hits", "Prompt tokens found in the cache.", lambda m: m.num_reused_tokens),
    _counter("generation_tokens", "Tokens of outputs.", lambda m: m.num_output_tokens),
    _gauge(
        "kv_cache_usage_perc",
        "Share of the target's cache that holds tokens; 1 is full.",
        lambda m: m.num_cache_tokens / m.cache_capacity,
    ),
    _counter("spec_decode_num_drafts", "Rounds that verified proposed tokens.", lambda m: m.num_spec_steps),
    _counter("spec_decode_num_draft_tokens", "Proposed tokens.", lambda m: m.num_draft_tokens),
    _counter("spec_decode_num_accepted_tokens", "Accepted proposed tokens.", lambda m: m.num_accepted_draft_tokens),
    _per_position(
        "spec_decode_num_accepted_tokens_per_pos",
        "Rounds that accepted the proposed token at this position of their block.",
        lambda m: m.num_accepted_per_position,
    ),
    _latency("time_to_first_token_seconds", "From a call to the first token, in seconds.", Latency.TIME_TO_FIRST_TOKEN),
    _latency("inter_token_latency_seconds", "From a round to the next, in seconds.", Latency.INTER_TOKEN),
    _latency(
        "request_time_per_output_token_seconds",
        "Mean time a token after a request's first round, in seconds.",
        Latency.TIME_PER_OUTPUT_TOKEN,
    ),
    _latency("e2e_request_latency_seconds", "From a call to the last token, in seconds.", Latency.END_TO_END),
    _latency("request_queue_time_seconds", "From a call to the request's turn, in seconds.", Latency.QUEUE_TIME),
)
_OUR_OWN = (
    _per_position(
        "spec_decode_num_proposed_tokens_per_pos",
        "Rounds that proposed a token at this position of their block.",
        lambda m: m.num_proposed_per_position,
    ),
    MetricFamily(
        name="spec_decode_accepted_tokens_per_draft",
        kind=FamilyKind.HISTOGRAM,
        help="Accepted tokens of a round that verified proposed ones.",
        read=_one(_acceptance_histogram),
    ),
    _gauge(
        "spec_decode_mean_acceptance_length",
        "Mean tokens of a round that verified proposed ones, the target's own included, since the load.",
        lambda m: m.mean_acceptance_length,
    ),
    _gauge(
        "spec_decode_rolling_acceptance_rate",
        "Accepted share of what draft models proposed in recent rounds.",
        lambda m: m.acceptance_rate,
    ),
    _gauge(
        "spec_decode_acceptance_low",
        "1 while the rolling acceptance rate lies below its threshold.",
        lambda m: int(m.acceptance_low),
    ),
    _by_source("spec_decode_num_draft_tokens_by_source", "Proposed tokens, by draft source.", 0),
    _by_source("spec_decode_num_accepted_tokens_by_source", "Accepted proposed tokens, by draft source.", 1),
    _counter(
        "spec_decode_num_discarded_tokens",
        "Tokens drafted past a block and thrown away without being proposed.",
        lambda m: m.num_discarded_draft_tokens,
    ),
    _counter("spec_decode_num_hits", "Right guesses for the token after an accepted block.", lambda m: m.num_hits),
    _counter("spec_decode_num_misses", "Guesses that were wrong, or behind a rejected token.", lambda m: m.num_misses),
    _counter("num_plain_steps", "Rounds without a proposal.", lambda m: m.num_plain_steps),
    _counter("num_overlapped_steps", "Rounds beside which the draft went on.", lambda m: m.num_overlapped_steps),
    _gauge("num_cache_tokens", "Tokens that the target's cache holds.", lambda m: m.num_cache_tokens),
)

_DEVICE_FIGURES = {
    "memory_total_bytes": "Memory of the device.",
    "memory_free_bytes": "Free memory of the device.",
    "memory_used_bytes": "Memory in use, by everyone.",
    "memory_other_bytes": "Memory in use by other processes.",
    "num_other_processes": "Other processes on the device.",
    "other_sm_percent": "Share of time in which kernels of other processes ran.",
    "gpu_percent": "Share of time in which any kernel ran.",
    "memory_percent": "Share of time in which device memory was read or written.",
    "power_w": "Power draw in watts.",
    "temperature_celsius": "Temperature.",
    "sm_clock_mhz": "Clock of the multiprocessors.",
    "memory_clock_mhz": "Clock of the memory.",
    "sm_active_percent": "Share of multiprocessors that were busy.",
    "sm_occupancy_percent": "Share of warps that were resident.",
    "dram_bandwidth_percent": "Share of the memory bandwidth that was used.",
}
"""By field of `Occupancy`."""


def _device_figure(field: str, text: str) -> MetricFamily:
    def labelled(metrics: RuntimeMetrics) -> Iterable[Labelled]:
        if metrics.occupancy is None:
            return
        value = metrics.occupancy.measured()[field].value
        if isinstance(value, (int, float)):
            yield (metrics.occupancy.device_uuid.value or "",), value

    return MetricFamily(
        name=f"device_{field}", kind=FamilyKind.GAUGE, help=text, labels=("device_uuid",), read=labelled
    )


METRIC_FAMILIES = (
    *_UNDER_VLLM_NAMES,
    *_OUR_OWN,
    *(_device_figure(field, text) for field, text in _DEVICE_FIGURES.items()),
)
"""All families; first those that mean what vLLM's of the same name mean."""
