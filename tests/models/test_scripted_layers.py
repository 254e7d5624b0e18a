"""All layers in one call: the bits of one operation after the other, and no call at all where that fails.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import gc
import logging
import resource
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from models import scripted_layers
from models.block_width import ExactWidths
from models.call_widths import CallWidths
from models.config import Family, ModelConfig
from models.decoder import Decoder
from models.decoder_weights import DecoderWeights, load_weights
from models.kv_cache import KEY_BUCKET, KeyValueCache
from models.linear import MatrixKinds, WeightKind, has_packed_kinds
from models.random_model import TOY_DRAFT, TOY_TARGET, RandomTensors

CPU = torch.device("cpu")
PACKED = has_packed_kinds(CPU)
KINDS = [
    pytest.param(MatrixKinds.of(WeightKind.FLOAT32), id="float32"),
    pytest.param(MatrixKinds.of(WeightKind.BFLOAT16), id="bfloat16"),
    *(
        pytest.param(MatrixKinds.of(kind), id=kind.value, marks=pytest.mark.skipif(not PACKED, reason="needs x86-64"))
        for kind in (WeightKind.FLOAT16, WeightKind.INT8)
    ),
    pytest.param(
        MatrixKinds(
            qkv=WeightKind.INT8,
            output=WeightKind.FLOAT32,
            gate_up=WeightKind.BFLOAT16,
            down=WeightKind.INT8,
            head=WeightKind.FLOAT16,
        ),
        id="mixed",
        marks=pytest.mark.skipif(not PACKED, reason="needs x86-64"),
    ),
]
CONFIGS = {
    "qwen2": TOY_TARGET,
    "llama": dataclasses.replace(TOY_TARGET, family=Family.LLAMA, qkv_bias=False, num_kv_heads=8),
    "every-bias": dataclasses.replace(TOY_TARGET, family=Family.LLAMA, output_bias=True, mlp_bias=True),
    "qwen3": dataclasses.replace(TOY_TARGET, family=Family.QWEN3, qk_norm=True, qkv_bias=False),
    "sliding": dataclasses.replace(TOY_TARGET, family=Family.MISTRAL, sliding_window=20, num_kv_heads=1),
    "wide-feed-forward": dataclasses.replace(TOY_TARGET, intermediate_size=1400, num_layers=1),
}
EVERY_WIDTH = ExactWidths((*range(1, 18), 32, 33, 64))


class RandomModel(RandomTensors):
    """Random tensors whose norms differ too."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config, device=CPU, seed=5)

    def tensor(self, name: str) -> torch.Tensor:
        tensor = super().tensor(name)
        generator = torch.Generator().manual_seed(len(name) + sum(name.encode()))
        return tensor.uniform_(0.5, 1.5, generator=generator) if name.endswith("norm.weight") else tensor


