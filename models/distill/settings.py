"""Settings of a distillation, checked when they are made.

Owns the dataclasses and their limits. Knows nothing of how they are spelled on a command line.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from models.distill.text_kind import TextKind
from models.draft_folder import DraftDesign

_MOST_LAYERS = 64
"""A draft of more would be no draft, and its folder could not be opened from some number on."""
_LARGEST_SEED = (1 << 63) - 1


class Loss(StrEnum):
    """What training makes small."""

    FORWARD_KL = "kl"
    """KL(p || q) of target p and draft q."""
    TOTAL_VARIATION = "tv"
    """1 - sum min(p, q): exactly the chance that a proposal is refused under the rejection rule."""


@dataclass(frozen=True, kw_only=True)
class WritingSettings:
    """The text that the target writes."""

    num_tokens: int = 1_000_000
    """At least so many, in whole waves."""
    sequence_length: int = 384
    sequences_per_wave: int = 192
    """Written side by side by one worker; what is kept or lost by an interruption."""
    kinds: tuple[TextKind, ...] = (TextKind.CHAT, TextKind.CODE, TextKind.COPY)
    temperatures: tuple[float, ...] = (1.0,)
    """Of answers, in turn; questions are drawn at 1."""
    text_files: tuple[Path, ...] = ()
    """Snippets come from these instead of Python's own modules."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: naming the field.
        """
        _at_least("num_tokens", self.num_tokens, 1)
        _at_least("sequence_length", self.sequence_length, 16)
        _at_least("sequences_per_wave", self.sequences_per_wave, 1)
        _within("seed", self.seed, 0, _LARGEST_SEED)
        if not self.kinds:
            raise ValueError(f"kinds is empty; name one or more of {', '.join(TextKind)}")
        if not self.temperatures:
            raise ValueError("temperatures is empty; (1.0,) draws as the target would")
        for temperature in self.temperatures:
            if not 0.05 <= temperature <= 4:
                raise ValueError(f"temperatures must be within 0.05 and 4, got {temperature}")

    @property
    def num_waves(self) -> int:
        """Waves that make up the tokens."""
        return math.ceil(self.num_tokens / (self.sequences_per_wave * self.sequence_length))


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How the draft learns."""

    design: DraftDesign = DraftDesign.FEATURE
    num_layers: int = 1
    num_head_tokens: int = 8192
    """Most frequent tokens that the draft can propose; 0 is all."""
    num_epochs: float = 4.0
    """Passes over the text, unless `minutes` is given."""
    minutes: float | None = None
    """Training time; how many steps that makes is found out at the start, and kept."""
    batch_sequences: int = 16
    learning_rate: float = 2e-3
    warmup_share: float = 0.03
    weight_decay: float = 0.01
    largest_gradient_norm: float = 1.0
    loss: Loss = Loss.FORWARD_KL
    num_own_steps: int = 1
    """FEATURE: how many tokens ahead it is trained to go on by its own features; 1 is none."""
    own_steps_after: float = 0.5
    """Share of the training that is spent on the target's features alone: own steps cost as much again each, and a
    draft that knows little yet learns little from them."""
    own_step_weight: float = 0.7
    """What each further step counts, relative to the one before."""
    patience: int = 8
    """Evaluations without a better held-out acceptance until training stops early."""
    evaluations: int = 40
    """Evaluations over the whole training; each leaves a checkpoint."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: naming the field.
        """
        for name in ("batch_sequences", "num_own_steps", "patience", "evaluations"):
            _at_least(name, getattr(self, name), 1)
        _within("num_layers", self.num_layers, 1, _MOST_LAYERS)
        _at_least("num_head_tokens", self.num_head_tokens, 0)
        _within("seed", self.seed, 0, _LARGEST_SEED)
        _check("num_epochs", self.num_epochs, lambda x: 0 < x <= 1e6, "above 0 and at most 1,000,000")
        if self.minutes is not None:
            _check("minutes", self.minutes, lambda x: 0 < x <= 1e6, "above 0 and at most 1,000,000")
        _check("learning_rate", self.learning_rate, lambda x: 0 < x <= 0.1, "above 0 and at most 0.1")
        _check("warmup_share", self.warmup_share, lambda x: 0 <= x < 1, "within 0 and 1, 1 not included")
        _check("weight_decay", self.weight_decay, lambda x: 0 <= x < 1, "within 0 and 1, 1 not included")
        _check("largest_gradient_norm", self.largest_gradient_norm, lambda x: x > 0, "above 0")
        _check("own_steps_after", self.own_steps_after, lambda x: 0 <= x < 1, "within 0 and 1, 1 not included")
        _check("own_step_weight", self.own_step_weight, lambda x: 0 < x <= 1, "above 0 and at most 1")
        if self.design is DraftDesign.TOKEN and self.num_own_steps > 1:
            raise ValueError(
                f"num_own_steps is {self.num_own_steps}, but a token draft has no features of its own to go on with; "
                "leave it at 1"
            )


def _at_least(name: str, value: int, low: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, not {type(value).__name__}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def _within(name: str, value: int, low: int, high: int) -> None:
    _at_least(name, value, low)
    if value > high:
        raise ValueError(f"{name} must be at most {high}, got {value}")


def _check(name: str, value: float, fits: Callable[[float], bool], limits: str) -> None:
    if not math.isfinite(value) or not fits(value):
        raise ValueError(f"{name} must be {limits}, got {value}")
