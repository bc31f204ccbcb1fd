"""A plugin of pytest (`-p chosen_tests`): only the tests that a file names run, in its order, until a limit of time.

The file, one name on each line, is in the variable CHOSEN_TESTS; the seconds after which the rest is skipped are in CHOSEN_TESTS_S.
"""

from __future__ import annotations

import os
from pathlib import Path
from time import monotonic

import pytest

BEGUN_S = monotonic()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose, after the suite's own order."""
    names = Path(os.environ["CHOSEN_TESTS"]).read_text(encoding="utf-8").splitlines()
    places = {name: place for place, name in enumerate(names)}
    items[:] = sorted((item for item in items if item.nodeid in places), key=lambda item: places[item.nodeid])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what begins too late."""
    if monotonic() - BEGUN_S > float(os.environ["CHOSEN_TESTS_S"]):
        pytest.skip("the limit is over")
