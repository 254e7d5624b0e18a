"""Tokenizers built from GGUF metadata: the ids of both kinds, the cuts by name, the errors, the disk cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from models import gguf_tokenizer_cache
from models.errors import CheckpointError, UnsupportedModelError
from models.pre_tokenizer import pre_tokenizer_named
from models.tokenizer import Tokenizer
from tests.support.tiny_tokenizers import SPACE, byte_level_metadata, sentencepiece_metadata

BYTE_LEVEL = Tokenizer.from_gguf(byte_level_metadata())
SENTENCEPIECE = Tokenizer.from_gguf(sentencepiece_metadata())


def tokens_of(tokenizer: Tokenizer, text: str) -> list[str | None]:
    return [tokenizer.id_to_token(token_id) for token_id in tokenizer.encode(text)]


def test_byte_level_merges_in_order_and_keeps_control_tokens_whole() -> None:
    assert tokens_of(BYTE_LEVEL, "hello the<|end|>hell") == ["hello", "Ġthe", "<|end|>", "hell"]
    assert BYTE_LEVEL.eos_token_ids == {0}
    assert BYTE_LEVEL.bos_token_id is None
    assert BYTE_LEVEL.special_ids == {0, 1, 2}
    assert BYTE_LEVEL.vocab_size == 3 + 256 + 6
    assert BYTE_LEVEL.byte_fallback_ids == frozenset()


@given(st.text())
@example("e\u0301 \ufffd 漢字🙂‍↔️ \t\r\n\n  12 \u2581")
def test_byte_level_text_comes_back_unchanged(text: str) -> None:
    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text), skip_special_tokens=False) == text


@given(st.text())
@example("the  hello 🙂")
def test_sentencepiece_text_comes_back_unchanged(text: str) -> None:
    text = text.replace(SPACE, "")
    assert SENTENCEPIECE.decode(SENTENCEPIECE.encode(text)) == text


def sentencepiece_reference(text: str, metadata: dict[str, object]) -> list[str]:
    """The rule itself, slowly: join the adjacent pair whose joined piece scores best, leftmost first."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]  # type: ignore[assignment]
    scores: list[float] = metadata["tokenizer.ggml.scores"]  # type: ignore[assignment]
    score_of = dict(zip(tokens[259:], scores[259:], strict=True))
    symbols = list(SPACE + text.replace(" ", SPACE)) if text else []
    while True:
        joined = [symbols[i] + symbols[i + 1] for i in range(len(symbols) - 1)]
        candidates = [(score_of[piece], -i) for i, piece in enumerate(joined) if piece in score_of]
        if not candidates:
            break
        index = -max(candidates)[1]
        symbols[index : index + 2] = [joined[index]]
    result: list[str] = []
    for symbol in symbols:
        result += [symbol] if symbol in score_of else [f"<0x{byte:02X}>" for byte in symbol.encode()]
    return result


@given(st.text(alphabet=" abehlotxé", max_size=30))
def test_sentencepiece_follows_the_best_scored_pair(text: str) -> None:
    assert tokens_of(SENTENCEPIECE, text) == ["<s>", *sentencepiece_reference(text, sentencepiece_metadata())]


def test_sentencepiece_marks() -> None:
    assert SENTENCEPIECE.bos_token_id == 1
    assert SENTENCEPIECE.eos_token_ids == {2}
    assert SENTENCEPIECE.byte_fallback_ids == frozenset(range(3, 259))
    without = Tokenizer.from_gguf(
        sentencepiece_metadata()
        | {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.add_bos_token": np.bool_(False)}
    )
    assert tokens_of(without, "hello the") == ["hello", f"{SPACE}the"]
    assert without.decode(without.encode(" hello")) == " hello"


def test_a_byte_token_spelled_out_is_text() -> None:
    tokenizer = Tokenizer.from_gguf(sentencepiece_metadata(("<0x4", "1>", "<0", "x4", *"<0x41>")))
    assert tokens_of(tokenizer, "<0x41>") == ["<s>", SPACE, "<0x4", "1>"]
    assert tokenizer.decode(tokenizer.encode("<0x41>")) == "<0x41>"


def test_user_defined_tokens_are_taken_whole_but_are_text() -> None:
    metadata = byte_level_metadata()
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "<tool>"]  # type: ignore[misc]
    metadata["tokenizer.ggml.token_type"] = np.array([*metadata["tokenizer.ggml.token_type"], 4])  # type: ignore[misc]
    tokenizer = Tokenizer.from_gguf(metadata)
    assert tokens_of(tokenizer, "t<tool>hello") == ["t", "<tool>", "hello"]
    assert tokenizer.decode(tokenizer.encode("a<tool>b<|end|>")) == "a<tool>b"


