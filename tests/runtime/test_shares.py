"""Shares of a tensor, cut flat, are boxes of it: each element once, in order."""

from __future__ import annotations

from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import given, strategies as st

from schedc.runtime.training.shares import boxes


@given(st.lists(st.integers(1, 5), max_size=4), st.data())
def test_boxes_are_the_elements_in_order(shape: list[int], data: st.DataObject) -> None:
    count = prod(shape)
    whole = torch.arange(count).view(shape)
    cuts = sorted({0, count, *data.draw(st.lists(st.integers(0, count), max_size=3))})
    for start, stop in pairwise(cuts):
        found = [
            whole[tuple(map(slice, begin, map(sum, zip(begin, size, strict=True))))] for begin, size in boxes(shape, start, stop)
        ]
        assert torch.equal(torch.cat([part.flatten() for part in found]), torch.arange(start, stop))
        assert len(found) <= max(1, 2 * len(shape) - 1)


@pytest.mark.parametrize(("start", "stop", "expected"), [(0, 12, 1), (1, 12, 2), (1, 11, 3), (5, 6, 1)])
def test_a_matrix_takes_at_most_three(start: int, stop: int, expected: int) -> None:
    assert len([*boxes((4, 3), start, stop)]) == expected
