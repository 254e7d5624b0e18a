"""From the host to wherever a model expects its tensors, without waiting for the device.

Knows nothing of models or streams: the copy goes to the stream in whose launch it is made.

Shape suffix: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def upload(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor of the host's on `device`, behind the work enqueued so far; itself where it is there already."""
    if device.type == tensor.device.type == "cpu":
        return tensor
    # Pinned, the host goes on at once, and the allocator keeps the memory until the copy is over.
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def upload_ids(token_ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """token_ids_T, int64, on `device`; behind the work enqueued so far."""
    if device.type == "cuda" and len(token_ids) == 1:
        # A number travels with the kernel that writes it: no copy, which is what most rounds get by with.
        return torch.full((1,), token_ids[0], dtype=torch.int64, device=device)
    return upload(torch.tensor(token_ids, dtype=torch.int64), device)
