"""What the target writes: its own law, what is put in, and what is noted beside it.

Shape suffixes: B rows, N sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from models.distill.reading import read_sequences
from models.distill.seeds import SeedSource
from models.distill.snippets import Snippets
from models.distill.text_kind import TextKind
from models.distill.writer import Writer, draw
from tests.support.statistics import chi_square_z
from tests.support.tiny_checkpoint import tiny_tokenizer
from tests.support.toy_distillation import CONFIG, FixedSeeds, toy_checkpoint, toy_target, write_toy_text

pytestmark = pytest.mark.usefixtures("one_thread")


def law_z(drawn_N: torch.Tensor, law_V: torch.Tensor) -> float:
    """Of the ids that are to come up at least five times, and all others together."""
    counts = torch.bincount(drawn_N.long(), minlength=len(law_V)).double().numpy()
    expected = law_V.double().numpy() * len(drawn_N)
    often = expected >= 5
    pooled = [np.append(values[often], values[~often].sum() + 1e-9) for values in (counts, expected)]
    return chi_square_z(*pooled)


def test_draws_follow_the_softmax_at_each_rows_temperature() -> None:
    logits_V = torch.randn(600, generator=torch.Generator().manual_seed(2))
    logits_V[[0, 255, 256, 599]] = float("-inf")
    temperatures_B = torch.tensor([1.0, 0.5]).repeat(6000)
    drawn_B, log_totals_B = draw(logits_V.repeat(12_000, 1), temperatures_B, torch.Generator().manual_seed(4))
    for temperature in (1.0, 0.5):
        chosen = drawn_B[temperatures_B == temperature]
        assert abs(law_z(chosen, (logits_V / temperature).softmax(-1))) < 5
        assert abs(law_z(chosen, (logits_V / (1.5 - temperature)).softmax(-1))) > 20
    assert not set(drawn_B.tolist()) & {0, 255, 256, 599}
    torch.testing.assert_close(log_totals_B, logits_V.logsumexp(-1).expand(12_000))


def test_the_only_id_with_weight_is_always_drawn() -> None:
    logits_BV = torch.full((64, 300), float("-inf"))
    logits_BV[:, 299] = 1.0
    drawn_B, _ = draw(logits_BV, torch.ones(64), torch.Generator().manual_seed(1))
    assert drawn_B.tolist() == [299] * 64


def test_written_tokens_follow_the_target() -> None:
    target = toy_target()
    seeds = FixedSeeds(beginning=(7, 9), temperatures=(1.0, 0.5))
    written_NT = write_toy_text(target, seeds, num_sequences=4000, length=3).token_ids_NT
    logits_V = target.logits(target.features(torch.tensor([[7, 9]])))[0, -1]
    assert bool((written_NT[:, :2] == torch.tensor([7, 9])).all())
    for first, temperature in enumerate((1.0, 0.5)):
        assert abs(law_z(written_NT[first::2, 2], (logits_V / temperature).softmax(-1))) < 5


def test_a_wave_is_the_same_whenever_it_is_written_and_no_other() -> None:
    target = toy_target()
    shards = [write_toy_text(target, FixedSeeds(), num_sequences=8, length=20, wave=wave) for wave in (1, 1, 2)]
    assert torch.equal(shards[0].token_ids_NT, shards[1].token_ids_NT)
    assert torch.equal(shards[0].features_NTE, shards[1].features_NTE)
    assert torch.equal(shards[0].log_totals_NT, shards[1].log_totals_NT)
    assert not torch.equal(shards[0].token_ids_NT, shards[2].token_ids_NT)


def test_what_is_noted_is_what_a_reading_gives() -> None:
    target = toy_target()
    written = write_toy_text(target, FixedSeeds(temperatures=(1.0, 0.4)), num_sequences=6, length=24)
    read = read_sequences(target, written.token_ids_NT)
    torch.testing.assert_close(written.features_NTE, read.features_NTE, atol=4e-3, rtol=0)
    torch.testing.assert_close(written.log_totals_NT, read.log_totals_NT, atol=1e-4, rtol=0)
    features = target.features(written.token_ids_NT.long())
    torch.testing.assert_close(read.log_totals_NT, target.logits(features).logsumexp(-1), atol=1e-4, rtol=0)
    assert written.features_NTE.dtype is torch.float16
    # Of two given tokens the second is no answer to the first.
    assert written.asked_NT.tolist() == [[False] + [True] * 23] * 6
    assert bool(read.asked_NT.all())


def test_messages_end_and_the_other_side_goes_on() -> None:
    tokenizer = tiny_tokenizer()
    checkpoint = toy_checkpoint(dataclasses.replace(CONFIG, vocab_size=tokenizer.vocab_size))
    checkpoint.tensors["lm_head.weight"] *= 0.1
    seeds = SeedSource(
        tokenizer,
        kinds=(TextKind.CHAT, TextKind.COPY),
        snippets=Snippets(prose=("hello the hell",), functions=()),
        temperatures=(1.0,),
        seed=0,
    )
    assert seeds.frame is not None
    writer = Writer(toy_target(checkpoint, num_positions=400), seeds, num_sequences=12, sequence_length=400, seed=1)
    shard = writer.write(0)
    assert shard.kinds == (TextKind.CHAT, TextKind.COPY) * 6
    to_assistant = list(seeds.frame.to_assistant)
    num_turns = 0
    for number, ids in enumerate(shard.token_ids_NT.tolist()):
        seed = seeds.seed(number)
        num_forced = len(seed.forced_ids)
        assert tuple(ids[:num_forced]) == seed.forced_ids
        asks = seed.writes_question
        position = num_forced
        drawn_in_answer = [False] * num_forced
        while position < len(ids):
            drawn_in_answer.append(not asks)
            if ids[position] not in seeds.frame.turn_ends:
                position += 1
                continue
            follow_up = seeds.follow_up(seed, number, position, ids[position])
            expected = to_assistant if asks else list(follow_up.forced_ids)
            assert ids[position : position + len(expected)] == expected[: len(ids) - position]
            position += len(expected)
            drawn_in_answer += [False] * (len(expected) - 1)
            asks = False if asks else follow_up.writes_question
            num_turns += 1
        assert shard.asked_NT[number, :-1].tolist() == drawn_in_answer[1 : len(ids)]
    assert num_turns > 8
