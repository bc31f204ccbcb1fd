"""What must hold for a Plan. Takes a plan; gives every violation, none if it runs to its end as its certificate says.

No plan is written that this refuses, and the runtime executes none. The rules are in five groups, each of which relies on
those before it: the problem; the ranks and their compute queues; channels and collectives; freedom from deadlock; the certificate.
Within the group where something is wrong, all violations are returned.

Every number that a certificate claims is the one that comes out when it is computed again. The times come from the replay and the
memory from a walk along the compute queues, of a graph with the replay's times; neither from the code that made the claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import BoundName, Kind, Objective, Plan, Scope
from schedc.verify.plan.channels import CHANNELS, needs_of
from schedc.verify.plan.memory import as_run, peaks_of
from schedc.verify.plan.period import repeat
from schedc.verify.plan.rendezvous import RENDEZVOUS
from schedc.verify.plan.replay import Replay, replay
from schedc.verify.problem import verify_problem
from schedc.verify.schedule.checks import verify_schedule
from schedc.verify.schedule.updates import delays_and_versions
from schedc.verify.violation import Checks, Found, Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

TOLERANCE = 1e-6
"""How far a claimed ratio may be from the true one: files may round it."""
RANKS: Checks[[Plan]] = Checks()
CERTIFICATE: Checks[[Plan, Replay]] = Checks()
BOUNDS: Checks[[Plan, Mapping[BoundName, int]]] = Checks()


def verify_plan(plan: Plan, *, bounds: Mapping[BoundName, int] | None = None) -> tuple[Violation, ...]:
    """Every rule that the plan breaks, with its place (`ranks[3].channels[recv_prev].transfers[4]`); empty if it is valid.

    Args:
        plan: the plan.
        bounds: the analytic lower bounds of the plan's problem in nanoseconds, by name, computed by the caller. With them a
            claimed analytic bound must be the true one, and none may be above the objective; without them a claim is believed.
    """
    if broken := (*verify_problem(plan.problem), *RANKS.broken(plan)):
        return broken
    if broken := verify_schedule(plan.problem, plan.schedule()):
        return broken
    if plan.is_period:
        return CERTIFICATE.broken(plan, repeat(plan)) + (() if bounds is None else BOUNDS.broken(plan, bounds))
    needs = needs_of(plan)
    broken = CHANNELS.broken(plan, needs)
    if not any(violation.rule == "transfers" for violation in broken):  # else the queues do not carry what is needed
        broken += RENDEZVOUS.broken(plan, needs)
    if broken:
        return broken
    return CERTIFICATE.broken(plan, replay(plan, needs)) + (() if bounds is None else BOUNDS.broken(plan, bounds))


@RANKS
def check_ranks(plan: Plan) -> Found:
    """The plan holds every rank of the problem once, in order."""
    if len(plan.ranks) != plan.problem.ranks:
        yield "ranks", f"expected the problem's {plan.problem.ranks} ranks, found {len(plan.ranks)}"
    for index, rank in enumerate(plan.ranks):
        if rank.rank != index:
            yield f"ranks[{index}].rank", f"found {rank.rank}, expected {index}"
        if plan.is_period and (rank.channels or rank.collectives):
            yield f"ranks[{index}]", "a period has compute queues alone; channels and collectives are those of its runs"


@CERTIFICATE
def check_certificate_objective(plan: Plan, _: Replay) -> Found:
    """The certificate is about what the problem minimizes."""
    if plan.certificate.objective != plan.problem.objective:
        yield "certificate.objective", f"found {plan.certificate.objective}, but the problem minimizes {plan.problem.objective}"


@CERTIFICATE
def check_makespan(plan: Plan, replayed: Replay) -> Found:
    """The makespan is the replay's; of a period, that period."""
    yield from _differs("makespan_ns", plan.certificate.makespan_ns, replayed.makespan_ns)


@CERTIFICATE
def check_stage_span(plan: Plan, replayed: Replay) -> Found:
    """The stage span is the replay's."""
    yield from _differs("stage_span_ns", plan.certificate.stage_span_ns, replayed.stage_span_ns)


def _differs(name: str, claimed_ns: int, replayed_ns: int) -> Found:
    if claimed_ns != replayed_ns:
        yield f"certificate.{name}", f"claims {claimed_ns} ns, but the plan's queues take {replayed_ns} ns"


@CERTIFICATE
def check_bubble_ratio(plan: Plan, replayed: Replay) -> Found:
    """The bubble ratio is 1 − busy time / (ranks × makespan) of the replay."""
    whole_ns = plan.problem.ranks * replayed.makespan_ns
    expected = 1 - sum(replayed.busy_ns) / whole_ns if whole_ns else 0.0
    if not abs(plan.certificate.bubble_ratio - expected) <= TOLERANCE:
        yield "certificate.bubble_ratio", f"claims {plan.certificate.bubble_ratio}, but the plan's queues leave {expected}"


@CERTIFICATE
def check_peak_memory(plan: Plan, replayed: Replay) -> Found:
    """The peak of each rank is the most that its compute queue holds, of a graph with values that wait; of a period a run's."""
    claimed, ranks = plan.certificate.peak_activation_bytes, len(plan.ranks)
    if len(claimed) != ranks:
        yield "certificate.peak_activation_bytes", f"found {len(claimed)} peaks, expected one for each of the {ranks} ranks"
    for rank, (claim, peak) in enumerate(zip(claimed, peaks_of(plan, replayed), strict=False)):
        if claim != peak.size_bytes:
            message = f"claims {claim} bytes, but the rank's compute queue holds up to {peak.size_bytes} bytes"
            yield f"certificate.peak_activation_bytes[{rank}]", message


