"""What tests of requests share."""

from __future__ import annotations

import pytest

from runtime import Mode
from tests.support.table_runtime import SPECULATIVE_MODES


@pytest.fixture(params=SPECULATIVE_MODES, ids=lambda mode: mode.value)
def mode(request: pytest.FixtureRequest) -> Mode:
    """Each of the modes that speculate in turn."""
    found: Mode = request.param
    return found
