"""The acceptance monitor: a rolling rate, one warning a fall."""

from __future__ import annotations

import logging

import pytest

from scheduler import AcceptanceMonitor


def feed(monitor: AcceptanceMonitor, rate: float, *, num_rounds: int) -> None:
    """Rounds of four tokens, of which on average `rate` are accepted."""
    accepted_before = 0
    for index in range(1, num_rounds + 1):
        accepted = round(4 * rate * index)
        monitor.observe(4, accepted - accepted_before)
        accepted_before = accepted


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.WARNING, logger="slipstream")
    return caplog


def test_nothing_proposed_means_no_rate() -> None:
    monitor = AcceptanceMonitor()
    monitor.observe(0, 0)
    assert monitor.acceptance_rate is None
    assert not monitor.low


def test_rate_is_accepted_over_proposed() -> None:
    monitor = AcceptanceMonitor()
    monitor.observe(4, 1)
    monitor.observe(0, 0)
    monitor.observe(2, 2)
    assert monitor.acceptance_rate == 0.5


def test_old_rounds_leave_the_window() -> None:
    monitor = AcceptanceMonitor(window=40)
    feed(monitor, 0.0, num_rounds=100)
    feed(monitor, 1.0, num_rounds=10)
    assert monitor.acceptance_rate == 1.0
    monitor.observe(1, 0)
    assert monitor.acceptance_rate == pytest.approx(40 / 41)


def test_warns_once_for_one_fall(warnings: pytest.LogCaptureFixture) -> None:
    monitor = AcceptanceMonitor(threshold=0.4, window=40)
    feed(monitor, 0.25, num_rounds=50)
    assert monitor.low
    (message,) = [record.getMessage() for record in warnings.records]
    assert "25 % over the last 40 proposed tokens is below 40 %" in message
    assert "another draft, a smaller gamma, or plain decoding" in message


def test_does_not_warn_before_the_window_is_full(warnings: pytest.LogCaptureFixture) -> None:
    monitor = AcceptanceMonitor(threshold=0.4, window=200)
    feed(monitor, 0.0, num_rounds=49)
    assert not monitor.low
    assert not warnings.records
    monitor.observe(4, 0)
    assert monitor.low
    assert len(warnings.records) == 1


def test_warns_again_after_a_recovery(warnings: pytest.LogCaptureFixture) -> None:
    monitor = AcceptanceMonitor(threshold=0.4, window=40)
    for _ in range(2):
        feed(monitor, 0.2, num_rounds=20)
        feed(monitor, 0.8, num_rounds=20)
        assert not monitor.low
    assert len(warnings.records) == 2


def test_a_rate_that_hovers_about_the_threshold_warns_once(warnings: pytest.LogCaptureFixture) -> None:
    monitor = AcceptanceMonitor(threshold=0.5, window=40)
    crossings = 0
    for _ in range(20):
        for accepted in (1, 3):
            was_low = monitor.low
            for _ in range(9):
                monitor.observe(4, 2)
            monitor.observe(4, accepted)
            crossings += monitor.low != was_low
    assert crossings > 3
    assert len(warnings.records) == 1


def test_a_good_draft_never_warns(warnings: pytest.LogCaptureFixture) -> None:
    feed(AcceptanceMonitor(threshold=0.4, window=40), 0.5, num_rounds=500)
    assert not warnings.records


def test_threshold_zero_never_warns(warnings: pytest.LogCaptureFixture) -> None:
    feed(AcceptanceMonitor(threshold=0.0, window=40), 0.0, num_rounds=500)
    assert not warnings.records


def test_memory_is_bounded_by_the_window() -> None:
    monitor = AcceptanceMonitor(window=40)
    feed(monitor, 0.5, num_rounds=5000)
    assert len(monitor._rounds) <= 11


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"threshold": 1.1}, ValueError, r"acceptance threshold must lie in \[0, 1\], got 1\.1"),
        ({"threshold": True}, TypeError, "acceptance threshold must be a number"),
        ({"window": 0}, ValueError, "window must be at least 1, got 0"),
        ({"window": 2.5}, TypeError, "window must be an integer"),
    ],
)
def test_bad_settings(options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        AcceptanceMonitor(**options)  # type: ignore[arg-type]  # the point of the test
