"""Valid plans for tests: lowered from any valid schedule, with a certificate that claims what the simulator says."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from inputs.problems import make_problem, problems
from inputs.random_schedules import random_schedules
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import BoundName, Certificate, MadeBy
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.schedule import Schedule
from schedc.lower.plan import lower

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem


def plan_of(problem: Problem, schedule: Schedule) -> Plan:
    """The plan of a schedule; its lower bound is half of its objective."""
    timeline = simulate(problem, schedule)
    objective_ns = timeline.objective_ns(problem.objective)
    certificate = Certificate(
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=objective_ns // 2,
        gap=(objective_ns - objective_ns // 2) / objective_ns if objective_ns else 0.0,
        bound=BoundName.WORK,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=timeline.stage_span_ns,
        objective=problem.objective,
    )
    return lower(problem, schedule, timeline, certificate=certificate, made_by=MadeBy(schedc="0", method="test"))


def one_f_one_b(problem: Problem) -> Schedule:
    """1F1B with fused backwards, for a unidirectional placement; small and with several transfers under way."""
    orders = []
    for rank in range(problem.ranks):
        ahead = min(problem.ranks - rank, problem.microbatches)
        forwards = [Op(Kind.F, rank, m) for m in range(problem.microbatches)]
        backwards = [Op(Kind.BW, rank, m) for m in range(problem.microbatches)]
        order = forwards[:ahead]
        for m, backward in enumerate(backwards):
            order += [backward, *forwards[ahead + m : ahead + m + 1]]
        orders.append(tuple(order))
    return Schedule(orders=tuple(orders))


def small_plan(**changes: Any) -> Plan:
    """A plan of 3 ranks and 4 microbatches over slow links with collectives; `changes` are the problem's fields."""
    links = {(0, 1): (7, 3), (1, 0): (7, 3), (1, 2): (2, 1), (2, 1): (2, 1)}
    problem = make_problem(3, 4, links=links, trunks={(0, 1): "east", (1, 2): "east"})
    parallel = DataParallel(size=2, zero_stage=1, reduce_scatter_ns=(5, 6, 7), all_gather_ns=(1, 2, 3))
    problem = replace(problem, **{"data_parallel": parallel, **changes})
    return plan_of(problem, one_f_one_b(problem))


@st.composite
def plans(draw: st.DrawFn, *, shared_trunks: bool = True, min_duration_ns: int = 1, max_time_ns: int = 15) -> Plan:
    """Random valid plans over all placements, with parts, trunks, both objectives and collectives."""
    small = problems(
        shared_trunks=shared_trunks,
        min_duration_ns=min_duration_ns,
        max_time_ns=max_time_ns,
        memory=False,
        max_microbatches=4,
    )
    problem = draw(small)
    size = len(problem.stages)
    times = st.lists(st.integers(0, max_time_ns + 5 if max_time_ns > 2 else max_time_ns), min_size=size, max_size=size).map(tuple)
    trunks = sorted({link.trunk for link in problem.links if link.trunk})
    if draw(st.booleans()):
        parallel = DataParallel(
            size=draw(st.integers(1, 4)),
            zero_stage=1,
            reduce_scatter_ns=draw(times),
            all_gather_ns=draw(st.one_of(st.just(()), times)),
            trunk=draw(st.sampled_from([None, *trunks])),
        )
        problem = replace(problem, data_parallel=parallel)
    problem = replace(problem, objective=draw(st.sampled_from(Objective)))
    return plan_of(problem, draw(random_schedules(problem)))
