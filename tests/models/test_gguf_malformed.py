"""Malformed GGUF files: our errors, quickly and in little memory, and never anything else."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from pathlib import Path

import pytest

from models.checkpoint import open_checkpoint
from models.errors import CheckpointError, UnsupportedModelError
from models.gguf_file import GgufFile
from models.gguf_values import MAX_ARRAY_ELEMENTS
from tests.support.checkpoint_files import tiny_model, write_gguf

U8, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 5, 6, 7, 8, 9, 10
LARGE_SIZES = [1 << 20, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
MOST_MEMORY_BYTES = 64 << 20


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, type_code: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", type_code) + value


def array(type_code: int, count: int, values: bytes) -> bytes:
    return struct.pack("<IQ", type_code, count) + values


def tensor(name: bytes, shape: tuple[int, ...], type_code: int = 0, offset: int = 0) -> bytes:
    head = text(name) + struct.pack("<I", len(shape))
    return head + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", type_code, offset)


def header(
    *, magic: bytes = b"GGUF", version: int = 3, tensors: int | None = None, keys: int | None = None, parts: bytes = b""
) -> bytes:
    return magic + struct.pack("<IQQ", version, tensors or 0, keys or 0) + parts


def with_key(type_code: int, value: bytes) -> bytes:
    return header(keys=1, parts=key(b"a", type_code, value))


def with_tensors(*tensors: bytes, data: bytes = bytes(4096)) -> bytes:
    return header(tensors=len(tensors), parts=b"".join(tensors)) + data


def refuse(path: Path, content: bytes, message: str | None = None, error: type[Exception] = CheckpointError) -> None:
    path.write_bytes(content)
    with pytest.raises(error, match=message):
        GgufFile(path)


def nested(depth: int) -> bytes:
    value = array(U8, 1, b"\7")
    for _ in range(depth - 1):
        value = array(ARRAY, 1, value)
    return value


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.gguf"


@pytest.fixture(scope="module")
def good_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    metadata = {
        "tokenizer.ggml.tokens": [f"token {index}" for index in range(48)],
        "tokenizer.ggml.scores": [0.5] * 48,
        "general.name": "Tiny",
        "tokenizer.ggml.add_bos_token": True,
    }
    return write_gguf(tmp_path_factory.mktemp("good") / "tiny.gguf", tiny_model("llama"), "llama", metadata=metadata)


def test_the_pieces_of_this_module_make_a_good_file(path: Path) -> None:
    parts = [
        key(b"number", I32, struct.pack("<i", -5)),
        key(b"flag", BOOL, b"\1"),
        key(b"words", ARRAY, array(STRING, 2, text(b"one") + text("zwölf".encode()))),
        key(b"floats", ARRAY, array(F32, 2, struct.pack("<2f", 0.5, -2.0))),
        key(b"flags", ARRAY, array(BOOL, 3, b"\0\1\0")),
        key(b"nested", ARRAY, nested(4)),
        key(b"large", U64, struct.pack("<Q", (1 << 64) - 1)),
        key(b"empty", ARRAY, array(STRING, 0, b"")),
    ]
    table = tensor(b"x", (4, 2)) + tensor(b"y", (8,), offset=32)
    path.write_bytes(header(tensors=2, keys=len(parts), parts=b"".join(parts) + table) + bytes(128))
    file = GgufFile(path)
    assert file.metadata == {
        "number": -5,
        "flag": True,
        "words": ["one", "zwölf"],
        "floats": [0.5, -2.0],
        "flags": [False, True, False],
        "nested": [[[[7]]]],
        "large": (1 << 64) - 1,
        "empty": [],
    }
    assert file.tensors["x"].shape == (2, 4)
    assert file.rows(file.tensors["x"]).shape == (2, 16)
    assert file.data_start % 32 == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot read"),
        (b"GGU", "truncated"),
        (b"GGML" + bytes(64), "not a GGUF file"),
        (header(version=1), "GGUF version 1"),
        (header(version=4), "GGUF version 4"),
        (header(tensors=(1 << 16) + 1), "65537 tensors are more than"),
        (header(keys=(1 << 16) + 1), "65537 metadata keys are more than"),
        (header(version=3 << 24), "big-endian"),
        (with_key(13, bytes(8)), "value type 13"),
        (with_key(ARRAY, array(13, 0, b"")), "value type 13"),
        (with_key(ARRAY, nested(5)), "nests arrays"),
        (with_key(BOOL, b"\2"), "neither 0 nor 1"),
        (with_key(ARRAY, array(BOOL, 2, b"\1\2")), "neither 0 nor 1"),
        (with_key(STRING, text(b"\xff\xfe")), "not UTF-8"),
        (with_key(ARRAY, array(STRING, 2, text(b"a") + text(b"\xff"))), "string 1 of a is not UTF-8"),
        (header(keys=1, parts=key(b"\xff", U8, b"\0")), "not UTF-8"),
        (header(keys=2, parts=key(b"a", U8, b"\0") * 2), "'a' appears twice"),
        (header(keys=1, parts=key(b"k" * 70_000, U8, b"\0")), "longer than"),
        (with_tensors(tensor(b"x", (4,)), tensor(b"x", (4,), offset=32)), "'x' appears twice"),
        (with_tensors(tensor(b"x", ())), "0 dimensions"),
        (with_tensors(tensor(b"x", (1, 1, 1, 1, 1))), "5 dimensions"),
        (with_tensors(tensor(b"x", (4, 0))), "whole blocks"),
        (with_tensors(tensor(b"x", (33,), type_code=2)), "whole blocks of Q4_0"),
        (with_tensors(tensor(b"x", (4,), offset=8)), "not a multiple of 32"),
        (with_tensors(tensor(b"x", (4,), offset=1 << 40)), "truncated"),
        (with_tensors(tensor(b"x", (16,)), tensor(b"y", (4,), offset=32)), "'y' overlaps"),
        (with_tensors(tensor(b"n" * 2000, (4,))), "longer than"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_malformed_files_say_what_is_wrong(content: bytes, message: str, path: Path) -> None:
    refuse(path, content, message)


@pytest.mark.parametrize(("type_code", "name"), [(10, "Q2_K"), (28, "F64"), (99, "number 99, which is unknown")])
def test_other_element_types_are_named(type_code: int, name: str, path: Path) -> None:
    refuse(path, with_tensors(tensor(b"x", (256,), type_code=type_code)), name, UnsupportedModelError)


@pytest.mark.parametrize("size", LARGE_SIZES)
def test_absurd_sizes_are_refused_in_little_memory(size: int, path: Path) -> None:
    huge = struct.pack("<Q", size)
    padding = bytes(1 << 16)
    files = [
        header(tensors=size, parts=padding),
        header(keys=size, parts=padding),
        header(keys=1, parts=huge + padding),
        with_key(STRING, huge + padding),
        with_key(ARRAY, array(STRING, 1, huge + padding)),
        with_tensors(tensor(b"x", (size,))),
        with_tensors(tensor(b"x", (size, size, size, size))),
        with_tensors(tensor(b"x", (4,), offset=size - size % 32)),
        header(tensors=1, parts=huge + padding),
        *(with_key(ARRAY, array(kind, size, padding)) for kind in (U8, I32, F32, BOOL, STRING, ARRAY, U64)),
    ]
    tracemalloc.start()
    try:
        for content in files:
            refuse(path, content)
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY_BYTES
    finally:
        tracemalloc.stop()


def test_many_arrays_share_one_budget(path: Path) -> None:
    full = array(U8, MAX_ARRAY_ELEMENTS // 2, bytes(MAX_ARRAY_ELEMENTS // 2))
    refuse(path, header(keys=3, parts=b"".join(key(name, ARRAY, full) for name in (b"a", b"b", b"c"))), "elements")


def test_files_cut_short_are_refused_wherever_they_end(good_file: Path, path: Path) -> None:
    content = good_file.read_bytes()
    data_start = GgufFile(good_file).data_start
    # The writer pads the last tensor too, so only the data proper has to be there.
    data_end = max(entry.offset + entry.num_bytes for entry in GgufFile(good_file).tensors.values())
    path.write_bytes(content[:data_end])
    assert open_checkpoint(path).has("model.norm.weight")
    accepted = []
    for end in [data_end - 1, *range(data_end - 2, data_start, -997), *range(data_start, -1, -1)]:
        os.truncate(path, end)
        try:
            GgufFile(path)
        except CheckpointError:
            continue
        accepted.append(end)
    assert accepted == []


def test_damaged_headers_raise_nothing_else(good_file: Path, path: Path) -> None:
    content = good_file.read_bytes()
    data_start = GgufFile(good_file).data_start
    chance = random.Random(3)
    refused = 0
    for _ in range(1200):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8, 64))):
            damaged[chance.randrange(data_start)] = chance.choice((0, 1, 8, 9, 127, 128, 255, chance.randrange(256)))
        path.write_bytes(damaged)
        try:
            checkpoint = open_checkpoint(path)
        except (CheckpointError, UnsupportedModelError):
            refused += 1
        else:
            assert checkpoint.tensor("model.norm.weight").shape == (64,)
    assert refused > 600


def test_large_sizes_in_any_place_raise_nothing_else(good_file: Path, path: Path) -> None:
    content = good_file.read_bytes()
    data_start = GgufFile(good_file).data_start
    chance = random.Random(4)
    for _ in range(800):
        damaged = bytearray(content)
        struct.pack_into("<Q", damaged, chance.randrange(data_start - 8), chance.choice(LARGE_SIZES))
        path.write_bytes(damaged)
        try:
            open_checkpoint(path).close()
        except (CheckpointError, UnsupportedModelError):
            continue
