"""Copies of the scheduler's own files with one thing wrong, to see that the fuzz would find it.

Owns how faults are planted: sources are read and changed as syntax trees, so that a wait that is added to the pipeline
tomorrow is left out here the day after, without a line of this file.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from types import ModuleType

import scheduler
from tests.fuzz.case import Case
from tests.fuzz.play import play

_FOLDER = Path(scheduler.__file__).parent
_PATCHED_PACKAGES = ("scheduler", "tests.fuzz")
_NO_PART_OF_A_ROUND = frozenset(("overlap_costs",))
"""Files whose launches are made before there is a request."""

_Place = tuple[list[ast.stmt], int]
"""A statement, as the list that it stands in and its index there."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One file of the scheduler with a fault."""

    name: str
    module: str
    tree: ast.Module


def missing_waits() -> list[Mutant]:
    """One mutant for each `stream.wait(...)` of the scheduler, which leaves it out."""
    return [
        _mutant(path, place, "without", lambda body, index: body.__setitem__(index, ast.Pass()))
        for path, place in _statements(_is_wait)
    ]


def missing_awaits() -> list[Mutant]:
    """One mutant for each event that the host awaits and reads nothing from, which goes on at once."""
    return [
        _mutant(path, place, "without", lambda body, index: body.__setitem__(index, ast.Pass()))
        for path, place in _statements(_is_await)
    ]


def early_launches() -> list[Mutant]:
    """One mutant for each wait, or condition with nothing but a wait, that lets the launch behind it go ahead."""
    return [
        _mutant(path, place, "behind its launch:", _swap_with_launch) for path, place in _statements(_guards_a_launch)
    ]


def rewritten(module: str, old: str, new: str) -> Mutant:
    """A mutant with one expression or statement for another.

    Args:
        module: as in `scheduler.chain`.
        old: source of what is replaced, as `ast.unparse` writes it; must occur once.
        new: source of the replacement.
    """
    path = Path(sys.modules[module].__file__ or "")
    tree = ast.parse(path.read_text())
    replacement = ast.parse(new).body[0]
    found = [node for node in ast.walk(tree) if isinstance(node, ast.stmt | ast.expr) and ast.unparse(node) == old]
    # A statement that is nothing but an expression is found twice.
    found = [node for node in found if not (isinstance(node, ast.Expr) and node.value in found)]
    if len(found) != 1:
        raise LookupError(f"{module} should hold {old!r} once, and holds it {len(found)} times")
    (target,) = found
    if isinstance(target, ast.expr):
        if not isinstance(replacement, ast.Expr):
            raise LookupError(f"{new!r} is no expression")
        replacement = replacement.value
    _Replacing(target, replacement).visit(tree)
    return Mutant(name=f"{module}: {new!r} for {old!r}", module=module, tree=ast.fix_missing_locations(tree))


@contextmanager
def installed(mutant: Mutant) -> Iterator[None]:
    """Within, whatever the scheduler and the fuzz take from that file comes from the mutant."""
    original = sys.modules[mutant.module]
    copied = ModuleType(mutant.module)
    copied.__file__ = original.__file__
    exec(compile(mutant.tree, f"<{mutant.name}>", "exec"), copied.__dict__)
    undo: list[tuple[ModuleType, str, object]] = []
    try:
        for name, value in list(vars(original).items()):
            if getattr(value, "__module__", None) != mutant.module:
                continue
            for module in list(sys.modules.values()):
                if module.__name__.startswith(_PATCHED_PACKAGES) and vars(module).get(name) is value:
                    undo.append((module, name, value))
                    setattr(module, name, vars(copied)[name])
        yield
    finally:
        for module, name, value in undo:
            setattr(module, name, value)


def first_failure(mutant: Mutant, cases: Iterator[Case], num_cases: int) -> Exception | None:
    """What the fuzz finds wrong with a mutant, at the first of `num_cases` cases in which it finds anything."""
    with installed(mutant):
        for case in islice(cases, num_cases):
            try:
                play(case)
            except Exception as failure:  # whatever it is, somebody would hear of it
                return failure
    return None


class _Replacing(ast.NodeTransformer):
    def __init__(self, target: ast.AST, replacement: ast.AST) -> None:
        self._target, self._replacement = target, replacement

    def visit(self, node: ast.AST) -> ast.AST:
        return self._replacement if node is self._target else self.generic_visit(node)


def _is_wait(node: ast.stmt, _: ast.stmt | None) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr == "wait"
    )


def _is_await(node: ast.stmt, _: ast.stmt | None) -> bool:
    is_await = isinstance(node, ast.Expr) and isinstance(node.value, ast.Await)
    # Giving other tasks a turn orders nothing.
    return is_await and "asyncio.sleep" not in ast.unparse(node)


def _guards_a_launch(node: ast.stmt, following: ast.stmt | None) -> bool:
    is_guard = _is_wait(node, None) or (isinstance(node, ast.If) and all(_is_wait(inner, None) for inner in node.body))
    return is_guard and following is not None and ".launch(" in ast.unparse(following)


def _swap_with_launch(body: list[ast.stmt], index: int) -> None:
    body[index], body[index + 1] = body[index + 1], body[index]


def _statements(wanted: Callable[[ast.stmt, ast.stmt | None], bool]) -> Iterator[tuple[Path, int]]:
    """Files that the pipeline is made of, and places of statements in them; streams are the device's affair."""
    for path in sorted(path for path in _FOLDER.glob("*.py") if path.stem not in _NO_PART_OF_A_ROUND):
        for place, (body, index) in enumerate(_places_of(path)):
            if wanted(body[index], body[index + 1] if index + 1 < len(body) else None):
                yield path, place


@cache
def _places_of(path: Path) -> tuple[_Place, ...]:
    """Those of a tree that is only looked at."""
    return tuple(_places(ast.parse(path.read_text())))


def _places(tree: ast.AST) -> Iterator[_Place]:
    """Every statement of a tree, as its list and its index in it; the same order for the same source."""
    for node in ast.walk(tree):
        for field in ("body", "orelse", "finalbody"):
            statements = getattr(node, field, None)
            if isinstance(statements, list):
                for index in range(len(statements)):
                    yield statements, index


def _mutant(path: Path, place: int, change: str, apply: Callable[[list[ast.stmt], int], None]) -> Mutant:
    tree = ast.parse(path.read_text())
    body, index = next(islice(_places(tree), place, None))
    node = body[index]
    name = f"scheduler/{path.name}:{node.lineno} {change} {ast.unparse(node).splitlines()[-1].strip()}"
    apply(body, index)
    return Mutant(name=name, module=f"scheduler.{path.stem}", tree=ast.fix_missing_locations(tree))
