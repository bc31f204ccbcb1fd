"""Tiny graphs and slices by all that proves something, beside brute force; `benchmarks/compiler/graphs.py` has hundreds more."""

from __future__ import annotations

from collections import Counter

import pytest
from oracles.graph_checks import check_graph


@pytest.mark.parametrize("number", range(40))
def test_nothing_is_above_the_optimum(number: int) -> None:
    assert check_graph(number, Counter()) == []
