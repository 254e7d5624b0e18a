"""What the runs of a sweep were made with: the code and the weights.

Owns these marks. Knows nothing of runs. Names say too little: other weights may lie behind the same path, and the
version of a working copy stays what it was while its code changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import models
import runtime
import scheduler
from models import SHIPPED_FOLDER, SlipstreamError, WeightFile, fingerprint_files, open_checkpoint
from models.demo import demo_weights
from runtime import LoadSettings

_HEADER_BYTES = 1 << 16


def sweep_identity(load: Mapping[str, Any]) -> dict[str, str]:
    """Marks of the package, the target's weights and the drafts' by what they are of.

    Args:
        load: keywords of `Runtime.load`.

    Raises:
        SlipstreamError: if there are no such weights, or a file cannot be read.
    """
    settings = LoadSettings.from_keywords(load)
    folders = [Path(package.__file__ or "").parent for package in (models, scheduler, runtime)]
    sources = [spec.source for spec in settings.draft_specs() if spec.source is not None]
    # `auto` may choose any of these.
    drafts = [SHIPPED_FOLDER] if settings.chooses_draft else sources
    return {
        "version": _version(),
        "code": _fingerprint(path for folder in folders for path in sorted(folder.rglob("*.py"))),
        "weights of the target": weights_fingerprint(settings.target or demo_weights()),
        "weights of the drafts": " ".join(weights_fingerprint(source) for source in drafts),
    }


def weights_fingerprint(source: str | Path) -> str:
    """Of a file, of all files of a folder, or of what a hub id stands for; the id where that cannot be opened so.

    Raises:
        CheckpointError: if a file cannot be read.
    """
    path = Path(source)
    if path.is_file():
        return _fingerprint([path])
    if path.is_dir():
        return _fingerprint(sorted(file for file in path.rglob("*") if file.is_file()))
    try:
        with open_checkpoint(source) as checkpoint:
            return checkpoint.fingerprint
    except SlipstreamError:
        # Loading it comes to the same, or transformers can run it.
        return str(source)


def _fingerprint(paths: Iterable[Path]) -> str:
    return fingerprint_files([WeightFile(path, _HEADER_BYTES) for path in paths])


def _version() -> str:
    try:
        return version("slipstream")
    except PackageNotFoundError:
        return "not installed"
