"""The two halves of every loop, drafter and verifier: what their launches name, wait for and leave behind."""

from __future__ import annotations

import itertools

import pytest

from scheduler import Generation, Lane, Leads, Lineage, Proposal, StaleLaunchError, VirtualDevice
from scheduler.block import BlockPlan, Flight, Piece
from scheduler.decoding import Decoding
from scheduler.drafter import Drafter
from scheduler.round import Drafted
from scheduler.verifier import NUM_VERDICT_SLOTS, Verifier
from tests.fuzz.play import WatchedStream
from tests.support.drafts import ScriptedSource
from tests.support.loops import one_token_decoding, request_of
from tests.support.sequential_cases import PROMPT, VOCAB, target_model

TEXT = one_token_decoding(target_model(), request_of(PROMPT, 8))
WRONG = next(token_id for token_id in range(VOCAB) if token_id not in TEXT[:6])


class Halves:
    """Drafter and verifier on two streams of one device."""

    def __init__(self, *sources: ScriptedSource, seed: int = 0, max_lead: int = 2) -> None:
        device = VirtualDevice(seed)
        self.target = WatchedStream(device.stream("target"))
        self.draft = WatchedStream(device.stream("draft"))
        self.model = target_model()
        self.lane = Lane("target", self.model, self.target, capacity=64)
        self.verifier = Verifier("pair", self.lane, max_gamma=4, warmup_tokens=0)
        self.drafter = Drafter("pair", self.draft, sources, max_gamma=4, leads=Leads(least=max_lead, most=max_lead))
        self.decoding: Decoding = self.verifier.prepare(request_of(PROMPT, 20))
        self.history = self.decoding.start_history()
        self.generation: Generation = Lineage().begin()

    def piece(self, *token_ids: int, buffer: str = "by hand") -> Piece:
        launch = self.draft.launch(
            lambda: Drafted(proposal=Proposal(token_ids=token_ids), gamma=len(token_ids)), writes=(buffer,)
        )
        return Piece(launch=launch, drafted=self.draft.record(), buffer=buffer)

    def verify(self, block: list[int], guess: int | None) -> Flight:
        plan = BlockPlan(
            pieces=(self.piece(*block, buffer="block"),) if block else (),
            max_tokens=8,
            guesses=() if guess is None else (self.piece(guess, buffer="guess"),),
            may_guess=guess is not None,
        )
        return self.verifier.verify(self.decoding, self.history, plan, self.generation)

    def close(self) -> None:
        self.draft.close()
        self.target.close()


class TestDrafter:
    def test_every_launch_names_the_chain_and_what_its_sources_touch(self) -> None:
        halves = Halves(ScriptedSource(buffers=("one", "two")), ScriptedSource(buffers=("three",), instant=True))
        drafter, generation = halves.drafter, halves.generation
        drafter.begin(halves.decoding, halves.history)
        drafter.catch_up(generation)
        pieces = [drafter.look_up(generation), drafter.step(generation), *drafter.draft_block(2)]
        halves.drafter.settle(halves.verify([], None))
        for launch in halves.draft.launches:
            assert {"pair.chain", "one", "two", "three"} <= set(launch.writes)
        settling = halves.draft.launches[-1]
        assert settling.reads == ("pair.verdict[0]",)
        assert [piece.buffer in piece.launch.writes for piece in pieces] == [True] * 3  # type: ignore[attr-defined]  # a virtual launch has them
        halves.close()

    def test_what_may_go_stale_and_what_must_run(self) -> None:
        halves = Halves(ScriptedSource())
        halves.drafter.begin(halves.decoding, halves.history)
        halves.drafter.catch_up(halves.generation)
        halves.drafter.step(halves.generation)
        halves.drafter.look_up(halves.generation)
        halves.drafter.settle(halves.verify([], None))
        assert [(launch.site.label, launch.generation is not None) for launch in halves.draft.launches] == [
            ("begin", False),
            ("catch up", True),
            ("draft", True),
            ("look up", True),
            ("settle", False),
        ]
        halves.close()

    @pytest.mark.parametrize("max_lead", [0, 1, 5])
    def test_slots_come_round_after_all_that_may_wait_to_be_read(self, max_lead: int) -> None:
        halves = Halves(ScriptedSource(), max_lead=max_lead)
        halves.drafter.begin(halves.decoding, halves.history)
        buffers = [halves.drafter.step(halves.generation).buffer for _ in range(60)]
        num_slots = len(set(buffers))
        assert num_slots > 4 + max_lead
        assert buffers == [*itertools.islice(itertools.cycle(buffers[:num_slots]), 60)]
        halves.close()

    def test_without_sources_the_stream_stays_empty(self) -> None:
        halves = Halves()
        drafter = halves.drafter
        drafter.begin(halves.decoding, halves.history)
        assert drafter.draft_block(4) == ()
        assert drafter.settle(halves.verify([], None)) is None
        assert halves.draft.launches == []
        assert (drafter.looks_up, drafter.steps) == (False, False)
        halves.close()

    def test_no_block_without_room(self) -> None:
        halves = Halves(ScriptedSource())
        assert halves.drafter.draft_block(0) == ()
        halves.close()

    def test_knows_what_kinds_of_sources_it_has(self) -> None:
        step, instant = ScriptedSource(), ScriptedSource(instant=True)
        kinds = {
            (drafter.looks_up, drafter.steps)
            for drafter in (Halves(step).drafter, Halves(instant).drafter, Halves(step, instant).drafter)
        }
        assert kinds == {(False, True), (True, False), (True, True)}

    @pytest.mark.parametrize("seed", range(5))
    def test_a_failed_verdict_is_not_the_next_requests_affair(self, seed: int) -> None:
        halves = Halves(ScriptedSource(), seed=seed)
        halves.drafter.begin(halves.decoding, halves.history)
        halves.model.fail_at_call = 1
        flight = halves.verify([TEXT[0]], None)
        settled = halves.drafter.settle(flight)
        assert settled is not None
        with pytest.raises(RuntimeError, match="planted failure"):
            flight.verified.synchronize()
        settled.synchronize()
        halves.drafter.begin(halves.decoding, halves.history)
        piece = halves.drafter.step(halves.generation)
        piece.drafted.synchronize()
        assert piece.launch.result().proposal.token_ids == (PROMPT[-1] + 1,)
        halves.close()


