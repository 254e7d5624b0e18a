"""The lean decoder against transformers: the same numbers, whatever the calls are cut into."""

from __future__ import annotations

import threading

import pytest
import torch

from models.causal_model import Cache, CausalModel
from models.decoder import Decoder
from models.kv_cache import KEY_BUCKET
from models.linear import MatrixKinds, WeightKind, has_packed_kinds
from tests.support.tiny_decoders import REFERENCES, Reference, llama, mistral

NUM_TOKENS = 150
TOLERANCE = 1e-4


@pytest.fixture(scope="module", params=list(REFERENCES))
def reference(request: pytest.FixtureRequest) -> Reference:
    return REFERENCES[request.param]()


@pytest.fixture(scope="module")
def decoder(one_thread: None, reference: Reference) -> Decoder:
    return Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32)


@pytest.fixture(scope="module")
def plain_decoder(one_thread: None) -> Decoder:
    return Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32, max_block=40)


@pytest.fixture(scope="module")
def token_ids_T(reference: Reference) -> torch.Tensor:
    return random_ids(NUM_TOKENS)


@pytest.fixture(scope="module")
def expected_TV(reference: Reference, token_ids_T: torch.Tensor) -> torch.Tensor:
    return reference.logits(token_ids_T)


def random_ids(num_tokens: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(211, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def assert_close(logits: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(logits, expected, rtol=TOLERANCE, atol=TOLERANCE)


def run(decoder: Decoder, token_ids_T: torch.Tensor, cache: Cache, block: int) -> torch.Tensor:
    """All logits of `token_ids_T`, appended in blocks."""
    rows = [decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]) for ids_T in token_ids_T.split(block)]
    return torch.cat(rows)


def test_it_is_a_causal_model(plain_decoder: Decoder) -> None:
    assert isinstance(plain_decoder, CausalModel)
    assert (plain_decoder.name, plain_decoder.vocab_size, plain_decoder.context_length) == ("tiny", 211, 512)
    assert (plain_decoder.max_block, plain_decoder.device) == (40, torch.device("cpu"))


def test_prefill(decoder: Decoder, token_ids_T: torch.Tensor, expected_TV: torch.Tensor) -> None:
    cache = decoder.new_cache(NUM_TOKENS)
    assert_close(decoder.forward(token_ids_T, cache, num_logits=NUM_TOKENS), expected_TV)
    assert cache.length == NUM_TOKENS


@pytest.mark.parametrize("block", range(1, 17))
def test_blocks_after_a_prefill(
    decoder: Decoder, token_ids_T: torch.Tensor, expected_TV: torch.Tensor, block: int
) -> None:
    cache = decoder.new_cache(NUM_TOKENS)
    decoder.forward(token_ids_T[:37], cache, num_logits=0)
    assert_close(run(decoder, token_ids_T[37:], cache, block), expected_TV[37:])


@pytest.mark.parametrize("keep", [50, 53, KEY_BUCKET - 1, KEY_BUCKET, 66, 0])
def test_rollback_of_wrong_tokens(
    decoder: Decoder, token_ids_T: torch.Tensor, expected_TV: torch.Tensor, keep: int
) -> None:
    cache = decoder.new_cache(NUM_TOKENS)
    if keep:
        run(decoder, token_ids_T[:keep], cache, 16)
    for width in (1, 5, 16):
        wrong_ids_T = (token_ids_T[keep : keep + width] + 1) % 211
        decoder.forward(wrong_ids_T, cache, num_logits=1)
        cache.rollback(keep)
        assert_close(run(decoder, token_ids_T[keep : keep + width], cache, 7), expected_TV[keep : keep + width])
        cache.rollback(keep)


def test_rollback_keeps_addresses(plain_decoder: Decoder) -> None:
    cache = plain_decoder.new_cache(100)
    addresses = [keys.data_ptr() for keys, _ in cache.keys_and_values(KEY_BUCKET)]
    for _ in range(5):
        plain_decoder.forward(random_ids(9), cache, num_logits=9)
        cache.rollback(cache.length - 6)
    assert [keys.data_ptr() for keys, _ in cache.keys_and_values(KEY_BUCKET)] == addresses
    assert cache.length == 15


def test_only_the_last_rows_are_returned(plain_decoder: Decoder) -> None:
    ids_T = random_ids(33)
    all_rows_TV = plain_decoder.forward(ids_T, plain_decoder.new_cache(33), num_logits=33)
    for num_logits in (0, 1, 5, 20, 32):
        cache = plain_decoder.new_cache(33)
        rows_RV = plain_decoder.forward(ids_T, cache, num_logits=num_logits)
        assert rows_RV.shape == (num_logits, 211)
        assert rows_RV.dtype == torch.float32
        assert torch.equal(rows_RV, all_rows_TV[33 - num_logits :])
        assert cache.length == 33


def test_logits_belong_to_the_caller(plain_decoder: Decoder) -> None:
    cache = plain_decoder.new_cache(60)
    first_RV = plain_decoder.forward(random_ids(8), cache, num_logits=8)
    before_RV = first_RV.clone()
    plain_decoder.forward(random_ids(8, seed=4), cache, num_logits=8)
    assert torch.equal(first_RV, before_RV)


def test_a_long_sliding_window_hides_whole_blocks_of_keys(one_thread: None) -> None:
    # The attention kernel goes through keys in blocks of 512; here the first of them is hidden whole.
    reference = mistral(70, max_position_embeddings=1024)
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32)
    ids_T = random_ids(700)
    cache = decoder.new_cache(700)
    logits_TV = run(decoder, ids_T, cache, 100)
    assert_close(logits_TV, reference.logits(ids_T))
    cache.rollback(650)
    assert_close(run(decoder, ids_T[650:], cache, 1), logits_TV[650:])


