"""The benchmark: paired ratios by hand, the order of the runs, bad arguments, and one small run of the real thing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models import CheckpointError, WeightKind
from profiling import bench
from profiling.bench import main, measure
from profiling.bench_options import BenchSettings, DraftChoice
from profiling.bench_run import PeerRecord, PeerState, Run
from profiling.bench_sources import Assistant, check_sources
from profiling.bench_summary import SummaryRow, format_table, summarise
from profiling.bench_systems import WARM_UP, LineUp, RunMissingError, System, Turn
from profiling.peers.label import SystemLabel
from profiling.peers.plans import REFERENCE
from profiling.peers.process import PeerLostError
from profiling.prompts import BenchPrompt, PromptKind, bench_prompts
from tests.support.bench_labels import label_of
from tests.support.tiny_checkpoint import write_tiny_folder

PLAIN = "slipstream float16, plain"
SPECULATION = "slipstream float16, sequential"
REFERENCE_LOOKUP = "transformers float32, prompt lookup 10"
SETTINGS = BenchSettings(threads=(1, 2), weights=(WeightKind.FLOAT16,), num_prompts=2, max_tokens=4)
ASSISTANT = Assistant(draft=None, num_layers=1)


@pytest.fixture
def same_threads() -> Iterator[None]:
    """A run sets the number of threads of the whole process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def planted(
    system: str,
    tpots_ms: Sequence[float],
    *,
    kind: PromptKind = PromptKind.CODE,
    threads: int = 1,
    acceptance: Sequence[float | None] | None = None,
) -> list[Run]:
    """One run for each prompt; every system has the same tokens on one prompt, others on the next."""
    rates = acceptance or [None] * len(tpots_ms)
    return [
        Run(
            label=label_of(system),
            threads=threads,
            kind=kind,
            prompt=prompt,
            tpot_ms=tpot_ms,
            ttft_ms=100 * tpot_ms,
            token_ids=(prompt, 7),
            acceptance_rate=rate,
            acceptance_length=None if rate is None else 1 + 4 * rate,
        )
        for prompt, (tpot_ms, rate) in enumerate(zip(tpots_ms, rates, strict=True))
    ]


def all_systems() -> list[Run]:
    return [
        *planted(REFERENCE.name, [30, 40, 50]),
        *planted(PLAIN, [10, 20, 12]),
        *planted(SPECULATION, [5, 20, 4], acceptance=[0.5, None, 0.75]),
        *planted(REFERENCE_LOOKUP, [15, 40, 10]),
    ]


def row_of(rows: Sequence[SummaryRow], system: str, *, kind: str = "code", threads: int = 1) -> SummaryRow:
    (row,) = [row for row in rows if (row.system, row.kind, row.threads) == (system, kind, threads)]
    return row


def test_ratios_are_paired_before_their_median_is_taken() -> None:
    """The ratios of the medians would be 40/12, 40/5, 40/15 and 12/5 instead."""
    rows = summarise(all_systems())
    assert {row.system: row.speedup_over_transformers for row in rows} == {
        REFERENCE.name: 1,
        PLAIN: 3,
        SPECULATION: 6,
        REFERENCE_LOOKUP: 2,
    }
    assert row_of(rows, SPECULATION).speedup_over_plain == 2
    assert row_of(rows, REFERENCE_LOOKUP).speedup_over_plain == 2
    assert row_of(rows, PLAIN).speedup_over_plain == 1


def test_times_and_acceptance_are_medians_of_what_is_known() -> None:
    rows = summarise(all_systems())
    assert (row_of(rows, PLAIN).tpot_ms, row_of(rows, PLAIN).ttft_ms) == (12, 1200)
    speculation = row_of(rows, SPECULATION)
    assert (speculation.acceptance_rate, speculation.mean_acceptance_length) == (0.625, 3.5)
    assert (row_of(rows, PLAIN).acceptance_rate, row_of(rows, PLAIN).mean_acceptance_length) == (None, None)


