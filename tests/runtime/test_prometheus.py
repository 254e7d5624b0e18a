"""Metrics for Prometheus: what is written is read back with the client's own parsers."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from runtime import Latency, MetricsCollector, MissingDependencyError, Runtime, RuntimeMetrics, prometheus_text
from runtime.metric_families import METRIC_FAMILIES, FamilyKind
from scheduler import Occupancy, OccupancyField
from tests.support.table_runtime import build_rig, similar_draft, table_target

ROOT = Path(__file__).parents[2]
PROMPT = [5, 17, 40, 8]
ASKED_OF_VLLM = (
    "spec_decode_num_drafts_total",
    "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total",
    "spec_decode_num_accepted_tokens_per_pos_total",
    "prompt_tokens_total",
    "prompt_tokens_cached_total",
    "prefix_cache_queries_total",
    "prefix_cache_hits_total",
    "generation_tokens_total",
    "request_success_total",
    "num_requests_running",
    "num_requests_waiting",
    "kv_cache_usage_perc",
    "time_to_first_token_seconds_bucket",
    "inter_token_latency_seconds_bucket",
    "request_time_per_output_token_seconds_bucket",
    "e2e_request_latency_seconds_bucket",
    "request_queue_time_seconds_bucket",
)
"""What dashboards that were made for vLLM ask for."""

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""By name and labels."""


@pytest.fixture
async def used() -> AsyncIterator[Runtime]:
    """A runtime that finished some requests, refused one and left one."""
    target = table_target()
    rig = build_rig(target, similar_draft(target), gamma=3, with_ngram=True)
    async with rig.runtime as runtime:
        await runtime.generate(PROMPT, max_tokens=60, ignore_eos=True)
        await runtime.generate([*PROMPT, 3], max_tokens=9, ignore_eos=True)
        with pytest.raises(ValueError):
            await runtime.generate([1] * 5000)
        async with runtime.stream(PROMPT, max_tokens=400, ignore_eos=True) as chunks:
            async for _ in chunks:
                break
        # What was in flight when that one was left still writes to the cache.
        await rig.drained()
        yield runtime


