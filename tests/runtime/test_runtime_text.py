"""Text of whole requests: characters, stops and ends fall where one-token decoding would put them.

The target writes a given text by heart and the draft knows it but for some places, so every way in which blocks can lie
over the text is reached. What must come out is computed from the text alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runtime import Chunk, FinishReason, Mode
from tests.support.table_runtime import SPECULATIVE_MODES, VOCAB_SIZE, Rig, build_rig
from tests.support.tiny_checkpoint import EOS_TOKEN_ID, tiny_tokenizer
from tests.support.watched_model import ScriptedModel

TOKENIZER = tiny_tokenizer()
PROMPT = tuple(TOKENIZER.encode("Say: "))
GAMMAS = range(9)
CHARACTERS = "Zoë said “héllo” to the 漢字 👩‍👩‍👧 and 🇫🇷; e\u0301 ﬁ ½."
LETTER = TOKENIZER.encode("z")[0]


@contextmanager
def writing(output_ids: Sequence[int], *, gamma: int, mode: Mode, wrong: Collection[int] = ()) -> Iterator[Rig]:
    """A rig whose target writes `output_ids`; the draft errs at the places `wrong` (of the output, from 0)."""
    script = [*PROMPT, *output_ids]
    guesses = [LETTER + 1 if index - len(PROMPT) in wrong else token_id for index, token_id in enumerate(script)]
    rig = build_rig(
        ScriptedModel(script, vocab_size=VOCAB_SIZE),
        ScriptedModel(guesses, vocab_size=VOCAB_SIZE),
        mode=mode,
        gamma=gamma,
    )
    yield rig
    rig.close_streams()


async def stream_all(rig: Rig, **options: Any) -> list[Chunk]:
    async with rig.runtime.stream(PROMPT, **options) as chunks:
        return [chunk async for chunk in chunks]


def joined(chunks: Sequence[Chunk]) -> tuple[str, tuple[int, ...], FinishReason | None]:
    text = "".join(chunk.text for chunk in chunks)
    return text, tuple(i for chunk in chunks for i in chunk.token_ids), chunks[-1].finish_reason


def expected_cut(
    output_ids: Sequence[int], stops: Sequence[str], *, include: bool
) -> tuple[str, tuple[int, ...], FinishReason]:
    """One token after the other: the first at which the text so far holds a stop is the last."""
    for count in range(1, len(output_ids) + 1):
        text = TOKENIZER.decode(output_ids[:count])
        ends = [(text.index(stop) + len(stop), -len(stop)) for stop in stops if stop in text]
        if ends:
            end, minus_length = min(ends)
            return text[: end if include else end + minus_length], tuple(output_ids[:count]), FinishReason.STOP
    return TOKENIZER.decode(output_ids), tuple(output_ids), FinishReason.LENGTH


@settings(max_examples=150, deadline=None)
@given(
    text=st.text(alphabet="ab é🙂漢", min_size=1, max_size=24),
    stops=st.lists(st.text(alphabet="ab é🙂漢", min_size=1, max_size=3), max_size=3),
    gamma=st.sampled_from(GAMMAS),
    wrong=st.sets(st.integers(0, 40), max_size=8),
    include=st.booleans(),
    mode=st.sampled_from(SPECULATIVE_MODES),
)
@example(
    text="aab aab", stops=["b a"], gamma=8, wrong=set(), include=False, mode=Mode.PIPELINED
)  # spans what two rounds would hold
@example(
    text="🙂é", stops=["é", "🙂é"], gamma=4, wrong={3}, include=True, mode=Mode.PIPELINED
)  # two at once: the longer
@example(
    text="hello the", stops=["lo t", "o"], gamma=8, wrong=set(), include=False, mode=Mode.PIPELINED
)  # inside a token's text
def test_stops_cut_where_one_token_decoding_would(
    text: str, stops: list[str], gamma: int, wrong: set[int], include: bool, mode: Mode
) -> None:
    output_ids = TOKENIZER.encode(text)
    with writing(output_ids, mode=mode, gamma=gamma, wrong=wrong) as rig:
        options = {"max_tokens": len(output_ids), "stop": stops, "include_stop_str_in_output": include, "logprobs": 0}
        chunks = asyncio.run(stream_all(rig, **options))
    found = joined(chunks)
    assert found == expected_cut(output_ids, stops, include=include)
    # The ids decode to the text up to the stop, and from there on to the stop itself and the rest of its last token.
    assert TOKENIZER.decode(found[1]).startswith(found[0])
    assert chunks[-1].metrics is not None
    assert chunks[-1].metrics.num_output_tokens == len(found[1])
    assert [logprob.token_id for chunk in chunks for logprob in chunk.logprobs] == list(found[1])


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_a_stop_spans_two_rounds_and_ends_inside_a_block(gamma: int, mode: Mode) -> None:
    output_ids = TOKENIZER.encode("abcdefghijkl")
    for index in range(1, 10):
        # Wrong at `index`: a round ends there, within the stop.
        with writing(output_ids, mode=mode, gamma=gamma, wrong={index}) as rig:
            result = await rig.runtime.generate(PROMPT, max_tokens=12, stop="defgh")
            assert (result.text, len(result.token_ids), result.finish_reason) == ("abc", 8, "stop")
            assert result.metrics.num_output_tokens == 8


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("wrong", [set(), {3}, {0, 1, 2, 7, 8, 20}, set(range(100))])
async def test_characters_stream_whole(gamma: int, wrong: Collection[int], mode: Mode) -> None:
    output_ids = TOKENIZER.encode(CHARACTERS)
    with writing(output_ids, mode=mode, gamma=gamma, wrong=wrong) as rig:
        chunks = await stream_all(rig, max_tokens=len(output_ids))
    assert joined(chunks) == (CHARACTERS, tuple(output_ids), FinishReason.LENGTH)
    assert all("\ufffd" not in chunk.text for chunk in chunks)


@pytest.mark.parametrize("gamma", [0, 3, 8])
async def test_an_end_inside_a_character_shows_at_the_end_only(gamma: int, mode: Mode) -> None:
    output_ids = TOKENIZER.encode("né🙂")
    for max_tokens in range(1, len(output_ids) + 1):
        with writing(output_ids, mode=mode, gamma=gamma, wrong={2}) as rig:
            chunks = await stream_all(rig, max_tokens=max_tokens)
        text, token_ids, reason = joined(chunks)
        assert (text, token_ids, reason) == (TOKENIZER.decode(token_ids), tuple(output_ids[:max_tokens]), "length")
        assert all("\ufffd" not in chunk.text for chunk in chunks[:-1])


@pytest.mark.parametrize("gamma", [0, 5])
@pytest.mark.parametrize("index", range(1, 9))
async def test_an_end_of_sequence_id_ends_output_and_stream(gamma: int, index: int, mode: Mode) -> None:
    """At every place of a block, as the tokenizer's own id and as one of several of the caller's."""
    letters = TOKENIZER.encode("abcdefghijkl")
    own = [*letters[:index], EOS_TOKEN_ID, *letters[index + 1 :]]
    cases: list[tuple[list[int], dict[str, Any]]] = [
        (own, {}),
        (letters, {"stop_token_ids": [VOCAB_SIZE - 1, letters[index]]}),
        (letters, {"stop_token_ids": [letters[index], letters[index + 1]], "ignore_eos": True}),
    ]
    for output_ids, options in cases:
        with writing(output_ids, mode=mode, gamma=gamma) as rig:
            result = await rig.runtime.generate(PROMPT, max_tokens=12, **options)
            chunks = await stream_all(rig, max_tokens=12, **options)
        assert result.token_ids == tuple(output_ids[: index + 1])
        assert result.finish_reason is FinishReason.STOP
        assert result.text == TOKENIZER.decode(result.token_ids)
        assert joined(chunks) == (result.text, result.token_ids, result.finish_reason)


@pytest.mark.parametrize("gamma", [0, 2, 8])
async def test_ends_may_be_ignored_or_put_off(gamma: int, mode: Mode) -> None:
    letters = TOKENIZER.encode("abcdefgh")
    output_ids = [*letters[:2], EOS_TOKEN_ID, *letters[3:5], EOS_TOKEN_ID, *letters[6:]]
    with writing(output_ids, mode=mode, gamma=gamma) as rig:
        ignored = await rig.runtime.generate(PROMPT, max_tokens=8, ignore_eos=True)
        put_off = await rig.runtime.generate(PROMPT, max_tokens=8, min_tokens=4)
    assert ignored.token_ids == tuple(output_ids)
    assert ignored.finish_reason is FinishReason.LENGTH
    assert len(put_off.token_ids) == 6
    assert put_off.token_ids[5] == EOS_TOKEN_ID
    assert EOS_TOKEN_ID not in put_off.token_ids[:5]


@pytest.mark.parametrize("max_tokens", range(1, 8))
async def test_max_tokens_is_exact_for_a_draft_that_is_always_right(max_tokens: int, mode: Mode) -> None:
    output_ids = TOKENIZER.encode("abcdefghijklmnop")
    with writing(output_ids, mode=mode, gamma=8) as rig:
        result = await rig.runtime.generate(PROMPT, max_tokens=max_tokens, logprobs=1)
    assert result.token_ids == tuple(output_ids[:max_tokens])
    assert result.metrics.num_output_tokens == len(result.logprobs) == max_tokens
    assert result.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("text", ["<|end|>", "<|user|>hello"])
async def test_a_stop_is_never_found_in_a_control_token(text: str, mode: Mode) -> None:
    output_ids = TOKENIZER.encode(text + " the end")
    with writing(output_ids, mode=mode, gamma=4) as rig:
        result = await rig.runtime.generate(PROMPT, max_tokens=len(output_ids), stop="|>", ignore_eos=True)
    assert result.finish_reason is FinishReason.LENGTH
    assert result.text == TOKENIZER.decode(output_ids)


async def test_chat_messages_and_text_are_the_ids_that_they_encode_to(mode: Mode) -> None:
    messages = [{"role": "user", "content": "hello"}]
    with writing(TOKENIZER.encode("abc"), mode=mode, gamma=2) as rig:
        for prompt, token_ids in (("hello", TOKENIZER.encode("hello")), (messages, TOKENIZER.encode_chat(messages))):
            as_given = await rig.runtime.generate(prompt, max_tokens=5)  # type: ignore[arg-type]  # one of both kinds
            as_ids = await rig.runtime.generate(token_ids, max_tokens=5)
            assert as_given.metrics.num_prompt_tokens == len(token_ids)
            assert as_given.token_ids == as_ids.token_ids
