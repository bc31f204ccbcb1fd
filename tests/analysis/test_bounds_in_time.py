"""Bounds under a clock: however early it ends them, what they say is true, and nothing that takes long begins after it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inputs.problems import make_problem, with_fused_backward

from schedc.analysis.bounds.lower_bounds import bounds_in_time, lower_bounds
from schedc.ir.plan import BoundName
from schedc.ir.problem import Objective

PROBLEM = with_fused_backward(
    make_problem(
        2,
        6,
        placement="loop",
        chunks=2,
        costs_ns=(10, 12, 8),
        activation=(7, 3),
        in_flight=1.5,
        links={(0, 1): (40, 4), (1, 0): (40, 4)},
    ),
    9,
)
LONG = (BoundName.WARM_UP, BoundName.IDLE_GAPS)


class Steps:
    """A clock that is up after it was looked at this often."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def __call__(self) -> bool:
        """One step more."""
        self.left -= 1
        return self.left < 0


@pytest.mark.parametrize("objective", Objective)
def test_a_bound_that_is_cut_short_is_weaker_and_true(objective: Objective) -> None:
    problem = replace(PROBLEM, objective=objective)
    full = {bound.name: bound.value_ns for bound in lower_bounds(problem)}
    needed = Steps(1 << 40)
    assert bounds_in_time(problem, needed) == lower_bounds(problem)
    steps = (1 << 40) - needed.left
    known_ns = 0
    for given in range(0, steps + 1, 7):
        clock = Steps(given)
        some = {bound.name: bound.value_ns for bound in bounds_in_time(problem, clock)}
        assert some.keys() == full.keys()
        assert all(some[name] <= full[name] if name in LONG else some[name] == full[name] for name in full)
        assert clock.left >= -2  # each of the two bounds that take long ends the first time
        assert sum(some.values()) >= known_ns
        known_ns = sum(some.values())
    assert bounds_in_time(problem, Steps(steps)) == lower_bounds(problem)
    assert steps > 50