def test_kinds_and_threads_are_never_mixed() -> None:
    runs = [
        *planted(PLAIN, [8], threads=2),
        *planted(PLAIN, [30], kind=PromptKind.CHAT),
        *all_systems(),
        *planted(SPECULATION, [15], kind=PromptKind.CHAT),
        *planted(SPECULATION, [2], threads=2),
    ]
    rows = summarise(runs)
    assert [(row.threads, row.kind) for row in rows] == [(1, "code")] * 4 + [(1, "chat")] * 2 + [(2, "code")] * 2
    assert row_of(rows, SPECULATION, kind="chat").speedup_over_plain == 2
    assert row_of(rows, SPECULATION, threads=2).speedup_over_plain == 4
    assert row_of(rows, SPECULATION, threads=2).speedup_over_transformers is None
    assert row_of(rows, SPECULATION).speedup_over_plain == 2


def test_speculation_is_compared_with_plain_of_the_same_weights() -> None:
    int8 = SPECULATION.replace("float16", "int8")
    rows = summarise([*planted(PLAIN, [10]), *planted(int8, [5])])
    assert row_of(rows, int8).speedup_over_plain is None
    assert row_of(rows, int8).identical_to_plain is None
    assert "DIFFER" not in format_table(rows)


def test_one_other_token_on_one_prompt_is_shown() -> None:
    runs = all_systems()
    assert all(row.identical_to_plain for row in summarise(runs))
    assert "DIFFER" not in format_table(summarise(runs))
    changed = [
        replace(run, token_ids=(*run.token_ids[:-1], 8)) if (run.system, run.prompt) == (SPECULATION, 2) else run
        for run in runs
    ]
    rows = summarise(changed)
    assert [row.system for row in rows if row.identical_to_plain is False] == [SPECULATION]
    shouting = [line for line in format_table(rows).splitlines() if line.endswith("TOKENS DIFFER")]
    assert len(shouting) == 1
    assert SPECULATION in shouting[0]


def test_the_table_has_a_line_for_each_row_and_dashes_for_what_is_unknown() -> None:
    header, plain, speculation = format_table(
        summarise([*planted(PLAIN, [10, 20, 12]), *planted(SPECULATION, [5, 20, 4], acceptance=[0.5, None, 0.75])])
    ).splitlines()
    assert header.split()[:4] == ["threads", "temp", "prompts", "system"]
    plain_speeds = ["83.3", "50.0..100.0", "12.00", "1200", "-"]
    assert plain.split() == ["1", "0", "code", *PLAIN.split(), *plain_speeds, "-", "1.00", "-", "-", "100%"]
    speeds = ["200.0", "50.0..250.0", "5.00", "500", "-"]
    assert speculation.split() == ["1", "0", "code", *SPECULATION.split(), *speeds, "-", "2.00", "0.62", "-", "100%"]
    assert len({len(line) for line in (header, plain, speculation)}) == 1


def test_a_peer_that_was_not_measured_is_a_row_that_says_why() -> None:
    records = [
        PeerRecord(system="a Q4_1, plain", threads=1, state=PeerState.MEASURED, settled="as it is"),
        PeerRecord(system="b Q4_1, plain", threads=2, state=PeerState.MISSING, reason="b is not installed"),
        PeerRecord(system="c Q4_1, plain", threads=1, state=PeerState.FAILED, reason="it fell over"),
    ]
    _, _, missing, failed = format_table(summarise(planted(PLAIN, [10])), records).splitlines()
    assert missing.split() == ["2", "-", "-", "b", "Q4_1,", "plain", "missing:", "b", "is", "not", "installed"]
    assert failed.endswith("failed: it fell over")


def test_memory_is_the_most_of_all_runs() -> None:
    runs = [
        replace(run, peak_memory_bytes=memory)
        for run, memory in zip(planted(PLAIN, [1, 1, 1]), (5, 7, None), strict=True)
    ]
    (row,) = summarise(runs)
    assert row.peak_memory_bytes == 7
    assert (row.num_runs, row.highest_ttft_ms) == (3, 100)


