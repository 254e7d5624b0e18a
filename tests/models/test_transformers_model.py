"""The adapter over transformers' models: the model's own logits, bit-equal rows at any call width, exact rollback.

Shape suffixes: T tokens, V vocabulary.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from models.causal_model import Cache, CausalModel
from models.errors import CheckpointError, UnsupportedModelError
from models.kv_cache import KEY_BUCKET, KeyValueCache
from models.transformers_model import TransformersModel

VOCAB_SIZE = 97
SPECIAL: dict[str, Any] = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SHAPE: dict[str, Any] = {
    **SPECIAL,
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 256,
}
GROUPED: dict[str, Any] = {**SHAPE, "num_key_value_heads": 2, "head_dim": 8}
GPT2_SHAPE: dict[str, Any] = {**SPECIAL, "vocab_size": VOCAB_SIZE, "n_embd": 32, "n_layer": 2, "n_head": 4}

EXACT = {
    "gpt2": transformers.GPT2Config(**GPT2_SHAPE, n_positions=256),
    "llama": transformers.LlamaConfig(**GROUPED),
    "gpt_neox": transformers.GPTNeoXConfig(**SHAPE),
    "opt": transformers.OPTConfig(**{**SHAPE, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "mistral with a window": transformers.MistralConfig(**GROUPED, sliding_window=5),
    "gemma3 with windows in some layers": transformers.Gemma3TextConfig(
        **GROUPED, sliding_window=5, layer_types=["sliding_attention", "full_attention"]
    ),
    "mixtral, a mixture of experts": transformers.MixtralConfig(**GROUPED, num_local_experts=4),
}
REFUSED = {
    "recurrent": (transformers.MambaConfig(**SPECIAL, hidden_size=32, num_hidden_layers=2, vocab_size=97), "Mamba"),
    "hybrid": (transformers.RecurrentGemmaConfig(**SHAPE), "RecurrentGemma"),
    "convolutional": (
        transformers.Lfm2Config(**GROUPED, layer_types=["conv", "full_attention"]),
        "Lfm2.*conv",
    ),
    "chunked": (
        transformers.Llama4TextConfig(**GROUPED, attention_chunk_size=5, num_local_experts=2, intermediate_size_mlp=64),
        "Llama4.*chunked_attention",
    ),
    "sees the future": (transformers.BertConfig(**SHAPE), "BertLMHead"),
    "masks by itself": (
        transformers.GPTNeoConfig(
            **SPECIAL,
            vocab_size=97,
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            max_position_embeddings=256,
        ),
        "GPTNeo",
    ),
}


def wrapped(config: Any) -> Any:
    """A random model; its configuration is its own, so that no test can change another's."""
    torch.manual_seed(0)
    return transformers.AutoModelForCausalLM.from_config(copy.deepcopy(config))


def build(config: Any, **options: Any) -> TransformersModel:
    return TransformersModel(wrapped(config), **options)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Models this small only lose by a second thread; exact widths hold for the number they were found with."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", params=EXACT)
def exact_model(request: pytest.FixtureRequest) -> TransformersModel:
    return build(EXACT[request.param])


@pytest.fixture(scope="module")
def llama() -> TransformersModel:
    return build(EXACT["llama"])


