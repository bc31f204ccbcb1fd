"""The kernel of the local search: plain and compiled it does the same; its random numbers are numpy's."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import example, given, strategies as st
from inputs.problems import make_problem, problems, with_fused_backward
from suite.example_counts import examples

from schedc.solvers.heuristics import rule_table as module
from schedc.solvers.kernel.climb import climb_without_reserves
from schedc.solvers.kernel.draws import below, draw, fraction

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@given(st.integers(0, 2**40), st.lists(st.integers(1, 2**45), max_size=30))
def test_random_numbers_are_numpys(seed: int, limits: list[int]) -> None:
    generator, draws = np.random.RandomState(seed % 2**32), draw(seed, 1000)
    for limit in limits:
        assert generator.randint(limit) == below(limit, draws)
        assert generator.random() == fraction(draws)


@examples(15)
@given(problems())
@example(make_problem(2, 3, placement=[0, 1, 0, 1], activation=(1, 0), memory_limit_bytes=[2, 2]))  # without reserves all strand
def test_the_rule_table_is_the_same_plain_and_compiled(problem: Problem) -> None:
    check_plain_and_compiled(problem)


def check_plain_and_compiled(problem: Problem) -> None:
    found: list[object] = []
    for ready in (False, True):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "at_hand", lambda _, ready=ready: ready)
            patch.setattr(module, "TABLE_OPS", 1500)
            found.append(module.RuleTable(climb_ops=1500)(problem))
    assert found[0] == found[1]


@pytest.mark.slow
@examples(10)
@given(problems(), st.integers(0, 9))
def test_so_it_is_where_backwards_mix(problem: Problem, tenths: int) -> None:
    check_plain_and_compiled(with_fused_backward(replace(problem, split_backward=True), tenths))


def test_a_process_that_needs_the_kernel_often_has_it_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(module, "at_hand", lambda _: False)
    monkeypatch.setattr(module, "compile_ahead", asked.append)
    monkeypatch.setattr(module, "_plain_tables", count(1))
    monkeypatch.setattr(module, "TABLE_OPS", 100)
    for number in range(1, module.PLAIN_TABLES + 2):
        module.RuleTable(climb_ops=0)(make_problem(2, 2))
        assert len(asked) == max(0, number - module.PLAIN_TABLES + 1)
    assert set(asked) == {climb_without_reserves}
