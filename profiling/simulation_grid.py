"""A grid of machines, drafts and texts, decoded in every mode on the virtual clock.

Owns the grid, the fixed settings that are tried at each of its points, and what a controller would have chosen.
Knows nothing of how results are shown.

All settings at a point decode the same texts. Those that the model puts far below the best of their mode are left out,
but for one of each mode, drawn at random: these hold the model to account. The rest decode one text; those that come
close to the best decode the others as well.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from profiling.simulation import SimulationSettings, simulate
from scheduler import (
    BlockCosts,
    Controller,
    LaneCosts,
    Leads,
    RoundMode,
    RoundPlan,
    SourceCosts,
    SpeedModel,
)

VERIFY_MS = 40.0
MAX_GAMMA = 8
MAX_LEAD = 12
_LEADS = (1, 2, 3, 4, 6, 8, MAX_LEAD)
_NUM_TRIED = 3
_TRIED_ABOVE = 0.95
"""Of a mode, at most so many settings are tried, and only where the model rates them so near to the mode's best."""
_CONTENDS_ABOVE = 0.92
"""Of a mode that the model rates further than that from the best of all, only the best setting is tried."""
_CLOSE_ABOVE = 0.96
"""What comes so near to the best on one text decodes the others as well."""
_LEAST_TOKENS = 200
"""Of a text: where it begins and ends, rounds are not like the others."""
_CALLS_A_ROUND = 4
"""Calls of the host between a verdict and the start of what follows it."""


@dataclass(frozen=True, kw_only=True, order=True)
class GridPoint:
    """A machine, a draft and a text."""

    extra_ratio: float
    """What each further token of a verify costs, as a share of a verify of one token."""
    contention: float
    """How many times longer either lane's work takes while the other runs."""
    draft_ratio: float
    """What a step of the draft costs, as a share of a verify of one token."""
    acceptance: float
    """Probability that the draft is right, for each position by itself."""


@dataclass(frozen=True, kw_only=True)
class Grid:
    """What is to be simulated, and how long."""

    points: tuple[GridPoint, ...]
    num_misses: int
    """Tokens that the draft gets wrong in each text; they, not the right ones, say how noisy it is."""
    num_texts: int

    def num_tokens(self, point: GridPoint) -> int:
        """Length of the texts at a point."""
        return max(_LEAST_TOKENS, round(self.num_misses / (1 - point.acceptance)))


@dataclass(frozen=True, kw_only=True)
class SimulatedPlan:
    """A setting at one point."""

    plan: RoundPlan
    promised_tokens_per_ms: float
    """By the speed model."""
    text_tokens_per_ms: tuple[float, ...]
    """Of each text."""

    @property
    def tokens_per_ms(self) -> float:
        """Over all texts, which are equally long."""
        return len(self.text_tokens_per_ms) / sum(1 / rate for rate in self.text_tokens_per_ms)


@dataclass(frozen=True, kw_only=True)
class PointResult:
    """What a point came to."""

    point: GridPoint
    by_mode: Mapping[RoundMode, SimulatedPlan]
    """The fastest setting of each mode."""
    choice: SimulatedPlan
    """What a controller chooses that knows the costs and the acceptance rate; it wants more than a tiny gain."""
    left_out: float
    """The fastest of the settings that the model had left out and that were simulated all the same, as a share of the
    fastest of their mode, on the first text; 0 where there was none."""

    @property
    def best(self) -> SimulatedPlan:
        """The fastest setting of all."""
        return max(self.by_mode.values(), key=lambda simulated: simulated.tokens_per_ms)

    @property
    def loss(self) -> float:
        """What the choice loses against the fastest setting, as a share."""
        return max(0.0, 1 - self.choice.tokens_per_ms / self.best.tokens_per_ms)

    @property
    def overlap_gain(self) -> float:
        """How many times as fast as the fastest sequential setting the fastest pipelined one is."""
        return self.by_mode[RoundMode.PIPELINED].tokens_per_ms / self.by_mode[RoundMode.SEQUENTIAL].tokens_per_ms

    def speed_up(self, mode: RoundMode) -> float:
        """How many times as fast as plain decoding the mode's fastest setting is."""
        return self.by_mode[mode].tokens_per_ms / self.by_mode[RoundMode.PLAIN].tokens_per_ms


