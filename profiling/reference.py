"""The same weights in transformers, to measure against.

Owns how a checkpoint becomes a transformers model, and that model's first layers an assistant. Knows nothing of this
project's own decoding, nor of how it is timed.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from torch import nn

from models import Checkpoint, Family, RopeScaling, UnsupportedModelError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


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
    missing = []
    # One tensor at a time: no more memory than the model itself takes.
    for name, parameter in model.state_dict().items():
        if checkpoint.has(name):
            parameter.copy_(checkpoint.tensor(name))
        elif name != "lm_head.weight":
            missing.append(name)
    if missing:
        raise UnsupportedModelError(f"the checkpoint lacks {sorted(missing)[0]}, which transformers needs")
    model.tie_weights()
    return model.eval()


def first_layers(model: PreTrainedModel, num_layers: int) -> PreTrainedModel:
    """A model of the first layers of a `reference_model`, with its embedding, final norm and head: the same modules.

    Raises:
        ValueError: if the model has no more layers than that.
    """
    num_there = len(model.model.layers)
    if not 1 <= num_layers < num_there:
        raise ValueError(f"num_layers must be 1 to {num_there - 1}, the model's but one, got {num_layers}")
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = num_layers
    shorter = copy.copy(model)
    # A copy of a module shares its table of parts with the original; these two get tables of their own.
    shorter._modules = dict(model._modules)
    shorter.model = copy.copy(model.model)
    shorter.model._modules = dict(model.model._modules)
    shorter.model.layers = nn.ModuleList(model.model.layers[:num_layers])
    shorter.config = shorter.model.config = config
    shorter.generation_config = copy.deepcopy(model.generation_config)
    return shorter
