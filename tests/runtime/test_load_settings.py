"""Settings of a runtime: names, defaults, limits, and the spelling of draft sources."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from models import WeightKind
from runtime import DraftKind, DraftSpec, LoadSettings, Mode, Verification
from runtime.load_settings import DEFAULT_MAX_GAMMA, MAX_GAMMA, MAX_LEAD


def from_keywords(**keywords: Any) -> LoadSettings:
    return LoadSettings.from_keywords(keywords)


NGRAM = DraftSpec(kind=DraftKind.NGRAM)
EARLY_EXIT = DraftSpec(kind=DraftKind.EARLY_EXIT)


@pytest.mark.parametrize(
    ("draft", "specs"),
    [
        ("auto", (NGRAM,)),
        ("none", ()),
        (None, ()),
        ([], ()),
        ("ngram", (NGRAM,)),
        ("early-exit", (EARLY_EXIT,)),
        ("early-exit:4", (DraftSpec(kind=DraftKind.EARLY_EXIT, num_layers=4),)),
        ("owner/model", (DraftSpec(kind=DraftKind.MODEL, source="owner/model"),)),
        ("C:\\models\\draft.gguf", (DraftSpec(kind=DraftKind.MODEL, source="C:\\models\\draft.gguf"),)),
        (Path("ngram"), (DraftSpec(kind=DraftKind.MODEL, source=Path("ngram")),)),
        (["ngram", "early-exit"], (NGRAM, EARLY_EXIT)),
        (("early-exit", "ngram"), (EARLY_EXIT, NGRAM)),
        (["none", "ngram"], (NGRAM,)),
    ],
)
def test_draft_sources_in_the_order_in_which_they_are_asked(draft: Any, specs: tuple[DraftSpec, ...]) -> None:
    assert from_keywords(target="model", draft=draft).draft_specs() == specs


def test_the_demo_model_drafts_by_early_exit_as_well() -> None:
    assert from_keywords().draft_specs() == (NGRAM, EARLY_EXIT)
    assert from_keywords(draft=["auto"]).draft_specs() == (NGRAM, EARLY_EXIT)


@pytest.mark.parametrize(("draft", "chooses"), [("auto", True), (["auto"], True), (("ngram",), False), (None, False)])
def test_who_chooses_the_draft(draft: Any, chooses: bool) -> None:
    assert from_keywords(draft=draft).chooses_draft is chooses


def test_auto_stands_alone() -> None:
    with pytest.raises(ValueError, match="'auto' chooses all sources; name it alone"):
        from_keywords(draft=["auto", "early-exit"])


def test_plain_decoding_loads_no_draft() -> None:
    assert from_keywords(mode="plain", draft=["ngram", "owner/model"]).draft_specs() == ()
    with pytest.raises(ValueError, match="early-exit:0"):
        from_keywords(mode="plain", draft="early-exit:0")


@pytest.mark.parametrize(
    ("keywords", "fixed", "limit"),
    [
        ({}, None, DEFAULT_MAX_GAMMA),
        ({"max_gamma": 3}, None, 3),
        ({"gamma": "adaptive", "max_gamma": 12}, None, 12),
        ({"gamma": 0}, 0, 0),
        ({"gamma": MAX_GAMMA, "max_gamma": 3}, MAX_GAMMA, MAX_GAMMA),
    ],
)
def test_gamma_is_fixed_or_limited(keywords: dict[str, Any], fixed: int | None, limit: int) -> None:
    settings = from_keywords(**keywords)
    assert (settings.fixed_gamma, settings.gamma_limit) == (fixed, limit)


def test_a_runtime_serves_its_mode_and_all_simpler_ones() -> None:
    assert Mode.PLAIN.served == (Mode.PLAIN,)
    assert Mode.SEQUENTIAL.served == (Mode.PLAIN, Mode.SEQUENTIAL)
    assert Mode.PIPELINED.served == (Mode.PLAIN, Mode.SEQUENTIAL, Mode.PIPELINED)
    assert Mode.AUTO.served == tuple(Mode)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda", "cuda:0", "cuda:11"])
def test_devices_have_torch_s_names(device: str) -> None:
    assert from_keywords(device=device).device == device


def test_weights_left_open_suit_the_device() -> None:
    assert from_keywords().weights is from_keywords(weights=None).weights is None


def test_limits_of_lookahead_are_allowed() -> None:
    settings = from_keywords(mode="pipelined", max_lead=MAX_LEAD, num_awaited=MAX_GAMMA)
    assert (settings.max_lead, settings.num_awaited) == (MAX_LEAD, MAX_GAMMA)
    assert (from_keywords(max_lead=1).max_lead, from_keywords(num_awaited=0).num_awaited) == (1, 0)
    assert from_keywords().num_awaited is from_keywords(num_awaited=None).num_awaited is None


def test_names_stand_for_modes_weights_and_rules() -> None:
    settings = from_keywords(mode="plain", weights="int8", verification="rejection")
    assert (settings.mode, settings.weights, settings.verification) == (
        Mode.PLAIN,
        WeightKind.INT8,
        Verification.REJECTION,
    )


WRONG_TYPES: dict[str, tuple[object, ...]] = {
    "target": (1, b"model", ["model"]),
    "draft": (1, b"model", [1], [None], {"ngram"}, ["ngram", b"x"]),
    "mode": (1, None, True),
    "gamma": (1.5, True, None, [4]),
    "max_gamma": (1.5, True, None, "8"),
    "max_lead": (1.5, True, None, "8"),
    "num_awaited": (1.5, True, "8"),
    "weights": (8, True),
    "device": (None, 3),
    "threads": (1.5, True, "2"),
    "context_length": (1.5, True, "2"),
    "warmup_tokens": (1.5, True, None),
    "acceptance_threshold": ("0.5", True, None),
    "verification": (1, True),
}
WRONG_VALUES: dict[str, tuple[object, ...]] = {
    "draft": ("", [""], "early-exit:0", "early-exit:x", "early-exit:-1", ["ngram", "ngram"], ["a/b", "early-exit"]),
    "mode": ("fast", ""),
    "gamma": (-1, MAX_GAMMA + 1, "many", ""),
    "max_gamma": (-1, MAX_GAMMA + 1),
    "max_lead": (0, MAX_LEAD + 1),
    "num_awaited": (-1, MAX_GAMMA + 1),
    "weights": ("int4", ""),
    "threads": (0, -1, 100_000),
    "context_length": (1, 0, -5),
    "warmup_tokens": (-1,),
    "acceptance_threshold": (-0.1, 1.1, float("nan")),
    "verification": ("exact", ""),
    "device": ("cuda:", "cuda:x", "cuda:-1", "cuda:07", "cuda:256", "gpu", "tpu", "CPU", ""),
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG_TYPES.items() for value in values])
def test_a_wrong_type_is_a_type_error_that_names_the_option(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        from_keywords(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG_VALUES.items() for value in values]
)
def test_a_wrong_value_is_a_value_error_that_names_the_option(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        from_keywords(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"), [("mode", "plain"), ("weights", "int8"), ("verification", "coupled"), ("draft", 3)]
)
def test_settings_made_directly_take_members_only(name: str, value: object) -> None:
    with pytest.raises(TypeError, match=name):
        LoadSettings(**{name: value})  # type: ignore[arg-type]  # wrong on purpose


def test_every_option_was_tried_with_something_wrong() -> None:
    assert WRONG_TYPES.keys() | WRONG_VALUES.keys() == {field.name for field in dataclasses.fields(LoadSettings)}
