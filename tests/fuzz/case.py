"""One run of the fuzz: what is varied systematically, and what is drawn from it.

Owns the cross product and everything that a case draws by chance. The requests depend on the seed alone, so that all
combinations of a seed share them and their right answers; how the loop is set up and what befalls its requests depends
on the whole case.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, StrEnum
from functools import lru_cache

from scheduler import DecodeRequest, SamplingSettings, Verification
from tests.fuzz.models import IMPOSSIBLE_ID, Pattern

GAMMAS = range(1, 7)
LEADS = range(1, 7)
LAW_PROMPT = (2, 0, 1, 3, 1, 0)
NUM_LAW_TOKENS = 3
"""The law is checked on the joint distribution of this many first tokens."""
SETTINGS: dict[str, dict[str, object]] = {
    "sampled": {"temperature": 1.0},
    "greedy": {},
    "penalties": {"temperature": 1.0, "repetition_penalty": 1.2, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    "filters": {"temperature": 1.2, "top_k": 3, "top_p": 0.9},
    "stops": {"temperature": 0.9, "logit_bias": {1: 0.5}, "min_tokens": 2},
}
"""Sampling settings by name; `stops` ends at an id as well."""
STOP_IDS = {"stops": frozenset({3})}
_WEIGHTS = (4, 1, 1, 1, 1)
_CAPACITY = 64
_SMALL_CAPACITY = 14
"""Less than some texts are long."""


class FateKind(Enum):
    """What befalls a request."""

    FINISHED = "finished"
    CANCELLED = "cancelled"
    """At some turn of the event loop."""
    ABANDONED = "abandoned"
    """After some reports."""
    TARGET_FAILS = "target fails"
    DRAFT_FAILS = "draft fails"


@dataclass(frozen=True, kw_only=True)
class Fate:
    """What befalls a request, and when: after that many turns, reports, or calls of the model."""

    kind: FateKind = FateKind.FINISHED
    after: int = 0


class Rule(StrEnum):
    """The verification rules by name."""

    COUPLED = "coupled"
    REJECTION = "rejection"


class Place(StrEnum):
    """Where the values of a run live, by name."""

    HOST = "host"
    DEVICE = "device"


@dataclass(frozen=True, kw_only=True)
class PlannedRequest:
    """A request before the rule is known."""

    prompt_ids: tuple[int, ...]
    settings: str
    max_tokens: int
    num_logprobs: int | None


@dataclass(frozen=True, kw_only=True)
class Setup:
    """How one run's loop is built, and what befalls its requests."""

    max_lead: int
    """Mostly the case's; sometimes so much that the ring of results is full at times."""
    num_awaited: int | None
    num_verdict_slots: int
    """Few, so that the target has to wait for them."""
    warmup_tokens: int
    with_ngram: bool
    reads_features: bool
    """Whether the draft reads the target's features."""
    target_block: int
    draft_block: int
    draft_capacity: int
    fates: tuple[Fate, ...]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One point of the cross product."""

    seed: int
    rule: Rule
    pattern: Pattern
    gamma: int
    lead: int
    place: Place = Place.HOST

    def __str__(self) -> str:
        place = "" if self.place is Place.HOST else f"/{self.place}"
        return f"{self.seed}/{self.rule}/{self.pattern}/{self.gamma}/{self.lead}{place}"

    @classmethod
    def parse(cls, text: str) -> Case:
        """The case that `str` wrote.

        Raises:
            ValueError: if the text is no case.
        """
        try:
            seed, rule, pattern, gamma, lead, *place = text.split("/")
            case = cls(
                seed=int(seed),
                rule=Rule(rule),
                pattern=Pattern(pattern),
                gamma=int(gamma),
                lead=int(lead),
                place=Place("/".join(place) or Place.HOST),
            )
        except ValueError as error:
            raise ValueError(
                f"a case reads seed/rule/pattern/gamma/lead, as in 17/coupled/never/3/2, and perhaps /device: {error}"
            ) from None
        if case.gamma not in GAMMAS or case.lead not in LEADS:
            raise ValueError(f"gamma and lead lie between 1 and 6, got {case.gamma} and {case.lead}")
        return case

    def requests(self) -> tuple[DecodeRequest, ...]:
        """What is asked of the loop, one after the other."""
        noise_seed = self.seed if self.rule is Rule.COUPLED else self._random("noise").getrandbits(63)
        return tuple(
            DecodeRequest(
                prompt_ids=planned.prompt_ids,
                settings=dataclasses.replace(
                    SamplingSettings(**SETTINGS[planned.settings]),
                    seed=noise_seed + index,
                    verification=Verification(self.rule.value),
                ),
                max_tokens=planned.max_tokens,
                stop_ids=STOP_IDS.get(planned.settings, frozenset()),
                num_logprobs=planned.num_logprobs,
            )
            for index, planned in enumerate(planned_requests(self.seed).requests)
        )

    def setup(self) -> Setup:
        """Everything else."""
        draw = self._random("setup")
        plan = planned_requests(self.seed)
        return Setup(
            max_lead=self.lead + draw.choice((0,) * 9 + (draw.randint(8, 26),)),
            num_awaited=draw.choice((0, 0, None, draw.randint(0, self.gamma))),
            num_verdict_slots=draw.choice((1, 2)),
            warmup_tokens=draw.choice((0, 0, 0, draw.randint(1, 4))),
            # On the device a draft is a model.
            with_ngram=draw.random() < 0.2 and self.place is Place.HOST,
            # Likewise, and one that reads tokens alone.
            reads_features=self._random("features").random() < 0.4 and self.place is Place.HOST,
            target_block=draw.choice((self.gamma + 1, 16)),
            draft_block=draw.choice((2, 4, 16, 16)),
            draft_capacity=draw.choice((_SMALL_CAPACITY, _CAPACITY, _CAPACITY, _CAPACITY)),
            fates=tuple(
                Fate() if index in (plan.law_index, len(plan.requests) - 1) else _fate(draw)
                for index in range(len(plan.requests))
            ),
        )

    def _random(self, purpose: str) -> random.Random:
        return random.Random(f"{purpose} {self}")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The requests of a seed."""

    requests: tuple[PlannedRequest, ...]
    law_index: int
    """The request whose first tokens are a sample of a law that is the same for all seeds."""


