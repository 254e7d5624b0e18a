"""Decoders away from the CPU, as far as this machine can tell: on the meta device, which has shapes but no values.

There, an operation that mixes the host's tensors with the model's, or that wants to know a value, is an error, as it
would be on a GPU or would make one wait.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from models.block_width import ExactWidths
from models.call_widths import CallWidths, probe_call_widths
from models.config import Family, ModelConfig
from models.decoder import Decoder
from models.decoder_weights import load_weights
from models.free_memory import available_memory
from models.kv_cache import KeyValueCache
from models.linear import CPU_WEIGHT_KIND, MatrixKinds, WeightKind
from models.loading import open_model
from models.random_model import TOY_DRAFT, TOY_TARGET
from models.transformers_model import TransformersModel
from tests.support.host_reads import forbid_host_reads
from tests.support.tiny_checkpoint import save_tokenizer, write_tiny_folder

META = torch.device("meta")
WIDTHS = ExactWidths((2, 4, 16, 17))
CALL_WIDTHS = CallWidths(layers=WIDTHS, attention=WIDTHS, head=WIDTHS, exact=False, thread_counts=(1,))
QWEN3 = dataclasses.replace(TOY_TARGET, family=Family.QWEN3, qk_norm=True, qkv_bias=False)
SLIDING = dataclasses.replace(TOY_TARGET, sliding_window=20, output_bias=True, mlp_bias=True)


class ShapesOnly:
    """Tensors without values."""

    name = "shapes"

    def __init__(self, config: ModelConfig) -> None:
        from models.decoder_tensors import expected_tensors

        self.config = config
        self.shapes = dict(expected_tensors(config))

    def has(self, name: str) -> bool:
        return name in self.shapes

    def tensor(self, name: str) -> torch.Tensor:
        return torch.empty(self.shapes[name], dtype=torch.bfloat16, device=META)


@pytest.mark.parametrize("kind", [WeightKind.FLOAT32, WeightKind.BFLOAT16])
@pytest.mark.parametrize(
    "config", [TOY_TARGET, TOY_DRAFT, QWEN3, SLIDING], ids=["qwen2", "tied", "qwen3", "sliding window"]
)
def test_all_of_a_call_stays_on_the_models_device(config: ModelConfig, kind: WeightKind) -> None:
    weights = load_weights(ShapesOnly(config), MatrixKinds.of(kind), META)
    decoder = Decoder(config, weights, name="shapes", device=META, widths=CALL_WIDTHS)
    cache = decoder.new_cache(100)
    assert cache.device == decoder.device == META
    with forbid_host_reads():
        for num_tokens in (1, 5, 17, 60):
            ids_T = torch.zeros(num_tokens, dtype=torch.int64, device=META)
            rows_TV = decoder.forward(ids_T, cache, num_logits=num_tokens)
            again_TV = decoder.forward_at(ids_T, ids_T, cache, key_length=90, num_logits=num_tokens)
            for logits_TV in (rows_TV, again_TV):
                assert logits_TV.shape == (num_tokens, config.vocab_size)
                assert logits_TV.device == META
                assert logits_TV.dtype == torch.float32


def test_a_machine_whose_rows_never_agree_gets_one_width_where_that_is_allowed() -> None:
    config = TOY_DRAFT
    cache = KeyValueCache(
        capacity=256, num_layers=1, num_kv_heads=2, head_dim=16, spare_positions=256, device=torch.device("cpu")
    )
    num_calls = 0

    def never_twice_the_same(rows: torch.Tensor) -> torch.Tensor:
        nonlocal num_calls
        num_calls += 1
        return rows.float() + num_calls

    found = probe_call_widths(
        config,
        max_block=256,
        cache=cache,
        run_layers=lambda ids_T, cache, position, widths: never_twice_the_same(ids_T[:, None]),
        run_head=lambda hidden_RE, widths: never_twice_the_same(hidden_RE),
        narrowest=2,
        must_agree=False,
        thread_counts=(torch.get_num_threads(),),
    )
    assert not found.exact
    assert found.layers == found.head == ExactWidths((17,))


def test_a_model_is_opened_in_its_devices_kind(tmp_path: Path) -> None:
    folder = write_tiny_folder(tmp_path)
    with open_model(folder) as opened:
        assert opened.load().weights is CPU_WEIGHT_KIND
    with open_model(folder, weights=WeightKind.BFLOAT16, device="cpu") as opened:
        loaded = opened.load()
    assert loaded.weights is WeightKind.BFLOAT16
    assert isinstance(loaded.model, Decoder)
    assert loaded.model.new_cache(9).dtype == torch.bfloat16
    with (
        pytest.raises(ValueError, match="weights=int8 needs an x86-64 CPU, got device cuda:1; use bfloat16 there"),
        open_model(folder, weights=WeightKind.INT8, device="cuda:1"),
    ):
        pass


@pytest.mark.parametrize(
    ("weights", "kept", "dtype"),
    [
        (WeightKind.BFLOAT16, WeightKind.BFLOAT16, torch.bfloat16),
        (WeightKind.FLOAT32, WeightKind.FLOAT32, torch.float32),
    ],
)
def test_the_adapter_is_opened_in_bfloat16_if_asked(
    tmp_path: Path, weights: WeightKind, kept: WeightKind, dtype: torch.dtype
) -> None:
    import transformers

    config = transformers.GPT2Config(
        vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=128, eos_token_id=0, bos_token_id=0
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    save_tokenizer(tmp_path)
    with open_model(tmp_path, weights=weights, device="cpu") as opened:
        loaded = opened.load(thread_counts=(torch.get_num_threads(),))
    assert isinstance(loaded.model, TransformersModel)
    assert loaded.weights is kept
    assert loaded.model._model.dtype == dtype
    assert loaded.thread_counts == loaded.model.thread_counts == (torch.get_num_threads(),)


def test_free_memory_of_a_device_is_what_cuda_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def mem_get_info(device: torch.device) -> tuple[int, int]:
        asked.append(device)
        return 5 << 30, 80 << 30

    monkeypatch.setattr(torch.cuda, "mem_get_info", mem_get_info)
    found = available_memory("cuda:1")
    assert found.num_bytes == 5 << 30
    assert "cuda:1" in found.reason
    assert asked == [torch.device("cuda:1")]


def test_what_torch_keeps_of_a_device_can_be_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (5 << 30, 80 << 30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 16 << 30)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 1 << 30)
    found = available_memory("cuda")
    assert found.kept_bytes == 15 << 30
    assert found.num_bytes == 20 << 30
