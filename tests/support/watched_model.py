"""Models whose calls a test counts, slows down, holds or lets fail, and models that write a text by heart.

Shape suffixes: T tokens of a call, R logit rows, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch

from models import Cache, CausalModel
from tests.support.table_model import TableCache

_PREFERENCE = 12.0
"""Logit of the written token; all others have 0."""


class WatchedModel:
    """Passes every call on to `model`, and tells of it first in the thread that makes it."""

    def __init__(self, model: CausalModel) -> None:
        self._model = model
        self.name = model.name
        self.vocab_size = model.vocab_size
        self.context_length = model.context_length
        self.max_block = model.max_block
        self.device = model.device
        self.widths: list[int] = []
        """Tokens of each call so far."""
        self.thread_names: set[str] = set()
        self.before_call: Callable[[int], None] | None = None
        """Gets the number of the coming call, the first being 1."""
        self.after_call: Callable[[int], None] | None = None
        """Likewise, when the cache has been written."""

    @property
    def num_calls(self) -> int:
        return len(self.widths)

    def new_cache(self, capacity: int) -> Cache:
        return self._model.new_cache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: Cache, *, num_logits: int) -> torch.Tensor:
        self.widths.append(len(token_ids_T))
        self.thread_names.add(threading.current_thread().name)
        if self.before_call is not None:
            self.before_call(self.num_calls)
        logits_RV = self._model.forward(token_ids_T, cache, num_logits=num_logits)
        if self.after_call is not None:
            self.after_call(self.num_calls)
        return logits_RV

    def fail_at(self, call: int, error: BaseException, *, late: bool = False) -> None:
        """Raise `error` at one call, counted from now on, before it or (`late`) after the cache was written."""
        failing = self.num_calls + call

        def fail(number: int) -> None:
            if number == failing:
                raise error

        if late:
            self.after_call = fail
        else:
            self.before_call = fail


class Gate:
    """Holds a model at one of its calls until it is opened."""

    def __init__(self, model: WatchedModel, *, call: int) -> None:
        """Hold the call of that number, counted from now on."""
        self._held_call = model.num_calls + call
        self._reached = threading.Event()
        self._opened = threading.Event()
        model.before_call = self._hold

    def _hold(self, number: int) -> None:
        if number == self._held_call:
            self._reached.set()
            self._opened.wait(timeout=60)

    def wait_reached(self) -> None:
        """Block until the model stands at the call."""
        assert self._reached.wait(timeout=60), "the model never came to this call"

    def open(self) -> None:
        """Let the model go on."""
        self._opened.set()


class ScriptedModel:
    """The row after n tokens prefers the n-th token of a script, whatever the tokens before were."""

    def __init__(
        self, script: Sequence[int], *, vocab_size: int, context_length: int = 512, max_block: int = 16
    ) -> None:
        self.name = "script"
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_block = max_block
        self.device = torch.device("cpu")
        self.script = list(script)

    def new_cache(self, capacity: int) -> TableCache:
        return TableCache(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        for token_id in token_ids_T.tolist():
            cache.append(token_id)
        rows_RV = torch.zeros(num_logits, self.vocab_size)
        for row in range(num_logits):
            position = cache.length - num_logits + 1 + row
            rows_RV[row, self.script[position % len(self.script)]] = _PREFERENCE
        return rows_RV
