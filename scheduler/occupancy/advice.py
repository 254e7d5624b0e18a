"""What the scheduler makes of a reading: whether work fits, and whether to run both lanes at once.

Owns both rules. Knows nothing of NVML.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.errors import InsufficientMemoryError
from scheduler.occupancy.field import OccupancyField
from scheduler.occupancy.reading import Occupancy
from scheduler.settings import check_integer, check_number

BUSY_PERCENT = 20.0
"""A desktop takes a few per cent; from here on kernels of others stand in the way of ours often enough to matter."""

_IDLE_WINDOW_S = 1.0
"""NVML averages utilisation over up to a second: so long must this process have been idle for it to be others'."""


@dataclass(frozen=True, kw_only=True)
class OverlapAdvice:
    """Whether draft and target may run at the same time."""

    allowed: bool
    reason: str
    """The evidence that decided, or what is not known."""
    known: bool
    """Whether there is evidence; where there is none, overlap is allowed."""


def check_admission(required_bytes: int, occupancy: Occupancy) -> None:
    """Refuse what would not fit into the device's free memory; where that is unknown, let it pass.

    Args:
        required_bytes: what is still to be allocated.
        occupancy: a reading of the device.

    Raises:
        TypeError, ValueError: if `required_bytes` is no integer or negative.
        InsufficientMemoryError: states what is needed, what is free and who has the rest.
    """
    check_integer("required_bytes", required_bytes, low=0, advice="it is what is still to be allocated")
    free = occupancy.memory_free_bytes
    if free.value is None or required_bytes <= free.value:
        return
    others = occupancy.memory_other_bytes.value
    way_out = "choose a shorter context, a smaller model or smaller weights"
    if others:
        way_out = f"other processes hold {_mebibytes(others)}: end them, or {way_out}"
    raise InsufficientMemoryError(
        f"the models need about {_mebibytes(required_bytes)}, but {_mebibytes(free.value)} are free on "
        f"{occupancy.device_name.value or 'the device'} ({free.reason}); {way_out}"
    )


def overlap_advice(occupancy: Occupancy, *, busy_percent: float = BUSY_PERCENT) -> OverlapAdvice:
    """Say whether draft and target should share the device at the same time.

    Others' work counts, this process's own does not. Two figures tell them apart: the shares of time by process, and
    utilisation in a reading taken while this process was idle. Where neither is known, overlap stays allowed.

    Args:
        occupancy: a reading of the device.
        busy_percent: the share of time from which others' work turns overlap off.

    Raises:
        TypeError, ValueError: if `busy_percent` is no number or not in (0, 100].
    """
    check_number(
        "busy_percent", busy_percent, low=0.0, high=100.0, low_open=True, advice="20 leaves a desktop's work unnoticed"
    )
    share, busy = occupancy.other_sm_percent, _busy_while_idle(occupancy)
    if share.value is not None and share.value >= busy_percent:
        return _advice(False, f"other processes' kernels run {share.value:.0f} % of the time ({share.reason})")
    if busy.value is not None and busy.value >= busy_percent:
        return _advice(False, f"the device was {busy.value:.0f} % busy while this process was idle ({busy.reason})")
    if share.value is not None:
        return _advice(True, f"other processes' kernels run {share.value:.0f} % of the time ({share.reason})")
    if busy.value is not None:
        return _advice(True, f"the device was {busy.value:.0f} % busy while this process was idle ({busy.reason})")
    number = occupancy.num_other_processes
    if number.value == 0:
        return _advice(True, f"no other process is on the device ({number.reason})")
    if number.value is not None:
        return _advice(
            True,
            f"{number.value} other process(es) on the device, but not known whether they work: {share.reason}",
            known=False,
        )
    return _advice(True, f"not known whether others use the device: {number.reason}", known=False)


def _busy_while_idle(occupancy: Occupancy) -> OccupancyField[float]:
    idle_s = occupancy.own_idle_s
    if idle_s is None or idle_s < _IDLE_WINDOW_S:
        return OccupancyField.unknown("this process was working")
    return occupancy.gpu_percent


def _advice(allowed: bool, reason: str, *, known: bool = True) -> OverlapAdvice:
    return OverlapAdvice(allowed=allowed, reason=reason, known=known)


def _mebibytes(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):,.0f} MiB"
