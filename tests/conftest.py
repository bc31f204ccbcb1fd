"""Settings of the whole suite."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Stages in tests are tiny, and a second thread of torch only waits: several times as long, where other processes want the cores.
# The processes that tests start inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No deadlines: nothing is timed in tests, machines are shared. In CI the examples are the same every time.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure() -> None:
    """Forget the width of whatever terminal the tests run in, or pytest-xdist says they do: a test that needs one says so."""
    os.environ.pop("COLUMNS", None)
    os.environ.pop("LINES", None)
