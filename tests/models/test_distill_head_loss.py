"""Both losses and their gradients against autograd on a plain implementation.

Shape suffixes: K steps, N rows, E hidden width, C tokens of the head, V vocabulary.
"""

from __future__ import annotations

import pytest
import torch

from models.distill import head_loss as module
from models.distill.head_loss import TeacherRows, head_loss
from models.distill.settings import Loss

pytestmark = pytest.mark.usefixtures("one_thread")

NUM_ROWS = 23


def inputs() -> tuple[torch.Tensor, TeacherRows, torch.Tensor, torch.Tensor]:
    """hidden_KNE, the teacher, head_CE of 12 among 17 tokens, weights_KN with zeros among them."""
    generator = torch.Generator().manual_seed(3)
    head_VE = torch.randn(17, 6, generator=generator)
    teacher_NE = torch.randn(NUM_ROWS, 6, generator=generator)
    weights_KN = torch.rand(2, NUM_ROWS, generator=generator)
    weights_KN[1, ::5] = 0
    teacher = TeacherRows(head_input_NE=teacher_NE, log_totals_N=(teacher_NE @ head_VE.T).logsumexp(-1))
    return torch.randn(2, NUM_ROWS, 6, generator=generator).requires_grad_(), teacher, head_VE[:12], weights_KN


@pytest.mark.parametrize("chunk_rows", [1, 7, NUM_ROWS, 512])
@pytest.mark.parametrize("loss", Loss)
def test_loss_and_gradient_are_those_of_the_plain_formulas(
    loss: Loss, chunk_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_ROWS", chunk_rows)
    hidden_KNE, teacher, head_CE, weights_KN = inputs()
    found = head_loss(hidden_KNE, teacher, head_CE, weights_KN, loss=loss)
    (found_KNE,) = torch.autograd.grad(2 * found.loss, hidden_KNE)

    p_NC = (teacher.head_input_NE @ head_CE.T - teacher.log_totals_N[:, None]).exp()
    assert bool((p_NC.sum(-1) < 1).all())
    log_q_KNC = (hidden_KNE @ head_CE.T).log_softmax(-1)
    accepted_KN = torch.minimum(p_NC, log_q_KNC.exp()).sum(-1)
    losses_KN = -(p_NC * log_q_KNC).sum(-1) if loss is Loss.FORWARD_KL else 1 - accepted_KN
    expected = (losses_KN * weights_KN).sum()
    (expected_KNE,) = torch.autograd.grad(2 * expected, hidden_KNE)

    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found_KNE, expected_KNE, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(found.acceptance_K, (accepted_KN * (weights_KN > 0)).sum(-1).detach())
