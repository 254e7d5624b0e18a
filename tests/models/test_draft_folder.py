"""The folder of a distilled draft: what is written is read, and whatever does not fit is refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from models.config import Family, ModelConfig
from models.draft_folder import (
    DESCRIPTION_FILE,
    FUSION,
    HEAD_TOKEN_IDS,
    WEIGHTS_FILE,
    DraftDesign,
    DraftTarget,
    is_draft_folder,
    open_draft,
    read_draft_description,
    write_draft,
)
from models.errors import CheckpointError, PairError
from tests.support.draft_folders import random_draft_tensors, write_random_draft

CONFIG = ModelConfig(
    family=Family.QWEN3,
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=4,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=64,
    qkv_bias=True,
    qk_norm=True,
)
TARGET = DraftTarget(name="tiny", fingerprint="0123", config=CONFIG)
WAY_OUT = "python -m models.distill --target tiny --out DIR"

Description = dict[str, object]


def rewrite(folder: Path, change: Callable[[Description], object]) -> None:
    path = folder / DESCRIPTION_FILE
    description = json.loads(path.read_text())
    change(description)
    path.write_text(json.dumps(description))


@pytest.mark.parametrize("design", DraftDesign)
@pytest.mark.parametrize("head_size", [None, 1, 17, 40])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_written_is_read(
    design: DraftDesign, head_size: int | None, dtype: torch.dtype, tmp_path: Path
) -> None:
    tensors = random_draft_tensors(CONFIG, design, num_layers=2, head_size=head_size, dtype=dtype)
    folder = tmp_path / "made" / "draft"
    written = write_draft(
        folder, design=design, num_layers=2, target=TARGET, tensors=tensors, making={"steps": 3}, card="# A draft\n"
    )
    draft = open_draft(written, TARGET)
    assert (draft.name, draft.design, draft.config) == ("draft", design, dataclasses.replace(CONFIG, num_layers=2))
    assert draft.head_size == (head_size or CONFIG.vocab_size)
    assert draft.description.making == {"steps": 3}
    assert (folder / "README.md").read_text() == "# A draft\n"
    read = draft.tensors()
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) and read[name].dtype == tensors[name].dtype for name in tensors)
    if head_size is not None:
        assert draft.head_token_ids_C is not None
        assert torch.equal(draft.head_token_ids_C, tensors[HEAD_TOKEN_IDS])
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", DESCRIPTION_FILE, WEIGHTS_FILE]


def test_a_draft_takes_another_ones_place_and_leaves_other_files_alone(tmp_path: Path) -> None:
    write_random_draft(tmp_path, TARGET, DraftDesign.FEATURE)
    (tmp_path / "log.txt").write_text("kept")
    write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN, head_size=9)
    assert open_draft(tmp_path, TARGET).design is DraftDesign.TOKEN
    assert (tmp_path / "log.txt").read_text() == "kept"


def test_a_write_that_stops_between_the_files_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN, seed=1)
    replace = os.replace

    def full(source: str, destination: Path) -> None:
        if destination.name == DESCRIPTION_FILE:
            raise OSError(28, "No space left on device")
        replace(source, destination)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space"):
        write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN, seed=2)
    with pytest.raises(CheckpointError, match="only one of the two was replaced"):
        open_draft(tmp_path, TARGET)
    assert sorted(path.name for path in tmp_path.iterdir()) == [DESCRIPTION_FILE, WEIGHTS_FILE]


def test_a_card_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a card and no description holds somebody else's files."""
    names: list[str] = []
    monkeypatch.setattr("models.draft_folder.write_atomically", lambda path, _: names.append(path.name))
    tensors = random_draft_tensors(CONFIG, DraftDesign.TOKEN)
    write_draft(tmp_path, design=DraftDesign.TOKEN, num_layers=1, target=TARGET, tensors=tensors, card="# A draft\n")
    assert names == [WEIGHTS_FILE, DESCRIPTION_FILE, "README.md"]


@pytest.mark.parametrize(
    ("target", "named"),
    [
        (dataclasses.replace(TARGET, name="other", fingerprint="4567"), "the fingerprint 0123 instead of 4567"),
        (
            dataclasses.replace(TARGET, config=dataclasses.replace(CONFIG, vocab_size=41)),
            "vocab_size 40 instead of 41",
        ),
        (
            dataclasses.replace(TARGET, config=dataclasses.replace(CONFIG, hidden_size=8)),
            "hidden_size 16 instead of 8",
        ),
    ],
)
def test_another_target_is_refused(target: DraftTarget, named: str, tmp_path: Path) -> None:
    write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN)
    with pytest.raises(PairError, match=named) as refusal:
        open_draft(tmp_path, target)
    assert f"made for 'tiny', not for '{target.name}'" in str(refusal.value)
    assert f"--target {target.name} --out DIR" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="another"), "format is 'another'"),
        (lambda d: d.pop("format"), "format is missing"),
        (lambda d: d.update(version=2), "version is 2, but this version reads 1; update it"),
        (lambda d: d.update(version="1"), "version is '1'"),
        (lambda d: d.update(kind="words"), "kind is 'words', but must be one of token, feature"),
        (lambda d: d.update(num_layers=0), "num_layers is 0"),
        (lambda d: d.update(num_layers=1 << 40), "num_layers is"),
        (lambda d: d.update(num_layers=2), r"layers.1.input_layernorm.weight is missing"),
        (lambda d: d.update(kind="feature"), r"fusion.embedding_norm.weight is missing"),
        (lambda d: d.update(target=[1]), "target is .1., but must be a mapping"),
        (lambda d: d.pop("target"), "name is missing"),
        (lambda d: d["target"].pop("fingerprint"), "fingerprint is missing"),
        (lambda d: d.update(weights_sha256="0" * 64), "is not the file that"),
        (lambda d: d.update(making=3), "making is 3"),
    ],
)
def test_a_malformed_description_is_refused(
    change: Callable[[Description], object], message: str, tmp_path: Path
) -> None:
    write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN)
    rewrite(tmp_path, change)
    with pytest.raises(CheckpointError, match=message):
        open_draft(tmp_path, TARGET)


