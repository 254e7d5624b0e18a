"""OpenMP is told how long to spin before torch is imported, and the user's own word counts more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.openmp import SPIN_COUNT, SPIN_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


def spin_count_after(imports: str, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in (SPIN_VARIABLE, "OMP_WAIT_POLICY")}
    program = f"import os\n{imports}\nprint(os.environ.get({SPIN_VARIABLE!r}))"
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()


@pytest.mark.parametrize("package", ["models", "scheduler", "runtime"])
def test_importing_a_package_limits_spinning(package: str) -> None:
    assert spin_count_after(f"import {package}") == SPIN_COUNT


def test_the_limit_is_set_before_torch_reads_it() -> None:
    watch = "import builtins\nreal = builtins.__import__\nseen = []\n"
    watch += "def spy(name, *rest):\n"
    watch += f"    if name == 'torch' and not seen: seen.append(os.environ.get({SPIN_VARIABLE!r}))\n"
    watch += "    return real(name, *rest)\n"
    watch += "builtins.__import__ = spy\nimport models\n"
    watch += f"assert seen == [{SPIN_COUNT!r}], seen"
    assert spin_count_after(watch) == SPIN_COUNT


def test_the_users_own_settings_stay() -> None:
    assert spin_count_after("import models", GOMP_SPINCOUNT="5") == "5"
    assert spin_count_after("import models", OMP_WAIT_POLICY="active") == "None"


def test_nothing_is_set_once_torch_is_there() -> None:
    assert spin_count_after("import torch\nimport models") == "None"
