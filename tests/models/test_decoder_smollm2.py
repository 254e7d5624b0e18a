"""The lean decoder on the demo's real weights: transformers' numbers, and rows equal to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models.checkpoint import Checkpoint, open_checkpoint
from models.decoder import VERIFY_BLOCK, Decoder
from models.linear import WeightKind

pytestmark = pytest.mark.weights

NUM_TOKENS = 135
TEXT = (
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n"
    "The function above calls itself twice, so its running time grows about as fast as its own result. "
    "Keeping the values that were already found turns it into a walk along the list, once from the left to the right. "
    "Explain to a colleague, in three short sentences, why that is so, and what it costs in memory.\n"
)


@pytest.fixture(scope="module")
def checkpoint(demo_gguf: Path) -> Checkpoint:
    return open_checkpoint(demo_gguf)


@pytest.fixture(scope="module")
def token_ids_T(checkpoint: Checkpoint) -> torch.Tensor:
    ids = checkpoint.tokenizer().encode(TEXT)
    return torch.tensor((ids * 2)[:NUM_TOKENS])


@pytest.fixture(scope="module", params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def rows_in_blocks(decoder: Decoder, token_ids_T: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    cache = decoder.new_cache(token_ids_T.shape[0])
    rows = [decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]) for ids_T in token_ids_T.split(sizes)]
    return torch.cat(rows)


def test_logits_equal_those_of_transformers(
    checkpoint: Checkpoint, token_ids_T: torch.Tensor, one_thread: None
) -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=config.tie_embeddings,
            attn_implementation="eager",
        )
    )
    tensors = {name: checkpoint.tensor(name) for name in model.state_dict() if checkpoint.has(name)}
    missing, unexpected = model.load_state_dict(tensors, strict=False, assign=True)
    assert set(missing) <= {"lm_head.weight"}
    assert not unexpected
    model.tie_weights()
    with torch.no_grad():
        expected_TV = model.eval()(token_ids_T[None]).logits[0]
    del model

    decoder = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32)
    sizes = [45, 1, 1, 2, 3, 5, 8, 12, 13, 16, 17, 9, 3]
    logits_TV = rows_in_blocks(decoder, token_ids_T, sizes)
    torch.testing.assert_close(logits_TV, expected_TV, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [WeightKind.FLOAT16, WeightKind.INT8])
def test_rows_are_equal_to_the_bit(
    checkpoint: Checkpoint, token_ids_T: torch.Tensor, threads: int, kind: WeightKind
) -> None:
    decoder = Decoder.from_checkpoint(checkpoint, weights=kind)
    one_by_one_TV = rows_in_blocks(decoder, token_ids_T, [1] * NUM_TOKENS)
    for sizes in ([NUM_TOKENS], [57, *range(1, 13)], [55, VERIFY_BLOCK, 16, 15, 14, 13, 5]):
        assert torch.equal(rows_in_blocks(decoder, token_ids_T, sizes), one_by_one_TV), f"blocks of {sizes}"
