"""A request under torch's own profiler: every operator, on all threads, and the kernels of a GPU.

Owns how that profiler is set up and how its trace gets into a file. Knows nothing of recordings.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from profiling.trace.whole_file import whole_file


@contextmanager
def torch_profiled() -> Generator[torch.profiler.profile, None, None]:
    """Profile what runs meanwhile."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if torch.cuda.is_available():
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    # Models run on workers' threads, of which the profiler would know nothing.
    profilers: Any = torch.profiler
    config = profilers._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=activities, experimental_config=config, acc_events=True) as profiler:
        yield profiler


def write_torch_trace(profiler: torch.profiler.profile, path: Path) -> None:
    """Write what was profiled as a Chrome trace; `path` has the whole of it, or is left alone.

    Raises:
        OSError: if it cannot be written.
    """
    with whole_file(path) as unfinished:
        profiler.export_chrome_trace(str(unfinished))