def test_a_cache_may_end_at_a_bucket_and_be_filled_to_the_brim(plain_decoder: Decoder) -> None:
    ids_T = random_ids(KEY_BUCKET)
    expected_TV = plain_decoder.forward(ids_T[:33], plain_decoder.new_cache(200), num_logits=1)
    cache = plain_decoder.new_cache(33)
    run(plain_decoder, ids_T[:32], cache, 5)
    assert torch.equal(plain_decoder.forward(ids_T[32:33], cache, num_logits=1), expected_TV)


def test_the_cache_grows_the_table_of_rotations(plain_decoder: Decoder) -> None:
    ids_T = random_ids(30)
    short_TV = plain_decoder.forward(ids_T, plain_decoder.new_cache(30), num_logits=30)
    plain_decoder.new_cache(5000)
    assert torch.equal(plain_decoder.forward(ids_T, plain_decoder.new_cache(30), num_logits=30), short_TV)


@pytest.mark.parametrize(
    ("num_tokens", "num_logits", "message"),
    [
        (0, 0, "1 to max_block = 40 tokens, got 0"),
        (41, 1, "1 to max_block = 40 tokens, got 41"),
        (3, 4, "num_logits must be within 0 and the 3 tokens"),
        (3, -1, "num_logits must be within 0"),
        (12, 1, "12 tokens do not fit behind 9 in a cache of capacity 20"),
    ],
)
def test_bad_calls(plain_decoder: Decoder, num_tokens: int, num_logits: int, message: str) -> None:
    cache = plain_decoder.new_cache(20)
    plain_decoder.forward(random_ids(9), cache, num_logits=0)
    with pytest.raises(ValueError, match=message):
        plain_decoder.forward(random_ids(num_tokens), cache, num_logits=num_logits)
    assert cache.length == 9


@pytest.mark.parametrize("ids", [torch.zeros(1, 3, dtype=torch.int64), torch.zeros(3)])
def test_token_ids_are_one_row_of_int64(plain_decoder: Decoder, ids: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="one dimension of int64"):
        plain_decoder.forward(ids, plain_decoder.new_cache(9), num_logits=1)


def test_an_id_beyond_the_vocabulary_leaves_the_cache_as_it_was(plain_decoder: Decoder) -> None:
    cache = plain_decoder.new_cache(60)
    ids_T = random_ids(30)
    ids_T[-1] = 211
    with pytest.raises(IndexError):
        plain_decoder.forward(ids_T, cache, num_logits=1)
    assert cache.length == 0


def test_a_cache_of_another_model_is_refused(plain_decoder: Decoder) -> None:
    other = Decoder.from_checkpoint(llama(num_hidden_layers=2).checkpoint, weights=WeightKind.FLOAT32, max_block=2)
    with pytest.raises(ValueError, match="this model's new_cache"):
        plain_decoder.forward(random_ids(3), other.new_cache(9), num_logits=1)


def test_bad_settings(plain_decoder: Decoder) -> None:
    with pytest.raises(ValueError, match="max_block must be at least 1, got 0"):
        Decoder.from_checkpoint(llama().checkpoint, max_block=0)
    with pytest.raises(ValueError, match="capacity"):
        plain_decoder.new_cache(0)


def test_first_layers_share_weights_and_equal_a_shallow_model(plain_decoder: Decoder) -> None:
    checkpoint = llama().checkpoint
    shallow = llama(num_hidden_layers=1)
    kept = {name: tensor for name, tensor in checkpoint.tensors.items() if name in shallow.checkpoint.tensors}
    shallow.model.load_state_dict(kept)
    first = plain_decoder.first_layers(1)
    ids_T = random_ids(40)
    assert_close(first.forward(ids_T, first.new_cache(40), num_logits=40), shallow.logits(ids_T))
    assert first.widths == plain_decoder.widths
    assert first.num_weight_bytes < plain_decoder.num_weight_bytes
    for num_layers in (0, 4):
        with pytest.raises(ValueError, match=f"within 1 and 3, got {num_layers}"):
            plain_decoder.first_layers(num_layers)


