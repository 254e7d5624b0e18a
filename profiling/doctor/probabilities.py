"""Are probabilities float32 and finite, also where logits are huge and temperatures tiny?

Owns the rows that are looked at, and what must hold of them. A ratio p/q overflows where q is rounded to 0, and half
precision rounds a great many: judging must compare u * q with p, in float32.

Shape suffixes: R logit rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from profiling.doctor.check import Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.prompts import PromptKind, bench_prompts
from runtime import Mode, Verification
from scheduler import Lane, Proposal, SamplingLaw, SamplingSettings, judge

_TEMPERATURES = (1e-6, 1.0)
_LARGEST_LOGIT = 1e38
"""float32 ends at 3.4e38."""
_NUM_ROWS = 4
_NUM_PROMPT_TOKENS = 32
_NUM_TOKENS = 8
_LOOSE_SUM = 1e-3
"""How far the sum of 150,000 rounded float32 probabilities may be from 1."""

NewLaw = Callable[[SamplingSettings, int], SamplingLaw]
"""From settings and the target's vocabulary size."""


def _new_law(settings: SamplingSettings, vocab_size: int) -> SamplingLaw:
    return SamplingLaw(settings, vocab_size=vocab_size)


async def check_probabilities(pair: LoadedPair, new_law: NewLaw = _new_law) -> Finding:
    """Rows of both models, the law over them and over enormous ones, and answers at tiny temperatures."""
    prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CODE)[0].messages, _NUM_PROMPT_TOKENS)[-_NUM_PROMPT_TOKENS:]
    target_RV = await _rows(pair.engine.target, prompt_ids)
    faults = list(row_faults("target", target_RV))
    draft_RV = target_RV
    for source in pair.draft_models:
        known_ids = [token_id for token_id in prompt_ids if token_id < source.num_shared_ids]
        draft_RV = (await _rows(source.lane, known_ids))[:, : source.num_shared_ids]
        faults += row_faults("draft", draft_RV)
    if not faults:
        faults += law_faults(target_RV, draft_RV[: len(target_RV)], tuple(prompt_ids), new_law)
    if not faults:
        faults += await _answer_faults(pair, prompt_ids)
    figures = {"dtype": str(target_RV.dtype).removeprefix("torch."), "faults": faults}
    if faults:
        return Finding(
            verdict=Verdict.FAIL,
            measured="; ".join(faults[:3]),
            advice="a checkpoint that gives inf or NaN is damaged, or its weights do not fit the format: try --weights "
            "float32 or bfloat16; a model of your own must return its logits as float32",
            figures=figures,
        )
    coldest = min(_TEMPERATURES)
    return Finding(
        verdict=Verdict.OK,
        measured=f"logits and probabilities are float32 and finite, at temperatures down to {coldest:g} and with "
        f"logits up to {_LARGEST_LOGIT:g}",
        figures=figures,
    )


async def _rows(lane: Lane, token_ids: list[int] | tuple[int, ...]) -> torch.Tensor:
    """logits_RV of the last tokens, on the host, as the model gave them."""

    def read() -> torch.Tensor:
        lane.share(together=False)
        lane.roll_back(0)
        try:
            if len(token_ids) > _NUM_ROWS:
                lane.feed(token_ids[:-_NUM_ROWS], num_logits=0)
            last_ids = token_ids[-_NUM_ROWS:]
            return lane.feed(last_ids, num_logits=len(last_ids)).cpu()
        finally:
            lane.roll_back(0)

    reading = lane.stream.launch(read, writes=lane.buffers, label="read rows")
    await lane.stream.record()
    return reading.result()


def row_faults(name: str, logits_RV: torch.Tensor) -> Iterator[str]:
    """What is wrong with a model's rows. Minus infinity is none: a cut head gives it to what it cannot propose."""
    if logits_RV.dtype is not torch.float32:
        yield f"the {name}'s logits are {str(logits_RV.dtype).removeprefix('torch.')}, not float32"
    num_bad = int((logits_RV.isnan() | (logits_RV == float("inf"))).sum())
    if num_bad:
        yield f"{num_bad} of {logits_RV.numel()} of the {name}'s logits are inf or NaN"
    elif bool((logits_RV == float("-inf")).all(-1).any()):
        yield f"the {name} gives no token a chance"


def law_faults(
    target_RV: torch.Tensor, draft_RV: torch.Tensor, prompt_ids: tuple[int, ...], new_law: NewLaw = _new_law
) -> Iterator[str]:
    """What is wrong with probabilities and verdicts at several temperatures, over rows as they are and enormous."""
    for temperature in _TEMPERATURES:
        settings = SamplingSettings(temperature=temperature, seed=0, verification=Verification.REJECTION)
        law = new_law(settings, target_RV.shape[-1])
        history = law.start_history(prompt_ids)
        for size, scale in (("as they are", _as_it_is), ("up to 1e38", _enormous)):
            where = f"at temperature {temperature:g}, logits {size}"
            p_RV, q_RV = (
                torch.stack([law.apply(row_V, history).probabilities_V() for row_V in scale(rows_RV)])
                for rows_RV in (target_RV, draft_RV)
            )
            fault = _probability_fault(p_RV, q_RV)
            if fault is not None:
                yield f"{fault} {where}"
                # Nothing can be judged by such probabilities.
                continue
            proposed = tuple(int(token_id) for token_id in q_RV.argmax(-1)[: len(target_RV) - 1])
            proposal = Proposal(token_ids=proposed, probabilities=tuple(q_RV[: len(proposed)]))
            verdict = judge(law, scale(target_RV), history, proposal)
            counts = (verdict.num_accepted, len(proposed), len(verdict.token_ids))
            if not 0 <= counts[0] <= counts[1] or counts[2] != counts[0] + 1:
                yield f"{counts[0]} of {counts[1]} proposals gave {counts[2]} tokens {where}"


def _probability_fault(*tables_RV: torch.Tensor) -> str | None:
    for table_RV in tables_RV:
        if table_RV.dtype is not torch.float32:
            return f"probabilities are {str(table_RV.dtype).removeprefix('torch.')}"
        if not bool(table_RV.isfinite().all()):
            return "probabilities are not finite"
        if float((table_RV.sum(-1) - 1).abs().max()) > _LOOSE_SUM:
            return "probabilities do not add up to 1"
    return None


async def _answer_faults(pair: LoadedPair, prompt_ids: tuple[int, ...]) -> list[str]:
    faults = []
    mode = Mode.SEQUENTIAL if Mode.SEQUENTIAL in pair.modes else Mode.PLAIN
    for temperature in (0.0, *_TEMPERATURES):
        result = await pair.runtime.generate(
            prompt_ids,
            max_tokens=_NUM_TOKENS,
            temperature=temperature,
            seed=0,
            verification=Verification.REJECTION,
            logprobs=0,
            mode=mode,
            gamma=None if mode is Mode.PLAIN else pair.gamma,
            ignore_eos=True,
        )
        if len(result.token_ids) != _NUM_TOKENS:
            faults.append(f"{len(result.token_ids)} of {_NUM_TOKENS} tokens came at temperature {temperature:g}")
    return faults


def _as_it_is(rows_RV: torch.Tensor) -> torch.Tensor:
    return rows_RV


def _enormous(rows_RV: torch.Tensor) -> torch.Tensor:
    finite_RV = rows_RV.masked_fill(rows_RV.isinf(), 0.0)
    return rows_RV / finite_RV.abs().max().clamp(min=1e-6) * _LARGEST_LOGIT
