"""What every test shares: the demo weights, and a cache folder that is not the user's."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

from models.demo import DEMO_VARIABLE, demo_weights
from models.errors import CheckpointError
from models.user_cache import CACHE_VARIABLE

REQUIRE_VARIABLE = "SLIPSTREAM_REQUIRE_WEIGHTS"
"""Where set to 1, missing demo weights fail a test instead of skipping it."""

USER_CACHE = os.environ.get(CACHE_VARIABLE)

# A busy machine takes longer for an example than any limit that would say something of the code.
hypothesis.settings.register_profile("without deadlines", deadline=None)
hypothesis.settings.load_profile("without deadlines")


@pytest.fixture(scope="module", autouse=True)
def frozen_before() -> None:
    """What is alive before the first test of a file is not that file's leak, and slow to look through each time.

    What is not alive is collected first: whatever its end would tell of is told.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def private_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Tests, and the processes they start, keep their cached files in a folder of their own."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv(CACHE_VARIABLE, str(folder))
        yield folder


@pytest.fixture(scope="session")
def demo_gguf(private_cache: Path) -> Iterator[Path]:
    """The demo's GGUF file, from the user's own cache or fetched into it, also for processes that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        if USER_CACHE is None:
            patch.delenv(CACHE_VARIABLE)
        else:
            patch.setenv(CACHE_VARIABLE, USER_CACHE)
        try:
            path = demo_weights()
        except CheckpointError as error:
            if os.environ.get(REQUIRE_VARIABLE) == "1":
                pytest.fail(f"the demo weights are required ({REQUIRE_VARIABLE}=1): {error}")
            pytest.skip(f"no demo weights: {error}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEMO_VARIABLE, str(path))
        yield path
