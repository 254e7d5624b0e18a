"""Bad input gets a clear error that names field and value, and the runtime goes on as if nothing had been asked."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from models import free_memory
from models.free_memory import AvailableMemory
from runtime import CheckpointError, InsufficientMemoryError, Runtime, UnsupportedModelError
from tests.support.table_runtime import Rig, build_rig, greedy_ids, table_target
from tests.support.tiny_checkpoint import write_tiny_folder

PROMPT = [5, 17, 40, 8]


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    made = build_rig(table_target())
    yield made
    await made.runtime.close()


def worker_names() -> list[str]:
    return sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("slipstream"))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_tokens": 0}, ValueError, "max_tokens.*at least 1.*0"),
        ({"max_tokens": 2.5}, TypeError, "max_tokens.*integer"),
        ({"max_tokens": True}, TypeError, "max_tokens.*integer"),
        ({"temperature": -1}, ValueError, "temperature.*-1"),
        ({"temperature": float("nan")}, ValueError, "temperature"),
        ({"temperature": "hot"}, TypeError, "temperature.*number"),
        ({"top_p": 0}, ValueError, "top_p"),
        ({"top_p": 1.5}, ValueError, "top_p.*1.5"),
        ({"top_k": -2}, ValueError, "top_k.*-2"),
        ({"min_p": 2}, ValueError, "min_p"),
        ({"stop": ""}, ValueError, "stop.*empty"),
        ({"stop": [3]}, TypeError, "stop"),
        ({"stop_token_ids": "ab"}, TypeError, "stop_token_ids"),
        ({"seed": 1.5}, TypeError, "seed"),
        ({"logprobs": -1}, ValueError, "logprobs"),
        ({"min_tokens": 9, "max_tokens": 3}, ValueError, "min_tokens.*max_tokens"),
        ({"repetition_penalty": 0}, ValueError, "repetition_penalty"),
        ({"logit_bias": {-1: 2.0}}, ValueError, "logit_bias"),
        ({"logit_bias": {10_000: 2.0}}, ValueError, "logit_bias.*10000"),
        ({"verification": "perhaps"}, ValueError, "verification.*coupled.*perhaps"),
        ({"ignore_eos": "yes"}, TypeError, "ignore_eos"),
        ({"max_new_tokens": 5}, TypeError, "max_new_tokens.*did you mean 'max_tokens'"),
        ({"temprature": 1}, TypeError, "did you mean 'temperature'"),
    ],
)
async def test_options(rig: Rig, options: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await rig.runtime.generate(PROMPT, **options)  # type: ignore[arg-type]  # wrong on purpose
    result = await rig.runtime.generate(PROMPT, max_tokens=8, ignore_eos=True)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 8)


@pytest.mark.parametrize(
    ("prompt", "error", "message"),
    [
        ("", ValueError, "empty"),
        ([], ValueError, "empty"),
        ([1, -2], ValueError, r"prompt\[1\].*-2"),
        ([1, 10_000], ValueError, r"prompt\[1\].*10000"),
        ([1, True], TypeError, r"prompt\[1\]"),
        ([1, "a"], TypeError, r"prompt\[1\]"),
        (b"text", TypeError, "bytes"),
        (7, TypeError, "int"),
        ({"role": "user"}, TypeError, "prompt"),
        (list(range(250)) * 3, ValueError, "750 tokens"),
    ],
)
async def test_prompts(rig: Rig, prompt: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await rig.runtime.generate(prompt)  # type: ignore[arg-type]  # wrong on purpose
    result = await rig.runtime.generate(PROMPT, max_tokens=8, ignore_eos=True)
    assert result.token_ids == greedy_ids(table_target(), PROMPT, 8)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"gamma": -1}, ValueError, "gamma.*-1"),
        ({"gamma": 1.5}, TypeError, "gamma"),
        ({"gamma": True}, TypeError, "gamma"),
        ({"gamma": "many"}, ValueError, "gamma.*adaptive.*many"),
        ({"mode": "fast"}, ValueError, "mode.*plain.*fast"),
        ({"weights": "int3"}, ValueError, "weights.*int3"),
        ({"threads": 0}, ValueError, "threads"),
        ({"context_length": 1}, ValueError, "context_length"),
        ({"device": "tpu"}, ValueError, "device.*tpu"),
        ({"draft": ["ngram", "ngram"]}, ValueError, "ngram.*twice"),
        ({"draft": ["early-exit", "some/model"]}, ValueError, "draft"),
        ({"draft": "early-exit:0"}, ValueError, "early-exit:0"),
        ({"draft": 3}, TypeError, "draft"),
        ({"gama": 3}, TypeError, "did you mean 'gamma'"),
    ],
)
async def test_load_options(options: dict[str, object], error: type[Exception], message: str) -> None:
    before = worker_names()
    with pytest.raises(error, match=message):
        await Runtime.load("nowhere", **options)
    assert worker_names() == before


async def test_sources_that_cannot_be_loaded(tmp_path: Path) -> None:
    before = worker_names()
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    (pickled / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    (pickled / "pytorch_model.bin").write_bytes(b"never opened")
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(b"GGUF\x03\x00")
    for source in (tmp_path / "missing", pickled, truncated):
        with pytest.raises((CheckpointError, UnsupportedModelError)):
            await Runtime.load(source)
    assert worker_names() == before


async def test_no_room_for_the_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_tiny_folder(tmp_path / "tiny")
    scarce = AvailableMemory(num_bytes=1_000_000, reason="planted")
    monkeypatch.setattr("runtime.assembly.available_memory", lambda device: scarce)
    with pytest.raises(InsufficientMemoryError, match=r"context|smaller"):
        await Runtime.load(folder)
    monkeypatch.undo()
    assert free_memory.available_memory().num_bytes
    async with await Runtime.load(folder) as runtime:
        assert (await runtime.generate([1, 2, 3], max_tokens=4, ignore_eos=True)).metrics.num_output_tokens == 4
