"""Making drafts: the target writes text, a few layers learn to foretell it.

Owns everything from written text to a draft's folder. `python -m models.distill` is its program. Nothing here is needed
to run a draft (`models.shallow`).
"""

from __future__ import annotations

from models.distill.answers import Answer, write_answers
from models.distill.batched_target import BatchedTarget
from models.distill.draft_model import DraftModel
from models.distill.evaluation import GAMMA, Evaluation, Figures, judge
from models.distill.held_out_prompts import HELD_OUT_KINDS, HeldOutPrompt, held_out_prompts
from models.distill.text_kind import TextKind

__all__ = [
    "Answer",
    "BatchedTarget",
    "DraftModel",
    "Evaluation",
    "Figures",
    "GAMMA",
    "HELD_OUT_KINDS",
    "HeldOutPrompt",
    "TextKind",
    "held_out_prompts",
    "judge",
    "write_answers",
]
