"""Calls whose positions are a tensor: the rows of ordinary calls, and nothing that makes the host wait.

Shape suffixes: T tokens, R logit rows, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from models.causal_model import Cache
from models.decoder import Decoder
from models.kv_cache import KEY_BUCKET
from models.linear import WeightKind
from models.positioned_model import PositionedModel
from tests.support.host_reads import forbid_host_reads
from tests.support.tiny_decoders import REFERENCES, Reference, llama, mistral

NUM_TOKENS = 150
CAPACITY = 160


@pytest.fixture(scope="module", params=list(REFERENCES))
def reference(request: pytest.FixtureRequest) -> Reference:
    return REFERENCES[request.param]()


@pytest.fixture(scope="module")
def decoder(one_thread: None, reference: Reference) -> Decoder:
    return Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32, max_block=40)


@pytest.fixture(scope="module")
def plain_decoder(one_thread: None) -> Decoder:
    return Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32, max_block=40)


def random_ids(num_tokens: int, seed: int = 3) -> torch.Tensor:
    return torch.randint(211, (num_tokens,), generator=torch.Generator().manual_seed(seed))


def assert_same_rows(rows_RV: torch.Tensor, expected_RV: torch.Tensor) -> None:
    torch.testing.assert_close(rows_RV, expected_RV, rtol=1e-4, atol=1e-4)
    assert torch.equal(rows_RV.argmax(dim=1), expected_RV.argmax(dim=1))


def all_rows(decoder: Decoder, token_ids_T: torch.Tensor) -> torch.Tensor:
    cache = decoder.new_cache(CAPACITY)
    blocks_T = token_ids_T.split(decoder.max_block)
    return torch.cat([decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]) for ids_T in blocks_T])


def run_at(
    decoder: Decoder, cache: Cache, token_ids_T: torch.Tensor, start: int, stop: int, *, key_length: int | None = None
) -> torch.Tensor:
    """Rows of the tokens from `start` on, each at its own place in the text."""
    return decoder.forward_at(
        token_ids_T[start:stop],
        torch.arange(start, stop),
        cache,
        key_length=stop if key_length is None else key_length,
        num_logits=stop - start,
    )


@pytest.mark.parametrize("width", [1, 2, 5, 17, 40])
def test_rows_of_a_whole_text_equal_those_of_forward(decoder: Decoder, width: int) -> None:
    ids_T = random_ids(NUM_TOKENS)
    cache = decoder.new_cache(CAPACITY)
    rows = [
        run_at(decoder, cache, ids_T, start, min(start + width, NUM_TOKENS)) for start in range(0, NUM_TOKENS, width)
    ]
    assert_same_rows(torch.cat(rows), all_rows(decoder, ids_T))
    assert cache.length == 0


def test_the_last_two_tokens_again_at_each_step(decoder: Decoder) -> None:
    """How a draft that cannot know its position on the host goes on; at the start one token stands for both."""
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    rows = []
    for position in range(NUM_TOKENS):
        positions_T = torch.tensor([position - 1, position]).clamp(min=0)
        rows.append(
            decoder.forward_at(
                ids_T.index_select(0, positions_T), positions_T, cache, key_length=position + 1, num_logits=1
            )
        )
    assert_same_rows(torch.cat(rows), expected_TV)


@pytest.mark.parametrize("keep", [1, 50, KEY_BUCKET - 1, KEY_BUCKET, 66])
def test_rejected_tokens_leave_no_trace(decoder: Decoder, keep: int) -> None:
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    for start in range(0, keep, 30):
        run_at(decoder, cache, ids_T, start, min(start + 30, keep))
    wrong_T = (ids_T + 1) % 211
    for width in (1, 5, 16):
        run_at(decoder, cache, wrong_T, keep, keep + width)
        assert_same_rows(run_at(decoder, cache, ids_T, keep, keep + 2), expected_TV[keep : keep + 2])


def test_the_key_length_is_only_a_bound(decoder: Decoder) -> None:
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    run_at(decoder, cache, ids_T, 0, 40)
    # What lies beyond the text so far must stay unseen, so let it be something.
    run_at(decoder, cache, random_ids(CAPACITY, seed=9), 120, CAPACITY)
    for key_length in (43, 64, 65, 130, CAPACITY):
        rows_TV = run_at(decoder, cache, ids_T, 40, 43, key_length=key_length)
        assert_same_rows(rows_TV, expected_TV[40:43])


def test_tokens_may_come_in_any_order(decoder: Decoder) -> None:
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    order_T = torch.randperm(17, generator=torch.Generator().manual_seed(1))
    rows_TV = decoder.forward_at(ids_T[order_T], order_T, cache, key_length=17, num_logits=17)
    assert_same_rows(rows_TV, expected_TV[order_T])


def test_it_continues_what_forward_began_and_the_other_way_round(decoder: Decoder) -> None:
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    decoder.forward(ids_T[:33], cache, num_logits=0)
    assert_same_rows(run_at(decoder, cache, ids_T, 33, 41), expected_TV[33:41])
    assert cache.length == 33
    cache.advance(8)
    assert_same_rows(decoder.forward(ids_T[41:50], cache, num_logits=9), expected_TV[41:50])


def test_the_last_position_of_a_cache(plain_decoder: Decoder) -> None:
    ids_T = random_ids(33)
    expected_TV = all_rows(plain_decoder, ids_T)
    cache = plain_decoder.new_cache(33)
    run_at(plain_decoder, cache, ids_T, 0, 31)
    assert_same_rows(run_at(plain_decoder, cache, ids_T, 31, 33), expected_TV[31:])


def test_a_long_sliding_window(one_thread: None) -> None:
    reference = mistral(70, max_position_embeddings=1024)
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.FLOAT32)
    ids_T = random_ids(700)
    cache = decoder.new_cache(700)
    rows = [run_at(decoder, cache, ids_T, start, start + 100) for start in range(0, 700, 100)]
    torch.testing.assert_close(torch.cat(rows), reference.logits(ids_T), rtol=1e-4, atol=1e-4)


def test_first_layers_have_it_as_well(plain_decoder: Decoder) -> None:
    draft = plain_decoder.first_layers(2)
    assert isinstance(draft, PositionedModel)
    ids_T = random_ids(30)
    assert_same_rows(run_at(draft, draft.new_cache(CAPACITY), ids_T, 0, 30), all_rows(draft, ids_T))


def test_it_writes_a_bfloat16_cache(one_thread: None) -> None:
    reference = REFERENCES["qwen2"]()
    decoder = Decoder.from_checkpoint(reference.checkpoint, weights=WeightKind.BFLOAT16, max_block=40)
    ids_T = random_ids(NUM_TOKENS)
    expected_TV = all_rows(decoder, ids_T)
    cache = decoder.new_cache(CAPACITY)
    rows_TV = torch.cat([run_at(decoder, cache, ids_T, start, start + 5) for start in range(0, NUM_TOKENS, 5)])
    errors_T = (rows_TV - expected_TV).norm(dim=1) / expected_TV.norm(dim=1)
    assert errors_T.max() < 0.1
    assert errors_T.median() < 0.02


def test_only_the_last_rows_are_returned(plain_decoder: Decoder) -> None:
    ids_T, positions_T = random_ids(9), torch.arange(9)
    expected_TV = all_rows(plain_decoder, ids_T)
    for num_logits in range(10):
        cache = plain_decoder.new_cache(20)
        rows_RV = plain_decoder.forward_at(ids_T, positions_T, cache, key_length=9, num_logits=num_logits)
        assert rows_RV.shape == (num_logits, 211)
        assert rows_RV.dtype == torch.float32
        if num_logits:
            assert_same_rows(rows_RV, expected_TV[9 - num_logits :])


def test_addresses_stay(plain_decoder: Decoder) -> None:
    cache = plain_decoder.new_cache(100)
    addresses = [keys.data_ptr() for keys, _ in cache.keys_and_values(KEY_BUCKET)]
    for start in range(0, 90, 9):
        run_at(plain_decoder, cache, random_ids(99), start, start + 9)
    assert [keys.data_ptr() for keys, _ in cache.keys_and_values(KEY_BUCKET)] == addresses


@pytest.mark.parametrize("width", [1, 2, 17])
def test_nothing_is_read_on_the_host(decoder: Decoder, width: int) -> None:
    cache = decoder.new_cache(CAPACITY)
    ids_T, positions_T = random_ids(width), torch.arange(width)
    with forbid_host_reads():
        decoder.forward_at(ids_T, positions_T, cache, key_length=100, num_logits=width)
        # A verify is launched at a position that the host knows, but it too is only enqueued.
        decoder.forward(ids_T, cache, num_logits=width)


@pytest.mark.parametrize(
    ("num_tokens", "num_positions", "key_length", "num_logits", "message"),
    [
        (0, 0, 5, 0, "1 to max_block = 40 tokens, got 0"),
        (41, 41, 41, 1, "1 to max_block = 40 tokens, got 41"),
        (3, 2, 5, 1, "one position for each of 3 tokens, got 2"),
        (3, 3, 5, 4, "num_logits must be within 0 and the 3 tokens"),
        (3, 3, 0, 1, "key_length must be within 1 and the cache's capacity 60, got 0"),
        (3, 3, 61, 1, "key_length must be within 1 and the cache's capacity 60, got 61"),
    ],
)
def test_bad_calls(
    plain_decoder: Decoder, num_tokens: int, num_positions: int, key_length: int, num_logits: int, message: str
) -> None:
    cache = plain_decoder.new_cache(60)
    with pytest.raises(ValueError, match=message):
        plain_decoder.forward_at(
            random_ids(num_tokens), torch.arange(num_positions), cache, key_length=key_length, num_logits=num_logits
        )


def test_bad_tensors(plain_decoder: Decoder) -> None:
    cache = plain_decoder.new_cache(60)
    good_T = torch.arange(3)
    for ids, positions, message in (
        (good_T.float(), good_T, "token_ids_T must be one dimension of int64"),
        (good_T, good_T.int(), "positions_T must be one dimension of int64"),
        (good_T, good_T[None], "positions_T must be one dimension of int64"),
        (good_T, good_T.to("meta"), "positions_T must be on cpu as the tokens are, got meta"),
    ):
        with pytest.raises(ValueError, match=message):
            plain_decoder.forward_at(ids, positions, cache, key_length=9, num_logits=1)
    other = plain_decoder.first_layers(1)
    with pytest.raises(ValueError, match="this model's new_cache"):
        plain_decoder.forward_at(good_T, good_T, other.new_cache(9), key_length=9, num_logits=1)
