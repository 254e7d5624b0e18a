"""What the launches of a request are for, and of which lane.

Owns the lanes' names, the labels that loops give to streams, and the stage of a round that each belongs to. Knows
nothing of streams.
"""

from __future__ import annotations

from enum import StrEnum


class LaneName(StrEnum):
    """Whose launches they are."""

    TARGET = "target"
    DRAFT = "draft"


class Stage(StrEnum):
    """Where in a request a launch belongs."""

    PREFILL = "prefill"
    """Reading the prompt, and whatever else comes before the first round."""
    DRAFT = "draft"
    VERIFY = "verify"
    SETTLE = "settle"
    """Taking a verdict in on the draft's lane: after a hit its chain stands."""
    ROLLBACK = "rollback"
    """The same where something was refuted; known only once the verdict is, so no launch is of this stage."""
    COMMIT = "commit"
    """Telling a lane whose launches learn late what was committed; on the host, making a report of a verdict."""
    OTHER = "other"


class LaunchKind(StrEnum):
    """What a launch does; its value is the label on the stream."""

    RESUME = "resume"
    PREFILL = "prefill"
    HAND_OUT_FEATURES = "hand out features"
    TAKE_FEATURES = "take features"
    BEGIN = "begin"
    CATCH_UP = "catch up"
    DRAFT = "draft"
    LOOK_UP = "look up"
    VERIFY = "verify"
    JUDGE = "judge"
    SETTLE = "settle"
    NOTE = "note"
    CONFIRM = "confirm"


_STAGES = {
    LaunchKind.RESUME: Stage.PREFILL,
    LaunchKind.PREFILL: Stage.PREFILL,
    LaunchKind.HAND_OUT_FEATURES: Stage.PREFILL,
    LaunchKind.TAKE_FEATURES: Stage.PREFILL,
    LaunchKind.BEGIN: Stage.PREFILL,
    LaunchKind.CATCH_UP: Stage.DRAFT,
    LaunchKind.DRAFT: Stage.DRAFT,
    LaunchKind.LOOK_UP: Stage.DRAFT,
    LaunchKind.VERIFY: Stage.VERIFY,
    LaunchKind.JUDGE: Stage.VERIFY,
    LaunchKind.SETTLE: Stage.SETTLE,
    LaunchKind.NOTE: Stage.COMMIT,
    LaunchKind.CONFIRM: Stage.COMMIT,
}
_STAGE_OF_LABEL = {kind.value: stage for kind, stage in _STAGES.items()}


def stage_of(label: str) -> Stage:
    """The stage of a launch with that label; `Stage.OTHER` where no loop launched it."""
    return _STAGE_OF_LABEL.get(label, Stage.OTHER)
