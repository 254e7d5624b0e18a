"""A gate on a real CUDA stream: the device waits until the host has written a number.

The one call that torch does not have, `cuStreamWaitValue32`, goes to the driver's own library. While a gate is closed,
no kernel may be launched that its process has not used before: loading one may wait for the device.
"""

from __future__ import annotations

import ctypes

import torch

_WAIT_UNTIL_EQUAL = 1


class CudaGate:
    """Holds back what is enqueued on a stream behind it until its release."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._flag = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        driver = ctypes.CDLL("libcuda.so.1")
        error = driver.cuStreamWaitValue32_v2(
            ctypes.c_void_p(stream.cuda_stream),
            ctypes.c_uint64(self._flag.data_ptr()),  # page-locked memory has the same address on the device
            ctypes.c_uint32(1),
            ctypes.c_uint(_WAIT_UNTIL_EQUAL),
        )
        if error:
            raise RuntimeError(f"cuStreamWaitValue32 failed with CUDA error {error}")

    def release(self) -> None:
        """Let the stream go on; idempotent."""
        self._flag[0] = 1