class ToldSystems:
    """What stands for loaded systems: notes what they are asked; some are lost at some point."""

    def __init__(
        self, names: str, *, greedy_only: str = "", plain: str = "", lost_after: dict[str, int] | None = None
    ) -> None:
        self.asked: list[tuple[int, str, Turn]] = []
        self._names, self._greedy_only, self._plain = names, greedy_only, plain
        self._lost_after = lost_after or {}
        self.error: Exception | None = None
        """Raised in place of a peer's death."""

    async def line_up(
        self,
        settings: BenchSettings,
        threads: int,
        assistant: Assistant,
        prompts: Sequence[BenchPrompt],
        stack: AsyncExitStack,
    ) -> LineUp:
        assert len(prompts) == len(PromptKind) * settings.num_prompts
        records = [
            PeerRecord(system=f"{name} float16, auto", threads=threads, state=PeerState.MEASURED)
            for name in self._greedy_only
        ]
        return LineUp(systems=[self._system(name, threads) for name in self._names], records=records)

    def _system(self, name: str, threads: int) -> System:
        async def run(turn: Turn) -> Run:
            if [called for _, called, _ in self.asked].count(name) == self._lost_after.get(name):
                raise self.error or PeerLostError(f"{name} fell over")
            self.asked.append((threads, name, turn))
            run = planted("slipstream float16, plain", [1], kind=turn.prompt.kind, threads=threads)[0]
            return replace(run, label=label, prompt=turn.index, repeat=turn.repeat)

        label = SystemLabel(owner=name, weights="float16", mode="plain" if name in self._plain else "auto")
        return System(label=label, run=run, greedy_only=name in self._greedy_only)


def test_systems_warm_up_and_then_take_turns_at_being_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each prompt is read by all systems before the next one, and none is timed on the prompt that warms up."""
    told = ToldSystems("ab")
    monkeypatch.setattr(bench, "line_up", told.line_up)
    runs = asyncio.run(measure(SETTINGS, ASSISTANT)).runs
    prompts = [prompt for kind in PromptKind for prompt in bench_prompts(kind)[:2]]
    for threads, calls in ((1, told.asked[:14]), (2, told.asked[14:])):
        assert [name for _, name, _ in calls] == list("ab" + "abbabaabab" + "ba")
        assert {called for called, _, _ in calls} == {threads}
        assert [turn.prompt for _, _, turn in calls[:2]] == [WARM_UP, WARM_UP]
        assert [turn.prompt for _, _, turn in calls[2:]] == [prompt for prompt in prompts for _ in "ab"]
        assert {turn.temperature for _, _, turn in calls} == {0}
    assert WARM_UP not in prompts
    assert len(runs) == 24
    assert [(run.kind, run.prompt) for run in runs[:12:2]] == [(kind, index) for kind in PromptKind for index in (0, 1)]


def test_every_prompt_is_answered_once_at_each_temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one seed for all systems; every other turn goes the other way round, at either temperature."""
    told = ToldSystems("abc", greedy_only="c")
    monkeypatch.setattr(bench, "line_up", told.line_up)
    asyncio.run(measure(replace(SETTINGS, threads=(1,), temperatures=(0.0, 0.8)), ASSISTANT))
    timed = [(name, turn) for _, name, turn in told.asked[3:]]
    assert "".join(name for name, _ in timed) == "abcbacbababcaabacbabcabbabacba"
    keys = [(name, turn.prompt.messages[0]["content"], turn.temperature) for name, turn in timed]
    assert len(set(keys)) == len(keys) == 6 * (3 + 2)
    seeds = {(turn.prompt.messages[0]["content"], turn.seed) for _, turn in timed}
    assert len(seeds) == len({seed for _, seed in seeds}) == 6
    assert {turn.temperature for name, turn in timed if name == "c"} == {0}


