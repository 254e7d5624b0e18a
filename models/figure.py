"""Figures to draw on, in memory.

Owns how a figure is made, for all plots alike. Knows nothing of what is drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.errors import MissingDependencyError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS_PER_INCH = 110


def new_figure(*, width_inches: float = 8.0, height_inches: float = 5.0) -> Figure:
    """An empty figure without a window; its `savefig` writes it to a file of the kind that the name ends in.

    Raises:
        MissingDependencyError: if matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "plots need matplotlib; install it with: pip install 'slipstream[plot]'"
        ) from error
    # Not through pyplot, which would choose a backend for the whole process and keep the figure.
    return Figure(figsize=(width_inches, height_inches), dpi=DOTS_PER_INCH, layout="constrained")
