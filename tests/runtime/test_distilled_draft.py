"""Distilled drafts on whole runtimes: how they are found, that they change nothing, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import torch

import models.shipped
from models import (
    DistilledSize,
    DraftDesign,
    DraftTarget,
    InsufficientMemoryError,
    PairError,
    UnsupportedModelError,
    WeightKind,
    estimate_memory,
    open_checkpoint,
    open_draft,
)
from models.memory import MemoryEstimate
from runtime import LoadSettings, Mode, Runtime
from runtime.draft_choice import sources_on, wanted_sources
from runtime.draft_spec import DraftKind, DraftSpec, read_draft_specs
from runtime.placement import Placement
from scheduler import DeviceResidency, FeatureLane, FeatureProposer, ModelProposer, ThreadStream
from tests.support.draft_folders import write_random_draft
from tests.support.tiny_checkpoint import write_tiny_folder

PROMPT = "hello the hello the hello"
LONG = "the quick brown fox " * 30
"""More than two blocks of the target."""
REQUESTS = (
    (PROMPT, {"temperature": 0.9, "seed": 3}),
    (LONG, {"temperature": 1.2, "seed": 4, "top_k": 12}),
    (f"{LONG}jumps", {"temperature": 0.0}),
)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(
        tmp_path_factory.mktemp("target"), num_hidden_layers=3, max_position_embeddings=1024, tie_word_embeddings=True
    )


@pytest.fixture(scope="module")
def identity(target: Path) -> DraftTarget:
    with open_checkpoint(target) as checkpoint:
        return DraftTarget.of(checkpoint)


@pytest.fixture(scope="module")
def drafts(identity: DraftTarget, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("drafts")
    return {
        design.value: write_random_draft(
            folder / design.value, identity, design, num_layers=1, head_size=identity.config.vocab_size // 2
        )
        for design in DraftDesign
    }


async def outputs(runtime: Runtime, mode: Mode | None = None) -> list[list[int]]:
    return [
        (await runtime.generate(prompt, max_tokens=12, ignore_eos=True, mode=mode, **sampling)).token_ids  # type: ignore[arg-type]  # real options
        for prompt, sampling in REQUESTS
    ]


_expected: dict[str, list[list[int]]] = {}


async def expected_outputs(target: Path, weights: str) -> list[list[int]]:
    if weights not in _expected:
        async with await Runtime.load(target, mode="plain", weights=weights, threads=1) as runtime:
            _expected[weights] = await outputs(runtime)
    return _expected[weights]


@pytest.mark.parametrize(
    ("design", "mode", "weights", "with_ngram"),
    [
        ("token", "sequential", "float16", False),
        ("feature", "sequential", "float32", True),
        ("token", "pipelined", "int8", True),
        ("feature", "pipelined", "int8", False),
        ("feature", "pipelined", "float16", True),
        ("feature", "auto", "float16", False),
    ],
)
async def test_no_distilled_draft_changes_a_token(
    target: Path, drafts: dict[str, Path], design: str, mode: str, weights: str, with_ngram: bool
) -> None:
    """In every mode that the runtime serves, whatever a plain request left unread before."""
    draft = ["ngram", drafts[design]] if with_ngram else drafts[design]
    gamma: dict[str, object] = {} if mode == "auto" else {"gamma": 3}
    async with await Runtime.load(target, draft=draft, mode=mode, weights=weights, threads=1, **gamma) as runtime:
        expected = await expected_outputs(target, weights)
        assert runtime.description.draft[-1] == f"{design} (distilled)"
        for served in (None, Mode.PLAIN, None):
            assert await outputs(runtime, served) == expected
        result = await runtime.generate(PROMPT, max_tokens=30, ignore_eos=True, temperature=1.0, seed=5)
        if mode != "auto" and not with_ngram:
            assert result.metrics.num_draft_tokens > 0
        proposer = runtime._engine.proposers[-1]
        assert isinstance(proposer, FeatureProposer if design == "feature" else ModelProposer)
        if isinstance(proposer, FeatureProposer):
            lane = proposer.lane
            assert isinstance(lane, FeatureLane)
            assert lane.num_missing == 0


async def test_a_draft_that_can_propose_only_what_is_forbidden_proposes_nothing(
    target: Path, identity: DraftTarget, tmp_path: Path
) -> None:
    from models import write_draft
    from tests.support.draft_folders import random_draft_tensors

    tensors = random_draft_tensors(identity.config, DraftDesign.TOKEN)
    tensors["head.token_ids"] = torch.tensor(sorted(identity.config.eos_token_ids), dtype=torch.int32)
    write_draft(tmp_path, design=DraftDesign.TOKEN, num_layers=1, target=identity, tensors=tensors)
    async with await Runtime.load(target, draft=tmp_path, mode="sequential", gamma=3, threads=1) as runtime:
        result = await runtime.generate("hello", max_tokens=12, min_tokens=12, seed=1, temperature=1.0)
        assert len(result.token_ids) == 12
        assert result.metrics.num_draft_tokens == 0
        assert (await runtime.generate("hello", max_tokens=12, ignore_eos=True)).metrics.num_draft_tokens > 0


class TestChoice:
    def test_a_folder_with_a_description_is_a_distilled_draft(self, drafts: dict[str, Path], target: Path) -> None:
        for draft in (drafts["token"], str(drafts["token"])):
            (spec,) = read_draft_specs(draft, is_demo=False)
            assert spec == DraftSpec(kind=DraftKind.DISTILLED, source=draft)
        assert read_draft_specs(target, is_demo=False) == (DraftSpec(kind=DraftKind.MODEL, source=target),)
        with pytest.raises(ValueError, match="one of early exit, a distilled draft and a draft model"):
            LoadSettings(draft=[drafts["token"], "early-exit"])

    async def test_auto_finds_the_draft_of_this_very_target(
        self, drafts: dict[str, Path], target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        settings = LoadSettings(target=target)
        assert await wanted_sources(settings) == (DraftSpec(kind=DraftKind.NGRAM),)
        monkeypatch.setattr(models.shipped, "SHIPPED_FOLDER", drafts["token"].parent)
        found = DraftSpec(kind=DraftKind.DISTILLED, source=drafts["feature"])
        for auto in (settings, LoadSettings(target=target, draft=["auto"])):
            assert await wanted_sources(auto) == (DraftSpec(kind=DraftKind.NGRAM), found)
        async with await Runtime.load(target, mode="sequential", threads=1) as runtime:
            assert runtime.description.draft == ("ngram", "feature (distilled)")
        other = write_tiny_folder(tmp_path, seed=8, tie_word_embeddings=True)
        assert await wanted_sources(LoadSettings(target=other)) == (DraftSpec(kind=DraftKind.NGRAM),)
        # Whoever names a draft, or none, gets that.
        assert await wanted_sources(LoadSettings(target=target, draft="ngram")) == (DraftSpec(kind=DraftKind.NGRAM),)
        assert await wanted_sources(LoadSettings(target=target, mode=Mode.PLAIN)) == ()

    @pytest.mark.parametrize("file", ["draft.json", "draft.safetensors"])
    async def test_a_damaged_draft_that_was_shipped_is_passed_over(
        self,
        drafts: dict[str, Path],
        target: Path,
        file: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        shutil.copytree(drafts["feature"], tmp_path / "damaged")
        monkeypatch.setattr(models.shipped, "SHIPPED_FOLDER", tmp_path)
        assert len(await wanted_sources(LoadSettings(target=target))) == 2
        damaged = tmp_path / "damaged" / file
        damaged.write_bytes(damaged.read_bytes()[:-9])
        assert await wanted_sources(LoadSettings(target=target)) == (DraftSpec(kind=DraftKind.NGRAM),)
        assert "is left out" in caplog.text

    async def test_a_target_that_cannot_be_opened_says_so_once(
        self, drafts: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(models.shipped, "SHIPPED_FOLDER", drafts["token"].parent)
        assert await wanted_sources(LoadSettings(target=tmp_path)) == (DraftSpec(kind=DraftKind.NGRAM),)

    def test_on_a_gpu_a_draft_that_reads_features_is_refused(self, drafts: dict[str, Path], target: Path) -> None:
        stream = ThreadStream("gpu", num_threads=1)
        placement = Placement(
            device=torch.device("cuda:0"),
            target_stream=stream,
            draft_stream=stream,
            overlaps=False,
            residency=DeviceResidency(),
        )
        try:
            feature, token = (LoadSettings(target=target, draft=drafts[design]) for design in ("feature", "token"))
            with pytest.raises(ValueError, match="runs on the CPU only so far, not on cuda:0; name a distilled draft"):
                sources_on(placement, feature, feature.draft_specs())
            assert sources_on(placement, token, token.draft_specs()) == token.draft_specs()
            # Nobody asked for the one that came with the project.
            auto = LoadSettings()
            shipped = (DraftSpec(kind=DraftKind.NGRAM), *feature.draft_specs())
            assert sources_on(placement, auto, shipped) == (DraftSpec(kind=DraftKind.EARLY_EXIT),)
        finally:
            stream.close()


class TestRefused:
    async def test_a_draft_of_another_target(self, drafts: dict[str, Path], tmp_path: Path) -> None:
        other = write_tiny_folder(tmp_path / "other", seed=8, tie_word_embeddings=True)
        with pytest.raises(PairError, match=r"made for .target\d+., not for .other.*models\.distill --target other"):
            await Runtime.load(other, draft=drafts["feature"], threads=1)

    async def test_a_damaged_draft(self, drafts: dict[str, Path], target: Path, tmp_path: Path) -> None:
        for path in drafts["token"].iterdir():
            (tmp_path / path.name).write_bytes(path.read_bytes())
        description = json.loads((tmp_path / "draft.json").read_text())
        (tmp_path / "draft.json").write_text(json.dumps({**description, "version": 9}))
        with pytest.raises(Exception, match="version is 9"):
            await Runtime.load(target, draft=tmp_path, threads=1)

    async def test_a_target_that_transformers_runs(self, drafts: dict[str, Path], tmp_path: Path) -> None:
        import transformers

        from tests.support.tiny_checkpoint import save_tokenizer, tiny_tokenizer

        config = transformers.GPT2Config(
            vocab_size=tiny_tokenizer().vocab_size, n_positions=64, n_embd=16, n_layer=1, n_head=2
        )
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
        save_tokenizer(tmp_path)
        with pytest.raises(UnsupportedModelError, match="needs its target in the lean decoder"):
            await Runtime.load(tmp_path, draft=drafts["token"], threads=1)


class TestMemory:
    def estimate(self, identity: DraftTarget, draft: Path) -> MemoryEstimate:
        opened = open_draft(draft, identity)
        return estimate_memory(
            identity.config,
            context_length=256,
            draft=opened.config,
            distilled=DistilledSize(
                cut_head_size=opened.head_size,
                reads_features=opened.design is DraftDesign.FEATURE,
                weights=WeightKind.FLOAT16,
            ),
        )

    def test_what_a_draft_adds_is_counted(self, identity: DraftTarget, drafts: dict[str, Path]) -> None:
        alone = estimate_memory(identity.config, context_length=256)
        token, feature = (self.estimate(identity, drafts[design]) for design in ("token", "feature"))
        hidden = identity.config.hidden_size
        files = {design: (drafts[design] / "draft.safetensors").stat().st_size for design in drafts}
        head_bytes = 2 * hidden * (identity.config.vocab_size // 2)
        assert token.weight_bytes - alone.weight_bytes == pytest.approx(files["token"] + head_bytes, rel=0.05)
        assert feature.weight_bytes - alone.weight_bytes == pytest.approx(files["feature"] + head_bytes, rel=0.05)
        assert feature.cache_bytes_per_token - token.cache_bytes_per_token == 2 * 4 * hidden

    async def test_too_little_memory_is_refused(
        self, target: Path, drafts: dict[str, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from models import available_memory
        from runtime import assembly

        enough = available_memory(torch.device("cpu"))
        monkeypatch.setattr(assembly, "available_memory", lambda device: dataclasses.replace(enough, num_bytes=1 << 20))
        with pytest.raises(InsufficientMemoryError):
            await Runtime.load(target, draft=drafts["feature"], threads=1)
