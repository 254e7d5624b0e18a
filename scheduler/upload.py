"""Token ids from the host to wherever a model expects them, without waiting for the device.

Knows nothing of models or streams: the copy goes to the stream in whose launch it is made.

Shape suffix: T tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch


def upload_ids(token_ids: Sequence[int], device: torch.device) -> torch.Tensor:
    """token_ids_T, int64, on `device`; behind the work enqueued so far."""
    if device.type != "cuda":
        return torch.tensor(token_ids, dtype=torch.int64, device=device)
    if len(token_ids) == 1:
        # A number travels with the kernel that writes it: no copy, which is what most rounds get by with.
        return torch.full((1,), token_ids[0], dtype=torch.int64, device=device)
    # The host goes on at once, and the allocator keeps the pinned memory until the copy is over.
    return torch.tensor(token_ids, dtype=torch.int64).pin_memory().to(device, non_blocking=True)
