"""Kinds of stages × ways to run them; `benchmarks/runtime/matrix.py` runs every pair."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from runs.matrix import VALUES, cells, check_cell, pairs_that_hold

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

QUICK = (2, 15, 18, 19, 20, 21, 23, 24, 32, 34, 38, 41, 49, 66, 69, 81, 83, 89, 96, 106, 107, 108, 110)
"""Cells that take little time, with each choice of every way, and each spread with backwards fused and split, in one at least."""


def test_cells_are_right_or_refused(four: Ranks, tmp_path: Path) -> None:
    counts: Counter[str] = Counter()
    found = cells()
    for number in QUICK:
        (folder := tmp_path / str(number)).mkdir()
        assert check_cell(found[number], four, folder, counts) == []
    assert counts["right"] >= len(QUICK) // 2


def test_every_choice_is_in_a_quick_cell() -> None:
    found = cells()
    for name, values in VALUES.items():
        assert {getattr(found[number], name) for number in QUICK} == {*values}


def test_every_pair_is_in_a_cell() -> None:
    """That means something: of others `changed` makes another cell."""
    found = cells()
    for (a, x), (b, y) in pairs_that_hold():
        assert any(getattr(cell, a) == x and getattr(cell, b) == y for cell in found)
