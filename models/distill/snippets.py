"""Pieces of text that exist: what a summary is asked of, and what a base model goes on from.

Owns the reading of text files and of the Python standard library, which every machine that runs this has. Knows
nothing of tokens or models.
"""

from __future__ import annotations

import ast
import hashlib
import json
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

MOST_CHARACTERS = 600
FEWEST_CHARACTERS = 120
_MODULES = 400
_LARGEST_SOURCE_BYTES = 200_000


@dataclass(frozen=True, kw_only=True)
class Snippets:
    """Prose and unfinished functions, each of at most `MOST_CHARACTERS`."""

    prose: tuple[str, ...]
    functions: tuple[str, ...]
    """Signatures, most with a docstring, without a body."""

    @property
    def digest(self) -> str:
        """BLAKE2b of all of them in their order, hexadecimal."""
        content = json.dumps([self.prose, self.functions]).encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()


def standard_library_snippets() -> Snippets:
    """Docstrings and function heads of Python's own modules, in an order that depends on their names only."""
    prose: list[str] = []
    functions: list[str] = []
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [path for path in sorted(folder.rglob("*.py")) if not {"test", "tests", "site-packages"} & set(path.parts)]
    for path in paths[:_MODULES]:
        for node in _nodes(path):
            docstring = ast.get_docstring(node)
            if docstring:
                prose.extend(paragraphs(docstring))
            if isinstance(node, ast.FunctionDef) and docstring and not node.name.startswith("_"):
                functions.append(_head(node, docstring))
    return Snippets(prose=_distinct(prose), functions=_distinct(functions))


def file_snippets(paths: Sequence[Path]) -> Snippets:
    """Paragraphs of text files.

    Raises:
        ValueError: if a file cannot be read, is not UTF-8 text or holds no paragraph; names it.
    """
    prose: list[str] = []
    for path in paths:
        found = list(paragraphs(read_text_file(path)))
        if not found:
            raise ValueError(f"text file {path} holds no paragraph of at least {FEWEST_CHARACTERS} characters")
        prose.extend(found)
    return Snippets(prose=_distinct(prose), functions=())


def read_text_file(path: Path) -> str:
    """A UTF-8 file.

    Raises:
        ValueError: if it cannot be read or is none; names it.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"text file {path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"text file {path} is not UTF-8: {error.reason} at byte {error.start}") from error


def paragraphs(text: str) -> Iterator[str]:
    """Runs of paragraphs, joined until they are long enough and cut where they are too long."""
    gathered = ""
    for paragraph in text.replace("\r\n", "\n").split("\n\n"):
        gathered = f"{gathered}\n\n{paragraph.strip()}".strip()
        if len(gathered) >= FEWEST_CHARACTERS:
            for start in range(0, len(gathered), MOST_CHARACTERS):
                piece = gathered[start : start + MOST_CHARACTERS]
                if len(piece) >= FEWEST_CHARACTERS:
                    yield piece
            gathered = ""


def _nodes(path: Path) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef]:
    try:
        if path.stat().st_size > _LARGEST_SOURCE_BYTES:
            return
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        # Some distributions ship sources for other versions, or none: there are enough others.
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield node


def _head(node: ast.FunctionDef, docstring: str) -> str:
    summary = docstring.strip().split("\n\n")[0][:300]
    indented = summary.replace("\n", "\n    ")
    return f'def {node.name}({ast.unparse(node.args)}):\n    """{indented}"""'[:MOST_CHARACTERS]


def _distinct(texts: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))
