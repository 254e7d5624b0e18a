"""Whether two outputs of one request are the same text, and what a first difference comes from.

Owns the comparison. Off the CPU a logit's last bits depend on the width of the call, so where two tokens all but tie,
plain decoding and a block may take different ones, rightly. Knows nothing of loops.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models import CausalModel
from scheduler import DecodeRequest
from scheduler.on_device import NoiseTable, purposes_of

LARGEST_TIE = 1e-3
"""Of what decides a draw, logit over temperature plus noise: closer together are float32's last bits."""


def first_difference(first_ids: Sequence[int], second_ids: Sequence[int]) -> int | None:
    """Index of the first token in which they differ; None where they are equal."""
    for index, (first, second) in enumerate(zip(first_ids, second_ids, strict=False)):
        if first != second:
            return index
    return None if len(first_ids) == len(second_ids) else min(len(first_ids), len(second_ids))


def gap_at(
    decoder: CausalModel, request: DecodeRequest, common_ids: Sequence[int], first_id: int, second_id: int
) -> float:
    """By how much one of two tokens wins over the other behind the prompt and `common_ids`.

    For requests whose settings have no filter and no penalty, under the coupled rule.
    """
    text_ids = [*request.prompt_ids, *common_ids]
    ids_T = torch.tensor(text_ids, dtype=torch.int64, device=decoder.device)
    cache = decoder.new_cache(len(text_ids))
    for block_T in torch.split(ids_T[:-1], decoder.max_block):
        decoder.forward(block_T, cache, num_logits=0)
    logits_V = decoder.forward(ids_T[-1:], cache, num_logits=1)[0].cpu()
    settings, position = request.settings, len(text_ids)
    both = torch.tensor([first_id, second_id])
    values_2 = logits_V[both]
    if not settings.greedy:
        noise = NoiseTable(
            settings.seed,
            device="cpu",
            num_positions=position + 1,
            first_position=position,
            purposes=purposes_of(settings),
        )
        noise.reserve(position + 1)
        (purpose,) = purposes_of(settings)
        noise_12 = noise.gumbel_RV(purpose, torch.tensor([position]), both.to(torch.int32))
        values_2 = values_2 / settings.temperature + noise_12[0]
    return float((values_2[0] - values_2[1]).abs())


def explain_difference(
    decoder: CausalModel, request: DecodeRequest, wanted_ids: Sequence[int], found_ids: Sequence[int]
) -> tuple[str | None, bool]:
    """What is wrong with `found_ids`, None if nothing; and whether they differ at a tie, which is no fault."""
    index = first_difference(wanted_ids, found_ids)
    if index is None:
        return None, False
    if index >= min(len(wanted_ids), len(found_ids)):
        return f"{len(found_ids)} tokens instead of {len(wanted_ids)}", False
    gap = gap_at(decoder, request, wanted_ids[:index], wanted_ids[index], found_ids[index])
    if gap <= LARGEST_TIE:
        return None, True
    return f"token {index} is {found_ids[index]} instead of {wanted_ids[index]}, which wins by {gap:.2g}", False
