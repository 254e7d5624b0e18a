"""A request's summary in words and its JSON object."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from models import WeightKind
from runtime import (
    FinishReason,
    GenerationOptions,
    GenerationResult,
    Metrics,
    Mode,
    RuntimeDescription,
    TokenLogprob,
)
from runtime.report import json_record, summary

DESCRIPTION = RuntimeDescription(
    target="big",
    draft=("ngram", "small"),
    mode=Mode.SEQUENTIAL,
    gamma="adaptive",
    max_gamma=8,
    max_lead=0,
    num_awaited=None,
    warmup_tokens=0,
    weights=WeightKind.FLOAT16,
    threads=2,
    draft_threads=0,
    context_length=512,
    device="cpu",
)
RESULT = GenerationResult(
    text="Hé",
    token_ids=(1, 2, 3, 4, 5),
    finish_reason=FinishReason.STOP,
    metrics=Metrics(
        num_prompt_tokens=30,
        num_reused_tokens=12,
        num_output_tokens=5,
        num_spec_steps=2,
        num_draft_tokens=8,
        num_accepted_draft_tokens=3,
        drafts={"ngram": (5, 3), "small": (3, 0)},
        ttft_ms=40.0,
        total_ms=120.0,
    ),
)


def test_the_summary_names_speed_and_acceptance() -> None:
    assert summary(RESULT, DESCRIPTION).splitlines() == [
        "5 tokens · 50.0 tokens/s · first token after 40 ms · prompt of 30 tokens, 12 reused from the cache",
        "speculation: 38% of 8 draft tokens accepted · 2.50 tokens a round · ngram 3 of 5, small 0 of 3",
    ]


@pytest.mark.parametrize(
    ("figures", "line"),
    [
        (
            {"num_hits": 3, "num_misses": 1, "num_discarded_draft_tokens": 7},
            "lookahead: 3 of 4 guesses hit (75%) · 7 draft tokens discarded",
        ),
        ({"num_discarded_draft_tokens": 1}, "lookahead: no guess was made · 1 draft token discarded"),
    ],
)
def test_the_summary_of_a_pipelined_runtime_tells_of_the_lookahead(figures: dict[str, int], line: str) -> None:
    pipelined = dataclasses.replace(DESCRIPTION, mode=Mode.PIPELINED, max_lead=8, draft_threads=1)
    result = dataclasses.replace(RESULT, metrics=dataclasses.replace(RESULT.metrics, **figures))
    assert summary(result, pipelined).splitlines() == [*summary(RESULT, DESCRIPTION).splitlines(), line]
    without_draft = dataclasses.replace(pipelined, draft=())
    assert len(summary(result, without_draft).splitlines()) == 1


def test_a_summary_without_drafts_is_one_line() -> None:
    plain = dataclasses.replace(DESCRIPTION, draft=())
    assert summary(RESULT, plain).splitlines() == summary(RESULT, DESCRIPTION).splitlines()[:1]


def test_a_short_answer_has_no_speed() -> None:
    metrics = Metrics(num_prompt_tokens=1, num_output_tokens=1, ttft_ms=3.0, total_ms=3.0)
    single = dataclasses.replace(RESULT, metrics=metrics, finish_reason=FinishReason.LENGTH)
    assert summary(single, DESCRIPTION).splitlines() == [
        "1 token (the limit) · first token after 3 ms · prompt of 1 token, 0 reused from the cache",
        "speculation: no draft token was proposed",
    ]


def test_the_json_object_is_one_line_with_everything() -> None:
    options = GenerationOptions(temperature=0.5, seed=4, stop=("x",)).resolved()
    line = json_record(RESULT, DESCRIPTION, options, event_loop="asyncio")
    assert "\n" not in line
    record = json.loads(line)
    assert record["text"] == "Hé"
    assert record["token_ids"] == [1, 2, 3, 4, 5]
    assert record["finish_reason"] == "stop"
    assert record["metrics"]["draft_acceptance_rate"] == pytest.approx(0.375)
    assert record["metrics"]["tokens_per_s"] == pytest.approx(50.0)
    assert record["metrics"]["hit_rate"] is None
    expected = {
        "target": "big",
        "draft": ["ngram", "small"],
        "mode": "sequential",
        "gamma": "adaptive",
        "max_lead": 0,
        "num_awaited": None,
        "draft_threads": 0,
        "verification": "coupled",
        "weights": "float16",
        "threads": 2,
        "context_length": 512,
        "temperature": 0.5,
        "seed": 4,
        "stop": ["x"],
        "event_loop": "asyncio",
    }
    assert {name: record["settings"][name] for name in expected} == expected
    assert "logprobs" not in record
    assert "comparison" not in record


def test_log_probabilities_without_a_number_are_null() -> None:
    logprob = TokenLogprob(token_id=1, logprob=-0.5, top=((1, -0.5), (2, -math.inf)))
    result = dataclasses.replace(RESULT, logprobs=(logprob,))
    record = json.loads(
        json_record(result, DESCRIPTION, GenerationOptions(logprobs=2).resolved(), event_loop="asyncio"),
        parse_constant=pytest.fail,
    )
    top = [{"token_id": 1, "logprob": -0.5}, {"token_id": 2, "logprob": None}]
    assert record["logprobs"] == [{"token_id": 1, "logprob": -0.5, "top": top}]
