"""NVML itself: started once for all probes of a process, stopped with the last, started anew after a loss.

Owns the start count and the words for NVML's error codes
(https://docs.nvidia.com/deploy/nvml-api/, nvmlReturn_t). Knows nothing of what is read.
"""

from __future__ import annotations

import os
import platform
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

_INSTALL = "pip install nvidia-ml-py"

_ERROR_WORDS = {
    1: "NVML is not initialised",
    2: "NVML refuses the arguments",
    3: "not supported by this device or driver",
    4: "no permission",
    6: "not found",
    9: "the NVIDIA driver is not loaded",
    10: "NVML timed out",
    12: "no NVIDIA driver library (libnvidia-ml) on this machine",
    13: "the driver is too old to have this function",
    15: "the GPU was lost (it fell off the bus or was reset)",
    16: "the GPU has to be reset",
    17: "the operating system blocks the request (a container's limits, perhaps)",
    18: "driver and NVML library have different versions; a restart of the machine or of the container settles it",
    25: "driver and nvidia-ml-py disagree about a structure's version",
    28: "the GPU is no longer there",
}
"""By error code; the others keep NVML's own words."""

_CONNECTION_CODES = frozenset({1, 9, 15, 16, 18, 28})
"""Errors after which handles are worthless: NVML has to be started anew."""


class NvmlUnavailableError(Exception):
    """NVML cannot be used; the message says why. Never leaves this package."""


def error_code(error: BaseException) -> int | None:
    """NVML's code for the error; None for errors of another kind."""
    code = getattr(error, "value", None)
    return code if isinstance(code, int) else None


def error_words(error: BaseException) -> str:
    """The error in words for people; names the platform's own limits where they may be the cause."""
    code = error_code(error)
    if code is None:
        return f"{type(error).__name__}: {error}"
    words = _ERROR_WORDS.get(code, str(error))
    if under_wsl() and code in {3, 6, 12, 13}:
        words += "; under the Windows Subsystem for Linux parts of NVML are missing"
    return words


def breaks_connection(error: BaseException) -> bool:
    """Whether NVML has to be started anew after this error."""
    return error_code(error) in _CONNECTION_CODES


def under_wsl() -> bool:
    """Whether this is Linux inside Windows, where NVML knows less."""
    return "microsoft" in platform.uname().release.lower()


class NvmlLibrary:
    """The one connection to NVML that all probes of a process share.

    NVML counts its starts and forgets a lost device only when the count returns to 0, so probes must not
    start it on their own.
    """

    def __init__(self) -> None:
        """Not started yet."""
        self._lock = threading.RLock()  # a forgotten probe may be collected, and release, wherever memory is taken
        self._users: list[Callable[[], None]] = []
        self._module: Any = None
        self._process_id = 0
        self._generation = 0

    def acquire(self, give_back: Callable[[], None]) -> None:
        """Count one more user; nothing is started yet.

        Args:
            give_back: returns what the user holds of NVML's, and never raises; called before NVML is stopped.
        """
        with self._lock:
            self._users.append(give_back)

    def release(self, give_back: Callable[[], None]) -> None:
        """Have the user give back what it holds, and count it no longer; the last one stops NVML. Never raises."""
        with self._lock:
            if give_back not in self._users:
                return
            give_back()
            self._users.remove(give_back)
            if not self._users:
                self._stop()

    def connect(self) -> Any:
        """The `pynvml` module, started.

        Raises:
            NvmlUnavailableError: if the module, the driver or its library is missing or broken.
        """
        with self._lock:
            if self._module is not None and self._process_id != os.getpid():
                self._module = None  # a forked child has no connection of its own
            if self._module is None:
                self._module = _started_module()
                self._process_id = os.getpid()
                self._generation += 1
            return self._module

    def current_generation(self) -> int | None:
        """Number of this start; handles and samples of another one are worthless. None while NVML is stopped."""
        with self._lock:
            return None if self._module is None or self._process_id != os.getpid() else self._generation

    def disconnect(self) -> None:
        """Stop NVML after a loss, for all users: it forgets a lost device no sooner. Never raises."""
        with self._lock:
            for give_back in self._users:
                give_back()
            self._stop()

    def _stop(self) -> None:
        module, self._module = self._module, None
        if module is None or self._process_id != os.getpid():
            return
        with suppress(module.NVMLError):  # a driver that is gone takes no leave; the next start says what is wrong
            module.nvmlShutdown()


def _started_module() -> Any:
    try:
        import pynvml
    except ImportError as error:
        raise NvmlUnavailableError(f"the Python package for NVML is missing ({error}): {_INSTALL}") from error
    if not hasattr(pynvml, "nvmlInit"):
        raise NvmlUnavailableError(f"the module pynvml at {pynvml.__file__} is not nvidia-ml-py: {_INSTALL}")
    try:
        pynvml.nvmlInit()
    except Exception as error:  # whatever a foreign library does at its start, the runtime works without it
        raise NvmlUnavailableError(error_words(error)) from error
    return pynvml


LIBRARY = NvmlLibrary()
"""Shared by all probes of this process."""
