"""Recordings of loops, and what every one of them must be."""

from __future__ import annotations

from typing import Any

from scheduler import CostModel, LaunchKind, LaunchOutcome, Recording, SpanRecorder, Stage
from tests.support.loops import NewProposer, Output, model_proposer, request_of, rigged
from tests.support.sequential_cases import PROMPT, new_model
from tests.support.table_model import TableModel

REQUEST = request_of(PROMPT, 40, temperature=1.0, seed=2)
COSTS = CostModel(duration_ms=lambda stream, label, value: {"verify": 20.0, "draft": 3.0}.get(label, 0.0))


def half_right() -> Any:
    """Proposals of a draft model that is right about every other token or so."""
    model = new_model(1, sharpness=1.2)
    model.tables[0, 3:6] = new_model(2).tables[0, 3:6]
    return model_proposer(model, 4)


class FakeMarkers:
    """Notes what is started and ended."""

    def __init__(self) -> None:
        self.started: list[tuple[str, Stage, int]] = []
        self.num_open = 0

    def start(self, label: str, *, stage: Stage, payload: int) -> Any:
        self.started.append((label, stage, payload))
        self.num_open += 1
        ended: list[bool] = []

        def end() -> None:
            assert not ended, f"{label} {payload} was ended twice"
            ended.append(True)
            self.num_open -= 1

        return end


async def recorded(
    target: TableModel, request: Any, new_proposers: list[NewProposer], *, markers: Any = None, **options: Any
) -> tuple[Output, Recording]:
    """One request and its recording."""
    recorder = SpanRecorder()
    async with rigged(target, new_proposers, spans=recorder, **options) as rig:
        recorder.start(markers)
        output = await rig.run(request)
        await rig.idle()
        return output, recorder.stop()


def check_recording(recording: Recording, output: Output) -> None:
    """What holds of any request that ran to its end, on any stream, in any mode."""
    assert recording.num_dropped == 0
    launches = {span.number: span for span in recording.launches}
    assert list(launches) == list(range(len(launches)))
    _check_times(recording)
    rounds = recording.rounds
    assert [span.number for span in rounds] == list(range(len(output.reports)))
    for span, report in zip(rounds, output.reports, strict=True):
        assert (span.num_proposed, span.num_accepted) == (report.num_proposed, report.num_accepted)
        assert (span.num_tokens, span.hit) == (len(report.token_ids), report.hit)
        assert (span.num_discarded, span.together) == (report.num_discarded, report.together)
        own = [
            launch for launch in recording.launches if launch.lane == "target" and launch.round_number == span.number
        ]
        assert [launch.label for launch in own if launch.stage is Stage.VERIFY] == [LaunchKind.VERIFY, LaunchKind.JUDGE]
        verify, judge = own[:2]
        if span.number > 0:
            assert verify.num_tokens == span.num_proposed + 1
        assert verify.start_ms is not None
        assert judge.end_ms is not None
        assert span.start_ms <= verify.queued_ms <= verify.start_ms
        assert judge.end_ms <= span.verdict_ms <= span.end_ms
        drafts = [launches[number] for number in span.drafts]
        assert all(draft.lane == "draft" and draft.stage is Stage.DRAFT for draft in drafts)
        assert sum(draft.num_tokens or 0 for draft in drafts) >= span.num_proposed
        assert all(draft.outcome is LaunchOutcome.RAN and draft.end_ms <= judge.end_ms for draft in drafts)
    settles = [span for span in recording.launches if span.label == LaunchKind.SETTLE]
    assert [span.round_number for span in settles] == ([span.number for span in rounds] if settles else [])


def _check_times(recording: Recording) -> None:
    ends_ms: dict[str, float] = {}
    for span in recording.launches:
        assert recording.start_ms <= span.queued_ms <= recording.end_ms
        if span.outcome is LaunchOutcome.RAN:
            assert span.start_ms is not None
            assert span.end_ms is not None
            assert ends_ms.get(span.stream, span.queued_ms) <= span.start_ms <= span.end_ms <= recording.end_ms
            assert span.queued_ms <= span.start_ms
            ends_ms[span.stream] = span.end_ms
        else:
            assert (span.start_ms, span.end_ms) == (None, None)
