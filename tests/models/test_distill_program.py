"""`python -m models.distill` from its arguments to a draft, and every way in which it ends early."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from models.checkpoint import open_checkpoint
from models.distill import distilling, judging
from models.distill.arguments import UsageError, parse_arguments
from models.distill.needs import needs_of
from models.distill.plan import make_plan
from models.distill.program import DONE, FAILED, INTERRUPTED, WRONG_USAGE, main
from models.distill.shard import shard_paths
from models.distill.text_kind import TextKind
from models.draft_folder import CARD_FILE, DESCRIPTION_FILE, WEIGHTS_FILE, DraftTarget, open_draft
from models.errors import PairError
from tests.support.distill_command import command
from tests.support.tiny_checkpoint import write_tiny_folder
from tests.support.toy_distillation import text_file

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def few_threads() -> Iterator[None]:
    """The program sets the number of threads for itself."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def short_answers() -> Iterator[None]:
    """Judging is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "_ANSWER_TOKENS", 8)
        yield


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("target"), hidden_size=32, intermediate_size=48)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_file(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def finished(target: Path, text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A draft that was made without an interruption."""
    out = tmp_path_factory.mktemp("finished") / "draft"
    assert main(command(target, text, out)) == DONE
    return out


def making(out: Path) -> dict[str, object]:
    """What a draft says of itself, without times."""
    found = json.loads((out / DESCRIPTION_FILE).read_text())["making"]
    del found["trained_s"], found["written_s"]
    for point in found["history"]:
        del point["trained_s"]
    return found


def test_the_draft_can_be_opened_on_its_target_and_on_no_other(finished: Path, target: Path) -> None:
    with open_checkpoint(target) as checkpoint:
        identity = DraftTarget.of(checkpoint)
    draft = open_draft(finished, identity)
    assert draft.head_size == 100
    assert all(tensor.dtype in (torch.float16, torch.int32) for tensor in draft.tensors().values())
    other = DraftTarget(name="other", fingerprint="f", config=identity.config)
    with pytest.raises(PairError, match="was made for"):
        open_draft(finished, other)


def test_the_card_and_the_description_say_how_it_was_made(finished: Path, target: Path) -> None:
    card = (finished / "README.md").read_text()
    assert "python -m models.distill --target" in card
    found = making(finished)
    assert found["settings"]["num_own_steps"] == 2
    assert found["settings"]["dtype"] == "float32"
    assert found["settings"]["text_files"] == ["text.txt"]
    assert str(target.parent) not in json.dumps(found)
    assert len(found["history"]) > 2
    assert 0 < found["figures"]["overall"]["acceptance"] <= 1
    assert found["finished"] is True
    assert f"after step {found['best_step']:,} of {found['num_steps']:,}" in card
    assert "quotes passages of text.txt." in card
    assert "with matrix products in float32" in card
    assert json.loads((finished / DESCRIPTION_FILE).read_text())["making"]["written_s"] >= 0


def test_a_finished_draft_is_left_as_it_is(
    finished: Path, target: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (finished / WEIGHTS_FILE).stat().st_mtime_ns
    assert main(command(target, text, finished, "--json")) == DONE
    captured = capsys.readouterr()
    assert "is finished" in captured.err
    assert json.loads(captured.out)["finished_before"] is True
    assert (finished / WEIGHTS_FILE).stat().st_mtime_ns == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--learning-rate", "0.01"), "learning_rate"),
        (("--tokens", "6000"), "num_tokens"),
        (("--dtype", "bfloat16"), "dtype"),
    ],
)
def test_a_finished_draft_of_other_settings_is_not_replaced(
    more: tuple[str, ...], message: str, finished: Path, target: Path, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command(target, text, finished, *more)) == FAILED
    error = capsys.readouterr().err
    assert message in error
    assert "use another folder" in error


