"""Conversations: what enters the history, what is sent, what the cache still holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import ContextLengthError, Conversation, Runtime
from tests.support.checkpoint_files import tiny_model, write_gguf
from tests.support.tiny_checkpoint import write_tiny_gguf
from tests.support.tiny_tokenizers import byte_level_metadata

ROLE, CONTENT = "role", "content"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")


@pytest.fixture
async def runtime(checkpoint: Path) -> AsyncIterator[Runtime]:
    async with await Runtime.load(checkpoint, threads=1, weights="float32") as loaded:
        yield loaded


async def say(conversation: Conversation, text: str, **options: object) -> str:
    async with conversation.send(text, **{"max_tokens": 8, "ignore_eos": True, **options}) as chunks:  # type: ignore[arg-type]  # real options
        async for _ in chunks:
            pass
    return chunks.result.text


async def test_history_grows_by_what_was_said(runtime: Runtime) -> None:
    conversation = Conversation(runtime, system="Be brief.")
    assert conversation.messages == ({ROLE: "system", CONTENT: "Be brief."},)
    first = await say(conversation, "hello")
    second = await say(conversation, "the")
    assert conversation.messages == (
        {ROLE: "system", CONTENT: "Be brief."},
        {ROLE: "user", CONTENT: "hello"},
        {ROLE: "assistant", CONTENT: first},
        {ROLE: "user", CONTENT: "the"},
        {ROLE: "assistant", CONTENT: second},
    )


async def test_each_reply_answers_the_whole_history(runtime: Runtime) -> None:
    conversation = Conversation(runtime, system="Be brief.")
    await say(conversation, "hello")
    sent = [*conversation.messages, {ROLE: "user", CONTENT: "the"}]
    reply = await say(conversation, "the")
    assert reply == (await runtime.generate(sent, max_tokens=8, ignore_eos=True)).text


async def test_the_cache_keeps_what_was_said(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    await say(conversation, "hello " * 10)
    first_prompt = runtime.tokenizer.encode_chat(conversation.messages[:1])
    async with conversation.send("the", max_tokens=1) as chunks:
        async for _ in chunks:
            pass
    assert chunks.result.metrics.num_reused_tokens >= len(first_prompt)


async def test_a_reply_that_was_left_early_is_history_as_far_as_it_was_read(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    read = ""
    async with conversation.send("hello", max_tokens=200, ignore_eos=True) as chunks:
        async for chunk in chunks:
            read += chunk.text
            if len(read) >= 3:
                break
    assert conversation.messages == ({ROLE: "user", CONTENT: "hello"}, {ROLE: "assistant", CONTENT: read})
    assert chunks.text == read
    assert not chunks.complete


async def test_a_cancelled_reply_is_history_as_far_as_it_was_read(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    read: list[str] = []
    said_something = asyncio.Event()

    async def answer() -> None:
        async with conversation.send("hello", max_tokens=200, ignore_eos=True) as chunks:
            async for chunk in chunks:
                read.append(chunk.text)
                if chunk.text:
                    said_something.set()

    task = asyncio.create_task(answer())
    await said_something.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert conversation.messages == ({ROLE: "user", CONTENT: "hello"}, {ROLE: "assistant", CONTENT: "".join(read)})
    sent = [*conversation.messages, {ROLE: "user", CONTENT: "the"}]
    assert await say(conversation, "the") == (await runtime.generate(sent, max_tokens=8, ignore_eos=True)).text


async def test_a_reply_that_nobody_read_was_never_said(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    async with conversation.send("hello"):
        pass
    assert conversation.messages == ()


async def test_a_complete_reply_counts_even_if_it_is_empty(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    assert await say(conversation, "hello", max_tokens=1, logit_bias={0: 100.0}, ignore_eos=False) == ""
    assert conversation.messages == ({ROLE: "user", CONTENT: "hello"}, {ROLE: "assistant", CONTENT: ""})


async def test_a_failed_reply_leaves_the_history_as_it_was(runtime: Runtime) -> None:
    async def fail_while_reading() -> None:
        async with conversation.send("the") as chunks:
            async for chunk in chunks:
                if chunk.text:
                    raise ZeroDivisionError

    conversation = Conversation(runtime)
    await say(conversation, "hello")
    before = conversation.messages
    with pytest.raises(ContextLengthError, match=r"leaves no room in a context of 256"):
        await say(conversation, "x" * 300)
    with pytest.raises(ValueError, match=r"max_tokens must be at least 1"):
        await say(conversation, "the", max_tokens=0)
    with pytest.raises(ZeroDivisionError):
        await fail_while_reading()
    assert conversation.messages == before
    await say(conversation, "the")
    assert len(conversation.messages) == len(before) + 2


async def test_one_reply_at_a_time(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    async with conversation.send("hello", max_tokens=2) as chunks:
        with pytest.raises(RuntimeError, match=r"a reply of this conversation is still being read"):
            await say(conversation, "the")
        async for _ in chunks:
            pass
    assert [message[CONTENT] for message in conversation.messages] == ["hello", chunks.text]


async def test_conversations_of_one_runtime_do_not_mix(runtime: Runtime) -> None:
    one, other = Conversation(runtime), Conversation(runtime)
    alone = [await say(Conversation(runtime), text) for text in ("hello", "the")]
    assert await asyncio.gather(say(one, "hello"), say(other, "the")) == alone


async def test_clear_keeps_the_system_message_only(runtime: Runtime) -> None:
    conversation = Conversation(runtime, system="Be brief.")
    first = await say(conversation, "hello")
    conversation.clear()
    assert [message[ROLE] for message in conversation.messages] == ["system"]
    assert await say(conversation, "hello") == first


async def test_history_cannot_be_changed_from_outside(runtime: Runtime) -> None:
    conversation = Conversation(runtime)
    await say(conversation, "hello")
    conversation.messages[0][CONTENT] = "changed"
    assert conversation.messages[0][CONTENT] == "hello"


async def test_wrong_types_are_refused(runtime: Runtime) -> None:
    with pytest.raises(TypeError, match=r"system must be text or None, not int"):
        Conversation(runtime, system=1)  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(TypeError, match=r"text must be a message, not list"):
        await say(Conversation(runtime), [])  # type: ignore[arg-type]  # wrong on purpose


async def test_a_model_without_a_chat_template_cannot_converse(tmp_path: Path) -> None:
    metadata = {**byte_level_metadata(), "tokenizer.chat_template": None, "tokenizer.ggml.bos_token_id": None}
    model = tiny_model("llama", vocab_size=265)
    path = write_gguf(tmp_path / "base.gguf", model, "llama", metadata=metadata)
    async with await Runtime.load(path, mode="plain", threads=1) as runtime:
        with pytest.raises(ValueError, match=r"no chat template, so it cannot hold a conversation"):
            Conversation(runtime)
