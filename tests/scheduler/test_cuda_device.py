"""CUDA streams on a real GPU, as far as a fake one can only promise; the stream contract runs there as well."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from scheduler import AwaitMethod, CudaStream, PinnedRing, TorchCudaDriver, why_no_cuda
from tests.support.stream_contract import Run, finished, hold, release_gates

NUM_CYCLES = 20_000_000
"""Of the sleep kernel: some ten milliseconds."""

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        why_no_cuda(torch.device("cuda")) is not None,
        reason=f"the GPU's part of the stream tests: {why_no_cuda(torch.device('cuda'))}",
    ),
]


@pytest.fixture
def driver() -> TorchCudaDriver:
    return TorchCudaDriver()


@pytest.fixture(params=AwaitMethod)
def stream(request: pytest.FixtureRequest, driver: TorchCudaDriver) -> Iterator[CudaStream]:
    stream = CudaStream("main", driver, awaiting=request.param, timing=True)
    yield stream
    release_gates()
    stream.close()


def test_a_device_knows_itself(driver: TorchCudaDriver) -> None:
    properties, memory = driver.properties(), driver.memory()
    assert properties.uuid.startswith(("GPU-", "MIG-"))
    assert properties.capability >= (5, 0)
    assert 0 < memory.free_bytes <= memory.total_bytes
    least, most = driver.priority_range()
    assert most <= least == 0


def test_kernels_run_on_the_stream_and_the_host_does_not_wait(stream: CudaStream, driver: TorchCudaDriver) -> None:
    torch.ones(4, device=driver.device).add_(1)  # loads the kernels
    torch.cuda.synchronize()
    gate = hold(stream)
    current: list[torch.cuda.Stream] = []
    launch = stream.launch(lambda: current.append(torch.cuda.current_stream()) or torch.ones(4, device=driver.device))
    event = stream.record()
    assert current == [stream._handle]
    assert not event.done()
    gate.release()
    event.synchronize()
    assert launch.result().tolist() == [1.0] * 4


def test_awaiting_outlasts_a_kernel(stream: CudaStream, driver: TorchCudaDriver, run: Run) -> None:
    start = stream.record()
    stream.launch(lambda: driver.sleep(NUM_CYCLES))
    end = stream.record()
    run(finished(end))
    assert end.done()
    assert end.elapsed_ms_since(start) > 1.0


def test_results_arrive_through_the_ring(stream: CudaStream, driver: TorchCudaDriver, run: Run) -> None:
    ring = PinnedRing(driver, num_slots=3, num_bytes=64)
    source = torch.zeros(8, dtype=torch.int64, device=driver.device)
    for value in range(1, 50):
        stream.launch(lambda: driver.sleep(100_000))
        stream.launch(lambda: source.add_(1))
        launch = stream.launch(lambda: ring.copy(source))
        stream.launch(lambda: source.add_(0))
        run(finished(stream.record()))
        slot = launch.result()
        assert slot.read().tolist() == [value] * 8
        slot.release()


def test_a_wait_orders_two_streams(stream: CudaStream, driver: TorchCudaDriver) -> None:
    other = CudaStream("other", driver, priority=driver.priority_range()[1])
    value = torch.zeros((), device=driver.device)
    torch.cuda.synchronize()
    for _ in range(50):
        stream.launch(lambda: driver.sleep(100_000))
        stream.launch(lambda: value.mul_(2).add_(1))
        other.wait(stream.record())
        other.launch(lambda: value.sub_(1).div_(2))
        stream.wait(other.record())
    stream.record().synchronize()
    other.close()
    assert value.item() == 0.0
