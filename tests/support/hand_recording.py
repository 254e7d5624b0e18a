"""Recordings made by hand, of which every figure is known."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from scheduler import LaneName, LaunchKind, LaunchOutcome, LaunchSpan, Recording, RoundSpan


def launch_span(number: int, label: str, **changes: Any) -> LaunchSpan:
    """A launch of the target's lane that ran from 1001 to 1002 ms, but for what is changed."""
    settings: dict[str, Any] = {
        "lane": LaneName.TARGET,
        "stream": LaneName.TARGET,
        "queued_ms": 1000.0,
        "start_ms": 1001.0,
        "end_ms": 1002.0,
        "outcome": LaunchOutcome.RAN,
        "round_number": 0,
        "generation": None,
        "num_tokens": 1,
        "enqueue_ms": None,
    }
    return LaunchSpan(number=number, label=label, **{**settings, **changes})


def round_span(number: int = 0, **changes: Any) -> RoundSpan:
    """A plain round from 1000 to 1006 ms, but for what is changed."""
    settings: dict[str, Any] = {
        "start_ms": 1000.0,
        "verdict_ms": 1006.0,
        "end_ms": 1007.0,
        "drafts": (),
        "gamma": None,
        "lead": None,
        "num_proposed": 0,
        "num_accepted": 0,
        "num_tokens": 1,
        "hit": None,
        "num_discarded": 0,
        "together": False,
        "source": 0,
        "draft_ms": 0.0,
        "verify_ms": 1.0,
    }
    return RoundSpan(number=number, **{**settings, **changes})


@dataclass
class HandRecording:
    """Collects launches and rounds; numbers follow from the order in which they come."""

    draft_stream: str = "draft"
    launches: list[LaunchSpan] = field(default_factory=list)
    rounds: list[RoundSpan] = field(default_factory=list)

    def launch(
        self,
        lane: str,
        label: str,
        ran: tuple[float, float] | None,
        *,
        queued_ms: float | None = None,
        tokens: int | None = None,
        of_round: int | None = None,
        outcome: LaunchOutcome = LaunchOutcome.RAN,
        enqueue_ms: float | None = None,
    ) -> int:
        """A launch that ran between two times, or never; returns its number."""
        start_ms, end_ms = ran or (None, None)
        self.launches.append(
            launch_span(
                len(self.launches),
                label,
                lane=lane,
                stream=lane if lane == LaneName.TARGET else self.draft_stream,
                queued_ms=(start_ms or 0.0) if queued_ms is None else queued_ms,
                start_ms=start_ms,
                end_ms=end_ms,
                outcome=outcome,
                round_number=of_round,
                num_tokens=tokens,
                enqueue_ms=enqueue_ms,
            )
        )
        return self.launches[-1].number

    def draft(self, start_ms: float, end_ms: float, *, tokens: int = 1, of_round: int | None = None) -> int:
        """A launch that drafted; returns its number."""
        return self.launch("draft", LaunchKind.DRAFT, (start_ms, end_ms), tokens=tokens, of_round=of_round)

    def round(
        self,
        start_ms: float,
        verdict_ms: float,
        *,
        verify: tuple[float, float] | None = None,
        queued_ms: float | None = None,
        judged_ms: float | None = None,
        settle: tuple[float, float] | None = None,
        drafts: tuple[int, ...] = (),
        proposed: int = 0,
        accepted: int = 0,
        hit: bool | None = None,
        discarded: int = 0,
        read: int | None = None,
        enqueue_ms: float | None = None,
    ) -> int:
        """A round with its launches; the target is through with it at `judged_ms`, else when it has read the block."""
        number = self.rounds[-1].number + 1 if self.rounds else 0
        if verify is not None:
            width = 1 + proposed if read is None else read
            self.launch(
                LaneName.TARGET, LaunchKind.VERIFY, verify, queued_ms=queued_ms, tokens=width, of_round=number,
                enqueue_ms=enqueue_ms,
            )  # fmt: skip
            judge = (verify[1], verify[1] if judged_ms is None else judged_ms)
            self.launch("target", LaunchKind.JUDGE, judge, queued_ms=queued_ms, of_round=number)
        if settle is not None:
            self.launch("draft", LaunchKind.SETTLE, settle, of_round=number)
        self.rounds.append(
            round_span(
                number,
                start_ms=start_ms,
                verdict_ms=verdict_ms,
                end_ms=verdict_ms,
                drafts=drafts,
                num_proposed=proposed,
                num_accepted=accepted,
                num_tokens=accepted + 1,
                hit=hit,
                num_discarded=discarded,
            )
        )
        return number

    def build(self, *, num_dropped: int = 0) -> Recording:
        """What was collected."""
        ends_ms = [span.end_ms for span in self.launches if span.end_ms is not None]
        return Recording(
            launches=tuple(self.launches),
            rounds=tuple(self.rounds),
            start_ms=0.0,
            end_ms=max([*ends_ms, *(span.end_ms for span in self.rounds), 0.0]),
            num_dropped=num_dropped,
        )


def hit_and_miss(*, offset_ms: float = 0.0) -> Recording:
    """A prompt until 10 ms, then a hit, a miss with its rollback, and a round without a guess until 88 ms.

    The target reads for 20 ms each time and judges for 1; after the hit it waits for 3 ms, after the miss for 11.
    """
    hand = HandRecording()

    def at(start_ms: float, end_ms: float) -> tuple[float, float]:
        return start_ms + offset_ms, end_ms + offset_ms

    hand.launch("target", LaunchKind.RESUME, at(0, 10))
    first, guess = hand.draft(*at(2, 6)), hand.draft(*at(6, 9))
    hand.round(
        *at(10, 32), verify=at(10, 30), judged_ms=31 + offset_ms, settle=at(31, 31.5), drafts=(first, guess),
        proposed=1, accepted=1, hit=True, read=5,
    )  # fmt: skip
    ahead = tuple(hand.draft(*at(start, start + 4), of_round=0) for start in (10, 14, 18))
    hand.round(
        *at(32.5, 57), verify=at(34, 54), queued_ms=33 + offset_ms, judged_ms=55 + offset_ms, settle=at(55, 56),
        drafts=ahead, proposed=2, hit=False, discarded=2,
    )  # fmt: skip
    for start in (34, 38):
        hand.draft(*at(start, start + 4), of_round=1)
    hand.launch("draft", LaunchKind.DRAFT, None, queued_ms=33 + offset_ms, outcome=LaunchOutcome.SKIPPED)
    anew = hand.draft(*at(56, 66), of_round=1)
    hand.round(
        *at(58, 88), verify=at(66, 86), queued_ms=58 + offset_ms, judged_ms=87 + offset_ms, drafts=(anew,),
        proposed=1, accepted=1,
    )  # fmt: skip
    return hand.build()
