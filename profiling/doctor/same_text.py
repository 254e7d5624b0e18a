"""Is what speculation writes what the target writes alone: token by token, and in distribution?

Owns both comparisons. Greedy answers and answers with a seed must be the same tokens; answers under the rejection rule
must follow the target's own law, which is drawn from many times at one position and compared with it.

Shape suffixes: C tokens that can be drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.loaded_pair import LoadedPair
from profiling.gpu_checks.text_equality import first_difference
from profiling.prompts import PromptKind, bench_prompts
from runtime import Mode, Verification

_TOP_K = 4
"""Few outcomes, so that few draws tell; and a filter that both sides have to apply."""
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
    differences = []
    num_compared = 0
    for turn in await pair.trials():
        for mode, result in turn.speculative.items():
            num_compared += 1
            index = first_difference(turn.plain.token_ids, result.token_ids)
            if index is not None:
                differences.append(f"{mode.value} ({turn}) from token {index} on")
    figures: dict[str, object] = {"num_compared": num_compared, "differences": differences}
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
            temperature=1.0,
            top_k=_TOP_K,
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
        f"sampling alone gives that or more with probability {p_value:.2g}"
    )
    if strangers:
        measured += f"; token {strangers[0]} was drawn, which top_k leaves no chance"
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
    laws = [_after_top_k(dict(place.top)) for place in written.logprobs]
    place = min(range(len(laws)), key=lambda index: max(laws[index].values()))
    if 1 - max(laws[place].values()) < _LEAST_CHOICE:
        raise CannotTell(f"the target is all but certain of each of {len(laws)} tokens, so that draws tell nothing")
    return (*prompt_ids, *written.token_ids[:place]), laws[place]


def _after_top_k(logprobs: Mapping[int, float]) -> dict[int, float]:
    """Tokens that tie with the last one kept are kept as well, as `scheduler.transforms` has it."""
    edge = sorted(logprobs.values(), reverse=True)[:_TOP_K][-1]
    weights = {token: float(np.exp(logprob)) for token, logprob in logprobs.items() if logprob >= edge}
    total = sum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def _p_value(law: Mapping[int, float], counts: Mapping[int, int]) -> float:
    """Probability of a chi-square statistic as large as this one's, by drawing from the law: exact for few draws."""
    law_C = np.array(list(law.values()))
    law_C = law_C / law_C.sum()
    counts_C = np.array([counts.get(token, 0) for token in law])
    num_draws = int(counts_C.sum())
    simulated_NC = np.random.default_rng(0).multinomial(num_draws, law_C, size=_NUM_SIMULATED)

    def statistic(drawn: np.ndarray) -> np.ndarray:
        expected_C = np.maximum(num_draws * law_C, 1e-12)
        return np.asarray(((drawn - expected_C) ** 2 / expected_C).sum(-1))

    num_above = int((statistic(simulated_NC) >= statistic(counts_C) - 1e-9).sum())
    return (num_above + 1) / (_NUM_SIMULATED + 1)
