"""JSON objects out of small files nobody has checked.

Owns `parse_json_object` and `read_json_object`. Knows nothing of what the objects mean.
"""

from __future__ import annotations

import json
from pathlib import Path

from models.errors import CheckpointError

MAX_JSON_BYTES = 16 << 20
"""Largest file read; the index of a model with thousands of tensors is about 1 MiB."""


def parse_json_object(text: bytes, origin: str) -> dict[str, object]:
    """The JSON object that `text`, UTF-8, spells.

    Raises:
        CheckpointError: if it is not UTF-8, not JSON, not an object, nested too deeply, or an
            object in it names a key twice.
    """
    try:
        value = json.loads(text.decode("utf-8"), object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{origin} is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{origin} must hold a JSON object, not a {type(value).__name__}")
    return value


def read_json_object(path: Path) -> dict[str, object]:
    """The JSON object in a file of at most `MAX_JSON_BYTES`.

    Raises:
        CheckpointError: if the file cannot be read, is too large, or `parse_json_object` refuses it.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_JSON_BYTES + 1)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    if len(text) > MAX_JSON_BYTES:
        raise CheckpointError(f"{path} is larger than {MAX_JSON_BYTES} bytes, which no configuration is")
    return parse_json_object(text, str(path))


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"the key {key[:100]!r} appears twice")
            seen.add(key)
    return members
