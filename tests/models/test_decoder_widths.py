"""The width law: a row's bits do not depend on the calls that the tokens came in."""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from models.attention import plan_windows
from models.block_width import ExactWidths
from models.call_widths import VERIFY_BLOCK
from models.decoder import Decoder
from models.kv_cache import KEY_BUCKET
from models.linear import WeightKind, has_packed_kinds
from tests.support.tiny_decoders import REFERENCES, llama

NUM_TOKENS = 3 * KEY_BUCKET + 9
PACKED_KINDS = [WeightKind.FLOAT16, WeightKind.INT8] if has_packed_kinds(torch.device("cpu")) else []
KINDS = [WeightKind.FLOAT32, *PACKED_KINDS]
"""Not bfloat16: results rounded to eight places hide which kernels differ from a probe of rows as short as these."""


def random_ids(num_tokens: int) -> torch.Tensor:
    return torch.randint(211, (num_tokens,), generator=torch.Generator().manual_seed(3))


def rows_in_blocks(decoder: Decoder, token_ids_T: torch.Tensor, block: int) -> torch.Tensor:
    cache = decoder.new_cache(token_ids_T.shape[0])
    rows = [decoder.forward(ids_T, cache, num_logits=ids_T.shape[0]) for ids_T in token_ids_T.split(block)]
    return torch.cat(rows)


def rows_as_speculation_would_ask(decoder: Decoder, token_ids_T: torch.Tensor, choice: random.Random) -> torch.Tensor:
    """Blocks of random width whose tail is wrong now and then, rolled back, and asked again."""
    num_tokens = token_ids_T.shape[0]
    cache = decoder.new_cache(num_tokens + VERIFY_BLOCK)
    rows: list[torch.Tensor] = []
    while cache.length < num_tokens:
        start = cache.length
        accepted_T = token_ids_T[start : start + choice.randint(1, VERIFY_BLOCK)]
        num_accepted = accepted_T.shape[0]
        wrong_T = torch.randint(211, (choice.randint(0, VERIFY_BLOCK - num_accepted),))
        logits_TV = decoder.forward(torch.cat([accepted_T, wrong_T]), cache, num_logits=num_accepted + wrong_T.shape[0])
        rows.append(logits_TV[:num_accepted])
        cache.rollback(start + num_accepted)
    return torch.cat(rows)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(REFERENCES))
def test_rows_are_equal_to_the_bit(one_thread: None, name: str, kind: WeightKind) -> None:
    decoder = Decoder.from_checkpoint(REFERENCES[name]().checkpoint, weights=kind)
    token_ids_T = random_ids(NUM_TOKENS)
    one_by_one_TV = rows_in_blocks(decoder, token_ids_T, 1)
    for block in (2, 3, 7, 16, VERIFY_BLOCK, 33, 100, NUM_TOKENS):
        assert torch.equal(rows_in_blocks(decoder, token_ids_T, block), one_by_one_TV), f"blocks of {block}"
    for seed in range(3):
        rows_TV = rows_as_speculation_would_ask(decoder, token_ids_T, random.Random(seed))
        assert torch.equal(rows_TV, one_by_one_TV), f"seed {seed}"


@pytest.mark.slow
def test_rows_are_equal_to_the_bit_with_older_instructions() -> None:
    """Intel's library sums in other orders without AVX-512, and then a row's place in a call shows more often."""
    older = {"MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"}
    test = f"{__file__}::test_rows_are_equal_to_the_bit"
    finished = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test, "-k", "one-kv-head or ungrouped"],
        env={**os.environ, **older},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-3000:]


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_logits_does_not_show(one_thread: None, kind: WeightKind) -> None:
    decoder = Decoder.from_checkpoint(llama().checkpoint, weights=kind)
    token_ids_T = random_ids(VERIFY_BLOCK)
    all_rows_TV = decoder.forward(token_ids_T, decoder.new_cache(99), num_logits=VERIFY_BLOCK)
    for num_logits in range(1, VERIFY_BLOCK):
        rows_RV = decoder.forward(token_ids_T, decoder.new_cache(99), num_logits=num_logits)
        assert torch.equal(rows_RV, all_rows_TV[-num_logits:])


def test_bfloat16_leaves_single_rows_kernel_alone(one_thread: None) -> None:
    decoder = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.BFLOAT16)
    assert decoder.widths.layers.narrowest >= 2
    assert decoder.widths.head.narrowest >= 2
    single = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.BFLOAT16, max_block=1)
    ids_T = random_ids(40)
    difference_TV = rows_in_blocks(single, ids_T, 1) - rows_in_blocks(decoder, ids_T, 40)
    assert difference_TV.abs().max() < 0.2


def test_padding_is_never_seen(one_thread: None) -> None:
    """Every call padded to one width of nine gives the numbers of unpadded calls."""
    plain = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32)
    nine = ExactWidths((9,))
    padded = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32)
    padded._widths = dataclasses.replace(plain.widths, layers=nine, attention=ExactWidths((4,)), head=nine)
    token_ids_T = random_ids(NUM_TOKENS)
    expected_TV = rows_in_blocks(plain, token_ids_T, 10)
    for block in (1, 4, 9, 20):
        torch.testing.assert_close(rows_in_blocks(padded, token_ids_T, block), expected_TV, rtol=1e-4, atol=1e-4)


def test_probing_leaves_the_global_generator_alone(one_thread: None) -> None:
    before = torch.get_rng_state()
    decoder = Decoder.from_checkpoint(llama().checkpoint, weights=WeightKind.FLOAT32)
    decoder.probe()
    assert torch.equal(torch.get_rng_state(), before)


def test_probing_again_finds_the_same(one_thread: None) -> None:
    decoder = Decoder.from_checkpoint(llama().checkpoint)
    found = decoder.widths
    assert decoder.probe() == found
    assert decoder.widths == found


def test_no_width_goes_beyond_the_block_asked_for(one_thread: None) -> None:
    decoder = Decoder.from_checkpoint(llama().checkpoint, max_block=40)
    assert decoder.widths.layers.widest <= 40


@pytest.mark.parametrize("widths", [(1, 2, 3, 4, 5, 6, 7, 8), (4, 8), (3,), (2, 5, 64)])
@pytest.mark.parametrize("num_tokens", [1, 2, 9, 17, 64, 200])
@pytest.mark.parametrize("position", [0, 55, 63, 64, 100])
def test_windows_keep_every_row_once_at_the_keys_of_its_position(
    widths: tuple[int, ...], num_tokens: int, position: int
) -> None:
    windows = plan_windows(
        position,
        num_tokens,
        group_size=2,
        sliding_window=None,
        widths=ExactWidths(widths),
        device=torch.device("cpu"),
    )
    kept = []
    for window in windows:
        assert 0 <= window.first <= window.keep_first < window.keep_stop <= min(window.stop, num_tokens)
        assert window.stop - window.first in widths
        for row in range(window.keep_first, window.keep_stop):
            kept.append(row)
            assert window.key_length == KEY_BUCKET * ((position + row) // KEY_BUCKET + 1)
            seen_S = window.mask_NS[2 * (row - window.first) if window.mask_NS.shape[0] > 1 else 0] == 0
            assert seen_S.nonzero().flatten().tolist() == list(range(position + row + 1))
    assert kept == list(range(num_tokens))
