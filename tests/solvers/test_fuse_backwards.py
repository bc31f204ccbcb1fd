"""Backwards fused and split where that pays: never worse, valid, the same each time, better where it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import m70, make_problem, problems, with_fused_backward
from inputs.random_schedules import random_schedules
from suite.example_counts import examples

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.driver import compile_problem
from schedc.errors import InvalidInput, Unsupported
from schedc.ir.ops import BLOCKS, Kind
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.fuse_backwards import fuse_backwards
from schedc.solvers.driver import portfolio
from schedc.solvers.driver.portfolio import try_methods
from schedc.solvers.driver.registry import check_method, constructive
from schedc.solvers.search import local
from schedc.solvers.search.rounds import Found
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@examples(60)
@given(st.data())
def test_a_random_schedule_gets_no_worse_and_stays_valid(data: st.DataObject) -> None:
    problem = data.draw(problems(max_ranks=3, max_microbatches=5))
    problem = with_fused_backward(problem, *data.draw(st.sampled_from([(1, 2), (9, 10), (1, 1)])))
    start = data.draw(random_schedules(problem))
    better = fuse_backwards(problem, start)
    objective = problem.objective
    assert simulate(problem, better).objective_ns(objective) <= simulate(problem, start).objective_ns(objective)
    assert better == fuse_backwards(problem, start)
    wrong = verify_schedule(problem, start)
    peaks, limits = peak_bytes(problem, start), problem.memory_limit_bytes
    if all(limit is None or peak <= limit for peak, limit in zip(peaks, limits, strict=True)):
        assert not wrong
        assert not verify_schedule(problem, better)


@examples(60)
@given(problems(max_ranks=4, max_microbatches=6), st.sampled_from(["1f1b", "zb-h1", "greedy", "greedy{n_sub=1}", "interleaved"]))
def test_a_methods_schedule_gets_no_worse_and_stays_valid(problem: Problem, method: str) -> None:
    problem = with_fused_backward(problem, 9)
    try:
        start = constructive(method)(problem)
    except Unsupported:
        return
    better = constructive(f"{method} + mixed")(problem)
    assert simulate(problem, better).makespan_ns <= simulate(problem, start).makespan_ns
    if not verify_schedule(problem, start):
        assert not verify_schedule(problem, better)


@pytest.mark.parametrize("method", ["1f1b", "zb-h1", "greedy"])
def test_both_are_mixed_where_the_fused_backward_is_cheaper(method: str) -> None:
    problem = with_fused_backward(m70(0, 0), 9)
    start = constructive(method)(problem)
    better = fuse_backwards(problem, start)
    assert {op.kind for order in better.orders for op in order} == set(BLOCKS)
    assert simulate(problem, better).makespan_ns < simulate(problem, start).makespan_ns


def test_what_nothing_waits_for_is_fused_though_the_end_stays() -> None:
    """The first stage sends no gradient, and W follows B at once: both are one block, whether or not that ends sooner."""
    problem = with_fused_backward(make_problem(2, 3, costs_ns=[(1, 1, 1), (50, 50, 50)]), 9)
    orders = fuse_backwards(problem, constructive("zb-h1")(problem)).orders
    assert {op.kind for op in orders[0]} == {Kind.F, Kind.BW}


@pytest.mark.parametrize(("numerator", "split"), [(10, True), (11, True), (9, False)])
def test_where_fusing_cannot_pay_the_schedule_comes_back(numerator: int, split: bool) -> None:
    problem = with_fused_backward(make_problem(3, 5, costs_ns=(3, 4, 5), split_backward=split), numerator)
    start = constructive("zb-h1" if split else "1f1b")(problem)
    assert fuse_backwards(problem, start) is start


@pytest.mark.slow
def test_each_candidate_is_followed_by_its_mixture_and_keeps_its_published_order() -> None:
    problem = with_fused_backward(m70(2, 2), 9)
    limits = Limits(gap=0.9)
    names = [entry.method for entry in compile_problem(problem, SearchSettings(limits=limits)).candidates]
    assert names[names.index("zb-h1") + 1] == "zb-h1 + mixed"
    assert not any("mixed" in entry.method for entry in compile_problem(m70(2, 2), SearchSettings(limits=limits)).candidates)
    plan = compile_problem(problem, SearchSettings(method="zb-h1")).plan
    assert plan.schedule() == constructive("zb-h1")(problem)
    plan = compile_problem(problem, SearchSettings(method="zb-h1 + mixed")).plan
    assert plan.made_by.method == "zb-h1 + mixed"
    assert plan.schedule() == fuse_backwards(problem, constructive("zb-h1")(problem))


@pytest.mark.parametrize("name", ["auto", "adaptis", "cpsat"])
def test_a_method_that_makes_no_schedule_by_itself_is_not_called_unknown(name: str) -> None:
    with pytest.raises(InvalidInput, match=f"method '{name}' makes no schedule by itself; expected one of gpipe"):
        check_method(f"{name} + mixed")


@pytest.mark.parametrize("method", ["cpsat + mixed", "auto + mixed", "nothing + mixed", "1f1b + mixed + mixed "])
def test_only_a_constructive_method_can_be_followed_by_its_mixture(method: str) -> None:
    with pytest.raises(InvalidInput):
        check_method(method)


def test_what_local_search_finds_is_followed_by_its_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it finds: here a schedule without any fused backward."""
    monkeypatch.setattr(portfolio, "try_methods", lambda incumbent, *_, **__: try_methods(incumbent, ("zb-h1",)))
    problem = with_fused_backward(make_problem(4, 8, costs_ns=(38, 46, 20), in_flight=4), 8)
    found = Found(constructive("zb-h1")(problem), end_ns=0, cut_short=False)
    monkeypatch.setattr(local, "local_search", lambda *_, **__: found)
    compiled = compile_problem(problem, SearchSettings(method="local{rounds=1}"))
    assert compiled.plan.made_by.method == "local + mixed"
    assert {op.kind for order in compiled.plan.schedule().orders for op in order} == set(BLOCKS)
