"""The same weights in transformers, to measure against.

Owns how a checkpoint becomes a transformers model and how one generation of it is timed. Knows nothing of this
project's own decoding.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from models import Checkpoint, Family, RopeScaling, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, kw_only=True)
class ReferenceRun:
    """One timed generation."""

    token_ids: tuple[int, ...]
    ttft_ms: float
    tpot_ms: float


def reference_model(checkpoint: Checkpoint) -> PreTrainedModel:
    """A float32 transformers model with a checkpoint's own tensors.

    Raises:
        UnsupportedModelError: for a family whose transformers configuration is not built here.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    config = checkpoint.config
    if config.family is not Family.LLAMA or config.rope.scaling is not RopeScaling.NONE:
        raise UnsupportedModelError(
            f"the comparison with transformers is made for plain llama models, not {config.family}"
        )
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_layers,
            num_attention_heads=config.num_heads,
            num_key_value_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.context_length,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=config.rope.theta,
            tie_word_embeddings=config.tie_embeddings,
            attention_bias=config.qkv_bias,
            mlp_bias=config.mlp_bias,
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
    )
    tensors = {name: checkpoint.tensor(name).float() for name in model.state_dict() if checkpoint.has(name)}
    missing, _ = model.load_state_dict(tensors, strict=False)
    if set(missing) - {"lm_head.weight"}:
        raise UnsupportedModelError(f"the checkpoint lacks {sorted(missing)[0]}, which transformers needs")
    model.tie_weights()
    return model.eval()


class _Clock:
    """A transformers streamer that notes when tokens come, and how many at a time."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.num_tokens: list[int] = []

    def put(self, value: torch.Tensor) -> None:
        self.times.append(time.perf_counter())
        self.num_tokens.append(value.numel())

    def end(self) -> None:
        pass


def run_reference(
    model: Any, prompt_ids: list[int], *, threads: int, max_tokens: int, lookup_tokens: int | None
) -> ReferenceRun:
    """Greedy `generate`, plain or with transformers' own prompt lookup; exactly `max_tokens` tokens."""
    torch.set_num_threads(threads)
    clock = _Clock()
    options: dict[str, Any] = {} if lookup_tokens is None else {"prompt_lookup_num_tokens": lookup_tokens}
    ids = torch.tensor([prompt_ids])
    started = time.perf_counter()
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=max_tokens,
        min_new_tokens=max_tokens,
        do_sample=False,
        streamer=clock,
        **options,
    )
    # The streamer is given the prompt first. The tokens of the first step came with the prompt's reading; as with our
    # own runs, they do not count as decoded in the time after it.
    first = clock.times[1]
    token_ids = tuple(output[0, len(prompt_ids) :].tolist())
    return ReferenceRun(
        token_ids=token_ids,
        ttft_ms=(first - started) * 1e3,
        tpot_ms=(clock.times[-1] - first) * 1e3 / max(1, len(token_ids) - clock.num_tokens[1]),
    )
