"""Which pairs fit, and what the error names where they do not."""

from __future__ import annotations

import pytest

from models.errors import PairError
from models.pair import PairReport, check_pair
from models.tokenizer import Tokenizer
from tests.support.tiny_tokenizers import byte_level_metadata, sentencepiece_metadata

NUM_IDS = 265


def build(**changes: object) -> Tokenizer:
    return Tokenizer.from_gguf(
        byte_level_metadata() | {f"tokenizer.ggml.{key}": value for key, value in changes.items()}
    )


def swapped(first: int, second: int) -> Tokenizer:
    tokens = list(byte_level_metadata()["tokenizer.ggml.tokens"])  # type: ignore[call-overload]
    tokens[first], tokens[second] = tokens[second], tokens[first]
    return build(tokens=tokens)


def with_further_token() -> Tokenizer:
    metadata = byte_level_metadata()
    return build(
        tokens=[*metadata["tokenizer.ggml.tokens"], "<further>"],  # type: ignore[misc]
        token_type=[*metadata["tokenizer.ggml.token_type"], 3],  # type: ignore[misc]
    )


def check(
    target: Tokenizer, draft: Tokenizer, target_width: int = NUM_IDS, draft_width: int = NUM_IDS, **numbers: int
) -> PairReport:
    return check_pair(target, draft, target_vocab_size=target_width, draft_vocab_size=draft_width, **numbers)


@pytest.mark.parametrize(("target_width", "draft_width"), [(NUM_IDS, NUM_IDS), (272, 280), (280, 272), (272, NUM_IDS)])
def test_padded_widths_may_differ(target_width: int, draft_width: int) -> None:
    report = check(build(), build(), target_width, draft_width)
    assert report.num_shared_ids == NUM_IDS
    assert report.warnings == ()


def test_ids_that_the_target_cannot_write_are_not_shared() -> None:
    assert check(build(), build(), target_width=200, draft_width=280).num_shared_ids == 200
    assert check(build(), with_further_token(), draft_width=280).num_shared_ids == NUM_IDS


def test_swapped_ids_are_named() -> None:
    with pytest.raises(PairError, match=r"id 100 is '.' in the target and '.' in the draft"):
        check(build(), swapped(100, 200))


def test_another_kind_of_vocabulary_is_named() -> None:
    with pytest.raises(PairError, match=r"id 0 is '<\|end\|>' in the target and '<unk>' in the draft"):
        check(build(), Tokenizer.from_gguf(sentencepiece_metadata()))


def test_an_id_that_the_draft_lacks_is_named() -> None:
    with pytest.raises(PairError, match=r"id 265 is '<further>' in the target and missing in the draft"):
        check(with_further_token(), build(), target_width=272, draft_width=272)


def test_a_draft_too_narrow_to_read_the_target_is_refused() -> None:
    with pytest.raises(PairError, match=r"250 columns, so it does not know id 250"):
        check(build(), build(), draft_width=250)


def test_end_ids_must_agree() -> None:
    with pytest.raises(PairError, match=r"end-of-sequence ids: 0 \('<\|end\|>'\) is one in the target only"):
        check(build(), build(eos_token_id=1))
    with pytest.raises(PairError, match=r"end-of-sequence ids: 1 \('<\|user\|>'\) is one in the draft only"):
        check(build(), build(eot_token_id=1))


def test_special_ids_must_agree() -> None:
    kinds = list(byte_level_metadata()["tokenizer.ggml.token_type"])  # type: ignore[call-overload]
    kinds[2] = 4
    with pytest.raises(PairError, match=r"special ids: 2 \('<\|assistant\|>'\) is one in the target only"):
        check(build(), build(token_type=kinds))


@pytest.mark.parametrize(("draft_parameters", "warns"), [(99, False), (100, False), (101, True), (300, True)])
def test_a_large_draft_is_warned_about(draft_parameters: int, warns: bool) -> None:
    report = check(build(), build(), target_num_parameters=300, draft_num_parameters=draft_parameters)
    assert report.draft_share == draft_parameters / 300
    assert [("above a third" in warning) for warning in report.warnings] == [True] * warns
