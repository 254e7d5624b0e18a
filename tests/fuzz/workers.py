"""Processes that play seeds.

A module of its own, as processes that start afresh can import it, which a program's main module they cannot.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch

from tests.fuzz.case import cases_of
from tests.fuzz.noise import precomputed_noise
from tests.fuzz.tally import Tally


@contextmanager
def tallies_of(seeds: range, num_workers: int, *, thin: int) -> Iterator[Iterator[Tally]]:
    """The tallies of all seeds, in order; whatever is not done at the end is dropped."""
    # Forked processes would inherit torch's threads in whatever state they are.
    with multiprocessing.get_context("spawn").Pool(num_workers, initializer=_prepare) as pool:
        yield pool.imap(partial(_play_seed, thin=thin), seeds)


def _prepare() -> None:
    # Ctrl-C is the parent's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)


def _play_seed(seed: int, *, thin: int) -> Tally:
    with precomputed_noise():
        return Tally().play(cases_of(seed, thin=thin))
