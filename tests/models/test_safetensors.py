"""Safetensors folders: what transformers writes is read back, and everything else is refused."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from models.checkpoint import open_checkpoint
from models.config import Family
from models.errors import CheckpointError, UnsupportedModelError
from models.safetensors_file import read_safetensors_header
from tests.support.checkpoint_files import FAMILIES, stored_tensors, tiny_model

INDEX = "model.safetensors.index.json"
Damage = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(folder)
    return folder


@pytest.fixture
def folder(llama_folder: Path, tmp_path: Path) -> Path:
    """A copy of a good checkpoint, for a test to spoil."""
    return Path(shutil.copytree(llama_folder, tmp_path / "copy"))


@pytest.fixture
def sharded(llama_folder: Path, tmp_path: Path) -> Path:
    """The same checkpoint in several files with an index."""
    folder = tmp_path / "sharded"
    tiny_model("llama").save_pretrained(folder, max_shard_size="40KB")
    assert len(list(folder.glob("*.safetensors"))) > 2
    return folder


def rewrite_header(path: Path, change: Callable[[dict[str, dict[str, object]]], object]) -> None:
    """Change the header of a safetensors file in place and keep its data."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("tied", [False, True])
def test_what_transformers_saves_is_read_back(family: str, tied: bool, tmp_path: Path) -> None:
    changes = {"attention_bias": True, "mlp_bias": True} if family == "llama" else {}
    model = tiny_model(family, tie_word_embeddings=tied, **changes)
    model.save_pretrained(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        assert checkpoint.config.family is Family(family)
        assert checkpoint.config.tie_embeddings is tied
        assert checkpoint.name == tmp_path.name
        assert checkpoint.weight_bytes == sum(tensor.nbytes for tensor in stored_tensors(model).values())
        for name, tensor in model.state_dict().items():
            assert checkpoint.has(name)
            assert torch.equal(checkpoint.tensor(name), tensor), name


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_the_stored_type_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model("qwen2").to(dtype)
    model.save_pretrained(tmp_path)
    with open_checkpoint(tmp_path) as checkpoint:
        for name, tensor in stored_tensors(model).items():
            assert checkpoint.tensor(name).dtype == dtype
            assert torch.equal(checkpoint.tensor(name), tensor)


def test_several_files_hold_the_same_model(llama_folder: Path, sharded: Path) -> None:
    with open_checkpoint(llama_folder) as whole, open_checkpoint(sharded) as parts:
        assert parts.config == whole.config
        assert parts.weight_bytes == whole.weight_bytes
        for name in load_file(llama_folder / "model.safetensors"):
            assert torch.equal(parts.tensor(name), whole.tensor(name))


def test_links_out_of_the_folder_are_followed(folder: Path, tmp_path: Path) -> None:
    # The hub's cache is built of them.
    weights = folder / "model.safetensors"
    weights.rename(tmp_path / "blob")
    weights.symlink_to(tmp_path / "blob")
    assert open_checkpoint(folder).has("model.norm.weight")


def test_unknown_names_and_closed_files_are_errors(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    assert not checkpoint.has("model.layers.9.mlp.up_proj.weight")
    with pytest.raises(CheckpointError, match=r"model\.layers\.9"):
        checkpoint.tensor("model.layers.9.mlp.up_proj.weight")
    kept = checkpoint.tensor("model.norm.weight")
    before = kept.tolist()
    checkpoint.close()
    checkpoint.close()
    assert kept.tolist() == before
    with pytest.raises(CheckpointError, match="closed"):
        checkpoint.tensor("model.norm.weight")


def test_fingerprints_tell_weights_apart(llama_folder: Path, folder: Path) -> None:
    first = open_checkpoint(llama_folder).fingerprint
    assert open_checkpoint(folder).fingerprint == first

    weights = folder / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    changed = open_checkpoint(folder).fingerprint
    assert changed != first

    settings = (folder / "config.json").read_text()
    (folder / "config.json").write_text(settings.replace("1e-06", "2e-06"))
    assert open_checkpoint(folder).config.rms_norm_eps == 2e-06
    assert open_checkpoint(folder).fingerprint not in (first, changed)


def test_missing_misshapen_and_unused_tensors_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    down = "model.layers.1.mlp.down_proj.weight"

    save_file({name: tensor for name, tensor in tensors.items() if name != down}, path)
    with pytest.raises(CheckpointError, match=f"{down} is missing"):
        open_checkpoint(folder)

    save_file({**tensors, down: tensors[down].T.contiguous()}, path)
    with pytest.raises(CheckpointError, match=rf"{down} has shape \(96, 64\), but its config calls for \(64, 96\)"):
        open_checkpoint(folder)

    save_file({**tensors, "model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, path)
    with pytest.raises(UnsupportedModelError, match=r"q_proj\.bias is not part of a llama decoder"):
        open_checkpoint(folder)

    save_file({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path)
    assert open_checkpoint(folder).has(down)


def test_a_head_stored_beside_tied_embeddings_is_not_used(folder: Path) -> None:
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "tie_word_embeddings": True}))
    checkpoint = open_checkpoint(folder)
    assert torch.equal(checkpoint.tensor("lm_head.weight"), checkpoint.tensor("model.embed_tokens.weight"))


def test_integer_weights_are_named(folder: Path) -> None:
    path = folder / "model.safetensors"
    save_file({**load_file(path), "model.norm.weight": torch.ones(64, dtype=torch.int8)}, path)
    with pytest.raises(UnsupportedModelError, match=r"model\.norm\.weight.*'I8'"):
        open_checkpoint(folder)


class Booby:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt"])
def test_pickles_are_never_opened(suffix: str, folder: Path, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    pickled = folder / f"pytorch_model.{suffix}"
    pickled.write_bytes(pickle.dumps(Booby(sprung)))
    assert open_checkpoint(folder).has("model.norm.weight")  # safetensors beside them are fine
    (folder / "model.safetensors").unlink()
    for source in (folder, pickled):
        with pytest.raises(CheckpointError, match=r"never opened.*convert"):
            open_checkpoint(source)
    (folder / INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": pickled.name}}))
    with pytest.raises(CheckpointError, match="the only kind opened"):
        open_checkpoint(folder)
    assert not sprung.exists()
    pickle.loads(pickled.read_bytes())
    assert sprung.exists()  # the trap does work


def test_code_in_the_folder_is_never_run(folder: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    (folder / "modeling_mystery.py").write_text(f"import pathlib\npathlib.Path({str(ran)!r}).touch()\n")
    settings = json.loads((folder / "config.json").read_text())
    settings["auto_map"] = {"AutoModelForCausalLM": "modeling_mystery.MysteryForCausalLM"}
    (folder / "config.json").write_text(json.dumps(settings))
    assert open_checkpoint(folder).has("model.norm.weight")
    (folder / "config.json").write_text(json.dumps({**settings, "architectures": ["MysteryForCausalLM"]}))
    with pytest.raises(UnsupportedModelError, match=r"MysteryForCausalLM.*never run"):
        open_checkpoint(folder)
    assert not ran.exists()


def test_incomplete_folders_say_what_is_missing(folder: Path, tmp_path: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"no model\.safetensors"):
        open_checkpoint(folder)
    (folder / "model.Q4_0.gguf").touch()
    with pytest.raises(CheckpointError, match=r"model\.Q4_0\.gguf"):
        open_checkpoint(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        open_checkpoint(tmp_path / "empty")


@pytest.mark.parametrize(
    "file_name",
    [
        "../model.safetensors",
        "/model.safetensors",
        "a/b.safetensors",
        "..\\b.safetensors",
        "C:b.safetensors",
        "x\0.safetensors",
    ],
)
def test_an_index_cannot_point_out_of_its_folder(file_name: str, sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = file_name
    (sharded / INDEX).write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not inside the folder"):
        open_checkpoint(sharded)


def test_an_index_must_agree_with_its_files(sharded: Path) -> None:
    index = json.loads((sharded / INDEX).read_text())
    weight_map = index["weight_map"]
    first, last = sorted(set(weight_map.values()))[0], sorted(set(weight_map.values()))[-1]

    def write(changed: object) -> None:
        (sharded / INDEX).write_text(json.dumps({**index, "weight_map": changed}))

    write({**weight_map, "model.norm.weight": first if weight_map["model.norm.weight"] == last else last})
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight should be in"):
        open_checkpoint(sharded)
    for malformed in ([], {}, {"model.norm.weight": 3}, "text", None):
        write(malformed)
        with pytest.raises(CheckpointError, match="index"):
            open_checkpoint(sharded)
    write(weight_map)
    assert open_checkpoint(sharded).has("model.norm.weight")
    save_file({**load_file(sharded / last), **load_file(sharded / first)}, sharded / last)
    with pytest.raises(CheckpointError, match=f"is in {first} and {last}"):
        open_checkpoint(sharded)
    (sharded / first).unlink()
    with pytest.raises(CheckpointError, match=first):
        open_checkpoint(sharded)


def grow_offsets(header: dict[str, dict[str, object]]) -> None:
    header["model.norm.weight"]["data_offsets"] = [1 << 40, (1 << 40) + 256]


def overlap(header: dict[str, dict[str, object]]) -> None:
    header["model.layers.0.input_layernorm.weight"]["data_offsets"] = header["model.norm.weight"]["data_offsets"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (grow_offsets, "hole"),
        (overlap, "overlaps|hole"),
        (lambda header: header["model.norm.weight"].update(data_offsets=[0]), "data_offsets"),
        (lambda header: header["model.norm.weight"].update(data_offsets=[-1, 255]), "data_offsets"),
        (lambda header: header["model.norm.weight"].update(data_offsets=[256, 0]), "span -256"),
        (lambda header: header["model.norm.weight"].update(shape=[64.0]), "shape"),
        (lambda header: header["model.norm.weight"].update(shape=[True] * 2), "shape"),
        (lambda header: header["model.norm.weight"].update(shape=[1] * 2000), "shape"),
        (lambda header: header["model.norm.weight"].update(shape=[63]), "takes 252 bytes"),
        (lambda header: header["model.norm.weight"].update(shape=[1 << 62, 1 << 62]), "takes"),
        (lambda header: header["model.norm.weight"].update(dtype=None), "dtype"),
        (lambda header: header.update({"model.norm.weight": []}), "a list"),
        (lambda header: header.pop("model.norm.weight"), "hole|follow the header"),
    ],
)
def test_malformed_headers_are_refused(
    change: Callable[[dict[str, dict[str, object]]], object], message: str, folder: Path
) -> None:
    rewrite_header(folder / "model.safetensors", change)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(folder)


def test_truncated_files_are_refused_wherever_they_end(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    data_start = 8 + int.from_bytes(content[:8], "little")
    ends = {*range(64), *range(data_start - 64, data_start + 64), *range(len(content) - 64, len(content))}
    for end in sorted(ends):
        path.write_bytes(content[:end])
        with pytest.raises(CheckpointError):
            read_safetensors_header(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(CheckpointError, match="follow the header"):
        read_safetensors_header(path)


@pytest.mark.parametrize("length", [1 << 20, (16 << 20) + 1, 1 << 40, (1 << 64) - 1])
def test_absurd_header_lengths_are_refused_unread(length: int, folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    with pytest.raises(CheckpointError, match="does not fit"):
        read_safetensors_header(path)


def test_damaged_headers_raise_nothing_else(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = path.read_bytes()
    data_start = 8 + int.from_bytes(content[:8], "little")
    chance = random.Random(11)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 8))):
            damaged[chance.randrange(data_start)] = chance.choice((0, 34, 48, 57, 91, 123, 255, chance.randrange(256)))
        path.write_bytes(damaged)
        try:
            open_checkpoint(folder).close()
        except (CheckpointError, UnsupportedModelError):
            refused += 1
    assert refused > 700
