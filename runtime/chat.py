"""A conversation at the terminal, or with a program that writes one message a line.

Owns reading messages and what interrupts do. Knows nothing of how a reply is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sys
from collections.abc import Callable, Coroutine, Iterator

from runtime.console import Console
from runtime.conversation import Conversation
from runtime.errors import SlipstreamError

_PROMPT = "> "
_INTRODUCTION = "One message a line; Ctrl-C cuts an answer short, /clear forgets the conversation, /exit ends it."

Reply = Callable[[str], Coroutine[None, None, None]]


def chat(
    runner: asyncio.Runner, conversation: Conversation, reply: Reply, console: Console, *, first: str | None = None
) -> bool:
    """Answer message after message until the input ends, `/exit`, or Ctrl-C between answers.

    The messages are read between two runs of the event loop: nothing else waits for it then, and line editing and
    Ctrl-C work as in any program.

    Args:
        runner: runs the replies.
        conversation: what `/clear` clears.
        reply: sends one message and shows the answer.
        console: for hints and errors.
        first: a message to begin with.

    Returns:
        whether every message got its answer.
    """
    if console.is_interactive:
        _enable_line_editing()
        console.note(_INTRODUCTION)
    succeeded = True
    for message in _messages(console, first):
        if message == "/exit":
            break
        if message == "/clear":
            conversation.clear()
            continue
        try:
            runner.run(reply(message))
        except KeyboardInterrupt:
            # A second Ctrl-C leaves the loop before the answer has wound up.
            runner.run(_others_done())
            console.note("(cut short)")
        except (SlipstreamError, TypeError, ValueError) as error:
            succeeded = False
            console.error(error)
    return succeeded


def _messages(console: Console, first: str | None) -> Iterator[str]:
    if first is not None:
        yield first
    for line in _typed_lines(console) if console.is_interactive else _piped_lines():
        if message := line.strip():
            yield message


def _typed_lines(console: Console) -> Iterator[str]:
    while True:
        try:
            yield input(_PROMPT)
        except (EOFError, KeyboardInterrupt):
            console.note("")
            return


def _piped_lines() -> Iterator[str]:
    try:
        yield from sys.stdin or ()
    except KeyboardInterrupt:
        return


def _enable_line_editing() -> None:
    """Give `input` arrow keys and a history where the platform has them."""
    with contextlib.suppress(ImportError):
        importlib.import_module("readline")


async def _others_done() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*tasks, return_exceptions=True)
