"""The pair under examination: a runtime with its parts, and the measurements that several checks share.

Owns loading, with what is done where target and draft do not fit together. Knows nothing of verdicts.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from models import PairError
from profiling.doctor.check import CannotTell
from profiling.doctor.effort import Effort
from profiling.doctor.memory_gauge import HeldMemory, ReadMemory, memory_reader
from profiling.doctor.other_load import OtherLoad, sample_other_load
from profiling.doctor.shared import Shared
from profiling.doctor.step_costs import Clock, StepCosts, measure_step_costs
from profiling.doctor.trials import Turn, run_trials
from profiling.prompts import prompt_ids
from runtime import Engine, LoadSettings, Mode, Runtime, build_engine
from scheduler import ModelProposer

GAMMA = 4
"""Tokens a round where drafts are to be heard whatever the controller thinks of them, and none were asked for."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The machine before anything was loaded."""

    num_cores: int
    others: OtherLoad
    """What other processes used of them."""
    memory: HeldMemory | None = None

    @classmethod
    async def look(cls, watch_s: float, *, memory: HeldMemory | None = None) -> Surroundings:
        """As it is over so many seconds."""
        has_affinity = hasattr(os, "sched_getaffinity")
        return cls(
            num_cores=len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1,
            others=await sample_other_load(watch_s),
            memory=memory,
        )


class LoadedPair:
    """A target with its drafts, ready to be examined."""

    def __init__(
        self,
        runtime: Runtime,
        engine: Engine,
        *,
        effort: Effort,
        surroundings: Surroundings,
        mismatch: str | None = None,
        read_memory: ReadMemory | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        """Bind a runtime to its parts; `load_pair` is the usual way.

        Args:
            runtime: what is examined.
            engine: what it runs on.
            effort: how much is done.
            surroundings: the machine before the pair was loaded.
            mismatch: why the draft that was asked for is left out; None where it fits.
            read_memory: what memory is read by; None takes what suits the device.
            clock: what single steps are timed by, in seconds.
        """
        self.runtime = runtime
        self.engine = engine
        self.effort = effort
        self.surroundings = surroundings
        self.mismatch = mismatch
        self.read_memory = read_memory or memory_reader(engine.target.model.device)
        fixed = runtime.settings.fixed_gamma
        self.gamma = min(GAMMA, runtime.settings.gamma_limit) if fixed is None else fixed
        generate = partial(run_trials, runtime.generate, self.modes, self.prompt_ids, effort, gamma=self.gamma)
        self._trials: Shared[tuple[Turn, ...]] = Shared("answering prompts in every mode", generate)
        self._costs: Shared[StepCosts] = Shared("timing single steps", partial(self._measure_costs, clock))

    @property
    def modes(self) -> tuple[Mode, ...]:
        """What can be compared: plain decoding alone where there is no draft."""
        return self.runtime.modes if self.engine.proposers else (Mode.PLAIN,)

    @property
    def draft_models(self) -> tuple[ModelProposer, ...]:
        """The draft sources that compute; one at most."""
        return tuple(source for source in self.engine.proposers if isinstance(source, ModelProposer))

    @property
    def model_names(self) -> frozenset[str]:
        """Names of the draft sources whose proposals cost time."""
        return frozenset(source.name for source in self.draft_models)

    def require_draft(self) -> None:
        """Refuse where nothing drafts.

        Raises:
            CannotTell: says why.
        """
        if self.mismatch is not None:
            raise CannotTell("the draft does not fit its target and was left out; see the check `tokenizers`")
        if not self.engine.proposers:
            raise CannotTell("there is no draft")

    async def trials(self) -> tuple[Turn, ...]:
        """Answers in every mode; see `profiling.doctor.trials`."""
        return await self._trials.get()

    async def step_costs(self) -> StepCosts:
        """What single steps cost."""
        return await self._costs.get()

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], max_tokens: int) -> tuple[int, ...]:
        """A conversation as token ids; of one that is too long for the context, the end.

        Raises:
            CannotTell: if the context has no room for so long an answer.
        """
        room = self.runtime.context_length - max_tokens
        if room < 1:
            raise CannotTell(
                f"a context of {self.runtime.context_length} tokens has no room for an answer of {max_tokens}"
            )
        return tuple(prompt_ids(self.runtime.tokenizer, messages)[-room:])

    async def _measure_costs(self, clock: Clock) -> StepCosts:
        draft = self.draft_models[0].lane if self.draft_models else None
        return await measure_step_costs(
            self.engine.target, draft, gamma=self.gamma, num_runs=self.effort.num_step_runs, clock=clock
        )

    async def close(self) -> None:
        """End the runtime's workers."""
        await self.runtime.close()


async def load_pair(settings: LoadSettings, effort: Effort) -> LoadedPair:
    """Load a pair; where target and draft do not fit together, the target alone.

    Raises:
        ValueError: if the settings ask for what the device or the model does not have.
        SlipstreamError: if a model cannot be loaded.
    """
    # Device memory is looked at from the outside before there is a device to ask.
    surroundings = await Surroundings.look(effort.watch_s, memory=memory_reader(torch.device("cpu"))())
    mismatch = None
    try:
        engine = await build_engine(settings)
    except PairError as error:
        mismatch = " ".join(str(error).split())
        settings = dataclasses.replace(settings, draft=None)
        engine = await build_engine(settings)
    return LoadedPair(Runtime(engine, settings), engine, effort=effort, surroundings=surroundings, mismatch=mismatch)
