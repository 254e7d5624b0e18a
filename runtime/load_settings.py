"""How a runtime is set up, checked before anything is opened.

Owns `LoadSettings` and `Mode`. Knows nothing of checkpoints or lanes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from models import WeightKind
from runtime.draft_spec import AUTO_DRAFT, DraftSpec, read_draft_specs
from runtime.keywords import as_choice, check_names
from scheduler import Verification, check_integer, check_number

MAX_GAMMA = 15
DEFAULT_MAX_GAMMA = 8
MAX_LEAD = 32
DEFAULT_MAX_LEAD = 8
ADAPTIVE = "adaptive"
AUTO_DEVICE = "auto"
_GPU_NAME = re.compile(r"cuda(:(0|[1-9][0-9]?))?")
"""torch wraps larger numbers round: to it, `cuda:256` is `cuda:0`."""


class Mode(StrEnum):
    """How rounds are run."""

    PLAIN = "plain"
    """One token a step; drafts are not even loaded."""
    SEQUENTIAL = "sequential"
    """Propose, verify, commit, repeat."""
    PIPELINED = "pipelined"
    """Propose past a block while it is verified: draft and target work at the same time."""
    AUTO = "auto"
    """Whichever of these promises most, by what is measured on this pair, machine and text; changes while it runs."""

    @property
    def served(self) -> tuple[Mode, ...]:
        """The modes of requests that a runtime loaded as this one serves: itself and all simpler ones.

        An `auto` runtime has no pipelined mode where nothing can overlap: its drafts only look things up, or it has one
        thread.
        """
        modes = tuple(Mode)
        return modes[: modes.index(self) + 1]

    @property
    def overlaps(self) -> bool:
        """Whether draft and target may work at the same time."""
        return self in (Mode.PIPELINED, Mode.AUTO)


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """The options of `Runtime.load`.

    Raises:
        TypeError: if an option has the wrong type.
        ValueError: if a value lies outside its limits.
    """

    target: str | Path | None = None
    """A folder, a hub id or a GGUF file; None is the demo model."""
    draft: str | Path | Sequence[str | Path] | None = AUTO_DRAFT
    """`auto` (n-gram, and the distilled draft that came with the project for this target, or else for the demo model
    early exit), `none`, `ngram`, `early-exit`, `early-exit:K`, the folder of a distilled draft, a model, or a list of
    these; the one that promises the most tokens a second is heard."""
    mode: Mode = Mode.AUTO
    gamma: int | str = ADAPTIVE
    """Tokens proposed a round: a number, or `adaptive` by measured costs and acceptance."""
    max_gamma: int = DEFAULT_MAX_GAMMA
    """Upper limit of adaptive gamma."""
    max_lead: int = DEFAULT_MAX_LEAD
    """PIPELINED and AUTO: most tokens drafted past a block while it is verified."""
    num_awaited: int | None = None
    """PIPELINED and AUTO: proposals that the target waits for where fewer are ready; 0 never waits for the draft, None
    waits for as many as gamma says, as a sequential round does."""
    weights: WeightKind | None = None
    """How matrices are kept; None takes what suits the device: bfloat16 on a GPU, float16 where the CPU has kernels for
    it (x86-64), else float32."""
    threads: int | None = None
    """Intra-op threads of model work in all; None takes torch's own choice. While a draft model and its target work at
    the same time, the draft has one of them and the target the others, at least one; while one works alone it has them
    all, if the target's rows have the same bits with either number of threads, which is found out at load; if not, the
    target always has all of them. The last bits may differ between runtimes that have different numbers of threads,
    never between the modes of requests on one runtime. On a GPU it has no effect."""
    context_length: int | None = None
    """Most tokens of prompt and output together; None takes the model's own, at most 8192."""
    warmup_tokens: int = 0
    """Tokens at the start of each output that are decoded without proposals."""
    acceptance_threshold: float = 0.4
    """Below this rolling acceptance rate of a draft that was named one warning is logged; 0 never warns."""
    verification: Verification | None = None
    """Default rule of requests that name none."""
    device: str = AUTO_DEVICE
    """`cpu`, `cuda` (the first GPU), `cuda:1` and so on, or `auto`: the first GPU where there is one that torch can
    use."""

    def __post_init__(self) -> None:
        if not isinstance(self.mode, Mode):
            raise TypeError(f"mode must be a Mode, not {type(self.mode).__name__}")
        if self.weights is not None and not isinstance(self.weights, WeightKind):
            raise TypeError(f"weights must be a WeightKind or None, not {type(self.weights).__name__}")
        if self.gamma != ADAPTIVE:
            if isinstance(self.gamma, str):
                raise ValueError(
                    f"gamma must be {ADAPTIVE!r} or a number between 0 and {MAX_GAMMA}, got {self.gamma!r}"
                )
            check_integer(
                "gamma", self.gamma, low=0, high=MAX_GAMMA, advice=f"or {ADAPTIVE!r} to choose by measurement"
            )
        check_integer("max_gamma", self.max_gamma, low=0, high=MAX_GAMMA, advice=f"{DEFAULT_MAX_GAMMA} is the default")
        check_integer("max_lead", self.max_lead, low=1, high=MAX_LEAD, advice=f"{DEFAULT_MAX_LEAD} is the default")
        if self.num_awaited is not None:
            advice = "0 never waits for the draft; left out, it waits for as many as gamma says"
            check_integer("num_awaited", self.num_awaited, low=0, high=MAX_GAMMA, advice=advice)
        if self.threads is not None:
            advice = "left out, it is torch's own choice"
            check_integer("threads", self.threads, low=1, high=max(64, 2 * (os.cpu_count() or 1)), advice=advice)
        if self.context_length is not None:
            check_integer("context_length", self.context_length, low=2, advice="left out, it is the model's own")
        check_integer("warmup_tokens", self.warmup_tokens, low=0, advice="0 proposes from the first token on")
        check_number("acceptance_threshold", self.acceptance_threshold, low=0.0, high=1.0, advice="0 never warns")
        if not isinstance(self.device, str):
            raise TypeError(f"device must be a name, not {type(self.device).__name__}")
        if self.device not in (AUTO_DEVICE, "cpu") and not _GPU_NAME.fullmatch(self.device):
            raise ValueError(f"device must be {AUTO_DEVICE!r}, 'cpu', 'cuda' or 'cuda:N', got {self.device!r}")
        if self.target is not None and not isinstance(self.target, (str, Path)):
            raise TypeError(f"target must be a path or a hub id, not {type(self.target).__name__}")
        if self.verification is not None and not isinstance(self.verification, Verification):
            raise TypeError(f"verification must be a Verification or None, not {type(self.verification).__name__}")
        self.draft_specs()

    @classmethod
    def from_keywords(cls, keywords: Mapping[str, Any]) -> LoadSettings:
        """Check names, turn names of modes, weights and rules into these, then check values."""
        check_names(keywords, cls)
        values = dict(keywords)
        for name, kind in (("mode", Mode), ("weights", WeightKind), ("verification", Verification)):
            if values.get(name) is not None:
                values[name] = as_choice(name, kind, values[name])
        return cls(**values)

    @property
    def fixed_gamma(self) -> int | None:
        """The fixed gamma, or None where it adapts."""
        return self.gamma if isinstance(self.gamma, int) else None

    @property
    def gamma_limit(self) -> int:
        """Most tokens a round can propose."""
        return self.max_gamma if self.fixed_gamma is None else self.fixed_gamma

    @property
    def chooses_draft(self) -> bool:
        """Whether the sources are left to the runtime."""
        return self.draft == AUTO_DRAFT or (isinstance(self.draft, Sequence) and list(self.draft) == [AUTO_DRAFT])

    def draft_specs(self) -> tuple[DraftSpec, ...]:
        """The draft sources; of two that promise as much, the earlier one is heard."""
        if self.draft is None:
            return ()
        drafts: object = [self.draft] if isinstance(self.draft, (str, Path)) else self.draft
        if isinstance(drafts, (bytes, bytearray)) or not isinstance(drafts, Sequence):
            raise TypeError(f"draft must be a name, a path or a list of these, not {type(drafts).__name__}")
        if AUTO_DRAFT in drafts and len(drafts) > 1:
            raise ValueError(f"draft {AUTO_DRAFT!r} chooses all sources; name it alone, or name each source")
        specs = tuple(spec for draft in drafts for spec in read_draft_specs(draft, is_demo=self.target is None))
        if sum(not spec.is_model for spec in specs) > 1:
            raise ValueError("draft names 'ngram' twice; once is enough")
        if sum(spec.is_model for spec in specs) > 1:
            raise ValueError(
                "draft may name one of early exit, a distilled draft and a draft model, and 'ngram' beside it"
            )
        return () if self.mode is Mode.PLAIN else specs
