"""Is what speculation writes what the target writes alone: token by token, and in distribution?

Owns both comparisons. Greedy answers and answers with a seed must be the same tokens; answers under the rejection rule
must follow the target's own law, which is drawn from many times at one position and compared with it.

Shape suffixes: C tokens that can be drawn, N simulated sets of draws.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from models import WeightKind
from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.trials import Turn
from profiling.gpu_checks.text_equality import LARGEST_TIE, first_difference, gap_at
from profiling.prompts import PromptKind, bench_prompts
from runtime import GenerationResult, Mode, Verification
from scheduler import DecodeRequest, SamplingSettings

_TEMPERATURE, _TOP_K, _TOP_P = 0.6, 4, 0.95
"""What both sides have to apply, each of which changes the law; few outcomes, so that few draws tell."""
_EDGE = 1e-2
"""Places where a token is so near to being filtered out tell nothing: it may stay here and go there."""
_NOTHING = 1e-6
"""A share of the law that no number of draws here meets with."""
_HALF_PRECISION_TIE = 0.25
"""Of logits up to some tens, with the 8 bits that bfloat16 keeps."""
_NUM_LOGPROBS = 20
_NUM_PLACES = 12
"""Tokens among which the place with the most open choice is looked for."""
_LEAST_CHOICE = 0.1
"""Probability of all but the likeliest token, below which draws tell nothing."""
_NUM_SIMULATED = 100_000
_LEAST_P_VALUE = 1e-4
_REPORT = "this must not happen: please report it, with the JSON of --json"


async def check_same_text(pair: LoadedPair) -> Finding:
    """Every speculative answer beside the plain one, at temperature 0 and drawn with a seed."""
    pair.require_draft()
    differences: list[str] = []
    ties: list[str] = []
    num_compared = 0
    for turn in await pair.trials():
        for mode, result in turn.speculative.items():
            num_compared += 1
            index = first_difference(turn.plain.token_ids, result.token_ids)
            if index is not None:
                is_tie = await _is_allowed_tie(pair, turn, result, index)
                (ties if is_tie else differences).append(f"{mode.value} ({turn}) from token {index} on")
    figures: dict[str, object] = {"num_compared": num_compared, "differences": differences, "ties": ties}
    if ties and not differences:
        return Finding(
            verdict=Verdict.WARN,
            measured=f"{len(ties)} of {num_compared} speculative answers part from plain decoding's where two tokens "
            "all but tie: " + "; ".join(ties[:3]),
            advice="on a GPU, and in bfloat16, a logit's last bits depend on how many tokens are computed at once, so "
            "either token is right; weights float32 make it rare",
            figures=figures,
        )
    if not differences:
        return Finding(
            verdict=Verdict.OK,
            measured=f"all {num_compared} speculative answers are plain decoding's, token by token",
            figures=figures,
        )
    return Finding(
        verdict=Verdict.FAIL,
        measured=f"{len(differences)} of {num_compared} speculative answers are not plain decoding's: "
        + "; ".join(differences[:3]),
        advice=f"load with weights float32 to see whether rounding is the reason; {_REPORT}",
        figures=figures,
    )


async def _is_allowed_tie(pair: LoadedPair, turn: Turn, result: GenerationResult, index: int) -> bool:
    """Whether the answers part at a tie, on a device where that is no fault."""
    model, weights = pair.engine.target.model, pair.engine.weights
    if model.device.type == "cpu" and weights is not WeightKind.BFLOAT16:
        return False
    plain_ids, found_ids = turn.plain.token_ids, result.token_ids
    if not turn.prompt_ids or index >= min(len(plain_ids), len(found_ids)):
        return False
    settings = SamplingSettings(temperature=turn.temperature, seed=turn.seed)
    request = DecodeRequest(prompt_ids=turn.prompt_ids, settings=settings, max_tokens=len(plain_ids))
    stream = pair.engine.target.stream
    gap = stream.launch(
        lambda: gap_at(model, request, plain_ids[:index], plain_ids[index], found_ids[index]), label="look at tie"
    )
    await stream.record()
    return gap.result() <= (LARGEST_TIE if weights is WeightKind.FLOAT32 else _HALF_PRECISION_TIE)


async def check_law(pair: LoadedPair) -> Finding:
    """First tokens drawn under the rejection rule, against the target's own law at that place."""
    pair.require_draft()
    prompt_ids, law = await _open_place(pair)
    counts: Counter[int] = Counter()
    num_judged = 0
    for seed in range(pair.effort.num_draws):
        result = await pair.runtime.generate(
            prompt_ids,
            # One token is left to the target; the one before it is proposed and judged.
            max_tokens=2,
            temperature=_TEMPERATURE,
            top_k=_TOP_K,
            top_p=_TOP_P,
            seed=seed,
            verification=Verification.REJECTION,
            mode=Mode.SEQUENTIAL,
            gamma=max(1, pair.gamma),
            ignore_eos=True,
        )
        if result.metrics.num_draft_tokens:
            num_judged += 1
            counts[result.token_ids[0]] += 1
    if 2 * num_judged < pair.effort.num_draws:
        raise CannotTell(f"the draft proposed something in {num_judged} of {pair.effort.num_draws} draws only")
    return judge_draws(law, counts)


