"""A peer's process, as the benchmark holds it.

Owns its start, its questions, its death and its end. Knows nothing of what is measured. One process for one system:
peak memory and thread pools are that system's alone, and when it dies nothing else does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import profiling
from models import environment_as_given
from profiling.peers.peer import PeerAnswer, PeerSettings

PATIENCE_S = 600.0
"""After this long without an answer a peer is taken to hang."""
_LONGEST_LINE_BYTES = 1 << 24
_ENDING_S = 10.0
_TRIAL_TOKENS = 8
_BAD_INSTRUCTION = (-signal.SIGILL, -signal.SIGSEGV, 0xC000001D, 0xC0000005)
"""What a process ends with in a kernel that its processor or its data do not suit; the latter two on Windows."""
_ROOT = Path(profiling.__file__).parents[1]


class PeerLostError(Exception):
    """A peer is not there, or no longer; the message is the reason, in words for a table."""


class PeerMissingError(PeerLostError):
    """A peer's library is not installed."""


class PeerDiedError(PeerLostError):
    """A peer's process has ended, without a word of its own."""

    def __init__(self, reason: str, status: int) -> None:
        """`status` is its exit status; negative, the number of a signal."""
        super().__init__(reason)
        self.status = status


class PeerRefusedError(Exception):
    """A peer did not answer one prompt as it was asked to, and can be asked the next; the message is the reason."""


@dataclass(frozen=True, kw_only=True)
class ProcessAnswer(PeerAnswer):
    """An answer, and what it took of the process."""

    peak_memory_bytes: int | None
    """Resident, since the process began."""
    idle_cpu_share: float | None
    """Processor time over time while it waited for this question; None where it hardly waited."""


class PeerProcess:
    """One loaded peer."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Any) -> None:
        self._process = process
        self._errors = errors
        self.version = ""
        self.settled = ""

    @property
    def number(self) -> int:
        """As the system has it."""
        return self._process.pid

    @classmethod
    async def start(cls, settings: PeerSettings, *, patience_s: float = PATIENCE_S) -> Self:
        """Start a process and load the peer in it.

        Raises:
            PeerMissingError: if its library is not installed.
            PeerDiedError: if its process ends.
            PeerLostError: if it cannot be loaded for another reason.
        """
        paths = [path for path in (os.environ.get("PYTHONPATH"), str(_ROOT)) if path]
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "profiling.peers.worker",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            # Not with what this project has settled for its own OpenMP workers.
            env={**environment_as_given(), "PYTHONPATH": os.pathsep.join(paths)},
            limit=_LONGEST_LINE_BYTES,
        )
        started = cls(process, errors)
        try:
            reply = await started._ask(asdict(settings), patience_s)
        except BaseException:
            await started.close()
            raise
        started.version, started.settled = str(reply["version"]), str(reply["settled"])
        return started

    @classmethod
    async def start_tried(
        cls, settings: PeerSettings, second_try: PeerSettings | None, trial: Sequence[int]
    ) -> tuple[Self, str]:
        """Start a process and have it write a few tokens; where a kernel kills it, start it otherwise.

        Args:
            second_try: what is loaded then; None gives up.
            trial: the prompt.

        Returns:
            The process, and what the first one died of, if it did.

        Raises:
            PeerMissingError: if the peer's library is not installed.
            PeerLostError: if it cannot be loaded, or cannot write.
            PeerRefusedError: if it writes other than it is asked to.
        """
        process = await cls.start(settings)
        try:
            await process.answer(trial, _TRIAL_TOKENS)
        except PeerDiedError as error:
            await process.close()
            if second_try is None or error.status not in _BAD_INSTRUCTION:
                raise
            return (await cls.start_tried(second_try, None, trial))[0], str(error)
        except BaseException:
            await process.close()
            raise
        return process, ""

    async def answer(
        self, prompt_ids: Sequence[int], max_tokens: int, *, patience_s: float = PATIENCE_S
    ) -> ProcessAnswer:
        """Have one prompt answered.

        Raises:
            PeerLostError: if the peer fails, dies or hangs; it can be asked nothing more.
            PeerRefusedError: if it wrote other than it was asked to.
        """
        reply = await self._ask({"prompt_ids": list(prompt_ids), "max_tokens": max_tokens}, patience_s)
        return ProcessAnswer(**{**reply, "token_ids": tuple(reply["token_ids"])})

    async def close(self) -> None:
        """End the process, and wait until it has ended. Idempotent."""
        process = self._process
        if process.stdin is not None and not process.stdin.is_closing():
            process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), _ENDING_S)
        except TimeoutError:
            self._kill()
            await process.wait()
        except BaseException:
            # Interrupted once more: nobody is left to wait for it.
            self._kill()
            raise
        finally:
            self._errors.close()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _ask(self, message: dict[str, Any], patience_s: float) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None  # both were asked for
        assert process.stdout is not None
        line = b""
        try:
            # Where it has died, what is written may be refused, and there is no answer to read.
            with contextlib.suppress(ConnectionError):
                process.stdin.write(json.dumps(message).encode() + b"\n")
                await process.stdin.drain()
                line = await asyncio.wait_for(process.stdout.readline(), patience_s)
        except TimeoutError:
            self._kill()
            raise PeerLostError(f"gave no answer within {patience_s:g} s") from None
        if not line.endswith(b"\n"):
            raise await self._death()
        reply: dict[str, Any] = json.loads(line)
        if "missing" in reply:
            raise PeerMissingError(str(reply["reason"]))
        if "refused" in reply:
            raise PeerRefusedError(" ".join(str(reply["refused"]).split()))
        if "failed" in reply:
            raise PeerLostError(" ".join(str(reply["failed"]).split()))
        return reply

    async def _death(self) -> PeerDiedError:
        status = await self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        return PeerDiedError(f"its process ended with {ended}" + (f": {said}" if said else ""), status)
