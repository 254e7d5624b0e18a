"""The memory estimate against what decoders really allocate, and the check against what is free."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from models import free_memory
from models.config import Family, ModelConfig
from models.decoder import Decoder
from models.errors import InsufficientMemoryError
from models.free_memory import AvailableMemory, available_memory
from models.linear import WeightKind
from models.memory import check_memory, estimate_memory, num_parameters

TINY = ModelConfig(
    family=Family.QWEN3,
    vocab_size=128,
    hidden_size=32,
    intermediate_size=64,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_length=512,
    qk_norm=True,
    qkv_bias=True,
)
DRAFT = dataclasses.replace(TINY, num_layers=1, intermediate_size=32, tie_embeddings=True, qkv_bias=False)


class RandomCheckpoint:
    """Weights of the right shapes, which count what is read."""

    name = "random"

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.num_weights = 0
        features = {
            "q_proj": (config.num_heads * config.head_dim, config.hidden_size),
            "k_proj": (config.num_kv_heads * config.head_dim, config.hidden_size),
            "v_proj": (config.num_kv_heads * config.head_dim, config.hidden_size),
            "o_proj": (config.hidden_size, config.num_heads * config.head_dim),
            "gate_proj": (config.intermediate_size, config.hidden_size),
            "up_proj": (config.intermediate_size, config.hidden_size),
            "down_proj": (config.hidden_size, config.intermediate_size),
            "embed_tokens": (config.vocab_size, config.hidden_size),
            "lm_head": (config.vocab_size, config.hidden_size),
            "q_norm": (config.head_dim,),
            "k_norm": (config.head_dim,),
        }
        self._features: dict[str, tuple[int, ...]] = features  # type: ignore[assignment]

    def has(self, name: str) -> bool:
        return True

    def tensor(self, name: str) -> torch.Tensor:
        *_, module, kind = name.split(".")
        shape = self._features.get(module, (self.config.hidden_size,))
        tensor = torch.linspace(-1, 1, torch.Size(shape if kind == "weight" else shape[:1]).numel())
        self.num_weights += tensor.numel()
        return tensor.reshape(shape if kind == "weight" else shape[:1])


def decoder(config: ModelConfig, kind: WeightKind) -> tuple[Decoder, int]:
    checkpoint = RandomCheckpoint(config)
    return Decoder.from_checkpoint(checkpoint, weights=kind, max_block=4), checkpoint.num_weights


@pytest.mark.parametrize("config", [TINY, DRAFT], ids=["untied", "tied"])
@pytest.mark.parametrize("kind", list(WeightKind))
def test_the_estimate_is_what_a_decoder_allocates(config: ModelConfig, kind: WeightKind) -> None:
    model, num_weights = decoder(config, kind)
    estimate = estimate_memory(config, context_length=300, target_weights=kind)
    assert num_parameters(config) == num_weights
    assert estimate.weight_bytes == pytest.approx(model.num_weight_bytes, rel=0.02)
    assert estimate.cache_bytes == model.new_cache(300).num_bytes


def test_a_pair_is_the_sum_and_shared_weights_count_once() -> None:
    alone = estimate_memory(TINY, context_length=300)
    draft = estimate_memory(DRAFT, context_length=300)
    pair = estimate_memory(TINY, context_length=300, draft=DRAFT, draft_weights=WeightKind.FLOAT16)
    assert pair.weight_bytes == alone.weight_bytes + draft.weight_bytes
    assert pair.cache_bytes == alone.cache_bytes + draft.cache_bytes
    assert pair.cache_bytes_per_token == alone.cache_bytes_per_token + draft.cache_bytes_per_token
    early_exit = estimate_memory(TINY, context_length=300, draft=dataclasses.replace(TINY, num_layers=1))
    assert early_exit.weight_bytes == alone.weight_bytes
    assert early_exit.cache_bytes == alone.cache_bytes * 4 // 3


@given(context_length=st.integers(1, 100_000), available=st.integers(0, 1 << 28))
def test_the_named_context_length_fits_and_a_refusal_is_right(context_length: int, available: int) -> None:
    free = AvailableMemory(num_bytes=available, reason="a test")
    estimate = estimate_memory(TINY, context_length=context_length)
    if estimate.total_bytes <= available:
        check_memory(estimate, free)
        return
    with pytest.raises(InsufficientMemoryError) as raised:
        check_memory(estimate, free)
    fitting = estimate.context_length_within(available)
    assert fitting < context_length
    if fitting:
        assert f"a context length of {fitting} would fit" in str(raised.value)
        check_memory(estimate_memory(TINY, context_length=fitting), free)
    else:
        assert "no context length would fit" in str(raised.value)


def test_unknown_free_memory_passes() -> None:
    check_memory(estimate_memory(TINY, context_length=1 << 40), AvailableMemory(num_bytes=None, reason="nobody tells"))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="context_length must be at least 1, got 0"):
        estimate_memory(TINY, context_length=0)
    with pytest.raises(ValueError, match="max_block must be at least 1, got -1"):
        estimate_memory(TINY, context_length=1, max_block=-1)


def test_this_machine_tells_or_says_why_not() -> None:
    free = available_memory()
    assert free.reason
    assert free.num_bytes is None or free.num_bytes > 0
    if not torch.cuda.is_available():
        assert available_memory("cuda").num_bytes is None
        assert "CUDA" in available_memory("cuda").reason
    assert available_memory("meta").num_bytes is None


def test_a_container_limit_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "memory.max").write_text("1000000\n")
    (tmp_path / "memory.current").write_text("700000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 200000\nactive_file 7\n")
    monkeypatch.setattr(free_memory, "CONTROL_GROUP_FOLDER", tmp_path)
    assert available_memory().num_bytes == 500_000
    assert "container" in available_memory().reason
    (tmp_path / "memory.max").write_text("max\n")
    assert "container" not in available_memory().reason


def test_without_proc_the_operating_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "CONTROL_GROUP_FOLDER", tmp_path)
    monkeypatch.setattr(free_memory, "MEMORY_FILE", tmp_path / "missing")
    monkeypatch.setattr(free_memory.os, "sysconf", {"SC_AVPHYS_PAGES": 3, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert available_memory().num_bytes == 3 * 4096

    def refuse(name: str) -> int:
        raise ValueError("unrecognized configuration name")

    monkeypatch.setattr(free_memory.os, "sysconf", refuse)
    assert available_memory().num_bytes is None
    assert "unrecognized configuration name" in available_memory().reason
