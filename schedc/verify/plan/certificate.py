"""What must hold for the certificate of a Plan: every number that it claims is the one that comes out when it is computed again.

The times come from the replay and the memory from a walk along the compute queues, neither from the code that made the claim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import WHOLE, Kind, Op
from schedc.ir.plan import BoundName, Plan, RankPlan, Scope
from schedc.ir.problem import Objective
from schedc.verify.plan.replay import Replay, replay
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from schedc.verify.plan.needs import Need

TOLERANCE = 1e-6
"""How far a claimed ratio may be from the true one: files may round it."""


def check_certificate(plan: Plan, needs: Mapping[Op, Need], bounds: Mapping[BoundName, int] | None) -> Iterator[Violation]:
    """Every rule of the certificate; `bounds` as in `check_bounds`, None: they are believed."""
    replayed = replay(plan, needs)
    yield from check_objective(plan)
    yield from check_makespan(plan, replayed)
    yield from check_stage_span(plan, replayed)
    yield from check_bubble_ratio(plan, replayed)
    yield from check_peak_memory(plan)
    yield from check_lower_bound(plan)
    yield from check_gap(plan)
    yield from check_bound_source(plan)
    if bounds is not None:
        yield from check_bounds(plan, bounds)


def check_objective(plan: Plan) -> Iterator[Violation]:
    """The certificate is about what the problem minimizes."""
    if plan.certificate.objective != plan.problem.objective:
        message = f"found {plan.certificate.objective}, but the problem minimizes {plan.problem.objective}"
        yield Violation("certificate-objective", "certificate.objective", message)


def check_makespan(plan: Plan, replayed: Replay) -> Iterator[Violation]:
    """The makespan is the replay's."""
    yield from _differs("makespan", "makespan_ns", plan.certificate.makespan_ns, replayed.makespan_ns)


def check_stage_span(plan: Plan, replayed: Replay) -> Iterator[Violation]:
    """The stage span is the replay's."""
    yield from _differs("stage-span", "stage_span_ns", plan.certificate.stage_span_ns, replayed.stage_span_ns)


def _differs(rule: str, name: str, claimed_ns: int, replayed_ns: int) -> Iterator[Violation]:
    if claimed_ns != replayed_ns:
        yield Violation(rule, f"certificate.{name}", f"claims {claimed_ns} ns, but the plan's queues take {replayed_ns} ns")


def check_bubble_ratio(plan: Plan, replayed: Replay) -> Iterator[Violation]:
    """The bubble ratio is 1 − busy time / (ranks × makespan) of the replay."""
    whole_ns = plan.problem.ranks * replayed.makespan_ns
    expected = 1 - sum(replayed.busy_ns) / whole_ns if whole_ns else 0.0
    if not abs(plan.certificate.bubble_ratio - expected) <= TOLERANCE:
        message = f"claims {plan.certificate.bubble_ratio}, but the plan's queues leave {expected}"
        yield Violation("bubble-ratio", "certificate.bubble_ratio", message)


def check_peak_memory(plan: Plan) -> Iterator[Violation]:
    """The peak of each rank is the largest sum of activations that its compute queue holds."""
    claimed, ranks = plan.certificate.peak_activation_bytes, len(plan.ranks)
    if len(claimed) != ranks:
        message = f"found {len(claimed)} peaks, expected one for each of the {ranks} ranks"
        yield Violation("peak-memory", "certificate.peak_activation_bytes", message)
    for rank, claim in zip(plan.ranks, claimed, strict=False):
        peak_bytes = _peak_bytes(plan, rank)
        if claim != peak_bytes:
            message = f"claims {claim} bytes, but the rank's compute queue holds up to {peak_bytes} bytes"
            yield Violation("peak-memory", f"certificate.peak_activation_bytes[{rank.rank}]", message)


