"""How measuring programs end: their exit status, and one line instead of a traceback."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models import CheckpointError
from profiling import simulate
from profiling.program import run_program


def raising(error: BaseException) -> Callable[[], int]:
    def main() -> int:
        raise error

    return main


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        (lambda: 0, 0, ""),
        (lambda: 3, 3, ""),
        (raising(KeyboardInterrupt()), 130, "interrupted\n"),
        (raising(CheckpointError("no such\n  model")), 1, "error: no such model\n"),
    ],
)
def test_the_end_of_a_program(
    main: Callable[[], int], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        run_program(main)
    assert caught.value.code == status
    assert capsys.readouterr().err == said


def test_a_bug_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        run_program(raising(ZeroDivisionError()))


def test_a_folder_that_cannot_be_made_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulate, "run_grid", raising(AssertionError("the work has begun")))
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit) as caught:
        simulate.main(["--quick", "--out-dir", str(tmp_path / "file" / "folder")])
    assert caught.value.code == 2
    assert "cannot be made" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error(tmp_path: Path) -> None:
    program = tmp_path / "talks.py"
    program.write_text(
        "from profiling.program import run_program\n\ndef main():\n    for _ in range(100_000):\n"
        "        print('x' * 100)\n    return 0\n\nrun_program(main)\n"
    )
    line = f"{shlex.quote(sys.executable)} {shlex.quote(str(program))} | head -1; echo status ${{PIPESTATUS[0]}}"
    ended = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()}, check=False
    )
    assert ended.stdout.splitlines() == ["x" * 100, "status 141"]
    assert ended.stderr == ""
