"""Reading messages and surviving interrupts, with replies that need no model."""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Awaitable, Callable

import pytest

from runtime.chat import chat
from runtime.console import Console


class History:
    """Stands for a conversation, of which `chat` knows one thing only."""

    def __init__(self) -> None:
        self.num_cleared = 0

    def clear(self) -> None:
        self.num_cleared += 1


def hold(
    lines: str, reply: Callable[[str], Awaitable[None]], patch: pytest.MonkeyPatch, *, first: str | None = None
) -> tuple[bool, History]:
    patch.setattr(sys, "stdin", io.StringIO(lines))
    history = History()

    async def answer(message: str) -> None:
        await reply(message)

    with asyncio.Runner() as runner:
        succeeded = chat(runner, history, answer, Console(), first=first)  # type: ignore[arg-type]  # a stand-in
    return succeeded, history


def test_messages_come_in_order_without_their_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    async def reply(message: str) -> None:
        heard.append(message)

    succeeded, history = hold("one \n\n\t\n two\n/clear\nthree\n/exit\nfour\n", reply, monkeypatch, first="zero")
    assert heard == ["zero", "one", "two", "three"]
    assert succeeded
    assert history.num_cleared == 1


@pytest.mark.parametrize("error", [ValueError("too\n  long"), TypeError("too long")])
def test_a_message_without_an_answer_is_reported(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[str] = []

    async def reply(message: str) -> None:
        if message == "bad":
            raise error
        heard.append(message)

    succeeded, _ = hold("bad\ngood\n", reply, monkeypatch)
    assert heard == ["good"]
    assert not succeeded
    assert capsys.readouterr().err == "error: too long\n"


def test_a_fault_of_our_own_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    async def reply(message: str) -> None:
        raise AssertionError(message)

    with pytest.raises(AssertionError, match="one"):
        hold("one\n", reply, monkeypatch)


def test_an_interrupt_that_leaves_the_loop_at_once_still_lets_the_answer_wind_up(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a second Ctrl-C does: the loop is left although tasks are pending."""
    order: list[str] = []
    pending: list[asyncio.Task[None]] = []

    async def wind_up() -> None:
        await asyncio.sleep(0.01)
        order.append("wound up")

    async def reply(message: str) -> None:
        order.append(message)
        if message == "one":
            pending.append(asyncio.create_task(wind_up()))
            await asyncio.sleep(0)
            raise KeyboardInterrupt

    succeeded, _ = hold("one\ntwo\n", reply, monkeypatch)
    assert order == ["one", "wound up", "two"]
    assert succeeded
    assert capsys.readouterr().err == "(cut short)\n"


def test_an_interrupt_while_waiting_for_a_message_ends_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(io.StringIO):
        def __next__(self) -> str:
            line = super().__next__()
            if line == "stop\n":
                raise KeyboardInterrupt
            return line

    heard: list[str] = []

    async def reply(message: str) -> None:
        heard.append(message)

    monkeypatch.setattr(sys, "stdin", Interrupted("one\nstop\ntwo\n"))
    with asyncio.Runner() as runner:
        assert chat(runner, History(), reply, Console())  # type: ignore[arg-type]  # a stand-in
    assert heard == ["one"]
