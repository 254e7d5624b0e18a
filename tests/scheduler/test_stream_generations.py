"""The stream contract, for every implementation: generations, labels, and the mode that work runs in."""

from __future__ import annotations

import gc
import weakref
from functools import partial

import pytest
import torch

from scheduler import Lineage, StaleLaunchError, Stream
from tests.support.stream_contract import NewStream, Run, fail, hold


class TestGenerations:
    def test_stale_work_is_skipped(self, stream: Stream) -> None:
        seen: list[str] = []
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        stale = stream.launch(lambda: seen.append("stale"), generation=generation)
        stream.record().synchronize()
        assert seen == []
        assert stale.skipped
        with pytest.raises(StaleLaunchError, match="its generation was retired"):
            stale.result()

    def test_work_that_is_stale_when_its_turn_comes_is_skipped(self, deferring_stream: Stream) -> None:
        stream = deferring_stream
        seen: list[str] = []
        lineage = Lineage()
        generation = lineage.begin()
        gate = hold(stream)
        stale = stream.launch(lambda: seen.append("stale"), generation=generation)
        event = stream.record()
        assert not stale.skipped
        lineage.retire(generation)
        gate.release()
        event.synchronize()
        assert seen == []
        assert stale.skipped
        with pytest.raises(StaleLaunchError, match="its generation was retired"):
            stale.result()

    def test_a_skipped_launch_is_no_error_of_the_stream(self, stream: Stream, run: Run) -> None:
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        stream.launch(lambda: 1, generation=generation)
        behind = stream.launch(lambda: 2)
        event = stream.record()

        async def main() -> None:
            await event

        run(main())
        assert behind.result() == 2
        assert not behind.skipped

    def test_work_that_runs_at_once_is_past_retiring(self, eager_stream: Stream) -> None:
        lineage = Lineage()
        generation = lineage.begin()
        gate = hold(eager_stream)
        launch = eager_stream.launch(lambda: 1, generation=generation)
        event = eager_stream.record()
        lineage.retire(generation)
        gate.release()
        event.synchronize()
        assert not launch.skipped
        assert launch.result() == 1

    def test_retiring_one_retires_all_before_it(self, stream: Stream) -> None:
        lineage = Lineage()
        generations = [lineage.begin() for _ in range(4)]
        lineage.retire(generations[2])
        lineage.retire(generations[0])
        launches = [stream.launch(lambda: 1, generation=generation) for generation in generations]
        stream.record().synchronize()
        assert [launch.skipped for launch in launches] == [True, True, True, False]
        assert launches[3].result() == 1

    def test_retiring_reaches_all_that_has_not_begun(self, deferring_stream: Stream) -> None:
        stream = deferring_stream
        lineage = Lineage()
        generations = [lineage.begin() for _ in range(4)]
        gate = hold(stream)
        launches = [stream.launch(lambda: 1, generation=generation) for generation in generations]
        event = stream.record()
        lineage.retire(generations[2])
        lineage.retire(generations[0])
        gate.release()
        event.synchronize()
        assert [launch.skipped for launch in launches] == [True, True, True, False]
        assert launches[3].result() == 1

    def test_work_that_has_begun_ends(self, stream: Stream) -> None:
        lineage = Lineage()
        generation = lineage.begin()

        def work() -> str:
            lineage.retire(generation)
            return "ended"

        begun = stream.launch(work, generation=generation)
        next_one = stream.launch(lambda: "next", generation=generation)
        stream.record().synchronize()
        assert begun.result() == "ended"
        assert not begun.skipped
        assert next_one.skipped

    def test_work_without_one_always_runs(self, stream: Stream) -> None:
        lineage = Lineage()
        gate = hold(stream)
        launch = stream.launch(lambda: 1, generation=None)
        event = stream.record()
        lineage.retire(lineage.begin())
        gate.release()
        event.synchronize()
        assert launch.result() == 1

    def test_lineages_have_nothing_to_do_with_each_other(self, stream: Stream) -> None:
        one, other = Lineage(), Lineage()
        launch = stream.launch(lambda: 1, generation=one.begin())
        other.retire(other.begin())
        stream.record().synchronize()
        assert launch.result() == 1

    def test_an_error_passes_over_stale_work(self, stream: Stream) -> None:
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        stream.launch(fail())
        stale = stream.launch(lambda: 1, generation=generation)
        with pytest.raises(LookupError, match="planted"):
            stream.record().synchronize()
        with pytest.raises(LookupError, match="planted"):
            stale.result()
        assert not stale.skipped

    def test_skipping_holds_nobody_up_and_lets_nobody_through(self, new_stream: NewStream) -> None:
        ahead, behind = new_stream("ahead"), new_stream("behind")
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        seen: list[str] = []
        gate = hold(ahead)
        ahead.launch(lambda: seen.append("ahead"))
        ahead.launch(lambda: seen.append("stale"), generation=generation)
        behind.wait(ahead.record())
        behind.launch(lambda: seen.append("also stale"), generation=generation)
        behind.launch(lambda: seen.append("behind"))
        event = behind.record()
        assert not event.done()
        gate.release()
        event.synchronize()
        assert seen == ["ahead", "behind"]

    def test_skipped_work_is_let_go(self, stream: Stream) -> None:
        class Work:
            def __call__(self) -> int:
                return 7

        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        work = Work()
        gone = weakref.ref(work)
        launch = stream.launch(work, generation=generation)
        del work
        stream.launch(int)
        stream.record().synchronize()
        gc.collect()
        assert gone() is None
        assert launch.skipped


class TestLabels:
    class Callable:
        def __call__(self) -> int:
            return 7

        def method(self, argument: int) -> int:
            return argument

    @pytest.mark.parametrize(
        ("work", "label", "expected"),
        [
            (int, "verify 3", "'verify 3' was skipped"),
            (Callable().__call__, "", "'__call__' was skipped"),
            (Callable(), "", "'Callable' was skipped"),
            (partial(partial(Callable().method), 3), "", "'method' was skipped"),
        ],
    )
    def test_name_a_launch_in_its_errors(self, stream: Stream, work: object, label: str, expected: str) -> None:
        lineage = Lineage()
        generation = lineage.begin()
        lineage.retire(generation)
        launch = stream.launch(work, label=label, generation=generation)  # type: ignore[arg-type]  # all are callable
        stream.record().synchronize()
        with pytest.raises(StaleLaunchError, match=expected):
            launch.result()


def test_work_runs_in_inference_mode(stream: Stream) -> None:
    launch = stream.launch(torch.is_inference_mode_enabled)
    stream.record().synchronize()
    assert launch.result() is True
    assert not torch.is_inference_mode_enabled()
