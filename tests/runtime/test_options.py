"""Options of one generation: names, defaults, spellings, limits."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

import pytest

from runtime import GenerationKeywords, GenerationOptions, Mode, Verification
from runtime.stop import MAX_NUM_STOPS


def from_keywords(**keywords: Any) -> GenerationOptions:
    return GenerationOptions.from_keywords(keywords)


def test_keywords_and_options_name_the_same_things() -> None:
    assert set(get_type_hints(GenerationKeywords)) == {field.name for field in dataclasses.fields(GenerationOptions)}


def test_no_option_is_needed_and_nothing_is_then_changed() -> None:
    options = from_keywords()
    assert options == GenerationOptions()
    settings = options.sampling_settings()
    assert settings.greedy
    assert not settings.has_filters
    assert not settings.has_penalties


@pytest.mark.parametrize(
    ("keywords", "field", "value"),
    [
        ({"stop": None}, "stop", ()),
        ({"stop": "a"}, "stop", ("a",)),
        ({"stop": ["a", "bc"]}, "stop", ("a", "bc")),
        ({"stop_token_ids": [4, 5]}, "stop_token_ids", (4, 5)),
        ({"stop_token_ids": range(2)}, "stop_token_ids", (0, 1)),
        ({"top_k": -1}, "top_k", 0),
        ({"verification": "rejection"}, "verification", Verification.REJECTION),
        ({"verification": Verification.COUPLED}, "verification", Verification.COUPLED),
        ({"verification": None}, "verification", None),
        ({"mode": "plain"}, "mode", Mode.PLAIN),
        ({"logprobs": 0}, "logprobs", 0),
        ({"temperature": 1}, "temperature", 1),
        ({"seed": -1}, "seed", -1),
    ],
)
def test_every_spelling_has_one_form(keywords: dict[str, Any], field: str, value: object) -> None:
    assert getattr(from_keywords(**keywords), field) == value


def test_options_made_directly_are_checked_too() -> None:
    assert GenerationOptions(stop="ab").stop == ("ab",)  # type: ignore[arg-type]  # as a caller might
    assert GenerationOptions(stop_token_ids=[1]).stop_token_ids == (1,)  # type: ignore[arg-type]  # as a caller might
    with pytest.raises(ValueError, match=r"stop\[0\] is empty"):
        GenerationOptions(stop=("",))


@pytest.mark.parametrize(
    ("keywords", "rule"),
    [
        ({}, Verification.COUPLED),
        ({"temperature": 0.7}, Verification.REJECTION),
        ({"temperature": 0.7, "seed": 0}, Verification.COUPLED),
        ({"temperature": 0.7, "seed": 0, "verification": "rejection"}, Verification.REJECTION),
        ({"temperature": 0.7, "verification": "coupled"}, Verification.COUPLED),
        ({"verification": "rejection"}, Verification.REJECTION),
    ],
)
def test_the_rule_is_coupled_where_tokens_are_named_by_a_seed(keywords: dict[str, Any], rule: Verification) -> None:
    assert from_keywords(**keywords).sampling_settings().verification is rule


def test_a_seed_is_kept_and_none_is_drawn_anew() -> None:
    assert from_keywords(seed=5).sampling_settings().seed == 5
    unseeded = from_keywords(temperature=1.0)
    assert len({unseeded.sampling_settings().seed for _ in range(20)}) == 20


def test_every_sampling_option_arrives() -> None:
    values: dict[str, Any] = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "logit_bias": {3: 1.0},
        "min_tokens": 2,
        "seed": 9,
    }
    settings = from_keywords(**values).sampling_settings()
    assert {name: getattr(settings, name) for name in values} == values


def test_a_bias_changed_afterwards_changes_nothing() -> None:
    bias = {3: 1.0}
    settings = from_keywords(logit_bias=bias).sampling_settings()
    bias[3] = 99.0
    assert settings.logit_bias == {3: 1.0}


WRONG_TYPES: dict[str, tuple[object, ...]] = {
    "max_tokens": (None, 1.0, "1", True),
    "temperature": (None, "1", True),
    "top_k": (1.0, "1", False, None),
    "top_p": (None, "1", True),
    "min_p": (None, "1", True),
    "seed": (1.0, "1", True),
    "stop": (1, [1], b"a", [b"a"], {"a"}),
    "stop_token_ids": (1, "1", b"1", [1.0], [True], {1}, None),
    "include_stop_str_in_output": (1, None, "yes"),
    "ignore_eos": (1, None, "yes"),
    "min_tokens": (1.0, "1", True, None),
    "repetition_penalty": (None, "1", True),
    "presence_penalty": (None, "1", True),
    "frequency_penalty": (None, "1", True),
    "logit_bias": ([1], None, {"1": 1.0}, {1: "1"}, {True: 1.0}),
    "logprobs": (1.0, "1", True),
    "verification": (1, True),
    "mode": (1, True),
    "gamma": (1.0, "4", True, "adaptive"),
}
WRONG_VALUES: dict[str, tuple[object, ...]] = {
    "max_tokens": (0, -1),
    "temperature": (-0.1, float("nan"), float("inf")),
    "top_k": (-2,),
    "top_p": (0, -0.1, 1.1, float("nan")),
    "min_p": (-0.1, 1.1, float("nan")),
    "seed": (2**64, -(2**63) - 1),
    "stop": ("", ["a", ""], ["a"] * (MAX_NUM_STOPS + 1), "a" * 5000),
    "stop_token_ids": ([-1],),
    "min_tokens": (-1, 129),
    "repetition_penalty": (0, -1, float("nan")),
    "presence_penalty": (101, float("nan")),
    "frequency_penalty": (-101, float("nan")),
    "logit_bias": ({-1: 1.0}, {1: float("nan")}, {1: 1e5}),
    "logprobs": (-1, 101),
    "verification": ("", "exact"),
    "mode": ("", "fast"),
    "gamma": (-1, 16),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values])
def test_a_wrong_type_is_a_type_error_that_names_the_option(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        from_keywords(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_VALUES.items() for value in values]
)
def test_a_wrong_value_is_a_value_error_that_names_the_option(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name) as caught:
        from_keywords(**{name: value})
    if isinstance(value, (int, float)):
        assert str(value) in str(caught.value)


def test_every_option_was_tried_with_a_wrong_type() -> None:
    assert set(WRONG_TYPES) == {field.name for field in dataclasses.fields(GenerationOptions)}