def test_all_ids_that_end_a_turn_count() -> None:
    metadata = byte_level_metadata() | {"tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": np.uint32(2)}
    assert Tokenizer.from_gguf(metadata).eos_token_ids == {0, 1, 2}


CUTS = {
    "gpt-2": ["I", "'", "LL", " pay", " 1234", " €", "\n\n ", " it", "'s", " A", "+", "B", "."],
    "smollm": ["I", "'", "LL", " pay", " ", "1", "2", "3", "4", " €", "\n\n ", " it", "'s", " A", "+", "B", "."],
    "llama-bpe": ["I", "'LL", " pay", " ", "123", "4", " €\n\n", " ", " it", "'s", " A", "+B", "."],
    "qwen2": ["I", "'LL", " pay", " ", "1", "2", "3", "4", " €\n\n", " ", " it", "'s", " A", "+B", "."],
    "tekken": ["I", "'LL", " pay", " ", "1", "2", "3", "4", " €\n\n", " ", " it", "'s", " A", "+B", "."],
    "default": ["I", "'", "LL", " pay", " ", "123", "4", " €", "\n\n ", " it", "'", "s", " A", "+", "B", "."],
}


@pytest.mark.parametrize("name", CUTS)
def test_words_are_cut_as_the_name_says(name: str) -> None:
    text = "I'LL pay 1234 €\n\n  it's A+B."
    pieces = [text[start:end] for _, (start, end) in pre_tokenizer_named(name).build().pre_tokenize_str(text)]
    assert pieces == CUTS[name]


def test_tekken_cuts_words_where_capitals_begin_again() -> None:
    pieces = pre_tokenizer_named("tekken").build().pre_tokenize_str("HelloWorld JSONParser")
    assert [word.replace("Ġ", " ") for word, _ in pieces] == ["Hello", "World", " JSONParser"]


def test_llama3_takes_whole_words_and_begins_with_bos() -> None:
    metadata = byte_level_metadata(pre="llama-bpe") | {"tokenizer.ggml.bos_token_id": 1}
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "world"]  # type: ignore[misc]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 1]  # type: ignore[misc]
    assert tokens_of(Tokenizer.from_gguf(metadata), "world") == ["<|user|>", "world"]
    metadata |= {"tokenizer.ggml.pre": "gpt-2"}
    assert tokens_of(Tokenizer.from_gguf(metadata), "world") == list("world")


def test_qwen2_composes_accents_first() -> None:
    tokenizer = Tokenizer.from_gguf(byte_level_metadata(pre="qwen2"))
    assert tokenizer.encode("e\u0301") == tokenizer.encode("é")


def changed(key: str, value: object) -> Callable[[], dict[str, object]]:
    def build() -> dict[str, object]:
        metadata = byte_level_metadata()
        if value is None:
            del metadata[f"tokenizer.{key}"]
        else:
            metadata[f"tokenizer.{key}"] = value
        return metadata

    return build


