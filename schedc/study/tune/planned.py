"""What a plan says of its candidate: the row of the table, and whether the plan is better than the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.gap import check_bound, relative_gap
from schedc.study.loss.time_to_loss import LossCandidate
from schedc.study.tune.candidates import CandidateState
from schedc.study.tune.first_plans import rated
from schedc.study.tune.prepare import reached_by

if TYPE_CHECKING:
    from schedc.ir import Plan
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.work import Work


def take_plan(request: TuneRequest, work: Work, plan: Plan) -> None:
    """The plan and its bound, each if it is better than what is known of the candidate, whose problem is made.

    With a loss the candidate may be `unknown` then: nobody has measured what its delays cost.

    Raises:
        Defect: the plan is better than a bound.
    """
    assert work.made is not None
    row = work.row
    if not plan.certificate.bound.is_solvers:  # a solver's says nothing of schedules that cut other blocks
        work.raise_bound(plan.certificate.lower_bound_ns)
    own = None if request.loss is None else LossCandidate.of_plan(plan, update_ns=work.made.update_ns)
    reached = None if own is None else reached_by(request, work, own.period_ns, own.delays)
    if work.plan is None or rated(reached, plan.certificate.makespan_ns) < rated(work.reached, work.plan.certificate.makespan_ns):
        work.plan, work.reached = plan, reached
    certificate, sequence = work.plan.certificate, request.sequence
    step_ns = certificate.makespan_ns
    peaks = zip(work.made.static_bytes, certificate.peak_activation_bytes, strict=True)
    row.state, row.why_not = CandidateState.PLANNED, ""
    row.method = work.plan.made_by.method
    row.step_ns, row.stage_span_ns = step_ns, certificate.stage_span_ns
    row.tokens_per_s = None if sequence is None else row.candidate.sequences * sequence / (step_ns / 1e9)
    row.peak_bytes = max(static + activations for static, activations in peaks)
    row.gap = relative_gap(step_ns, row.bound_ns or 0, certificate.bound)
    if work.reached is not None:
        row.delays, row.basis = work.reached.candidate.delays, work.reached.basis
        row.updates, row.time_to_loss_ns = work.reached.updates, work.reached.time_ns
        if row.time_to_loss_ns is not None:
            check_bound(row.time_to_loss_bound_ns or 0, row.time_to_loss_ns, f"{row.candidate.title}, to the loss")
        undelayed = reached_by(request, work, 1, (0,) * row.candidate.stages).updates
        row.factor = None if row.updates is None or undelayed is None else row.updates / undelayed
        if row.updates is None:
            row.state, row.why_not = CandidateState.UNKNOWN, row.basis