class TestVerifier:
    def test_names_what_it_reads_and_writes(self) -> None:
        halves = Halves()
        halves.verify(TEXT[:2], TEXT[2])
        forward, judging = halves.target.launches
        assert set(forward.reads) == {"block"}
        assert {"target.cache", "target.logits"} <= set(forward.writes)
        assert {"target.logits", "block", "guess"} <= set(judging.reads)
        assert {"target.cache", "pair.verdict[0]"} <= set(judging.writes)
        halves.close()

    def test_verdicts_take_turns_with_their_slots(self) -> None:
        halves = Halves()
        flights = [halves.verify([], None) for _ in range(2 * NUM_VERDICT_SLOTS)]
        slots = [flight.buffer for flight in flights]
        assert slots == [f"pair.verdict[{index % NUM_VERDICT_SLOTS}]" for index in range(len(slots))]
        halves.close()

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("guess", ["right", "wrong", "none"])
    @pytest.mark.parametrize("num_right", range(4))
    def test_everything_but_a_hit_retires_the_generation(self, num_right: int, guess: str, seed: int) -> None:
        halves = Halves(seed=seed)
        block = [*TEXT[:num_right], *[WRONG] * (3 - num_right)]
        guessed = {"right": TEXT[3], "wrong": WRONG, "none": None}[guess]
        flight = halves.verify(block, guessed)
        assert not halves.generation.stale or flight.verified.done()
        flight.verified.synchronize()
        judgement = flight.judged.result()
        is_hit = num_right == 3 and guess == "right"
        assert judgement.hit == is_hit
        assert halves.generation.stale == (not is_hit)
        assert judgement.verdict.token_ids == tuple(TEXT[: num_right + 1])
        # The cache holds what stays true and not one token more: the guess was never read.
        assert judgement.kept_length == halves.lane.num_held == len(PROMPT) + num_right
        halves.close()

    def test_a_block_without_a_generation_retires_none(self) -> None:
        halves = Halves()
        flight = halves.verifier.verify(halves.decoding, halves.history, BlockPlan())
        flight.verified.synchronize()
        assert not halves.generation.stale
        halves.close()

    @pytest.mark.parametrize("seed", range(10))
    def test_a_miss_skips_what_was_launched_on_the_assumption(self, seed: int) -> None:
        halves = Halves(ScriptedSource(), seed=seed)
        halves.drafter.begin(halves.decoding, halves.history)
        flight = halves.verify([WRONG], None)
        flight.verified.synchronize()
        stale = halves.drafter.step(halves.generation)
        halves.drafter.settle(flight)
        fresh = halves.drafter.step(Lineage().begin())
        fresh.drafted.synchronize()
        assert stale.launch.skipped
        with pytest.raises(StaleLaunchError):
            stale.launch.result()
        assert fresh.launch.result().proposal.token_ids == (TEXT[0] + 1,)
        halves.close()
