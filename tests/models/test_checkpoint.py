"""Finding out what a source is: folder, file, hub id, or none of them."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

from models.checkpoint import open_checkpoint
from models.errors import CheckpointError
from models.hub import WANTED_FILES, fetch_snapshot
from tests.support.checkpoint_files import tiny_model, write_gguf

HUB_ID = "someone/tiny-llama"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def offline_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache and no network."""
    cache = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    return cache


@pytest.mark.parametrize("source", [3, None, b"folder", ["folder"]])
def test_sources_of_other_types_are_refused(source: object) -> None:
    with pytest.raises(TypeError, match="source must be a str or a path"):
        open_checkpoint(source)  # type: ignore[arg-type]  # the point of the test


@pytest.mark.parametrize(
    "source", ["", "nowhere", "./no/where", "no/where/at-all", "missing/file.gguf", "a\0b", "x" * 5000]
)
def test_what_is_not_there_is_said_to_be_missing(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"does not exist|not a usable path|no config\.json"):
        open_checkpoint(source)


def test_a_path_object_is_never_a_hub_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        open_checkpoint(Path(HUB_ID))


@pytest.mark.parametrize("suffix", [".safetensors", ".txt", ""])
def test_other_files_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"weights{suffix}"
    path.write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="folder"):
        open_checkpoint(path)


def test_a_folder_and_a_file_of_one_model_agree(tmp_path: Path) -> None:
    model = tiny_model("llama", rms_norm_eps=1e-5)
    model.save_pretrained(tmp_path / "folder")
    write_gguf(tmp_path / "file.GGUF", model, "llama")
    with open_checkpoint(tmp_path / "folder") as folder, open_checkpoint(str(tmp_path / "file.GGUF")) as file:
        assert file.config.rms_norm_eps == pytest.approx(folder.config.rms_norm_eps)
        assert (folder.name, file.name) == ("folder", "file")
        for name, tensor in model.state_dict().items():
            assert torch.equal(folder.tensor(name), tensor)
            assert torch.equal(file.tensor(name), tensor)


def test_a_cached_hub_checkpoint_opens_without_a_network(offline_hub: Path) -> None:
    repository = offline_hub / f"models--{HUB_ID.replace('/', '--')}"
    tiny_model("llama").save_pretrained(repository / "snapshots" / COMMIT)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    with open_checkpoint(HUB_ID) as checkpoint:
        assert checkpoint.name == HUB_ID
        assert checkpoint.has("model.norm.weight")


def test_an_unreachable_hub_checkpoint_says_what_to_do(offline_hub: Path) -> None:
    with pytest.raises(CheckpointError, match=rf"{HUB_ID}.*HF_HUB_OFFLINE.*give a folder"):
        open_checkpoint(HUB_ID)


def response_error(kind: type[HfHubHTTPError]) -> HfHubHTTPError:
    error = kind.__new__(kind)
    Exception.__init__(error, "refused")
    return error


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (response_error(RepositoryNotFoundError), "neither a local path nor a model on the hub"),
        (response_error(GatedRepoError), "accept its terms"),
        (response_error(HfHubHTTPError), "the hub could not deliver"),
        (LocalEntryNotFoundError("offline"), "cannot be reached"),
        (ConnectionResetError("network"), "cannot be reached"),
    ],
)
def test_the_hubs_refusals_become_our_errors(error: Exception, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> str:
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", refuse)
    with pytest.raises(CheckpointError, match=message) as caught:
        open_checkpoint(HUB_ID)
    assert HUB_ID in str(caught.value)
    assert caught.value.__cause__ is error


def test_only_safe_files_are_fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    offered = [
        "config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "consolidated.safetensors",
        "pytorch_model.bin",
        "model.pt",
        "modeling_mystery.py",
        "onnx/model.safetensors",
        "model-old/part.safetensors",
        "tokenizer.pkl",
    ]

    def snapshot(hub_id: str, *, allow_patterns: list[str], ignore_patterns: list[str]) -> str:
        fetched = huggingface_hub.utils.filter_repo_objects(
            offered, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
        )
        assert list(fetched) == offered[:4]
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert fetch_snapshot(HUB_ID) == tmp_path
    assert not [name for name in WANTED_FILES if name.endswith((".py", ".bin", ".pt", ".pkl"))]
