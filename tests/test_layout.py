"""The layout that docs/architecture.md promises: floors, file sizes, public names, declared dependencies.

The rule for public names: each package keeps a sorted `__all__` in its `__init__`; whatever another package
imports from it by name must stand in the `__all__` of the package (or of the subpackage) that the module
belongs to. Modules that are run with `python -m` are left out: a package that imported its own programs would make
Python load them twice.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("models", "scheduler", "runtime", "profiling")
MOST_LINES = 500


@dataclass(frozen=True, kw_only=True)
class ImportedName:
    """One thing that a file imports, wherever in the file the statement stands."""

    file: str
    line: int
    module: str
    name: str | None
    """What `from module import name` takes; None for `import module`."""

    @property
    def package(self) -> str:
        return self.module.partition(".")[0]


def package_files() -> list[Path]:
    return sorted(path for package in FLOORS for path in (ROOT / package).rglob("*.py"))


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def absolute_module(node: ast.ImportFrom, path: Path) -> str:
    if node.level == 0:
        return node.module or ""
    folder = path.relative_to(ROOT).parent.parts
    base = folder[: len(folder) - (node.level - 1)]
    return ".".join((*base, *([node.module] if node.module else [])))


def imports_of(path: Path, source: str) -> Iterator[ImportedName]:
    """Every import in `source`, also inside functions, also through `importlib.import_module("...")`."""
    file = str(path.relative_to(ROOT))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names, lineno=line):
                for alias in names:
                    yield ImportedName(file=file, line=line, module=alias.name, name=None)
            case ast.ImportFrom(names=names, lineno=line):
                for alias in names:
                    yield ImportedName(file=file, line=line, module=absolute_module(node, path), name=alias.name)
            case ast.Call(func=function, args=[ast.Constant(value=str(module)), *_], lineno=line):
                if ast.unparse(function) in {"importlib.import_module", "import_module", "__import__"}:
                    yield ImportedName(file=file, line=line, module=module, name=None)


@cache
def all_imports() -> tuple[ImportedName, ...]:
    return tuple(found for path in package_files() for found in imports_of(path, path.read_text()))


def climbs(found: ImportedName) -> bool:
    """Whether the import goes to a higher floor, or out of the packages into the tests."""
    floor = FLOORS.index(Path(found.file).parts[0])
    return found.package == "tests" or (found.package in FLOORS and FLOORS.index(found.package) > floor)


def is_program(module: str) -> bool:
    path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
    return path.is_file() and "__name__ ==" in path.read_text()


def exporting_package(found: ImportedName) -> str | None:
    """The package whose `__all__` must hold the imported name; None where the rule asks for nothing."""
    if found.name is None or found.package not in FLOORS or found.package == Path(found.file).parts[0]:
        return None
    folder = ROOT.joinpath(*found.module.split("."))
    is_module = (folder / found.name).with_suffix(".py").is_file() or (folder / found.name).is_dir()
    if is_module or is_program(found.module):
        return None
    return found.module if folder.is_dir() else found.module.rpartition(".")[0]


def test_packages_import_only_from_lower_floors() -> None:
    assert [found for found in all_imports() if climbs(found)] == []


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("models", "import scheduler.lane"),
        ("scheduler", "def late():\n    from runtime import Runtime"),
        ("runtime", "import importlib\nimportlib.import_module('profiling.bench')"),
        ("models", "from ..profiling import bench"),
        ("profiling", "from tests.support import tables"),
    ],
)
def test_a_climbing_import_is_noticed(package: str, source: str) -> None:
    assert [climbs(found) for found in imports_of(ROOT / package / "example.py", source)][-1]


def test_no_file_is_too_long() -> None:
    files = [*package_files(), *sorted((ROOT / "tests").rglob("*.py"))]
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files}
    assert len(lengths) > len(FLOORS)
    assert {file: length for file, length in lengths.items() if length > MOST_LINES} == {}


def test_no_module_hides_a_standard_profiler() -> None:
    taken = [path.name for path in (ROOT / "profiling").iterdir() if path.stem in {"tracing", "sampling"}]
    assert taken == []


@pytest.mark.parametrize("package", FLOORS)
def test_public_names_are_sorted_and_importable(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == sorted(set(module.__all__))
    assert [name for name in module.__all__ if name.startswith("_") or not hasattr(module, name)] == []


def test_names_used_by_other_packages_are_exported() -> None:
    hidden = [
        f"{found.file}:{found.line} takes {found.name}, which {package}.__all__ lacks"
        for found in all_imports()
        if (package := exporting_package(found)) is not None
        and found.name not in getattr(importlib.import_module(package), "__all__", ())
    ]
    assert hidden == []


def test_every_library_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [entry for group in project["optional-dependencies"].values() for entry in group]
    declared = {
        re.split(r"[^A-Za-z0-9._-]", entry)[0].lower().replace("_", "-") for entry in project["dependencies"] + extras
    }
    # Not part of the environment of tests, so its name cannot be looked up there.
    installed = {"llama_cpp": ["llama-cpp-python"], **packages_distributions()}
    undeclared = {
        (found.file, found.module)
        for found in all_imports()
        if found.package not in {*sys.stdlib_module_names, *FLOORS}
        and not declared & {name.lower().replace("_", "-") for name in installed.get(found.package, [found.package])}
    }
    assert undeclared == set()
