"""All checks, in the order in which they run: what must be right, then what it costs; most important first.

Owns the list and its budgets.
"""

from __future__ import annotations

from profiling.gpu_checks.awaiting import measure_await_latency, measure_ticker
from profiling.gpu_checks.bandwidth import measure_bandwidth
from profiling.gpu_checks.check import Check, Kind
from profiling.gpu_checks.churn import check_churn
from profiling.gpu_checks.equality import check_equality, check_host_reads
from profiling.gpu_checks.lane_costs import measure_lane_costs
from profiling.gpu_checks.launches import measure_launches
from profiling.gpu_checks.logits import check_logits
from profiling.gpu_checks.memory import check_memory
from profiling.gpu_checks.occupancy import measure_occupancy
from profiling.gpu_checks.overlap import measure_overlap
from profiling.gpu_checks.planted_speed import measure_planted
from profiling.gpu_checks.rejection import check_rejection
from profiling.gpu_checks.ring import check_ring
from profiling.gpu_checks.streams import check_streams

ALL_CHECKS = (
    Check(
        name="streams",
        question="Do streams keep their contract?",
        kind=Kind.CORRECTNESS,
        budget_s=15,
        run=check_streams,
    ),
    Check(
        name="logits",
        question="Are logits those of float64 on the CPU?",
        kind=Kind.CORRECTNESS,
        budget_s=20,
        run=check_logits,
    ),
    Check(
        name="equality",
        question="Do plain, sequential and pipelined decoding give the same tokens?",
        kind=Kind.CORRECTNESS,
        budget_s=60,
        run=check_equality,
    ),
    Check(
        name="host-reads",
        question="Does no launch of a round wait for the device?",
        kind=Kind.CORRECTNESS,
        budget_s=15,
        run=check_host_reads,
    ),
    Check(
        name="rejection",
        question="Does the rejection rule emit the target's law?",
        kind=Kind.CORRECTNESS,
        budget_s=40,
        run=check_rejection,
    ),
    Check(
        name="churn",
        question="Do late streams and churning memory change no token?",
        kind=Kind.CORRECTNESS,
        budget_s=45,
        run=check_churn,
    ),
    Check(
        name="memory",
        question="Does memory stay as it is?",
        kind=Kind.CORRECTNESS,
        budget_s=40,
        run=check_memory,
    ),
    Check(
        name="ring",
        question="Do late results arrive whole and in order?",
        kind=Kind.CORRECTNESS,
        budget_s=5,
        run=check_ring,
    ),
    Check(
        name="planted",
        question="How fast is each loop at a known acceptance?",
        kind=Kind.FIGURE,
        budget_s=80,
        run=measure_planted,
    ),
    Check(
        name="lane-costs",
        question="What do a draft step and a verify cost?",
        kind=Kind.FIGURE,
        budget_s=40,
        run=measure_lane_costs,
    ),
    Check(
        name="overlap",
        question="How much do the lanes slow each other down?",
        kind=Kind.FIGURE,
        budget_s=25,
        run=measure_overlap,
    ),
    Check(
        name="launches",
        question="How long is the host's part of a round?",
        kind=Kind.FIGURE,
        budget_s=25,
        run=measure_launches,
    ),
    Check(
        name="bandwidth",
        question="How fast are the device's memory and the bus?",
        kind=Kind.FIGURE,
        budget_s=8,
        run=measure_bandwidth,
    ),
    Check(
        name="await-latency",
        question="How late does a coroutine hear of an event?",
        kind=Kind.FIGURE,
        budget_s=12,
        run=measure_await_latency,
    ),
    Check(
        name="ticker",
        question="How long is the event loop held up?",
        kind=Kind.FIGURE,
        budget_s=10,
        run=measure_ticker,
    ),
    Check(
        name="occupancy",
        question="What does NVML say, idle and busy?",
        kind=Kind.FIGURE,
        budget_s=12,
        run=measure_occupancy,
    ),
)
