"""Scales kept between runs: measured once, found again, and measured anew where an entry is no good."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

from models import smoothing_cache
from models.checkpoint import open_checkpoint
from models.linear import WeightKind, has_packed_kinds
from models.loading import open_model
from models.smoothing import calibrate_input_scales
from models.smoothing_cache import cached_input_scales, calibration_sequences
from models.tokenizer import Tokenizer
from models.user_cache import CACHE_VARIABLE
from tests.support.tiny_checkpoint import tiny_tokenizer, write_tiny_folder, write_tiny_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

pytestmark = [
    pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="int8 kernels need an x86-64 CPU"),
    pytest.mark.usefixtures("one_thread"),
]


class Calibrations:
    """Stands before the measurement and counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        monkeypatch.setattr(smoothing_cache, "calibrate_input_scales", self)

    def __call__(self, *arguments: object) -> dict[str, torch.Tensor]:
        self.count += 1
        return calibrate_input_scales(*arguments)  # type: ignore[arg-type]  # passed on as it came


@pytest.fixture
def calibrations(monkeypatch: pytest.MonkeyPatch) -> Calibrations:
    return Calibrations(monkeypatch)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("tiny") / "model")


def scales_of(source: Path, tokenizer: Tokenizer | None = None) -> dict[str, torch.Tensor]:
    with open_checkpoint(source) as checkpoint:
        return cached_input_scales(checkpoint, tokenizer or checkpoint.tokenizer())


def only_entry(cache: Path) -> Path:
    (entry,) = (cache / "smoothing").iterdir()
    return entry


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_loading_again_measures_nothing(folder: Path, cache: Path, calibrations: Calibrations) -> None:
    first, second = scales_of(folder), scales_of(folder)
    assert calibrations.count == 1
    assert same(first, second)
    assert only_entry(cache).suffix == ".safetensors"


def test_only_int8_weights_are_measured_for(folder: Path, cache: Path, calibrations: Calibrations) -> None:
    ids = torch.tensor(tiny_tokenizer().encode("hello"))
    rows = {}
    for kind in (WeightKind.FLOAT32, WeightKind.FLOAT16, WeightKind.INT8):
        with open_model(folder, weights=kind) as opened:
            model = opened.load().model
        rows[kind] = model.forward(ids, model.new_cache(len(ids)), num_logits=len(ids))
        assert calibrations.count == (kind is WeightKind.INT8)
    relative = (rows[WeightKind.INT8] - rows[WeightKind.FLOAT32]).norm() / rows[WeightKind.FLOAT32].norm()
    assert 0 < relative < 0.05


def test_open_model_uses_the_scales(folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubling every scale that is handed on shows in the last bits of int8 rows."""
    ids = torch.tensor(tiny_tokenizer().encode("the hello"))

    def row() -> torch.Tensor:
        with open_model(folder, weights=WeightKind.INT8) as opened:
            model = opened.load().model
        return model.forward(ids, model.new_cache(len(ids)), num_logits=1)

    before = row()
    monkeypatch.setattr(
        "models.loading.cached_input_scales",
        lambda checkpoint, tokenizer: {
            key: scale_E * torch.linspace(0.2, 5, scale_E.shape[0])
            for key, scale_E in cached_input_scales(checkpoint, tokenizer).items()
        },
    )
    assert not torch.equal(row(), before)


@pytest.mark.parametrize("damage", ["empty", "cut short", "one bit", "text"])
def test_a_damaged_entry_is_measured_again(
    folder: Path, cache: Path, calibrations: Calibrations, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = scales_of(folder)
    entry = only_entry(cache)
    content = bytearray(entry.read_bytes())
    if damage == "one bit":
        content[-2] ^= 1
    damaged = {"empty": b"", "cut short": content[:-20], "one bit": content, "text": b"no tensors here"}[damage]
    entry.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        assert same(scales_of(folder), good)
    assert calibrations.count == 2
    assert str(entry) in caplog.text
    assert same(scales_of(folder), good)
    assert calibrations.count == 2


def test_another_models_entry_is_not_taken(
    tmp_path: Path, folder: Path, cache: Path, calibrations: Calibrations
) -> None:
    mine = scales_of(folder)
    entry = only_entry(cache)
    other_folder = write_tiny_folder(tmp_path / "other", seed=8)
    theirs = scales_of(other_folder)
    assert calibrations.count == 2
    assert not same(mine, theirs)
    (their_entry,) = {*entry.parent.iterdir()} - {entry}
    entry.write_bytes(their_entry.read_bytes())
    assert same(scales_of(folder), mine)
    assert calibrations.count == 3


def test_a_cache_that_cannot_be_written_costs_the_measurement_only(
    folder: Path, cache: Path, calibrations: Calibrations, caplog: pytest.LogCaptureFixture
) -> None:
    cache.write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        first, second = scales_of(folder), scales_of(folder)
    assert same(first, second)
    assert calibrations.count == 2
    assert "cannot be kept" in caplog.text


def test_models_with_little_context_or_few_ids_load(tmp_path: Path, cache: Path) -> None:
    short = write_tiny_gguf(tmp_path / "short.gguf", max_position_embeddings=16)
    few = write_tiny_folder(tmp_path / "few", vocab_size=48)
    for source in (short, few):
        with open_model(source, weights=WeightKind.INT8) as opened:
            loaded = opened.load()
        row = loaded.model.forward(torch.tensor([3, 4]), loaded.model.new_cache(4), num_logits=1)
        assert row.isfinite().all()


def test_a_model_without_a_chat_template_reads_the_conversation_as_text() -> None:
    metadata = byte_level_metadata()
    chatty = calibration_sequences(Tokenizer.from_gguf(metadata))
    del metadata["tokenizer.chat_template"]
    plain = calibration_sequences(Tokenizer.from_gguf(metadata))
    assert chatty[:2] == plain[:2]
    assert set(chatty[2]) >= {0, 1, 2}
    assert not set(plain[2]) & {0, 1, 2}
    refusing = byte_level_metadata()
    refusing["tokenizer.chat_template"] = "{{ raise_exception('no conversations') }}"
    assert calibration_sequences(Tokenizer.from_gguf(refusing)) == plain
