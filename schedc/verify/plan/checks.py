"""What must hold for a Plan. Takes a plan; gives every violation, none if it runs to its end as its certificate says.

No plan is written that this refuses, and the runtime executes none. The rules are in five groups, each of which relies on
those before it: the problem; the ranks and their compute queues; channels and collectives; freedom from deadlock; the certificate.
Within the group where something is wrong, all violations are returned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.verify.plan.certificate import check_certificate
from schedc.verify.plan.channels import check_channels
from schedc.verify.plan.needs import needs_of
from schedc.verify.plan.rendezvous import check_rendezvous
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.ir.plan import BoundName, Plan


def verify_plan(plan: Plan, *, bounds: Mapping[BoundName, int] | None = None) -> tuple[Violation, ...]:
    """Every rule that the plan breaks, with its place (`ranks[3].channels[recv_prev].transfers[4]`); empty if it is valid.

    Args:
        plan: the plan.
        bounds: the analytic lower bounds of the plan's problem in nanoseconds, by name, computed by the caller. With them a
            claimed analytic bound must be the true one, and none may be above the objective; without them a claim is believed.
    """
    if broken := (*verify_problem(plan.problem), *check_ranks(plan)):
        return broken
    if broken := verify_schedule(plan.problem, plan.schedule()):
        return broken
    needs = needs_of(plan)
    broken = tuple(check_channels(plan, needs))
    if not any(violation.rule == "transfers" for violation in broken):  # else the queues do not carry what is needed
        broken += tuple(check_rendezvous(plan, needs))
    return broken or tuple(check_certificate(plan, needs, bounds))


def check_ranks(plan: Plan) -> Iterator[Violation]:
    """The plan holds every rank of the problem once, in order."""
    if len(plan.ranks) != plan.problem.ranks:
        yield Violation("ranks", "ranks", f"expected the problem's {plan.problem.ranks} ranks, found {len(plan.ranks)}")
    for index, rank in enumerate(plan.ranks):
        if rank.rank != index:
            yield Violation("ranks", f"ranks[{index}].rank", f"found {rank.rank}, expected {index}")
