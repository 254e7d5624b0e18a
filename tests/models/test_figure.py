"""Figures are of the size that was asked for, leave no trace in the process, and say what they need."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from models.errors import MissingDependencyError
from models.figure import DOTS_PER_INCH, new_figure

ROOT = Path(__file__).parents[2]


def test_a_figure_is_saved_in_the_size_that_was_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "figure.png"
    new_figure(width_inches=3, height_inches=2).savefig(path)
    picture = path.read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert struct.unpack(">II", picture[16:24]) == (3 * DOTS_PER_INCH, 2 * DOTS_PER_INCH)


def test_no_screen_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code = (
        "import sys\n"
        "from models import new_figure\n"
        "new_figure().savefig(sys.argv[1])\n"
        "print('matplotlib.pyplot' in sys.modules, 'matplotlib.backends.backend_agg' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "figure.png")],
        cwd=ROOT,
        env={**os.environ, "MPLBACKEND": "tkagg"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.split() == ["False", "True"]


def test_a_missing_matplotlib_is_told_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingDependencyError, match=r"^plots need matplotlib; .* pip install 'slipstream\[plot\]'$"):
        new_figure()
