"""The target's own answers to prompts, with the features that a draft reads.

Owns the writing of complete answers, greedily and at temperature 1. Knows nothing of drafts.

Shape suffixes: B answers written side by side, T tokens of prompt and answer, S = T - 1 tokens that were read, E hidden
width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch

from models.distill.batched_target import BatchedTarget
from models.distill.held_out_prompts import HeldOutPrompt
from models.distill.text_kind import TextKind
from models.distill.writer import draw

BATCH_PROMPTS = 16
"""Answered side by side, each twice."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One text: a prompt and what the target made of it."""

    kind: TextKind
    greedy: bool
    """Whether each token is the most likely one; else they were drawn at temperature 1."""
    num_prompt_tokens: int
    token_ids_T: torch.Tensor
    """int64, on the CPU. Ends with the first end-of-text, if the target wrote one."""
    features_SE: torch.Tensor
    """float32, on the CPU: the target's features (`BatchedTarget.features`) of all tokens but the last."""

    @property
    def num_tokens(self) -> int:
        """Tokens of the answer."""
        return len(self.token_ids_T) - self.num_prompt_tokens


@torch.inference_mode()
def write_answers(
    target: BatchedTarget,
    prompts: Sequence[HeldOutPrompt],
    *,
    end_ids: Collection[int],
    num_tokens: int,
    seed: int,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Answer, ...]:
    """Answer each prompt twice: greedily, and by draws at temperature 1.

    Args:
        target: with float32 matrices where exactness is wanted.
        prompts: in any order; those of one kind are answered side by side.
        end_ids: that end a text (`Tokenizer.eos_token_ids`).
        num_tokens: of an answer at most.
        seed: of the draws.
        report: told how many prompts of how many are answered.

    Raises:
        ValueError: if there is no prompt, one is empty or, with its answer, longer than the target was made for, or
            `num_tokens` is below 1.
    """
    if num_tokens < 1:
        raise ValueError(f"num_tokens must be at least 1, got {num_tokens}")
    if not prompts:
        raise ValueError("there is no prompt to answer; give one or more")
    for prompt in prompts:
        length = len(prompt.token_ids)
        if not 1 <= length <= target.num_positions - num_tokens:
            raise ValueError(
                f"a {prompt.kind} prompt has {length} tokens; with an answer of {num_tokens} it must have between 1 "
                f"and {target.num_positions - num_tokens}: the target was made for {target.num_positions} positions"
            )
    generator = torch.Generator().manual_seed(seed)
    answers: list[Answer] = []
    num_done = 0
    for kind in TextKind:
        # Prompts of like length together: up to the shortest one's end, a batch is read in a single call.
        chosen = sorted((prompt for prompt in prompts if prompt.kind is kind), key=lambda p: len(p.token_ids))
        for start in range(0, len(chosen), BATCH_PROMPTS):
            batch = chosen[start : start + BATCH_PROMPTS]
            rows = [_Row(prompt, greedy, num_tokens, end_ids) for prompt in batch for greedy in (True, False)]
            answers += _written(target, rows, generator)
            num_done += len(batch)
            report(num_done, len(prompts))
    return tuple(answers)


class _Row:
    """One text while it grows."""

    def __init__(self, prompt: HeldOutPrompt, greedy: bool, num_tokens: int, end_ids: Collection[int]) -> None:
        self.kind, self.greedy = prompt.kind, greedy
        self.num_prompt_tokens = len(prompt.token_ids)
        self.token_ids = list(prompt.token_ids)
        self._most_tokens = self.num_prompt_tokens + num_tokens
        self._end_ids = end_ids

    @property
    def over(self) -> bool:
        num_written = len(self.token_ids) - self.num_prompt_tokens
        return len(self.token_ids) == self._most_tokens or (num_written > 0 and self.token_ids[-1] in self._end_ids)

    def token_at(self, position: int, likeliest_id: int, drawn_id: int) -> int:
        """The prompt's token, else one that the target chose; any number once the text is over."""
        if position == len(self.token_ids) and not self.over:
            self.token_ids.append(likeliest_id if self.greedy else drawn_id)
        return self.token_ids[min(position, len(self.token_ids) - 1)]


def _written(target: BatchedTarget, rows: Sequence[_Row], generator: torch.Generator) -> list[Answer]:
    shortest = min(row.num_prompt_tokens for row in rows)
    temperatures_B = torch.ones(len(rows))
    cache = target.new_cache(len(rows), target.num_positions)
    next_ids_BT = torch.tensor([row.token_ids[:shortest] for row in rows])
    parts_BTE: list[torch.Tensor] = []
    position = shortest
    while True:
        features_BTE = target.features(next_ids_BT.to(target.device), cache)
        parts_BTE.append(features_BTE.cpu())
        logits_BV = target.logits(features_BTE[:, -1])
        likeliest_ids = logits_BV.argmax(dim=-1).tolist()
        drawn_ids = draw(logits_BV, temperatures_B, generator)[0].tolist()
        chosen = zip(rows, likeliest_ids, drawn_ids, strict=True)
        next_ids_BT = torch.tensor([[row.token_at(position, likeliest, drawn)] for row, likeliest, drawn in chosen])
        if all(row.over for row in rows):
            break
        position += 1
    features_BTE = torch.cat(parts_BTE, dim=1)
    return [
        Answer(
            kind=row.kind,
            greedy=row.greedy,
            num_prompt_tokens=row.num_prompt_tokens,
            token_ids_T=torch.tensor(row.token_ids),
            features_SE=features_BTE[index, : len(row.token_ids) - 1].clone(),
        )
        for index, row in enumerate(rows)
    ]
