"""What a draft loses and gains by keeping its own matrices in fewer bits: `python -m profiling.draft_weights DIR`.

Owns the measurement: the target answers the benchmark's prompts, a draft that is kept in each kind of weights is asked
for every token of the answers, and one step of each is timed in turn. Knows nothing of rounds.

Shape suffixes: T tokens, V vocabulary, E hidden width.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import torch
from tqdm import tqdm

from models import (
    Decoder,
    DraftFolder,
    FeatureReader,
    UnsupportedModelError,
    WeightKind,
    bind_draft,
    intra_op_threads,
    open_draft,
    open_model,
)
from models.demo import demo_weights
from profiling.machine import describe_machine, new_file
from profiling.program import run_program
from profiling.prompts import PromptKind, bench_prompts

_KINDS = (WeightKind.FLOAT16, WeightKind.INT8)
"""A draft's file holds float16."""
_NUM_WARM_UP = 50
_PROMPT_TOKENS = 250
"""A longer prompt is cut."""


@dataclass(frozen=True, kw_only=True)
class KindFigures:
    """Of a draft whose own matrices are kept in one kind."""

    weights: str
    acceptance: float
    """Mean of sum min(p, q) at temperature 1 over the answers' tokens."""
    greedy_agreement: float
    """Share of tokens that target and draft both like best."""
    num_tokens: int
    step_ms: float
    """Median of one token's call."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A greedy answer, and what the target made of every token up to it."""

    token_ids_T: torch.Tensor
    logits_TV: torch.Tensor
    features_TE: torch.Tensor
    first: int
    """Index of the row that the answer's first token comes from."""


@torch.inference_mode()
def answer(target: Decoder, prompt_ids: Sequence[int], num_tokens: int) -> Answer:
    """What the target writes greedily."""
    cache = target.new_cache(len(prompt_ids) + num_tokens)
    token_ids = list(prompt_ids)
    rows, features = [], []
    while len(token_ids) < len(prompt_ids) + num_tokens:
        next_ids = token_ids[cache.length :][: target.max_block]
        logits_RV, features_TE = target.forward_with_features(torch.tensor(next_ids), cache, num_logits=len(next_ids))
        rows.append(logits_RV)
        features.append(features_TE)
        if cache.length == len(token_ids):
            token_ids.append(int(logits_RV[-1].argmax()))
    return Answer(
        token_ids_T=torch.tensor(token_ids[:-1]),
        logits_TV=torch.cat(rows),
        features_TE=torch.cat(features),
        first=len(prompt_ids) - 1,
    )


@torch.inference_mode()
def proposals_of(draft: Decoder | FeatureReader, given: Answer) -> torch.Tensor:
    """logits_TV of a draft that is asked after every token, with the target's own features."""
    num_tokens = len(given.token_ids_T)
    features_TE = torch.cat([torch.zeros_like(given.features_TE[:1]), given.features_TE[:-1]])
    cache = draft.new_cache(num_tokens)
    rows = []
    for start in range(0, num_tokens, draft.max_block):
        part = slice(start, start + draft.max_block)
        ids_T = given.token_ids_T[part]
        if isinstance(draft, FeatureReader):
            rows.append(draft.forward_on_features(ids_T, features_TE[part], cache, num_logits=len(ids_T))[0])
        else:
            rows.append(draft.forward(ids_T, cache, num_logits=len(ids_T)))
    return torch.cat(rows)


