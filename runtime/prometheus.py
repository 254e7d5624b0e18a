"""A runtime's metrics for Prometheus, through its own client.

Owns prefix, common labels, and what the client is handed. Knows nothing of what the figures mean, nor of serving them.
The client is optional (`pip install 'slipstream[serve]'`) and is imported when it is needed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from runtime.errors import MissingDependencyError
from runtime.metric_families import METRIC_FAMILIES, Buckets, FamilyKind, MetricFamily, Value
from runtime.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client import Metric
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    ClientFamily = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

DEFAULT_PREFIX = "slipstream:"
_COMMON_LABELS = ("model_name", "engine")
"""vLLM's: the target's name, and the number of the runtime among those of a collector, from 0."""


class MetricsCollector:
    """Hands the metrics of runtimes to a registry of `prometheus_client`.

        prometheus_client.REGISTRY.register(MetricsCollector(runtime))

    A registry takes each name from one collector, so several runtimes in one registry share theirs, and differ in their
    labels: `MetricsCollector(first, second)`, or `add` later. A collector keeps a runtime alive until it is removed.
    """

    def __init__(self, *runtimes: Runtime, prefix: str = DEFAULT_PREFIX) -> None:
        """Collect from some runtimes, none at first if there are none yet.

        Args:
            runtimes: loaded ones; they may be closed later, and their figures stay.
            prefix: of every name; `vllm:` for dashboards that were made for vLLM.

        Raises:
            ValueError: if no metric's name can begin with the prefix.
            MissingDependencyError: if prometheus_client is not installed.
        """
        if not re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)?", prefix):
            raise ValueError(
                f"prefix must consist of letters, digits, '_' and ':' and not begin with a digit, got {prefix!r}; "
                f"{DEFAULT_PREFIX!r} is the usual one, 'vllm:' suits vLLM's dashboards"
            )
        _check_client()
        self._prefix = prefix
        self._runtimes: dict[int, Runtime] = {}
        self._num_added = 0
        for runtime in runtimes:
            self.add(runtime)

    def add(self, runtime: Runtime) -> None:
        """Collect from one more runtime; its label `engine` is the next number."""
        self._runtimes[self._num_added] = runtime
        self._num_added += 1

    def remove(self, runtime: Runtime) -> None:
        """Collect no longer from a runtime; the others keep their labels.

        Raises:
            ValueError: if nothing was collected from it.
        """
        numbers = [number for number, known in self._runtimes.items() if known is runtime]
        if not numbers:
            raise ValueError("this collector does not collect from that runtime; add it first")
        for number in numbers:
            del self._runtimes[number]

    def describe(self) -> list[Metric]:
        """Every family without values: what a registry compares with other collectors' names."""
        return [self._new_family(family) for family in METRIC_FAMILIES]

    def collect(self) -> Iterator[Metric]:
        """The families of which there are values now. Never blocks; may be called from any thread."""
        snapshots = [(str(number), runtime.metrics) for number, runtime in self._runtimes.copy().items()]
        for family in METRIC_FAMILIES:
            shown = self._new_family(family)
            for engine, metrics in snapshots:
                for labels, value in family.read(metrics):
                    _add_value(shown, (metrics.model_name, engine, *labels), value)
            if shown.samples:
                yield shown

    def _new_family(self, family: MetricFamily) -> ClientFamily:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        name, labels = self._prefix + family.name, (*_COMMON_LABELS, *family.labels)
        match family.kind:
            case FamilyKind.COUNTER:
                return CounterMetricFamily(name, family.help, labels=labels)
            case FamilyKind.GAUGE:
                return GaugeMetricFamily(name, family.help, labels=labels)
            case FamilyKind.HISTOGRAM:
                return HistogramMetricFamily(name, family.help, labels=labels)


def prometheus_text(*runtimes: Runtime, prefix: str = DEFAULT_PREFIX) -> str:
    """The metrics of runtimes in Prometheus' text format, for a web application's own `/metrics`.

    Args:
        runtimes: loaded ones.
        prefix: of every name.

    Raises:
        ValueError: if no metric's name can begin with the prefix.
        MissingDependencyError: if prometheus_client is not installed.
    """
    collector = MetricsCollector(*runtimes, prefix=prefix)
    from prometheus_client import generate_latest

    return generate_latest(collector).decode()


def _add_value(shown: ClientFamily, labels: tuple[str, ...], value: Value) -> None:
    from prometheus_client.core import HistogramMetricFamily

    if isinstance(shown, HistogramMetricFamily):
        if isinstance(value, Buckets):
            buckets = [
                ("+Inf" if math.isinf(bound) else str(bound), float(number)) for bound, number in value.cumulative
            ]
            shown.add_metric(labels, buckets, value.total)
    elif not isinstance(value, Buckets):
        shown.add_metric(labels, value)


def _check_client() -> None:
    try:
        import prometheus_client  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "Prometheus metrics need prometheus-client; install it with: pip install 'slipstream[serve]'"
        ) from error
