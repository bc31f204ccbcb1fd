"""A trunk may have any name: one that reads like a link or like a rank's collectives is still a resource of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.problems import make_problem
from oracles.brute_force import optimum

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.ir.index import tables_of
from schedc.ir.network import Link
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.resource import Resource
from schedc.models.blocks import TimeGrid, blocks_of
from schedc.solvers.common.base import Limits
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.exact.milp import solve_milp
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

LIMITS = Limits(workers=2)
NAMES = ("east", "0>1", "1>0", "2>1", "collectives of rank 1", "rank 1", "link 0>1", "")


def on_a_trunk(name: str, *, collectives: bool = False) -> Problem:
    """Three ranks; the link from rank 1 to rank 2 is on a trunk of its own, beside the busy link from rank 0 to rank 1."""
    busy = dict.fromkeys(((0, 1), (1, 0), (1, 2), (2, 1)), (1, 7))
    problem = make_problem(3, 2, costs_ns=(2, 2, 1), links=busy, trunks={(1, 2): name}, split_backward=False)
    problem = replace(
        problem,
        links=tuple(replace(link, trunk=name if link.source == 1 and link.destination == 2 else None) for link in problem.links),
    )
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(9, 9, 9), all_gather_ns=(9, 9, 9))
    return replace(problem, data_parallel=parallel if collectives else None)


@pytest.mark.parametrize("collectives", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_solvers_find_the_optimum_whatever_the_trunk_is_called(name: str, collectives: bool) -> None:
    problem = on_a_trunk(name, collectives=collectives)
    least_ns = optimum(on_a_trunk("east", collectives=collectives))
    for solve in (solve_cpsat, solve_milp):
        solved = solve(problem, Greedy(n_sub=1)(problem), limits=LIMITS)
        assert (solved.objective_ns, solved.lower_bound_ns) == (least_ns, least_ns)
    assert lower_bounds(problem) == tuple(
        replace(bound, detail=bound.detail.replace("trunk east", f"trunk {name}"))
        for bound in lower_bounds(on_a_trunk("east", collectives=collectives))
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_certain_first_moves_do_not_depend_on_the_name(name: str) -> None:
    """For the stage span the models ask whether a message has a link of its own."""
    problem, plain = (replace(on_a_trunk(each), objective=Objective.STAGE_SPAN) for each in (name, "east"))
    least_ns = optimum(plain)
    for solve in (solve_cpsat, solve_milp):
        found, usual = (solve(each, Greedy(n_sub=1)(each), limits=LIMITS) for each in (problem, plain))
        assert found.lower_bound_ns == usual.lower_bound_ns
        assert least_ns is not None
        assert found.lower_bound_ns <= least_ns <= found.objective_ns


def test_no_two_kinds_are_ever_equal() -> None:
    link = Link(source=0, destination=1)
    named = [Resource.of_link(replace(link, trunk=name)) for name in NAMES]
    kinds = [Resource.of_link(link), Resource.of_rank(1), Resource.of_collectives(None, 1), *named]
    assert len(set(kinds)) == len(kinds)
    assert Resource.of_link(replace(link, trunk="east")) == Resource.of_link(Link(source=5, destination=3, trunk="east"))
    assert len({each.text for each in kinds}) == len({each.label for each in kinds}) == len(kinds)


@pytest.mark.parametrize("name", NAMES)
def test_tables_and_blocks_number_the_same_resources(name: str) -> None:
    problem = on_a_trunk(name, collectives=True)
    links = {Resource.of_link(link) for link in problem.links}
    assert len(links) == 4
    assert {move.resource for move in blocks_of(problem, TimeGrid(1, True)).transfers} == links
    assert set(tables_of(problem).resources) == links | {Resource.of_collectives(problem.data_parallel, rank) for rank in range(3)}
