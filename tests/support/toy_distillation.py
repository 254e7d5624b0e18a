"""A tiny target whose next token is worth foretelling, text that it wrote, and a draft of it.

Shape suffixes: N sequences, T tokens, E hidden width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch

from models.config import Family, ModelConfig
from models.decoder_tensors import expected_tensors
from models.distill.batched_target import BatchedTarget
from models.distill.draft_model import DraftModel
from models.distill.seeds import SequenceSeed
from models.distill.settings import TrainingSettings
from models.distill.shard import Shard
from models.distill.text_kind import TextKind
from models.distill.writer import Writer
from models.draft_folder import DraftDesign
from tests.support.tiny_decoders import StateDictCheckpoint

CONFIG = ModelConfig(
    family=Family.LLAMA,
    vocab_size=50,
    hidden_size=32,
    intermediate_size=48,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=128,
    tie_embeddings=False,
)
CPU = torch.device("cpu")


def toy_checkpoint(config: ModelConfig = CONFIG) -> StateDictCheckpoint:
    """Layers that add little to the embedding, and a head with clear favourites."""
    generator = torch.Generator().manual_seed(5)

    def tensor(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if "norm" in name:
            return torch.rand(shape, generator=generator) * 0.4 + 0.8
        scale = {"model.embed_tokens.weight": 1.0, "lm_head.weight": 0.5}.get(name, 0.15)
        return torch.randn(shape, generator=generator) * scale

    return StateDictCheckpoint(config, {name: tensor(name, shape) for name, shape in expected_tensors(config)})


def toy_target(checkpoint: StateDictCheckpoint | None = None, *, num_positions: int = 64) -> BatchedTarget:
    return BatchedTarget(checkpoint or toy_checkpoint(), dtype=torch.float32, device=CPU, num_positions=num_positions)


@dataclass(frozen=True, kw_only=True)
class FixedSeeds:
    """Stands for `models.distill.seeds.SeedSource`: no conversation, the same beginning or a running number."""

    beginning: tuple[int, ...] | None = None
    temperatures: tuple[float, ...] = (1.0,)
    frame: None = None
    ends: frozenset[int] = field(default_factory=frozenset)

    def seed(self, number: int) -> SequenceSeed:
        return SequenceSeed(
            kind=TextKind.TEXT,
            forced_ids=(number % CONFIG.vocab_size, number // CONFIG.vocab_size)
            if self.beginning is None
            else self.beginning,
            writes_question=False,
            temperature=self.temperatures[number % len(self.temperatures)],
        )

    def beginning_of_text(self) -> tuple[int, ...]:
        return (0,)


def write_toy_text(
    target: BatchedTarget, seeds: FixedSeeds, *, num_sequences: int, length: int, wave: int = 0
) -> Shard:
    writer = Writer(target, seeds, num_sequences=num_sequences, sequence_length=length, seed=3)  # type: ignore[arg-type]
    return writer.write(wave)


def toy_draft(checkpoint: StateDictCheckpoint, settings: TrainingSettings) -> DraftModel:
    draft = DraftModel(checkpoint.config, design=settings.design, num_layers=settings.num_layers)
    draft.initialise(checkpoint)
    return draft


def random_draft(design: DraftDesign, *, num_layers: int = 1, seed: int = 9) -> DraftModel:
    """Every parameter away from where it starts."""
    draft = DraftModel(CONFIG, design=design, num_layers=num_layers)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in draft.parameters():
            values = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(values * 0.2 + 1 if parameter.ndim == 1 else values * 0.2)
    return draft


def shard_of(token_ids_NT: torch.Tensor, *, hidden_size: int = 4) -> Shard:
    """Text whose features are of no interest."""
    num_sequences, length = token_ids_NT.shape
    return Shard(
        token_ids_NT=token_ids_NT.int(),
        features_NTE=torch.zeros(num_sequences, length, hidden_size, dtype=torch.float16),
        log_totals_NT=torch.zeros(num_sequences, length),
        asked_NT=torch.ones(num_sequences, length, dtype=torch.bool),
        kinds=(TextKind.TEXT,) * num_sequences,
    )


def text_file(folder: Path) -> Path:
    """Two paragraphs to quote from: quicker to read than the standard library."""
    path = folder / "text.txt"
    path.write_text("\n\n".join(word * 40 for word in ("the hello tree ", "hell of a bell ")), encoding="utf-8")
    return path
