"""What a schedule would do on given costs: `python -m profiling.timeline`.

Owns options and output. The loops are real and the clock is virtual (`profiling.simulation`), so it
takes seconds whatever the costs, and no model is needed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict

from profiling.drawing import draw_timeline
from profiling.program import run_program
from profiling.simulation import Simulation, SimulationSettings, simulate
from scheduler import RoundMode

_HELP = {
    "draft_ms": "one call of the draft",
    "verify_ms": "one call of the target with one token",
    "extra_token_ms": "each further token of such a call",
    "draft_contention": "how many times longer a draft's call takes while the target runs",
    "target_contention": "how many times longer a target's call takes while the draft runs",
    "acceptance": "probability that a drafted token is right",
    "gamma": "most tokens of one block",
    "max_lead": "most tokens drafted past a block",
    "num_awaited": "proposals that the target waits for where fewer are ready",
    "num_tokens": "tokens of the request",
    "host_latency_ms": "from an event to the line that waits for it",
    "call_ms": "the host's time for each launch, record, wait or look",
    "seed": "chooses where the draft is right",
}
_COLUMNS_PER_VERIFY = 12
_MARGIN = 8


def format_simulation(simulation: Simulation, *, show_ms: float, width: int) -> str:
    """One mode as a person reads it: the drawing of its first `show_ms`, and the totals of all of it."""
    summary = simulation.summary
    share = {name: f"{name} {_percent(busy_ms, summary.span_ms)}" for name, busy_ms in summary.busy_ms.items()}
    counts = f"{simulation.num_tokens} tokens in {simulation.num_rounds} rounds, {simulation.total_ms:.1f} ms"
    return "\n".join(
        [
            f"{simulation.mode}: {simulation.tokens_per_s:.1f} tokens/s ({counts})",
            draw_timeline(simulation.timeline, width=width, end_ms=min(show_ms, simulation.total_ms)),
            f"busy: {', '.join(share[name] for name in sorted(share))}; both "
            f"{_percent(summary.overlap_ms, summary.span_ms)}, neither {_percent(summary.idle_ms, summary.span_ms)}",
            f"proposed {simulation.num_proposed}, accepted {simulation.num_accepted}, hits {simulation.num_hits}, "
            f"discarded {simulation.num_discarded}",
        ]
    )


def _percent(part_ms: float, whole_ms: float) -> str:
    return f"{part_ms / whole_ms:.0%}"


def _parse(arguments: Sequence[str] | None) -> tuple[SimulationSettings, argparse.Namespace]:
    parser = argparse.ArgumentParser(
        prog="python -m profiling.timeline",
        description="Decode on a simulated machine, and draw what its two streams do.",
    )
    parser.add_argument(
        "--mode",
        choices=[*RoundMode, "both"],
        default="both",
        help="plain, sequential, pipelined, or the last two (default: both)",
    )
    fields = [field for field in dataclasses.fields(SimulationSettings) if field.name in _HELP]
    for field in fields:
        parser.add_argument(
            f"--{field.name.replace('_', '-')}",
            type=int if field.default is None else type(field.default),
            default=field.default,
            help=f"{_HELP[field.name]} (default: {'gamma' if field.default is None else field.default})",
        )
    parser.add_argument("--show-ms", type=float, help="draw that much (default: about as many verifies as fit)")
    parser.add_argument("--width", type=int, help="columns of the drawing (default: the terminal's)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON instead, with every launch")
    chosen = parser.parse_args(arguments)
    try:
        settings = SimulationSettings(**{field.name: getattr(chosen, field.name) for field in fields})
    except ValueError as error:
        parser.error(str(error))
    if chosen.width is None:
        chosen.width = max(shutil.get_terminal_size().columns - _MARGIN, 20)
    if chosen.width < 1:
        parser.error(f"--width must be at least 1, got {chosen.width}")
    if chosen.show_ms is None:
        chosen.show_ms = chosen.width / _COLUMNS_PER_VERIFY * settings.verify_ms
    if not chosen.show_ms > 0:
        parser.error(f"--show-ms must be above 0, got {chosen.show_ms}")
    return settings, chosen


def main(arguments: Sequence[str] | None = None) -> int:
    """Simulate, then draw or print JSON."""
    settings, chosen = _parse(arguments)
    modes = [RoundMode.SEQUENTIAL, RoundMode.PIPELINED] if chosen.mode == "both" else [RoundMode(chosen.mode)]
    simulations = [simulate(mode, settings) for mode in modes]
    if chosen.json:
        print(json.dumps({"settings": asdict(settings), "runs": [asdict(simulation) for simulation in simulations]}))
    else:
        print("\n\n".join(format_simulation(run, show_ms=chosen.show_ms, width=chosen.width) for run in simulations))
    return 0


if __name__ == "__main__":
    run_program(main)
