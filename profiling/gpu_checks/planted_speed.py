"""Tokens a second of plain, sequential and pipelined decoding at a planted acceptance, all on the device.

Owns the runs. Both models do their work; what they then say is scripted (`scripted_model`), so the text is known and
every token of it is checked.
"""

from __future__ import annotations

import dataclasses
import statistics

from profiling.gpu_checks.bench import GpuBench
from profiling.gpu_checks.check import Budget, Finding
from profiling.gpu_checks.rig import PLAIN, LoopKind, LoopPlan, LoopRig, NewStream, Output
from profiling.gpu_checks.scripted_model import ScriptedModel, draft_script, target_script
from profiling.gpu_checks.timing import Spread
from scheduler import DecodeRequest, SamplingSettings

_NUM_PROMPT_TOKENS = 64
_MARGIN = 64
"""Positions that a draft may run ahead."""
_WARM_TOKENS = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Case:
    acceptance: float
    """Of the draft; plain decoding has none, so 0."""
    plan: LoopPlan


class PlantedRuns:
    """A scripted target, and the rig of any plan at any acceptance."""

    def __init__(self, bench: GpuBench) -> None:
        """Write the target's script."""
        self._bench = bench
        self.pair = bench.large_pair()
        self._capacity = _NUM_PROMPT_TOKENS + bench.sizes.num_planted_tokens + _MARGIN
        # Ids that both models have.
        self._vocab_size = min(self.pair.target.vocab_size, self.pair.draft.vocab_size)
        self._script = target_script(self._capacity + _MARGIN, self._vocab_size, seed=1)
        self.target = ScriptedModel(self.pair.target, self._script)

    def request(self, *, max_tokens: int) -> DecodeRequest:
        """The one prompt there is."""
        return DecodeRequest(
            prompt_ids=tuple(self._script[:_NUM_PROMPT_TOKENS]),
            settings=SamplingSettings(temperature=0.0),
            max_tokens=max_tokens,
        )

    def draft(self, acceptance: float) -> ScriptedModel:
        """A draft that is right that often."""
        script = draft_script(self._script, self._vocab_size, acceptance=acceptance, seed=2)
        return ScriptedModel(self.pair.draft, script)

    def rig(self, plan: LoopPlan, acceptance: float, *, wrap: NewStream = lambda stream: stream) -> LoopRig:
        """A loop over both."""
        return LoopRig(self._bench, self.target, self.draft(acceptance), plan, capacity=self._capacity, wrap=wrap)

    def is_right(self, output: Output) -> bool:
        """Whether the text is the script's."""
        start = _NUM_PROMPT_TOKENS
        return list(output.token_ids) == self._script[start : start + len(output.token_ids)]


async def measure_planted(bench: GpuBench, budget: Budget) -> Finding:
    """Every system at every acceptance, in turn; the text must be the script's."""
    sizes = bench.sizes
    runs = PlantedRuns(bench)
    plans = (
        LoopPlan(kind=LoopKind.SEQUENTIAL, gamma=sizes.gamma),
        LoopPlan(kind=LoopKind.PIPELINED, gamma=sizes.gamma, lead=sizes.lead),
    )
    cases = [_Case(acceptance=0.0, plan=PLAIN)]
    cases += [_Case(acceptance=acceptance, plan=plan) for acceptance in sizes.acceptances for plan in plans]
    outputs: dict[_Case, list[Output]] = {case: [] for case in cases}
    faults: list[str] = []
    request = runs.request(max_tokens=sizes.num_planted_tokens)
    for repeat in budget.spend(range(1 + sizes.num_planted_repeats), "repeats", least=2):
        for case in cases:
            with runs.rig(case.plan, case.acceptance) as rig:
                await rig.run(runs.request(max_tokens=_WARM_TOKENS))
                if not repeat:  # the first round of all cases only warms up
                    continue
                output = await rig.run(request)
                await rig.idle()
            outputs[case].append(output)
            if not runs.is_right(output):
                faults.append(f"{case.plan} at acceptance {case.acceptance}: the text is not the script's")
    speeds = {case: Spread.of([output.tokens_per_s for output in own]) for case, own in outputs.items()}
    plain = speeds[cases[0]].median
    rows = [_row(case, outputs[case], speeds[case], plain) for case in cases]
    return Finding(summary=_in_words(cases, speeds, plain), figures={"rows": rows}, faults=tuple(faults))


def _row(case: _Case, outputs: list[Output], speed: Spread, plain: float) -> dict[str, object]:
    num_proposed = sum(output.num_proposed for output in outputs)
    num_guessed = sum(report.hit is not None for output in outputs for report in output.reports)
    return {
        "system": str(case.plan),
        "planted_acceptance": case.acceptance,
        "tokens_per_s": dataclasses.asdict(speed),
        "speed_up": speed.median / plain,
        "accepted_share": sum(output.num_accepted for output in outputs) / num_proposed if num_proposed else None,
        "hit_share": sum(output.num_hits for output in outputs) / num_guessed if num_guessed else None,
        "tokens_a_round": statistics.fmean(len(output.token_ids) / len(output.reports) for output in outputs),
    }


def _in_words(cases: list[_Case], speeds: dict[_Case, Spread], plain: float) -> str:
    by_acceptance: dict[float, list[str]] = {}
    for case in cases[1:]:
        by_acceptance.setdefault(case.acceptance, []).append(f"{speeds[case].median / plain:.2f}")
    parts = [f"{acceptance:g}: {' / '.join(own)}" for acceptance, own in by_acceptance.items()]
    return f"plain {plain:.1f} tokens/s; sequential / pipelined speed-up at acceptance " + ", ".join(parts)
