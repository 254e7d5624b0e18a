"""Whole runtimes from checkpoints on disk: any draft and gamma gives the target's own tokens; bad pairs are refused."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import runtime.assembly
from models.decoder import CallWidths, Decoder
from models.free_memory import AvailableMemory
from runtime import (
    CheckpointError,
    FinishReason,
    InsufficientMemoryError,
    Mode,
    PairError,
    Runtime,
    SlipstreamError,
    Verification,
)
from scheduler import CoreShare, Lane
from tests.support.tiny_checkpoint import save_tokenizer, write_tiny_folder, write_tiny_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

PROMPTS = ("hello the hello the hello", [{"role": "user", "content": "Zoë 🙂"}], list(range(3, 40)))
SAMPLINGS: tuple[Mapping[str, object], ...] = (
    {},
    {"temperature": 0.8, "top_p": 0.95, "seed": 3},
    {"temperature": 1.3, "top_k": 50, "min_p": 0.01, "repetition_penalty": 1.2, "frequency_penalty": 0.3, "seed": -9},
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("folder") / "llama")


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another random model, with logits wider than the target's and half its context."""
    changes = {"num_hidden_layers": 1, "vocab_size": 280, "max_position_embeddings": 128}
    return write_tiny_folder(tmp_path_factory.mktemp("draft") / "tiny", seed=8, **changes)


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "qwen2.gguf", "qwen2")


async def outputs(runtime: Runtime, max_tokens: int = 28, mode: Mode | None = None) -> list[tuple[object, ...]]:
    results = [
        await runtime.generate(prompt, max_tokens=max_tokens, ignore_eos=True, logprobs=1, mode=mode, **sampling)  # type: ignore[arg-type]  # real options
        for prompt in PROMPTS
        for sampling in SAMPLINGS
    ]
    return [(result.token_ids, result.text, result.finish_reason, result.logprobs) for result in results]


_expected: dict[tuple[Path, str], list[tuple[object, ...]]] = {}


async def expected_outputs(target: Path, weights: str) -> list[tuple[object, ...]]:
    if (target, weights) not in _expected:
        async with await Runtime.load(target, mode="plain", weights=weights, threads=1) as runtime:
            _expected[target, weights] = await outputs(runtime)
    return _expected[target, weights]


@pytest.mark.parametrize("gamma", [1, 2, 4, 8, "adaptive"])
@pytest.mark.parametrize("draft", ["ngram", "early-exit:1", "folder", "ngram+folder"])
async def test_no_draft_changes_a_bit(folder: Path, draft_folder: Path, draft: str, gamma: int | str) -> None:
    """To the last token and the last bit of its log probability, in every packed kind."""
    weights = {1: "float32", 2: "float16", 4: "int8", 8: "float16", "adaptive": "int8"}[gamma]
    sources = [draft_folder if name == "folder" else name for name in draft.split("+")]
    async with await Runtime.load(folder, draft=sources, gamma=gamma, weights=weights, threads=1) as loaded:
        assert loaded.modes == (Mode.PLAIN, Mode.SEQUENTIAL, Mode.AUTO)
        assert await outputs(loaded) == await expected_outputs(folder, weights)
        if draft != "ngram" and gamma != "adaptive":
            assert (await loaded.generate("hello", max_tokens=40, ignore_eos=True)).metrics.num_draft_tokens > 0


BESIDE = [
    ("none", 4, "float16"),
    ("ngram", 2, "float16"),
    ("early-exit:1", 1, "int8"),
    ("early-exit:1", "adaptive", "float16"),
    ("folder", 4, "float32"),
    ("folder", "adaptive", "int8"),
    ("ngram+folder", 8, "float16"),
    ("ngram+early-exit:1", 3, "float32"),
    ("early-exit:1+ngram", 8, "float16"),
]


@pytest.mark.parametrize(("draft", "gamma", "weights"), BESIDE)
async def test_no_draft_beside_its_target_changes_a_bit(
    folder: Path, draft_folder: Path, draft: str, gamma: int | str, weights: str
) -> None:
    """In every mode that the runtime serves, whatever was in the caches before."""
    sources = [draft_folder if name == "folder" else name for name in draft.split("+")]
    async with await Runtime.load(
        folder, mode="pipelined", draft=sources, gamma=gamma, num_awaited=1, weights=weights, threads=1
    ) as loaded:
        expected = await expected_outputs(folder, weights)
        for mode in (Mode.PIPELINED, Mode.SEQUENTIAL, Mode.PLAIN, None):
            assert await outputs(loaded, mode=mode) == expected
        metrics = (await loaded.generate(PROMPTS[0], max_tokens=40, ignore_eos=True)).metrics
        if gamma != "adaptive":
            assert (metrics.num_hits + metrics.num_misses > 0) == (draft != "none")
        if draft == "none":
            assert metrics.num_plain_steps == 40


