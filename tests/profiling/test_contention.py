"""What threads cost each other: every company is timed, the process does the same work, and the interpreter is left as
it was."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from models import Decoder, WeightKind, open_checkpoint
from profiling.contention import (
    Beside,
    ContentionRow,
    DraftSource,
    Work,
    _Times,
    format_contention,
    measure_contention,
    num_ticks,
    switch_interval,
)
from tests.support.tiny_checkpoint import write_tiny_gguf


@pytest.fixture
def source(tmp_path: Path) -> DraftSource:
    return DraftSource(checkpoint=str(write_tiny_gguf(tmp_path / "tiny.gguf")), weights=WeightKind.FLOAT32)


def test_every_company_is_timed_in_turn(source: DraftSource) -> None:
    with open_checkpoint(source.checkpoint) as checkpoint:
        target = Decoder.from_checkpoint(checkpoint, weights=source.weights)
    before_s, threads = sys.getswitchinterval(), threading.active_count()
    ticks: list[int] = []
    rows = measure_contention(
        target,
        source.decoder(),
        source,
        num_calls=3,
        num_turns=2,
        intervals_ms=(5.0, 0.5),
        tick=lambda: ticks.append(1),
    )
    assert sys.getswitchinterval() == before_s
    assert threading.active_count() == threads
    assert len(ticks) == num_ticks(2, 2)
    companies = [(Beside.NOTHING, 5.0), (Beside.PROCESS, 5.0), (Beside.THREAD, 5.0), (Beside.THREAD, 0.5)]
    assert [(row.work, row.beside, row.switch_interval_ms) for row in rows] == [
        (work, *company) for work in Work for company in companies
    ]
    assert all(row.call_ms > 0 and row.waited_ms <= row.call_ms for row in rows)
    assert [row.num_calls for row in rows if row.work is Work.VERIFY] == [6] * 4
    assert all(row.num_calls >= 2 for row in rows)
    assert all((row.sleeps is not None) == sys.platform.startswith("linux") for row in rows)
    assert len(format_contention(rows).splitlines()) == 9


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sleeps are counted on Linux only")
def test_a_call_that_waits_is_seen_to_sleep() -> None:
    """Its thread waits twice, which takes time and hardly any processor time."""
    times = _Times()
    gate = threading.Lock()
    gate.acquire()
    times.call(lambda: [gate.acquire(timeout=0.02) for _ in range(2)] and None)
    assert times.sleeps[0] >= 2
    assert times.wall_ms[0] / 2 < times.waited_ms[0] <= times.wall_ms[0]


def test_a_process_that_cannot_load_is_an_error_and_leaves_nothing_behind(
    source: DraftSource, capfd: pytest.CaptureFixture[str]
) -> None:
    threads = threading.active_count()
    decoder = source.decoder()
    missing = DraftSource(checkpoint=f"{source.checkpoint}.gone", weights=source.weights)
    with pytest.raises(RuntimeError, match="the draft's process ended"):
        measure_contention(decoder, decoder, missing, num_calls=1, num_turns=1)
    assert threading.active_count() == threads
    assert "does not exist" in capfd.readouterr().err


def test_the_switch_interval_comes_back_after_an_error() -> None:
    before_s = sys.getswitchinterval()

    def fail() -> None:
        with switch_interval(0.25):
            assert sys.getswitchinterval() == pytest.approx(0.25e-3)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert sys.getswitchinterval() == before_s


def test_the_table_relates_each_time_to_the_same_work_alone() -> None:
    times_ms = {(Work.VERIFY, Beside.NOTHING): 40.0, (Work.VERIFY, Beside.THREAD): 60.0}
    times_ms |= {(Work.STEP, Beside.THREAD): 6.0, (Work.STEP, Beside.NOTHING): 3.0}
    rows = [
        ContentionRow(
            weights="int8",
            work=work,
            beside=beside,
            switch_interval_ms=5.0,
            call_ms=call_ms,
            waited_ms=0.0,
            sleeps=None,
            num_calls=9,
        )
        for (work, beside), call_ms in times_ms.items()
    ]
    assert [line.split()[-1] for line in format_contention(rows).splitlines()[1:]] == ["1.00", "1.50", "2.00", "1.00"]
