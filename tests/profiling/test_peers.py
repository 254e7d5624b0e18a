"""Peers in processes of their own, with made-up libraries: what they are asked, and every way they are lost."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from models import openmp
from profiling.peers.peer import PeerMode, PeerName, PeerRefusal, PeerSettings, TokenClock, need_gguf
from profiling.peers.plans import MEASURED_PEERS, plan_peers, stored_weights
from profiling.peers.process import (
    PeerDiedError,
    PeerLostError,
    PeerMissingError,
    PeerProcess,
    PeerRefusedError,
    ProcessAnswer,
)
from tests.support.fake_peers import install_fake_peers
from tests.support.tiny_checkpoint import write_tiny_folder, write_tiny_gguf

PROMPT = [5, 6, 7]
FAKED = (PeerName.LLAMA_CPP, PeerName.OPENVINO)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("peers") / "tiny.gguf")


def settings(target: Path, peer: PeerName = PeerName.LLAMA_CPP, mode: PeerMode = PeerMode.PLAIN) -> PeerSettings:
    return PeerSettings(peer=peer, mode=mode, target=str(target), threads=1, context_length=40)


async def ask(asked: PeerSettings, *, times: int = 1, patience_s: float = 30.0) -> tuple[str, list[ProcessAnswer]]:
    process = await PeerProcess.start(asked, patience_s=patience_s)
    try:
        answers = [await process.answer(PROMPT, 8, patience_s=patience_s) for _ in range(times)]
        return f"{process.version}: {process.settled}", answers
    finally:
        await process.close()


def test_every_system_of_the_faked_peers_answers(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the tokens of its own model, whatever it prints; a draft that a peer needs is made for it."""
    install_fake_peers(tmp_path, monkeypatch)
    plans = plan_peers(FAKED, target=str(target), threads=1, context_length=40, draft=None, num_draft_layers=1)
    assert [plan.label.name for plan in plans] == [
        "llama.cpp F32, plain",
        "llama.cpp F32, prompt lookup 10",
        "llama.cpp F32, prompt lookup 2",
        "openvino F32, plain",
        "openvino F32, assisted by its first 1 layer",
        "openvino F32, prompt lookup 10",
        "openvino F32, prompt lookup 5",
    ]

    async def ask_all() -> list[tuple[str, list[ProcessAnswer]]]:
        return list(await asyncio.gather(*(ask(plan.settings) for plan in plans)))

    told = asyncio.run(ask_all())
    for plan, (settled, (answer,)) in zip(plans, told, strict=True):
        assert answer.token_ids == tuple(range(8, 16))
        assert answer.ttft_ms > 0
        assert answer.tpot_ms > 0
        assert answer.peak_memory_bytes is None or answer.peak_memory_bytes > 1e6
        assert settled.startswith("9.1: " if plan.settings.peer is PeerName.LLAMA_CPP else "9.2: ")
        if plan.settings.mode is PeerMode.PROMPT_LOOKUP:
            assert f"{plan.settings.lookup_tokens} tokens looked up" in settled


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("load", "RuntimeError: the file is of another kind"),
        ("die:2", "its process ended with exit status 3: out of luck"),
        ("hang", "gave no answer within 1 s"),
    ],
)
def test_a_peer_is_lost_with_its_reason(
    fault: str, said: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault=fault)

    async def until_lost() -> None:
        process = await PeerProcess.start(settings(target, PeerName.OPENVINO))
        try:
            await process.answer(PROMPT, 8, patience_s=1.0 if fault == "hang" else 30.0)
            await process.answer(PROMPT, 8)
        finally:
            await process.close()

    with pytest.raises(PeerLostError) as lost:
        asyncio.run(until_lost())
    assert str(lost.value) == said
    assert not isinstance(lost.value, PeerMissingError)


@pytest.mark.parametrize(("peer", "package"), [(FAKED[0], "llama_cpp"), (FAKED[1], "openvino_genai")])
def test_a_peer_that_is_not_installed_is_told_from_one_that_fails(
    peer: PeerName, package: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, missing=(package,))
    with pytest.raises(PeerMissingError, match=package):
        asyncio.run(ask(settings(target, peer)))


@pytest.mark.parametrize("error", ["ImportError('libcudart is missing')", "ModuleNotFoundError(name='diskcache')"])
def test_a_peer_whose_own_parts_are_missing_has_failed(
    error: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch)
    (tmp_path / "llama_cpp/__init__.py").write_text(f"raise {error}\n")
    with pytest.raises(PeerLostError, match=r"ImportError: libcudart|ModuleNotFoundError") as lost:
        asyncio.run(ask(settings(target)))
    assert not isinstance(lost.value, PeerMissingError)