def judge_draws(law: Mapping[int, float], counts: Mapping[int, int]) -> Finding:
    """Whether so many draws of each token can come from that law."""
    num_draws = sum(counts.values())
    strangers = sorted(set(counts) - set(law))
    distance = 0.5 * sum(abs(law.get(token, 0.0) - counts.get(token, 0) / num_draws) for token in {*law, *counts})
    p_value = 0.0 if strangers else _p_value(law, counts)
    figures: dict[str, object] = {
        "num_draws": num_draws,
        "total_variation": distance,
        "p_value": p_value,
        "law": {str(token): share for token, share in law.items()},
        "counts": {str(token): count for token, count in counts.items()},
    }
    measured = (
        f"{num_draws} judged draws lie {distance:.3f} from the target's law over {len(law)} tokens (total variation); "
        f"sampling alone gives that or more with probability {p_value:.2g}; a fault of {_noticed(law, num_draws):.2f} "
        "or more would show in so many"
    )
    if strangers:
        measured += f"; token {strangers[0]} was drawn, which the filters leave no chance"
    if p_value >= _LEAST_P_VALUE:
        return Finding(verdict=Verdict.OK, measured=measured, figures=figures)
    return Finding(
        verdict=Verdict.FAIL,
        measured=measured,
        advice="draft and target do not draw through the same temperature, top_k and other options, or the q that "
        f"judges is not the q that drew; {_REPORT}",
        figures=figures,
    )


async def _open_place(pair: LoadedPair) -> tuple[tuple[int, ...], dict[int, float]]:
    """A place where the target has a choice, and the law there: a prompt, and probabilities after top_k."""
    prompt_ids = pair.prompt_ids(bench_prompts(PromptKind.CHAT)[0].messages, _NUM_PLACES + 2)
    written = await pair.runtime.generate(
        prompt_ids, max_tokens=_NUM_PLACES, logprobs=_NUM_LOGPROBS, mode=Mode.PLAIN, ignore_eos=True
    )
    laws = {
        place: law
        for place, logprob in enumerate(written.logprobs)
        if (law := transformed_law(dict(logprob.top))) is not None
    }
    if not laws:
        raise CannotTell("at each place that was looked at a token all but ties with what the filters leave out")
    place = min(laws, key=lambda index: max(laws[index].values()))
    if 1 - max(laws[place].values()) < _LEAST_CHOICE:
        raise CannotTell(f"the target is all but certain of each of {len(laws)} tokens, so that draws tell nothing")
    return (*prompt_ids, *written.token_ids[:place]), laws[place]


def transformed_law(logprobs: Mapping[int, float]) -> dict[int, float] | None:
    """What the target's log probabilities of its likeliest tokens come to after temperature, top_k and top_p.

    Worked out by itself, and not by the code that is examined. None where a token lies at the edge of a filter.
    """
    ranked = sorted(logprobs.items(), key=lambda item: item[1], reverse=True)
    weights = {token: float(np.exp(logprob / _TEMPERATURE)) for token, logprob in ranked[:_TOP_K]}
    is_near = len(ranked) > _TOP_K and ranked[_TOP_K - 1][1] - ranked[_TOP_K][1] < _EDGE
    if is_near and min(weights.values()) > _NOTHING * sum(weights.values()):
        return None
    kept: dict[int, float] = {}
    share_before = 0.0
    for token, weight in weights.items():
        if abs(share_before - _TOP_P) < _EDGE:
            return None
        if share_before > _TOP_P:
            break
        kept[token] = weight
        share_before += weight / sum(weights.values())
    total = sum(kept.values())
    return {token: weight / total for token, weight in kept.items()}


def _p_value(law: Mapping[int, float], counts: Mapping[int, int]) -> float:
    """Probability of a chi-square statistic as large as this one's, by drawing from the law: exact for few draws."""
    counts_C = np.array([counts.get(token, 0) for token in law])
    simulated_N, own = _statistics(law, int(counts_C.sum()), counts_C)
    return (int((simulated_N >= own - 1e-9).sum()) + 1) / (_NUM_SIMULATED + 1)


def _noticed(law: Mapping[int, float], num_draws: int) -> float:
    """The total variation from which on a fault is noticed as a rule.

    A distance d raises the statistic by num_draws * sum(d_C ** 2 / law_C), which by Cauchy is at least num_draws *
    (2 * d) ** 2, whichever tokens it concerns.
    """
    simulated_N, _ = _statistics(law, num_draws, np.zeros(len(law)))
    return min(1.0, float(np.sqrt(np.quantile(simulated_N, 1 - _LEAST_P_VALUE) / (4 * num_draws))))


def _statistics(law: Mapping[int, float], num_draws: int, counts_C: np.ndarray) -> tuple[np.ndarray, float]:
    """The chi-square statistic of many simulated sets of draws, and of the draws that were made."""
    law_C = np.array(list(law.values()))
    law_C = law_C / law_C.sum()
    simulated_NC = np.random.default_rng(0).multinomial(num_draws, law_C, size=_NUM_SIMULATED)

    def statistic(drawn: np.ndarray) -> np.ndarray:
        expected_C = np.maximum(num_draws * law_C, 1e-12)
        return np.asarray(((drawn - expected_C) ** 2 / expected_C).sum(-1))

    return statistic(simulated_NC), float(statistic(counts_C))