def test_it_runs_in_any_thread_and_outside_inference_mode(plain_decoder: Decoder) -> None:
    ids_T = random_ids(20)
    expected_TV = plain_decoder.forward(ids_T, plain_decoder.new_cache(20), num_logits=20)
    found: list[torch.Tensor] = []

    def work() -> None:
        torch.set_num_threads(1)
        cache = plain_decoder.new_cache(20)
        found.append(run(plain_decoder, ids_T[:9], cache, 4))
        with torch.inference_mode():
            found.append(run(plain_decoder, ids_T[9:], cache, 3))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert torch.equal(torch.cat(found), expected_TV)
    assert not expected_TV.requires_grad


def test_weight_bytes_count_a_shared_embedding_once(one_thread: None) -> None:
    tied = llama(tie_word_embeddings=True).checkpoint
    untied = llama().checkpoint
    embedding_bytes = 211 * 48 * 4
    tied_bytes, untied_bytes = (
        Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32, max_block=2).num_weight_bytes
        for checkpoint in (tied, untied)
    )
    assert untied_bytes == sum(tensor.nbytes for tensor in untied.tensors.values())
    assert tied_bytes == untied_bytes - embedding_bytes


@pytest.mark.skipif(not has_packed_kinds(torch.device("cpu")), reason="needs an x86-64 CPU")
@pytest.mark.parametrize(
    ("kind", "tolerance"), [(WeightKind.BFLOAT16, 2e-2), (WeightKind.FLOAT16, 2e-3), (WeightKind.INT8, 6e-2)]
)
def test_packed_kinds_stay_near_float32(
    reference: Reference,
    one_thread: None,
    token_ids_T: torch.Tensor,
    expected_TV: torch.Tensor,
    kind: WeightKind,
    tolerance: float,
) -> None:
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=kind)
    logits_TV = run(decoder, token_ids_T, decoder.new_cache(NUM_TOKENS), 16)
    errors_T = (logits_TV - expected_TV).norm(dim=1) / expected_TV.norm(dim=1)
    assert errors_T.median() < tolerance


def test_bfloat16_keeps_one_table_of_embeddings_and_a_cache_half_as_large(one_thread: None) -> None:
    tied = llama(tie_word_embeddings=True).checkpoint
    whole, half = (
        Decoder.from_checkpoint(tied, weights=kind, max_block=2) for kind in (WeightKind.FLOAT32, WeightKind.BFLOAT16)
    )
    norm_bytes = 4 * 48 * (2 * 3 + 1)
    assert half.num_weight_bytes == (whole.num_weight_bytes - norm_bytes) // 2 + norm_bytes
    assert half.new_cache(50).num_bytes * 2 == whole.new_cache(50).num_bytes
    untied = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.BFLOAT16, max_block=2)
    assert untied.num_weight_bytes == half.num_weight_bytes + 2 * 211 * 48


@pytest.mark.parametrize("name", ["llama-biases-tied", "qwen3"])
def test_input_scales_change_nothing_in_float32(name: str, one_thread: None) -> None:
    reference = REFERENCES[name]()
    config = reference.checkpoint.config
    generator = torch.Generator().manual_seed(1)
    scales = {
        f"layers.{layer}.{matrix}": torch.rand(width, generator=generator) + 0.5
        for layer in range(config.num_layers)
        for matrix, width in (
            ("qkv", config.hidden_size),
            ("gate_up", config.hidden_size),
            ("down", config.intermediate_size),
        )
    }
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32, input_scales=scales)
    ids_T = random_ids(30)
    assert_close(decoder.forward(ids_T, decoder.new_cache(30), num_logits=30), reference.logits(ids_T))


def test_input_scales_of_no_matrix_are_refused(one_thread: None) -> None:
    with pytest.raises(ValueError, match=r"no matrix of this model: 'layers\.3\.qkv'"):
        Decoder.from_checkpoint(llama().checkpoint, input_scales={"layers.3.qkv": torch.ones(48)})


def test_a_kind_for_each_matrix(one_thread: None) -> None:
    kinds = MatrixKinds(
        qkv=WeightKind.FLOAT32,
        output=WeightKind.FLOAT32,
        gate_up=WeightKind.FLOAT32,
        down=WeightKind.FLOAT32,
        head=WeightKind.FLOAT16,
    )
    checkpoint = llama().checkpoint
    mixed = Decoder.from_checkpoint(checkpoint, weights=kinds, max_block=2)
    plain = Decoder.from_checkpoint(checkpoint, weights=WeightKind.FLOAT32, max_block=2)
    # The head and the table of embeddings take half as much each.
    assert plain.num_weight_bytes - mixed.num_weight_bytes == 2 * 211 * 48 * 2
