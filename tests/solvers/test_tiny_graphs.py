"""Tiny graphs and slices by all that proves something, beside brute force; `benchmarks/compiler/graphs.py` has hundreds more."""

from __future__ import annotations

from collections import Counter

import pytest
from oracles.graph_checks import check_bounds, check_graph


@pytest.mark.parametrize("number", range(40))
def test_nothing_is_above_the_optimum(number: int) -> None:
    assert check_graph(number, Counter()) == []


def test_bounds_are_not_above_the_optimum_and_warm_up_raises_some() -> None:
    counts = Counter[str]()
    assert [(number, finding) for number in range(60) for finding in check_bounds(number, counts)] == []
    assert counts["compared with brute force"] >= 55
    assert counts["larger graphs: raised by warm-up or idle gaps"] > 0
