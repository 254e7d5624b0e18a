"""How many tokens rounds bring over a given text, from the chances of its proposals.

Owns the sum over all ways in which rounds could have written the text. Knows nothing of models.

A round that begins before token s proposes tokens s, s + 1, ..., s + gamma - 1; of these the first a are accepted, and
the next round begins before token s + a + 1. Where the draft is bad rounds begin more often, so a mean over all places
of the text would promise too much: each place counts with the chance that a round begins there.

Shape suffixes: K proposals of a round, N tokens of the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class ExpectedRounds:
    """Over one text: those whose whole proposal lies in it."""

    num_rounds: float
    num_tokens: float
    """That they bring, each round's last token, which is the target's own, included."""


def expected_rounds(chances_KN: torch.Tensor) -> ExpectedRounds:
    """Rounds of K proposals over a text of N tokens.

    Args:
        chances_KN: that token n, where it is the k-th proposal of its round, is accepted if those before it were.
            Entries of column n below row n + 1 are never looked at: no round is so far along there.
    """
    gamma, length = chances_KN.shape
    chances = chances_KN.tolist()
    begins = [1.0] + [0.0] * (length + gamma + 1)
    num_rounds = num_tokens = 0.0
    for start in range(length):
        alive, brought = begins[start], begins[start]
        for step in range(min(gamma, length - start)):
            refused = alive * (1 - chances[step][start + step])
            begins[start + step + 1] += refused
            alive -= refused
            brought += alive
        begins[min(start + gamma, length) + 1] += alive
        if start + gamma <= length:
            num_rounds += begins[start]
            num_tokens += brought
    return ExpectedRounds(num_rounds=num_rounds, num_tokens=num_tokens)
