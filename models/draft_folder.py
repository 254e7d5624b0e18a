"""The folder that a distilled draft lies in: what it adds to its target, and which target that is.

Owns the format, its writing and its checks. Knows nothing of how a draft is made or run.

    draft.json         what the draft is, of which target, and the SHA-256 of
    draft.safetensors  its tensors, float16 or float32: `layers.{i}.*` as in the target's own checkpoint (without
                       `model.`), `fusion.*` where the draft reads features, `head.token_ids` where its head is cut
    README.md          a card for people

Embedding, final norm and output head are the target's own and not in the folder.

Shape suffixes: E hidden width, V vocabulary, C tokens of a cut head.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from models.config import ModelConfig
from models.decoder_tensors import Shape, expected_layer_tensors
from models.errors import CheckpointError, PairError, UnsupportedModelError
from models.json_file import read_json_object
from models.safetensors_file import read_safetensors_header
from models.settings_reader import SettingsReader
from models.user_cache import write_atomically

if TYPE_CHECKING:
    from models.checkpoint import Checkpoint

FORMAT = "slipstream-draft"
VERSION = 1
DESCRIPTION_FILE = "draft.json"
WEIGHTS_FILE = "draft.safetensors"
CARD_FILE = "README.md"

HEAD_TOKEN_IDS = "head.token_ids"
FUSION = "fusion.weight"
FUSION_EMBEDDING_NORM = "fusion.embedding_norm.weight"
FUSION_FEATURE_NORM = "fusion.feature_norm.weight"

_WEIGHT_BYTES = {"F16": 2, "F32": 4}
_ELEMENT_BYTES = {**_WEIGHT_BYTES, "I32": 4}
_WEIGHT_DTYPES = {torch.float16: "F16", torch.float32: "F32", torch.int32: "I32"}
_MOST_LAYERS = 1024
_DIGEST_CHUNK_BYTES = 1 << 20


class DraftDesign(Enum):
    """What a distilled draft reads at each position."""

    TOKEN = "token"
    """The token."""
    FEATURE = "feature"
    """The token, and the target's hidden state one position before (EAGLE, https://arxiv.org/abs/2401.15077)."""


@dataclass(frozen=True, kw_only=True)
class DraftTarget:
    """A target as far as a draft must fit it."""

    name: str
    fingerprint: str
    """`models.checkpoint.Checkpoint.fingerprint`."""
    config: ModelConfig

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> DraftTarget:
        """An opened checkpoint as a target."""
        return cls(name=checkpoint.name, fingerprint=checkpoint.fingerprint, config=checkpoint.config)


@dataclass(frozen=True, kw_only=True)
class DraftDescription:
    """What `draft.json` says."""

    design: DraftDesign
    num_layers: int
    target_name: str
    target_fingerprint: str
    hidden_size: int
    vocab_size: int
    weights_sha256: str
    making: Mapping[str, object] = field(default_factory=dict)
    """Settings and figures of its making; nothing depends on them."""


@dataclass(frozen=True, kw_only=True)
class DraftFolder:
    """A draft that was found to fit its target."""

    folder: Path
    description: DraftDescription
    config: ModelConfig
    """The target's, with the draft's number of layers."""
    head_token_ids_C: torch.Tensor | None
    """int32, ascending: the tokens that the draft can propose; None where it can propose all."""

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        return self.folder.resolve().name

    @property
    def design(self) -> DraftDesign:
        """What it reads at each position."""
        return self.description.design

    @property
    def head_size(self) -> int:
        """Tokens that it can propose."""
        return self.config.vocab_size if self.head_token_ids_C is None else self.head_token_ids_C.shape[0]

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors, by their names in the folder, on the CPU and as stored.

        Raises:
            CheckpointError: if the file cannot be read or a weight is not finite.
        """
        tensors = _load(self.folder / WEIGHTS_FILE)
        for name, tensor in tensors.items():
            if not bool(tensor.isfinite().all()):
                raise CheckpointError(f"{self.folder}: {name} holds numbers that are not finite; {_way_out(None)}")
        return tensors


def draft_tensors(config: ModelConfig, design: DraftDesign) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every tensor that a draft must have.

    Args:
        config: the target's, with the draft's number of layers.
        design: the draft's.
    """
    yield from expected_layer_tensors(config)
    if design is DraftDesign.FEATURE:
        hidden = config.hidden_size
        yield FUSION_EMBEDDING_NORM, (hidden,)
        yield FUSION_FEATURE_NORM, (hidden,)
        yield FUSION, (hidden, 2 * hidden)


