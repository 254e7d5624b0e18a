"""The order of a sweep: which prompt, and which cell first.

Owns the turns, the cells and the loop over them, which can be told what was measured before. Knows nothing of runtimes.

In each turn every cell answers the same prompt, so that each ratio is one of two runs that were near in time. The
cells take turns at being first, and every other turn is the one before it backwards: so none always follows the same
one, and none is late more often than others on a machine that grows slower. Plain decoding runs twice a turn, half a
turn apart: what the two differ by is the noise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence

from profiling.sweep.run import AUTO, PLAIN, PLAIN_AGAIN, Cell, SweepRun, Turn
from profiling.sweep.settings import SweepSettings

Answer = Callable[[Turn, Cell], Awaitable[SweepRun]]


def sweep_cells(settings: SweepSettings) -> tuple[Cell, ...]:
    """All cells, those of plain decoding as far from each other as can be."""
    speculating = [*(Cell(mode=mode, gamma=gamma) for mode in settings.modes for gamma in settings.gammas), AUTO]
    middle = len(speculating) // 2
    return (PLAIN, *speculating[:middle], PLAIN_AGAIN, *speculating[middle:])


def sweep_turns(settings: SweepSettings) -> tuple[Turn, ...]:
    """All turns; kinds alternate, so that a sweep that is cut short has seen each of them."""
    return tuple(
        Turn(kind=kind, prompt=prompt, temperature=temperature, seed=prompt * len(settings.kinds) + number)
        for prompt in range(settings.num_prompts)
        for number, kind in enumerate(settings.kinds)
        for temperature in settings.temperatures
    )


def complete_turns(runs: Sequence[SweepRun], cells: Sequence[Cell]) -> list[SweepRun]:
    """The runs of turns in which every cell has answered: others would pair runs that were not near in time."""
    answered: dict[Turn, set[Cell]] = {}
    for run in runs:
        answered.setdefault(run.turn, set()).add(run.cell)
    return [run for run in runs if answered[run.turn] >= set(cells)]


def ordered(cells: Sequence[Cell], number: int) -> Iterator[Cell]:
    """The cells as they come in one turn."""
    first = number // 2 % len(cells)
    order = [*cells[first:], *cells[:first]]
    return iter(order if number % 2 == 0 else order[::-1])


async def measure(
    settings: SweepSettings,
    answer: Answer,
    *,
    known: Sequence[SweepRun],
    prepare: Callable[[Turn], Awaitable[None]],
    record: Callable[[SweepRun], None],
) -> list[SweepRun]:
    """Run what is missing.

    Args:
        settings: what is measured.
        answer: makes one run.
        known: runs of whole turns that were measured before.
        prepare: reads a turn's prompt beforehand, so that no cell is the first to see it.
        record: is told of every run at once.
    """
    cells = sweep_cells(settings)
    runs, done = list(known), {run.turn for run in known}
    for number, turn in enumerate(sweep_turns(settings)):
        if turn in done:
            continue
        await prepare(turn)
        for cell in ordered(cells, number):
            run = await answer(turn, cell)
            record(run)
            runs.append(run)
    return runs
