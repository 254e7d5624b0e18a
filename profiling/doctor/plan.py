"""All checks, in the order in which they run: what must be right, then what it costs, then the surroundings.

Owns the list, with the questions and why they matter.
"""

from __future__ import annotations

from profiling.doctor.acceptance import check_acceptance
from profiling.doctor.batch import check_batch
from profiling.doctor.check import Check
from profiling.doctor.draft_size import check_draft_size
from profiling.doctor.event_loop import check_event_loop
from profiling.doctor.memory import check_memory_estimate, check_memory_growth
from profiling.doctor.occupancy import check_cores, check_gpu
from profiling.doctor.probabilities import check_probabilities
from profiling.doctor.repetition import check_repetition
from profiling.doctor.rollback import check_cache_addresses, check_rollback
from profiling.doctor.same_text import check_law, check_same_text
from profiling.doctor.speed import check_overlap, check_speedup
from profiling.doctor.tokenizers import check_tokenizers
from profiling.doctor.verify_cost import check_verify_cost

ALL_CHECKS = (
    Check(
        name="tokenizers",
        question="Do target and draft mean the same by a token id?",
        why="A draft with other ids proposes other words, or ends where the target would go on.",
        run=check_tokenizers,
    ),
    Check(
        name="probabilities",
        question="Are probabilities float32 and finite?",
        why="A ratio of rounded probabilities overflows, and then proposals are accepted or rejected at random.",
        run=check_probabilities,
    ),
    Check(
        name="same-text",
        question="Is speculative text the target's own, token by token?",
        why="Speculation may change how fast a text comes, and never the text.",
        run=check_same_text,
    ),
    Check(
        name="law",
        question="Do drawn tokens follow the target's own probabilities?",
        why="Where draft and target draw through different temperatures or filters, the text is nobody's.",
        run=check_law,
    ),
    Check(
        name="repetition",
        question="Is the text repetitive, and by whose doing?",
        why="Small models repeat themselves under greedy decoding, which is often blamed on speculation.",
        run=check_repetition,
    ),
    Check(
        name="acceptance",
        question="Are enough proposals accepted, on each kind of text?",
        why="Rejected proposals cost draft steps and bring nothing.",
        run=check_acceptance,
    ),
    Check(
        name="draft-size",
        question="Is the draft small enough beside its target?",
        why="A round takes gamma draft steps, which have to cost less than the steps that they save.",
        run=check_draft_size,
    ),
    Check(
        name="verify-cost",
        question="Is a verify really parallel?",
        why="Speculation gains only as far as several tokens in one call cost little more than one.",
        run=check_verify_cost,
    ),
    Check(
        name="rollback",
        question="Is a rejection cheap?",
        why="Most rounds end with one, and a cache that copies pays for it each time.",
        run=check_rollback,
    ),
    Check(
        name="cache-addresses",
        question="Do the caches stay where they are?",
        why="Memory that moves costs a copy, and whatever was captured or launched with the old address is wrong.",
        run=check_cache_addresses,
    ),
    Check(
        name="overlap",
        question="Does drafting beside a verify pay?",
        why="Two lanes that get in each other's way are slower than one after the other.",
        run=check_overlap,
    ),
    Check(
        name="speed-up",
        question="Is it faster than plain decoding?",
        why="That is what it is for.",
        run=check_speedup,
    ),
    Check(
        name="event-loop",
        question="Does the event loop stay free?",
        why="A loop that is held up delays everything else that your application does.",
        run=check_event_loop,
    ),
    Check(
        name="memory-growth",
        question="Does memory stay as it is?",
        why="What each token leaves behind ends a long-running process.",
        run=check_memory_growth,
    ),
    Check(
        name="memory-estimate",
        question="Does it hold as much memory as was expected?",
        why="What is let in by an estimate that is too low ends with an error in the middle of a text.",
        run=check_memory_estimate,
    ),
    Check(
        name="batch",
        question="What about larger batches?",
        why="Speculation uses arithmetic that lies idle, and a large batch leaves none idle.",
        run=check_batch,
    ),
    Check(
        name="gpu",
        question="Does anybody else use the GPU?",
        why="Whoever shares a GPU shares its time and memory.",
        run=check_gpu,
    ),
    Check(
        name="cores",
        question="Is the machine otherwise idle?",
        why="Times that were taken beside other work say little about the pair.",
        run=check_cores,
    ),
)
