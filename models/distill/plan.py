"""What a distillation will do, after everything that can be wrong with it has been looked at.

Owns the target's identity, the folders, device and precision, and the refusal of what cannot be continued. Knows
nothing of the stages' work.

    OUT/                    the finished draft, its card and plots
    WORK/run.json           what must not change between two calls and is not noted elsewhere
    WORK/text/              shards of text, for any draft of this target
    WORK/training-NAME/     the checkpoint of the draft whose OUT has this name
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from models.checkpoint import Checkpoint, open_checkpoint
from models.demo import GGUF_BYTES, GGUF_SHA256, demo_weights
from models.distill.arguments import Arguments, DeviceChoice, Precision
from models.distill.charts import EVALUATION_CHART_FILE, TRAINING_CHART_FILE
from models.distill.conversation_frame import ConversationFrame
from models.distill.settings import TrainingSettings, WritingSettings
from models.distill.text_kind import TextKind
from models.draft_folder import CARD_FILE, DraftTarget, is_draft_folder
from models.errors import CheckpointError, UnsupportedModelError
from models.json_file import read_json_object
from models.user_cache import write_atomically

RECORD_FILE = "run.json"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One distillation."""

    source: str
    """Of the target."""
    target: DraftTarget
    is_demo_target: bool
    eos_token_ids: frozenset[int]
    out: Path
    work: Path
    writing: WritingSettings
    training: TrainingSettings
    read_files: tuple[Path, ...]
    num_workers: int
    device: torch.device
    dtype: torch.dtype
    remarks: tuple[str, ...]
    """What was decided otherwise than the defaults say."""

    @property
    def text_folder(self) -> Path:
        """Of the shards."""
        return self.work / "text"

    @property
    def training_folder(self) -> Path:
        """Of the checkpoint."""
        return self.work / f"training-{self.out.resolve().name}"

    def settings(self) -> dict[str, object]:
        """Everything that the draft depends on, as JSON holds it."""
        files = {"text_files": self.writing.text_files, "read_files": self.read_files}
        plain: dict[str, object] = json.loads(
            json.dumps(
                {
                    **asdict(self.writing),
                    **asdict(self.training),
                    # Names say enough, and where files lie is nobody's business.
                    **{name: [path.name for path in paths] for name, paths in files.items()},
                    "dtype": str(self.dtype).removeprefix("torch."),
                },
                default=lambda value: value.value,
            )
        )
        return plain


def make_plan(arguments: Arguments) -> Plan:
    """Open the target, and decide what was left open.

    Raises:
        CheckpointError: if the target cannot be read.
        UnsupportedModelError: if the lean decoder lacks its architecture.
        ValueError: if a kind of text was asked for that it cannot write, or longer ones than it can read, CUDA is not
            there, or `out` is a file or a folder whose files would be overwritten although they are of no draft.
    """
    _check_out(arguments.out)
    device = _device(arguments.device)
    source = str(demo_weights()) if arguments.target is None else arguments.target
    try:
        checkpoint = open_checkpoint(source)
    except UnsupportedModelError as error:
        raise UnsupportedModelError(
            f"{error}; drafts are distilled for models that the lean decoder runs (Llama, SmolLM, Mistral, Qwen2, "
            "Qwen3); let a smaller model of the same family propose instead: --draft of python -m runtime"
        ) from error
    with checkpoint:
        _check_length(arguments.writing.sequence_length, checkpoint)
        writing, remarks = _writable(arguments, checkpoint)
        return Plan(
            source=source,
            target=DraftTarget.of(checkpoint),
            is_demo_target=_is_demo(Path(source)),
            eos_token_ids=checkpoint.tokenizer().eos_token_ids,
            out=arguments.out,
            work=arguments.work,
            writing=writing,
            training=arguments.training,
            read_files=arguments.read_files,
            # The kernels of several processes would only take turns on a GPU, each with weights of its own.
            num_workers=arguments.num_workers if device.type == "cpu" else 1,
            device=device,
            dtype=_dtype(arguments.precision, device),
            remarks=remarks,
        )


def begin_work(plan: Plan) -> None:
    """Make the folders, or find them to be of this run.

    Raises:
        CheckpointError: if they cannot be written.
        ValueError: if the work begun there was of another precision or target.
    """
    record: dict[str, object] = {
        "dtype": str(plan.dtype).removeprefix("torch."),
        "fingerprint": plan.target.fingerprint,
    }
    path = plan.work / RECORD_FILE
    try:
        plan.out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, json.dumps(record, indent=2).encode() + b"\n")
        plan.text_folder.mkdir(exist_ok=True)
        plan.training_folder.mkdir(exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot write {error.filename or plan.out}: {error.strerror or error}; name another --out or --work"
        ) from error
    refuse_difference(f"{plan.work} holds work begun with", read_json_object(path), record)


def refuse_difference(beginning: str, found: Mapping[str, object], wanted: Mapping[str, object]) -> None:
    """What was made with other settings is neither mixed with this nor replaced.

    Raises:
        ValueError: names the first setting that differs, behind `beginning`.
    """
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"{beginning} {name} {found.get(name)!r}, and this run asks for {value!r}; "
                "use another folder, or the same settings"
            )


def _check_out(out: Path) -> None:
    """A draft takes its own files' place, and nobody else's."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; name a folder, which is made if need be")
    if is_draft_folder(out):
        return
    # `write_draft` writes the description before any of these.
    for name in (CARD_FILE, TRAINING_CHART_FILE, EVALUATION_CHART_FILE):
        if (out / name).exists():
            raise ValueError(
                f"--out {out} has a {name} that belongs to no draft and would be overwritten; name another folder, or "
                "move that file away"
            )


def _check_length(sequence_length: int, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    # Batched attention knows no window, and within one there is no need to.
    longest = min(config.context_length, config.sliding_window or config.context_length)
    if sequence_length > longest:
        raise ValueError(
            f"--sequence-length must be at most {longest} for {checkpoint.name}, which reads no further back, "
            f"got {sequence_length}"
        )


def _writable(arguments: Arguments, checkpoint: Checkpoint) -> tuple[WritingSettings, tuple[str, ...]]:
    """Kinds that the target can write, where none were named."""
    writing = arguments.writing
    if all(kind is TextKind.TEXT for kind in writing.kinds):
        return writing, ()
    try:
        ConversationFrame.of(checkpoint.tokenizer())
    except ValueError as error:
        if arguments.kinds_named:
            raise
        reason = str(error).partition(";")[0]
        return dataclasses.replace(writing, kinds=(TextKind.TEXT,)), (f"{reason}; it goes on from text instead",)
    return writing, ()


def _device(choice: DeviceChoice) -> torch.device:
    if choice is DeviceChoice.CPU or (choice is DeviceChoice.AUTO and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ValueError("torch cannot use a GPU here; leave out --device cuda, or install torch with CUDA")
    return torch.device("cuda")


def _dtype(precision: Precision, device: torch.device) -> torch.dtype:
    if precision is Precision.AUTO:
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.bfloat16 if precision is Precision.BFLOAT16 else torch.float32


def _is_demo(path: Path) -> bool:
    if not path.is_file() or path.stat().st_size != GGUF_BYTES:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == GGUF_SHA256