def _peak_bytes(plan: Plan, rank: RankPlan) -> int:
    last_part = {(parts.kind, parts.stage): len(parts.shares) - 1 for parts in plan.parts}
    takes, leaves = {}, {}
    for index in plan.problem.stages_on(rank.rank):
        stage = plan.problem.stages[index]
        again, kept = stage.recomputed_bytes, stage.activation_after_input_bytes
        whole = stage.activation_bytes + again
        takes[index] = {Kind.F: stage.activation_bytes, Kind.B: again, Kind.W: 0, Kind.BW: again}
        leaves[index] = {Kind.F: 0, Kind.B: whole - kept, Kind.W: kept, Kind.BW: whole}
    held = peak = 0
    for kind, index, _, part in rank.compute:
        if part in (WHOLE, 0):
            held += takes[index][kind]
            peak = max(peak, held)
        if part == WHOLE or part == last_part[kind, index]:
            held -= leaves[index][kind]
    return peak


def _objective_ns(plan: Plan) -> int:
    claims = plan.certificate
    return claims.stage_span_ns if plan.problem.objective is Objective.STAGE_SPAN else claims.makespan_ns


def check_lower_bound(plan: Plan) -> Iterator[Violation]:
    """The lower bound is not above what the plan reaches."""
    bound_ns, objective_ns = plan.certificate.lower_bound_ns, _objective_ns(plan)
    if not 0 <= bound_ns <= objective_ns:
        message = f"claims {bound_ns} ns, expected 0 to the plan's {plan.problem.objective} of {objective_ns} ns"
        yield Violation("lower-bound", "certificate.lower_bound_ns", message)


def check_gap(plan: Plan) -> Iterator[Violation]:
    """The gap is (objective − lower bound) / objective."""
    objective_ns = _objective_ns(plan)
    expected = (objective_ns - plan.certificate.lower_bound_ns) / objective_ns if objective_ns else 0.0
    if not abs(plan.certificate.gap - expected) <= TOLERANCE:
        message = f"claims {plan.certificate.gap}, but objective and lower bound give {expected}"
        yield Violation("gap", "certificate.gap", message)


def check_bound_source(plan: Plan) -> Iterator[Violation]:
    """The bound comes from somewhere: the problem itself, or a solver, whose word says nothing about blocks that are cut.

    A bound over layouts is an analytic one of its own, or a solver's.
    """
    claims = plan.certificate
    if not claims.bound.is_solvers and (claims.bound is BoundName.LAYOUTS) != (claims.scope is Scope.LAYOUT):
        message = f"the bound {claims.bound} does not have the scope {claims.scope}"
        yield Violation("bound-source", "certificate.scope", message)
    if claims.bound.is_solvers and plan.parts:
        message = f"the bound {claims.bound} holds for whole blocks, but the plan cuts some"
        yield Violation("bound-source", "certificate.bound", message)
    if claims.solver_log_sha256 and not claims.bound.is_solvers:
        message = f"names a solver's log, but the bound {claims.bound} is no solver's"
        yield Violation("bound-source", "certificate.solver_log_sha256", message)
    if claims.bound.is_solvers and not claims.solver_log_sha256:
        message = f"is missing: the bound {claims.bound} rests on a solver's log, and the plan names none"
        yield Violation("bound-source", "certificate.solver_log_sha256", message)


def check_bounds(plan: Plan, bounds: Mapping[BoundName, int]) -> Iterator[Violation]:
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
            yield Violation("bounds", "certificate.lower_bound_ns", message)
    elif not claims.bound.is_solvers and claims.bound is not BoundName.LAYOUTS:
        message = f"names the bound {claims.bound}, but the problem has only {', '.join(sorted(bounds)) or 'none'}"
        yield Violation("bounds", "certificate.bound", message)
    for name, bound_ns in bounds.items():
        if bound_ns > objective_ns:
            message = f"the plan's {plan.problem.objective} of {objective_ns} ns is below the bound {name} of {bound_ns} ns"
            yield Violation("bounds", "certificate", message)
