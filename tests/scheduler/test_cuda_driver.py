"""The seam to torch: how absence is reported, what torch is asked for, and that nobody else asks it."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scheduler import DeviceUnavailableError, TorchCudaDriver, why_no_cuda
from scheduler.streams.cuda import driver as driver_module
from tests.support.fake_cuda import FakeDriver

ROOT = Path(__file__).parents[2]
ALLOWED = {
    "scheduler/streams/cuda/driver.py",
    "models/free_memory.py",
    "models/decoder_weights.py",
    "models/distill/machine.py",
    "models/distill/plan.py",
}
"""Who may speak to torch.cuda below the programs of floor 4: streams through the seam, models before and while they
load, and the program that distils, which has no streams."""


def speaks_to_cuda(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="cuda"):
                return True
            case ast.Import(names=names) if any(alias.name.startswith("torch.cuda") for alias in names):
                return True
            case ast.ImportFrom(module=module, names=names) if (module or "").startswith("torch.cuda") or (
                module == "torch" and any(alias.name == "cuda" for alias in names)
            ):
                return True
    return False


def test_nobody_else_speaks_to_cuda() -> None:
    found = {
        str(path.relative_to(ROOT))
        for package in ("models", "scheduler", "runtime")
        for path in (ROOT / package).rglob("*.py")
        if speaks_to_cuda(path.read_text())
    }
    assert "scheduler/streams/cuda/driver.py" in found
    assert found <= ALLOWED


@pytest.mark.parametrize(
    "source",
    ["x = torch.cuda.Event()", "import torch.cuda", "from torch import cuda", "from torch.cuda.nvtx import mark"],
)
def test_speaking_to_cuda_is_noticed(source: str) -> None:
    assert speaks_to_cuda(source)
    assert not speaks_to_cuda(f"{source!r}")


class TestAbsence:
    @pytest.fixture
    def cuda(self, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
        """A build with CUDA and two GPUs, for tests to spoil."""
        cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, current_device=lambda: 1)
        monkeypatch.setattr(driver_module, "_cuda", cuda)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        return cuda

    def test_of_cuda_in_the_build(self, cuda: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.version, "cuda", None)
        with pytest.raises(DeviceUnavailableError, match=r"built without CUDA; .*pip install torch.*device='cpu'"):
            TorchCudaDriver()

    def test_of_a_usable_gpu(self, cuda: SimpleNamespace) -> None:
        cuda.is_available = lambda: False
        with pytest.raises(DeviceUnavailableError, match=r"no usable GPU.*nvidia-smi.*CUDA 13\.0.*device='cpu'"):
            TorchCudaDriver("cuda:0")

    def test_of_that_gpu(self, cuda: SimpleNamespace) -> None:
        with pytest.raises(DeviceUnavailableError, match=r"no cuda:2: 2 visible, counted from 0"):
            TorchCudaDriver(torch.device("cuda:2"))

    def test_of_a_gpu_in_the_name(self, cuda: SimpleNamespace) -> None:
        with pytest.raises(DeviceUnavailableError, match="cpu is no CUDA device"):
            TorchCudaDriver("cpu")

    @pytest.mark.parametrize("name", ["cuda:256", "cuda:99999999999999999999", "cuda:", "gpu", ""])
    def test_what_is_no_name_of_one(self, name: str) -> None:
        with pytest.raises(DeviceUnavailableError, match=f"{name} is no CUDA device"):
            TorchCudaDriver(name)

    def test_of_any_reason(self, cuda: SimpleNamespace) -> None:
        assert why_no_cuda(torch.device("cuda")) is None
        assert TorchCudaDriver().device == torch.device("cuda:1")
        assert TorchCudaDriver("cuda:0").device == torch.device("cuda:0")


class TestCalls:
    """Each call of the seam reaches torch in the words that torch understands."""

    def test_fake_and_real_driver_take_the_same_arguments(self) -> None:
        for name, protocol_method in inspect.getmembers(driver_module.CudaDriver, inspect.isfunction):
            if name.startswith("_"):
                continue
            expected = inspect.signature(protocol_method).parameters
            for implementation in (TorchCudaDriver, FakeDriver):
                found = inspect.signature(getattr(implementation, name)).parameters
                assert [(p.name, p.kind) for p in found.values()] == [(p.name, p.kind) for p in expected.values()]

    def test_torch_has_what_the_seam_asks_for(self) -> None:
        source = inspect.getsource(driver_module)
        asked_for = set(re.findall(r"_cuda\.(\w+)", source))
        assert {"Stream", "Event", "stream", "current_stream"} <= asked_for
        assert [name for name in asked_for if not hasattr(torch.cuda, name)] == []
        assert {"enable_timing", "blocking"} <= inspect.signature(torch.cuda.Event.__new__).parameters.keys()
        assert list(inspect.signature(torch.cuda.Stream.__new__).parameters)[:3] == ["cls", "device", "priority"]

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
        """What torch was asked for, by a torch that only takes notes."""
        asked: list[tuple[Any, ...]] = []

        def note(name: str, answer: object = None) -> Any:
            def call(*arguments: object, **options: object) -> object:
                asked.append((name, *arguments, *sorted(options.items())))
                return answer

            return call

        event = SimpleNamespace(
            record=note("record"), query=note("query", 1), synchronize=note("sync"), elapsed_time=note("elapsed", 2.5)
        )
        stream_type = note("Stream", "a stream")
        stream_type.priority_range = lambda: (0, -5)
        cuda = SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            current_device=lambda: 0,
            Stream=stream_type,
            Event=note("Event", event),
            mem_get_info=note("mem_get_info", (3, 8)),
            get_device_properties=lambda device: SimpleNamespace(
                name="H", uuid="12-34", major=9, minor=0, multi_processor_count=132, total_memory=8
            ),
            stream=note("stream", "a context"),
            current_stream=lambda device: "a side stream",
            default_stream=lambda device: "the default stream",
            _sleep=note("_sleep"),
        )
        monkeypatch.setattr(driver_module, "_cuda", cuda)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        return asked

    def test_streams_and_events(self, asked: list[tuple[Any, ...]]) -> None:
        driver = TorchCudaDriver()
        assert driver.priority_range() == (0, -5)
        assert driver.new_stream(-2) == "a stream"
        event = driver.new_event(timing=True, blocking=False)
        driver.record(event, "a stream")
        assert driver.query(event) is True
        driver.synchronize(event)
        assert driver.elapsed_ms(event, "later") == 2.5
        assert driver.under("a stream") == "a context"
        driver.sleep(1000)
        assert asked == [
            ("Stream", torch.device("cuda:0"), ("priority", -2)),
            ("Event", ("blocking", False), ("enable_timing", True)),
            ("record", "a stream"),
            ("query",),
            ("sync",),
            ("elapsed", "later"),
            ("stream", "a stream"),
            ("_sleep", 1000),
        ]

    def test_waiting_and_blocking(self, asked: list[tuple[Any, ...]]) -> None:
        calls: list[object] = []
        stream = SimpleNamespace(wait_event=calls.append, synchronize=lambda: calls.append("synchronized"))
        TorchCudaDriver().wait(stream, "an event")
        TorchCudaDriver().synchronize_stream(stream)
        assert calls == ["an event", "synchronized"]

    def test_what_the_device_is(self, asked: list[tuple[Any, ...]]) -> None:
        properties = TorchCudaDriver().properties()
        assert (properties.name, properties.uuid, properties.capability) == ("H", "GPU-12-34", (9, 0))
        assert (properties.num_multiprocessors, properties.total_bytes) == (132, 8)
        memory = TorchCudaDriver().memory()
        assert (memory.free_bytes, memory.total_bytes) == (3, 8)

    def test_copies_do_not_block_and_are_followed_by_an_event(self, asked: list[tuple[Any, ...]]) -> None:
        copies: list[object] = []
        host = SimpleNamespace(copy_=lambda source, non_blocking: copies.append((source, non_blocking)))
        TorchCudaDriver().copy_to_host(host, "a tensor")  # type: ignore[arg-type]  # it only takes notes
        assert copies == [("a tensor", True)]
        assert asked == [("Event", ("blocking", False), ("enable_timing", False)), ("record", "a side stream")]

    def test_a_copy_on_the_default_stream_is_refused(
        self, asked: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(driver_module._cuda, "current_stream", lambda device: "the default stream")
        with pytest.raises(RuntimeError, match="copy inside a launch"):
            TorchCudaDriver().copy_to_host(torch.zeros(1), torch.zeros(1))
        assert asked == []