def full_grid() -> Grid:
    """All contentions with verifies that cost more the wider they are, and one with verifies that do not."""
    return Grid(
        points=_product((0.02, 0.05, 0.1, 0.2, 0.4, 1.0), (0.3, 0.6, 0.7, 0.8, 0.9, 0.95), (1.0, 1.1, 1.5, 2.0), 0.025)
        + _product((0.02, 0.05, 0.1, 0.2, 0.4, 1.0), (0.3, 0.6, 0.7, 0.8, 0.9, 0.95), (1.1,), 0.0),
        num_misses=60,
        num_texts=2,
    )


def quick_grid() -> Grid:
    """A few corners of it, on shorter texts."""
    return Grid(
        points=_product((0.05, 0.3), (0.6, 0.9), (1.0, 1.5), 0.025) + _product((0.1,), (0.8,), (1.0,), 0.0),
        num_misses=40,
        num_texts=2,
    )


def _product(
    draft_ratios: Iterable[float], acceptances: Iterable[float], contentions: Iterable[float], extra_ratio: float
) -> tuple[GridPoint, ...]:
    return tuple(
        GridPoint(draft_ratio=ratio, acceptance=acceptance, contention=contention, extra_ratio=extra_ratio)
        for ratio, acceptance, contention in itertools.product(draft_ratios, acceptances, contentions)
    )


def groups(grid: Grid) -> list[list[GridPoint]]:
    """The points, those together that differ in contention only: their lanes take turns in the same time."""
    by_rest: dict[tuple[float, float, float], list[GridPoint]] = {}
    for point in grid.points:
        by_rest.setdefault((point.draft_ratio, point.acceptance, point.extra_ratio), []).append(point)
    return list(by_rest.values())


def simulate_group(points: Sequence[GridPoint], grid: Grid) -> list[PointResult]:
    """Simulate points that differ in contention only."""
    in_turn: dict[tuple[RoundPlan, int], float] = {}
    return [_Trial(point, grid.num_tokens(point), grid.num_texts, in_turn).result() for point in points]


def simulation_settings(point: GridPoint, plan: RoundPlan, *, num_tokens: int, seed: int) -> SimulationSettings:
    """A point and a plan as the simulation wants them."""
    return SimulationSettings(
        draft_ms=point.draft_ratio * VERIFY_MS,
        verify_ms=VERIFY_MS,
        extra_token_ms=point.extra_ratio * VERIFY_MS,
        draft_contention=point.contention,
        target_contention=point.contention,
        acceptance=point.acceptance,
        balanced=True,
        gamma=plan.gamma or 1,
        max_lead=plan.lead or 1,
        num_tokens=num_tokens,
        seed=seed,
    )


def speed_model(settings: SimulationSettings) -> SpeedModel:
    """This machine, with what the event loop takes of each round."""
    verify_ms = _verify_ms(settings)
    return SpeedModel(
        alone=LaneCosts(draft_ms=settings.draft_ms, verify_ms=verify_ms),
        together=LaneCosts(
            draft_ms=settings.draft_ms * settings.draft_contention,
            verify_ms={width: cost_ms * settings.target_contention for width, cost_ms in verify_ms.items()},
        ),
        host_ms=settings.host_latency_ms + _CALLS_A_ROUND * settings.call_ms,
    )


def _verify_ms(settings: SimulationSettings) -> dict[int, float]:
    widths = range(1, MAX_GAMMA + 2)
    return {width: settings.verify_ms + (width - 1) * settings.extra_token_ms for width in widths}


def controllers_choice(settings: SimulationSettings) -> RoundPlan:
    """What a controller decides that measured exactly what the simulation charges, and has seen much text."""
    verify_ms = _verify_ms(settings)
    costs = SourceCosts(
        verify=BlockCosts(verify_ms),
        draft=BlockCosts({1: settings.draft_ms}),
        verify_together=BlockCosts({width: ms * settings.target_contention for width, ms in verify_ms.items()}),
        draft_together=BlockCosts({1: settings.draft_ms * settings.draft_contention}),
    )
    controller = Controller(max_gamma=MAX_GAMMA, costs=costs, prior_alpha=settings.acceptance)
    controller.begin(Leads(least=0, most=MAX_LEAD))
    gamma = controller.choose()
    if gamma == 0:
        return RoundPlan(mode=RoundMode.PLAIN)
    mode = RoundMode.PIPELINED if controller.lead else RoundMode.SEQUENTIAL
    return RoundPlan(mode=mode, gamma=gamma, lead=controller.lead)