def is_draft_folder(path: str | Path) -> bool:
    """Whether a distilled draft lies there, whole or not."""
    try:
        return (Path(path) / DESCRIPTION_FILE).is_file()
    except (OSError, ValueError):
        return False


def write_draft(
    folder: str | Path,
    *,
    design: DraftDesign,
    num_layers: int,
    target: DraftTarget,
    tensors: Mapping[str, torch.Tensor],
    making: Mapping[str, object] | None = None,
    card: str = "",
) -> Path:
    """Write a draft, or take the place of the one that lies there; other files in the folder are left alone.

    Each file is replaced as a whole: weights, description, card. If the second one cannot be, the folder says of itself
    that its files do not belong together.

    Args:
        folder: made if need be.
        design: the draft's.
        num_layers: the draft's.
        target: the one that the draft was made for.
        tensors: float16 or float32, and int32 for `head.token_ids`; see `draft_tensors`.
        making: settings and figures, anything that JSON holds.
        card: the text of README.md; left out if empty.

    Returns:
        The folder.

    Raises:
        CheckpointError: if a tensor is missing, superfluous, of another shape or dtype than it should be, not finite,
            or if the ids of a cut head are not ascending within the vocabulary.
        OSError: if a file cannot be written.
    """
    from safetensors.torch import save

    folder = Path(folder)
    config = dataclasses.replace(target.config, num_layers=num_layers)
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    dtypes = {name: _WEIGHT_DTYPES.get(tensor.dtype, str(tensor.dtype)) for name, tensor in whole.items()}
    _check_tensors(
        config, design, {name: tuple(t.shape) for name, t in whole.items()}, dtypes, f"the draft for {folder}"
    )
    for name, tensor in whole.items():
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"the draft for {folder}: {name} holds numbers that are not finite")
    if HEAD_TOKEN_IDS in whole:
        _check_head(whole[HEAD_TOKEN_IDS], config, f"the draft for {folder}")
    weights = save(whole)
    description = {
        "format": FORMAT,
        "version": VERSION,
        "kind": design.value,
        "num_layers": num_layers,
        "target": {
            "name": target.name,
            "fingerprint": target.fingerprint,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
        },
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "making": dict(making or {}),
    }
    text = json.dumps(description, indent=2, ensure_ascii=False) + "\n"
    write_atomically(folder / WEIGHTS_FILE, weights)
    write_atomically(folder / DESCRIPTION_FILE, text.encode())
    # Last: so a card without a description is never one of ours.
    if card:
        write_atomically(folder / CARD_FILE, card.encode())
    return folder


def read_draft_description(folder: str | Path) -> DraftDescription:
    """What a folder says of itself; its tensors are not looked at.

    Raises:
        CheckpointError: if `draft.json` is missing, malformed, or of another format or version.
    """
    path = Path(folder) / DESCRIPTION_FILE
    if not path.is_file():
        raise CheckpointError(f"{folder} is no distilled draft: it has no {DESCRIPTION_FILE}; {_way_out(None)}")
    reader = SettingsReader(read_json_object(path), str(path))
    if reader.text("format") != FORMAT:
        raise reader.error("format", f"must be {FORMAT!r}")
    version = reader.integer("version", maximum=1 << 31)
    if version != VERSION:
        raise reader.error(
            "version", f"this version reads {VERSION}; " + ("distil it again" if version < VERSION else "update it")
        )
    kind = reader.text("kind")
    if kind not in {design.value for design in DraftDesign}:
        raise reader.error("kind", f"must be one of {', '.join(design.value for design in DraftDesign)}")
    target = reader.section("target")
    return DraftDescription(
        design=DraftDesign(kind),
        num_layers=reader.integer("num_layers", maximum=_MOST_LAYERS),
        target_name=target.text("name"),
        target_fingerprint=target.text("fingerprint"),
        hidden_size=target.integer("hidden_size"),
        vocab_size=target.integer("vocab_size"),
        weights_sha256=reader.text("weights_sha256"),
        making=dict(reader.section("making").settings),
    )


