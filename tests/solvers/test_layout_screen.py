"""Estimates from fewer microbatches are near the objective; what is kept is timed with all of them."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from inputs.all_layouts import tiny_workload

from schedc.ir.layout import OpenLayout
from schedc.solvers.kernel.tables import NEVER
from schedc.solvers.layout.baselines import named_layouts
from schedc.solvers.layout.climb import LayoutClimb
from schedc.solvers.layout.evaluation.evaluate import FEW, MANY, Screen
from schedc.solvers.layout.layout_arrays import layout_arrays_of


def test_estimates_are_near_the_objective() -> None:
    seen = near = 0
    for seed in range(30):
        random = Random(seed)
        workload = tiny_workload(random, layers=5, ranks=2, microbatches=MANY * 2 + random.randint(0, 9))
        screen = Screen(workload, plain=True)
        assert not screen.is_exact
        for layout in named_layouts(workload, OpenLayout(chunks=2)).values():
            draft, rule = layout_arrays_of(layout), random.randrange(len(screen.whole.rules))
            estimate_ns, value_ns = screen.value(draft, [rule]), screen.whole.value(draft, [rule])
            assert (estimate_ns < NEVER) == (value_ns < NEVER)
            assert screen.rule == (rule if value_ns < NEVER else -1)
            if value_ns < NEVER:
                seen += 1
                near += abs(estimate_ns - value_ns) <= 0.02 * value_ns
                assert screen.value(draft, [rule], refuse_ns=1) == NEVER
    assert seen > 60
    assert near > 0.8 * seen


def test_few_microbatches_and_ones_that_differ_are_not_estimated() -> None:
    workload = tiny_workload(Random(1), layers=5, ranks=2, microbatches=MANY * 2)
    assert Screen(replace(workload, microbatches=MANY * 2 - 1), plain=True).is_exact
    first = replace(workload.layers[0], forward_ns=tuple(range(1, workload.microbatches + 1)))
    assert Screen(replace(workload, layers=(first, *workload.layers[1:])), plain=True).is_exact
    assert FEW < MANY


@pytest.mark.slow
def test_what_is_kept_has_its_objective_and_two_walks_are_repeatable() -> None:
    workload = tiny_workload(Random(6), layers=7, ranks=3, microbatches=MANY * 3)
    found = []
    for _ in range(2):
        search = LayoutClimb(workload, OpenLayout(chunks=2), seed=5, workers=2, plain=True)
        begun = search.evaluated
        search.run(evaluations=200)
        assert begun + 200 <= search.evaluated < begun + 600
        found.append(search.best)
        for kept in search.best:
            assert Screen(workload, plain=True).whole.value(kept.draft, [kept.rule]) == kept.value_ns
    assert found[0] == found[1]