def test_a_peer_that_is_lost_is_asked_nothing_more_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ToldSystems("abc", greedy_only="bc", lost_after={"b": 3, "c": 0})
    monkeypatch.setattr(bench, "line_up", told.line_up)
    measured = asyncio.run(measure(replace(SETTINGS, threads=(1,)), ASSISTANT))
    assert [sum(run.label.owner == name for run in measured.runs) for name in "abc"] == [6, 2, 0]
    assert [(record.system, record.state, record.reason) for record in measured.records] == [
        ("b float16, auto", PeerState.FAILED, "b fell over"),
        ("c float16, auto", PeerState.FAILED, "c fell over"),
    ]


def test_plain_decoding_is_asked_twice_in_a_greedy_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    told = ToldSystems("abc", plain="ac")
    monkeypatch.setattr(bench, "line_up", told.line_up)
    settings = replace(SETTINGS, threads=(1,), num_prompts=1, temperatures=(0.0, 0.8))
    runs = asyncio.run(measure(settings, ASSISTANT)).runs
    again = [(run.label.owner, run.kind) for run in runs if run.repeat]
    assert sorted(again) == sorted((name, kind) for name in "ac" for kind in PromptKind)
    assert {turn.temperature for _, _, turn in told.asked if turn.repeat} == {0}


