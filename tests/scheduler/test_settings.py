"""Options are checked once, and each complaint names the field, the limit, the value and a way out."""

from __future__ import annotations

import dataclasses

import pytest

from scheduler import DecodeRequest, FixedGamma, SamplingSettings, Verification

LIMITS = [
    ("temperature", -0.1, r"temperature must lie in \[0, 10000\], got -0\.1; 0 is greedy"),
    ("temperature", float("nan"), r"temperature must lie in \[0, 10000\], got nan"),
    ("temperature", float("inf"), r"temperature must lie in \[0, 10000\], got inf"),
    ("temperature", 10**400, r"temperature must lie in \[0, 10000\], got 1000"),
    ("top_k", -1, r"top_k must be at least 0, got -1; 0 keeps every token"),
    ("top_p", 0.0, r"top_p must lie in \(0, 1\], got 0\.0; 1 keeps every token"),
    ("top_p", 1.01, r"top_p must lie in \(0, 1\], got 1\.01"),
    ("min_p", -0.01, r"min_p must lie in \[0, 1\], got -0\.01"),
    ("min_p", 2, r"min_p must lie in \[0, 1\], got 2"),
    ("repetition_penalty", 0.0, r"repetition_penalty must lie in \[0\.0001, 10000\], got 0\.0; 1 leaves"),
    ("presence_penalty", 101, r"presence_penalty must lie in \[-100, 100\], got 101"),
    ("frequency_penalty", float("-inf"), r"frequency_penalty must lie in \[-100, 100\], got -inf"),
    ("min_tokens", -1, r"min_tokens must be at least 0, got -1"),
    ("seed", 2**64, r"seed must be between -9223372036854775808 and 18446744073709551615, got"),
    ("seed", -(2**63) - 1, r"seed must be between"),
    ("logit_bias", {-1: 0.0}, r"logit_bias token id must be at least 0, got -1; use ids of the target's tokenizer"),
    ("logit_bias", {3: float("inf")}, r"logit_bias\[3\] must lie in \[-10000, 10000\], got inf"),
]
TYPES = [
    ("temperature", "1", "temperature must be a number, not str"),
    ("temperature", True, "temperature must be a number, not bool"),
    ("temperature", None, "temperature must be a number, not NoneType"),
    ("top_k", 1.0, "top_k must be an integer, not float"),
    ("top_k", True, "top_k must be an integer, not bool"),
    ("top_p", "0.9", "top_p must be a number, not str"),
    ("min_tokens", 1.5, "min_tokens must be an integer, not float"),
    ("seed", 1.0, "seed must be an integer, not float"),
    ("verification", "coupled", "verification must be a Verification, not str"),
    ("logit_bias", [(1, 2.0)], "logit_bias must map token ids to numbers, not list"),
    ("logit_bias", {"1": 2.0}, "logit_bias token id must be an integer, not str"),
    ("logit_bias", {1: "2"}, r"logit_bias\[1\] must be a number, not str"),
]


@pytest.mark.parametrize(("field", "value", "message"), LIMITS)
def test_values_outside_the_limits(field: str, value: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SamplingSettings(**{field: value})


@pytest.mark.parametrize(("field", "value", "message"), TYPES)
def test_wrong_types(field: str, value: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        SamplingSettings(**{field: value})


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 10_000},
        {"top_p": 1},
        {"top_p": 5e-324},
        {"min_p": 1},
        {"seed": -(2**63)},
        {"seed": 2**64 - 1},
        {"repetition_penalty": 1e-4},
        {"logit_bias": {0: -10_000}},
    ],
)
def test_limits_themselves_are_allowed(options: dict[str, object]) -> None:
    SamplingSettings(**options)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(TypeError, match="temprature"):
        SamplingSettings(temprature=1.0)  # type: ignore[call-arg]  # the point of the test


def test_the_bias_given_is_copied_and_cannot_be_changed() -> None:
    bias = {1: 2.0}
    settings = SamplingSettings(logit_bias=bias)
    bias[1] = 3.0
    assert settings.logit_bias[1] == 2.0
    with pytest.raises(TypeError):
        settings.logit_bias[1] = 4.0  # type: ignore[index]  # the point of the test
    assert dataclasses.replace(settings, top_k=3).logit_bias == settings.logit_bias


def test_defaults_are_greedy_and_change_nothing() -> None:
    settings = SamplingSettings()
    assert settings.greedy
    assert settings.verification is Verification.COUPLED
    assert not settings.has_filters
    assert not settings.has_penalties


@pytest.mark.parametrize(
    ("options", "filters", "penalties"),
    [
        ({"top_k": 1}, True, False),
        ({"top_p": 0.99}, True, False),
        ({"min_p": 0.01}, True, False),
        ({"repetition_penalty": 0.9}, False, True),
        ({"presence_penalty": -1}, False, True),
        ({"frequency_penalty": 0.1}, False, True),
        ({"logit_bias": {1: 1.0}, "min_tokens": 3}, False, False),
    ],
)
def test_what_is_needed_is_known(options: dict[str, object], filters: bool, penalties: bool) -> None:
    settings = SamplingSettings(**options)
    assert (settings.has_filters, settings.has_penalties) == (filters, penalties)


class TestRequests:
    def request(self, **options: object) -> DecodeRequest:
        return DecodeRequest(**{"prompt_ids": (1,), "settings": SamplingSettings(), "max_tokens": 1, **options})

    def test_limits_themselves(self) -> None:
        self.request(num_logprobs=0)
        self.request(num_logprobs=100)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"prompt_ids": ()}, ValueError, "prompt must hold at least one token"),
            ({"max_tokens": 0}, ValueError, "max_tokens must be at least 1, got 0; ask for at least one token"),
            ({"max_tokens": True}, TypeError, "max_tokens must be an integer, not bool"),
            ({"num_logprobs": 101}, ValueError, "logprobs must be between 0 and 100, got 101"),
            ({"num_logprobs": -1}, ValueError, "logprobs must be between 0 and 100, got -1"),
        ],
    )
    def test_bad_ones(self, options: dict[str, object], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            self.request(**options)


@pytest.mark.parametrize(("gamma", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("3", TypeError)])
def test_gamma_is_checked(gamma: object, error: type[Exception]) -> None:
    with pytest.raises(error, match="gamma must be"):
        FixedGamma(gamma)  # type: ignore[arg-type]  # the point of the test
