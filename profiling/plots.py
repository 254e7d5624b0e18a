"""Whether plots can be drawn, found out before anything is measured, not after an hour of it."""

from __future__ import annotations

from models import MissingDependencyError, new_figure


def check_plots(way_out: str) -> None:
    """Refuse where there is nothing to draw plots with.

    Args:
        way_out: what to do without plots, as in `leave out --out-dir`.

    Raises:
        MissingDependencyError: says what to install, and the way out.
    """
    try:
        new_figure()
    except MissingDependencyError as error:
        raise MissingDependencyError(f"{error}, or {way_out}") from error