@pytest.mark.parametrize("error", [ValueError("no room"), RunMissingError("came at once"), CheckpointError("torn")])
def test_an_error_of_one_system_is_a_record_and_the_others_go_on(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = ToldSystems("ab", lost_after={"b": 3})
    told.error = error
    monkeypatch.setattr(bench, "line_up", told.line_up)
    measured = asyncio.run(measure(replace(SETTINGS, threads=(1,)), ASSISTANT))
    assert [sum(run.label.owner == name for run in measured.runs) for name in "ab"] == [6, 2]
    (record,) = measured.records
    only_runs = isinstance(error, RunMissingError)
    assert (record.system, record.state) == (
        "b float16, auto",
        PeerState.INCOMPLETE if only_runs else PeerState.FAILED,
    )
    assert record.reason.count(str(error)) == (4 if only_runs else 1)


def test_the_share_of_texts_that_are_the_float16_text() -> None:
    other = [
        replace(run, token_ids=(9, 9)) if run.prompt == 2 else run
        for run in planted("slipstream int8, plain", [1, 1, 1])
    ]
    rows = summarise([*planted(PLAIN, [1, 1, 1]), *other])
    assert [row.share_float16_text for row in rows] == [1, 2 / 3]
    assert [line.split()[-1] for line in format_table(rows).splitlines()[1:]] == ["100%", "67%"]
    assert [row.share_float16_text for row in summarise(other)] == [None]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--threads", "0"],
        ["--threads", "1", "-2"],
        ["--threads"],
        ["--prompts", "0"],
        ["--prompts", "7"],
        ["--max-tokens", "9"],
        ["--max-tokens", "many"],
        ["--rounds", "-1"],
        ["--weights", "int4"],
        ["--pairs", "good"],
        ["--drafts", "none"],
        ["--drafts", "ngram,"],
        ["--drafts", "auto,ngram"],
        ["--drafts"],
        ["--temperatures", "0.8"],
        ["--peers", "vllm"],
        ["--peers"],
        ["--peers", "openvino", "--no-peers"],
        ["--lookup-tokens", "0"],
        ["--peers", "llama.cpp", "--max-tokens", "12"],
        ["--peers", "transformers", "--max-tokens", "22"],
        ["--lookup-tokens", "10", "33"],
        ["--modes", "fast"],
        ["--temperatures", "0", "-1"],
        ["--temperatures", "0", "nan"],
        ["--out-dir", "README.md/plots"],
        ["--speed"],
        ["--out", "no/such/folder/report.json"],
        ["--out", "."],
    ],
)
def test_bad_arguments_end_before_anything_is_loaded(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(bench, "measure")
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        (["no/such/model"], "does not exist"),
        (["ngram", "ngram,no/such.gguf"], "does not exist"),
        (["early-exit:2"], "fewer layers than the target's 2"),
    ],
)
def test_drafts_that_cannot_be_had_end_it_before_anything_is_loaded(
    drafts: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delattr(bench, "measure")
    target = write_tiny_folder(tmp_path / "target")
    with pytest.raises((SystemExit, CheckpointError)) as ended:
        main(["--target", str(target), "--rounds", "0", "--drafts", *drafts])
    assert said in f"{ended.value} {capsys.readouterr().err}"


def test_peers_are_assisted_by_our_own_draft_where_they_can_read_it(tmp_path: Path) -> None:
    target = str(write_tiny_folder(tmp_path / "target", num_hidden_layers=6))
    other = str(write_tiny_folder(tmp_path / "draft", seed=8))

    def assistant(*sources: str) -> Assistant:
        settings = replace(SETTINGS, target=target, drafts=(DraftChoice(label="some", sources=sources),))
        return check_sources(settings)

    assert assistant("ngram", other) == Assistant(draft=other, num_layers=1)
    assert assistant("early-exit:4") == Assistant(draft=None, num_layers=4)
    assert assistant("ngram") == Assistant(draft=None, num_layers=1)


def test_there_are_as_many_prompts_as_may_be_asked_for_and_none_twice() -> None:
    texts = [prompt.messages[0]["content"] for kind in PromptKind for prompt in bench_prompts(kind)]
    assert [len(bench_prompts(kind)) for kind in PromptKind] == [6, 6, 6]
    assert len(set(texts)) == len(texts)
    assert all(prompt.kind is kind for kind in PromptKind for prompt in bench_prompts(kind))


@pytest.mark.weights
@pytest.mark.slow
@pytest.mark.usefixtures("demo_gguf", "same_threads")
def test_a_small_benchmark_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whole, but with one short prompt and with float32 weights, which every machine has; how fast nobody asks here."""

    def short_prompts(kind: PromptKind) -> tuple[BenchPrompt, ...]:
        only = BenchPrompt(kind=kind, messages=({"role": "user", "content": f"Say {kind} twice."},))
        return (only,) if kind is PromptKind.CODE else ()

    monkeypatch.setattr(bench, "bench_prompts", short_prompts)
    out = tmp_path / "bench.json"
    settings = ["--threads", "1", "--weights", "float32", "--prompts", "1", "--max-tokens", "10", "--rounds", "20"]
    assert main([*settings, "--no-peers", "--out", str(out)]) == 0
    *table, last = capsys.readouterr().out.splitlines()
    report = json.loads(last)
    assert json.loads(out.read_text()) == report
    assert (report["max_tokens"], report["num_prompts"]) == (10, 1)
    assert report["machine"]["processor"]
    rows = report["rows"]
    own_systems = ("slipstream float32, plain", "slipstream float32, sequential", "slipstream float32, auto")
    assert len(rows) == 3
    assert {(row["kind"], row["system"]) for row in rows} == {("code", system) for system in own_systems}
    costs = report["round_costs"]
    assert len(report["speedups"]) == 2
    assert len(table) == 1 + len(rows) + 3 + len(report["speedups"]) + 2 + 1 + 2 + 1 + len(costs)
    assert {cost["mode"] for cost in costs} == {"plain", "sequential", "pipelined"}
    assert all(cost["host_us"] > 0 and cost["gap_us"] > 0 and cost["num_rounds"] == 60 for cost in costs)
    for row in rows:
        assert row["threads"] == 1
        assert row["tpot_ms"] > 0
        assert row["ttft_ms"] > 0
        assert row["worst_tick_ms"] >= 0
        assert row["identical_to_plain"] is True
        assert row["speedup_over_transformers"] is None
        assert row["lowest_speedup_over_plain"] > 0
        assert row["decision"]
        assert (row["acceptance_rate"] is None) or "plain" not in row["system"]