@lru_cache(maxsize=4)
def planned_requests(seed: int) -> Plan:
    """One to three requests, one of which has the prompt that all seeds share."""
    draw = random.Random(f"requests {seed}")
    num_requests = draw.choice((1, 1, 2, 3))
    law_index = draw.randrange(num_requests)
    requests: list[PlannedRequest] = []
    for index in range(num_requests):
        earlier = [request.prompt_ids for request in requests] or [LAW_PROMPT]
        # Some prompts go on from an earlier one, so that caches are reused.
        start = draw.choice(earlier)[: draw.randint(0, 6)]
        fresh = tuple(draw.randrange(IMPOSSIBLE_ID) for _ in range(draw.randint(1, 6)))
        (settings,) = draw.choices(tuple(SETTINGS), weights=_WEIGHTS)
        requests.append(
            PlannedRequest(
                prompt_ids=LAW_PROMPT if index == law_index else (*start, *fresh),
                settings=settings,
                max_tokens=draw.randint(NUM_LAW_TOKENS, 6) if index == law_index else draw.randint(1, 7),
                num_logprobs=draw.choice((None, None, None, 0, 2)),
            )
        )
    return Plan(requests=tuple(requests), law_index=law_index)


def _fate(draw: random.Random) -> Fate:
    kind = draw.choice((FateKind.FINISHED, *FateKind))
    most = {FateKind.CANCELLED: 40, FateKind.ABANDONED: 4}.get(kind, 6)
    return Fate(kind=kind, after=draw.randint(0, most))


def cases_of(seed: int, *, thin: int = 1) -> Iterator[Case]:
    """Every combination of one seed, or every `thin`-th pair of gamma and lead: another seed has the others.

    Half of them run on the device; another seed has these on the host.
    """
    for rule, pattern in itertools.product(Rule, Pattern):
        for index, (gamma, lead) in enumerate(itertools.product(GAMMAS, LEADS)):
            if (index + seed) % thin == 0:
                place = (Place.HOST, Place.DEVICE)[(seed // thin + gamma + lead) % 2]
                yield Case(seed=seed, rule=rule, pattern=pattern, gamma=gamma, lead=lead, place=place)


def scattered_cases(place: Place = Place.HOST) -> Iterator[Case]:
    """One case for each seed from 0 on, its combination drawn from the seed."""
    for seed in itertools.count():
        draw = random.Random(f"combination {seed}")
        yield Case(
            seed=seed,
            rule=draw.choice(tuple(Rule)),
            pattern=draw.choice(tuple(Pattern)),
            gamma=draw.choice(GAMMAS),
            lead=draw.choice(LEADS),
            place=place,
        )


def telling_cases(place: Place = Place.HOST) -> Iterator[Case]:
    """Cases whose law shows a faulty rule soonest: one sampled request each, and nothing in the way of a guess."""
    for scattered in scattered_cases(place):
        (first, *others) = planned_requests(scattered.seed).requests
        case = dataclasses.replace(scattered, rule=Rule.REJECTION, pattern=Pattern.RANDOM, gamma=1 + scattered.seed % 2)
        setup = case.setup()
        hindered = setup.warmup_tokens or setup.with_ngram or setup.draft_block < len(LAW_PROMPT)
        if not others and first.settings == "sampled" and not hindered and setup.draft_capacity == _CAPACITY:
            yield case
