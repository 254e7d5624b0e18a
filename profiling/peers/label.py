"""What a measured system is called: whose it is, with which weights, in which mode, with which draft.

Owns the name, which is made of these parts and never taken apart again. Knows nothing of how a system runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

PLAIN = "plain"
"""The mode, with ours as with all peers, that decodes one token a step."""


@dataclass(frozen=True, kw_only=True)
class SystemLabel:
    """One system, told from all others."""

    owner: str
    """This project or a peer."""
    weights: str
    """As `int8` or `Q4_1`."""
    mode: str
    draft: str = ""
    """What proposes, in words; empty where the mode says enough."""

    @property
    def name(self) -> str:
        """As it stands in tables: `OWNER WEIGHTS, MODE DRAFT`."""
        return f"{self.owner} {self.weights}, {self.mode}" + (f" {self.draft}" if self.draft else "")

    @property
    def is_plain(self) -> bool:
        """Whether it decodes one token a step."""
        return self.mode == PLAIN

    @property
    def plain(self) -> SystemLabel:
        """The system that decodes one token a step with the same weights: what a system's speed is told over."""
        return replace(self, mode=PLAIN, draft="")
