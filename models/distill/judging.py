"""The judging of a draft that was exported: its figures are those of the very tensors that are given away.

Owns how long prompts and answers are, and what is done where there is nothing to judge by or too little memory. Knows
nothing of training.
"""

from __future__ import annotations

import torch

from models.checkpoint import open_checkpoint
from models.config import ModelConfig
from models.distill.batched_target import BatchedTarget
from models.distill.console import Console
from models.distill.draft_model import DraftModel
from models.distill.evaluation import Evaluation, evaluate
from models.distill.held_out_prompts import HELD_OUT_KINDS, HeldOutPrompt, held_out_prompts
from models.distill.plan import Plan
from models.draft_folder import DraftFolder
from models.errors import DistillationError, InsufficientMemoryError, MissingDependencyError
from models.tokenizer import Tokenizer

_MOST_POSITIONS = 768
_ANSWER_TOKENS = 128


def judged_lengths(config: ModelConfig) -> tuple[int, int]:
    """Tokens of a prompt and its answer together, and of the answer, at most."""
    num_positions = min(config.context_length, config.sliding_window or config.context_length, _MOST_POSITIONS)
    return num_positions, min(_ANSWER_TOKENS, num_positions // 2)


def judge_exported(plan: Plan, exported: DraftFolder, console: Console) -> Evaluation | None:
    """Have the target answer held-out prompts, and judge the draft by the answers.

    Args:
        plan: that the draft was made by.
        exported: the draft.
        console: told how far it is.

    Returns:
        None where there is nothing to judge by, which is told.

    Raises:
        CheckpointError: if target or draft cannot be read.
        InsufficientMemoryError: if memory cannot be had; the draft stays as it is.
    """
    try:
        return _judge(plan, exported, console)
    except DistillationError as error:
        console.note(f"the draft was not judged: {error}")
        return None
    except (MemoryError, RuntimeError) as error:
        if not _is_failed_allocation(error):
            raise
        raise InsufficientMemoryError(
            f"there is not enough memory to judge the draft ({error}); it lies in {plan.out} and can be used, without "
            "figures: with more memory free, the same command goes on to judge it"
        ) from error


def _judge(plan: Plan, exported: DraftFolder, console: Console) -> Evaluation | None:
    num_positions, num_answer_tokens = judged_lengths(plan.target.config)
    with open_checkpoint(plan.source) as checkpoint:
        prompts = _prompts(checkpoint.tokenizer(), console, most_tokens=num_positions - num_answer_tokens)
        if not prompts:
            return None
        target = BatchedTarget(checkpoint, dtype=plan.dtype, device=plan.device, num_positions=num_positions)
    draft = DraftModel(plan.target.config, design=exported.design, num_layers=exported.config.num_layers)
    draft.restore(exported.tensors())
    head_token_ids_C = exported.head_token_ids_C
    with console.progress("judging", "prompts") as bar:
        return evaluate(
            draft.to(plan.device),
            target,
            None if head_token_ids_C is None else head_token_ids_C.long(),
            prompts,
            end_ids=plan.eos_token_ids,
            num_tokens=num_answer_tokens,
            seed=plan.training.seed,
            report=bar.tell,
        )


def _prompts(tokenizer: Tokenizer, console: Console, *, most_tokens: int) -> list[HeldOutPrompt]:
    prompts: list[HeldOutPrompt] = []
    for kind in HELD_OUT_KINDS:
        try:
            prompts += held_out_prompts(tokenizer, kinds=(kind,), most_tokens=most_tokens)
        except (MissingDependencyError, ValueError) as error:
            console.note(f"the draft is not judged on {kind}: {error}")
    return prompts


def _is_failed_allocation(error: MemoryError | RuntimeError) -> bool:
    """torch has a class for a GPU's; a CPU's is told by its words alone."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or "you tried to allocate" in str(error)
