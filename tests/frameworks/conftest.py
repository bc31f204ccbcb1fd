"""Groups of rank processes that begin with the frameworks, one of each size for a module of tests."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from runs.processes import Ranks, rank_processes
from suite.optional_packages import MODULES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(scope="module")
def group_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], Ranks]]:
    """The group of this size; another where a process of it has ended, which is an error of the test before and of no other."""
    groups: dict[int, tuple[Ranks, ExitStack]] = {}

    def found(size: int) -> Ranks:
        if size in groups and groups[size][0].ended():
            groups.pop(size)[1].close()
        if size not in groups:
            stack = ExitStack()
            groups[size] = stack.enter_context(rank_processes(size, tmp_path_factory.mktemp("ranks"), *MODULES)), stack
        return groups[size][0]

    yield found
    for _, stack in groups.values():
        stack.close()


@pytest.fixture
def two(group_of: Callable[[int], Ranks]) -> Ranks:
    """Two ranks."""
    return group_of(2)


@pytest.fixture
def four(group_of: Callable[[int], Ranks]) -> Ranks:
    """Four ranks."""
    return group_of(4)