def open_draft(folder: str | Path, target: DraftTarget) -> DraftFolder:
    """Check a draft against its target: all but whether its weights are finite.

    Raises:
        CheckpointError: if a file is missing, truncated or malformed, or a tensor is not what the target's shape calls
            for.
        PairError: if the draft was made for another target.
    """
    folder = Path(folder)
    description = read_draft_description(folder)
    _check_target(folder, description, target)
    config = dataclasses.replace(target.config, num_layers=description.num_layers)
    path = folder / WEIGHTS_FILE
    try:
        header = read_safetensors_header(path, element_bytes=_ELEMENT_BYTES)
        if _digest(path) != description.weights_sha256:
            raise CheckpointError(
                f"{path} is not the file that {folder / DESCRIPTION_FILE} describes: it is damaged, or only one of the "
                "two was replaced"
            )
        _check_tensors(config, description.design, header.shapes, header.dtypes, str(path))
        head_token_ids_C = _load(path, HEAD_TOKEN_IDS)[HEAD_TOKEN_IDS] if HEAD_TOKEN_IDS in header.shapes else None
        if head_token_ids_C is not None:
            _check_head(head_token_ids_C, config, str(path))
    except (CheckpointError, UnsupportedModelError) as error:
        raise CheckpointError(f"{error}; {_way_out(target.name)}") from error
    return DraftFolder(folder=folder, description=description, config=config, head_token_ids_C=head_token_ids_C)


def _check_target(folder: Path, description: DraftDescription, target: DraftTarget) -> None:
    differences = [
        f"{what} {theirs} instead of {ours}"
        for what, theirs, ours in (
            ("the fingerprint", description.target_fingerprint, target.fingerprint),
            ("hidden_size", description.hidden_size, target.config.hidden_size),
            ("vocab_size", description.vocab_size, target.config.vocab_size),
        )
        if theirs != ours
    ]
    if differences:
        raise PairError(
            f"the draft {folder} was made for {description.target_name[:200]!r}, not for {target.name!r}: it names "
            f"{', '.join(differences)}; {_way_out(target.name)}"
        )


def _check_tensors(
    config: ModelConfig, design: DraftDesign, shapes: Mapping[str, Shape], dtypes: Mapping[str, str], origin: str
) -> None:
    expected = dict(draft_tensors(config, design))
    for name, shape in expected.items():
        if name not in shapes:
            raise CheckpointError(f"{origin}: the tensor {name} is missing")
        if shapes[name] != shape:
            raise CheckpointError(
                f"{origin}: the tensor {name} has shape {shapes[name]}, but its target calls for {shape}"
            )
        if dtypes[name] not in _WEIGHT_BYTES:
            raise CheckpointError(f"{origin}: the tensor {name} has dtype {dtypes[name]}; it must be F16 or F32")
    for name in shapes:
        if name not in expected and name != HEAD_TOKEN_IDS:
            raise CheckpointError(f"{origin}: the tensor {name[:200]} is not part of a {design.value} draft")
    if HEAD_TOKEN_IDS in shapes:
        shape, dtype = shapes[HEAD_TOKEN_IDS], dtypes[HEAD_TOKEN_IDS]
        if len(shape) != 1 or not 1 <= shape[0] <= config.vocab_size or dtype != "I32":
            raise CheckpointError(
                f"{origin}: {HEAD_TOKEN_IDS} has shape {shape} of {dtype}; it must hold 1 to {config.vocab_size} ids "
                "as I32"
            )


def _check_head(token_ids_C: torch.Tensor, config: ModelConfig, origin: str) -> None:
    ascending = bool((token_ids_C[1:] > token_ids_C[:-1]).all())
    if not ascending or int(token_ids_C[0]) < 0 or int(token_ids_C[-1]) >= config.vocab_size:
        raise CheckpointError(
            f"{origin}: {HEAD_TOKEN_IDS} must be ascending, each once, within 0 and {config.vocab_size - 1}"
        )


def _load(path: Path, *names: str) -> dict[str, torch.Tensor]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in names or file.keys()}
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"cannot read {path}: {error}") from error


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    try:
        with path.open("rb") as file:
            while chunk := file.read(_DIGEST_CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise CheckpointError(f"cannot read {path}: {error.strerror or error}") from error
    return digest.hexdigest()


def _way_out(target_name: str | None) -> str:
    return (
        f"distil one for {'a target' if target_name is None else 'this target'}: "
        f"python -m models.distill --target {target_name or 'TARGET'} --out DIR"
    )