def test_missing_and_truncated_files_are_refused(tmp_path: Path) -> None:
    assert not is_draft_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"is no distilled draft.*python -m models\.distill"):
        read_draft_description(tmp_path)
    write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN)
    assert is_draft_folder(tmp_path)
    weights = tmp_path / WEIGHTS_FILE
    content = weights.read_bytes()
    for end in (0, 7, 8, 100, len(content) // 2, len(content) - 1):
        weights.write_bytes(content[:end])
        with pytest.raises(CheckpointError, match=WAY_OUT):
            open_draft(tmp_path, TARGET)
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="it is damaged"):
        open_draft(tmp_path, TARGET)
    weights.unlink()
    with pytest.raises(CheckpointError, match="cannot read"):
        open_draft(tmp_path, TARGET)
    (tmp_path / DESCRIPTION_FILE).write_text("{")
    with pytest.raises(CheckpointError, match="not valid JSON"):
        open_draft(tmp_path, TARGET)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(FUSION), "fusion.weight is missing"),
        (lambda t: t.update({FUSION: t[FUSION][:, :-1]}), r"fusion.weight has shape \(16, 31\).*\(16, 32\)"),
        (lambda t: t.update({FUSION: t[FUSION].double()}), "fusion.weight has dtype torch.float64"),
        (lambda t: t.update({FUSION: t[FUSION] * float("nan")}), "fusion.weight holds numbers that are not finite"),
        (lambda t: t.update({"lm_head.weight": t[FUSION]}), "lm_head.weight is not part of a feature draft"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([1, 1], dtype=torch.int32)}), "ascending, each once"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([2, 1], dtype=torch.int32)}), "ascending, each once"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([1, 40], dtype=torch.int32)}), "within 0 and 39"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([-1, 4], dtype=torch.int32)}), "within 0 and 39"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([1, 4])}), "of torch.int64"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.empty(0, dtype=torch.int32)}), r"shape \(0,\)"),
        (lambda t: t.update({HEAD_TOKEN_IDS: torch.tensor([[1, 4]], dtype=torch.int32)}), r"shape \(1, 2\)"),
    ],
)
def test_tensors_that_do_not_fit_are_not_written(
    change: Callable[[dict[str, torch.Tensor]], object], message: str, tmp_path: Path
) -> None:
    tensors = random_draft_tensors(CONFIG, DraftDesign.FEATURE)
    change(tensors)
    with pytest.raises(CheckpointError, match=message):
        write_draft(tmp_path, design=DraftDesign.FEATURE, num_layers=1, target=TARGET, tensors=tensors)
    assert list(tmp_path.iterdir()) == []


def test_tensors_that_another_program_wrote_are_checked_too(tmp_path: Path) -> None:
    """The hash only says that the two files belong together."""
    import hashlib

    from safetensors.torch import save

    tensors = random_draft_tensors(CONFIG, DraftDesign.TOKEN)
    for change, message in (
        ({"extra": torch.zeros(1)}, "extra is not part of a token draft"),
        ({HEAD_TOKEN_IDS: torch.tensor([3, 2], dtype=torch.int32)}, "ascending"),
        ({HEAD_TOKEN_IDS: torch.tensor([3, 4])}, "dtype 'I64'"),
        ({"layers.0.input_layernorm.weight": torch.zeros(16, dtype=torch.bfloat16)}, "dtype 'BF16'"),
    ):
        write_random_draft(tmp_path, TARGET, DraftDesign.TOKEN)
        content = save({**tensors, **change})
        (tmp_path / WEIGHTS_FILE).write_bytes(content)
        rewrite(tmp_path, lambda d, content=content: d.update(weights_sha256=hashlib.sha256(content).hexdigest()))
        with pytest.raises(CheckpointError, match=message):
            open_draft(tmp_path, TARGET)
    content = save({**tensors, "layers.0.input_layernorm.weight": torch.full((16,), float("inf"))})
    (tmp_path / WEIGHTS_FILE).write_bytes(content)
    rewrite(tmp_path, lambda d: d.update(weights_sha256=hashlib.sha256(content).hexdigest()))
    with pytest.raises(CheckpointError, match="not finite"):
        open_draft(tmp_path, TARGET).tensors()
