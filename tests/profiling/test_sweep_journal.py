"""Order and resumption of a sweep: which cell when, what is kept, what is measured anew, what is refused."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import scheduler
from profiling.prompts import PromptKind
from profiling.sweep import lock
from profiling.sweep.identity import sweep_identity
from profiling.sweep.journal import UNFINISHED, SweepJournal, SweepJournalError
from profiling.sweep.lock import LOCK, FolderInUseError, folder_lock
from profiling.sweep.run import AUTO, PLAIN, PLAIN_AGAIN, Cell, SweepRun, Turn
from profiling.sweep.settings import SweepSettings
from profiling.sweep.turns import complete_turns, measure, ordered, sweep_cells, sweep_turns
from tests.support.sweeps import planted_runs, run_of, settings_of
from tests.support.tiny_checkpoint import write_tiny_folder, write_tiny_gguf

SETTINGS = settings_of([2, 4], kinds=[PromptKind.CODE, PromptKind.COPY], num_prompts=2)
ROOT = Path(__file__).parents[2]
MACHINE: dict[str, Any] = {"processor": "made up", "num_cores": 2, "date": "2026-01-01", "load_average": 0.5}
LOADED = {"target": "tiny", "draft": ("ngram",)}
NUM_CELLS = 7
IDENTITY = {"version": "1.0", "code": "c0de", "weights of the target": "aa", "weights of the drafts": "bb cc"}


def journal_in(
    folder: Path,
    settings: SweepSettings = SETTINGS,
    machine: dict[str, Any] = MACHINE,
    identity: dict[str, str] = IDENTITY,
) -> SweepJournal:
    return SweepJournal(folder, settings.as_dict(), machine, identity)


class Killed(Exception):
    """The process ends here."""


def sweep(folder: Path, *, num_runs: int | None = None) -> tuple[list[SweepRun], list[tuple[Turn, Cell]], list[Turn]]:
    """One call of the program, killed before it has made one more run than that: all runs, those made now, readings."""
    made: list[tuple[Turn, Cell]] = []
    read: list[Turn] = []

    async def answer(turn: Turn, cell: Cell) -> SweepRun:
        if len(made) == num_runs:
            raise Killed
        made.append((turn, cell))
        return run_of(turn, cell, 1.0)

    async def prepare(turn: Turn) -> None:
        read.append(turn)

    journal = journal_in(folder)
    known = complete_turns(journal.runs, sweep_cells(SETTINGS))
    journal.begin(LOADED, known)
    runs = list(known)
    try:
        runs = asyncio.run(measure(SETTINGS, answer, known=known, prepare=prepare, record=journal.append))
    except Killed:
        assert num_runs is not None
    return runs, made, read


class TestOrder:
    def test_every_cell_answers_every_prompt_once_and_plain_decoding_twice(self, tmp_path: Path) -> None:
        runs, made, read = sweep(tmp_path)
        assert [(run.turn, run.cell) for run in runs] == made
        assert len(set(made)) == len(made) == 4 * NUM_CELLS
        assert Counter(cell.gamma for _, cell in made)[None] == 4 * 3
        assert [(turn.kind, turn.prompt) for turn in read] == [("code", 0), ("copy", 0), ("code", 1), ("copy", 1)]
        assert len({turn.seed for turn in read}) == 4

    def test_a_turn_is_ended_before_the_next_begins(self, tmp_path: Path) -> None:
        _, made, read = sweep(tmp_path)
        assert [turn for turn, _ in made] == [turn for turn in read for _ in range(NUM_CELLS)]

    def test_each_cell_is_first_as_often_and_late_as_often(self) -> None:
        cells = sweep_cells(SETTINGS)
        orders = [list(ordered(cells, number)) for number in range(2 * len(cells))]
        assert all(sorted(order, key=cells.index) == list(cells) for order in orders)
        firsts = Counter(order[0] for order in orders)
        assert set(firsts.values()) == {2}
        for forth, back in zip(orders[::2], orders[1::2], strict=True):
            assert all(forth.index(cell) + back.index(cell) == len(cells) - 1 for cell in cells)

    def test_the_two_plain_runs_are_half_a_turn_apart(self) -> None:
        cells = sweep_cells(settings_of([2, 4, 6, 8]))
        assert abs(cells.index(PLAIN) - cells.index(PLAIN_AGAIN)) == len(cells) // 2


class TestResuming:
    def test_what_was_measured_is_not_measured_again(self, tmp_path: Path) -> None:
        _, first, _ = sweep(tmp_path, num_runs=NUM_CELLS)
        runs, second, read = sweep(tmp_path)
        assert len(first) == NUM_CELLS
        assert not set(first) & set(second)
        assert len(read) == 3
        assert {(run.turn, run.cell) for run in runs} == {*first, *second}

    def test_a_prompt_that_was_cut_short_is_measured_anew_as_a_whole(self, tmp_path: Path) -> None:
        _, first, _ = sweep(tmp_path, num_runs=NUM_CELLS + 2)
        assert len((tmp_path / UNFINISHED).read_text().splitlines()) == 1 + NUM_CELLS + 2
        runs, second, _ = sweep(tmp_path)
        assert len(second) == 3 * NUM_CELLS
        assert set(first[NUM_CELLS:]) <= set(second)
        assert len(runs) == 4 * NUM_CELLS
        lines = (tmp_path / UNFINISHED).read_text().splitlines()[1:]
        assert [SweepRun.from_dict(json.loads(line)) for line in lines] == runs

    def test_the_order_of_what_is_left_does_not_change(self, tmp_path: Path) -> None:
        _, whole, _ = sweep(tmp_path / "whole")
        sweep(tmp_path / "parts", num_runs=NUM_CELLS + 3)
        _, rest, _ = sweep(tmp_path / "parts")
        assert rest == whole[NUM_CELLS:]

    def test_a_whole_sweep_leaves_nothing_to_measure(self, tmp_path: Path) -> None:
        runs, _, _ = sweep(tmp_path)
        again, made, read = sweep(tmp_path)
        assert (again, made, read) == (runs, [], [])

    @pytest.mark.parametrize("cut", [1, 40])
    def test_half_a_line_at_the_end_is_dropped(self, tmp_path: Path, cut: int) -> None:
        """Which is how a process ends that is killed while it writes."""
        sweep(tmp_path, num_runs=2 * NUM_CELLS)
        path = tmp_path / UNFINISHED
        path.write_bytes(path.read_bytes()[:-cut])
        runs, second, _ = sweep(tmp_path)
        assert len(second) == 3 * NUM_CELLS
        assert len(runs) == 4 * NUM_CELLS

    def test_a_header_that_was_cut_short_begins_anew(self, tmp_path: Path) -> None:
        (tmp_path / UNFINISHED).write_text('{"settings": {"targ')
        assert len(sweep(tmp_path)[1]) == 4 * NUM_CELLS

    def test_runs_survive_json(self) -> None:
        for run in planted_runs(SETTINGS, {2: 1.5, 4: 1.25}):
            assert SweepRun.from_dict(json.loads(json.dumps(run.as_dict()))) == run

    def test_a_finished_sweep_makes_room_for_the_next(self, tmp_path: Path) -> None:
        sweep(tmp_path)
        journal_in(tmp_path).finish(tmp_path / "2026-01-01-sweep.jsonl")
        assert journal_in(tmp_path).runs == []
        assert [path.name for path in tmp_path.iterdir()] == ["2026-01-01-sweep.jsonl"]


class TestRefusals:
    def test_other_settings_are_named(self, tmp_path: Path) -> None:
        sweep(tmp_path, num_runs=1)
        other = settings_of([2, 6], kinds=[PromptKind.CODE, PromptKind.COPY])
        with pytest.raises(
            SweepJournalError,
            match=r"unfinished.jsonl holds a sweep with gammas 2 4, and this is one with 2 6; .* another --out-dir",
        ):
            journal_in(tmp_path, other)

    def test_another_machine_is_named_but_another_day_is_none(self, tmp_path: Path) -> None:
        sweep(tmp_path, num_runs=1)
        assert len(journal_in(tmp_path, machine={**MACHINE, "date": "2027-01-01", "load_average": 9.0}).runs) == 1
        with pytest.raises(SweepJournalError, match=r"runs of a machine with num_cores 2, and this is one with 64"):
            journal_in(tmp_path, machine={**MACHINE, "num_cores": 64})

    @pytest.mark.parametrize("name", list(IDENTITY))
    def test_other_code_or_weights_are_named(self, tmp_path: Path, name: str) -> None:
        sweep(tmp_path, num_runs=1)
        assert len(journal_in(tmp_path, identity=dict(IDENTITY)).runs) == 1
        with pytest.raises(
            SweepJournalError, match=rf"runs made with {name} {IDENTITY[name]}, and this is one with other"
        ):
            journal_in(tmp_path, identity={**IDENTITY, name: "other"})

    def test_another_draft_behind_the_same_name_is_named(self, tmp_path: Path) -> None:
        sweep(tmp_path, num_runs=1)
        with pytest.raises(SweepJournalError, match=r"a runtime with draft ngram, and this is one with ngram shipped"):
            journal_in(tmp_path).begin({**LOADED, "draft": ("ngram", "shipped")}, [])

    @pytest.mark.parametrize(
        ("content", "complaint"),
        [
            ("not json\n", "is damaged"),
            ("[1]\n", "is not the file of a sweep"),
            ("{}\n", "is not the file of a sweep"),
        ],
    )
    def test_a_file_of_something_else_is_left_alone(self, tmp_path: Path, content: str, complaint: str) -> None:
        (tmp_path / UNFINISHED).write_text(content)
        with pytest.raises(SweepJournalError, match=complaint):
            journal_in(tmp_path)
        assert (tmp_path / UNFINISHED).read_text() == content

    def test_a_damaged_run_is_said_so(self, tmp_path: Path) -> None:
        sweep(tmp_path, num_runs=1)
        with (tmp_path / UNFINISHED).open("a") as file:
            file.write('{"kind": "code"}\n')
        with pytest.raises(SweepJournalError, match=r"is damaged .* delete it to begin anew"):
            journal_in(tmp_path)


class TestIdentity:
    def test_other_weights_under_the_same_name_are_others(self, tmp_path: Path) -> None:
        target, draft = write_tiny_gguf(tmp_path / "target.gguf"), write_tiny_folder(tmp_path / "draft")
        load = {"target": str(target), "draft": ["ngram", str(draft)]}
        before = sweep_identity(load)
        assert sweep_identity({**load, "threads": 1}) == before
        write_tiny_gguf(target, seed=8)
        other_target = sweep_identity(load)
        assert _changed(before, other_target) == ["weights of the target"]
        write_tiny_folder(draft, seed=8)
        assert _changed(other_target, sweep_identity(load)) == ["weights of the drafts"]

    def test_other_code_is_told_apart(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        load = {"target": str(write_tiny_gguf(tmp_path / "target.gguf")), "draft": "ngram"}
        before = sweep_identity(load)
        code = tmp_path / "scheduler"
        code.mkdir()
        (code / "__init__.py").write_text("round = 1\n")
        monkeypatch.setattr(scheduler, "__file__", str(code / "__init__.py"))
        one = sweep_identity(load)
        (code / "__init__.py").write_text("round = 2\n")
        assert _changed(before, one) == _changed(one, sweep_identity(load)) == ["code"]


def _changed(one: dict[str, str], other: dict[str, str]) -> list[str]:
    return [name for name in one if one[name] != other[name]]


class TestLock:
    def test_a_second_sweep_is_kept_out_until_the_first_has_ended(self, tmp_path: Path) -> None:
        with folder_lock(tmp_path):
            message = (
                rf"process {os.getpid()}, is writing to .*; wait for it, or name another --out-dir; .* delete .*lock"
            )
            with pytest.raises(FolderInUseError, match=message), folder_lock(tmp_path):
                pass
            assert (tmp_path / LOCK).exists()
        assert list(tmp_path.iterdir()) == []
        with folder_lock(tmp_path):
            pass

    def test_the_lock_of_a_process_that_was_killed_keeps_nobody_out(self, tmp_path: Path) -> None:
        take = "import os, sys; from pathlib import Path; from profiling.sweep.lock import folder_lock\n"
        take += "with folder_lock(Path(sys.argv[1])): os._exit(9)"
        assert subprocess.run([sys.executable, "-c", take, str(tmp_path)], cwd=ROOT, check=False).returncode == 9
        assert (tmp_path / LOCK).exists()
        with folder_lock(tmp_path):
            assert (tmp_path / LOCK).read_text() == str(os.getpid())

    def test_a_file_that_another_removed_meanwhile_is_no_lock(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real_take, path, num_taken = lock._take, tmp_path / LOCK, [0]

        def take(descriptor: int) -> None:
            num_taken[0] += 1
            if num_taken[0] == 1:
                path.unlink()
            real_take(descriptor)

        monkeypatch.setattr(lock, "_take", take)
        with folder_lock(tmp_path):
            assert path.read_text() == str(os.getpid())
        assert num_taken == [2]


def test_turns_are_all_prompts_of_all_kinds_at_all_temperatures() -> None:
    turns = sweep_turns(replace(SETTINGS, temperatures=(0.0, 0.8)))
    assert [(turn.prompt, turn.kind, turn.temperature, turn.seed) for turn in turns] == [
        (0, "code", 0.0, 0),
        (0, "code", 0.8, 0),
        (0, "copy", 0.0, 1),
        (0, "copy", 0.8, 1),
        (1, "code", 0.0, 2),
        (1, "code", 0.8, 2),
        (1, "copy", 0.0, 3),
        (1, "copy", 0.8, 3),
    ]
    assert Counter(sweep_cells(SETTINGS)) == Counter(
        [PLAIN, PLAIN_AGAIN, AUTO, *(Cell(mode=mode, gamma=gamma) for mode in SETTINGS.modes for gamma in (2, 4))]
    )
