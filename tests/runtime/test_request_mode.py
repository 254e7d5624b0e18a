"""One request in another mode than its runtime's, on the same weights and the same cache."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from runtime import GenerationOptions, Mode, Runtime, Verification
from tests.support.tiny_checkpoint import write_tiny_gguf

PROMPTS = ("hello the hello the hello", "hello the hello the hello, then", "something else", "hello the hello")


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("checkpoint") / "tiny.gguf")


async def load(checkpoint: Path, mode: Mode) -> Runtime:
    drafts = ["ngram", "early-exit:1"]
    return await Runtime.load(checkpoint, mode=mode, draft=drafts, gamma=4, num_awaited=1, threads=1, weights="float32")


@pytest.fixture
async def runtime(checkpoint: Path, mode: Mode) -> AsyncIterator[Runtime]:
    """Once loaded as sequential, once as pipelined."""
    async with await load(checkpoint, mode) as loaded:
        yield loaded


@pytest.fixture
async def plain_runtime(checkpoint: Path) -> AsyncIterator[Runtime]:
    async with await Runtime.load(checkpoint, mode="plain", threads=1, weights="float32") as loaded:
        yield loaded


async def test_a_plain_request_proposes_nothing_and_writes_the_same(runtime: Runtime) -> None:
    speculative = await runtime.generate(PROMPTS[0], max_tokens=30, ignore_eos=True)
    plain = await runtime.generate(PROMPTS[0], max_tokens=30, ignore_eos=True, mode="plain")
    assert speculative.metrics.num_draft_tokens > 0
    assert speculative.metrics.num_accepted_draft_tokens > 0
    assert plain.metrics.num_draft_tokens == 0
    assert plain.metrics.num_plain_steps == plain.metrics.num_output_tokens == 30
    assert plain.metrics.num_reused_tokens == plain.metrics.num_prompt_tokens - 1
    assert plain.token_ids == speculative.token_ids


async def test_speed_does_not_count_the_tokens_of_the_first_round(runtime: Runtime) -> None:
    """They are all there when the first one is: counted as later ones they would have cost no time."""
    options = {"max_tokens": 30, "ignore_eos": True, "logit_bias": {5: 100.0}}  # one token forever: drafts are right
    async with runtime.stream("x", **options) as chunks:
        num_first, *_ = [len(chunk.token_ids) async for chunk in chunks]
    metrics = chunks.result.metrics
    assert metrics.num_first_tokens == num_first > 1
    assert metrics.ttft_ms is not None
    assert metrics.tpot_ms == pytest.approx((metrics.total_ms - metrics.ttft_ms) / (30 - num_first))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_modes_in_any_order_leave_nothing_behind(
    runtime: Runtime, plain_runtime: Runtime, temperature: float
) -> None:
    """Drafts that a plain request left behind catch up; what they held of other texts is never used."""
    loaded = runtime.settings.mode
    modes: list[Mode | None] = [Mode.PLAIN, None, Mode.PLAIN, Mode.SEQUENTIAL, loaded, Mode.SEQUENTIAL, Mode.PLAIN]
    modes += [None, Mode.SEQUENTIAL, None]
    for index, mode in enumerate(modes):
        prompt = PROMPTS[index % len(PROMPTS)]
        options = {"max_tokens": 25, "temperature": temperature, "seed": index, "ignore_eos": True}
        result = await runtime.generate(prompt, mode=mode, **options)
        assert result.token_ids == (await plain_runtime.generate(prompt, **options)).token_ids
        assert (result.metrics.num_draft_tokens == 0) is (mode is Mode.PLAIN)
        guessed = result.metrics.num_hits + result.metrics.num_misses > 0
        assert guessed is ((mode or loaded) is Mode.PIPELINED)


async def test_a_plain_request_can_be_left_early_and_followed_by_any_other(
    runtime: Runtime, plain_runtime: Runtime
) -> None:
    expected = await plain_runtime.generate(PROMPTS[0], max_tokens=20, ignore_eos=True)
    async with runtime.stream(PROMPTS[1], max_tokens=100, ignore_eos=True, mode="plain") as chunks:
        async for _ in chunks:
            break
    assert (await runtime.generate(PROMPTS[0], max_tokens=20, ignore_eos=True)).token_ids == expected.token_ids


async def test_a_long_prompt_is_read_plainly_as_well(checkpoint: Path, runtime: Runtime) -> None:
    """Plain and speculative loops leave another share of the prompt to the first round."""
    for length in (14, 15, 16, 17, 31, 32, 33, 100):
        prompt = [3 + position % 250 for position in range(length)]
        plain = await runtime.generate(prompt, max_tokens=5, ignore_eos=True, mode="plain")
        await runtime.generate("forget", max_tokens=1)
        assert plain.token_ids == (await runtime.generate(prompt, max_tokens=5, ignore_eos=True)).token_ids


async def test_a_runtime_without_drafts_cannot_speculate(plain_runtime: Runtime) -> None:
    with pytest.raises(ValueError, match=r"mode must be 'plain' on a runtime that was loaded as 'plain', got 'seq"):
        await plain_runtime.generate("x", mode="sequential")
    with pytest.raises(ValueError, match=r"got 'pipelined'; load it with mode='pipelined', which"):
        await plain_runtime.generate("x", mode="pipelined")
    with pytest.raises(ValueError, match=r"mode must be 'plain'"):
        plain_runtime.stream("x", mode=Mode.SEQUENTIAL)
    assert (await plain_runtime.generate("x", max_tokens=1, mode="plain")).metrics.num_output_tokens == 1


async def test_a_sequential_runtime_has_no_second_worker_to_pipeline_on(checkpoint: Path) -> None:
    async with await load(checkpoint, Mode.SEQUENTIAL) as sequential:
        with pytest.raises(
            ValueError,
            match=r"mode must be 'plain' or 'sequential' on a runtime that was loaded as 'sequential', "
            r"got 'pipelined'; load it with mode='pipelined', which serves simpler ones too",
        ):
            await sequential.generate("x", mode="pipelined")


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("fast", ValueError, r"mode must be one of 'plain', 'sequential', 'pipelined', 'auto', got 'fast'"),
        (1, TypeError, r"mode must be one of 'plain', 'sequential', 'pipelined', 'auto', not int"),
    ],
)
async def test_no_other_mode_is_known(runtime: Runtime, name: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        await runtime.generate("x", mode=name)  # type: ignore[arg-type]  # wrong on purpose


def test_options_take_modes_only() -> None:
    with pytest.raises(TypeError, match=r"mode must be a Mode or None, not str"):
        GenerationOptions(mode="fast")  # type: ignore[arg-type]  # wrong on purpose


async def test_the_description_tells_what_was_loaded(runtime: Runtime, plain_runtime: Runtime, mode: Mode) -> None:
    pipelined = mode is Mode.PIPELINED
    assert runtime.description.as_dict() == {
        "target": "tiny",
        "draft": ("ngram", "tiny (first 1 layers)"),
        "mode": mode.value,
        "gamma": 4,
        "max_gamma": 4,
        "max_lead": 8 if pipelined else 0,
        "num_awaited": 1 if pipelined else None,
        "warmup_tokens": 0,
        "weights": "float32",
        "threads": 2 if pipelined else 1,
        "draft_threads": 1 if pipelined else 0,
        "context_length": 256,
        "device": "cpu",
    }
    assert plain_runtime.description.draft == ()
    assert plain_runtime.description.mode is Mode.PLAIN


async def test_the_description_tells_the_threads_that_were_chosen(checkpoint: Path) -> None:
    async with await Runtime.load(checkpoint, draft="ngram", threads=3) as runtime:
        assert (runtime.description.threads, runtime.description.draft_threads) == (3, 0)


@pytest.mark.parametrize(
    ("draft", "threads", "expected"),
    [
        ("early-exit:1", 3, (3, 1)),
        ("early-exit:1", 1, (2, 1)),  # one is the least for each
        ("ngram", 3, (3, 0)),  # looking something up takes no thread from the target
        ("none", 2, (2, 0)),
    ],
)
async def test_a_draft_model_beside_the_target_has_a_thread_of_all(
    checkpoint: Path, draft: str, threads: int, expected: tuple[int, int]
) -> None:
    async with await Runtime.load(checkpoint, draft=draft, mode="pipelined", threads=threads) as runtime:
        description = runtime.description
        assert (description.threads, description.draft_threads) == expected


def test_resolved_options_leave_nothing_open() -> None:
    greedy = GenerationOptions().resolved()
    assert (greedy.verification, greedy.seed) == (Verification.COUPLED, None)
    seeded = GenerationOptions(temperature=1.0, seed=5).resolved()
    assert (seeded.verification, seeded.seed) == (Verification.COUPLED, 5)
    drawn = [GenerationOptions(temperature=1.0).resolved() for _ in range(2)]
    assert {options.verification for options in drawn} == {Verification.REJECTION}
    assert None not in {options.seed for options in drawn}
    assert drawn[0].seed != drawn[1].seed
    assert drawn[0].resolved() == drawn[0]


def test_options_survive_json() -> None:
    options = GenerationOptions(
        stop=("a", "b"),
        stop_token_ids=(3,),
        logit_bias={4: 0.5},
        verification=Verification.REJECTION,
        mode=Mode.PLAIN,
        seed=1,
    )
    written = options.as_dict()
    assert GenerationOptions.from_keywords(written) == options
    assert json.loads(json.dumps(written))["mode"] == "plain"
    assert GenerationOptions.from_keywords(GenerationOptions().as_dict()) == GenerationOptions()


async def test_resolved_options_draw_the_same_again(runtime: Runtime) -> None:
    """Under the rejection rule in the mode whose blocks do not depend on time, under the coupled rule in any."""
    drawn = GenerationOptions(temperature=1.0, max_tokens=30, ignore_eos=True)
    for options in (
        dataclasses.replace(drawn, mode=Mode.SEQUENTIAL),
        dataclasses.replace(drawn, verification=Verification.COUPLED),
    ):
        keywords = options.resolved().as_dict()
        first, second = [await runtime.generate(PROMPTS[2], **keywords) for _ in range(2)]
        assert first.token_ids == second.token_ids