class Operations(TorchDispatchMode):
    """Notes the operations of this thread, and whether TorchScript would have been free to change them."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.optimised: set[bool] = set()

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # Sizes, cuts and casts to the same type compute nothing; the two ways of running spell them differently.
        if str(operation) not in {"aten.size.int", "aten.slice.Tensor", "aten.to.dtype"}:
            self.names.append(str(operation))
        self.optimised.add(torch._C._get_graph_executor_optimize())
        return operation(*args, **(kwargs or {}))


pytestmark = pytest.mark.usefixtures("one_thread")


def call_widths(attention: ExactWidths = EVERY_WIDTH) -> CallWidths:
    """Widths that nobody probed: both ways of running need not agree with themselves, only with each other."""
    return CallWidths(layers=EVERY_WIDTH, attention=attention, head=EVERY_WIDTH, exact=False, thread_counts=(1,))


def both(config: ModelConfig, kinds: MatrixKinds, widths: CallWidths | None = None) -> tuple[Decoder, Decoder]:
    """A decoder that runs all layers in one call, and one that does not, over the same weights."""
    weights = load_weights(RandomModel(config), kinds, CPU)
    return of(config, weights, True, widths), of(config, weights, False, widths)


def of(config: ModelConfig, weights: DecoderWeights, scripted: bool, widths: CallWidths | None = None) -> Decoder:
    widths = widths or call_widths()
    decoder = Decoder(config, weights, name="random", device=CPU, widths=widths, scripted=scripted)
    assert decoder.runs_scripted == scripted
    return decoder


def random_ids(num_tokens: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(TOY_DRAFT.vocab_size, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def stored(cache: KeyValueCache) -> torch.Tensor:
    return torch.stack(cache.rows(0, cache.num_positions))


def assert_same_bits(scripted: Decoder, eager: Decoder, blocks: list[int]) -> None:
    capacity = sum(blocks) + 9
    caches = [decoder.new_cache(capacity) for decoder in (scripted, eager)]
    for number, block in enumerate(blocks):
        ids_T = random_ids(block, seed=number)
        found_TV, expected_TV = (
            decoder.forward(ids_T, cache, num_logits=block)
            for decoder, cache in zip((scripted, eager), caches, strict=True)
        )
        assert torch.equal(found_TV, expected_TV), (number, block)
        assert torch.isfinite(found_TV).all()
        for cache in caches:
            cache.rollback(cache.length - block // 3)
    assert torch.equal(stored(caches[0]), stored(caches[1]))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_same_bits_in_every_shape_and_kind(config: ModelConfig, kinds: MatrixKinds) -> None:
    assert_same_bits(*both(config, kinds), [40, 1, 5, 17, 9, 1, 2, 16, 33, 64, 1, 3])


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("name", ["every-bias", "qwen3"])
def test_same_operations_in_the_same_order(name: str, kinds: MatrixKinds) -> None:
    noted = []
    for decoder in both(CONFIGS[name], kinds):
        cache = decoder.new_cache(90)
        decoder.forward(random_ids(KEY_BUCKET - 4), cache, num_logits=0)
        with torch.inference_mode(), Operations() as operations:
            decoder.forward(random_ids(9), cache, num_logits=1)
        noted.append(operations)
    scripted, eager = noted
    assert scripted.names == eager.names
    assert len(scripted.names) > 20 * CONFIGS[name].num_layers
    assert (scripted.optimised, eager.optimised) == ({False, True}, {True})


@pytest.mark.parametrize("attention", [(1,), (2, 5), (3,), (17,), (32,)])
@pytest.mark.parametrize("name", ["llama", "sliding"])
def test_same_bits_however_attention_is_cut(name: str, attention: tuple[int, ...]) -> None:
    widths = call_widths(ExactWidths(attention))
    assert_same_bits(*both(CONFIGS[name], MatrixKinds.of(WeightKind.FLOAT32), widths), [KEY_BUCKET - 6, 16, 1, 7, 64])


@pytest.mark.parametrize("num_threads", [2, 3])
def test_same_bits_under_several_threads(num_threads: int) -> None:
    torch.set_num_threads(num_threads)
    try:
        assert_same_bits(*both(CONFIGS["wide-feed-forward"], MatrixKinds.of(WeightKind.FLOAT32)), [64, 33, 5, 1])
    finally:
        torch.set_num_threads(1)


@pytest.mark.skipif(not PACKED, reason="needs x86-64")
def test_rows_of_zeros_in_int8() -> None:
    weights = load_weights(RandomModel(TOY_TARGET), MatrixKinds.of(WeightKind.INT8), CPU)
    weights.embedding_VE.zero_()
    assert_same_bits(of(TOY_TARGET, weights, True), of(TOY_TARGET, weights, False), [4, 1])


def test_a_fitting_decoder_runs_no_layer_from_python(monkeypatch: pytest.MonkeyPatch) -> None:
    scripted, eager = both(TOY_DRAFT, MatrixKinds.of(WeightKind.FLOAT32))

    def refuse(*_: object) -> None:
        raise AssertionError("a layer was run from Python")

    monkeypatch.setattr(Decoder, "_attention", refuse)
    ids_T = random_ids(70)
    scripted.forward(ids_T, scripted.new_cache(70), num_logits=1)
    with pytest.raises(AssertionError, match="from Python"):
        eager.forward(ids_T, eager.new_cache(70), num_logits=1)


def test_first_layers_run_as_their_decoder_does() -> None:
    scripted, eager = (decoder.first_layers(2) for decoder in both(TOY_TARGET, MatrixKinds.of(WeightKind.FLOAT32)))
    assert (scripted.runs_scripted, eager.runs_scripted) == (True, False)
    assert_same_bits(scripted, eager, [20, 1, 5])
    eager.probe()
    assert not eager.runs_scripted
    scripted.probe()
    assert scripted.runs_scripted


def test_positions_on_the_device_are_left_to_the_eager_layers() -> None:
    scripted, eager = both(TOY_TARGET, MatrixKinds.of(WeightKind.FLOAT32))
    ids_T = random_ids(5)
    rows = [
        decoder.forward_at(ids_T, torch.arange(5), decoder.new_cache(20), key_length=5, num_logits=5)
        for decoder in (scripted, eager)
    ]
    assert torch.equal(*rows)


def test_many_threads_at_once() -> None:
    pairs = [both(CONFIGS[name], MatrixKinds.of(WeightKind.FLOAT32)) for name in ("qwen3", "sliding")]
    start = threading.Barrier(4)

    def read(decoder: Decoder, seed: int) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        cache = decoder.new_cache(300)
        start.wait()
        return [decoder.forward(random_ids(7, seed * 100 + block), cache, num_logits=7) for block in range(40)]

    runs = [(decoders, seed) for decoders in pairs for seed in (1, 2)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda run: read(run[0][0], run[1]), runs))
        expected = list(pool.map(lambda run: read(run[0][1], run[1]), runs))
    for ours, theirs in zip(found, expected, strict=True):
        assert all(torch.equal(a_TV, b_TV) for a_TV, b_TV in zip(ours, theirs, strict=True))


def test_an_unknown_token_leaves_cache_and_decoder_as_they_were() -> None:
    scripted, eager = both(TOY_TARGET, MatrixKinds.of(WeightKind.FLOAT32))
    cache = scripted.new_cache(60)
    scripted.forward(random_ids(9), cache, num_logits=0)
    before = stored(cache).clone()
    for wrong_id in (TOY_TARGET.vocab_size, -1):
        with pytest.raises(IndexError):
            scripted.forward(torch.tensor([3, wrong_id]), cache, num_logits=1)
        assert cache.length == 9
        assert torch.equal(stored(cache), before)
    assert_same_bits(scripted, eager, [9, 1])


def test_logits_are_made_in_inference_mode_and_belong_to_the_caller() -> None:
    scripted, _ = both(TOY_TARGET, MatrixKinds.of(WeightKind.FLOAT32))
    cache = scripted.new_cache(60)
    logits_TV = scripted.forward(random_ids(5), cache, num_logits=5)
    assert logits_TV.is_inference()
    before_TV = logits_TV.clone()
    scripted.forward(random_ids(5, seed=2), cache, num_logits=5)
    assert torch.equal(logits_TV, before_TV)


def test_how_others_scripts_are_optimised_is_left_alone() -> None:
    scripted, _ = both(TOY_DRAFT, MatrixKinds.of(WeightKind.FLOAT32))
    for wanted in (True, False):
        torch._C._set_graph_executor_optimize(wanted)
        try:
            scripted.forward(random_ids(5), scripted.new_cache(9), num_logits=1)
            assert torch._C._get_graph_executor_optimize() is wanted
        finally:
            torch._C._set_graph_executor_optimize(True)


def test_a_long_run_keeps_no_memory() -> None:
    scripted, _ = both(TOY_DRAFT, MatrixKinds.of(WeightKind.FLOAT32))
    cache = scripted.new_cache(200)
    ids_T = random_ids(5)

    def steps(count: int) -> tuple[int, int]:
        for step in range(count):
            scripted.forward(ids_T[: 1 + step % 5], cache, num_logits=1)
            if cache.length > 190:
                cache.rollback(3)
        gc.collect()
        tensors = sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())
        return tensors, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    tensors, peak = steps(500)
    later_tensors, later_peak = steps(2000)
    assert later_tensors == tensors
    bytes_per_unit = 1 if sys.platform == "darwin" else 1024
    assert (later_peak - peak) * bytes_per_unit < 2 * 2**20


def broken(change: Callable[[torch.Tensor], None]) -> Callable[..., torch.Tensor]:
    run = scripted_layers._compiled()
    assert run is not None

    def run_and_change(hidden_TE: torch.Tensor, *rest: object) -> torch.Tensor:
        run(hidden_TE, *rest)
        change(hidden_TE)
        return hidden_TE

    return run_and_change


def add_a_last_bit(hidden_TE: torch.Tensor) -> None:
    hidden_TE[-1, -1] = torch.nextafter(hidden_TE[-1, -1], torch.tensor(torch.inf))


def fail(hidden_TE: torch.Tensor) -> None:
    raise RuntimeError("no such operation")


@pytest.mark.parametrize(
    ("change", "message"), [(add_a_last_bit, "at width 1, bits differ"), (fail, "no such operation")]
)
def test_what_differs_or_fails_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[torch.Tensor], None],
    message: str,
) -> None:
    _, eager = both(TOY_TARGET, MatrixKinds.of(WeightKind.FLOAT32))
    run = broken(change)
    monkeypatch.setattr(scripted_layers, "_compiled", lambda: run)
    weights = load_weights(RandomModel(TOY_TARGET), MatrixKinds.of(WeightKind.FLOAT32), CPU)
    with caplog.at_level(logging.INFO, logger="slipstream"):
        decoder = Decoder(TOY_TARGET, weights, name="random", device=CPU, widths=call_widths())
    assert not decoder.runs_scripted
    assert message in caplog.text
    assert_same_bits(decoder, eager, [9, 1])


def test_layers_that_write_other_cache_rows_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    run = scripted_layers._compiled()
    assert run is not None

    def run_and_forget(*arguments: object) -> torch.Tensor:
        result = run(*arguments)
        rows_by_layer = arguments[3]
        assert isinstance(rows_by_layer, tuple)
        rows_by_layer[-1].zero_()
        return result

    monkeypatch.setattr(scripted_layers, "_compiled", lambda: run_and_forget)
    weights = load_weights(RandomModel(TOY_DRAFT), MatrixKinds.of(WeightKind.FLOAT32), CPU)
    assert not Decoder(TOY_DRAFT, weights, name="random", device=CPU, widths=call_widths()).runs_scripted


@pytest.mark.parametrize("damage", ["no compiler", "no source", "no operation"])
def test_where_nothing_compiles_the_eager_layers_run(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    if damage == "no compiler":
        monkeypatch.delattr(torch.jit, "CompilationUnit")
    elif damage == "no source":
        exec("def sourceless() -> None: ...", made := {})
        monkeypatch.setattr(scripted_layers, "_FUNCTIONS", (made["sourceless"],))
    else:
        monkeypatch.setitem(scripted_layers._IN_SCRIPT, "torch.ops.aten.silu", "torch.ops.aten.no_such_operation")
    monkeypatch.setattr(scripted_layers, "_compiled", scripted_layers._compiled.__wrapped__)
    with caplog.at_level(logging.INFO, logger="slipstream"):
        weights = load_weights(RandomModel(TOY_DRAFT), MatrixKinds.of(WeightKind.FLOAT32), CPU)
        decoder = Decoder(TOY_DRAFT, weights, name="random", device=CPU, widths=call_widths())
    assert not decoder.runs_scripted
    assert "TorchScript does not compile them here" in caplog.text
    assert_same_bits(decoder, of(TOY_DRAFT, weights, False), [9, 1])


def test_a_matrix_of_another_kind_is_left_to_the_eager_layers() -> None:
    weights = load_weights(RandomModel(TOY_DRAFT), MatrixKinds.of(WeightKind.FLOAT32), CPU)
    inner = weights.layers[1].down

    class Counted:
        num_bytes = 0
        calls = 0

        def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return inner(x_TI)

    counted = Counted()
    layers = (weights.layers[0], dataclasses.replace(weights.layers[1], down=counted))
    weights = dataclasses.replace(weights, layers=layers)
    decoder = Decoder(TOY_DRAFT, weights, name="random", device=CPU, widths=call_widths())
    assert not decoder.runs_scripted
    decoder.forward(random_ids(5), decoder.new_cache(9), num_logits=1)
    assert counted.calls == 1


def test_a_checkpoint_may_be_loaded_without() -> None:
    tensors = RandomModel(TOY_DRAFT)
    assert not Decoder.from_checkpoint(tensors, weights=WeightKind.FLOAT32, max_block=4, scripted=False).runs_scripted
    assert Decoder.from_checkpoint(tensors, weights=WeightKind.FLOAT32, max_block=4).runs_scripted
