"""Settings of the whole suite."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import TYPE_CHECKING

from hypothesis import HealthCheck, settings
from suite.example_counts import drop_to_a_quarter
from suite.surroundings import settle

if TYPE_CHECKING:
    import pytest

settle()  # before anything reads it
HERE = Path(__file__).parent

# No deadlines: nothing is timed in tests, machines are shared. In CI the examples are the same every time. Elsewhere each run has
# others, so that many runs see more than one run with more examples.
settings.register_profile("default", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Forget what pytest-xdist says of the terminal: a test that needs one says so."""
    settle()
    if config.option.markexpr == "not slow":
        drop_to_a_quarter()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three processes for the whole suite, enough for two cores, as many tests wait; none besides this one for a part of it."""
    return 3 if config.args == config.getini("testpaths") else 0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files at the top come first: some are the longest, and each of them is one process's work, which would go on alone."""
    items.sort(key=lambda item: item.path.parent != HERE)


def pytest_collection_finish() -> None:
    """What all the imports have made is never looked at again by the garbage collector, which else takes a fifth of the time."""
    gc.collect()
    gc.freeze()
