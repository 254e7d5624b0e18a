"""The doctor on pairs that are slow, by clocks that a test sets: each reason is found, and a good pair has none."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from profiling.doctor.check import CannotTell, Finding, Verdict
from profiling.doctor.event_loop import FAIL_SHARE, check_event_loop, judge_lag
from profiling.doctor.rollback import addresses_in
from profiling.doctor.speed import Limits, judge_speedup
from profiling.doctor.step_costs import StepCosts, expected_speedup
from profiling.gpu_checks.host_driver import HostDriver
from profiling.prompts import PromptKind
from runtime import Mode
from runtime.engine import decoding_loops
from scheduler import CudaStream, Lane
from tests.support.doctor_pairs import LITTLE, diagnose, found, known_pair, pair_of, turn_of
from tests.support.fake_machine import FakeClock
from tests.support.table_model import TableCache, TableModel
from tests.support.table_runtime import VOCAB_SIZE, build_rig, similar_draft, table_target

PARALLEL_MS = 10.0


class ClockedModel(TableModel):
    """A table whose calls, and cuts of its cache, take time on a clock that nothing else moves."""

    def __init__(
        self,
        clock: FakeClock,
        cost_ms: Callable[[int], float],
        *,
        rollback_ms: float = 0.0,
        seed: int = 5,
        name: str = "table",
    ) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=2, seed=seed, sharpness=3.0, name=name)
        self._clock, self._cost_ms, self._rollback_ms = clock, cost_ms, rollback_ms

    def new_cache(self, capacity: int) -> TableCache:
        clock, rollback_ms = self._clock, self._rollback_ms

        class SlowToCut(TableCache):
            def rollback(self, length: int) -> None:
                clock.now_s += rollback_ms / 1e3
                super().rollback(length)

        return SlowToCut(capacity)

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        self._clock.now_s += self._cost_ms(len(token_ids_T)) / 1e3
        return super().forward(token_ids_T, cache, num_logits=num_logits)


def parallel(width: int) -> float:
    """What a machine with arithmetic to spare takes."""
    return PARALLEL_MS + 0.2 * width


def clocked(
    *names: str,
    target_ms: Callable[[int], float] = parallel,
    draft_ms: Callable[[int], float] = lambda width: PARALLEL_MS / 15,
    rollback_ms: float = 0.0,
) -> list[Finding]:
    """What checks find of a pair with these costs."""
    clock = FakeClock()
    target = ClockedModel(clock, target_ms, rollback_ms=rollback_ms)
    draft = ClockedModel(clock, draft_ms, name="draft")
    return diagnose(pair_of(build_rig(target, draft, mode=Mode.AUTO), clock=clock), *names)


class TestSteps:
    def test_a_good_pair(self) -> None:
        findings = clocked("draft-size", "verify-cost", "rollback")
        assert [finding.verdict for finding in findings] == [Verdict.OK] * 3, findings
        assert findings[0].figures["time_share"] == pytest.approx(10 / 15 / 10.2)
        assert findings[1].figures["verify_ms"] == pytest.approx(11.0)

    def test_a_draft_as_large_as_its_target(self) -> None:
        (finding,) = clocked("draft-size", draft_ms=parallel)
        assert finding.verdict is Verdict.WARN
        assert "takes 1.00 of a target step" in finding.measured
        assert "smaller draft" in finding.advice

    @pytest.mark.parametrize(("token_ms", "verdict"), [(1.0, Verdict.FAIL), (0.6, Verdict.WARN), (0.2, Verdict.OK)])
    def test_a_verify_that_is_serial(self, token_ms: float, verdict: Verdict) -> None:
        (finding,) = clocked("verify-cost", target_ms=lambda width: PARALLEL_MS * (1 + token_ms * (width - 1)))
        assert finding.verdict is verdict
        assert finding.figures["extra_token_share"] == pytest.approx(token_ms)

    @pytest.mark.parametrize(("rollback_ms", "verdict"), [(8.0, Verdict.FAIL), (1.0, Verdict.WARN), (0.01, Verdict.OK)])
    def test_a_cache_that_copies_on_a_rejection(self, rollback_ms: float, verdict: Verdict) -> None:
        (finding,) = clocked("rollback", rollback_ms=rollback_ms)
        assert finding.verdict is verdict
        assert finding.figures["rollback_ms"] == pytest.approx(rollback_ms)

    def test_look_ups_have_no_size(self) -> None:
        pair = pair_of(build_rig(table_target(), with_ngram=True, mode=Mode.AUTO))
        size, acceptance, verify = diagnose(pair, "draft-size", "acceptance", "verify-cost")
        assert size.verdict is acceptance.verdict is Verdict.SKIPPED
        assert "look-ups" in size.measured
        assert verify.verdict is not Verdict.SKIPPED


class TensorCache(TableCache):
    """Keeps a tensor beside the tokens, as real caches do."""

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.layers = [{"keys": torch.zeros(capacity, 4)}]


class CopyingCache(TensorCache):
    """Cuts the tensor itself, which means another one."""

    def rollback(self, length: int) -> None:
        super().rollback(length)
        self.layers[0]["keys"] = self.layers[0]["keys"].clone()


class CachedModel(TableModel):
    """A table with a cache of some kind."""

    def __init__(self, kind: type[TableCache], **settings: Any) -> None:
        super().__init__(vocab_size=VOCAB_SIZE, order=2, seed=5, sharpness=3.0, **settings)
        self._kind = kind

    def new_cache(self, capacity: int) -> TableCache:
        return self._kind(capacity)


class TestCacheAddresses:
    @pytest.mark.parametrize(
        ("target", "draft", "verdict", "said"),
        [
            (TensorCache, TensorCache, Verdict.OK, "same addresses"),
            (CopyingCache, TensorCache, Verdict.FAIL, "the cache of target moved"),
            (TensorCache, CopyingCache, Verdict.FAIL, "the cache of draft moved"),
            (TableCache, TableCache, Verdict.SKIPPED, "hold no tensors"),
        ],
    )
    def test_caches(self, target: type[TableCache], draft: type[TableCache], verdict: Verdict, said: str) -> None:
        stranger = CachedModel(draft, name="draft")
        stranger.tables = table_target(seed=99).tables
        (finding,) = diagnose(pair_of(build_rig(CachedModel(target), stranger, mode=Mode.AUTO)), "cache-addresses")
        assert finding.verdict is verdict
        assert said in finding.measured
        if verdict is Verdict.OK:
            assert finding.figures["num_rejected"] > 0

    def test_memory_is_found_wherever_it_is_held(self) -> None:
        first, second = torch.zeros(3), torch.zeros(4)
        cache = TensorCache(2)
        cache.more = (first, [first[1:]], {"deep": [second]})  # type: ignore[attr-defined]  # any attribute
        assert addresses_in(cache) == {
            (first.data_ptr(), 12),
            (second.data_ptr(), 16),
            (cache.layers[0]["keys"].data_ptr(), 32),
        }


class TestAcceptance:
    def test_a_draft_that_is_never_right(self) -> None:
        rig = build_rig(table_target(), table_target(seed=99, name="draft"), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "acceptance")
        assert finding.verdict is Verdict.WARN
        # Of the code the draft is still reading the prompt.
        assert "chat, copy text take a draft" in finding.advice

    def test_a_draft_that_is_always_right(self) -> None:
        rig = build_rig(table_target(), table_target(name="draft"), mode=Mode.AUTO)
        (finding,) = diagnose(pair_of(rig), "acceptance")
        assert finding.verdict is Verdict.OK
        assert "code 100% of" in finding.measured


COSTS = StepCosts(gamma=4, step_ms=10.0, verify_ms=11.0, rollback_ms=0.001, draft_ms=0.6)
FOUR_OF_FIVE = (2, 1, 1, 1, 9)
"""Blocks of four by their accepted tokens."""
ONE_OF_FIVE = (12, 2, 0, 0, 0)


def speeds(
    *,
    auto_ms: float,
    pipelined_ms: float = 8.0,
    again_ms: float | None = None,
    histogram: tuple[int, ...] = FOUR_OF_FIVE,
    costs: StepCosts = COSTS,
) -> tuple[Finding, Finding]:
    """What is found where plain decoding takes 10 ms a token and sequential rounds 8."""
    tpot_ms = {Mode.PLAIN: 10.0, Mode.SEQUENTIAL: 8.0, Mode.PIPELINED: pipelined_ms, Mode.AUTO: auto_ms}
    turns = [turn_of(tpot_ms, kind=kind, histogram=histogram, again_ms=again_ms) for kind in PromptKind]
    target = table_target()
    rig = build_rig(target, similar_draft(target), mode=Mode.AUTO)
    overlap, speedup = diagnose(known_pair(rig, turns, costs), "overlap", "speed-up")
    return overlap, speedup


class TestSpeed:
    def test_a_pair_that_pays(self) -> None:
        overlap, speedup = speeds(auto_ms=5.0, pipelined_ms=7.0)
        assert overlap.verdict is speedup.verdict is Verdict.OK
        assert speedup.measured.startswith("auto is 2.00 times as fast")
        assert overlap.measured.startswith("pipelined rounds are 1.14 times as fast")

    def test_overlap_that_does_not_pay(self) -> None:
        overlap, _ = speeds(auto_ms=5.0, pipelined_ms=10.0)
        assert overlap.verdict is Verdict.WARN
        assert "mode at auto" in overlap.advice

    def test_speculation_that_does_harm(self) -> None:
        _, speedup = speeds(auto_ms=11.0)
        assert speedup.verdict is Verdict.FAIL
        assert "does harm" in speedup.advice
        assert "decided: as was planted" in speedup.advice

    @pytest.mark.parametrize(
        ("histogram", "costs", "limit"),
        [
            (ONE_OF_FIVE, COSTS, "the acceptance of 0.12 a token limits it most"),
            (FOUR_OF_FIVE, dataclasses.replace(COSTS, draft_ms=7.0), "the draft's cost of 0.70 steps a token"),
            (FOUR_OF_FIVE, dataclasses.replace(COSTS, verify_ms=42.0), "cost of 0.80 steps for each further token"),
        ],
    )
    def test_what_limits_a_small_gain(self, histogram: tuple[int, ...], costs: StepCosts, limit: str) -> None:
        _, speedup = speeds(auto_ms=9.0, histogram=histogram, costs=costs)
        assert speedup.verdict is Verdict.WARN
        assert limit in speedup.advice
        assert "get " in speedup.advice

    def test_nothing_proposed(self) -> None:
        _, speedup = speeds(auto_ms=10.0, histogram=())
        assert speedup.verdict is Verdict.WARN
        assert "nothing was proposed" in speedup.advice

    def test_the_foremost_limit_is_the_one_whose_cure_brings_most(self) -> None:
        limits = Limits(alpha=0.3, draft_ratio=0.4, extra_token_share=0.02)
        name, without, _ = limits.foremost()
        cures = {
            "acceptance": expected_speedup(alpha=0.8, draft_ratio=0.4, extra_token_share=0.02),
            "draft": expected_speedup(alpha=0.3, draft_ratio=0.05, extra_token_share=0.02),
        }
        assert without == max(cures.values())
        assert max(cures, key=lambda one: cures[one]) in name
        assert judge_speedup(0.96, limits, noise=0.0)[0] is Verdict.WARN
        assert judge_speedup(0.94, limits, noise=0.0)[0] is Verdict.FAIL

    def test_harm_has_to_stand_out_from_noise(self) -> None:
        assert speeds(auto_ms=11.0, again_ms=10.5)[1].verdict is Verdict.FAIL
        # A machine on which plain decoding takes 10 ms now and 13 then, 11.5 in the mean.
        _, noisy = speeds(auto_ms=13.0, again_ms=13.0)
        assert noisy.verdict is Verdict.WARN
        assert "which differs from itself by 30%" in noisy.measured
        assert noisy.figures["median"] == pytest.approx(11.5 / 13)

    def test_nothing_overlaps_on_one_stream(self) -> None:
        rig = build_rig(table_target(), table_target(name="draft"), mode=Mode.SEQUENTIAL)
        (finding,) = diagnose(pair_of(rig), "overlap")
        assert finding.verdict is Verdict.SKIPPED

    def test_without_a_draft_there_is_no_speed_up(self) -> None:
        overlap, speedup = diagnose(pair_of(build_rig(table_target(), mode=Mode.AUTO)), "overlap", "speed-up")
        assert overlap.verdict is speedup.verdict is Verdict.SKIPPED
        assert speedup.measured == "there is no draft"


class SlowModel(TableModel):
    """Takes its time on whichever thread it is called."""

    def forward(self, token_ids_T: torch.Tensor, cache: TableCache, *, num_logits: int) -> torch.Tensor:
        if num_logits:
            time.sleep(0.03)
        return super().forward(token_ids_T, cache, num_logits=num_logits)


class TestEventLoop:
    def test_work_on_the_loop_is_noticed(self) -> None:
        # As on a GPU, a launch runs where it is made; here it also computes there.
        rig = build_rig(table_target(), mode=Mode.AUTO)
        stream = CudaStream("target", HostDriver(), timing=True)
        model = SlowModel(vocab_size=VOCAB_SIZE, order=2, seed=5, sharpness=3.0, context_length=60)
        lane = Lane("target", model, stream, capacity=60)
        loops = decoding_loops(rig.runtime.settings, lane, stream, ())
        rig.close_streams()
        pair = pair_of(rig, target=lane, draft_stream=stream, proposers=(), loops=loops)
        pair.effort = dataclasses.replace(LITTLE, max_tokens=8)
        finding = found(pair, check_event_loop)
        # Every round holds the loop up from its beginning to its end.
        assert finding.verdict is Verdict.FAIL, finding
        assert "computes on the event loop" in finding.advice

    @pytest.mark.parametrize(
        ("gap_ms", "round_ms", "verdict"),
        [
            (2.1, 40.0, Verdict.OK),
            (15.0, 40.0, Verdict.OK),
            (30.0, 40.0, Verdict.WARN),
            # Blocked for the whole round, and for one that is hardly longer than what Python itself may take.
            (40.0, 40.0, Verdict.FAIL),
            (10.0, 10.0, Verdict.FAIL),
            # Python's lock changed hands.
            (7.0, 5.0, Verdict.OK),
        ],
    )
    def test_a_gap_counts_by_the_round(self, gap_ms: float, round_ms: float, verdict: Verdict) -> None:
        assert judge_lag([0.002] * 10, [gap_ms / 1e3] * 10, round_ms=round_ms).verdict is verdict

    def test_one_long_block_is_a_warning(self) -> None:
        smooth_s = [0.002] * 200
        assert judge_lag(smooth_s, [*smooth_s, 0.5], round_ms=40.0).verdict is Verdict.WARN
        assert judge_lag(smooth_s, smooth_s, round_ms=40.0, before_s=[0.5]).verdict is Verdict.WARN
        # The machine does that on its own.
        assert judge_lag([*smooth_s, 0.5], [*smooth_s, 0.5], round_ms=40.0).verdict is Verdict.OK

    def test_ticks_before_the_rounds_hide_nothing(self) -> None:
        finding = judge_lag([0.002] * 10, [0.04] * 10, round_ms=40.0, before_s=[0.002] * 500)
        assert finding.verdict is Verdict.FAIL

    def test_a_machine_that_is_late_anyway(self) -> None:
        assert judge_lag([0.05] * 10, [0.055] * 10, round_ms=40.0).verdict is Verdict.OK

    def test_an_answer_without_a_tick(self) -> None:
        with pytest.raises(CannotTell, match="before the ticker"):
            judge_lag([], [], round_ms=1.0)

    def test_a_free_loop_on_worker_threads(self) -> None:
        target = SlowModel(vocab_size=VOCAB_SIZE, order=2, seed=5, sharpness=3.0)
        pair = pair_of(build_rig(target, mode=Mode.AUTO))
        pair.effort = dataclasses.replace(LITTLE, max_tokens=8)
        finding = found(pair, check_event_loop)
        # The model sleeps for 30 ms a round, and on another thread; reading the prompt is no round.
        assert finding.figures["round_ms"] >= 30
        assert finding.figures["share"] < FAIL_SHARE, finding
