"""The output law: with every draft, filter and rule, what is emitted follows one-token decoding exactly.

No draw is made here. Both rules and the proposers are run through every choice that chance could make, so the joint law
of the first tokens comes out exactly and is compared with an independent reference.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduler import (
    FixedGamma,
    Lane,
    ModelProposer,
    NgramProposer,
    Proposer,
    SamplingSettings,
    Stream,
    ThreadStream,
    Verification,
)
from tests.support.enumeration import CachedLaw, Enumerator, enumerated_law
from tests.support.proposing import propose
from tests.support.reference_law import joint_law
from tests.support.statistics import total_variation
from tests.support.table_model import TableModel

VOCAB = 4
PROMPT = (2, 1, 0, 2, 1)
STOP_IDS = frozenset({0})
LAST_BIT = 2e-6
"""Float32 against float64, over a few dozen products."""

FILTERS: dict[str, dict[str, object]] = {
    "none": {},
    "cold": {"temperature": 0.6},
    "greedy": {"temperature": 0.0},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.3},
    "repetition_penalty": {"repetition_penalty": 1.6},
    "presence_penalty": {"presence_penalty": 0.9},
    "frequency_penalty": {"frequency_penalty": 0.7},
    "logit_bias": {"logit_bias": {1: 1.5, 3: -1e4}},
    "min_tokens": {"min_tokens": 2},
    "all": {
        "temperature": 1.3,
        "top_k": 3,
        "top_p": 0.9,
        "min_p": 0.05,
        "repetition_penalty": 1.2,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {1: 0.5},
        "min_tokens": 1,
    },
}


def model_with_a_hole() -> TableModel:
    """A draft that can never propose token 1."""
    model = TableModel(vocab_size=VOCAB, order=2, seed=5)
    model.tables[:, :, 1] = float("-inf")
    return model


MODELS: dict[str, Callable[[], TableModel]] = {
    "same": lambda: TableModel(vocab_size=VOCAB, order=2, seed=1),
    "unrelated": lambda: TableModel(vocab_size=VOCAB, order=2, seed=2),
    "hole": model_with_a_hole,
    "narrower": lambda: TableModel(vocab_size=VOCAB - 1, order=2, seed=3),
    "wider": lambda: TableModel(vocab_size=VOCAB + 2, order=2, seed=4),
}
PROPOSERS = ("none", "ngram", *MODELS)


@pytest.fixture(scope="module")
def stream() -> Stream:
    stream = ThreadStream("idle")
    yield stream
    stream.close()


def new_proposer(kind: str, stream: Stream) -> Proposer | None:
    if kind == "none":
        return None
    if kind == "ngram":
        return NgramProposer(lambda: FixedGamma(2))
    return ModelProposer(Lane("draft", MODELS[kind](), stream, capacity=64), FixedGamma(2))


def settings_of(name: str, rule: Verification) -> SamplingSettings:
    return SamplingSettings(**{"temperature": 1.0, "verification": rule, **FILTERS[name]})


@pytest.mark.parametrize("kind", PROPOSERS)
@pytest.mark.parametrize("filter_name", FILTERS)
@pytest.mark.parametrize("rule", Verification)
def test_speculation_keeps_the_law(
    rule: Verification, filter_name: str, kind: str, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = TableModel(vocab_size=VOCAB, order=2, seed=1)
    settings = settings_of(filter_name, rule)
    law = CachedLaw(settings, vocab_size=VOCAB, stop_ids=STOP_IDS)
    enumerator = Enumerator(monkeypatch)
    proposer = new_proposer(kind, stream)
    if proposer is not None:
        history = law.start_history(PROMPT)
        proposer.begin(history)
        assert len(propose(proposer, law, history, 2).token_ids) == 2
    found = enumerated_law(
        enumerator,
        law,
        target.logits_after,
        proposer,
        prompt_ids=PROMPT,
        num_tokens=3,
        gamma=2,
        stop_ids=STOP_IDS,
    )
    wanted = joint_law(
        lambda ids: target.logits_after(ids).double().numpy(),
        settings,
        prompt_ids=PROMPT,
        num_tokens=3,
        stop_ids=STOP_IDS,
    )
    assert sum(wanted.values()) == pytest.approx(1)
    assert total_variation(found, wanted) < LAST_BIT
