"""The device under test: its driver, its gauge, and the models that checks share.

Owns what lives longer than one check. Knows nothing of what is checked.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from models import Decoder, ModelConfig, WeightKind, random_decoder
from profiling.gpu_checks.check import CannotRun
from profiling.gpu_checks.gauge import CudaGauge, DeviceGauge, HostGauge
from profiling.gpu_checks.host_driver import HostDriver
from profiling.gpu_checks.sizes import DRY_SIZES, GPU_SIZES, CheckSizes
from scheduler import CudaDriver, CudaStream, TorchCudaDriver

_SHARE_FOR_TARGET = 0.6
"""Of the free memory; the rest is for the draft, caches and what packing takes for a moment."""
_BFLOAT16_BYTES = 2
_CALIBRATION_CYCLES = 20_000_000


class DraftKind(StrEnum):
    """Which draft a small target gets."""

    TWIN = "the target's twin"
    """Its own weights: always right but for last bits."""
    CLOSE = "the target without its last layer"
    """Right about as often as not."""
    OTHER = "another model"
    """Seldom right, and its rows are narrower than the target's."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """A target and its draft."""

    target: Decoder
    draft: Decoder


class GpuBench:
    """One device, ready for checks."""

    def __init__(self, driver: CudaDriver, gauge: DeviceGauge, sizes: CheckSizes) -> None:
        """Take the device.

        Args:
            driver: where streams come from.
            gauge: what else is asked of it.
            sizes: how much checks do.
        """
        self.driver = driver
        self.gauge = gauge
        self.sizes = sizes
        self.device = driver.device
        self._decoders: dict[tuple[ModelConfig, WeightKind, int], Decoder] = {}
        self._large_config: ModelConfig | None = None
        self.cycles_per_ms = self._calibrated_sleep()

    @classmethod
    def on_gpu(cls, device: torch.device | str = "cuda") -> GpuBench:
        """A bench on a GPU.

        Raises:
            DeviceUnavailableError: if there is none; the message says why.
        """
        driver = TorchCudaDriver(device)
        return cls(driver, CudaGauge(driver.device), GPU_SIZES)

    @classmethod
    def dry(cls) -> GpuBench:
        """The CPU in place of a GPU, at toy sizes."""
        return cls(HostDriver(), HostGauge(), DRY_SIZES)

    def stream(self, name: str, **options: Any) -> CudaStream:
        """A stream with times; the options are `CudaStream`'s."""
        return CudaStream(name, self.driver, timing=True, **options)

    def cycles(self, duration_ms: float) -> int:
        """What `driver.sleep` takes for about that long."""
        return max(1, int(duration_ms * self.cycles_per_ms))

    def decoder(self, config: ModelConfig, weights: WeightKind, *, seed: int = 0) -> Decoder:
        """Random weights; drawn once and kept."""
        key = (config, weights, seed)
        if key not in self._decoders:
            self._decoders[key] = random_decoder(config, weights=weights, device=self.device, seed=seed)
            self.gauge.synchronize()
        return self._decoders[key]

    def small_pair(self, kind: DraftKind = DraftKind.CLOSE) -> Pair:
        """Two models in float32."""
        target = self.decoder(self.sizes.small_target, WeightKind.FLOAT32)
        if kind is DraftKind.OTHER:
            return Pair(target=target, draft=self.decoder(self.sizes.small_draft, WeightKind.FLOAT32, seed=1))
        num_layers = target.config.num_layers - (1 if kind is DraftKind.CLOSE else 0)
        return Pair(target=target, draft=target.first_layers(num_layers))

    def large_pair(self) -> Pair:
        """bfloat16; the target has as many layers as the memory holds.

        Raises:
            CannotRun: if the memory holds none.
        """
        if self._large_config is None:
            self._large_config = self._fitting(self.sizes.large_target)
        target = self.decoder(self._large_config, WeightKind.BFLOAT16)
        return Pair(target=target, draft=self.decoder(self.sizes.large_draft, WeightKind.BFLOAT16, seed=1))

    def _fitting(self, config: ModelConfig) -> ModelConfig:
        room_bytes = _SHARE_FOR_TARGET * self.driver.memory().free_bytes
        num_tables = 1 if config.tie_embeddings else 2
        num_layers = int((room_bytes - num_tables * table_bytes(config)) // layer_bytes(config))
        if num_layers < 1:
            raise CannotRun(f"{room_bytes / 1e9:.1f} GB of device memory hold no layer of the large target")
        return dataclasses.replace(config, num_layers=min(num_layers, config.num_layers))

    def _calibrated_sleep(self) -> float:
        """Clock cycles of a sleep in a millisecond."""
        stream = self.stream("calibration")
        for _ in range(2):  # the first one starts the device's clocks
            start = stream.record()
            stream.launch(lambda: self.driver.sleep(_CALIBRATION_CYCLES))
            end = stream.record()
            end.synchronize()
        stream.close()
        return _CALIBRATION_CYCLES / max(end.elapsed_ms_since(start), 1e-3)


def layer_bytes(config: ModelConfig) -> int:
    """bfloat16 bytes of one layer's matrices."""
    attention = config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    return _BFLOAT16_BYTES * config.hidden_size * (attention + 3 * config.intermediate_size)


def table_bytes(config: ModelConfig) -> int:
    """bfloat16 bytes of the embedding, or of the head."""
    return _BFLOAT16_BYTES * config.hidden_size * config.vocab_size
