"""The command line as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_command(
    *arguments: str | Path, stdin: str | bytes | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`python -m runtime` to its end; without `stdin` its standard input is empty."""
    process = start_command(*arguments, environment=environment)
    content = stdin.encode() if isinstance(stdin, str) else stdin or b""
    output, errors = process.communicate(content, timeout=500)
    return subprocess.CompletedProcess(process.args, process.returncode, output.decode(), errors.decode())


def start_command(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """`python -m runtime` with pipes on all three streams; warnings end it."""
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "runtime", *map(str, arguments)],
        cwd=ROOT,
        # Unbuffered streams, which some environments ask for, would hide what is never flushed.
        env={**os.environ, "PYTHONUNBUFFERED": "", **(environment or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
