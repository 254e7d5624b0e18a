"""What peers load, with real libraries on tiny models: transformers in its modes, our own runtime, the cut GGUF."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from models import open_checkpoint
from profiling.peers.first_layers import write_first_layers
from profiling.peers.own_runtime import OwnRuntime
from profiling.peers.peer import PeerMode, PeerName, PeerRefusal, PeerSettings
from profiling.peers.transformers_peer import TransformersPeer
from profiling.peers.worker import load_peer, peak_memory_bytes
from profiling.reference import first_layers, reference_model
from tests.support.tiny_checkpoint import write_tiny_folder, write_tiny_gguf

PROMPT = [5, 6, 7, 8, 5, 6, 7, 8, 5, 6]


@pytest.fixture(autouse=True)
def same_threads() -> Iterator[None]:
    """A peer sets the number of threads of its process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_folder(tmp_path_factory.mktemp("peers") / "target", num_hidden_layers=3)


def settings(target: Path, mode: PeerMode, **others: object) -> PeerSettings:
    fields: dict[str, object] = {"peer": PeerName.TRANSFORMERS, "threads": 1, "context_length": 64, **others}
    return PeerSettings(mode=mode, target=str(target), **fields)  # type: ignore[arg-type]  # by name


def test_transformers_writes_the_same_in_every_mode(target: Path, tmp_path: Path) -> None:
    """The target itself as a draft is always right, so that several tokens come at once."""
    plain = load_peer(settings(target, PeerMode.PLAIN))
    expected = plain.answer(PROMPT, 12).token_ids
    assert len(expected) == 12
    for mode, draft in ((PeerMode.ASSISTED, None), (PeerMode.ASSISTED, str(target)), (PeerMode.PROMPT_LOOKUP, None)):
        answer = TransformersPeer(settings(target, mode, draft=draft)).answer(PROMPT, 12)
        assert answer.token_ids == expected
        assert answer.ttft_ms > 0
        assert answer.tpot_ms > 0


def test_transformers_refuses_other_families(tmp_path: Path) -> None:
    other = write_tiny_folder(tmp_path / "qwen", "qwen3")
    with pytest.raises(PeerRefusal, match="plain llama models"):
        load_peer(settings(other, PeerMode.PLAIN))


def test_first_layers_share_what_they_are_cut_from(target: Path) -> None:
    with open_checkpoint(target) as checkpoint:
        model = reference_model(checkpoint)
    shorter = first_layers(model, 2)
    assert (len(shorter.model.layers), len(model.model.layers)) == (2, 3)
    assert (shorter.config.num_hidden_layers, model.config.num_hidden_layers) == (2, 3)
    whole = {id(parameter) for parameter in model.parameters()}
    assert {id(parameter) for parameter in shorter.parameters()} < whole
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="num_layers must be 1 to 2"):
            first_layers(model, wrong)


def test_the_first_layers_of_a_gguf_file_are_a_gguf_file(tmp_path: Path) -> None:
    """With the same tokenizer and tensors; two layers of it are the model whose third layer is left out."""
    whole = write_tiny_gguf(tmp_path / "whole.gguf", num_hidden_layers=3)
    write_first_layers(whole, tmp_path / "cut.gguf", num_layers=2)
    with open_checkpoint(whole) as target, open_checkpoint(tmp_path / "cut.gguf") as cut:
        assert cut.config.num_layers == 2
        for name in ("model.embed_tokens.weight", "model.norm.weight", "model.layers.1.mlp.down_proj.weight"):
            assert torch.equal(cut.tensor(name), target.tensor(name))
        assert not cut.has("model.layers.2.mlp.down_proj.weight")
        text = "one and two"
        assert cut.tokenizer().encode(text) == target.tokenizer().encode(text)
        cut_logits = reference_model(cut)(torch.tensor([PROMPT])).logits
        assert torch.equal(cut_logits, first_layers(reference_model(target), 2)(torch.tensor([PROMPT])).logits)
    for wrong in (0, 3):
        with pytest.raises(ValueError, match="num_layers must be 1 to 2"):
            write_first_layers(whole, tmp_path / "none.gguf", num_layers=wrong)


def test_our_own_runtime_can_be_alone_in_a_process(target: Path) -> None:
    own = settings(
        target, PeerMode.PLAIN, peer=PeerName.SLIPSTREAM, weights="float32", draft_sources=("ngram", "early-exit")
    )
    runtime = load_peer(own)
    assert isinstance(runtime, OwnRuntime)
    answer = runtime.answer(PROMPT, 12)
    runtime.close()
    assert answer.token_ids == TransformersPeer(settings(target, PeerMode.PLAIN)).answer(PROMPT, 12).token_ids
    peak = peak_memory_bytes()
    assert peak is None or peak > 50_000_000  # torch alone takes more
    with pytest.raises(PeerRefusal, match="does not exist"):
        load_peer(settings(Path("no/such/model"), PeerMode.PLAIN, peer=PeerName.SLIPSTREAM, draft_sources=("ngram",)))
