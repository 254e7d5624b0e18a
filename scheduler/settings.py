"""The options that shape a token's probability, checked once.

Owns `SamplingSettings` and the choice of verification rule. Knows nothing of logits or text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType


class Verification(Enum):
    """How a proposed token is judged; both rules keep the target's distribution exactly."""

    COUPLED = "coupled"
    """Shared Gumbel noise: accepted if and only if it equals the target's own sample."""
    REJECTION = "rejection"
    """Speculative sampling (Leviathan et al., 2023; Chen et al., 2023): accepted with probability min(1, p/q)."""


def check_number(name: str, value: object, *, low: float, high: float, advice: str, low_open: bool = False) -> None:
    """Raise unless `value` is a finite real number in [low, high] (or (low, high] with `low_open`)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}; {advice}")
    if not low <= value <= high or (low_open and value == low):  # a NaN is in no interval
        bracket = "(" if low_open else "["
        raise ValueError(f"{name} must lie in {bracket}{low:g}, {high:g}], got {value!r}; {advice}")


def check_integer(name: str, value: object, *, low: int, high: int | None = None, advice: str) -> None:
    """Raise unless `value` is an int (not a bool) of at least `low` and at most `high`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, not {type(value).__name__}; {advice}")
    if value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"between {low} and {high}"
        raise ValueError(f"{name} must be {limits}, got {value}; {advice}")


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """What happens to a logit row before a token is drawn from it.

    The order is that of vLLM: logit bias and min_tokens, penalties, temperature, min-p, top-k, top-p.

    Raises:
        TypeError: if a field has the wrong type.
        ValueError: if a field lies outside its limits.
    """

    temperature: float = 0.0
    """0 takes the most likely token; 1 draws from the model's own distribution."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    top_p: float = 1.0
    """Keep the smallest set of most likely tokens whose probabilities reach this sum."""
    min_p: float = 0.0
    """Keep tokens at least this fraction as likely as the most likely one."""
    repetition_penalty: float = 1.0
    """Divides positive and multiplies negative logits of tokens seen in prompt or output (Keskar et al., 2019)."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens seen in the output."""
    frequency_penalty: float = 0.0
    """Subtracted once for each time a token was seen in the output."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many output tokens."""
    seed: int = 0
    """Names the noise; equal seeds give equal tokens under coupled verification."""
    verification: Verification = Verification.COUPLED

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature, low=0.0, high=1e4, advice="0 is greedy, 1 the model's own")
        check_integer("top_k", self.top_k, low=0, advice="0 keeps every token")
        check_number("top_p", self.top_p, low=0.0, high=1.0, low_open=True, advice="1 keeps every token")
        check_number("min_p", self.min_p, low=0.0, high=1.0, advice="0 keeps every token")
        check_number(
            "repetition_penalty",
            self.repetition_penalty,
            low=1e-4,
            high=1e4,
            advice="1 leaves logits alone",
        )
        check_number("presence_penalty", self.presence_penalty, low=-100.0, high=100.0, advice="0 leaves logits alone")
        check_number(
            "frequency_penalty", self.frequency_penalty, low=-100.0, high=100.0, advice="0 leaves logits alone"
        )
        check_integer("min_tokens", self.min_tokens, low=0, advice="0 sets no minimum")
        check_integer("seed", self.seed, low=-(2**63), high=2**64 - 1, advice="any 64-bit integer will do")
        if not isinstance(self.verification, Verification):
            raise TypeError(f"verification must be a Verification, not {type(self.verification).__name__}")
        if not isinstance(self.logit_bias, Mapping):
            raise TypeError(f"logit_bias must map token ids to numbers, not {type(self.logit_bias).__name__}")
        for token_id, bias in self.logit_bias.items():
            check_integer("logit_bias token id", token_id, low=0, advice="use ids of the target's tokenizer")
            check_number(f"logit_bias[{token_id}]", bias, low=-1e4, high=1e4, advice="-100 all but forbids a token")
        object.__setattr__(self, "logit_bias", MappingProxyType(dict(self.logit_bias)))

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken and no noise is drawn."""
        return self.temperature == 0

    @property
    def has_penalties(self) -> bool:
        """Whether logits depend on the tokens seen so far."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def has_filters(self) -> bool:
        """Whether some tokens are cut from the distribution before drawing."""
        return self.top_k > 0 or self.top_p < 1 or self.min_p > 0
