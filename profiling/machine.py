"""What a measurement ran on, and where its record goes."""

from __future__ import annotations

import argparse
import datetime
import itertools
import os
import platform
import sys
from pathlib import Path

import torch


def describe_machine() -> dict[str, object]:
    """Processor, cores, library versions and date, ready for JSON."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": _processor_name(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "vector_extension": torch.backends.cpu.get_cpu_capability(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "command": " ".join(["python", "-m", _module_name(), *sys.argv[1:]]),
    }


def new_file(name: str) -> Path:
    """The path of a report, as an argument of a command line: its folder must be there before hours are spent.

    Raises:
        argparse.ArgumentTypeError: if nothing can be written under that name.
    """
    path = Path(name)
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{name} cannot be written: name a file in a folder that exists")
    return path


def new_folder(name: str) -> Path:
    """A folder for reports, as an argument of a command line: it is made at once, before hours are spent.

    Raises:
        argparse.ArgumentTypeError: if nothing can be written there.
    """
    path = Path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{name} cannot be made: {error.strerror}") from error
    if not os.access(path, os.W_OK):
        raise argparse.ArgumentTypeError(f"{name} cannot be written to")
    return path


def dated_name(folder: Path, what: str) -> str:
    """A name for today's reports in `folder`, without ending: one that none there has."""
    first = f"{datetime.date.today():%Y-%m-%d}-{what}"
    names = (first if number == 1 else f"{first}-{number}" for number in itertools.count(1))
    return next(name for name in names if not any(folder.glob(f"{name}.*")))


def _processor_name() -> str:
    cpu_info = Path("/proc/cpuinfo")
    if cpu_info.exists():
        names = [line.partition(":")[2].strip() for line in cpu_info.read_text().splitlines() if "model name" in line]
        if names:
            return names[0]
    return platform.processor() or "unknown"


def _module_name() -> str:
    specification = getattr(sys.modules.get("__main__"), "__spec__", None)
    # A package is run by its name.
    return specification.name.removesuffix(".__main__") if specification else Path(sys.argv[0]).stem
