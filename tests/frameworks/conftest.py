"""Groups of rank processes that begin with the frameworks, one for each module of tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from runs.processes import Ranks, rank_processes
from suite.optional_packages import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks."""
    with rank_processes(2, tmp_path_factory.mktemp("two"), *MODULES) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four ranks."""
    with rank_processes(4, tmp_path_factory.mktemp("four"), *MODULES) as ranks:
        yield ranks
