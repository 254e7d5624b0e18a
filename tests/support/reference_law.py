"""The sampling law once more, in float64 and without a line of the scheduler: what every draft must leave unchanged.

One token at a time: logits, logit bias, min_tokens, penalties, temperature, min-p, top-k, top-p.

Shape suffix: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from scheduler.settings import SamplingSettings

RowAfter = Callable[[list[int]], np.ndarray]
"""Logits, shape V, after a whole sequence of token ids."""


def reference_logits(
    logits_V: np.ndarray,
    settings: SamplingSettings,
    *,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    stop_ids: frozenset[int] = frozenset(),
) -> np.ndarray:
    """float64, the row after bias, min_tokens and penalties."""
    adjusted = [float(logit) for logit in logits_V]
    for token_id, bias in settings.logit_bias.items():
        adjusted[token_id] += bias
    for token_id in range(len(adjusted)):
        if token_id in stop_ids and len(output_ids) < settings.min_tokens:
            adjusted[token_id] = -np.inf
        if token_id in prompt_ids or token_id in output_ids:
            factor = settings.repetition_penalty
            adjusted[token_id] = adjusted[token_id] / factor if adjusted[token_id] > 0 else adjusted[token_id] * factor
        count = list(output_ids).count(token_id)
        adjusted[token_id] -= settings.frequency_penalty * count + settings.presence_penalty * (count > 0)
    return np.array(adjusted)


def reference_probabilities(
    logits_V: np.ndarray,
    settings: SamplingSettings,
    *,
    prompt_ids: Sequence[int],
    output_ids: Sequence[int],
    stop_ids: frozenset[int] = frozenset(),
) -> np.ndarray:
    """float64, shape V: the law of the next token."""
    adjusted_V = reference_logits(logits_V, settings, prompt_ids=prompt_ids, output_ids=output_ids, stop_ids=stop_ids)
    if settings.temperature == 0:
        one_hot_V = np.zeros_like(adjusted_V)
        one_hot_V[int(np.argmax(adjusted_V))] = 1
        return one_hot_V
    weights_V = np.exp((adjusted_V - adjusted_V.max()) / settings.temperature)
    weights_V[weights_V < settings.min_p] = 0
    if settings.top_k:
        ranked = sorted(weights_V, reverse=True)
        weights_V[weights_V < ranked[min(settings.top_k, len(ranked)) - 1]] = 0
    probabilities_V = weights_V / weights_V.sum()
    if settings.top_p < 1:
        reached, edge = 0.0, 1.0
        for probability in sorted(probabilities_V, reverse=True):
            if reached >= settings.top_p:
                break
            reached, edge = reached + probability, probability
        probabilities_V[probabilities_V < edge] = 0
    return probabilities_V / probabilities_V.sum()


def joint_law(
    row_after: RowAfter,
    settings: SamplingSettings,
    *,
    prompt_ids: Sequence[int],
    num_tokens: int,
    stop_ids: frozenset[int] = frozenset(),
) -> dict[tuple[int, ...], float]:
    """Probability of every output of `num_tokens` tokens, or fewer where a stop id ends it: one-token decoding."""
    law: dict[tuple[int, ...], float] = {}

    def extend(output_ids: tuple[int, ...], probability: float) -> None:
        if len(output_ids) == num_tokens or (output_ids and output_ids[-1] in stop_ids):
            law[output_ids] = probability
            return
        next_V = reference_probabilities(
            row_after([*prompt_ids, *output_ids]),
            settings,
            prompt_ids=prompt_ids,
            output_ids=output_ids,
            stop_ids=stop_ids,
        )
        for token_id in np.flatnonzero(next_V).tolist():
            extend((*output_ids, token_id), probability * float(next_V[token_id]))

    extend((), 1.0)
    return law
