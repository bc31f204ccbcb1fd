"""What `tune` found: the rows, the best with its plan, how far any candidate can be below it, and whether a pipeline pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import Infeasible, NoPlanFound
from schedc.study.tune.candidates import CandidateState, TuneRow
from schedc.study.tune.estimates import what_fits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.errors import SchedcError
    from schedc.ir import Plan
    from schedc.solvers.common.incumbent import Failure
    from schedc.study.loss.time_to_loss import TimeToLoss
    from schedc.study.tune.causes import Compared
    from schedc.study.tune.problems import CandidateProblem
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.sums import Sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found."""

    rows: tuple[TuneRow, ...]
    """By step, then by bound; those that cannot be run last."""
    best: TuneRow
    problem: CandidateProblem
    """Of the best."""
    plan: Plan
    """Of the best."""
    bound_ns: int
    """No schedule of any candidate has a shorter step; with a loss: reaches it sooner, where what its delays cost is known."""
    sums: Sums
    """Of the best's plan, over the cluster."""
    failures: tuple[Failure, ...]
    """Of methods that ended with an exception of their own, which are defects of schedc. No plan rests on them."""
    is_done: bool
    """Whether the search ended by itself, before its time was up and without an interruption."""
    pipelines: str = ""
    """Whether a pipeline pays, and by how much, on one line; empty: all candidates have one, or none has."""
    compared: Compared | None = None
    """With the candidate that was asked for, or the best of the others, without a pipeline or with one; None: there is none with a
    plan, or candidates are compared by the time to a loss."""
    times: TimeToLoss | None = None
    """Of the candidates that have a plan; None: no loss was asked for."""


def least_bound_ns(rows: Iterable[TuneRow], bound_ns: Callable[[TuneRow], int | None]) -> int | None:
    """No schedule of any of the candidates has less; None: there are none that may have a schedule.

    A candidate without a bound may be as good as one likes, but one of which no delays that it may have are known. One without
    room has no schedule.
    """
    bounded = [row for row in rows if row.state is not CandidateState.NO_ROOM]
    bounded = [row for row in bounded if row.state is not CandidateState.UNKNOWN or bound_ns(row) is not None]
    return min((bound_ns(row) or 0 for row in bounded), default=None)


def pipeline_verdict(
    best: TuneRow,
    rows: Sequence[TuneRow],
    value_ns: Callable[[TuneRow], float],
    bound_ns: Callable[[TuneRow], int | None],
) -> str:
    """Whether a pipeline is faster than none; `rows` from the best to the worst, with what they are compared by and its bound."""
    piped = best.candidate.ranks > 1
    others = [row for row in rows if (row.candidate.ranks > 1) is not piped]
    if not others:
        return ""
    advice, other = ("pipeline", "without one") if piped else ("do not pipeline", "with a pipeline")
    of_best, least_ns = value_ns(best), least_bound_ns(others, bound_ns)
    if least_ns is None:
        return f"{advice}: {other} there is no room ({others[0].why_not})"
    least = least_ns / of_best - 1
    surely = f"at least {least:.1%}" if least >= 0.0005 else "perhaps nothing"
    if others[0].step_ns is None or others[0].state is CandidateState.UNKNOWN:
        return f"{advice}: {other} it takes {surely} more, by its bound; no plan of that kind was made"
    longer, bounded = value_ns(others[0]) / of_best - 1, f"; {surely} by its bound" if least >= 0.0005 else ""
    return f"{advice}: {other} it takes {longer:.1%} more ({others[0].candidate.title}){bounded}"


def no_plan(request: TuneRequest, rows: Sequence[TuneRow]) -> SchedcError:
    """Why there is none: what would have room, or what became of the one that came nearest."""
    none = f"{request.name}: none of {len(rows)} candidates has"
    if unfit := what_fits(request):
        return Infeasible(f"{none} room: {unfit}")
    reasons = [row for row in rows if row.why_not]
    if unknown := [row for row in reasons if row.state is CandidateState.UNKNOWN]:
        return NoPlanFound(f"{none} a plan that is known to reach the loss; {unknown[0].candidate.title}: {unknown[0].why_not}")
    if not reasons:
        return NoPlanFound(f"{request.name}: no candidate was reached in the time given")
    # The one that came nearest, the last of equals.
    row = sorted(
        reasons,
        key=lambda row: (row.state is CandidateState.NO_PLAN, row.bound_ns is not None, -row.candidate.microbatch_size),
    )[-1]
    each = row.candidate
    return NoPlanFound(f"{none} a plan; with {each.ranks} ranks and {each.microbatch_size} in a microbatch: {row.why_not}")