def test_a_draft_of_another_target_is_not_replaced(
    finished: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_tiny_folder(tmp_path, seed=8, hidden_size=32, intermediate_size=48)
    assert main(command(other, text, finished)) == FAILED
    assert "holds a draft of another target" in capsys.readouterr().err


def test_ctrl_c_says_what_is_kept_and_the_next_call_goes_on_from_there(
    finished: Path,
    target: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "draft"
    with monkeypatch.context() as patch:
        patch.setattr(distilling, "train", interrupted)
        assert main(command(target, text, out)) == INTERRUPTED
    error = capsys.readouterr().err
    assert "interrupted while training" in error
    assert "the same command goes on" in error
    assert f"deleting {out / '.work'}" in error
    assert len(shard_paths(out / ".work" / "text")) == 6
    # Work of another precision is not mixed with it.
    assert main(command(target, text, out, "--dtype", "bfloat16")) == FAILED
    assert "dtype 'float32', and this run asks for 'bfloat16'" in capsys.readouterr().err
    assert main(command(target, text, out)) == DONE
    assert (out / WEIGHTS_FILE).read_bytes() == (finished / WEIGHTS_FILE).read_bytes()


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (KeyboardInterrupt(), INTERRUPTED, "interrupted while judging; the draft lies in"),
        (RuntimeError("can't allocate memory: you tried to allocate 9 bytes"), FAILED, "not enough memory to judge"),
        (MemoryError(), FAILED, "the same command goes on to judge it"),
    ],
)
def test_a_draft_whose_judging_stops_can_be_used_and_is_judged_by_the_next_call(
    error: BaseException,
    status: int,
    message: str,
    finished: Path,
    target: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise error

    out = tmp_path / "draft"
    shutil.copytree(finished / ".work", out / ".work")
    with monkeypatch.context() as patch:
        patch.setattr(judging, "evaluate", stopped)
        assert main(command(target, text, out)) == status
    assert message in capsys.readouterr().err
    assert (out / WEIGHTS_FILE).read_bytes() == (finished / WEIGHTS_FILE).read_bytes()
    assert (making(out)["finished"], making(out)["figures"]) == (False, None)
    assert "## Figures" not in (out / CARD_FILE).read_text()
    # What is judged is what was exported: nothing else is needed.
    shutil.rmtree(out / ".work")
    assert main(command(target, text, out)) == DONE
    assert "yet to be judged" in capsys.readouterr().err
    assert making(out) == making(finished)
    assert "## Figures" in (out / CARD_FILE).read_text()
    assert not (out / ".work").exists()


def test_an_error_of_judging_that_is_none_of_memory_is_not_hidden(
    finished: Path, target: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("shapes cannot be multiplied")

    out = tmp_path / "draft"
    shutil.copytree(finished / ".work", out / ".work")
    monkeypatch.setattr(judging, "evaluate", broken)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        main(command(target, text, out))


def test_a_draft_that_cannot_be_judged_is_finished(
    finished: Path,
    target: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "draft"
    shutil.copytree(finished / ".work", out / ".work")
    monkeypatch.setattr(judging, "HELD_OUT_KINDS", ())
    assert main(command(target, text, out)) == DONE
    assert making(out)["finished"] is True
    assert making(out)["figures"] is None
    capsys.readouterr()
    assert main(command(target, text, out)) == DONE
    assert "is finished" in capsys.readouterr().err


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(path.read_bytes()[:-1] + b"!")])
def test_weights_that_are_missing_or_damaged_are_exported_again(
    damage: Callable[[Path], object],
    finished: Path,
    target: Path,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "draft"
    shutil.copytree(finished, out)
    damage(out / WEIGHTS_FILE)
    assert main(command(target, text, out)) == DONE
    assert "missing or damaged" in capsys.readouterr().err
    assert (out / WEIGHTS_FILE).read_bytes() == (finished / WEIGHTS_FILE).read_bytes()
    assert making(out) == making(finished)
    # Without a checkpoint there is nothing to mend it with.
    damage(out / WEIGHTS_FILE)
    shutil.rmtree(out / ".work")
    assert main(command(target, text, out)) == FAILED
    error = capsys.readouterr().err
    assert "has no checkpoint to export it from" in error
    assert f"delete {out}" in error


def test_plots_that_are_missing_are_drawn(
    finished: Path, target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out = tmp_path / "draft"
    shutil.copytree(finished, out)
    (out / "evaluation.png").unlink()
    (out / "training.png").write_bytes(b"there")
    # A description of before the draft was judged after its export.
    description = json.loads((out / DESCRIPTION_FILE).read_text())
    for name in ("finished", "written_s", "num_steps", "machine", "python"):
        del description["making"][name]
    (out / DESCRIPTION_FILE).write_text(json.dumps(description))
    assert main(command(target, text, out)) == DONE
    assert (out / "evaluation.png").read_bytes() == (finished / "evaluation.png").read_bytes()
    assert (out / "training.png").read_bytes() == b"there"
    description["making"]["history"] = 3
    (out / DESCRIPTION_FILE).write_text(json.dumps(description))
    assert main(command(target, text, out)) == DONE
    assert "no plots: the record of a draft's making is malformed" in capsys.readouterr().err


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "models.distill", *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def kill_when(process: subprocess.Popen[bytes], happened: Callable[[], object]) -> None:
    while process.poll() is None and not happened():
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform == "win32", reason="SIGKILL is POSIX")
def test_a_killed_run_ends_with_the_bits_of_one_that_was_not(
    finished: Path, target: Path, text: Path, tmp_path: Path
) -> None:
    out = tmp_path / "draft"
    arguments = command(target, text, out)
    folder = out / ".work" / "text"
    checkpoint = out / ".work" / "training-draft" / "training.safetensors"

    process = start(arguments)
    kill_when(process, lambda: shard_paths(folder))
    assert process.returncode == -signal.SIGKILL
    assert 1 <= len(shard_paths(folder)) < 6

    process = start(arguments)
    # The first checkpoint comes before the first step, any later one replaces it.
    seen: set[int] = set()

    def trains() -> bool:
        if checkpoint.exists():
            seen.add(checkpoint.stat().st_mtime_ns)
        return len(seen) > 2

    kill_when(process, trains)
    assert process.returncode == -signal.SIGKILL
    assert not (out / DESCRIPTION_FILE).exists()

    assert main(arguments) == DONE
    assert (out / WEIGHTS_FILE).read_bytes() == (finished / WEIGHTS_FILE).read_bytes()
    assert making(out) == making(finished)


def test_two_drafts_learn_from_one_text(finished: Path, target: Path, text: Path, tmp_path: Path) -> None:
    work, out = finished / ".work", tmp_path / "token"
    kept = {path: path.stat().st_mtime_ns for path in shard_paths(work / "text")}
    options = ("--work", str(work), "--design", "token", "--own-steps", "1")
    assert main(command(target, text, out, *options)) == DONE
    assert {path: path.stat().st_mtime_ns for path in shard_paths(work / "text")} == kept
    assert json.loads((out / DESCRIPTION_FILE).read_text())["kind"] == "token"
    assert not (out / ".work").exists()


def test_text_that_exists_is_learnt_too(target: Path, text: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("".join(f"line {number} of the hello tree\n" for number in range(400)))
    out = tmp_path / "draft"
    options = ("--kinds", "text", "--read-text", str(long), "--tokens", "800", "--epochs", "0.3")
    assert main(command(target, text, out, *options)) == DONE
    found = making(out)
    assert found["settings"]["read_files"] == ["long.txt"]
    assert found["num_text_tokens"] > 3000
    assert "The draft also learnt from long.txt." in (out / CARD_FILE).read_text()

    # A draft that asks for less learns less, whatever the folder holds.
    less, alone = tmp_path / "less", tmp_path / "alone"
    options = ("--kinds", "text", "--tokens", "800", "--epochs", "0.3")
    assert main(command(target, text, less, *options, "--work", str(out / ".work"))) == DONE
    assert main(command(target, text, alone, *options)) == DONE
    assert (less / WEIGHTS_FILE).read_bytes() == (alone / WEIGHTS_FILE).read_bytes()


def without_template(folder: Path) -> Path:
    write_tiny_folder(folder, hidden_size=32, intermediate_size=48)
    (folder / "chat_template.jinja").unlink()
    return folder


def test_a_target_without_a_template_goes_on_from_text_unless_kinds_were_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = without_template(tmp_path / "base")
    plan = make_plan(parse_arguments(["--target", str(source), "--out", "out", "--sequence-length", "64"]))
    assert plan.writing.kinds == (TextKind.TEXT,)
    assert "no chat template" in plan.remarks[0]
    named = ("--sequence-length", "64", "--kinds", "chat", "text")
    assert main(["--target", str(source), "--out", str(tmp_path / "out"), *named]) == FAILED
    assert "--kinds text" in capsys.readouterr().err


def test_what_only_transformers_can_run_is_refused_with_a_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    save_file({"wte.weight": torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    assert main(["--target", str(tmp_path), "--out", str(tmp_path / "out")]) == FAILED
    error = capsys.readouterr().err
    assert "GPT2LMHeadModel" in error
    assert "let a smaller model of the same family propose" in error


def test_an_out_that_is_no_folder_or_cannot_be_made_is_refused(
    target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.write_text("mine")
    assert main(command(target, text, file)) == FAILED
    assert "is a file; name a folder" in capsys.readouterr().err
    assert main(command(target, text, file / "below")) == FAILED
    assert "cannot write" in capsys.readouterr().err
    assert file.read_text() == "mine"


@pytest.mark.parametrize("name", ["README.md", "training.png", "evaluation.png"])
def test_files_that_belong_to_no_draft_are_not_overwritten(
    name: str, target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text("mine")
    assert main(command(target, text, tmp_path)) == FAILED
    error = capsys.readouterr().err
    assert f"has a {name} that belongs to no draft" in error
    assert "name another folder" in error
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(name, "mine")]


def test_a_text_longer_than_the_target_reads_is_refused(
    target: Path, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(target, text, tmp_path / "out"), "--sequence-length", "300"]) == FAILED
    assert "--sequence-length must be at most 256" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x", "--tokans", "5"], r"unknown option --tokans \(did you mean --tokens\?\)"),
        (["--out", "x", "y"], "'y' belongs to no option"),
        (["--target", "x"], "required: --out"),
        (["--out", "x", "--tokens", "0"], "--tokens must be at least 1, got 0"),
        (["--out", "x", "--wave", "0"], "--wave must be at least 1"),
        (["--out", "x", "--seed", "9" * 23], "--seed must be at most 9223372036854775807"),
        (["--out", "x", "--epochs", "1e308"], "--epochs must be above 0 and at most 1,000,000"),
        (["--out", "x", "--layers", "5000"], "--layers must be at most 64"),
        (["--out", "x", "--temperatures", "9"], "--temperatures must be within 0.05 and 4"),
        (["--out", "x", "--learning-rate", "nan"], "--learning-rate must be above 0"),
        (["--out", "x", "--design", "token", "--own-steps", "2"], "--own-steps is 2, but a token draft"),
        (["--out", "x", "--minutes", "1", "--epochs", "1"], "not allowed with"),
        (["--out", "x", "--kinds", "poems"], "invalid choice"),
        (["--out", "x", "--workers", "0"], "--workers must be at least 1"),
    ],
)
def test_wrong_usage(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UsageError, match=message):
        parse_arguments(arguments)
    assert main(arguments) == WRONG_USAGE
    assert capsys.readouterr().err.startswith("error: ")


def test_epochs_take_the_place_of_the_default_minutes() -> None:
    assert parse_arguments(["--out", "x"]).training.minutes == 20
    assert parse_arguments(["--out", "x", "--epochs", "3"]).training.minutes is None


def test_the_shard_estimate_is_what_lies_on_disk(finished: Path, target: Path, text: Path) -> None:
    plan = make_plan(parse_arguments(command(target, text, finished)))
    needs = needs_of(
        plan.target.config, plan.writing, plan.training, num_read_tokens=0, num_workers=1, dtype=torch.float32
    )
    work = finished / ".work"
    assert sum(path.stat().st_size for path in shard_paths(work / "text")) == pytest.approx(needs.shard_bytes, rel=0.1)
    checkpoint = (work / "training-draft" / "training.safetensors").stat().st_size
    assert checkpoint == pytest.approx(needs.checkpoint_bytes, rel=0.1)
