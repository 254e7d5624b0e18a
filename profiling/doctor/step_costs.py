"""What the steps of a round cost on the lanes of a loaded pair, by a clock that the caller chooses.

Owns the timed calls. Knows nothing of verdicts.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch

from scheduler import Lane, expected_tokens

Clock = Callable[[], float]
"""Seconds."""

_FILLED = 48
"""Tokens in the caches before each call, as behind a short prompt."""
_MOST_GAMMA = 15


@dataclass(frozen=True, kw_only=True)
class StepCosts:
    """Medians, in milliseconds, while nothing else runs."""

    gamma: int
    step_ms: float
    """One token of the target."""
    verify_ms: float
    """gamma + 1 tokens of the target, in one call."""
    rollback_ms: float
    """Cutting the target's cache back behind that call."""
    draft_ms: float | None
    """One token of the draft model; None where none drafts."""

    @property
    def draft_ratio(self) -> float | None:
        """A draft step as a share of the target's."""
        return None if self.draft_ms is None else self.draft_ms / self.step_ms

    @property
    def extra_token_share(self) -> float:
        """What each further token of a verify costs, as a share of a step: 0 in parallel, 1 one after the other."""
        return (self.verify_ms / self.step_ms - 1) / self.gamma if self.gamma else 0.0


def expected_speedup(*, alpha: float, draft_ratio: float, extra_token_share: float) -> float:
    """Speed over plain decoding at the best gamma, in rounds that take turns.

    E(gamma, alpha) tokens for gamma draft steps and one verify (Leviathan et al., 2023,
    https://arxiv.org/abs/2211.17192, theorem 3.8, with a verify that may cost more than a step).
    """
    return max(
        expected_tokens(gamma, alpha) / (gamma * draft_ratio + 1 + gamma * extra_token_share)
        for gamma in range(1, _MOST_GAMMA + 1)
    )


async def measure_step_costs(target: Lane, draft: Lane | None, *, gamma: int, num_runs: int, clock: Clock) -> StepCosts:
    """Time the calls on the lanes' own streams, one lane after the other, and leave both caches empty."""
    widths = (1, gamma + 1)
    target_calls = target.stream.launch(
        lambda: _timed(target, widths, num_runs, clock), writes=target.buffers, label="time target"
    )
    await target.stream.record()
    times_ms, rollback_ms = target_calls.result()
    draft_ms = None
    if draft is not None:
        draft_calls = draft.stream.launch(
            lambda: _timed(draft, (1,), num_runs, clock), writes=draft.buffers, label="time draft"
        )
        await draft.stream.record()
        draft_ms = draft_calls.result()[0][1]
    return StepCosts(
        gamma=gamma,
        step_ms=times_ms[1],
        verify_ms=times_ms[gamma + 1],
        rollback_ms=rollback_ms,
        draft_ms=draft_ms,
    )


def _wait_for(device: torch.device) -> None:
    """Until a device has done what it was told; a CPU does it at once."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _timed(lane: Lane, widths: tuple[int, ...], num_runs: int, clock: Clock) -> tuple[dict[int, float], float]:
    """Median milliseconds by width, and of the roll-backs behind the widest."""
    lane.share(together=False)
    lane.roll_back(0)
    filled = max(0, min(_FILLED, lane.capacity - max(widths) - 1))
    calls_ms: dict[int, list[float]] = {width: [] for width in widths}
    rollbacks_ms: list[float] = []
    try:
        # In turn, so that a moment in which the machine is slow does not make one width look dear; the first is cold.
        for run in range(num_runs + 1):
            for width, own_ms in calls_ms.items():
                if lane.num_held < filled:
                    lane.feed([0] * (filled - lane.num_held), num_logits=0)
                started_s = clock()
                # Reading a value waits for a device that was only told what to do.
                lane.feed([0] * width, num_logits=width)[0, 0].item()
                fed_s = clock()
                lane.roll_back(filled)
                _wait_for(lane.model.device)
                rolled_back_s = clock()
                if run:
                    own_ms.append((fed_s - started_s) * 1e3)
                    if width == max(widths):
                        rollbacks_ms.append((rolled_back_s - fed_s) * 1e3)
    finally:
        lane.roll_back(0)
    medians = {width: max(1e-6, statistics.median(own_ms)) for width, own_ms in calls_ms.items()}
    return medians, statistics.median(rollbacks_ms)
