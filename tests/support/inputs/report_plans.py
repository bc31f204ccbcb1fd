"""Plans and traces for the report's tests, small, with transfers, a trunk, collectives and a name that is markup."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from inputs.plans import one_f_one_b, small_plan
from inputs.problems import make_problem
from inputs.traces import slower_link, trace_of_timelines
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify
from schedc.ir.plan import MadeBy

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace

MARKUP = """</script><script>window.ran = true</script><img src=x onerror="window.ran = true">"""


def marked_plan() -> Plan:
    """The small plan with collectives on a lane of their own; its name and its method are markup."""
    plan = small_plan(name=MARKUP)
    return replace(plan, made_by=replace(plan.made_by, method=MARKUP))


def plain_plan() -> Plan:
    """A plan of 3 ranks and 4 microbatches without collectives, of which a trace can be made."""
    links = {(0, 1): (7_000, 3_000), (1, 0): (7_000, 3_000), (1, 2): (2_000, 1_000), (2, 1): (2_000, 1_000)}
    problem = make_problem(3, 4, links=links, trunks={(0, 1): "east", (1, 2): "east"})
    stages = tuple(
        replace(
            stage,
            forward_ns=(10_000,),
            backward_input_ns=(11_000,),
            backward_weight_ns=(9_000,),
            backward_ns=(20_000,),
            activation_bytes=2**20,
        )
        for stage in problem.stages
    )
    problem = replace(problem, stages=stages, memory_limit_bytes=(2**22, 2**22, None), name="plain")
    return certify(problem, one_f_one_b(problem), MadeBy(schedc="0", method="1f1b"))


def slow_trace(plan: Plan) -> Trace:
    """A trace of two steps of the plan, in which the link from rank 0 to rank 1 was slower than planned."""
    slow = [simulate(slower_link(plan.problem, 0, 1, by_ns), plan.schedule()) for by_ns in (4_000, 9_000)]
    return trace_of_timelines(plan, slow, first_step=5)
