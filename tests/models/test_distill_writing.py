"""A folder of text: whole shards or none, the same ones whoever writes them, and only of one kind of settings."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from models.distill import shard as shard_module
from models.distill.reading import FIRST_SHARD, read_text
from models.distill.settings import WritingSettings
from models.distill.shard import read_shard, shard_path, shard_paths
from models.distill.snippets import Snippets
from models.distill.text_kind import TextKind
from models.distill.writing import RECORD_FILE, TIME_FILE, WritingProgress, write_text, written_s
from models.errors import CheckpointError
from tests.support.tiny_checkpoint import write_tiny_folder
from tests.support.toy_distillation import CPU, text_file

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"), hidden_size=32, intermediate_size=48)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> WritingSettings:
    """Three waves of a few short sequences."""
    return WritingSettings(
        num_tokens=3 * 4 * 20 - 10,
        sequence_length=20,
        sequences_per_wave=4,
        temperatures=(1.0, 0.5),
        text_files=(text_file(tmp_path_factory.mktemp("text")),),
    )


@pytest.fixture(scope="module")
def whole(target: Path, settings: WritingSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The text as one uninterrupted call in this process leaves it."""
    folder = tmp_path_factory.mktemp("whole")
    write(folder, target, settings)
    return folder


def write(
    folder: Path,
    target: Path,
    settings: WritingSettings,
    *,
    num_workers: int = 1,
    report: Callable[[WritingProgress], None] = lambda _: None,
) -> None:
    write_text(folder, target, settings, device=CPU, dtype=torch.float32, num_workers=num_workers, report=report)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in shard_paths(folder)}


