"""The doctor as a program: what it prints, in which forms, and how it ends."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from models import CheckpointError
from profiling.doctor import program
from profiling.doctor.check import Check, CheckResult, Finding, Verdict, worst
from profiling.doctor.effort import FULL, QUICK
from profiling.doctor.loaded_pair import LoadedPair
from profiling.doctor.plan import ALL_CHECKS
from profiling.doctor.report import as_json, table
from tests.support.tiny_checkpoint import save_tokenizer, write_tiny_folder
from tests.support.tiny_tokenizers import byte_level_metadata

NAMES = [check.name for check in ALL_CHECKS]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft as large as itself, and one with another tokenizer."""
    folder = tmp_path_factory.mktemp("doctor")
    write_tiny_folder(folder / "target")
    write_tiny_folder(folder / "draft", seed=8)
    write_tiny_folder(folder / "foreign", num_hidden_layers=1)
    save_tokenizer(folder / "foreign", byte_level_metadata(("h e", "l l", "he ll", "hell o", "Ġ t", "o Ġ")))
    return folder


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody needs a whole second of the machine for each of these."""
    monkeypatch.setattr(program, "QUICK", dataclasses.replace(QUICK, watch_s=0.05))
    monkeypatch.setattr(program, "FULL", dataclasses.replace(FULL, watch_s=0.05))


def run(models: Path, draft: str, *options: str) -> int:
    where = ["--target", str(models / "target"), "--draft", str(models / draft)]
    return program.main([*where, "--quick", "--threads", "1", "--device", "cpu", *options])


def last_line(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return record


class TestRun:
    def test_all_checks_of_a_pair_from_files(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        status = run(models, "draft", "--json")
        output = capsys.readouterr().out
        record = json.loads(output.splitlines()[-1])
        found = {check["name"]: check for check in record["checks"]}
        assert list(found) == NAMES
        verdicts = {name: check["verdict"] for name, check in found.items()}
        right = ("tokenizers", "probabilities", "same-text", "law", "cache-addresses", "memory-estimate")
        assert {name: verdicts[name] for name in right} == dict.fromkeys(right, "ok")
        assert (verdicts["batch"], verdicts["gpu"]) == ("ok", "skipped")
        # The draft reads as many weights as its target, whatever the clock says.
        assert found["draft-size"]["figures"]["weight_share"] == 1
        assert verdicts["draft-size"] == "warn"
        assert verdicts["acceptance"] == "warn"
        # Of a pair that nobody would choose something is always at fault, and it is the worst that counts.
        assert record["verdict"] in ("warn", "fail")
        assert (record["verdict"] == "fail") == ("fail" in verdicts.values()) == (status == 1)
        assert record["pair"]["target"] == "target"
        assert record["machine"]["num_cores"] >= 1
        assert record["quick"] is True
        assert record["interrupted"] is False
        assert "\x1b" not in output

    def test_another_tokenizer(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(models, "foreign", "--json", "--only", "tokenizers", "law", "verify-cost") == 1
        record = last_line(capsys)
        tokenizers, law, verify = record["checks"]
        assert tokenizers["verdict"] == "fail"
        # The first id that means something else, by its number and both tokens.
        assert (
            "do not share a vocabulary: id 264 is 'Ġthe' in the target and 'oĠ' in the draft" in tokenizers["measured"]
        )
        assert law["verdict"] == "skipped"
        assert verify["figures"]["step_ms"] > 0
        assert record["pair"]["mismatch"] == tokenizers["measured"]

    @pytest.mark.weights
    def test_the_demo_pair(self, demo_gguf: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--target", str(demo_gguf), "--quick", "--threads", "1", "--device", "cpu", "--json"]
        assert program.main([*options, "--only", "tokenizers", "draft-size", "verify-cost", "memory-estimate"]) == 0
        record = last_line(capsys)
        found = {check["name"]: check for check in record["checks"]}
        assert any(name.endswith("(distilled)") for name in record["pair"]["draft"])
        assert (found["tokenizers"]["verdict"], found["memory-estimate"]["verdict"]) == ("ok", "ok")
        # One layer and a cut head beside thirty layers and a whole one.
        assert found["draft-size"]["figures"]["weight_share"] < 0.1
        assert found["verify-cost"]["figures"]["step_ms"] > 0

    def test_only_some_checks(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(models, "draft", "--only", "tokenizers", "gpu") == 0
        output = capsys.readouterr().out
        heads = [line.split()[:2] for line in output.splitlines() if line and not line.startswith(" ")][:2]
        assert heads == [["ok", "tokenizers"], ["skipped", "gpu"]]
        assert output.endswith("1 ok, 1 skipped\n")

    def test_a_target_that_cannot_be_loaded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(CheckpointError):
            program.main(["--target", str(tmp_path / "nothing"), "--device", "cpu"])
        assert capsys.readouterr().out == ""

    def test_json_of_a_target_that_cannot_be_loaded(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(CheckpointError):
            program.main(["--target", str(tmp_path / "nothing"), "--device", "cpu", "--json"])
        record = last_line(capsys)
        assert record["verdict"] == "fail"
        assert "nothing" in record["error"]
        assert record["checks"] == []

    def test_the_configuration_that_was_asked_for(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        options = ["--mode", "sequential", "--gamma", "3", "--context-length", "90", "--json"]
        assert run(models, "draft,ngram", *options, "--only", "tokenizers", "overlap", "verify-cost") < 2
        record = last_line(capsys)
        tokenizers, verify, overlap = record["checks"]
        assert (record["pair"]["mode"], record["pair"]["context_length"]) == ("sequential", 90)
        assert record["pair"]["draft"] == ["draft", "ngram"]
        assert tokenizers["verdict"] == "ok"
        assert overlap["verdict"] == "skipped"
        assert verify["figures"]["gamma"] == 3

    def test_as_a_process(self, tmp_path: Path) -> None:
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-m", "profiling.doctor", "--target", str(tmp_path), "--device", "cpu"],
            capture_output=True,
            text=True,
            cwd=Path(__file__).parents[2],
            timeout=100,
        )
        assert ran.returncode == 1
        assert ran.stdout == ""
        assert ran.stderr.startswith("error: ")
        assert ran.stderr.count("\n") == 1


class TestUsage:
    def test_the_list(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert program.main(["--list"]) == 0
        output = capsys.readouterr().out
        assert all(f"{check.name} " in output for check in ALL_CHECKS)

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            (["--threads", "0"], "threads must be"),
            (["--device", "tpu"], "device must be"),
            (["--draft", ""], "draft may not be empty"),
            (["--draft", "ngram", "--draft", "ngram"], "twice"),
            (["--only", "nothing"], "invalid choice"),
            (["--weights", "int3"], "invalid choice"),
            (["--gamma", "many"], "must be 'adaptive' or a whole number"),
            (["--max-gamma", "99"], "max_gamma must be"),
            (["--draft", "ngram,"], "draft may not be empty"),
        ],
    )
    def test_nonsense_is_refused_before_anything_is_loaded(
        self, options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def refuse(*_: object) -> LoadedPair:
            raise AssertionError("the work has begun")

        monkeypatch.setattr(program, "load_pair", refuse)
        with pytest.raises(SystemExit) as caught:
            program.main(options)
        assert caught.value.code == 2
        assert said in capsys.readouterr().err

    def test_what_the_model_does_not_have(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit) as caught:
            program.main(["--target", str(models / "target"), "--draft", "early-exit:99", "--device", "cpu"])
        assert caught.value.code == 2
        assert "early-exit:99 must name fewer layers" in capsys.readouterr().err

    def test_json_of_what_the_model_does_not_have(self, models: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            program.main(["--target", str(models / "target"), "--draft", "early-exit:99", "--device", "cpu", "--json"])
        assert "early-exit:99" in last_line(capsys)["error"]


def planted(name: str, outcome: Finding | BaseException) -> Check:
    """A check that comes to this."""

    async def check(pair: LoadedPair) -> Finding:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    return Check(name=name, question="What was planted?", why="It was planted.", run=check)


FINE = Finding(verdict=Verdict.OK, measured="all is well")


class TestTrouble:
    def test_an_interrupt_leaves_what_was_found(
        self, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def interrupt(pair: LoadedPair) -> Finding:
            # As Ctrl-C does: asyncio cancels what runs.
            signal.raise_signal(signal.SIGINT)
            await pair.runtime.generate("abc", max_tokens=50, ignore_eos=True)
            return FINE

        stopped = Check(name="stopped", question="?", why=".", run=interrupt)
        monkeypatch.setattr(program, "ALL_CHECKS", (planted("first", FINE), stopped, planted("never", FINE)))
        with pytest.raises(KeyboardInterrupt):
            run(models, "draft", "--json")
        record = last_line(capsys)
        assert [check["name"] for check in record["checks"]] == ["first"]
        assert record["interrupted"] is True

    def test_a_check_that_fails_is_a_finding(
        self, models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        checks = (planted("broken", ValueError("no\n such thing")), planted("fine", FINE))
        monkeypatch.setattr(program, "ALL_CHECKS", checks)
        assert run(models, "draft", "--json") == 1
        broken, fine = last_line(capsys)["checks"]
        assert (broken["verdict"], broken["measured"]) == ("fail", "ValueError: no such thing")
        assert fine["verdict"] == "ok"


class TestReport:
    RESULTS = (
        CheckResult(check=planted("one", FINE), finding=FINE),
        CheckResult(
            check=planted("second", FINE),
            finding=Finding(
                verdict=Verdict.FAIL,
                measured="a very long measure that has to be wrapped somewhere",
                advice="do something about it",
                figures={"bad": float("inf"), "list": (1, 2)},
            ),
        ),
    )

    def test_lines_are_wrapped_below_their_beginning(self) -> None:
        lines = table(self.RESULTS, width=53, coloured=False).splitlines()
        assert lines[0] == "ok       one     all is well"
        assert lines[1] == "fail     second  a very long measure that has to be"
        assert lines[2] == "                 wrapped somewhere"
        assert lines[3] == "                 why: It was planted."
        assert lines[4] == "                 do: do something about it"
        assert lines[-1] == "1 ok, 1 fail"
        assert max(len(line) for line in lines) <= 53

    def test_only_a_terminal_has_colours(self) -> None:
        coloured = table(self.RESULTS, width=80, coloured=True)
        assert "\x1b[32mok     \x1b[0m" in coloured
        assert "\x1b[31mfail   \x1b[0m" in coloured
        assert "\x1b" not in table(self.RESULTS, width=80, coloured=False)

    def test_json_holds_no_infinity(self) -> None:
        line = as_json(self.RESULTS, machine={}, pair={}, quick=False, interrupted=False)
        assert "\n" not in line
        record = json.loads(line)
        assert record["checks"][1]["figures"] == {"bad": None, "list": [1, 2]}
        assert record["verdict"] == "fail"

    @pytest.mark.parametrize(
        ("planted_verdicts", "expected"),
        [
            ((Verdict.OK, Verdict.SKIPPED), "ok"),
            ((Verdict.WARN, Verdict.SKIPPED, Verdict.OK), "warn"),
            ((Verdict.WARN, Verdict.FAIL, Verdict.OK), "fail"),
        ],
    )
    def test_the_verdict_on_all(self, planted_verdicts: tuple[Verdict, ...], expected: str) -> None:
        results = [
            CheckResult(check=planted("one", FINE), finding=Finding(verdict=one, measured="planted"))
            for one in planted_verdicts
        ]
        record = json.loads(as_json(results, machine={}, pair={}, quick=False, interrupted=False))
        assert record["verdict"] == expected

    def test_the_worst_of_some(self) -> None:
        assert worst([]) is Verdict.OK
        assert worst([Verdict.OK, Verdict.SKIPPED]) is Verdict.OK
        assert worst([Verdict.SKIPPED]) is Verdict.OK
        assert worst([Verdict.WARN, Verdict.OK, Verdict.FAIL, Verdict.SKIPPED]) is Verdict.FAIL
