"""Where a layout was open: what is known of the plan's own layout is true, and the best that is known of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from inputs.plans import one_f_one_b, plan_of
from inputs.problems import make_problem

from schedc.analysis.bounds.lower_bounds import best_bound, simple_bound
from schedc.compile.plans import own_layout
from schedc.ir.plan import BoundName, Scope
from schedc.view.terminal.results import certificate_lines

PROBLEM = make_problem(3, 5, links={(0, 1): (40, 4), (1, 0): (40, 4)})
PLAN = plan_of(PROBLEM, one_f_one_b(PROBLEM))
OPEN = replace(
    PLAN.certificate, scope=Scope.LAYOUT, bound=BoundName.LAYOUTS, lower_bound_ns=7, gap=1 - 7 / PLAN.certificate.makespan_ns
)


def test_the_bound_of_the_layout_is_beside_the_one_over_layouts() -> None:
    plan = replace(PLAN, certificate=OPEN)
    found = own_layout(plan)
    assert found is not None and found.bound.name.only == ""
    assert 7 < simple_bound(PROBLEM).value_ns <= found.bound.value_ns <= best_bound(PROBLEM).value_ns < OPEN.makespan_ns
    assert found.gap == pytest.approx(1 - found.bound.value_ns / OPEN.makespan_ns)
    whole, alone, _ = certificate_lines(plan)
    assert f"gap {OPEN.gap:.2%} in any layout that the job leaves open (lower bound 7 ns, by layouts)" in whole
    words = f"in this layout alone: gap {found.gap:.2%} (lower bound {found.bound.value_ns} ns, by {found.bound.name})"
    assert alone == words


def test_where_more_is_known_of_all_layouts_that_counts() -> None:
    bound_ns = OPEN.makespan_ns - 1
    claims = replace(OPEN, lower_bound_ns=bound_ns, gap=1 / OPEN.makespan_ns, bound=BoundName.CPSAT, solver_log_sha256="ab")
    found = own_layout(replace(PLAN, certificate=claims))
    assert found is not None and found.bound.name.only == "of whole blocks"
    assert (found.bound.value_ns, found.bound.name, found.gap) == (bound_ns, BoundName.CPSAT, 1 / OPEN.makespan_ns)


@pytest.mark.parametrize("changes", [{"scope": Scope.SCHEDULE}, {"gap": 0.0}, {"makespan_ns": 8}], ids=str)
def test_else_nothing_is_added(changes: dict[str, object]) -> None:
    """No layout was open; proven over all of them; better than a bound of its own layout, which no plan is that holds."""
    plan = replace(PLAN, certificate=replace(OPEN, **changes))  # type: ignore[arg-type]
    assert own_layout(plan) is None
    assert len(certificate_lines(plan)) == 2
