"""Graphs and slices: the random problems are sound, and the verifiers accept what keeps all rules and refuse what breaks one."""

from __future__ import annotations

from random import Random

import pytest
from inputs.graphs import graph_problem, random_order
from inputs.tiny_problems import random_parts

from schedc.verify.problem import verify_problem


@pytest.mark.parametrize("first", range(0, 200, 50))
def test_random_problems_are_sound(first: int) -> None:
    kinds = set()
    for seed in range(first, first + 50):
        random = Random(seed)
        problem = graph_problem(random, may_be_odd=True, collectives=True)
        assert verify_problem(problem) == ()
        kinds.add((bool(problem.edges), bool(problem.slices)))
        schedule = random_order(random, problem, random_parts(random, problem), limited=False)
        assert schedule is not None
    assert kinds == {(True, False), (True, True), (False, True)}
