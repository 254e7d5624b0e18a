"""Planted acceptance: how often the draft is right, that the text stays the target's, shares of time, the report."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from models import Decoder, WeightKind, open_checkpoint
from profiling import planted
from profiling.planted import main
from profiling.planted_draft import PlantedDraft, is_right, planted_ids, shallow_decoder
from profiling.planted_lanes import Choice, PlantedLanes, PlantedPrompt, PlantedRun, PlantedSystem, judged
from profiling.planted_report import format_planted, summarise
from profiling.trace.lane_times import BusyShares
from scheduler import RoundReport
from tests.support.tiny_checkpoint import write_tiny_gguf

PROMPT = tuple(range(3, 15))
NUM_TOKENS = 160
SPECULATING = [PlantedSystem.SEQUENTIAL, PlantedSystem.SEQUENTIAL_SPLIT, PlantedSystem.PIPELINED]


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("planted") / "tiny.gguf", max_position_embeddings=2048)


@pytest.fixture(scope="module")
def models(tiny_gguf: Path) -> tuple[Decoder, Decoder]:
    with open_checkpoint(tiny_gguf) as checkpoint:
        target = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32)
        return target, shallow_decoder(checkpoint, weights=WeightKind.FLOAT32, num_layers=1, num_head_rows=64)


@pytest.fixture
def split_lanes(models: tuple[Decoder, Decoder]) -> Iterator[PlantedLanes]:
    lanes = PlantedLanes(*models, target_threads=1, draft_threads=1, capacity=len(PROMPT) + NUM_TOKENS + 1)
    yield lanes
    lanes.close()


def planted_prompt(own_ids: tuple[int, ...], acceptance: float) -> PlantedPrompt:
    planted_tokens = planted_ids(own_ids, first_position=len(PROMPT), prompt=0, acceptance=acceptance, vocab_size=265)
    return PlantedPrompt(token_ids=PROMPT, planted_ids=tuple(planted_tokens))


def test_the_plan_is_right_as_often_as_it_should_be() -> None:
    """Within five standard deviations over 20,000 tokens, and for every prompt another plan."""
    for acceptance in (0.0, 0.6, 0.9, 1.0):
        num_right = sum(is_right(0, prompt, position, acceptance) for prompt in range(20) for position in range(1000))
        assert abs(num_right / 20_000 - acceptance) <= 5 * math.sqrt(acceptance * (1 - acceptance) / 20_000)
    plans = {tuple(is_right(seed, prompt, i, 0.5) for i in range(64)) for seed in range(4) for prompt in range(4)}
    assert len(plans) == 16


def test_what_is_right_at_one_acceptance_is_right_at_a_higher_one() -> None:
    for position in range(500):
        verdicts = [is_right(0, 3, position, acceptance) for acceptance in (0.2, 0.5, 0.8)]
        assert verdicts == sorted(verdicts)


def test_a_wrong_token_is_another_id_that_the_target_knows() -> None:
    own_ids = [4, 9, 9, 0] * 50
    wrong_ids = planted_ids(own_ids, first_position=7, prompt=0, acceptance=0.0, vocab_size=10)
    assert all(0 <= wrong < 10 and wrong != own for wrong, own in zip(wrong_ids, own_ids, strict=True))
    assert planted_ids(own_ids, first_position=7, prompt=0, acceptance=1.0, vocab_size=10) == own_ids


def test_the_draft_runs_its_decoder_and_answers_by_position(models: tuple[Decoder, Decoder]) -> None:
    """However the tokens are cut into calls, and again after a rollback."""
    target, shallow = models
    draft = PlantedDraft(shallow, vocab_size=target.vocab_size)
    draft.plant([200, 201, 202], first_position=2)
    cache = draft.new_cache(16)
    logits_RV = draft.forward(torch.tensor([1, 2, 3]), cache, num_logits=3)
    assert (logits_RV.shape, logits_RV.dtype) == ((3, target.vocab_size), torch.float32)
    # The first row is about position 1, which is in the prompt.
    assert logits_RV.argmax(dim=1).tolist() == [0, 200, 201]
    cache.rollback(2)
    assert draft.forward(torch.tensor([99]), cache, num_logits=1).argmax().item() == 201
    assert draft.forward(torch.tensor([99, 98]), cache, num_logits=2).argmax(dim=1).tolist() == [202, 0]
    assert cache.length == 5
    assert draft.forward(torch.tensor([99]), cache, num_logits=0).shape == (0, target.vocab_size)
    assert len(draft.step_times_ms) == 2


def test_the_shallow_decoder_has_the_first_layers_and_rows_and_reads_every_id(tiny_gguf: Path) -> None:
    with open_checkpoint(tiny_gguf) as checkpoint:
        whole = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32).first_layers(1)
        shallow = shallow_decoder(checkpoint, weights=WeightKind.FLOAT32, num_layers=1, num_head_rows=64)
        deepest = shallow_decoder(checkpoint, weights=WeightKind.FLOAT32, num_layers=99, num_head_rows=10**6)
    assert (deepest.config.num_layers, deepest.vocab_size) == (checkpoint.config.num_layers, whole.vocab_size)
    ids_T = torch.tensor([3, whole.vocab_size - 1, 70])
    logits_RV = shallow.forward(ids_T, shallow.new_cache(8), num_logits=3)
    expected_RV = whole.forward(ids_T, whole.new_cache(8), num_logits=3)
    torch.testing.assert_close(logits_RV, expected_RV[:, :64])


@pytest.mark.parametrize("system", SPECULATING)
async def test_acceptance_is_realised_and_the_text_is_the_targets(
    system: PlantedSystem, split_lanes: PlantedLanes
) -> None:
    plain = await split_lanes.run(PlantedSystem.PLAIN, Choice(), PlantedPrompt(token_ids=PROMPT), num_tokens=NUM_TOKENS)
    lead = 4 if system is PlantedSystem.PIPELINED else 0
    for acceptance in (0.0, 0.6, 0.9, 1.0):
        prompt = planted_prompt(plain.token_ids, acceptance)
        run = await split_lanes.run(system, Choice(gamma=4, max_lead=lead), prompt, num_tokens=NUM_TOKENS)
        assert run.token_ids == plain.token_ids
        assert len(run.token_ids) == NUM_TOKENS
        deviation = math.sqrt(acceptance * (1 - acceptance) / run.num_judged)
        assert abs(run.num_right / run.num_judged - acceptance) <= 4.5 * deviation
        assert run.num_accepted <= run.num_right <= run.num_accepted + run.num_hits
        assert (run.num_hits > 0) <= (system is PlantedSystem.PIPELINED)
        if acceptance == 1.0:
            assert run.num_rounds <= NUM_TOKENS / 4


async def test_no_run_profits_from_the_one_before(split_lanes: PlantedLanes) -> None:
    """The same prompt twice: the caches were emptied, so the prompt is read again by both models."""
    plain = await split_lanes.run(PlantedSystem.PLAIN, Choice(), PlantedPrompt(token_ids=PROMPT), num_tokens=40)
    prompt = planted_prompt(plain.token_ids, 1.0)
    runs = [await split_lanes.run(PlantedSystem.SEQUENTIAL, Choice(gamma=2), prompt, num_tokens=40) for _ in range(2)]
    assert [run.num_rounds for run in runs] == [14, 14]
    assert all(lane.num_held >= len(PROMPT) for lane in (split_lanes._target, split_lanes._draft))
    await split_lanes._reset(prompt)
    assert [lane.num_held for lane in (split_lanes._target, split_lanes._draft)] == [0, 0]


async def test_only_the_pipelined_system_has_both_lanes_busy(
    models: tuple[Decoder, Decoder], split_lanes: PlantedLanes
) -> None:
    shared_lanes = PlantedLanes(*models, target_threads=1, draft_threads=None, capacity=len(PROMPT) + NUM_TOKENS + 1)
    try:
        plain = await shared_lanes.run(
            PlantedSystem.PLAIN, Choice(), PlantedPrompt(token_ids=PROMPT), num_tokens=NUM_TOKENS
        )
        prompt = planted_prompt(plain.token_ids, 0.8)
        sequential = await shared_lanes.run(PlantedSystem.SEQUENTIAL, Choice(gamma=4), prompt, num_tokens=NUM_TOKENS)
    finally:
        shared_lanes.close()
    pipelined = await split_lanes.run(
        PlantedSystem.PIPELINED, Choice(gamma=4, max_lead=8), prompt, num_tokens=NUM_TOKENS
    )
    assert plain.shares.both == plain.shares.draft_only == sequential.shares.both == 0
    assert sequential.shares.draft_only > 0
    assert pipelined.shares.both > 0
    for run in (plain, sequential, pipelined):
        shares = asdict(run.shares).values()
        assert all(-1e-9 <= share <= 1 for share in shares)
        assert sum(shares) == pytest.approx(1)
        assert run.shares.target_only + run.shares.both > 0


def test_a_token_is_judged_where_it_is_compared_with_the_targets_own() -> None:
    """A wrong token hides those behind it, the guess among them; a wrong guess counts, no guess does not."""

    def report(num_proposed: int, num_accepted: int, hit: bool | None) -> RoundReport:
        return RoundReport(token_ids=(1,), num_proposed=num_proposed, num_accepted=num_accepted, hit=hit)

    assert judged([report(4, 4, True)]) == (5, 5)
    assert judged([report(4, 4, False)]) == (5, 4)
    assert judged([report(4, 4, None)]) == (4, 4)
    assert judged([report(4, 2, False)]) == (3, 2)
    assert judged([report(4, 0, None), report(0, 0, None), report(2, 2, True)]) == (4, 3)


async def test_too_few_tokens_to_time_are_refused(split_lanes: PlantedLanes) -> None:
    with pytest.raises(ValueError, match="num_tokens 1 fit into one round"):
        await split_lanes.run(PlantedSystem.PLAIN, Choice(), PlantedPrompt(token_ids=PROMPT), num_tokens=1)


def run_of(tokens_per_s: float, **changes: object) -> PlantedRun:
    run = PlantedRun(
        token_ids=(1, 2, 3),
        tokens_per_s=tokens_per_s,
        shares=BusyShares(both=0.25, target_only=0.5, draft_only=0.25, neither=0.0),
        num_rounds=2,
        num_proposed=4,
        num_accepted=1,
        num_discarded=1,
        num_judged=2,
        num_right=1,
        num_guessed=2,
        num_hits=1,
        draft_step_ms=2.0,
        verify_ms=20.0,
        verify_width=3.0,
    )
    return replace(run, **changes)


def test_ratios_are_paired_by_prompt_before_their_median_is_taken() -> None:
    speeds = {
        PlantedSystem.PLAIN: (10, 20, 40),
        PlantedSystem.SEQUENTIAL: (20, 20, 40),
        PlantedSystem.SEQUENTIAL_SPLIT: (5, 20, 20),
        PlantedSystem.PIPELINED: (30, 40, 10),
    }
    runs = {("int8", 0.8, system): {i: run_of(speed) for i, speed in enumerate(own)} for system, own in speeds.items()}
    runs["int8", 0.8, PlantedSystem.PIPELINED][1] = run_of(40, token_ids=(1, 2, 4), num_right=2, num_judged=4)
    rows = summarise(
        runs, {case: Choice(gamma=4) for case in runs}, {case: dict.fromkeys(range(3), (1, 2, 3)) for case in runs}
    )
    plain, sequential, _, pipelined = rows
    assert (plain.speedup_over_plain, plain.speedup_over_sequential) == (1, None)
    assert (sequential.tokens_per_s, sequential.speedup_over_plain, sequential.speedup_over_split) == (20, 1, 2)
    assert (pipelined.speedup_over_plain, pipelined.speedup_over_sequential, pipelined.speedup_over_split) == (
        2,
        1.5,
        2,
    )
    assert (pipelined.realised_acceptance, pipelined.accepted_share, pipelined.hit_rate) == (0.5, 0.25, 0.5)
    assert [row.identical_to_plain for row in rows] == [True, True, True, False]
    lines = format_planted(rows).splitlines()
    assert len(lines) == 5
    assert [line.endswith("TOKENS DIFFER") for line in lines] == [False] * 4 + [True]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--acceptance", "1.2"],
        ["--acceptance", "-0.1", "0.5"],
        ["--acceptance", "nan"],
        ["--weights", "int4"],
        ["--threads", "1"],
        ["--prompts", "0"],
        ["--prompts", "17"],
        ["--tokens", "17"],
        ["--gammas", "0"],
        ["--gammas", "9"],
        ["--leads", "0"],
        ["--contention", "-1"],
        ["--out", "no/such/folder/report.json"],
    ],
)
def test_bad_arguments_end_before_anything_is_loaded(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(planted, "measure")
    monkeypatch.delattr(planted, "demo_weights")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_a_small_run_of_the_whole(tiny_gguf: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a tiny model, without the measurement that starts a process; how fast it is nobody asks here."""
    out = tmp_path / "planted.json"
    sizes = ["--weights", "float32", "--prompts", "2", "--tokens", "24", "--gammas", "2", "4", "--leads", "3"]
    settings = ["--target", str(tiny_gguf), "--acceptance", "0.5", "1", *sizes, "--threads", "2", "--contention", "0"]
    assert main([*settings, "--out", str(out)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert json.loads(out.read_text()) == report
    assert len(table) == 1 + 2 * len(PlantedSystem)
    assert report["same_on_all_threads"].keys() == {"float32"}
    assert report["contention"] == []
    rows = report["rows"]
    assert [(row["acceptance"], row["system"]) for row in rows] == [
        (acceptance, system) for acceptance in (0.5, 1.0) for system in PlantedSystem
    ]
    for row in rows:
        assert row["identical_to_plain"] is True
        assert row["num_tokens"] == 48
        assert row["tokens_per_s"] > 0
        assert row["verify_ms"] > 0
        assert sum(row["shares"].values()) == pytest.approx(1)
        assert (row["draft_step_ms"] is None) == (row["system"] == "plain")
        if row["system"] == "plain":
            assert row["realised_acceptance"] is None
        else:
            assert (row["realised_acceptance"] == 1.0) == (row["acceptance"] == 1.0)
        assert (row["choice"]["max_lead"] > 0) == (row["system"] == "pipelined")
    tried = {(trial["acceptance"], trial["system"]): 0 for trial in report["trials"]}
    for trial in report["trials"]:
        tried[trial["acceptance"], trial["system"]] += trial["chosen"]
    assert set(tried.values()) == {1}
    assert len(report["trials"]) == 2 * (1 + 2 + 2 + 2)
    chosen = {(trial["acceptance"], trial["system"]): trial["choice"] for trial in report["trials"] if trial["chosen"]}
    assert chosen == {(row["acceptance"], row["system"]): row["choice"] for row in rows}


def test_prompts_of_a_run_are_all_different(tiny_gguf: Path) -> None:
    with open_checkpoint(tiny_gguf) as checkpoint:
        prompts = planted._prompts(checkpoint.tokenizer(), planted._most_prompts() + 2)
    assert len(set(prompts)) == len(prompts) == 18
