"""The queue of requests: order, cancellation, and loops that are closed while they wait or own the turn."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest

from runtime.request_queue import RequestQueue


class Customer:
    """Takes a turn and keeps it until told to leave."""

    def __init__(self, queue: RequestQueue, log: list[str], name: str) -> None:
        self._queue = queue
        self._log = log
        self._name = name
        self.may_leave = asyncio.Event()
        self.task = asyncio.create_task(self._visit())

    async def _visit(self) -> None:
        async with self._queue.turn():
            self._log.append(self._name)
            await self.may_leave.wait()


async def settled() -> None:
    """Let every wake-up that is under way arrive."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_turns_come_in_the_order_of_the_calls() -> None:
    queue, log = RequestQueue(), list[str]()
    customers = [Customer(queue, log, name) for name in "abcd"]
    await settled()
    for index, customer in enumerate(customers):
        assert "".join(log) == "abcd"[: index + 1]
        assert len(queue) == 3 - index
        customer.may_leave.set()
        await settled()
    await asyncio.gather(*(customer.task for customer in customers))


async def test_a_cancelled_waiter_leaves_the_queue() -> None:
    queue, log = RequestQueue(), list[str]()
    owner, waiter, last = [Customer(queue, log, name) for name in "abc"]
    await settled()
    waiter.task.cancel()
    await settled()
    assert len(queue) == 1
    for customer in (owner, last):
        customer.may_leave.set()
    await asyncio.gather(owner.task, last.task)
    assert log == ["a", "c"]
    assert waiter.task.cancelled()


async def test_a_waiter_cancelled_while_it_is_woken_hands_the_turn_on() -> None:
    """Between the wake-up and the waiter's next step the turn is its own already."""
    queue, log = RequestQueue(), list[str]()
    owner, waiter, last = [Customer(queue, log, name) for name in "abc"]
    await settled()
    owner.may_leave.set()
    while len(queue) == 2:  # noqa: ASYNC110 - until the owner has left, and not one step longer
        await asyncio.sleep(0)
    waiter.task.cancel()
    await settled()
    assert waiter.task.cancelled()
    assert log == ["a", "c"]
    last.may_leave.set()
    await asyncio.gather(owner.task, last.task)


async def test_an_owner_that_fails_hands_the_turn_on() -> None:
    queue, log = RequestQueue(), list[str]()

    async def fail() -> None:
        async with queue.turn():
            raise ZeroDivisionError

    failing = asyncio.create_task(fail())
    following = Customer(queue, log, "b")
    following.may_leave.set()
    results = await asyncio.gather(failing, following.task, return_exceptions=True)
    assert isinstance(results[0], ZeroDivisionError)
    assert log == ["b"]
    assert len(queue) == 0


def test_turns_pass_between_loops_on_several_threads() -> None:
    """Each thread takes a hundred turns; a count that is read and written apart shows if two were inside at once."""
    queue = RequestQueue()
    count = 0
    start = threading.Barrier(3)

    async def take_turns() -> None:
        nonlocal count
        start.wait()
        for _ in range(100):
            async with queue.turn():
                seen = count
                await asyncio.sleep(0)
                count = seen + 1

    threads = [threading.Thread(target=lambda: asyncio.run(take_turns())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert count == 300


@pytest.fixture
def abandon() -> Iterator[Callable[[RequestQueue, list[str], str], None]]:
    """Puts a customer into a loop and closes the loop: he can neither go on nor leave."""
    customers: list[Customer] = []

    async def begin(queue: RequestQueue, log: list[str], name: str) -> None:
        customers.append(Customer(queue, log, name))
        await settled()

    def abandon_one(queue: RequestQueue, log: list[str], name: str) -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin(queue, log, name))
        loop.close()

    yield abandon_one
    for customer in customers:
        customer.task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is destroyed pending, on purpose


async def take_one_turn(queue: RequestQueue, log: list[str], name: str) -> None:
    async with asyncio.timeout(30), queue.turn():
        log.append(name)


def test_an_owner_whose_loop_was_closed_does_not_keep_the_turn(
    abandon: Callable[[RequestQueue, list[str], str], None],
) -> None:
    queue, log = RequestQueue(), list[str]()
    abandon(queue, log, "a")
    abandon(queue, log, "b")
    asyncio.run(take_one_turn(queue, log, "c"))
    asyncio.run(take_one_turn(queue, log, "d"))
    assert log == ["a", "b", "c", "d"]


def test_a_waiter_whose_loop_was_closed_is_passed_over(
    abandon: Callable[[RequestQueue, list[str], str], None],
) -> None:
    queue, log = RequestQueue(), list[str]()

    async def own_while_another_loop_dies() -> None:
        async with queue.turn():
            await asyncio.to_thread(abandon, queue, log, "a")
            following = asyncio.create_task(take_one_turn(queue, log, "b"))
            await settled()
            assert len(queue) == 2
        await following

    asyncio.run(own_while_another_loop_dies())
    assert log == ["b"]


def test_an_owner_whose_loop_is_closed_while_others_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.request_queue._RECHECK_S", 0.01)
    queue, log = RequestQueue(), list[str]()
    loop = asyncio.new_event_loop()

    async def become_owner() -> Customer:
        customer = Customer(queue, log, "a")
        await settled()
        return customer

    owner = loop.run_until_complete(become_owner())

    async def wait_behind_it() -> None:
        waiting = [asyncio.create_task(take_one_turn(queue, log, name)) for name in "bc"]
        await asyncio.sleep(0.03)
        assert log == ["a"], "the owner's loop still lives, if it does not run"
        loop.close()
        await asyncio.gather(*waiting)

    asyncio.run(wait_behind_it())
    assert log == ["a", "b", "c"]
    owner.task._log_destroy_pending = False  # type: ignore[attr-defined]  # it is destroyed pending, on purpose