def samples_of(families: Iterable[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def parsed(text: str) -> Samples:
    return samples_of(text_string_to_metric_families(text))


def values(samples: Samples, name: str, label: str, *, engine: str = "0") -> dict[str, float]:
    """The values under a name by one of its labels, for one runtime."""
    return {
        dict(labels)[label]: value
        for (found, labels), value in samples.items()
        if found == name and dict(labels)["engine"] == engine
    }


def single(samples: Samples, name: str) -> float:
    return samples[name, (("engine", "0"), ("model_name", "table"))]


async def test_what_is_written_reads_back_as_the_snapshot(used: Runtime) -> None:
    metrics, samples = used.metrics, parsed(prometheus_text(used))
    expected = {
        "spec_decode_num_drafts_total": metrics.num_spec_steps,
        "spec_decode_num_draft_tokens_total": metrics.num_draft_tokens,
        "spec_decode_num_accepted_tokens_total": metrics.num_accepted_draft_tokens,
        "spec_decode_num_discarded_tokens_total": metrics.num_discarded_draft_tokens,
        "spec_decode_num_hits_total": metrics.num_hits,
        "spec_decode_num_misses_total": metrics.num_misses,
        "num_plain_steps_total": metrics.num_plain_steps,
        "num_overlapped_steps_total": metrics.num_overlapped_steps,
        "prompt_tokens_total": metrics.num_prompt_tokens,
        "prompt_tokens_cached_total": metrics.num_reused_tokens,
        "prefix_cache_queries_total": metrics.num_prompt_tokens,
        "prefix_cache_hits_total": metrics.num_reused_tokens,
        "generation_tokens_total": metrics.num_output_tokens,
        "num_requests_running": 0,
        "num_requests_waiting": 0,
        "num_cache_tokens": metrics.num_cache_tokens,
        "kv_cache_usage_perc": metrics.num_cache_tokens / used.context_length,
        "spec_decode_mean_acceptance_length": metrics.mean_acceptance_length,
        "spec_decode_rolling_acceptance_rate": metrics.acceptance_rate,
        "spec_decode_acceptance_low": 0,
    }
    assert {name: single(samples, f"slipstream:{name}") for name in expected} == expected
    assert metrics.num_accepted_draft_tokens
    assert metrics.num_reused_tokens
    assert metrics.num_cache_tokens
    name = "slipstream:spec_decode_num_accepted_tokens_per_pos_total"
    assert tuple(values(samples, name, "position").values()) == metrics.num_accepted_per_position
    name = "slipstream:spec_decode_num_proposed_tokens_per_pos_total"
    assert tuple(values(samples, name, "position").values()) == metrics.num_proposed_per_position
    assert [*values(samples, name, "position")] == ["0", "1", "2"]
    assert values(samples, "slipstream:request_success_total", "finished_reason") == {
        "stop": 0,
        "length": 2,
        "abort": 1,
        "error": 0,
        "refused": 1,
    }
    drafted = values(samples, "slipstream:spec_decode_num_draft_tokens_by_source_total", "source")
    accepted = values(samples, "slipstream:spec_decode_num_accepted_tokens_by_source_total", "source")
    assert {name: (drafted[name], accepted[name]) for name in drafted} == metrics.drafts


async def test_histograms_are_cumulative_and_end_with_all(used: Runtime) -> None:
    metrics, samples = used.metrics, parsed(prometheus_text(used))
    for name, latency in (
        ("time_to_first_token_seconds", Latency.TIME_TO_FIRST_TOKEN),
        ("inter_token_latency_seconds", Latency.INTER_TOKEN),
        ("request_time_per_output_token_seconds", Latency.TIME_PER_OUTPUT_TOKEN),
        ("e2e_request_latency_seconds", Latency.END_TO_END),
        ("request_queue_time_seconds", Latency.QUEUE_TIME),
    ):
        histogram = metrics.latencies[latency]
        buckets = values(samples, f"slipstream:{name}_bucket", "le")
        assert [float(bound) for bound in buckets] == [*histogram.bounds_s, float("inf")]
        assert [*buckets.values()] == sorted(buckets.values())
        assert buckets["+Inf"] == single(samples, f"slipstream:{name}_count") == histogram.num_observations > 0
        assert single(samples, f"slipstream:{name}_sum") == pytest.approx(histogram.sum_s)
    name = "slipstream:spec_decode_accepted_tokens_per_draft"
    buckets = values(samples, f"{name}_bucket", "le")
    num_rounds = [buckets["0.0"]] + [buckets[f"{a}.0"] - buckets[f"{a - 1}.0"] for a in (1, 2, 3)]
    assert num_rounds == [*metrics.acceptance_histogram, *[0] * (4 - len(metrics.acceptance_histogram))]
    assert buckets["+Inf"] == single(samples, f"{name}_count") == metrics.num_spec_steps
    assert single(samples, f"{name}_sum") == metrics.num_accepted_draft_tokens


async def test_the_prefix_stands_before_every_name(used: Runtime) -> None:
    ours, theirs = (parsed(prometheus_text(used, prefix=prefix)) for prefix in ("slipstream:", "vllm:"))
    assert {("vllm:" + name.removeprefix("slipstream:"), labels): value for (name, labels), value in ours.items()} == (
        theirs
    )
    assert {f"vllm:{name}" for name in ASKED_OF_VLLM} <= {name for name, _ in theirs}
    assert all({"model_name", "engine"} <= dict(labels).keys() for _, labels in theirs)
    assert {name.removeprefix("slipstream:") for name, _ in ours} == {
        name for name, _ in parsed(prometheus_text(used, prefix=""))
    }


@pytest.mark.parametrize("prefix", ["9lives_", "slip-stream:", "a b", "µ"])
def test_a_prefix_that_no_name_can_begin_with_is_refused(prefix: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"got {prefix!r}; 'slipstream:' is the usual one")):
        MetricsCollector(prefix=prefix)


async def test_several_runtimes_share_a_registry(used: Runtime) -> None:
    registry = CollectorRegistry(auto_describe=True)
    collector = MetricsCollector(used)
    registry.register(collector)
    async with build_rig(table_target(name="other")).runtime as other:
        collector.add(other)
        await other.generate(PROMPT, max_tokens=5, ignore_eos=True)
        text = generate_latest(registry).decode()
        assert values(parsed(text), "slipstream:generation_tokens_total", "model_name", engine="1") == {"other": 5}
        assert text.count("# TYPE slipstream:generation_tokens_total ") == 1
        with pytest.raises(ValueError, match="Duplicated timeseries"):
            registry.register(MetricsCollector(other))
        registry.register(MetricsCollector(other, prefix="other:"))
        collector.remove(used)
        samples = parsed(generate_latest(registry).decode())
        assert values(samples, "slipstream:generation_tokens_total", "model_name", engine="0") == {}
        assert values(samples, "slipstream:generation_tokens_total", "model_name", engine="1") == {"other": 5}
        with pytest.raises(ValueError, match="add it first"):
            collector.remove(used)


async def test_two_runtimes_of_one_model_differ_in_their_number() -> None:
    async with build_rig().runtime as first, build_rig().runtime as second:
        await second.generate(PROMPT, max_tokens=5, ignore_eos=True)
        samples = parsed(prometheus_text(first, second))
        for engine, expected in (("0", 0), ("1", 5)):
            found = values(samples, "slipstream:generation_tokens_total", "model_name", engine=engine)
            assert found == {"table": expected}


async def test_the_stricter_format_accepts_it_too(used: Runtime) -> None:
    registry = CollectorRegistry()
    # Without a colon: the client writes such names in two ways into this format.
    registry.register(MetricsCollector(used, prefix="slipstream_"))
    samples = samples_of(parse_openmetrics(generate_openmetrics(registry).decode()))
    assert single(samples, "slipstream_generation_tokens_total") == used.metrics.num_output_tokens
    only = registry.restricted_registry(["slipstream_generation_tokens_total"])
    assert len(samples_of(only.collect())) == 1


async def test_what_is_unknown_is_left_out(used: Runtime) -> None:
    async with build_rig(gamma=3).runtime as fresh:
        text = prometheus_text(fresh)
    samples = parsed(text)
    # A count begins at 0, so that its first growth shows as a rate.
    positions = values(samples, "slipstream:spec_decode_num_accepted_tokens_per_pos_total", "position")
    assert positions == {"0": 0, "1": 0, "2": 0}
    assert "slipstream:spec_decode_num_drafts_total" in text
    for name in ("spec_decode_mean_acceptance_length", "spec_decode_rolling_acceptance_rate", "device_"):
        assert name not in text, "not even its help"


async def test_figures_of_the_gpu_that_are_known_are_shown(used: Runtime) -> None:
    reading = dataclasses.replace(
        Occupancy.unknown("nobody asked", taken_at_s=0.0),
        device_uuid=OccupancyField(value="GPU-1", reason="planted"),
        memory_free_bytes=OccupancyField(value=1 << 30, reason="planted"),
        sm_occupancy_percent=OccupancyField(value=23.5, reason="planted"),
    )
    # Every measure that a device gives has a name here, but those in words and the interval of an average.
    shown = {family.name.removeprefix("device_") for family in METRIC_FAMILIES if family.name.startswith("device_")}
    assert shown == reading.measured().keys() - {"device_name", "device_uuid", "counter_interval_s"}
    metrics: RuntimeMetrics = dataclasses.replace(used.metrics, occupancy=reading)
    collector = MetricsCollector(SimpleNamespace(metrics=metrics))  # type: ignore[arg-type]  # a runtime on a GPU
    found = {
        key: value for key, value in samples_of(collector.collect()).items() if key[0].startswith("slipstream:device_")
    }
    labels = (("device_uuid", "GPU-1"), ("engine", "0"), ("model_name", "table"))
    assert found == {
        ("slipstream:device_memory_free_bytes", labels): 1 << 30,
        ("slipstream:device_sm_occupancy_percent", labels): 23.5,
    }


async def test_without_the_client_the_message_is_the_remedy(used: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingDependencyError, match=re.escape("pip install 'slipstream[serve]'")):
        prometheus_text(used)
    assert used.metrics.num_output_tokens, "the figures themselves need no client"


async def test_a_scrape_in_the_middle_of_a_generation() -> None:
    rig = build_rig(gamma=0)
    async with rig.runtime as runtime:
        texts: list[str] = []
        # Each call writes a token, the first one when it has read the prompt.
        rig.target.before_call = lambda number: texts.append(prometheus_text(runtime))
        await runtime.generate(PROMPT, max_tokens=6, ignore_eos=True)
    seen = [single(parsed(text), "slipstream:generation_tokens_total") for text in texts]
    assert seen == [0, 1, 2, 3, 4, 5]
    assert {single(parsed(text), "slipstream:num_requests_running") for text in texts} == {1}


def test_the_documentation_names_every_family_and_no_other() -> None:
    text = (ROOT / "docs" / "metrics.md").read_text()
    rows = [line.split("|")[1:3] for line in text.splitlines() if line.startswith("| `")]
    documented = {name.strip(" `"): kind.strip() for name, kind in rows if kind.strip() in set(FamilyKind)}
    written = {
        family.name + "_total" * (family.kind is FamilyKind.COUNTER): family.kind.value for family in METRIC_FAMILIES
    }
    assert documented == written
