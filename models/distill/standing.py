"""How far a plan has come by what lies in its `out`.

Owns the look at a draft that is there already, and the refusal of another one. Knows nothing of the stages' work.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from models.distill.making import is_finished
from models.distill.plan import Plan, refuse_difference
from models.distill.training import STATE_FILE
from models.draft_folder import is_draft_folder, open_draft, read_draft_description
from models.errors import CheckpointError


class Standing(Enum):
    """What is still to be done."""

    ABSENT = "absent"
    """All of it, as far as the work folder does not have it."""
    DAMAGED = "damaged"
    """The weights are missing or not what they were; a checkpoint is there to export them from once more."""
    EXPORTED = "exported"
    """The draft is there and can be used, and was not judged."""
    FINISHED = "finished"


def standing_of(plan: Plan) -> Standing:
    """Look at what lies in `out`.

    Raises:
        CheckpointError: if what lies there is damaged, and nothing to mend it with is there.
        ValueError: if another draft lies there; names what differs.
    """
    if not is_draft_folder(plan.out):
        return Standing.ABSENT
    description = read_draft_description(plan.out)
    if description.target_fingerprint != plan.target.fingerprint:
        raise ValueError(
            f"{plan.out} holds a draft of another target, {description.target_name[:200]!r}; name another --out"
        )
    found = description.making.get("settings")
    refuse_difference(
        f"{plan.out} holds a draft made with", found if isinstance(found, Mapping) else {}, plan.settings()
    )
    try:
        open_draft(plan.out, plan.target)
    except CheckpointError as error:
        if (plan.training_folder / STATE_FILE).is_file():
            return Standing.DAMAGED
        raise CheckpointError(
            f"{error}; {plan.training_folder} has no checkpoint to export it from: delete {plan.out}, and the same "
            "command makes it again"
        ) from error
    return Standing.FINISHED if is_finished(description.making) else Standing.EXPORTED
