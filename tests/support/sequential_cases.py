"""Models, draft sources and checks that the tests of the sequential loop share."""

from __future__ import annotations

from scheduler import (
    BlockCosts,
    Controller,
    SourceCosts,
)
from tests.support.loops import (
    NewProposer,
    Output,
    model_proposer,
    ngram_proposer,
)
from tests.support.table_model import TableModel

VOCAB = 12
PROMPT = (3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5)
GAMMAS = range(9)
CHEAP = BlockCosts({1: 1.0, 17: 1.1})


def new_model(seed: int, **options: object) -> TableModel:
    """Calls wide enough for every text here, so that a draft need not catch up over several rounds."""
    return TableModel(**{"vocab_size": VOCAB, "seed": seed, "max_block": 64, **options})


def target_model(**options: object) -> TableModel:
    return new_model(1, **options)


def holed_model() -> TableModel:
    model = new_model(3)
    model.tables[:, :, 7] = float("-inf")
    return model


def adaptive(max_gamma: int) -> Controller:
    return Controller(max_gamma=max_gamma, costs=SourceCosts(verify=CHEAP, draft=BlockCosts({1: 0.1})))


def sources(kind: str, gamma: int) -> list[NewProposer]:
    """A draft of each kind, proposing `gamma` tokens."""
    match kind:
        case "none":
            return []
        case "ngram":
            return [ngram_proposer(gamma)]
        case "same":
            return [model_proposer(target_model(), gamma)]
        case "unrelated":
            return [model_proposer(new_model(2), gamma)]
        case "hole":
            return [model_proposer(holed_model(), gamma)]
        case "narrower":
            return [model_proposer(new_model(1, vocab_size=VOCAB - 2), gamma)]
        case "wider":
            return [model_proposer(new_model(4, vocab_size=VOCAB + 5), gamma)]
        case "half the context":
            return [model_proposer(target_model(), gamma, capacity=24)]
        case "adaptive":
            return [model_proposer(target_model(sharpness=1.2), adaptive(gamma))]
        case "ngram, then a model":
            return [ngram_proposer(gamma), model_proposer(target_model(), gamma)]
    raise LookupError(kind)


KINDS = (
    "none",
    "ngram",
    "same",
    "unrelated",
    "hole",
    "narrower",
    "wider",
    "half the context",
    "adaptive",
    "ngram, then a model",
)
OPTIONS: dict[str, dict[str, object]] = {
    "greedy": {},
    "nearly greedy": {"temperature": 1e-6, "seed": 3},
    "sampled": {"temperature": 1.0, "seed": 11},
    "everything": {
        "temperature": 1.1,
        "top_k": 9,
        "top_p": 0.95,
        "min_p": 0.001,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "logit_bias": {2: 0.7, 8: -1.0},
        "min_tokens": 20,
        "stop_ids": frozenset({0, 4}),
        "seed": 5,
        "num_logprobs": 2,
    },
}


def check_reports(output: Output, max_tokens: int) -> None:
    """What holds for every request."""
    *middle, last = output.reports
    assert all(report.finish_reason is None for report in middle)
    assert last.finish_reason is not None
    assert len(output.ids) <= max_tokens
    for report in output.reports:
        assert len(report.token_ids) >= 1
        assert 0 <= report.num_accepted <= report.num_proposed
        assert report.draft_ms >= 0
        assert report.verify_ms > 0
    for report in middle:
        assert len(report.token_ids) == report.num_accepted + 1