@CERTIFICATE
def check_memory_limit(plan: Plan, replayed: Replay) -> Found:
    """No rank of a graph holds more than its limit with the values that wait, which `verify_schedule` knows nothing of."""
    if not plan.problem.edges:
        return
    for rank, (limit, peak) in enumerate(zip(plan.problem.memory_limit_bytes, peaks_of(plan, replayed), strict=False)):
        if limit is not None and peak.size_bytes > limit:
            message = f"the rank holds {peak.size_bytes} bytes, {peak.waiting_bytes} of them values that wait for others"
            place = f"ranks[{rank}].compute[{peak.at}]"
            yield place, f"{message}, at {plan.problem.token(plan.ranks[rank].compute[peak.at])}; its limit is {limit} bytes"


@CERTIFICATE
def check_delays(plan: Plan, _: Replay) -> Found:
    """Where steps overlap, each stage's delay and number of versions are those of its rank's queue; else there are none."""
    delays, versions = delays_and_versions(*as_run(plan)) if plan.problem.updates is not None else ((), ())
    for name, claimed, found in (("delays", plan.certificate.delays, delays), ("versions", plan.certificate.versions, versions)):
        if claimed != found:
            yield f"certificate.{name}", f"claims {list(claimed)}, but the compute queues give {list(found)}"


def _objective_ns(plan: Plan) -> int:
    claims = plan.certificate
    return claims.stage_span_ns if plan.problem.objective is Objective.STAGE_SPAN else claims.makespan_ns


@CERTIFICATE
def check_lower_bound(plan: Plan, _: Replay) -> Found:
    """The lower bound is not above what the plan reaches."""
    bound_ns, objective_ns = plan.certificate.lower_bound_ns, _objective_ns(plan)
    if not 0 <= bound_ns <= objective_ns:
        message = f"claims {bound_ns} ns, expected 0 to the plan's {plan.problem.objective} of {objective_ns} ns"
        yield "certificate.lower_bound_ns", message


@CERTIFICATE
def check_gap(plan: Plan, _: Replay) -> Found:
    """The gap is (objective − lower bound) / objective."""
    objective_ns = _objective_ns(plan)
    expected = (objective_ns - plan.certificate.lower_bound_ns) / objective_ns if objective_ns else 0.0
    if not abs(plan.certificate.gap - expected) <= TOLERANCE:
        yield "certificate.gap", f"claims {plan.certificate.gap}, but objective and lower bound give {expected}"


@CERTIFICATE
def check_bound_source(plan: Plan, _: Replay) -> Found:
    """The bound comes from somewhere: the problem itself, or a solver, whose word speaks of whole blocks, or of whole F, B and BW.

    A bound over layouts is an analytic one of its own, or a solver's.
    """
    claims = plan.certificate
    if not claims.bound.is_solvers and (claims.bound is BoundName.LAYOUTS) != (claims.scope is Scope.LAYOUT):
        yield "certificate.scope", f"the bound {claims.bound} does not have the scope {claims.scope}"
    cut = {parts.kind for parts in plan.parts} - ({Kind.W} if claims.bound is BoundName.CPSAT_CUT else set())
    if claims.bound.is_solvers and cut:
        yield "certificate.bound", f"the bound {claims.bound} holds for whole {min(cut).name}, but the plan cuts some"
    if claims.solver_log_sha256 and not claims.bound.is_solvers:
        yield "certificate.solver_log_sha256", f"names a solver's log, but the bound {claims.bound} is no solver's"
    if claims.bound.is_solvers and not claims.solver_log_sha256:
        message = f"is missing: the bound {claims.bound} rests on a solver's log, and the plan names none"
        yield "certificate.solver_log_sha256", message


@BOUNDS
def check_bounds(plan: Plan, bounds: Mapping[BoundName, int]) -> Found:
    """What the certificate claims of a bound is no more than comes out when it is computed again, nor is the plan better than any.

    It may be less: of a bound that takes long a compiler with little time computes a part. A bound over layouts can only be
    computed again with the job.

    Args:
        plan: the plan.
        bounds: the analytic bounds of its problem in nanoseconds, by name.
    """
    claims, objective_ns = plan.certificate, _objective_ns(plan)
    if claims.bound in bounds:
        if claims.lower_bound_ns > bounds[claims.bound]:
            message = f"claims {claims.lower_bound_ns} ns, but the bound {claims.bound} is {bounds[claims.bound]} ns"
            yield "certificate.lower_bound_ns", message
    elif not claims.bound.is_solvers and claims.bound is not BoundName.LAYOUTS:
        yield "certificate.bound", f"names the bound {claims.bound}, but the problem has only {', '.join(sorted(bounds)) or 'none'}"
    for name, bound_ns in bounds.items():
        if bound_ns > objective_ns:
            message = f"the plan's {plan.problem.objective} of {objective_ns} ns is below the bound {name} of {bound_ns} ns"
            yield "certificate", message
