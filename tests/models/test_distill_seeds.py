"""Conversation frames of several templates, and what sequences begin with."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from models.distill.conversation_frame import ConversationFrame
from models.distill.seeds import SeedSource
from models.distill.snippets import Snippets, file_snippets, paragraphs, standard_library_snippets
from models.distill.text_kind import TextKind
from models.gguf_tokenizer import GgufTokenizerMetadata, build_gguf_backend
from models.tokenizer import Tokenizer
from tests.support.tiny_checkpoint import tiny_tokenizer
from tests.support.tiny_tokenizers import byte_level_metadata

SNIPPETS = Snippets(prose=("the hello tree is in the hall", "a bell and the hell"), functions=("def f(x):",))
WITH_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|user|>be kind<|end|>{% endif %}"
    "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
CHANGES_MESSAGES = "{% for message in messages %}{{ message['content'] | upper }}<|end|>{% endfor %}"


def tokenizer_with(template: str | None) -> Tokenizer:
    backend = build_gguf_backend(GgufTokenizerMetadata(byte_level_metadata()))
    return Tokenizer(backend, eos_token_ids=[0], chat_template=template)


def source(tokenizer: Tokenizer, *kinds: TextKind, seed: int = 0) -> SeedSource:
    return SeedSource(tokenizer, kinds=kinds, snippets=SNIPPETS, temperatures=(1.0, 0.5), seed=seed)


def test_the_frame_of_a_plain_template() -> None:
    tokenizer = tiny_tokenizer()
    frame = ConversationFrame.of(tokenizer)
    shown = [tokenizer.decode(ids, skip_special_tokens=False) for ids in (frame.opening, frame.to_assistant)]
    assert shown == ["<|user|>", "<|end|><|assistant|>"]
    assert tokenizer.decode(frame.to_user, skip_special_tokens=False) == "<|end|><|user|>"
    assert frame.turn_ends == {0}


def test_the_frame_of_a_template_with_a_system_message_and_line_ends() -> None:
    tokenizer = tokenizer_with(WITH_SYSTEM)
    frame = ConversationFrame.of(tokenizer)
    parts = (frame.opening, frame.to_assistant, frame.to_user)
    assert [tokenizer.decode(ids, skip_special_tokens=False) for ids in parts] == [
        "<|user|>be kind<|end|><|user|>\n",
        "<|end|>\n<|assistant|>\n",
        "<|end|>\n<|user|>\n",
    ]
    # What the pieces make is what the template renders of a whole conversation.
    ids = [*frame.opening, *tokenizer.encode("a"), *frame.to_assistant, *tokenizer.encode("b"), *frame.to_user]
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    rendered = tokenizer.encode_chat([*messages, {"role": "user", "content": "c"}], add_generation_prompt=False)
    assert rendered[: len(ids)] == ids


@pytest.mark.parametrize(("template", "message"), [(None, "no chat template"), (CHANGES_MESSAGES, "taken apart")])
def test_a_template_that_cannot_be_used_is_refused_with_a_way_out(template: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"{message}.*--kinds text"):
        ConversationFrame.of(tokenizer_with(template))


def test_text_alone_needs_no_template() -> None:
    seeds = source(tokenizer_with(None), TextKind.TEXT)
    assert seeds.frame is None
    assert {seeds.seed(number).forced_ids[0] for number in range(20)} == {0}
    assert len({seeds.seed(number).forced_ids for number in range(20)}) >= 3


def test_seeds_depend_on_seed_and_number_alone() -> None:
    seeds, again, others = (source(tiny_tokenizer(), *TextKind, seed=seed) for seed in (1, 1, 2))
    order = list(range(80))
    random.Random(0).shuffle(order)
    by_number = {number: again.seed(number) for number in order}
    assert [seeds.seed(number) for number in range(80)] == [by_number[number] for number in range(80)]
    assert [seeds.seed(number) for number in range(80)] != [others.seed(number) for number in range(80)]


def test_kinds_and_temperatures_take_turns() -> None:
    seeds = [source(tiny_tokenizer(), TextKind.CHAT, TextKind.COPY).seed(number) for number in range(8)]
    assert [seed.kind for seed in seeds] == [TextKind.CHAT, TextKind.COPY] * 4
    assert [seed.temperature for seed in seeds] == [1.0, 1.0, 0.5, 0.5] * 2


def test_a_copy_request_quotes_a_snippet_and_leaves_the_answer_to_the_target() -> None:
    tokenizer = tiny_tokenizer()
    seed = source(tokenizer, TextKind.COPY).seed(3)
    text = tokenizer.decode(seed.forced_ids, skip_special_tokens=False)
    assert any(snippet in text for snippet in SNIPPETS.prose)
    assert text.endswith("<|end|><|assistant|>")
    assert not seed.writes_question


def test_paragraphs_are_joined_and_cut() -> None:
    short, long = "word " * 20, "letter" * 300
    found = list(paragraphs(f"{short}\r\n\r\n{short}\n\n{long}\n\nleft over"))
    assert [len(text) for text in found] == [200, 600, 600, 600]


def test_the_standard_library_has_enough_to_quote(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.distill.snippets._MODULES", 50)
    snippets = standard_library_snippets()
    assert len(snippets.prose) > 100
    assert len(snippets.functions) > 100
    assert all(function.startswith("def ") for function in snippets.functions)


def test_files_that_cannot_be_quoted_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with pytest.raises(ValueError, match=r"a\.txt cannot be read"):
        file_snippets([path])
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"a\.txt is not UTF-8"):
        file_snippets([path])
    path.write_text("short")
    with pytest.raises(ValueError, match=r"a\.txt holds no paragraph of at least 120"):
        file_snippets([path])
