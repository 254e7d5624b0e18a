"""The packages as Python finds and loads them: from the project's folder, beside the standard library."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "scheduler", "runtime", "profiling")


def run_python(code: str, *arguments: str | Path) -> str:
    """Run `code` in a fresh interpreter started in the project's folder; its output, or a failed test."""
    finished = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_standard_profilers_and_torch_import_beside_our_packages() -> None:
    code = (
        "import cProfile, profile, torch._dynamo\n"
        "import models, scheduler, runtime, profiling\n"
        "for package in (models, scheduler, runtime, profiling): print(package.__file__)\n"
        "cProfile.Profile().runcall(sum, [1])\n"
    )
    assert run_python(code).split() == [str(ROOT / name / "__init__.py") for name in PACKAGES]


def test_standard_profiling_package_of_python_3_15_stays_reachable(tmp_path: Path) -> None:
    for file, text in {
        "profiling/__init__.py": "raise ImportError('the standard package itself must not be loaded')",
        "profiling/tracing/__init__.py": "from profiling.tracing.utils import answer",
        "profiling/tracing/utils.py": "answer = 42",
        "profiling/sampling/__init__.py": "",
        "cProfile.py": "from profiling.tracing import answer",
    }.items():
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    code = (
        "import sys, sysconfig\n"
        "stdlib = sys.argv[1]\n"
        "real_path = sysconfig.get_path\n"
        "sysconfig.get_path = lambda name, *rest: stdlib if name == 'stdlib' else real_path(name, *rest)\n"
        "sys.path.insert(1, stdlib)\n"
        "import cProfile, profiling, profiling.sampling\n"
        "print(cProfile.answer, profiling.__file__)\n"
        "print(profiling.tracing.__file__)\n"
    )
    answer, ours, theirs = run_python(code, tmp_path).split()
    assert answer == "42"
    assert ours == str(ROOT / "profiling" / "__init__.py")
    assert theirs == str(tmp_path / "profiling" / "tracing" / "__init__.py")


def test_importing_the_packages_leaves_slow_libraries_alone() -> None:
    code = (
        "import sys\n"
        "import models, scheduler, runtime, profiling\n"
        "print(*sorted({'transformers', 'gguf', 'huggingface_hub', 'matplotlib', 'accelerate'} & sys.modules.keys()))\n"
    )
    assert run_python(code).split() == []


def test_a_program_is_not_imported_by_its_package() -> None:
    """`python -m` would run such a module a second time, and says so in a warning."""
    programs = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "__name__ ==" in path.read_text()
    ]
    assert "models.demo" in programs
    # One process for all: what lower floors load cannot be a program of a higher one, so they come first.
    programs.sort(key=lambda program: (PACKAGES.index(program.partition(".")[0]), program.count(".")))
    code = (
        "import sys, importlib\n"
        "for program in sys.argv[1:]:\n"
        "    importlib.import_module(program.rpartition('.')[0])\n"
        "    if program in sys.modules: print(program)\n"
    )
    assert run_python(code, *programs).split() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_is_marked_as_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()