@pytest.mark.parametrize("users_own", [None, "5"])
def test_peers_run_without_what_we_settle_for_our_own_threads(
    users_own: str | None, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is there, as after an import of this project, and was not given from outside."""
    install_fake_peers(tmp_path, monkeypatch)
    monkeypatch.setattr(openmp, "_WAS_GIVEN", users_own is not None)
    monkeypatch.setenv(openmp.SPIN_VARIABLE, users_own or openmp.SPIN_COUNT)
    fake = tmp_path / "llama_cpp/__init__.py"
    fake.write_text(f"import os\nraise RuntimeError(os.environ.get({openmp.SPIN_VARIABLE!r}))\n")
    with pytest.raises(PeerLostError, match=f"RuntimeError: {users_own}$"):
        asyncio.run(ask(settings(target)))


def test_a_second_interrupt_ends_a_process_that_hangs(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault="hang")

    async def interrupted() -> int:
        process = await PeerProcess.start(settings(target))
        asking = asyncio.create_task(process.answer(PROMPT, 8))
        await asyncio.sleep(0.2)
        asking.cancel()
        closing = asyncio.create_task(process.close())
        await asyncio.sleep(0.1)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        return await process._process.wait()

    assert asyncio.run(interrupted()) == -signal.SIGKILL


def test_speculation_that_writes_other_tokens_is_not_hidden(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault="other")
    plain, speculative = settings(target), settings(target, mode=PeerMode.PROMPT_LOOKUP)
    assert asyncio.run(ask(plain))[1][0].token_ids == tuple(range(8, 16))
    assert asyncio.run(ask(speculative))[1][0].token_ids == tuple(range(9, 25, 2))


@pytest.mark.parametrize("fault", ["", "spin"])
def test_a_process_that_does_not_rest_is_noticed(
    fault: str, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault=fault)

    async def with_a_pause() -> float | None:
        process = await PeerProcess.start(settings(target))
        try:
            await process.answer(PROMPT, 8)
            await asyncio.sleep(0.3)
            return (await process.answer(PROMPT, 8)).idle_cpu_share
        finally:
            await process.close()

    share = asyncio.run(with_a_pause())
    assert share is not None
    assert (share > 0.05) == (fault == "spin")


def test_a_target_of_another_format_is_refused_by_those_who_read_one_file(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch)
    folder = write_tiny_folder(tmp_path / "folder")
    assert stored_weights(str(folder)) == "GGUF"
    for peer in FAKED:
        with pytest.raises(PeerLostError, match=r"reads GGUF files, and .*folder is none; (convert|export) it"):
            asyncio.run(ask(settings(folder, peer)))
    assert need_gguf(settings(target), "it", "") == str(target)


def test_a_worker_brings_no_torch_of_its_own() -> None:
    """It would be counted as memory of peers that do without."""
    code = "import sys, profiling.peers.worker; print('torch' in sys.modules, 'numpy' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["False", "False"]


def test_settings_survive_their_way_through_json(target: Path) -> None:
    sent = replace(settings(target, PeerName.SLIPSTREAM), draft_sources=("ngram", "auto"), weights="int8")
    assert PeerSettings.from_json(json.loads(json.dumps(asdict(sent)))) == sent


def test_lookup_tokens_are_the_documented_ones_or_those_asked_for() -> None:
    def lengths(*asked: int) -> dict[PeerName, list[int]]:
        plans = plan_peers(
            MEASURED_PEERS,
            target="somewhere",
            threads=1,
            context_length=40,
            draft=None,
            num_draft_layers=1,
            lookup_tokens=asked,
        )
        return {
            peer: [
                plan.settings.lookup_tokens
                for plan in plans
                if plan.settings.peer is peer and plan.settings.mode is PeerMode.PROMPT_LOOKUP
            ]
            for peer in MEASURED_PEERS
        }

    assert lengths() == {PeerName.TRANSFORMERS: [10], PeerName.LLAMA_CPP: [10, 2], PeerName.OPENVINO: [10, 5]}
    assert lengths(4, 6) == {peer: [4, 6] for peer in MEASURED_PEERS}


def test_tokens_of_the_first_step_are_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = iter([10.0, 11.0, 13.0, 17.0])
    monkeypatch.setattr("profiling.peers.peer.time.perf_counter", lambda: next(now_s))
    clock = TokenClock()
    for tokens in ([1, 2], [], [3], [4, 5]):
        clock.take(tokens)
    answer = clock.answer(5)
    assert (answer.token_ids, answer.ttft_ms, answer.tpot_ms) == ((1, 2, 3, 4, 5), 1000, 2000)
    with pytest.raises(PeerRefusal, match="wrote 5 tokens where 6"):
        clock.answer(6)


def test_an_output_that_came_at_once_has_no_time() -> None:
    """As a draft that is always right has it write; the tokens are there all the same."""
    clock = TokenClock()
    clock.take([1, 2])
    assert (clock.answer(2).token_ids, clock.answer(2).tpot_ms) == ((1, 2), None)


def test_one_prompt_without_an_answer_loses_no_peer(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault="short:1")

    async def refused_then_answered() -> tuple[int, ...]:
        process = await PeerProcess.start(settings(target, PeerName.OPENVINO))
        try:
            with pytest.raises(PeerRefusedError, match="wrote 7 tokens where 8 were asked for"):
                await process.answer(PROMPT, 8)
            return (await process.answer(PROMPT, 8)).token_ids
        finally:
            await process.close()

    assert asyncio.run(refused_then_answered()) == tuple(range(8, 16))


def test_one_that_dies_of_repacked_weights_is_given_them_as_they_are(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_fake_peers(tmp_path, monkeypatch, fault="repack")
    (plan, *_) = plan_peers(FAKED, target=str(target), threads=1, context_length=40, draft=None, num_draft_layers=1)

    async def started(second_try: PeerSettings | None) -> tuple[str, str]:
        process, died_of = await PeerProcess.start_tried(plan.settings, second_try, PROMPT)
        await process.close()
        return process.settled, died_of

    settled, died_of = asyncio.run(started(plan.second_try))
    assert settled.endswith("weights not repacked")
    assert plan.unrepacked_label.name == "llama.cpp F32 not repacked, plain"
    assert died_of == "its process ended with signal 4"
    with pytest.raises(PeerDiedError):
        asyncio.run(started(None))
    monkeypatch.setenv("FAKE_PEER_FAULT", "die:1")
    with pytest.raises(PeerDiedError, match="exit status 3"):
        asyncio.run(started(plan.second_try))


def test_no_process_stays_behind(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_peers(tmp_path, monkeypatch)

    async def number() -> int:
        process = await PeerProcess.start(settings(target))
        await process.close()
        await process.close()
        return process.number

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(number()), 0)
