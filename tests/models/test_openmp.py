"""OpenMP is told how long to spin before torch is imported, and the user's own word counts more."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from models.openmp import SPIN_COUNT, SPIN_VARIABLE

ROOT = Path(__file__).resolve().parents[2]


_UP_TO_TORCH = f"""
import builtins
real_import = builtins.__import__
def up_to_torch(name, *rest):
    if name.partition('.')[0] == 'torch':
        print(os.environ.get({SPIN_VARIABLE!r}), flush=True)
        os._exit(0)
    return real_import(name, *rest)
builtins.__import__ = up_to_torch
"""
"""Tells what OpenMP will read, the value at the moment of the first import of torch, and goes no further."""


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


@pytest.mark.parametrize(
    "imports",
    [
        "import models",
        "import scheduler",
        "from runtime import Runtime",
        "from runtime import GenerationOptions",
        "import runtime.cli",
        "import profiling.bench",
    ],
)
def test_importing_a_package_limits_spinning(imports: str) -> None:
    assert spin_count_after(_UP_TO_TORCH + imports) == SPIN_COUNT


def test_the_users_own_settings_stay() -> None:
    assert spin_count_after(_UP_TO_TORCH + "import models", GOMP_SPINCOUNT="5") == "5"
    assert spin_count_after(_UP_TO_TORCH + "import models", OMP_WAIT_POLICY="active") == "None"


def test_nothing_is_set_once_torch_is_there() -> None:
    assert spin_count_after("import torch\nimport models") == "None"
