"""What a runtime came to be once it was loaded.

Owns `RuntimeDescription`: names and numbers in effect where the settings only say `auto`. Knows nothing of requests.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from models import WeightKind
from runtime.load_settings import Mode


@dataclass(frozen=True, kw_only=True)
class RuntimeDescription:
    """A loaded runtime in names and numbers."""

    target: str
    """Name of the target model."""
    draft: tuple[str, ...]
    """Names of the draft sources; of two that promise as much, the earlier one is heard."""
    mode: Mode
    gamma: int | str
    """Tokens proposed a round: a number, or `adaptive`."""
    max_gamma: int
    """Most tokens that a round can propose."""
    max_lead: int
    """Most tokens drafted past a block; 0 where the mode is not pipelined."""
    num_awaited: int | None
    """Proposals that the target waits for where fewer are ready; None waits for as many as gamma says, which is also
    what a sequential round does."""
    warmup_tokens: int
    weights: WeightKind
    """How the target's matrices are kept."""
    threads: int
    """Intra-op threads of model work, of target and draft together."""
    draft_threads: int
    """Those of a draft model that works beside the target; 0 where they take turns."""
    context_length: int
    """Most tokens of prompt and output together."""
    device: str

    def as_dict(self) -> dict[str, object]:
        """Every field, ready for JSON."""
        return {**dataclasses.asdict(self), "mode": self.mode.value, "weights": self.weights.value}
