"""What is said before the figures of a trace: that it was simulated, and whether a GPU waited for the host."""

from __future__ import annotations

import pytest

from profiling.trace.arguments import StreamKind
from profiling.trace.preface import preface, streams_as_dict
from scheduler import LaunchKind, LaunchOutcome, Recording
from tests.support.hand_recording import launch_span


def recording_of(*enqueue_ms: float | None) -> Recording:
    """Verifies of 10 ms each, and a draft launch that must not count."""
    verifies = [
        launch_span(number, LaunchKind.VERIFY, start_ms=0.0, end_ms=10.0, enqueue_ms=one_ms)
        for number, one_ms in enumerate(enqueue_ms)
    ]
    other = launch_span(99, LaunchKind.JUDGE, start_ms=0.0, end_ms=10.0, enqueue_ms=10.0)
    return Recording(launches=(*verifies, other), rounds=(), start_ms=0.0, end_ms=10.0)


def test_a_simulation_says_so() -> None:
    (said,) = preface(StreamKind.VIRTUAL, 1.0, "cpu", recording_of(1.0))
    assert said.startswith("SIMULATED")
    assert "beside the other lane" not in said
    (said,) = preface(StreamKind.VIRTUAL, 1.5, "cpu", recording_of(1.0))
    assert "1.5 times as long beside the other lane" in said


def test_threads_need_no_words() -> None:
    assert preface(StreamKind.THREADS, 1.0, "cpu", recording_of(10.0)) == ()
    assert preface(None, 1.0, "cpu", recording_of(10.0)) == ()


@pytest.mark.parametrize(("enqueue_ms", "waits"), [(2.0, False), (7.9, False), (9.0, True)])
def test_a_gpu_that_waits_for_the_host(enqueue_ms: float, waits: bool) -> None:
    said = preface(None, 1.0, "cuda:0", recording_of(enqueue_ms, enqueue_ms, 0.0, 10.0))
    assert said[0].startswith(f"Enqueueing a verify took the host {enqueue_ms:.2f} ms of the 10.00 ms")
    assert (len(said) == 2 and "waits for the host" in said[1]) is waits


def test_what_nobody_timed_is_not_told() -> None:
    assert preface(None, 1.0, "cuda:0", recording_of()) == ()
    failed = launch_span(0, LaunchKind.VERIFY, start_ms=None, end_ms=None, outcome=LaunchOutcome.UNKNOWN)
    assert preface(None, 1.0, "cuda", Recording(launches=(failed,), rounds=(), start_ms=0.0, end_ms=1.0)) == ()


@pytest.mark.parametrize(
    ("streams", "device", "kind", "contention"),
    [
        (StreamKind.VIRTUAL, "cpu", "virtual", 1.2),
        (StreamKind.THREADS, "cpu", "threads", None),
        (None, "cpu", "threads", None),
        (None, "cuda:1", "cuda", None),
    ],
)
def test_json_tells_what_the_lanes_ran_on(
    streams: StreamKind | None, device: str, kind: str, contention: float | None
) -> None:
    fields = streams_as_dict(streams, 1.2, device)
    assert fields == {"streams": kind, "simulated": kind == "virtual", "contention": contention}