def test_a_full_disk_keeps_what_was_written_and_no_half_file(
    target: Path, settings: WritingSettings, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = shard_module.save_file, []

    def full_at_the_second(tensors: dict[str, torch.Tensor], path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            path.write_bytes(b"the first half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(shard_module, "save_file", full_at_the_second)
        with pytest.raises(CheckpointError, match=r"text-00001.*No space left.*earlier text is kept.*same command"):
            write(tmp_path, target, settings)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text-00000.safetensors", "text.json", "time.json"]
    write(tmp_path, target, settings)
    assert contents(tmp_path) == contents(whole)


def test_missing_waves_alone_are_written_again(
    target: Path, settings: WritingSettings, whole: Path, tmp_path: Path
) -> None:
    write(tmp_path, target, settings)
    shard_path(tmp_path, 1).unlink()
    kept = shard_path(tmp_path, 2).stat().st_mtime_ns
    told: list[WritingProgress] = []
    write(tmp_path, target, settings, report=told.append)
    assert contents(tmp_path) == contents(whole)
    assert shard_path(tmp_path, 2).stat().st_mtime_ns == kept
    assert (told[0].num_done, told[0].num_kept, told[0].tokens_per_s) == (160, 160, None)
    assert (told[-1].num_done, told[-1].num_kept, told[-1].num_wanted) == (240, 240, 240)
    assert [progress.num_done for progress in told] == sorted(progress.num_done for progress in told)
    assert all(progress.tokens_per_s for progress in told[1:])


def test_more_text_of_the_same_is_added(target: Path, settings: WritingSettings, whole: Path, tmp_path: Path) -> None:
    write(tmp_path, target, dataclasses.replace(settings, num_tokens=80))
    assert contents(tmp_path).keys() == {"text-00000.safetensors"}
    write(tmp_path, target, settings)
    assert contents(tmp_path) == contents(whole)


def test_the_time_of_writing_is_added_up_over_calls(
    target: Path, settings: WritingSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks = itertools.count()
    # Each look at the clock takes a second.
    clock = SimpleNamespace(monotonic=lambda: float(next(ticks)), time=time.time)
    monkeypatch.setattr("models.distill.writing.time", clock)
    write(tmp_path, target, dataclasses.replace(settings, num_tokens=80))
    first = json.loads((tmp_path / TIME_FILE).read_text())
    assert first["num_waves"] == 1
    assert first["seconds"] >= 20
    write(tmp_path, target, settings)
    second = json.loads((tmp_path / TIME_FILE).read_text())
    assert second["num_waves"] == 3
    assert second["seconds"] == pytest.approx(3 * first["seconds"], rel=0.1)
    assert written_s(tmp_path, 3) == second["seconds"]
    assert written_s(tmp_path, 1) == pytest.approx(second["seconds"] / 3)
    # Of text that was written before there was a record, it stays unknown.
    (tmp_path / TIME_FILE).unlink()
    shard_path(tmp_path, 1).unlink()
    write(tmp_path, target, settings)
    assert not (tmp_path / TIME_FILE).exists()
    assert written_s(tmp_path, 3) is None
    (tmp_path / TIME_FILE).write_text('{"num_waves": 0, "seconds": 3}')
    assert written_s(tmp_path, 3) is None


def test_processes_write_the_same_bits(target: Path, settings: WritingSettings, whole: Path, tmp_path: Path) -> None:
    told: list[WritingProgress] = []
    write(tmp_path, target, settings, num_workers=2, report=told.append)
    assert contents(tmp_path) == contents(whole)
    assert told[-1].num_done == told[-1].num_kept == 240


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperatures", (1.0,)), ("seed", 1), ("kinds", (TextKind.TEXT,)), ("sequence_length", 21)],
)
def test_text_of_other_settings_is_refused_by_name(
    name: str, value: Any, target: Path, settings: WritingSettings, whole: Path
) -> None:
    before = contents(whole)
    with pytest.raises(ValueError, match=rf"text written with {name} .*use another folder, or the same settings"):
        write(whole, target, dataclasses.replace(settings, **{name: value}))
    assert contents(whole) == before


def test_text_with_other_snippets_is_refused(target: Path, settings: WritingSettings, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_bytes(settings.text_files[0].read_bytes())
    own, folder = dataclasses.replace(settings, num_tokens=1, text_files=(file,)), tmp_path / "folder"
    write(folder, target, own)
    write(folder, target, own)
    file.write_text("a bell in the tree " * 30)
    with pytest.raises(ValueError, match=r"written with snippets_blake2b .*--text files .*or the same files"):
        write(folder, target, own)
    # A record that does not say what was quoted is taken as it is.
    record = json.loads((folder / RECORD_FILE).read_text())
    del record["snippets_blake2b"]
    (folder / RECORD_FILE).write_text(json.dumps(record))
    write(folder, target, own)


def test_the_digest_of_snippets_tells_their_order_and_kind() -> None:
    digests = {
        Snippets(prose=prose, functions=functions).digest
        for prose, functions in ((("a", "b"), ()), (("b", "a"), ()), (("ab",), ()), ((), ("a", "b")))
    }
    assert len(digests) == 4
    assert Snippets(prose=("a", "b"), functions=()).digest in digests


def test_text_of_another_target_is_refused(whole: Path, settings: WritingSettings, tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path, seed=8, hidden_size=32, intermediate_size=48)
    with pytest.raises(ValueError, match="fingerprint"):
        write(whole, other, settings)


def test_text_that_exists_becomes_sequences(target: Path, whole: Path, tmp_path: Path) -> None:
    files = [tmp_path / "a.txt", tmp_path / "b.txt"]
    files[0].write_text("abcdefgh" * 20)
    files[1].write_text("hello the hell " * 100)
    told: list[tuple[int, int]] = []

    def read(files: list[Path], *, sequence_length: int = 20) -> None:
        read_text(
            tmp_path,
            target,
            files,
            sequence_length=sequence_length,
            device=CPU,
            dtype=torch.float32,
            report=lambda done, wanted: told.append((done, wanted)),
        )

    read(files)
    assert [path.name for path in shard_paths(tmp_path)] == [f"text-{FIRST_SHARD:05d}.safetensors"]
    shard = read_shard(shard_paths(tmp_path)[0])
    assert set(shard.kinds) == {TextKind.TEXT}
    assert told[-1] == (len(shard) * 20, len(shard) * 20)
    # Eight of the first file, and what the second one's tokens fill.
    assert torch.equal(shard.token_ids_NT[0, :12], shard.token_ids_NT[0, 8:20])
    assert len(shard) > 16
    before = contents(tmp_path)
    shard_paths(tmp_path)[0].unlink()
    read(files)
    assert contents(tmp_path) == before
    with pytest.raises(ValueError, match=r"other files.*use another folder"):
        read(files[:1])
    with pytest.raises(ValueError, match="no text file has 5000 tokens"):
        read(files, sequence_length=5000)
    files[0].unlink()
    with pytest.raises(ValueError, match=r"a\.txt cannot be read"):
        read(files)
