"""What a draft is judged to propose along a text is what decoding proposes there, round by round.

Shape suffixes: K proposals of a round, N tokens of an answer.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from models import Decoder, DraftTarget, FeatureReader, WeightKind, bind_draft, open_draft
from models.config import Family, ModelConfig
from models.decoder_tensors import expected_tensors
from models.distill.answer_chances import answer_chances
from models.distill.answers import write_answers
from models.distill.batched_target import BatchedTarget
from models.distill.draft_model import DraftModel
from models.distill.held_out_prompts import HeldOutPrompt
from models.distill.text_kind import TextKind
from models.draft_folder import DraftDesign, write_draft
from scheduler import (
    DecodeRequest,
    FeatureLane,
    FeatureProposer,
    FixedGamma,
    Lane,
    ModelProposer,
    Proposer,
    RoundReport,
    SamplingSettings,
    SequentialLoop,
    ThreadStream,
)
from tests.support.tiny_decoders import StateDictCheckpoint

CONFIG = ModelConfig(
    family=Family.LLAMA,
    vocab_size=40,
    hidden_size=16,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    context_length=64,
    tie_embeddings=True,
)
PROMPT = (3, 14, 15, 9, 2)
NUM_TOKENS = 48
GAMMA = 4


def checkpoint() -> StateDictCheckpoint:
    generator = torch.Generator().manual_seed(5)
    tensors = {
        name: torch.rand(shape, generator=generator) + 0.5
        if "norm" in name
        else torch.randn(shape, generator=generator) * 0.35
        for name, shape in expected_tensors(CONFIG)
    }
    return StateDictCheckpoint(CONFIG, tensors)


async def decode(source: StateDictCheckpoint, folder: Path, identity: DraftTarget) -> list[RoundReport]:
    """Greedily, in turn, with that draft."""
    model = Decoder.from_checkpoint(source, weights=WeightKind.FLOAT32)
    draft = bind_draft(open_draft(folder, identity), model)
    stream = ThreadStream("both", num_threads=1)
    try:
        reads_features = isinstance(draft, FeatureReader)
        target_lane = Lane("target", model, stream, capacity=CONFIG.context_length, keeps_features=reads_features)
        proposer: Proposer
        if isinstance(draft, FeatureReader):
            lane = FeatureLane("draft", draft, stream, capacity=CONFIG.context_length)
            proposer = FeatureProposer(lane, FixedGamma(GAMMA))
        else:
            proposer = ModelProposer(Lane("draft", draft, stream, capacity=CONFIG.context_length), FixedGamma(GAMMA))
        loop = SequentialLoop(target_lane, stream, [proposer], max_gamma=GAMMA)
        request = DecodeRequest(prompt_ids=PROMPT, settings=SamplingSettings(temperature=0.0), max_tokens=NUM_TOKENS)
        await loop.prefill(request)
        return [report async for report in loop.rounds(request)]
    finally:
        stream.close()


@pytest.mark.parametrize("head", [None, torch.arange(0, 40, 2)])
@pytest.mark.parametrize("design", DraftDesign)
async def test_decoding_accepts_what_the_figures_say(
    design: DraftDesign, head: torch.Tensor | None, tmp_path: Path
) -> None:
    source = checkpoint()
    identity = DraftTarget(name="tiny", fingerprint="f", config=CONFIG)
    draft = DraftModel(CONFIG, design=design, num_layers=1)
    draft.initialise(source)
    tensors = draft.export(head, dtype=torch.float32)
    write_draft(tmp_path, design=design, num_layers=1, target=identity, tensors=tensors)
    reports = await decode(source, tmp_path, identity)

    target = BatchedTarget(source, dtype=torch.float32, device=torch.device("cpu"), num_positions=64)
    prompt = HeldOutPrompt(kind=TextKind.CHAT, token_ids=PROMPT)
    answers = write_answers(target, [prompt], end_ids=(), num_tokens=NUM_TOKENS, seed=0)
    answer = next(answer for answer in answers if answer.greedy)
    chances_KN = torch.stack([chances.greedy_M for chances in answer_chances(draft, target, head, answer, GAMMA)])

    written = [token_id for report in reports for token_id in report.token_ids]
    assert written == answer.token_ids_T[len(PROMPT) :].tolist()
    start, found, foretold = 0, [], []
    for report in reports:
        if report.num_proposed:
            found.append(report.num_accepted)
            along = [chances_KN[step, start + step].item() for step in range(report.num_proposed)]
            foretold.append(along.index(0.0) if 0.0 in along else len(along))
        start += len(report.token_ids)
    assert found == foretold
    assert len(set(found)) > 1
