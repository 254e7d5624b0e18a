"""Tokenizers from Hugging Face folders, chat templates, and the demo model's tokenizer against transformers'."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.chat_template import render_chat_template
from models.checkpoint import open_checkpoint
from models.errors import CheckpointError, UnsupportedModelError
from models.tokenizer import Tokenizer
from tests.support.tiny_tokenizers import CHAT_TEMPLATE, byte_level_metadata, sentencepiece_metadata

TEXTS = (
    "def fib(n):\n    return n if n < 2 else fib(n - 1) + fib(n - 2)  # O(2**n)\n",
    '#include <stdio.h>\nint main(void)\n{\n\tprintf("%d\\n", 0x1F);\n\treturn 0;\n}\n',
    "<|im_start|>user\nWhat's the tallest mountain, and where's it?<|im_end|>\n<|im_start|>assistant\n",
    "今天天气很好，我们去公园散步吧。日本語のテキストと한국어 문장。",
    "👩‍👩‍👧‍👦 🇫🇷 🙂🙃 e\u0301 ﬁ ½ x² ١٢٣ Ⅷ",
    "In 1969, 3.14159 and 1,000,000 met 0xDEADBEEF at 12:34:56 — 2nd of 100%.",
    " \t\n\n   \r\n  trailing   ",
    "I'll we've they're DON'T it'S naïve coöperate ÜBER straße",
    "\u200b\ufeff\u00a0\u3000\u2028 \x00\x7f",
    "",
)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello <b>there</b>"}]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A chat model's tokenizer as transformers saves it."""
    from transformers import PreTrainedTokenizerFast

    from models.gguf_tokenizer import GgufTokenizerMetadata, build_gguf_backend

    backend = build_gguf_backend(GgufTokenizerMetadata(byte_level_metadata()))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>", chat_template=CHAT_TEMPLATE)
    wrapped.save_pretrained(tmp_path)
    return tmp_path


def write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content), encoding="utf-8")


def test_a_folder_gives_the_tokenizer_that_was_saved(folder: Path) -> None:
    ours = Tokenizer.from_folder(folder)
    built = Tokenizer.from_gguf(byte_level_metadata())
    assert ours.vocabulary() == built.vocabulary()
    assert ours.eos_token_ids == {0}
    assert ours.special_ids == built.special_ids
    for text in TEXTS:
        assert ours.encode(text) == built.encode(text)
    assert ours.encode_chat(MESSAGES) == built.encode_chat(MESSAGES)


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [1, 2]}, {"eos_token_id": 5}, {0, 1, 2}),
        ({"eos_token_id": 1}, {}, {0, 1}),
        ({}, {"eos_token_id": 2}, {0, 2}),
        (None, None, {0}),
    ],
)
def test_end_ids_come_from_tokenizer_and_generation_config(
    folder: Path, generation: object, config: object, expected: set[int]
) -> None:
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            write_json(folder / name, content)
    assert Tokenizer.from_folder(folder).eos_token_ids == expected


@pytest.mark.parametrize("value", ["0", [0, "1"], True, 1.5, 999])
def test_a_bad_end_id_is_named(folder: Path, value: object) -> None:
    write_json(folder / "generation_config.json", {"eos_token_id": value})
    with pytest.raises(CheckpointError, match=r"eos"):
        Tokenizer.from_folder(folder)


def test_truncation_and_padding_in_the_file_do_not_cut_prompts(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    content["truncation"] = {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}
    write_json(folder / "tokenizer.json", content)
    assert len(Tokenizer.from_folder(folder).encode("abcdefgh")) == 8


def test_code_in_the_folder_is_refused_and_never_run(folder: Path) -> None:
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings["auto_map"] = {"AutoTokenizer": ["custom.Custom", None]}
    write_json(folder / "tokenizer_config.json", settings)
    marker = folder / "was_run"
    (folder / "custom.py").write_text(f"open({str(marker)!r}, 'w').close()\nclass Custom: pass\n")
    with pytest.raises(UnsupportedModelError, match="never run"):
        Tokenizer.from_folder(folder)
    assert not marker.exists()


def test_a_folder_without_tokenizer_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"holds no tokenizer"):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"holds no tokenizer"):
        Tokenizer.from_folder(tmp_path / "missing")


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff\xfe", b'{"version": "1.0"}'])
def test_a_malformed_tokenizer_file_is_a_checkpoint_error(folder: Path, content: bytes) -> None:
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(CheckpointError, match="tokenizer"):
        Tokenizer.from_folder(folder)


def test_chat_renders_through_the_template() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    text = "<|system|>Be brief.<|end|><|user|>Hello <b>there</b><|end|><|assistant|>"
    assert tokenizer.render_chat(MESSAGES) == text
    assert tokenizer.encode_chat(MESSAGES) == tokenizer.encode(text)
    closed = tokenizer.render_chat(MESSAGES, add_generation_prompt=False)
    assert closed == text.removesuffix("<|assistant|>")


def test_chat_adds_no_second_bos() -> None:
    metadata = sentencepiece_metadata() | {"tokenizer.chat_template": "{{ bos_token }}{{ messages[0]['content'] }}"}
    ids = Tokenizer.from_gguf(metadata).encode_chat([{"role": "user", "content": "hello"}])
    assert ids.count(1) == 1
    assert ids[0] == 1