async def test_a_draft_beside_its_target_is_always_right_about_itself(folder: Path) -> None:
    """Proposals and guesses, in a sampled output: one token too few in the draft's cache would show."""
    async with await Runtime.load(folder, mode="pipelined", draft=folder, gamma=2, num_awaited=2, threads=1) as loaded:
        result = await loaded.generate("hello", max_tokens=180, temperature=0.9, seed=1, ignore_eos=True)
    metrics = result.metrics
    assert metrics.num_spec_steps >= 50
    # A draft of its target's size may not keep up, and then nothing is guessed in some rounds.
    assert metrics.draft_acceptance_rate == metrics.hit_rate == 1.0


async def test_a_target_whose_rows_forbid_fewer_threads_keeps_all_of_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = Decoder._probe
    monkeypatch.setattr(Decoder, "_probe", lambda decoder, thread_counts: probe(decoder, ()))
    async with await Runtime.load(folder, draft="early-exit:1", threads=3) as loaded:
        assert loaded._engine.target._cores == CoreShare(alone=3, together=3)
        assert (loaded.description.threads, loaded.description.draft_threads) == (4, 1)


@pytest.mark.parametrize(
    ("draft", "weights"), [("early-exit:1", "float16"), ("folder", "int8"), ("ngram+folder", "float32")]
)
async def test_no_choice_of_mode_changes_a_bit(folder: Path, draft_folder: Path, draft: str, weights: str) -> None:
    """With two threads, which the target has alone in one round and shares in the next."""
    sources = [draft_folder if name == "folder" else name for name in draft.split("+")]
    async with await Runtime.load(folder, draft=sources, weights=weights, threads=2) as loaded:
        assert loaded.modes == tuple(Mode)
        expected = await outputs(loaded, mode=Mode.PLAIN)
        for mode in (Mode.AUTO, Mode.PIPELINED, Mode.AUTO, Mode.SEQUENTIAL, Mode.PLAIN):
            assert await outputs(loaded, mode=mode) == expected


