"""Loops whose draft reads features: the text is the target's, every feature the right one, on every legal order."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest

from scheduler import (
    FeatureLane,
    SamplingSettings,
    SequentialLoop,
    Stream,
    ThreadStream,
    Verification,
    VirtualDevice,
)
from scheduler.features import Features
from tests.support.feature_models import GivesFeatures, ReadsFeatures, check_rows, feature_proposer
from tests.support.loops import Rig, decode, ngram_proposer, one_token_decoding, request_of
from tests.support.reference_law import joint_law
from tests.support.statistics import frequencies, total_variation
from tests.support.table_model import TableModel

SHAPES = {
    "one stream": {},
    "two streams": {"two_streams": True},
    "pipelined": {"pipelined": True, "max_lead": 4},
    "never waits": {"pipelined": True, "max_lead": 6, "num_awaited": 0, "num_verdict_slots": 1},
}
BY_SHAPE = pytest.mark.parametrize("shape", SHAPES)
PROMPT = [1, 2, 0, 3, 1, 2]
LONG = [index % 7 for index in range(75)]


def target(**options: int) -> GivesFeatures:
    return GivesFeatures(seed=1, **options)


def draft(**options: int) -> ReadsFeatures:
    """One that is right now and then."""
    model = ReadsFeatures(seed=2, **options)
    model.tables = target().tables + 0.4 * model.tables
    return model


def rig_of(shape: str, model: ReadsFeatures, new_stream: Callable[[str], Stream] | None = None, **options: int) -> Rig:
    streams = {} if new_stream is None else {"new_stream": new_stream}
    return Rig(target(), [feature_proposer(model)], keeps_features=True, **SHAPES[shape], **streams, **options)


def check(rig: Rig, model: ReadsFeatures) -> None:
    assert model.wrong == []
    (lane,) = (proposer.lane for proposer in rig.proposers)
    assert isinstance(lane, FeatureLane)
    assert lane.num_missing == 0
    check_rows(rig.proposers[0], lane.num_sure)


@BY_SHAPE
async def test_conversations_in_every_order(shape: str) -> None:
    num_own = num_accepted = 0
    for seed in range(5):
        draw, model = random.Random(seed), draft(max_block=(4, 16)[seed % 2])
        rig = rig_of(shape, model, VirtualDevice(seed).stream)
        text: list[int] = []
        for turn in range(3):
            text = text[: draw.randint(0, len(text))] + [draw.randrange(8) for _ in range(draw.choice((1, 3, 20, 40)))]
            request = request_of(text, 14, temperature=1.0, seed=seed + turn)
            output = await rig.run(request)
            assert output.ids == one_token_decoding(target(), request)
            num_accepted += output.num_accepted
            text += output.ids
        await rig.idle()
        check(rig, model)
        rig.close()
        num_own += model.num_own
    # Else the texts would say little.
    assert num_own > 20
    assert num_accepted > 20


@BY_SHAPE
async def test_a_right_draft_stays_right(shape: str) -> None:
    """A row on a wrong token would show: the draft is the target itself."""
    model = ReadsFeatures(seed=1)
    rig = rig_of(shape, model, partial(ThreadStream, num_threads=1))
    output = await rig.run(request_of(PROMPT, 80, temperature=1.0, seed=3))
    await rig.idle()
    check(rig, model)
    rig.close()
    assert output.num_accepted == output.num_proposed > 0
    assert output.num_misses == 0


@BY_SHAPE
async def test_beside_ngram_look_ups(shape: str) -> None:
    for seed in range(3):
        model = draft()
        request = request_of([1, 2, 3, 1, 2, 3, 1, 2], 30, temperature=0.7, seed=seed)
        output = await decode(
            target(),
            request,
            [ngram_proposer(2), feature_proposer(model)],
            keeps_features=True,
            new_stream=VirtualDevice(seed).stream,
            **SHAPES[shape],
        )
        assert output.ids == one_token_decoding(target(), request)
        assert model.wrong == []


async def test_a_miss_costs_one_call() -> None:
    """Accepted tokens are read again along with the one that follows them."""
    model = draft()
    rig = rig_of("one stream", model)
    reports = (await rig.run(request_of(PROMPT, 60, temperature=1.0, seed=5))).reports
    rig.close()
    # The first round has nothing to propose from; the second reads the prompt and the first token.
    widths = iter(model.widths)
    assert reports[0].num_proposed == 0
    expected = len(PROMPT) + 1
    for report in reports[1:-1]:
        calls = list(itertools.islice(widths, report.num_proposed))
        assert calls == [expected, *[1] * (report.num_proposed - 1)]
        expected = report.num_accepted + 1


async def test_a_draft_reads_a_long_prompt_behind_the_target() -> None:
    model = draft()
    rig = rig_of("pipelined", model, max_gamma=4)
    request = request_of(LONG, 6, seed=1, temperature=1.0)
    await rig.loop.prefill(request)
    await rig.idle()
    lane = rig.proposers[0].lane
    # All that the target has read, but for less than is worth a call.
    assert rig.target.num_held - 16 < lane.num_held <= rig.target.num_held
    check(rig, model)
    output = [report async for report in rig.loop.rounds(request)]
    assert [token_id for report in output for token_id in report.token_ids] == one_token_decoding(target(), request)
    rig.close()


async def test_a_draft_that_is_behind_reads_one_block_a_round() -> None:
    model = draft(max_block=16)
    rig = rig_of("one stream", model)
    reports = (await rig.run(request_of(LONG, 12, seed=1, temperature=1.0))).reports
    rig.close()
    num_blocks = len(LONG) // 16
    assert [report.num_proposed for report in reports[:num_blocks]] == [0] * num_blocks
    assert reports[num_blocks].num_proposed > 0
    assert model.widths[:num_blocks] == [16] * num_blocks


async def test_what_a_plain_loop_read_is_handed_out_later() -> None:
    """A conversation whose second turn was decoded without the draft."""
    model = draft()
    rig = rig_of("pipelined", model)
    plain = SequentialLoop(rig.target, rig.target_stream, max_gamma=0, name="plain")
    first = await rig.run(request_of(PROMPT, 10, seed=1, temperature=1.0))
    text = [*PROMPT, *first.ids, 4, 5]
    request = request_of(text, 30, seed=2, temperature=1.0)
    await plain.prefill(request)
    text += [token_id async for report in plain.rounds(request) for token_id in report.token_ids]
    held = rig.proposers[0].lane.num_held
    num_calls = len(model.widths)
    last = request_of([*text, 6], 20, seed=3, temperature=1.0)
    output = await rig.run(last)
    await rig.idle()
    assert output.ids == one_token_decoding(target(), last)
    assert output.num_proposed > 0
    check(rig, model)
    rig.close()
    # Nothing that it held with the target's features was read again.
    assert sum(model.widths[num_calls:]) < len(text) + 20 * 6 - held + 20


@pytest.mark.parametrize("shape", ["two streams", "pipelined"])
async def test_failures_leave_the_next_request_right(shape: str) -> None:
    has_failed: list[bool] = []
    for seed in range(10):
        model = draft()
        rig = rig_of(shape, model, VirtualDevice(seed).stream)
        failing = (rig.target.model, model)[seed % 2]
        failing.fail_at_call = 1 + seed // 2
        with suppress(RuntimeError):
            await rig.run(request_of(LONG[: 20 + seed], 20, seed=seed, temperature=1.0))
        has_failed.append(failing.num_calls >= failing.fail_at_call)
        failing.fail_at_call = None
        request = request_of([*LONG[: 10 + seed], 1], 12, seed=seed, temperature=1.0)
        output = await rig.run(request)
        await rig.idle()
        assert output.ids == one_token_decoding(target(), request)
        check(rig, model)
        rig.close()
    assert sum(has_failed) > 4


async def test_features_that_cannot_be_taken_in_leave_no_refuted_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The draft then waits for them; were its chain not settled, it would go on from tokens that were refused."""
    rig = rig_of("one stream", draft())
    lane = rig.proposers[0].lane
    assert isinstance(lane, FeatureLane)
    receive, num_received = lane.receive, itertools.count()

    def fail_later(features: Features) -> None:
        if next(num_received) >= 5:
            raise RuntimeError("planted")
        receive(features)

    monkeypatch.setattr(lane, "receive", fail_later)
    request = request_of(PROMPT, 40, temperature=1.0, seed=5)
    output = await rig.run(request)
    rig.close()
    assert output.ids == one_token_decoding(target(), request)
    assert any(report.num_proposed for report in output.reports[:5])
    assert not any(report.num_proposed for report in output.reports[5:])


