"""A conversation: messages that grow by what was said.

Owns the history of one conversation and what of a reply enters it. Knows nothing of terminals, tokens or caches: each
message sends the whole history, and the runtime finds by itself how much of it the cache still holds.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Unpack

from runtime.options import GenerationKeywords
from runtime.runtime import Runtime
from runtime.token_stream import TokenStream


class Conversation:
    """Turns of a user and a chat model.

    conversation = Conversation(runtime, system="Be brief.")
    async with conversation.send("Who wrote Faust?") as chunks:
        async for chunk in chunks:
            print(chunk.text, end="")
    """

    def __init__(self, runtime: Runtime, *, system: str | None = None) -> None:
        """Begin with an empty history, or with a system message.

        Raises:
            TypeError: if `system` is no text.
            ValueError: if the target's tokenizer has no chat template.
        """
        if system is not None and not isinstance(system, str):
            raise TypeError(f"system must be text or None, not {type(system).__name__}")
        if not runtime.tokenizer.has_chat_template:
            raise ValueError(
                "this model's tokenizer has no chat template, so it cannot hold a conversation; "
                "use a chat model, or generate from plain text"
            )
        self._runtime = runtime
        self._system = system
        self._turns: list[dict[str, str]] = []
        self._replying = False

    @property
    def messages(self) -> tuple[dict[str, str], ...]:
        """The history so far, the system message first; a copy."""
        system = [] if self._system is None else [_message("system", self._system)]
        return tuple(dict(message) for message in [*system, *self._turns])

    @asynccontextmanager
    async def send(self, text: str, **options: Unpack[GenerationKeywords]) -> AsyncGenerator[TokenStream, None]:
        """Say something and stream the reply; use as `async with`.

        The message and the reply enter the history when the block is left: the whole reply, or what was read of it if
        the block was left early or cancelled. If nothing was read, or the block ends with an error, nothing does.

        Args:
            text: the user's message.
            **options: see `GenerationOptions`.

        Raises:
            as `Runtime.stream`, on entering or reading.
            TypeError: if `text` is no text.
            RuntimeError: if another reply is still being read.
        """
        if not isinstance(text, str):
            raise TypeError(f"text must be a message, not {type(text).__name__}")
        if self._replying:
            raise RuntimeError("a reply of this conversation is still being read; leave it before the next message")
        message = _message("user", text)
        chunks = self._runtime.stream([*self.messages, message], **options)
        failed = False
        self._replying = True
        try:
            async with chunks:
                yield chunks
        except Exception:  # a cancellation is none: what was read until then has been said
            failed = True
            raise
        finally:
            self._replying = False
            if not failed and (chunks.complete or chunks.text):
                self._turns += [message, _message("assistant", chunks.text)]

    def clear(self) -> None:
        """Forget all that was said; the system message stays."""
        self._turns.clear()


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
