"""What a caller may ask of one generation, checked before anything runs.

Owns the public option names (those of vLLM and OpenAI), their defaults and their limits. Knows nothing of models.
"""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypedDict

from runtime.keywords import as_choice, check_names
from runtime.load_settings import MAX_GAMMA, Mode
from runtime.stop import checked_stops
from scheduler import SamplingSettings, Verification, check_integer


class GenerationKeywords(TypedDict, total=False):
    """The keywords of `generate` and `stream`; `GenerationOptions` explains each."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int]
    include_stop_str_in_output: bool
    ignore_eos: bool
    min_tokens: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    verification: str | Verification | None
    mode: str | Mode | None
    gamma: int | None


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """The options of one generation.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if a value lies outside its limits.
    """

    max_tokens: int = 128
    """Most tokens to generate; the context may end the output earlier."""
    temperature: float = 0.0
    """0 takes the most likely token; 1 draws from the model's own distribution."""
    top_k: int = 0
    """Draw from the k most likely tokens; 0 or -1 draws from all."""
    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens whose probabilities reach this sum."""
    min_p: float = 0.0
    """Draw from tokens at least this fraction as likely as the most likely one."""
    seed: int | None = None
    """Equal seeds give equal tokens under coupled verification, whatever draft, gamma or mode; None draws a seed. Under
    rejection verification what was proposed matters too, and that depends on time in pipelined mode and where gamma
    adapts."""
    stop: tuple[str, ...] = ()
    """The output ends before the first of these strings."""
    stop_token_ids: tuple[int, ...] = ()
    """The output ends with the first of these tokens."""
    include_stop_str_in_output: bool = False
    """Whether the text keeps the stop string that ended it."""
    ignore_eos: bool = False
    """Go on after an end-of-sequence token."""
    min_tokens: int = 0
    """No end-of-sequence or stop token before this many tokens; a stop string may still end the output."""
    repetition_penalty: float = 1.0
    """Above 1 makes tokens of prompt and output less likely."""
    presence_penalty: float = 0.0
    """Above 0 makes tokens of the output less likely."""
    frequency_penalty: float = 0.0
    """Above 0 makes tokens less likely with each time they were written."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids."""
    logprobs: int | None = None
    """Report each token's log probability and that many alternatives; None reports nothing."""
    verification: Verification | None = None
    """How proposals are judged; None is coupled with a seed or at temperature 0, else rejection."""
    mode: Mode | None = None
    """How rounds are run; None is the runtime's own way. A runtime also serves all modes simpler than its own."""
    gamma: int | None = None
    """Tokens proposed a round, at most the runtime's gamma, or its max_gamma where gamma is adaptive; None is the
    runtime's own way."""

    def __post_init__(self) -> None:
        check_integer("max_tokens", self.max_tokens, low=1, advice="ask for at least one token")
        if self.logprobs is not None:
            check_integer("logprobs", self.logprobs, low=0, high=100, advice="0 reports the chosen token only")
        for name in ("ignore_eos", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, not {getattr(self, name)!r}")
        if self.mode is not None and not isinstance(self.mode, Mode):
            raise TypeError(f"mode must be a Mode or None, not {type(self.mode).__name__}")
        if self.gamma is not None:
            check_integer("gamma", self.gamma, low=0, high=MAX_GAMMA, advice="left out, it is the runtime's own")
        object.__setattr__(self, "stop", checked_stops(self.stop))
        object.__setattr__(self, "stop_token_ids", _token_ids("stop_token_ids", self.stop_token_ids))
        self.sampling_settings(seed=0)
        if self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}; "
                "raise max_tokens with it"
            )

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> GenerationOptions:
        """Check names, bring loose spellings into shape, then check values."""
        check_names(keywords, cls)
        values = dict(keywords)
        if values.get("stop", ()) is None:
            values["stop"] = ()
        if values.get("top_k") == -1 and not isinstance(values["top_k"], bool):
            values["top_k"] = 0
        for name, kind in (("verification", Verification), ("mode", Mode)):
            if values.get(name) is not None:
                values[name] = as_choice(name, kind, values[name])
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Every option by name, ready for JSON and for `from_keywords`."""
        values = {option.name: getattr(self, option.name) for option in dataclasses.fields(self)}
        values["logit_bias"] = dict(self.logit_bias)
        for name in ("verification", "mode"):
            values[name] = None if values[name] is None else values[name].value
        return values

    def resolved(self) -> GenerationOptions:
        """The same with nothing left open: the rule that applies, and a seed drawn where sampling needs one.

        Two requests with these options draw from the same noise.
        """
        settings = self.sampling_settings()
        return dataclasses.replace(
            self, verification=settings.verification, seed=self.seed if settings.greedy else settings.seed
        )

    def sampling_settings(self, *, seed: int | None = None) -> SamplingSettings:
        """The part that shapes probabilities, with a seed drawn where none was given."""
        rule = self.verification
        if rule is None:
            exact_ids = self.seed is not None or self.temperature == 0
            rule = Verification.COUPLED if exact_ids else Verification.REJECTION
        if self.seed is not None:
            seed = self.seed
        return SamplingSettings(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=self.logit_bias,
            min_tokens=self.min_tokens,
            seed=secrets.randbits(63) if seed is None else seed,
            verification=rule,
        )


def _token_ids(name: str, value: object) -> tuple[int, ...]:
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise TypeError(f"{name} must be a list of token ids, not {type(value).__name__}")
    for token_id in value:
        check_integer(f"{name} entry", token_id, low=0, advice="use ids of the target's tokenizer")
    return tuple(value)
