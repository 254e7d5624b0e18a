"""A Hugging Face folder as a checkpoint: `config.json` and safetensors files.

Owns finding and checking the weight files of a folder. Knows nothing of the hub. The files are
memory mapped, so a tensor costs nothing until it is used.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path, PureWindowsPath
from typing import TYPE_CHECKING, Any

import torch

from models.checkpoint import PICKLE_SUFFIXES, Checkpoint, pickle_message
from models.decoder_tensors import EMBEDDING, HEAD, check_tensors
from models.errors import CheckpointError
from models.fingerprint import WeightFile, fingerprint_files
from models.hf_config import read_config
from models.json_file import MAX_JSON_BYTES, read_json_object
from models.safetensors_file import SafetensorsHeader, read_safetensors_header

if TYPE_CHECKING:
    from models.tokenizer import Tokenizer

SINGLE_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"


class SafetensorsCheckpoint(Checkpoint):
    """A folder with `config.json` and either one safetensors file or an index and its files."""

    def __init__(self, folder: Path, *, name: str) -> None:
        """Open and check a folder.

        Raises:
            CheckpointError: if a file is missing, truncated, malformed, pickled or outside the folder.
            UnsupportedModelError: if the model cannot be run exactly.
        """
        self.name = name
        self.folder = folder
        headers = _read_headers(folder)
        self.config = read_config(folder)
        self._files = {tensor: header.path for header in headers for tensor in header.shapes}
        shapes = {tensor: shape for header in headers for tensor, shape in header.shapes.items()}
        check_tensors(self.config, shapes, str(folder))
        self.weight_bytes = sum(header.data_bytes for header in headers)
        self.fingerprint = fingerprint_files(
            [
                WeightFile(folder / CONFIG_FILE, MAX_JSON_BYTES),
                *(WeightFile(header.path, header.header_bytes) for header in headers),
            ]
        )
        with ExitStack() as stack:
            self._readers = {header.path: _open_reader(header.path, stack) for header in headers}
            self._open_files = stack.pop_all()

    def has(self, name: str) -> bool:
        return self._stored_name(name) in self._files

    def tensor(self, name: str) -> torch.Tensor:
        path = self._files.get(self._stored_name(name))
        if path is None:
            raise CheckpointError(f"{self.name} has no tensor {name}")
        if path not in self._readers:
            raise CheckpointError(f"{self.name} was closed")
        tensor: torch.Tensor = self._readers[path].get_tensor(self._stored_name(name))
        return tensor

    def tokenizer(self) -> Tokenizer:
        from models.tokenizer import Tokenizer

        return Tokenizer.from_folder(self.folder)

    def close(self) -> None:
        self._readers = {}
        self._open_files.close()

    def _stored_name(self, name: str) -> str:
        return EMBEDDING if name == HEAD and self.config.tie_embeddings else name


def _open_reader(path: Path, stack: ExitStack) -> Any:  # safetensors' reader has no types
    from safetensors import SafetensorError, safe_open

    try:
        return stack.enter_context(safe_open(path, framework="pt"))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _read_headers(folder: Path) -> list[SafetensorsHeader]:
    if not (folder / CONFIG_FILE).is_file():
        raise CheckpointError(_missing_message(folder, CONFIG_FILE))
    if (folder / SINGLE_FILE).is_file():
        return [read_safetensors_header(folder / SINGLE_FILE)]
    if (folder / INDEX_FILE).is_file():
        return _read_indexed_headers(folder)
    raise CheckpointError(_missing_message(folder, SINGLE_FILE))


def _read_indexed_headers(folder: Path) -> list[SafetensorsHeader]:
    index_path = folder / INDEX_FILE
    weight_map = read_json_object(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index_path}: weight_map must name a file for each tensor")
    for file_name in weight_map.values():
        _check_file_name(index_path, file_name)
    headers = [read_safetensors_header(folder / file_name) for file_name in sorted(set(weight_map.values()))]
    owners: dict[str, str] = {}
    for header in headers:
        for tensor in header.shapes:
            if tensor in owners:
                both = f"{owners[tensor]} and {header.path.name}"
                raise CheckpointError(f"{folder}: the tensor {tensor[:200]} is in {both}")
            owners[tensor] = header.path.name
    for tensor, file_name in weight_map.items():
        if owners.get(tensor) != file_name:
            raise CheckpointError(f"{index_path}: the tensor {tensor[:200]} should be in {file_name}, but is not")
    return headers


def _check_file_name(index_path: Path, file_name: object) -> None:
    """Hold the index to names inside its own folder, whatever the operating system."""
    if not isinstance(file_name, str) or not file_name.endswith(".safetensors"):
        raise CheckpointError(
            f"{index_path}: {str(file_name)[:200]!r} is not a .safetensors file, the only kind opened"
        )
    # Windows' rules know every separator and drive letter there is.
    if PureWindowsPath(file_name).name != file_name or "\0" in file_name:
        raise CheckpointError(f"{index_path}: {file_name[:200]!r} is not inside the folder")


def _missing_message(folder: Path, wanted: str) -> str:
    try:
        files = sorted(path for path in folder.iterdir() if path.is_file())
    except OSError as error:
        return f"cannot read {folder}: {error.strerror or error}"
    gguf_files = [path.name for path in files if path.suffix.lower() == ".gguf"]
    if gguf_files:
        return f"{folder} has no {wanted}; give one of its GGUF files itself: {', '.join(gguf_files[:5])}"
    weights = [path for path in files if path.suffix.lower() in PICKLE_SUFFIXES]
    if weights and wanted == SINGLE_FILE:
        return f"{folder} has no {SINGLE_FILE}: {pickle_message(weights[0])}"
    return f"{folder} has no {wanted}; a checkpoint has {CONFIG_FILE}, tokenizer.json and {SINGLE_FILE} or {INDEX_FILE}"
