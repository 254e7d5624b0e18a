"""The ring of result slots: what arrives, when it may be read, and when a slot may be used again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from scheduler import CudaStream, HostCopyDriver, PinnedRing, PinnedSlot, ThreadStream
from tests.support.fake_cuda import RUBBISH, FakeCudaError, FakeDriver
from tests.support.host_reads import forbid_host_reads


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver(by_hand=True)
    yield driver
    assert driver.faults == []


@pytest.fixture
def stream(driver: FakeDriver) -> CudaStream:
    return CudaStream("main", driver)


@pytest.fixture
def ring(driver: FakeDriver) -> PinnedRing:
    return PinnedRing(driver, num_slots=3, num_bytes=40)


def copied(stream: CudaStream, ring: PinnedRing, value: int) -> PinnedSlot:
    """The slot of a copy that has arrived."""
    launch = stream.launch(lambda: ring.copy(torch.full((5,), value)))
    stream.record().synchronize()
    return launch.result()


class TestReading:
    def test_gives_what_was_copied_once_it_has_arrived(
        self, driver: FakeDriver, stream: CudaStream, ring: PinnedRing
    ) -> None:
        slots: list[PinnedSlot] = []
        source = torch.arange(5)
        stream.launch(lambda: slots.append(ring.copy(source)))
        event = stream.record()
        assert not slots[0].arrived()
        with pytest.raises(RuntimeError, match="slot 0 has not arrived yet"):
            slots[0].read()
        event.synchronize()
        assert slots[0].arrived()
        assert slots[0].read().tolist() == [0, 1, 2, 3, 4]

    def test_too_early_past_the_check_would_find_rubbish(
        self, driver: FakeDriver, stream: CudaStream, ring: PinnedRing
    ) -> None:
        slots: list[PinnedSlot] = []
        stream.launch(lambda: slots.append(ring.copy(torch.arange(5))))
        assert slots[0]._host.view(torch.uint8).tolist() == [RUBBISH] * 40
        stream.record().synchronize()

    def test_gives_what_the_tensor_held_when_the_stream_came_to_the_copy(
        self, stream: CudaStream, ring: PinnedRing
    ) -> None:
        source = torch.arange(5)
        slots: list[PinnedSlot] = []
        stream.launch(lambda: slots.append(ring.copy(source)))
        stream.launch(lambda: source.add_(10))
        stream.record().synchronize()
        assert slots[0].read().tolist() == [0, 1, 2, 3, 4]

    @pytest.mark.parametrize(
        "source",
        [
            torch.tensor([[1.5, -2.0], [0.0, 3.25]]),
            torch.tensor([True, False, True]),
            torch.tensor(7),
            torch.arange(10, dtype=torch.int32)[::2],
            torch.arange(20, dtype=torch.bfloat16),
            torch.empty(0),
        ],
    )
    def test_keeps_shape_dtype_and_value(self, stream: CudaStream, ring: PinnedRing, source: torch.Tensor) -> None:
        slots: list[PinnedSlot] = []
        stream.launch(lambda: slots.append(ring.copy(source)))
        stream.record().synchronize()
        found = slots[0].read()
        assert (found.dtype, found.shape) == (source.dtype, source.shape)
        assert torch.equal(found, source)

    def test_after_the_release_is_refused(self, stream: CudaStream, ring: PinnedRing) -> None:
        slot = copied(stream, ring, 1)
        slot.release()
        slot.release()
        with pytest.raises(RuntimeError, match="slot 0 was released"):
            slot.read()


class TestReuse:
    def test_slots_are_used_in_turn(self, stream: CudaStream, ring: PinnedRing) -> None:
        indices = []
        for value in range(7):
            slot = copied(stream, ring, value)
            assert slot.read().tolist() == [value] * 5
            indices.append(slot.index)
            slot.release()
        assert indices == [0, 1, 2, 0, 1, 2, 0]
        assert (ring.num_slots, ring.num_copies) == (3, 7)

    def test_unread_slots_keep_their_values(self, stream: CudaStream, ring: PinnedRing) -> None:
        slots = [copied(stream, ring, value) for value in range(3)]
        assert [slot.read().tolist() for slot in slots] == [[value] * 5 for value in range(3)]

    def test_of_a_slot_that_is_still_held_is_refused_by_name(self, stream: CudaStream, ring: PinnedRing) -> None:
        slots = [copied(stream, ring, value) for value in range(3)]
        for slot in slots[1:]:
            slot.release()
        with pytest.raises(RuntimeError, match="slot 0 of 3 holds a result that its reader has not released"):
            copied(stream, ring, 3)
        assert slots[0].read().tolist() == [0] * 5
        slots[0].release()
        assert copied(stream, ring, 3).index == 0

    def test_of_a_slot_that_is_still_being_written_is_refused_by_name(
        self, driver: FakeDriver, stream: CudaStream, ring: PinnedRing
    ) -> None:
        for _ in range(3):
            stream.launch(lambda: ring.copy(torch.arange(5)).release())
        launch = stream.launch(lambda: ring.copy(torch.arange(5)))
        with pytest.raises(RuntimeError, match="slot 0 of 3 is still being written: 3 results are on their way"):
            stream.record().synchronize()
        with pytest.raises(RuntimeError, match="still being written"):
            launch.result()

    def test_of_what_nobody_can_read_any_more_is_fine(self, stream: CudaStream, ring: PinnedRing) -> None:
        for value in range(10):
            copied(stream, ring, value)  # and the slot is dropped

    def test_keeps_its_address(self, stream: CudaStream, ring: PinnedRing) -> None:
        addresses = set()
        for value in range(9):
            slot = copied(stream, ring, value)
            addresses.add(slot.read().data_ptr())
            slot.release()
        assert len(addresses) == 3


class TestMisuse:
    def test_what_is_too_large_is_refused(self, stream: CudaStream, ring: PinnedRing) -> None:
        stream.launch(lambda: ring.copy(torch.arange(6)))
        with pytest.raises(ValueError, match="48 bytes does not fit into a slot of 40 bytes"):
            stream.record().synchronize()

    @pytest.mark.parametrize("numbers", [{"num_slots": 0, "num_bytes": 8}, {"num_slots": 1, "num_bytes": 0}])
    def test_sizes_must_be_positive(self, driver: FakeDriver, numbers: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="must be at least 1"):
            PinnedRing(driver, **numbers)

    def test_a_copy_outside_a_launch_is_refused(self) -> None:
        driver = FakeDriver()
        with pytest.raises(FakeCudaError, match="default stream"):
            PinnedRing(driver, num_slots=1, num_bytes=8).copy(torch.tensor(1))


def test_a_copy_is_no_host_read(stream: CudaStream, ring: PinnedRing) -> None:
    source = torch.arange(5)

    def work() -> PinnedSlot:
        with forbid_host_reads():
            return ring.copy(source * 2)

    launch = stream.launch(work)
    stream.record().synchronize()
    assert launch.result().read().tolist() == [0, 2, 4, 6, 8]


def test_host_tensors_go_through_a_ring_on_other_streams_as_well() -> None:
    ring = PinnedRing(HostCopyDriver(), num_slots=2, num_bytes=16)
    stream = ThreadStream("worker")
    for value in range(5):
        launch = stream.launch(lambda value=value: ring.copy(torch.full((2,), value)))
        stream.record().synchronize()
        slot = launch.result()
        assert slot.read().tolist() == [value, value]
        slot.release()
    stream.close()
