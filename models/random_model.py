"""Decoders with random weights of a given shape, for measuring what a shape costs where no checkpoint is at hand.

Owns the shapes of some public models and the distribution of the weights. Knows nothing of what is measured.

Weights are drawn on the device that will hold them, tensor by tensor, so a model of 15 GB in bfloat16 takes a float32
copy of its largest matrices beside that, and nothing on the host.
"""

from __future__ import annotations

import hashlib
import math

import torch

from models.config import Family, ModelConfig, RopeConfig
from models.decoder import DEFAULT_MAX_BLOCK, Decoder
from models.decoder_tensors import EMBEDDING, HEAD, expected_tensors
from models.linear import MatrixKinds, WeightKind

QWEN2_5_7B = ModelConfig(
    family=Family.QWEN2,
    vocab_size=152_064,
    hidden_size=3584,
    intermediate_size=18_944,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    context_length=32_768,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=1_000_000.0),
    qkv_bias=True,
)
"""Qwen2.5-7B-Instruct: https://huggingface.co/Qwen/Qwen2.5-7B-Instruct/blob/main/config.json"""

QWEN2_5_0_5B = ModelConfig(
    family=Family.QWEN2,
    vocab_size=151_936,
    hidden_size=896,
    intermediate_size=4864,
    num_layers=24,
    num_heads=14,
    num_kv_heads=2,
    head_dim=64,
    context_length=32_768,
    rms_norm_eps=1e-6,
    rope=RopeConfig(theta=1_000_000.0),
    tie_embeddings=True,
    qkv_bias=True,
)
"""Qwen2.5-0.5B-Instruct: https://huggingface.co/Qwen/Qwen2.5-0.5B-Instruct/blob/main/config.json"""

TOY_TARGET = ModelConfig(
    family=Family.QWEN2,
    vocab_size=640,
    hidden_size=128,
    intermediate_size=384,
    num_layers=4,
    num_heads=8,
    num_kv_heads=2,
    head_dim=16,
    context_length=1024,
    qkv_bias=True,
)
"""The same kind with an eight-thousandth of the weights, for trying a program on a CPU."""

TOY_DRAFT = ModelConfig(
    family=Family.QWEN2,
    vocab_size=608,
    hidden_size=64,
    intermediate_size=128,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    context_length=1024,
    tie_embeddings=True,
    qkv_bias=True,
)
"""Beside `TOY_TARGET`; its logits are narrower, as those of the smaller Qwen2.5 are."""

LOGIT_DEVIATION = 2.0
"""Standard deviation of a row's logits: neither all alike nor one above all others."""
_NORM_SUFFIX = "norm.weight"
_BIAS_DEVIATION = 0.1


def random_decoder(
    config: ModelConfig,
    *,
    weights: WeightKind | MatrixKinds | None = None,
    device: str | torch.device = "cpu",
    seed: int = 0,
    max_block: int = DEFAULT_MAX_BLOCK,
) -> Decoder:
    """A decoder of the shape `config` with random weights, the same for the same seed on the same kind of device.

    Args:
        config: the shape.
        weights: how matrices are kept; None for the device's default.
        device: where the weights are drawn and kept.
        seed: of the weights; any whole number.
        max_block: most tokens one `forward` call shall take.

    Raises:
        ValueError: if the device lacks the weight kind, or a limit is out of range.
    """
    tensors = RandomTensors(config, device=torch.device(device), seed=seed)
    return Decoder.from_checkpoint(tensors, weights=weights, device=device, max_block=max_block)


class RandomTensors:
    """Tensors of a model's shape, drawn when they are asked for; each depends on the seed and its name alone.

    Every matrix keeps the magnitude of what it is given, except that what is added to the residual stream is scaled by
    1/sqrt(2 L), so that the stream neither grows nor shrinks with the depth L.
    """

    def __init__(self, config: ModelConfig, *, device: torch.device, seed: int) -> None:
        self._config = config
        self._device = device
        self._seed = seed
        self._shapes = dict(expected_tensors(config))

    @property
    def name(self) -> str:
        """A name for messages and metrics."""
        return f"random {self._config.family.value} of {self._config.num_layers} layers"

    @property
    def config(self) -> ModelConfig:
        """The decoder's shape."""
        return self._config

    def has(self, name: str) -> bool:
        """Whether the shape calls for a tensor of that name."""
        return name in self._shapes

    def tensor(self, name: str) -> torch.Tensor:
        """The tensor of that name, float32, on the device.

        Raises:
            KeyError: if the shape calls for none.
        """
        tensor = torch.empty(self._shapes[name], dtype=torch.float32, device=self._device)
        if name.endswith(_NORM_SUFFIX):
            return tensor.fill_(1.0)
        key = hashlib.blake2b(f"{self._seed}/{name}".encode(), digest_size=7).digest()
        generator = torch.Generator(self._device).manual_seed(int.from_bytes(key, "little"))
        return tensor.normal_(0, self._deviation(name, tensor.shape), generator=generator)

    def _deviation(self, name: str, shape: torch.Size) -> float:
        if name.endswith(".bias"):
            return _BIAS_DEVIATION
        keeping = 1 / math.sqrt(shape[1])
        if name in {EMBEDDING, HEAD}:
            # The last norm gives the head rows of unit root mean square.
            return LOGIT_DEVIATION * keeping if name == HEAD or self._config.tie_embeddings else 1.0
        to_residual_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        return keeping / math.sqrt(2 * self._config.num_layers) if to_residual_stream else keeping