def measure(target: Decoder, draft: DraftFolder, answers: Sequence[Answer], *, num_steps: int) -> list[KindFigures]:
    """Every kind of weights, judged by the same answers and timed in turn."""
    drafts = {kind: bind_draft(draft, target, weights=kind) for kind in _KINDS}
    step_ms = _timed(list(drafts.values()), num_steps)
    figures = []
    for (kind, bound), own_ms in zip(drafts.items(), step_ms, strict=True):
        accepted, agreed = 0.0, 0
        for given in answers:
            target_TV = given.logits_TV[given.first :]
            draft_TV = proposals_of(bound, given)[given.first :]
            accepted += float(torch.minimum(target_TV.softmax(-1), draft_TV.softmax(-1)).sum())
            agreed += int((target_TV.argmax(-1) == draft_TV.argmax(-1)).sum())
        num_tokens = sum(len(given.token_ids_T) - given.first for given in answers)
        figures.append(
            KindFigures(
                weights=kind.value,
                acceptance=accepted / num_tokens,
                greedy_agreement=agreed / num_tokens,
                num_tokens=num_tokens,
                step_ms=own_ms,
            )
        )
    return figures


def _timed(drafts: Sequence[Decoder | FeatureReader], num_steps: int) -> list[float]:
    caches = [draft.new_cache(_NUM_WARM_UP + num_steps) for draft in drafts]
    token_ids_T = torch.tensor([1])
    times_ms: list[list[float]] = [[] for _ in drafts]
    for step in range(_NUM_WARM_UP + num_steps):
        for draft, cache, own_ms in zip(drafts, caches, times_ms, strict=True):
            started_s = time.perf_counter()
            draft.forward(token_ids_T, cache, num_logits=1)
            if step >= _NUM_WARM_UP:
                own_ms.append((time.perf_counter() - started_s) * 1e3)
    return [statistics.median(own_ms) for own_ms in times_ms]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print a table, and print one line of JSON last."""
    chosen = _parser().parse_args(arguments)
    if not 1 <= chosen.prompts <= 6 or min(chosen.tokens, chosen.steps, chosen.threads) < 1:
        _parser().error("--prompts must be 1 to 6; --tokens, --steps and --threads at least 1")
    with intra_op_threads(chosen.threads), open_model(chosen.target or demo_weights()) as opened:
        if opened.as_target is None:
            raise UnsupportedModelError("transformers would run this target, and no draft can be bound to that")
        draft = open_draft(chosen.draft, opened.as_target)
        loaded = opened.load()
        target, tokenizer = loaded.model, loaded.tokenizer
        assert isinstance(target, Decoder)
        prompts = [prompt for kind in PromptKind for prompt in bench_prompts(kind)[: chosen.prompts]]
        answers = []
        for prompt in tqdm(prompts, unit="prompt", disable=None, file=sys.stderr):
            prompt_ids = tokenizer.encode_chat(prompt.messages)[:_PROMPT_TOKENS]
            answers.append(answer(target, prompt_ids, chosen.tokens))
        figures = measure(target, draft, answers, num_steps=chosen.steps)
    print(f"{'weights':8}  {'acceptance':>10}  {'greedy':>6}  {'step ms':>7}")
    for row in figures:
        print(f"{row.weights:8}  {row.acceptance:10.4f}  {row.greedy_agreement:6.3f}  {row.step_ms:7.2f}")
    report = json.dumps(
        {
            "machine": describe_machine(),
            "draft": draft.name,
            "threads": chosen.threads,
            "num_prompts": len(prompts),
            "rows": [asdict(row) for row in figures],
        }
    )
    print(report)
    if chosen.out is not None:
        chosen.out.write_text(report + "\n", encoding="utf-8")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.draft_weights",
        description="Acceptance and step time of a distilled draft, by the weights that it keeps for itself.",
    )
    parser.add_argument("draft", metavar="DIR", help="a folder that python -m models.distill made")
    parser.add_argument("--target", help="folder, .gguf file or hub id (default: the demo weights)")
    parser.add_argument("--prompts", type=int, default=4, help="prompts of each kind, 1 to 6 (default: 4)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default: 64)")
    parser.add_argument("--steps", type=int, default=300, help="timed steps of each (default: 300)")
    parser.add_argument("--threads", type=int, default=1, help="intra-op threads (default: 1)")
    parser.add_argument("--out", type=new_file, help="also write the JSON to this file")
    return parser


if __name__ == "__main__":
    run_program(main)