def _fixed_plans() -> dict[RoundMode, list[RoundPlan]]:
    gammas = range(1, MAX_GAMMA + 1)
    return {
        RoundMode.PLAIN: [RoundPlan(mode=RoundMode.PLAIN)],
        RoundMode.SEQUENTIAL: [RoundPlan(mode=RoundMode.SEQUENTIAL, gamma=gamma) for gamma in gammas],
        RoundMode.PIPELINED: [
            RoundPlan(mode=RoundMode.PIPELINED, gamma=gamma, lead=lead) for gamma in gammas for lead in _LEADS
        ],
    }


class _Trial:
    """One point while it is tried."""

    def __init__(
        self, point: GridPoint, num_tokens: int, num_texts: int, in_turn: dict[tuple[RoundPlan, int], float]
    ) -> None:
        self._point = point
        self._num_tokens = num_tokens
        self._num_texts = num_texts
        settings = simulation_settings(point, RoundPlan(mode=RoundMode.PLAIN), num_tokens=num_tokens, seed=0)
        self._model = speed_model(settings)
        self._choice = controllers_choice(settings)
        self._in_turn = in_turn
        """Rates that do not depend on contention, by plan and text."""
        self._overlapping: dict[tuple[RoundPlan, int], float] = {}

    def result(self) -> PointResult:
        """Try what is worth it."""
        choice = self._choice
        fixed_plans = _fixed_plans()
        most = max(self._promise(plan) for plans in fixed_plans.values() for plan in plans)
        draw = random.Random(repr(self._point))
        by_mode: dict[RoundMode, SimulatedPlan] = {}
        left_out = 0.0
        for mode, plans in fixed_plans.items():
            tried, others = self._divided(plans, _CONTENDS_ABOVE * most)
            if choice.mode is mode and choice not in tried:
                tried.append(choice)
            best = self._fastest(tried, kept=choice)
            by_mode[mode] = best
            for plan in draw.sample(others, min(1, len(others))):
                left_out = max(left_out, self._rate(plan, 0) / best.text_tokens_per_ms[0])
        return PointResult(point=self._point, by_mode=by_mode, choice=self._on_all_texts(choice), left_out=left_out)

    def _divided(self, plans: Sequence[RoundPlan], contending: float) -> tuple[list[RoundPlan], list[RoundPlan]]:
        """What is tried of a mode, and what is left out; few where even the best does not contend."""
        by_promise = sorted(plans, key=self._promise, reverse=True)
        best = self._promise(by_promise[0])
        num_tried = _NUM_TRIED if best >= contending else 1
        tried = [plan for plan in by_promise[:num_tried] if self._promise(plan) >= _TRIED_ABOVE * best]
        return tried, [plan for plan in plans if plan not in tried]

    def _fastest(self, plans: Sequence[RoundPlan], *, kept: RoundPlan) -> SimulatedPlan:
        least = _CLOSE_ABOVE * max(self._rate(plan, 0) for plan in plans)
        close = [plan for plan in plans if plan == kept or self._rate(plan, 0) >= least]
        return max((self._on_all_texts(plan) for plan in close), key=lambda simulated: simulated.tokens_per_ms)

    def _on_all_texts(self, plan: RoundPlan) -> SimulatedPlan:
        return SimulatedPlan(
            plan=plan,
            promised_tokens_per_ms=self._promise(plan),
            text_tokens_per_ms=tuple(self._rate(plan, text) for text in range(self._num_texts)),
        )

    def _promise(self, plan: RoundPlan) -> float:
        return self._model.tokens_per_ms(plan, self._point.acceptance)

    def _rate(self, plan: RoundPlan, text: int) -> float:
        rates = self._overlapping if plan.mode is RoundMode.PIPELINED else self._in_turn
        if (plan, text) not in rates:
            settings = simulation_settings(self._point, plan, num_tokens=self._num_tokens, seed=text)
            rates[plan, text] = simulate(plan.mode, settings).tokens_per_s / 1e3
        return rates[plan, text]