async def test_each_model_is_loaded_and_measured_on_the_worker_that_runs_it(
    folder: Path, draft_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[tuple[str, str, int, bool]] = []
    probed: list[tuple[str, tuple[int, ...]]] = []
    measure, probe = Lane.measure_costs, Decoder._probe

    def watched_measure(lane: Lane, *, together: bool = False, **options: object) -> None:
        measure(lane, together=together, **options)  # type: ignore[arg-type]  # passed on as they are
        measured.append((lane.name, threading.current_thread().name, torch.get_num_threads(), together))

    def watched_probe(decoder: Decoder, thread_counts: Iterable[int]) -> CallWidths:
        probed.append((threading.current_thread().name, tuple(sorted({torch.get_num_threads(), *thread_counts}))))
        return probe(decoder, thread_counts)

    monkeypatch.setattr(Lane, "measure_costs", watched_measure)
    monkeypatch.setattr(Decoder, "_probe", watched_probe)
    before = torch.get_num_threads()
    for draft, mode in (("early-exit:1", "pipelined"), (draft_folder, "auto")):
        measured.clear()
        probed.clear()
        async with await Runtime.load(folder, mode=mode, draft=draft, threads=3) as loaded:
            shared = loaded._engine.target._cores
            assert shared is not None
            assert measured[:2] == [
                ("target", "slipstream-target", 3, False),
                ("draft", "slipstream-draft", 3, False),
            ]
            assert sorted(measured[2:]) == [
                ("draft", "slipstream-draft", 1, True),
                ("target", "slipstream-target", shared.together, True),
            ]
            assert probed[0] == ("slipstream-target", (2, 3))
            assert probed[1:] == ([] if draft == "early-exit:1" else [("slipstream-draft", (3,))])
            assert (loaded.description.threads, loaded.description.draft_threads) == (shared.together + 1, 1)
            assert torch.get_num_threads() == before
    probed.clear()
    async with await Runtime.load(folder, mode="sequential", draft="early-exit:1", threads=3):
        assert probed == [("slipstream-target", (3,))], "a draft of the target's layers takes over its widths"


@pytest.mark.parametrize("draft", ["ngram", "early-exit", "itself"])
async def test_files_of_the_other_format_and_family(gguf_file: Path, draft: str) -> None:
    source = gguf_file if draft == "itself" else draft
    async with await Runtime.load(gguf_file, draft=source, gamma=3, threads=1) as loaded:
        assert await outputs(loaded) == await expected_outputs(gguf_file, "float16")
        assert loaded.description.target == "qwen2"
        if draft == "itself":
            metrics = (await loaded.generate("hello", max_tokens=40, ignore_eos=True)).metrics
            assert metrics.num_accepted_draft_tokens == metrics.num_draft_tokens > 0


async def test_a_target_with_logits_wider_than_its_drafts(folder: Path, tmp_path: Path) -> None:
    """A random target also writes ids that no tokenizer and no draft knows; drafts then keep still."""
    wide = write_tiny_folder(tmp_path / "wide", vocab_size=310)
    expected = await expected_outputs(wide, "float16")
    assert any(token_id >= 280 for token_ids, *_ in expected for token_id in token_ids)  # type: ignore[attr-defined]  # a tuple of ids
    for draft in (folder, "early-exit:1", ["ngram", folder]):
        async with await Runtime.load(wide, draft=draft, gamma=4, threads=1) as loaded:
            assert await outputs(loaded) == expected


async def test_no_draft_at_all_is_plain_decoding(folder: Path) -> None:
    for draft in ("none", None, []):
        async with await Runtime.load(folder, draft=draft, threads=1) as loaded:
            assert loaded.description.draft == ()
            assert await outputs(loaded) == await expected_outputs(folder, "float16")


async def test_a_draft_is_always_right_about_itself(folder: Path) -> None:
    """Through more than fifty rounds, in a sampled output: one token too few in the draft's cache would show."""
    async with await Runtime.load(folder, draft=folder, gamma=2, threads=1) as loaded:
        result = await loaded.generate("hello", max_tokens=180, temperature=0.9, seed=1, ignore_eos=True)
    assert result.metrics.num_spec_steps >= 59
    assert result.metrics.draft_acceptance_rate == 1.0


async def test_the_rejection_rule_can_be_the_default(folder: Path) -> None:
    async with await Runtime.load(folder, draft=folder, gamma=4, mode="sequential", verification="rejection") as loaded:
        assert loaded.settings.verification is Verification.REJECTION
        options = {"max_tokens": 40, "temperature": 1.0, "seed": 4, "ignore_eos": True}
        by_rejection = await loaded.generate("hello", **options)  # type: ignore[arg-type]  # real options
        coupled = await loaded.generate("hello", verification="coupled", **options)  # type: ignore[arg-type]  # real options
        again = await loaded.generate("hello", **options)  # type: ignore[arg-type]  # real options
    assert by_rejection.token_ids == again.token_ids
    assert by_rejection.token_ids != coupled.token_ids, "each rule has noise of its own"
    async with await Runtime.load(folder, mode="plain") as plain:
        assert (await plain.generate("hello", **options)).token_ids == coupled.token_ids  # type: ignore[arg-type]  # real options


async def test_global_generators_are_left_alone(folder: Path) -> None:
    torch.manual_seed(3)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tobytes()
    async with await Runtime.load(folder, draft="early-exit:1", gamma=4) as loaded:
        for seed in (None, 5):
            await loaded.generate("hello", max_tokens=20, temperature=1.0, seed=seed)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tobytes()


async def test_loading_and_running_keep_the_callers_thread_count(folder: Path) -> None:
    before = torch.get_num_threads()
    async with await Runtime.load(folder, threads=1) as loaded:
        await loaded.generate("hello", max_tokens=3)
        assert loaded.description.threads == 1
        assert torch.get_num_threads() == before


async def test_two_runtimes_live_side_by_side(folder: Path, gguf_file: Path) -> None:
    async with await Runtime.load(folder, threads=1) as one, await Runtime.load(gguf_file, threads=1) as other:
        found = await asyncio.gather(outputs(one), outputs(other))
    assert found == [await expected_outputs(folder, "float16"), await expected_outputs(gguf_file, "float16")]


async def test_a_context_length_of_ones_own(folder: Path) -> None:
    async with await Runtime.load(folder, context_length=20) as loaded:
        result = await loaded.generate([5] * 10, max_tokens=100, ignore_eos=True)
        assert (len(result.token_ids), result.finish_reason) == (10, FinishReason.LENGTH)
    with pytest.raises(ValueError, match=r"context_length must be at most 256, the model's own, got 257"):
        await Runtime.load(folder, context_length=257)


async def test_early_exit_needs_a_layer_to_leave_out(folder: Path) -> None:
    with pytest.raises(ValueError, match="early-exit:2 must name fewer layers than the target's 2; about 1"):
        await Runtime.load(folder, draft="early-exit:2")


def swapped_metadata() -> dict[str, object]:
    metadata = byte_level_metadata()
    tokens = list(metadata["tokenizer.ggml.tokens"])  # type: ignore[call-overload]  # a list, if typed as object
    tokens[90], tokens[91] = tokens[91], tokens[90]
    return {**metadata, "tokenizer.ggml.tokens": tokens}


async def test_drafts_of_other_tokenizers_are_refused(folder: Path, tmp_path: Path) -> None:
    swapped = write_tiny_folder(tmp_path / "swapped")
    save_tokenizer(swapped, swapped_metadata())
    with pytest.raises(PairError, match="id 90 is "):
        await Runtime.load(folder, draft=swapped)
    other_end = write_tiny_folder(tmp_path / "end", eos_token_id=5)
    (other_end / "generation_config.json").write_text(json.dumps({"eos_token_id": 5}))
    with pytest.raises(PairError, match="end-of-sequence ids: 5 "):
        await Runtime.load(folder, draft=other_end)


async def test_a_large_draft_is_warned_of(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="slipstream"):
        async with await Runtime.load(folder, draft=folder):
            pass
    assert "the draft has 100% of the target's parameters" in caplog.text


def truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def break_header(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 8 + path.read_bytes()[8:])


def pickle_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def change_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, "architectures": ["NobodysModelForCausalLM"], "model_type": "nobodys"}
    (folder / "config.json").write_text(json.dumps(changed))


