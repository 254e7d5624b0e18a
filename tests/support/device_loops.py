"""Loops whose rounds stay on the device: on streams of a fake GPU, every launch guarded against host reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from scheduler import CudaStream, DeviceResidency, Generation
from tests.support.fake_cuda import FakeDriver
from tests.support.host_reads import forbid_host_reads
from tests.support.positioned_table import PositionedTableModel
from tests.support.sequential_cases import VOCAB

Result = TypeVar("Result")


def new_model(seed: int, **options: object) -> PositionedTableModel:
    """Like `sequential_cases.new_model`, with calls that can be enqueued."""
    return PositionedTableModel(**{"vocab_size": VOCAB, "seed": seed, "max_block": 64, **options})


def target_model(**options: object) -> PositionedTableModel:
    return new_model(1, **options)


def close_model() -> PositionedTableModel:
    """A draft that is right about as often as not."""
    model = new_model(1, sharpness=1.2)
    model.tables[0, 3:6] = new_model(2).tables[0, 3:6]
    return model


class GuardedStream:
    """A stream of a fake GPU, on which no launch of a round may read a value."""

    UNGUARDED = frozenset(("resume", "prefill"))
    """Launches that are no part of a round."""

    def __init__(self, stream: CudaStream) -> None:
        self._stream = stream
        self.name = stream.name
        self.record, self.wait, self.close = stream.record, stream.wait, stream.close
        self.new_time_source, self.time_launches = stream.new_time_source, stream.time_launches
        self.labels: list[str] = []

    def launch(
        self,
        work: Callable[[], Result],
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        label: str = "",
        generation: Generation | None = None,
    ) -> Any:
        self.labels.append(label)

        def guarded() -> Result:
            if label in self.UNGUARDED:
                return work()
            with forbid_host_reads():
                return work()

        return self._stream.launch(guarded, reads=reads, writes=writes, label=label, generation=generation)


class FakeGpu:
    """A driver, the streams made on it, and the residency that goes with them."""

    def __init__(self, seed: int = 0, *, timing: bool = False) -> None:
        self._timing = timing
        self.driver = FakeDriver(seed)
        self.residency = DeviceResidency(self.driver)
        self.streams: list[GuardedStream] = []

    def stream(self, name: str) -> GuardedStream:
        self.streams.append(GuardedStream(CudaStream(name, self.driver, timing=self._timing)))
        return self.streams[-1]

    @property
    def num_copies(self) -> int:
        """Copies to the host so far."""
        return self.driver.calls.count("copy_to_host")

    def rig_options(self, **options: Any) -> dict[str, Any]:
        """Options of a rig on this GPU."""
        return {"new_stream": self.stream, "residency": self.residency, **options}