def token_ids(num_tokens: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(VOCAB_SIZE, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def own_logits(model: TransformersModel, ids_T: torch.Tensor) -> torch.Tensor:
    """What the wrapped model says about the whole text at once, without any cache."""
    with torch.inference_mode():
        return torch.as_tensor(model._model(input_ids=ids_T[None], use_cache=False).logits[0])


def feed(model: TransformersModel, cache: Cache, ids_T: torch.Tensor, widths: list[int]) -> torch.Tensor:
    """All rows of a text that is fed in blocks of the given widths, the last of them repeated to the end."""
    rows, done = [], 0
    while done < len(ids_T):
        width = widths.pop(0) if len(widths) > 1 else widths[0]
        block_T = ids_T[done : done + width]
        rows.append(model.forward(block_T, cache, num_logits=len(block_T)))
        done += len(block_T)
    return torch.cat(rows)


def test_is_a_causal_model(llama: TransformersModel) -> None:
    assert isinstance(llama, CausalModel)
    assert isinstance(llama.new_cache(8), Cache)
    assert (llama.vocab_size, llama.context_length, llama.name) == (VOCAB_SIZE, 256, "LlamaForCausalLM")


def test_logits_are_the_models_own(exact_model: TransformersModel) -> None:
    ids_T = token_ids(KEY_BUCKET + 20)
    cache = exact_model.new_cache(128)
    logits_TV = feed(exact_model, cache, ids_T, [7, 1, 1, 2, 16, 3, 30])
    assert logits_TV.dtype == torch.float32
    torch.testing.assert_close(logits_TV, own_logits(exact_model, ids_T), rtol=0, atol=1e-5)


def test_bits_of_a_row_do_not_depend_on_the_call(exact_model: TransformersModel) -> None:
    ids_T = token_ids(KEY_BUCKET + 16)
    one_call_TV = exact_model.forward(ids_T, exact_model.new_cache(80), num_logits=len(ids_T))
    for widths in ([1], [5], [17], [51, 1, 9, 4, 3, 12]):
        assert torch.equal(feed(exact_model, exact_model.new_cache(80), ids_T, widths), one_call_TV)


def test_key_count_of_a_query_depends_on_its_position_alone(llama: TransformersModel) -> None:
    """Attention over another number of keys, masked or not, sums in another order on some machines."""

    def key_counts(widths: list[int]) -> list[int]:
        """The key count that each of 200 positions was run with."""
        cache = llama.new_cache(200)
        calls: list[tuple[int, int]] = []

        def note(_: object, __: object, options: dict[str, Any]) -> None:
            calls.append((cache.length, options["attention_mask"].shape[-1]))

        hook = llama._model.register_forward_pre_hook(note, with_kwargs=True)
        try:
            feed(llama, cache, token_ids(200), widths)
        finally:
            hook.remove()
        stops = [start for start, _ in calls[1:]] + [200]
        return [count for (start, count), stop in zip(calls, stops, strict=True) for _ in range(start, stop)]

    expected = key_counts([200])
    assert len(expected) == 200
    assert all(count > position for position, count in enumerate(expected))
    for widths in ([1], [7], [60, 9, 4, 13]):
        assert key_counts(widths) == expected


def test_rollback_leaves_no_trace(exact_model: TransformersModel) -> None:
    ids_T, other_T = token_ids(80), token_ids(80, seed=1)
    straight_TV = feed(exact_model, exact_model.new_cache(100), ids_T, [5])
    cache = exact_model.new_cache(100)
    feed(exact_model, cache, ids_T[:70], [9])
    feed(exact_model, cache, other_T[70:], [4])
    cache.rollback(70)
    assert cache.length == 70
    assert torch.equal(feed(exact_model, cache, ids_T[70:], [3]), straight_TV[70:])
    cache.rollback(0)
    assert torch.equal(feed(exact_model, cache, ids_T, [8]), straight_TV)


def test_cache_is_allocated_once(llama: TransformersModel) -> None:
    cache = llama.new_cache(100)
    addresses, num_bytes = [buffer.data_ptr() for buffer in cache.buffers()], cache.num_bytes
    feed(llama, cache, token_ids(100), [7])
    cache.rollback(3)
    feed(llama, cache, token_ids(20), [1])
    assert [buffer.data_ptr() for buffer in cache.buffers()] == addresses
    # Two layers of keys and values, two heads of eight float32 each, at least 100 positions.
    assert cache.num_bytes == num_bytes >= 2 * 2 * 2 * 8 * 4 * 100


def test_results_belong_to_the_caller(llama: TransformersModel) -> None:
    cache = llama.new_cache(20)
    first_TV = llama.forward(token_ids(5), cache, num_logits=2)
    kept_TV = first_TV.clone()
    llama.forward(token_ids(5, seed=1), cache, num_logits=5)
    assert torch.equal(first_TV, kept_TV)
    assert llama.forward(token_ids(5), cache, num_logits=0).shape == (0, VOCAB_SIZE)
    assert cache.length == 15


def test_last_positions_of_learned_embeddings_take_padded_calls() -> None:
    model = build(transformers.GPT2Config(**GPT2_SHAPE, n_positions=21))
    ids_T = token_ids(21)
    logits_TV = feed(model, model.new_cache(21), ids_T, [18, 1])
    torch.testing.assert_close(logits_TV, own_logits(model, ids_T), rtol=0, atol=1e-5)


def test_padded_head_is_reported_in_full() -> None:
    padded = wrapped(EXACT["llama"])
    padded.resize_token_embeddings(pad_to_multiple_of=8)
    model = TransformersModel(padded)
    ids_T = torch.tensor([103, 96, 4])
    logits_TV = model.forward(ids_T, model.new_cache(3), num_logits=3)
    assert logits_TV.shape == (3, model.vocab_size) == (3, 104)
    torch.testing.assert_close(logits_TV, own_logits(model, ids_T), rtol=0, atol=1e-5)


def test_half_precision_gives_float32_rows_alike_at_any_width() -> None:
    model = TransformersModel(wrapped(EXACT["llama"]).to(torch.bfloat16))
    ids_T = token_ids(30)
    logits_TV = model.forward(ids_T, model.new_cache(30), num_logits=30)
    assert logits_TV.dtype == torch.float32
    assert torch.equal(feed(model, model.new_cache(30), ids_T, [1]), logits_TV)


def test_a_failing_call_leaves_the_cache_as_it_was(llama: TransformersModel, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = llama.new_cache(100)
    ids_T = token_ids(90)
    straight_TV = feed(llama, llama.new_cache(100), ids_T, [6])
    feed(llama, cache, ids_T[:10], [10])
    run, calls = llama._run, []

    def fail_at_third_call(*arguments: Any, **options: Any) -> torch.Tensor:
        calls.append(arguments)
        if len(calls) == 3:
            raise RuntimeError("out of luck")
        return run(*arguments, **options)

    monkeypatch.setattr(llama, "_run", fail_at_third_call)
    with pytest.raises(RuntimeError, match="out of luck"):
        llama.forward(ids_T[10:], cache, num_logits=1)
    assert cache.length == 10
    assert torch.equal(feed(llama, cache, ids_T[10:], [11]), straight_TV[10:])


@pytest.mark.parametrize(("config", "message"), REFUSED.values(), ids=REFUSED)
def test_models_that_cannot_be_rewound_are_refused_by_name(config: Any, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        build(config)


def test_other_wrong_models_are_refused_by_name() -> None:
    encoder_decoder = transformers.T5Config(
        vocab_size=97, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with pytest.raises(UnsupportedModelError, match="T5ForConditionalGeneration is an encoder-decoder"):
        TransformersModel(transformers.T5ForConditionalGeneration(encoder_decoder))
    with pytest.raises(UnsupportedModelError, match="LlamaModel has no language-modelling head"):
        TransformersModel(transformers.LlamaModel(EXACT["llama"]))
    flexible = wrapped(EXACT["llama"])
    flexible.config._attn_implementation = "flex_attention"
    with pytest.raises(UnsupportedModelError, match="attn_implementation='sdpa'"):
        TransformersModel(flexible)


def test_bad_calls_change_nothing() -> None:
    model = build(EXACT["llama"], max_block=16)
    cache = model.new_cache(20)
    model.forward(token_ids(10), cache, num_logits=0)
    for ids_T, num_logits in (
        (token_ids(0), 0),
        (token_ids(17), 1),
        (token_ids(11), 1),
        (token_ids(2), 3),
        (token_ids(2), -1),
        (token_ids(2)[None], 1),
        (token_ids(2).int(), 1),
    ):
        with pytest.raises(ValueError, match=r"token|num_logits"):
            model.forward(ids_T, cache, num_logits=num_logits)
    foreign = KeyValueCache(
        capacity=20, num_layers=2, num_kv_heads=2, head_dim=8, spare_positions=0, device=torch.device("cpu")
    )
    for other in (foreign, build(EXACT["gpt2"]).new_cache(20)):
        with pytest.raises(ValueError, match="new_cache"):
            model.forward(token_ids(2), other, num_logits=1)
    for length in (-1, 11):
        with pytest.raises(ValueError, match=str(length)):
            cache.rollback(length)
    assert cache.length == 10


def test_bad_limits() -> None:
    with pytest.raises(ValueError, match="max_block"):
        build(EXACT["llama"], max_block=0)
    for capacity in (0, 257):
        with pytest.raises(ValueError, match=str(capacity)):
            build(EXACT["llama"]).new_cache(capacity)


def test_context_without_a_stated_limit_must_be_given() -> None:
    bloom = transformers.BloomConfig(**SPECIAL, hidden_size=32, n_layer=2, n_head=4, vocab_size=VOCAB_SIZE)
    with pytest.raises(ValueError, match="context_length"):
        build(bloom)
    model = build(bloom, context_length=40)
    ids_T = token_ids(40)
    logits_TV = feed(model, model.new_cache(40), ids_T, [9])
    torch.testing.assert_close(logits_TV, own_logits(model, ids_T), rtol=0, atol=1e-5)


def test_longrope_stays_within_the_original_context() -> None:
    scaling = {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    assert build(transformers.LlamaConfig(**GROUPED, rope_parameters=scaling)).context_length == 64


def test_loads_a_folder_of_safetensors(tmp_path: Path, llama: TransformersModel) -> None:
    llama._model.save_pretrained(tmp_path)
    loaded = TransformersModel.from_pretrained(str(tmp_path), name="tiny", max_block=32)
    assert (loaded.name, loaded.max_block) == ("tiny", 32)
    ids_T = token_ids(20)
    logits_TV = loaded.forward(ids_T, loaded.new_cache(20), num_logits=20)
    assert torch.equal(logits_TV, llama.forward(ids_T, llama.new_cache(20), num_logits=20))


def test_pickled_weights_are_never_opened(tmp_path: Path, llama: TransformersModel) -> None:
    llama._model.config.save_pretrained(tmp_path)

    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "exploded",))

    torch.save(Bomb(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors"):
        TransformersModel.from_pretrained(str(tmp_path))
    assert not (tmp_path / "exploded").exists()


def test_incomplete_weights_are_refused(tmp_path: Path, llama: TransformersModel) -> None:
    llama._model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    without_one = {name: tensor for name, tensor in tensors.items() if "layers.1.mlp.up_proj" not in name}
    save_file(without_one, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match="up_proj"):
        TransformersModel.from_pretrained(str(tmp_path))
    save_file({name: tensor[:-1] for name, tensor in tensors.items()}, weights, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        TransformersModel.from_pretrained(str(tmp_path))
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        TransformersModel.from_pretrained(str(tmp_path))


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    (tmp_path / "modeling_strange.py").write_text(f"open({str(tmp_path / 'exploded')!r}, 'w').close()\n")
    configuration = {
        "model_type": "strange",
        "auto_map": {"AutoConfig": "modeling_strange.C", "AutoModelForCausalLM": "modeling_strange.M"},
    }
    (tmp_path / "config.json").write_text(json.dumps(configuration))
    with pytest.raises(UnsupportedModelError, match=str(tmp_path)):
        TransformersModel.from_pretrained(str(tmp_path))
    assert not (tmp_path / "exploded").exists()