def ship_code(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    changed = {**config, "architectures": ["Mine"], "model_type": "mine", "auto_map": {"AutoConfig": "code.Mine"}}
    (folder / "config.json").write_text(json.dumps(changed))
    (folder / "code.py").write_text("raise SystemExit('code of a checkpoint was run')")


def drop_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()


def drop_config(folder: Path) -> None:
    (folder / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (truncate, "model.safetensors"),
        (break_header, "model.safetensors"),
        (pickle_weights, "safetensors"),
        (change_architecture, "NobodysModelForCausalLM"),
        (ship_code, "Mine"),
        (drop_tokenizer, "tokenizer"),
        (drop_config, "config.json"),
    ],
)
@pytest.mark.parametrize("side", ["target", "draft", "draft beside its target"])
async def test_damaged_checkpoints_are_refused_and_leave_no_thread(
    folder: Path, tmp_path: Path, side: str, damage: object, message: str
) -> None:
    damaged = write_tiny_folder(tmp_path / "damaged")
    damage(damaged)  # type: ignore[operator]  # one of the functions above
    before = {thread.name for thread in threading.enumerate() if thread.name.startswith("slipstream")}
    mode = Mode.PIPELINED if side == "draft beside its target" else Mode.SEQUENTIAL
    with pytest.raises(SlipstreamError, match=message):
        await (Runtime.load(damaged) if side == "target" else Runtime.load(folder, draft=damaged, mode=mode))
    after = {thread.name for thread in threading.enumerate() if thread.name.startswith("slipstream")}
    assert after == before


@pytest.mark.parametrize("source", ["", "no/such/model", "missing.gguf", "/no/such/folder"])
async def test_missing_sources_are_named(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises((CheckpointError, ValueError)) as caught:
        await Runtime.load(source)
    assert source in str(caught.value)


async def test_room_for_the_caches_is_checked_before_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scarce(num_bytes: int) -> None:
        free = AvailableMemory(num_bytes=num_bytes, reason="planted")
        monkeypatch.setattr(runtime.assembly, "available_memory", lambda device: free)

    scarce(1 << 10)
    with pytest.raises(InsufficientMemoryError, match=r"need about .* MiB .*\(planted\); no context length would fit"):
        await Runtime.load(folder)
    scarce(1 << 40)
    async with await Runtime.load(folder) as loaded:
        assert (await loaded.generate("hello", max_tokens=2)).token_ids


async def test_a_cancelled_load_leaves_no_thread(folder: Path, mode: Mode) -> None:
    before = threading.active_count()
    loading = asyncio.create_task(Runtime.load(folder, mode=mode, draft="early-exit:1"))
    await asyncio.sleep(0.01)
    names = {thread.name for thread in threading.enumerate()}
    assert "slipstream-target" in names
    loading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await loading
    names = {thread.name for thread in threading.enumerate()}
    assert names.isdisjoint({"slipstream-target", "slipstream-draft"})
    assert threading.active_count() <= before + 1  # asyncio's own pool keeps the thread that closed it
