"""A loaded pair on virtual streams: its own tokens, in the time that its calls were measured to take.

Owns the placement of the lanes on a virtual device, and the price of each call. Shows what a schedule would come to if
the lanes did not disturb each other, or did so by a factor. Knows nothing of requests or recordings.

Calls run one after the other on the host's thread; the virtual clock then lets them take what calls of their width
took alone, with the threads that the lane has. Between two measured widths the price is interpolated. Launches without
a call (judging, settling, looking up) take no time.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from profiling.simulation import SimulationSettings
from runtime import Engine, LoadSettings, Placement, build_engine
from scheduler import BlockCosts, CostModel, Lane, ModelProposer, VirtualDevice, check_number

_WIDTHS = (1, 2, 3, 5, 9, 17, 64)
"""The widest is for prompts."""


class PricedCalls:
    """What the calls of a launch cost: lanes add to it, the virtual device takes it away."""

    def __init__(self) -> None:
        self._spent_ms = 0.0

    def charge(self, lane: Lane, *, contention: float) -> None:
        """Charge the lane's calls from now on, by the present estimates of its costs.

        Args:
            lane: its costs must have been measured.
            contention: what the lane itself shall believe its calls to cost beside the other lane, times as much as
                alone; how long they really take is found out by the device.
        """
        alone = BlockCosts(lane.costs.as_dict())
        together = BlockCosts(lane.costs_together.as_dict() or lane.costs.as_dict())

        def price(width: int, beside_another: bool) -> float:
            cost_ms = (together if beside_another else alone).estimate(width) or 0.0
            self._spent_ms += cost_ms
            return cost_ms * contention if beside_another else cost_ms

        believed_ms = {width: cost_ms * contention for width, cost_ms in together.as_dict().items()}
        lane.costs_together.calibrate(believed_ms)
        lane.price = price

    def take(self, stream: str, label: str, value: object) -> float:
        """Milliseconds of the calls since this was last asked; a `scheduler.CostModel` asks after each launch."""
        spent_ms, self._spent_ms = self._spent_ms, 0.0
        return spent_ms


async def build_virtual_engine(settings: LoadSettings, *, contention: float = 1.0) -> Engine:
    """Load a pair as `runtime.build_engine` does on a CPU, on streams of a virtual device.

    Args:
        settings: what to load.
        contention: how many times longer either lane's calls take while the other's run.

    Raises:
        ValueError: if the settings name a GPU, or the contention is below 1.
        SlipstreamError: if a model cannot be loaded or paired.
    """
    check_number("contention", contention, low=1.0, high=1e3, advice="1 is no slow-down")
    if settings.device not in ("auto", "cpu"):
        raise ValueError(
            f"virtual streams run models on the CPU, not on {settings.device!r}; leave the device out, or give cpu"
        )
    calls = PricedCalls()
    device = VirtualDevice(
        costs=CostModel(
            duration_ms=calls.take,
            contention={"target": contention, "draft": contention},
            host_latency_ms=SimulationSettings.host_latency_ms,
            call_ms=SimulationSettings.call_ms,
        )
    )
    engine = await build_engine(dataclasses.replace(settings, device="cpu"), rearrange=partial(_on_virtual, device))
    try:
        drafts = [source.lane for source in engine.proposers if isinstance(source, ModelProposer)]
        for lane in (engine.target, *drafts):
            await _measure(lane, beside_another=engine.draft_stream is not engine.target.stream)
            calls.charge(lane, contention=contention)
    except BaseException:
        await engine.close()
        raise
    return engine


def _on_virtual(device: VirtualDevice, placement: Placement) -> Placement:
    """The same lanes, threads and overlap on streams of that device."""
    placement.draft_stream.close()
    placement.target_stream.close()
    target_stream = device.stream("target")
    draft_stream = target_stream
    if placement.draft_stream is not placement.target_stream:
        draft_stream = device.stream("draft")
    return dataclasses.replace(placement, target_stream=target_stream, draft_stream=draft_stream)


async def _measure(lane: Lane, *, beside_another: bool) -> None:
    """Time more widths than loading does; with the threads of either case, but always alone."""
    lane.stream.launch(partial(lane.measure_costs, widths=_WIDTHS), writes=lane.buffers, label="measure")
    if beside_another:
        measure = partial(lane.measure_costs, together=True, widths=_WIDTHS)
        lane.stream.launch(measure, writes=lane.buffers, label="measure")
    await lane.stream.record()
