"""Re-planning: what it proposes is sound, is as good as it says, and is never worse than what runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.tiny_problems import random_schedule, tiny_problem

from schedc.adapt.replan import Choice, Proposal, replan
from schedc.analysis.bounds.lower_bounds import lower_bounds, simple_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
from schedc.ir.ops import Kind
from schedc.ir.problem import DataParallel
from schedc.lower.problem import problem_under
from schedc.runtime.replicas.pipelines import check_same_collectives
from schedc.solvers.driver.registry import constructive
from schedc.solvers.heuristics.pipemorph import PipeMorph
from schedc.solvers.heuristics.rule_table import slow_link_rules
from schedc.solvers.kernel.climb import climbing_scheduler
from schedc.verify.plan.checks import verify_plan
from schedc.verify.problem import check_pipeline

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

SLOW_PAIR = Conditions(links={(0, 1): LinkState(latency_ns=30), (1, 0): LinkState(latency_ns=30)})
SLOW = Conditions(links={(1, 2): LinkState(latency_ns=60), (2, 1): LinkState(latency_ns=60)})


def random_conditions(problem: Problem, random: Random) -> Conditions:
    """Some links slower or faster, some ranks slower."""
    links = {
        (link.source, link.destination): random.choice(
            [LinkState(latency_ns=random.randint(0, 40)), LinkState(bytes_per_second=random.randint(1, 10**9))]
        )
        for link in problem.links
        if random.random() < 0.5
    }
    ranks = [rank for rank in range(problem.ranks) if random.random() < 0.3]
    return Conditions(links=links, slowdown={(rank, random.choice([Kind.F, Kind.B, Kind.W])): 1.5 for rank in ranks})


def objective_ns(plan: Plan, problem: Problem) -> int:
    return simulate(problem, plan.schedule()).objective_ns(problem.objective)


def four_ranks() -> Plan:
    problem = make_problem(4, 6, costs_ns=(18, 19, 11), in_flight=4)
    return plan_of(problem, constructive("zb-h1")(problem))


@pytest.mark.slow
def test_a_proposal_is_sound_and_what_it_says() -> None:
    """On random problems of every placement, with parts, trunks, collectives and fused backwards, under random conditions."""
    random, chosen = Random(4), set()
    for number in range(24):
        problem = tiny_problem(random, most_ops=12, data_parallel=number % 3 == 0)
        schedule = random_schedule(random, problem)
        if schedule is None:  # it ran into a memory limit
            continue
        plan = plan_of(problem, schedule)
        conditions = random_conditions(problem, random)
        proposal = replan(plan, conditions, climb_ops=300)
        chosen.add(proposal.choice)
        now = problem_under(problem, conditions)
        assert proposal.running_ns == objective_ns(plan, now)
        assert proposal.objective_ns == objective_ns(proposal.plan, now) <= proposal.running_ns
        assert proposal.gain_ns == proposal.running_ns - proposal.objective_ns
        assert not check_pipeline(proposal.plan, problem)
        assert proposal.plan.problem.memory_limit_bytes == problem.memory_limit_bytes
        assert [r.collectives for r in proposal.plan.ranks] == [r.collectives for r in plan.ranks]
        if proposal.choice is Choice.NEW:
            bounds = {bound.name: bound.value_ns for bound in lower_bounds(now)}
            assert verify_plan(proposal.plan, bounds=bounds) == ()
            assert proposal.plan.problem == now
            assert parse_plan(plan_json(proposal.plan), "new") == proposal.plan
        else:
            assert proposal.plan is plan
    assert chosen == {Choice.RUNNING, Choice.NEW}


def test_the_same_conditions_give_the_same_proposal() -> None:
    plan = four_ranks()
    first, again = replan(plan, SLOW, climb_ops=0), replan(plan, SLOW, climb_ops=0)
    assert first == again
    assert first.choice is Choice.NEW
    assert first.gain_ns > 0


def test_the_old_plan_itself_comes_back() -> None:
    """Once the link has recovered, or where a plan that was given is as good as a new one."""
    problem = make_problem(2, 6, costs_ns=(10, 10, 10), in_flight=2)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    slow = Conditions(links={(0, 1): LinkState(latency_ns=25), (1, 0): LinkState(latency_ns=25)})
    other = replan(plan, slow, climb_ops=0).plan
    worse = plan_of(problem, constructive("gpipe")(replace(problem, memory_limit_bytes=(None, None))))
    proposal = replan(plan, AS_PLANNED, running=worse, climb_ops=0)
    assert proposal.choice is Choice.KNOWN
    assert proposal.plan is plan
    assert replan(plan, slow, known=(other,), climb_ops=0).plan == other
    assert replan(plan, AS_PLANNED, climb_ops=0) == Proposal(
        plan=plan, choice=Choice.RUNNING, running_ns=plan.certificate.makespan_ns, objective_ns=plan.certificate.makespan_ns
    )


def test_where_nothing_differs_the_jobs_own_plan_comes_first() -> None:
    plan = four_ranks()
    running = replace(plan, made_by=replace(plan.made_by, method="another"))
    proposal = replan(plan, AS_PLANNED, running=running)
    assert (proposal.choice, proposal.gain_ns) == (Choice.KNOWN, 0)
    assert proposal.plan is plan
    assert replan(plan, SLOW, running=running, climb_ops=0).choice is not Choice.KNOWN


def test_a_plan_that_is_known_is_passed_over_where_its_collectives_have_another_order() -> None:
    """Pipelines that run different plans meet in them."""
    problem = make_problem(2, 4, placement="loop", chunks=2, costs_ns=(10, 10, 10), in_flight=4)
    problem = replace(problem, data_parallel=DataParallel(size=2, zero_stage=0, reduce_scatter_ns=(5,) * 4))
    plan = plan_of(problem, constructive("1f1b")(problem))
    better = plan_of(problem, constructive("rule-table")(problem_under(problem, SLOW_PAIR)))
    assert replan(plan, SLOW_PAIR, known=(better,), climb_ops=0).choice is Choice.RUNNING
    ranks = tuple(replace(rank, collectives=own.collectives) for rank, own in zip(better.ranks, plan.ranks, strict=True))
    assert ranks != better.ranks
    assert replan(plan, SLOW_PAIR, known=(replace(better, ranks=ranks),), climb_ops=0).choice is Choice.KNOWN


def test_replicas_of_a_plan_without_collectives_sum_in_the_order_of_the_last_w() -> None:
    problem = make_problem(2, 4, placement="loop", chunks=2, costs_ns=(10, 10, 10), in_flight=4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    better = plan_of(problem, constructive("rule-table")(problem_under(problem, SLOW_PAIR)))
    assert replan(plan, SLOW_PAIR, known=(better,), climb_ops=0).choice is Choice.KNOWN
    for known in ((), (better,)):
        proposal = replan(plan, SLOW_PAIR, known=known, replicas=2, climb_ops=0)
        check_same_collectives(plan, proposal.plan)
        assert proposal.choice is Choice.RUNNING


def test_conditions_that_change_nothing_are_as_planned() -> None:
    plan = four_ranks()
    running = replan(plan, SLOW, climb_ops=0).plan
    same = {(link.source, link.destination): LinkState(latency_ns=link.latency_ns) for link in plan.problem.links}
    for conditions in (Conditions(links=same), Conditions(slowdown={(9, Kind.F): 2.0}), AS_PLANNED):
        proposal = replan(plan, conditions, running=running, climb_ops=0)
        assert (proposal.choice, proposal.plan) == (Choice.KNOWN, plan)


def test_of_equal_plans_the_running_one() -> None:
    plan = four_ranks()
    running = replan(plan, SLOW, climb_ops=0).plan
    proposal = replan(plan, SLOW, running=running, known=(running,), climb_ops=0)
    assert (proposal.choice, proposal.gain_ns) == (Choice.RUNNING, 0)


def test_what_is_refused() -> None:
    plan = four_ranks()
    other = plan_of(p := make_problem(4, 4), constructive("zb-h1")(p))
    with pytest.raises(InvalidInput, match=r"^test: pipeline\.microbatches: same-pipeline: "):
        replan(plan, SLOW, running=other)
    with pytest.raises(InvalidInput, match=r"^test: under the conditions: stages: length"):
        replan(plan, Conditions(slowdown={(0, Kind.F): 1e18}))


def test_the_simple_bound_is_one_of_all() -> None:
    random = Random(7)
    for _ in range(20):
        problem = tiny_problem(random, most_ops=18)
        assert simple_bound(problem) in lower_bounds(problem)


def test_no_worse_than_pipemorph_where_a_link_is_slow() -> None:
    for slow in ((0, 1), (1, 2), (2, 3)):
        plan = four_ranks()
        conditions = Conditions(links=dict.fromkeys((slow, slow[::-1]), LinkState(latency_ns=45)))
        now = problem_under(plan.problem, conditions)
        assert replan(plan, conditions, climb_ops=0).objective_ns <= simulate(now, PipeMorph()(now)).makespan_ns


def test_the_rules_for_slow_links_are_the_first_of_the_table() -> None:
    problem = make_problem(3, 5)
    scheduler = climbing_scheduler(problem)
    few, many = slow_link_rules(problem, scheduler, 20), slow_link_rules(problem, scheduler, 50)
    assert (len(few), len(many)) == (12, 50)
    for one, other in zip(few, many, strict=False):
        assert all((mine == theirs).all() for mine, theirs in zip(one, other, strict=True))