@pytest.mark.parametrize(
    ("build", "error", "named"),
    [
        (changed("ggml.pre", "no-such"), UnsupportedModelError, "'no-such'"),
        (changed("ggml.model", "bert"), UnsupportedModelError, "'bert'"),
        (changed("ggml.model", None), CheckpointError, r"tokenizer\.ggml\.model"),
        (changed("ggml.model", 7), CheckpointError, r"tokenizer\.ggml\.model"),
        (changed("ggml.tokens", None), CheckpointError, r"tokenizer\.ggml\.tokens"),
        (changed("ggml.tokens", ["a", "b", "a"]), CheckpointError, "'a' twice, as ids 0 and 2"),
        (changed("ggml.tokens", ["a", 1]), CheckpointError, r"tokenizer\.ggml\.tokens"),
        (changed("ggml.tokens", "abc"), CheckpointError, "not an array"),
        (changed("ggml.token_type", [1, 1]), CheckpointError, r"token_type has 2 items for 265 tokens"),
        (changed("ggml.token_type", ["x"] * 265), CheckpointError, r"tokenizer\.ggml\.token_type"),
        (changed("ggml.token_type", [float("nan")] * 265), CheckpointError, "not finite"),
        (changed("ggml.merges", None), CheckpointError, r"tokenizer\.ggml\.merges"),
        (changed("ggml.merges", ["ab"]), CheckpointError, "'ab'"),
        (changed("ggml.merges", ["h xyz"]), CheckpointError, "cannot be built"),
        (changed("ggml.eos_token_id", 265), CheckpointError, "eos token id 265"),
        (changed("ggml.eos_token_id", "0"), CheckpointError, r"tokenizer\.ggml\.eos_token_id"),
        (changed("ggml.eos_token_id", -1), CheckpointError, "eos token id -1"),
        (changed("ggml.eos_token_id", 1 << 40), CheckpointError, "eos token id"),
        (changed("ggml.add_bos_token", True), CheckpointError, "bos_token_id is None"),
        (changed("ggml.add_bos_token", 1), CheckpointError, r"tokenizer\.ggml\.add_bos_token"),
        (changed("chat_template", 3), CheckpointError, r"tokenizer\.chat_template"),
    ],
)
def test_malformed_metadata_is_named(
    build: Callable[[], dict[str, object]], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        Tokenizer.from_gguf(build())


def test_sentencepiece_without_scores_is_refused() -> None:
    metadata = sentencepiece_metadata()
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(CheckpointError, match=r"tokenizer\.ggml\.scores"):
        Tokenizer.from_gguf(metadata)


def test_a_missing_pre_tokenizer_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_level_metadata()
    del metadata["tokenizer.ggml.pre"]
    assert Tokenizer.from_gguf(metadata).encode("a") == BYTE_LEVEL.encode("a")
    assert "tokenizer.ggml.pre" in caplog.text


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokenizers"


def refuse_to_build(metadata: object) -> None:
    raise AssertionError("built although it was cached")


def test_the_second_opening_reads_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = Tokenizer.from_gguf(sentencepiece_metadata(), cache_key="one")
    monkeypatch.setattr(gguf_tokenizer_cache, "build_gguf_backend", refuse_to_build)
    second = Tokenizer.from_gguf(sentencepiece_metadata(), cache_key="one")
    for text in ("hello the", "é 🙂", ""):
        assert second.encode(text) == first.encode(text)
    assert second.vocabulary() == first.vocabulary()
    assert second.special_ids == first.special_ids
    assert second.eos_token_ids == first.eos_token_ids
    with pytest.raises(AssertionError, match="built"):
        Tokenizer.from_gguf(sentencepiece_metadata(), cache_key="two")
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty"])
def test_a_damaged_cache_entry_is_built_again(cache: Path, damage: str) -> None:
    first = Tokenizer.from_gguf(byte_level_metadata(), cache_key="one")
    [entry] = cache.iterdir()
    good = entry.read_bytes()
    # The flip keeps the JSON valid and changes one token: only a checksum notices.
    bad = {"flip": good.replace(b'"hello"', b'"hellp"', 1), "truncate": good[: len(good) // 2], "empty": b""}[damage]
    assert bad != good
    entry.write_bytes(bad)
    assert Tokenizer.from_gguf(byte_level_metadata(), cache_key="one").vocabulary() == first.vocabulary()
    assert entry.read_bytes() == good


def test_an_unusable_cache_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SLIPSTREAM_CACHE", str(tmp_path / "file"))
    assert Tokenizer.from_gguf(byte_level_metadata(), cache_key="one").encode("hello") == BYTE_LEVEL.encode("hello")
    assert "cannot be cached" in caplog.text


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 300),
    st.just(1 << 40),
    st.floats(),
    st.sampled_from(["", "x", "a b", SPACE, "gpt2", "llama", "default", "{{", "<|end|>"]),
    st.binary(max_size=2),
    st.lists(st.one_of(st.text(max_size=2), st.integers(), st.floats(), st.none()), max_size=3),
)


@given(
    kind=st.sampled_from([byte_level_metadata, sentencepiece_metadata]),
    changes=st.dictionaries(
        st.sampled_from(
            [
                *(f"tokenizer.ggml.{key}" for key in ("model", "pre", "tokens", "token_type", "merges", "scores")),
                *(f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "eom", "unknown", "padding")),
                "tokenizer.ggml.add_bos_token",
                "tokenizer.ggml.add_space_prefix",
                "tokenizer.chat_template",
            ]
        ),
        st.tuples(ODD_VALUES, st.integers(0, 400)),
        max_size=3,
    ),
)
@settings(max_examples=300)
def test_odd_metadata_gives_a_tokenizer_or_one_of_our_errors(
    kind: Callable[[], dict[str, object]], changes: dict[str, tuple[object, int]]
) -> None:
    metadata = kind()
    for key, (value, place) in changes.items():
        whole = metadata.get(key)
        if isinstance(whole, list) and place < len(whole):
            # One odd item in a good array gets further than an odd array.
            metadata[key] = [*whole[:place], value, *whole[place + 1 :]]
        else:
            metadata[key] = value
    try:
        tokenizer = Tokenizer.from_gguf(metadata)
    except (CheckpointError, UnsupportedModelError):
        return
    assert isinstance(tokenizer.decode(tokenizer.encode("hello the 12")), str)