@pytest.mark.parametrize("shape", ["one stream", "pipelined"])
async def test_the_law_under_rejection(shape: str) -> None:
    """Tokens that were drafted and guessed: the first one has nothing to be drafted from."""
    settings = SamplingSettings(temperature=1.0)
    written, drafting = (partial(TableModel, vocab_size=4, order=2, seed=seed, sharpness=0.8)() for seed in (11, 12))
    model = ReadsFeatures(vocab_size=4, order=2, seed=12, sharpness=0.8)
    # What it cannot propose has to come from the residual.
    model.tables[:, 0, 2] = float("-inf")
    giving = GivesFeatures(vocab_size=4, order=2, seed=11, sharpness=0.8)
    rig = Rig(
        giving,
        [feature_proposer(model, 3)],
        keeps_features=True,
        **SHAPES[shape],
    )
    options = {"temperature": 1.0, "verification": Verification.REJECTION}
    outputs = [(await rig.run(request_of((0, 3), 4, seed=seed, **options))).ids for seed in range(250)]
    check(rig, model)
    rig.close()

    def law_of(table: TableModel) -> dict[tuple[int, ...], float]:
        law: Counter[tuple[int, ...]] = Counter()
        whole = joint_law(
            lambda ids: table.logits_after(ids).double().numpy(), settings, prompt_ids=(0, 3), num_tokens=4
        )
        for token_ids, probability in whole.items():
            law[token_ids[2:]] += probability
        return law

    # 250 draws of 16 outcomes are 0.09 from their law on average.
    assert total_variation(frequencies(tuple(ids[2:]) for ids in outputs), law_of(written)) < 0.14
    assert total_variation(law_of(drafting), law_of(written)) > 0.25
