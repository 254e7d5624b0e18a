"""The sampling law and the judgement twice over, on the host and in device tensors, for tests that compare them.

Shape suffixes: R rows, B tokens of a block, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st

from scheduler import (
    Distribution,
    Proposal,
    SamplingLaw,
    SamplingSettings,
    Verdict,
    Verification,
    judge,
)
from scheduler.noise import Purpose
from scheduler.on_device import (
    CountRows,
    DeviceLaw,
    DeviceVerdict,
    HostVerdict,
    NoiseTable,
    judge_on_device,
    purposes_of,
)

STOP_IDS = frozenset({2, 7})

sampling_options = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 5e-324, 1e-38, 0.3, 1.0, 1.7, 40.0]),
        "top_k": st.sampled_from([0, 0, 1, 3, 9, 1000]),
        "top_p": st.sampled_from([1.0, 1.0, 1e-300, 0.4, 0.9, 0.9999]),
        "min_p": st.sampled_from([0.0, 0.0, 0.02, 0.3, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 0.7, 1.3]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.6, -0.4]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.3]),
        "logit_bias": st.sampled_from([{}, {}, {1: 2.5, 4: -1e4, 0: -0.25}]),
        "min_tokens": st.sampled_from([0, 0, 3, 5]),
    }
)
"""Options of every kind, each of them often off."""


def random_rows(num_rows: int, vocab_size: int, *, seed: int, tied: bool = False) -> torch.Tensor:
    """float32 rows; tied ones hold each value many times."""
    rows_RV = torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * 2
    return rows_RV.round() if tied else rows_RV


def ids_tensor(token_ids: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(token_ids), dtype=torch.int64)


class Twins:
    """One request's law on the host and on the device, somewhere in the middle of its output."""

    def __init__(
        self,
        settings: SamplingSettings,
        *,
        vocab_size: int,
        prompt_ids: Sequence[int] = (1, 0, 1),
        output_ids: Sequence[int] = (),
        device: str = "cpu",
    ) -> None:
        self.settings = settings
        self.host = SamplingLaw(settings, vocab_size=vocab_size, stop_ids=STOP_IDS)
        self.device = DeviceLaw(settings, vocab_size=vocab_size, stop_ids=STOP_IDS, device=device)
        self.history = self.host.start_history(prompt_ids).extended(tuple(output_ids))
        counts = self.device.start_counts(prompt_ids)
        self.counts = None if counts is None else counts.with_tokens(ids_tensor(output_ids).to(device))
        self.noise = NoiseTable(
            settings.seed,
            device=device,
            first_position=len(prompt_ids),
            num_positions=self.history.length + 64,
            purposes=purposes_of(settings),
        )
        self.noise.reserve(self.history.length + 20)

    def count_rows(self, block_ids: Sequence[int]) -> CountRows | None:
        return None if self.counts is None else self.counts.rows(ids_tensor(block_ids).to(self.device.device))

    def apply_on_device(self, logits_RV: torch.Tensor, block_ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
        rows_R = torch.arange(len(logits_RV))
        return self.device.apply(
            logits_RV, num_output_R=rows_R + self.history.num_output_tokens, counts=self.count_rows(block_ids)
        )

    def apply_on_host(self, logits_RV: torch.Tensor, block_ids: Sequence[int]) -> list[Distribution]:
        return [
            self.host.apply(logits_V, self.history, tuple(block_ids[:row])) for row, logits_V in enumerate(logits_RV)
        ]

    def proposal(self, draft_rows_RV: torch.Tensor, *, one_hot: bool = False) -> Proposal:
        """The chain that a draft with these rows offers; a one-hot one hides what it drew from."""
        coupled = self.settings.verification is Verification.COUPLED
        purpose = Purpose.SHARED if coupled else Purpose.DRAFT
        token_ids: list[int] = []
        probabilities = []
        for draft_row_V in draft_rows_RV:
            distribution = self.host.apply(draft_row_V, self.history, token_ids)
            probabilities.append(distribution.probabilities_V())
            position = self.history.length + len(token_ids)
            token_ids.append(distribution.draw(self.settings.seed, position, purpose))
        return Proposal(token_ids=tuple(token_ids), probabilities=None if coupled or one_hot else tuple(probabilities))

    def judge_on_host(self, logits_RV: torch.Tensor, proposal: Proposal, *, num_logprobs: int | None = None) -> Verdict:
        return judge(self.host, logits_RV, self.history, proposal, num_logprobs=num_logprobs)

    def judge_on_device(
        self, logits_RV: torch.Tensor, proposal: Proposal, *, num_logprobs: int | None = None
    ) -> DeviceVerdict:
        """As many tokens are the block's as there are rows for; another one is the guess."""
        device = self.device.device
        num_block = len(logits_RV) - 1
        return judge_on_device(
            self.device,
            self.noise,
            logits_RV,
            position=torch.full((), self.history.length, dtype=torch.int64, device=device),
            num_output=torch.full((), self.history.num_output_tokens, dtype=torch.int64, device=device),
            counts=self.counts,
            block_ids_B=ids_tensor(proposal.token_ids[:num_block]).to(device),
            guess_ids_G=ids_tensor(proposal.token_ids[num_block:]).to(device),
            draft_probabilities=proposal.probabilities,
            num_logprobs=num_logprobs,
        )

    def judge_and_unpack(
        self, logits_RV: torch.Tensor, proposal: Proposal, *, num_logprobs: int | None = None
    ) -> HostVerdict:
        verdict = self.judge_on_device(logits_RV, proposal, num_logprobs=num_logprobs)
        return verdict.layout.unpack(verdict.packed())