@pytest.mark.parametrize(
    ("messages", "error", "named"),
    [
        ([], ValueError, "empty"),
        ("hello", TypeError, "messages is str"),
        ({"role": "user", "content": "x"}, TypeError, "messages is dict"),
        (None, TypeError, "messages is NoneType"),
        (["hello"], TypeError, r"messages\[0\] is str"),
        ([{"role": "user"}], ValueError, r"messages\[0\] has no 'content'"),
        ([*MESSAGES, {"content": "x"}], ValueError, r"messages\[2\] has no 'role'"),
        ([{"role": "user", "content": None}], TypeError, r"messages\[0\]\['content'\] is NoneType"),
        ([{"role": 1, "content": "x"}], TypeError, r"messages\[0\]\['role'\] is int"),
    ],
)
def test_malformed_messages_are_named(messages: list[Mapping[str, object]], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        Tokenizer.from_gguf(byte_level_metadata()).encode_chat(messages)


def test_a_template_may_refuse_and_cannot_escape() -> None:
    for template, named in (
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe|undefined|access"),
        ("{% for %}", "refuses"),
        ("{{ 1 / 0 }}", "refuses.*division"),
        ("{{ messages.missing.content }}", "refuses"),
    ):
        with pytest.raises(ValueError, match=named):
            render_chat_template(template, MESSAGES, add_generation_prompt=True, template_tokens={})


def test_without_a_template_there_is_no_chat() -> None:
    metadata = byte_level_metadata()
    del metadata["tokenizer.chat_template"]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="no chat template"):
        tokenizer.encode_chat(MESSAGES)


def test_text_must_be_text() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    with pytest.raises(TypeError, match="text is bytes"):
        tokenizer.encode(b"hello")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="lone surrogate at character 2"):
        tokenizer.encode("ab\ud800")


def test_ids_without_a_token_decode_to_nothing() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata())
    ids = tokenizer.encode("hello")
    assert tokenizer.decode([*ids, 100_000, *ids]) == "hellohello"
    assert tokenizer.id_to_token(100_000) is None
    assert tokenizer.id_to_token(-1) is None
    assert tokenizer.id_to_token(1 << 40) is None


@pytest.fixture(scope="module")
def demo_tokenizer(demo_gguf: Path) -> Tokenizer:
    with open_checkpoint(demo_gguf) as checkpoint:
        return checkpoint.tokenizer()


@pytest.fixture(scope="module")
def reference(demo_gguf: Path) -> object:
    from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence
    from transformers import AutoTokenizer

    loaded = AutoTokenizer.from_pretrained(demo_gguf.parent, gguf_file=demo_gguf.name)
    # From GGUF files transformers cuts every vocabulary as GPT-2 does; SmolLM2 as published sets digits apart first.
    loaded.backend_tokenizer.pre_tokenizer = Sequence(
        [Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]
    )
    return loaded


@pytest.mark.weights
@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_demo_ids_equal_transformers(demo_tokenizer: Tokenizer, reference: object, text: str) -> None:
    assert demo_tokenizer.encode(text) == reference(text)["input_ids"]  # type: ignore[operator]


@pytest.mark.weights
def test_demo_chat_equals_transformers(demo_tokenizer: Tokenizer, reference: object) -> None:
    for messages in (MESSAGES, MESSAGES[1:], [*MESSAGES, {"role": "assistant", "content": "Hi."}]):
        for prompt in (True, False):
            expected = reference.apply_chat_template(messages, add_generation_prompt=prompt)  # type: ignore[attr-defined]
            assert demo_tokenizer.encode_chat(messages, add_generation_prompt=prompt) == expected["input_ids"]


@pytest.mark.weights
def test_demo_facts(demo_tokenizer: Tokenizer) -> None:
    assert demo_tokenizer.vocab_size == 49_152
    assert demo_tokenizer.eos_token_ids == {2}
    assert demo_tokenizer.id_to_token(2) == "<|im_end|>"
    assert demo_tokenizer.special_ids == set(range(17))
    assert demo_tokenizer.has_chat_template


# The vocabulary lacks some control characters and the bytes that begin characters from U+40000 on.
IN_THE_DEMO_VOCABULARY = st.characters(
    max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"], include_characters="\t\n\r"
)


@pytest.mark.weights
@given(text=st.text(alphabet=IN_THE_DEMO_VOCABULARY))
def test_demo_text_comes_back_unchanged(demo_tokenizer: Tokenizer, text: str) -> None:
    assert demo_tokenizer.decode(demo_tokenizer.encode(text), skip_special_tokens=False) == text


@pytest.mark.weights
@given(text=st.text(alphabet="0123456789 .,-x"))
def test_demo_digits_stand_alone(demo_tokenizer: Tokenizer, text: str) -> None:
    tokens = [demo_tokenizer.id_to_token(token_id) for token_id in demo_tokenizer.encode(text)]
    digits = [token for token in tokens if token and any(character.isdigit() for character in token)]
    assert digits == [character for character in text if character.isdigit()]
