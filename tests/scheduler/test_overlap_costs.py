"""What lanes cost beside each other: measured on worker threads, and by the events of streams that only enqueue."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from scheduler import BlockCosts, CudaStream, Lane, ThreadStream, measure_enqueued_together, measure_together
from tests.support.fake_cuda import FakeDriver
from tests.support.table_model import TableModel


@contextmanager
def lanes(kind: str, *, capacity: int = 64, timing: bool = True) -> Iterator[tuple[Lane, Lane]]:
    if kind == "threads":
        streams = [ThreadStream(name, num_threads=1) for name in ("target", "draft")]
    else:
        driver = FakeDriver(3)
        streams = [CudaStream(name, driver, timing=timing) for name in ("target", "draft")]  # type: ignore[misc]  # either kind
    target, draft = [
        Lane(stream.name, TableModel(max_block=32, vocab_size=12, name=stream.name), stream, capacity=capacity)
        for stream in streams
    ]
    for lane in (target, draft):
        lane.costs.calibrate({1: 1.0, 9: 2.0})
    yield target, draft
    for stream in streams:
        stream.close()


@pytest.mark.parametrize("kind", ["threads", "enqueued"])
@pytest.mark.parametrize(("capacity", "widths"), [(64, (2, 5, 9)), (6, (2, 5)), (1, (1,))])
async def test_both_tables_are_filled_and_both_caches_left_empty(
    kind: str, capacity: int, widths: tuple[int, ...]
) -> None:
    measure = measure_together if kind == "threads" else measure_enqueued_together
    with lanes(kind, capacity=capacity) as (target, draft):
        await measure(target, draft)
        assert tuple(target.costs_together.as_dict()) == widths
        assert tuple(draft.costs_together.as_dict()) == (1,)
        assert all(cost_ms > 0 for lane in (target, draft) for cost_ms in lane.costs_together.as_dict().values())
        assert target.num_held == draft.num_held == 0


async def test_a_step_costs_its_part_of_the_time_that_all_took(monkeypatch: pytest.MonkeyPatch) -> None:
    with lanes("enqueued") as (target, draft):
        # Models on a CPU time their own calls, which a GPU's do not.
        monkeypatch.setattr(BlockCosts, "record", lambda costs, width, cost_ms: None)
        elapsed = iter([40.0, 26.0] * 12)
        for stream in (target.stream, draft.stream):
            driver = stream.driver  # type: ignore[attr-defined]  # a CudaStream
        driver.elapsed_ms = lambda start, end: next(elapsed)
        await measure_enqueued_together(target, draft)
        # The estimate for 5 tokens alone is 1.5 ms: never fewer than five steps of 1 ms.
        assert set(target.costs_together.as_dict().values()) == {40.0}
        assert draft.costs_together.as_dict() == {1: 26.0 / 5}


async def test_events_that_note_no_time_tell_nothing() -> None:
    with lanes("enqueued", timing=False) as (target, draft):
        await measure_enqueued_together(target, draft)
        assert target.costs_together.as_dict() == draft.costs_together.as_dict() == {}


@pytest.mark.parametrize("kind", ["threads", "enqueued"])
@pytest.mark.parametrize("side", ["target", "draft"])
async def test_what_a_model_raises_comes_out(kind: str, side: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measure = measure_together if kind == "threads" else measure_enqueued_together
    with lanes(kind) as (target, draft):

        def broken(*arguments: object, **options: object) -> None:
            raise LookupError("planted")

        monkeypatch.setattr((target if side == "target" else draft).model, "forward", broken)
        with pytest.raises(LookupError, match="planted"):
            await measure(target, draft)
