"""A runtime whose lanes are CUDA streams: here on a made-up driver, whose events pass when a seeded clock says so."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import runtime.assembly
import runtime.placement
from models.free_memory import AvailableMemory
from runtime import (
    DeviceUnavailableError,
    InsufficientMemoryError,
    Mode,
    Occupancy,
    Runtime,
    SlipstreamError,
    UnsupportedModelError,
)
from scheduler import CudaStream, OccupancyField
from tests.support.fake_cuda import MOST_URGENT, FakeDriver
from tests.support.tiny_checkpoint import write_tiny_folder

PROMPTS = ("hello the hello the hello", "x")
SAMPLINGS = (
    {},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 1.0, "seed": 4, "top_p": 0.8, "presence_penalty": 0.5},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"))


@pytest.fixture(params=range(2))
def driver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeDriver]:
    """Found wherever a GPU is looked for."""
    made_up = FakeDriver(request.param)
    monkeypatch.setattr(runtime.placement, "TorchCudaDriver", lambda device: made_up)
    monkeypatch.setattr(runtime.placement, "why_no_cuda", lambda device: None)
    yield made_up
    assert made_up.faults == []


async def outputs(loaded: Runtime, mode: Mode | None = None) -> list[tuple[object, ...]]:
    results = [
        await loaded.generate(prompt, max_tokens=20, ignore_eos=True, logprobs=2, mode=mode, **sampling)  # type: ignore[arg-type]  # real options
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    ]
    return [(result.token_ids, result.text, result.finish_reason) for result in results]


async def test_every_mode_writes_what_the_cpu_writes(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, device="cpu", mode="plain", weights="float32", threads=1) as on_cpu:
        expected = await outputs(on_cpu)
    async with await Runtime.load(folder, draft="early-exit:1", weights="float32", threads=1) as loaded:
        assert loaded.modes == tuple(Mode)
        for mode in (None, Mode.PLAIN, Mode.PIPELINED, Mode.SEQUENTIAL, Mode.AUTO):
            assert await outputs(loaded, mode) == expected
        metrics = (await loaded.generate(PROMPTS[0], max_tokens=30, mode="pipelined")).metrics
        assert metrics.num_draft_tokens > 0
        assert metrics.draft_ms is None, "unknown is not 0"
        assert metrics.verify_ms > 0


async def test_draft_and_target_have_streams_of_their_own(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, draft="early-exit:1", weights="float32") as loaded:
        target, draft = loaded._engine.target.stream, loaded._engine.draft_stream
        assert isinstance(target, CudaStream)
        assert isinstance(draft, CudaStream)
        assert target is not draft
        assert [stream.priority for stream in driver._streams] == [0, MOST_URGENT]


async def test_a_request_that_is_left_leaves_the_runtime_usable(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, draft="early-exit:1", gamma=3, weights="float32", mode="pipelined") as loaded:
        expected = (await loaded.generate(PROMPTS[0], max_tokens=25, ignore_eos=True)).token_ids
        for _ in range(3):
            async with loaded.stream(PROMPTS[1], max_tokens=200, ignore_eos=True) as chunks:
                async for _chunk in chunks:
                    break
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loaded.generate("y", max_tokens=230, ignore_eos=True), timeout=0.001)
            assert (await loaded.generate(PROMPTS[0], max_tokens=25, ignore_eos=True)).token_ids == expected


async def test_look_ups_are_left_out_unless_asked_for(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, weights="float32") as loaded:
        assert loaded.description.draft == ()
        assert (await loaded.generate("x", max_tokens=3)).metrics.decision == "plain decoding: there is no draft"
    for draft in ("ngram", ["ngram", "early-exit:1"]):
        with pytest.raises(ValueError, match=r"draft 'ngram' looks tokens up on the host.*or load with device='cpu'"):
            await Runtime.load(folder, draft=draft, weights="float32")


async def test_overlap_that_was_asked_for_is_served_without_a_draft_model(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, draft="none", mode="pipelined", weights="float32") as loaded:
        assert loaded.modes == (Mode.PLAIN, Mode.SEQUENTIAL, Mode.PIPELINED)
        for mode in (None, *loaded.modes):
            assert (await loaded.generate(PROMPTS[0], max_tokens=5, ignore_eos=True, mode=mode)).metrics.num_plain_steps


async def test_a_gpu_is_looked_for_and_started_off_the_event_loop(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []

    def noted(result: object) -> Any:
        threads.append(threading.current_thread())
        return result

    monkeypatch.setattr(runtime.placement, "TorchCudaDriver", lambda device: noted(driver))
    monkeypatch.setattr(runtime.placement, "why_no_cuda", lambda device: noted(None))
    async with await Runtime.load(folder, draft="none", weights="float32"):
        assert len(threads) == 2
        assert threading.main_thread() not in threads


async def test_threads_that_have_no_effect_are_told_of(
    folder: Path, driver: FakeDriver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="slipstream"):
        async with await Runtime.load(folder, draft="none", threads=2, weights="float32"):
            pass
    assert "threads=2 has no effect" in caplog.text


async def test_an_engine_that_cannot_be_built_leaves_nothing_open(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = planted_probe(monkeypatch, free_bytes=1 << 40, other_percent=0.0)

    def refuse(*arguments: object, **options: object) -> None:
        assert probe.num_pieces == 1, "what loading does to the device is this process's own work"
        raise UnsupportedModelError("planted")

    monkeypatch.setattr(runtime.assembly, "decoding_loops", refuse)
    with pytest.raises(UnsupportedModelError, match="planted"):
        await Runtime.load(folder, draft="early-exit:1", weights="float32")
    assert probe.closed
    assert probe.num_pieces == 0


async def test_the_occupancy_says_why_it_is_unknown(folder: Path, driver: FakeDriver) -> None:
    async with await Runtime.load(folder, draft="early-exit:1", weights="float32") as loaded:
        await loaded.generate("x", max_tokens=3)
        reading = loaded.occupancy
        assert reading.memory_free_bytes.value is None
        assert reading.memory_free_bytes.reason
    async with await Runtime.load(folder, device="cpu", threads=1, draft="ngram") as on_cpu:
        assert on_cpu.occupancy.gpu_percent.reason == "it runs on the CPU"


class FullProbe:
    """What a probe says of a device that others use."""

    def __init__(self, *, free_bytes: int, other_percent: float) -> None:
        unknown = Occupancy.unknown("nobody asked", taken_at_s=time.monotonic())
        self.reading = dataclasses.replace(
            unknown,
            memory_free_bytes=OccupancyField(value=free_bytes, reason="planted"),
            other_sm_percent=OccupancyField(value=other_percent, reason="planted"),
        )
        self.closed = False
        self.num_pieces = 0

    def read(self) -> Occupancy:
        return self.reading

    latest = read

    @contextlib.contextmanager
    def own_work(self) -> Iterator[None]:
        self.num_pieces += 1
        try:
            yield
        finally:
            self.num_pieces -= 1

    def close(self) -> None:
        self.closed = True


def planted_probe(monkeypatch: pytest.MonkeyPatch, **figures: Any) -> FullProbe:
    probe = FullProbe(**figures)
    monkeypatch.setattr(runtime.placement.OccupancyProbe, "for_device", lambda uuid: probe)
    return probe


async def test_what_others_leave_free_decides_over_admission(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = planted_probe(monkeypatch, free_bytes=1 << 16, other_percent=0.0)
    with pytest.raises(InsufficientMemoryError):
        await Runtime.load(folder, draft="early-exit:1", weights="float32")
    assert probe.closed


async def test_what_an_earlier_runtime_left_behind_is_no_reason_to_refuse(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver takes it for used, since torch keeps it."""
    kept = AvailableMemory(num_bytes=1 << 40, kept_bytes=1 << 40, reason="planted")
    monkeypatch.setattr(runtime.assembly, "available_memory", lambda device: kept)
    planted_probe(monkeypatch, free_bytes=1 << 16, other_percent=0.0)
    async with await Runtime.load(folder, draft="none", weights="float32") as loaded:
        assert (await loaded.generate("x", max_tokens=2)).token_ids


async def test_where_others_fill_the_gpu_nothing_runs_ahead(
    folder: Path, driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = planted_probe(monkeypatch, free_bytes=1 << 40, other_percent=90.0)
    async with await Runtime.load(folder, draft="early-exit:1", gamma=2, weights="float32") as loaded:
        metrics = (await loaded.generate(PROMPTS[0], max_tokens=30, ignore_eos=True)).metrics
        assert metrics.num_overlapped_steps == 0
        assert "nothing runs ahead, as" in metrics.decision
        pipelined = (await loaded.generate(PROMPTS[0], max_tokens=30, ignore_eos=True, mode="pipelined")).metrics
        assert pipelined.num_overlapped_steps > 0, "what was asked for in so many words is done"
    assert probe.closed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
async def test_without_a_gpu_it_says_so_and_what_to_do(folder: Path) -> None:
    with pytest.raises(DeviceUnavailableError, match=r"or run with device='cpu'") as caught:
        await Runtime.load(folder, device="cuda")
    assert isinstance(caught.value, SlipstreamError)
    async with await Runtime.load(folder, device="auto", threads=1, draft="ngram") as loaded:
        assert loaded.description.device == "cpu"
