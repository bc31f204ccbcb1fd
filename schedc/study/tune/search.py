"""The search over candidates, in two passes: all of them with baselines, then `auto` on those that may still be the best.

A candidate whose lower bound is not below the best step known is not searched: no schedule of it is better. Small ones go
first, those of a size in the order of what they about take; most are refused before a job is made.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import cheap_bound_ns
from schedc.analysis.bounds.residency import minimum_limit_bytes
from schedc.analysis.gap import relative_gap
from schedc.compile.fixed_layout import checks_s, compile_problem
from schedc.errors import Infeasible, InvalidInput, NoPlanFound, Unsupported
from schedc.solvers.common.base import Limits
from schedc.solvers.driver.registry import is_auto
from schedc.study.tune.baselines import baseline_of
from schedc.study.tune.candidates import candidates
from schedc.study.tune.estimates import Totals, about_ns, no_room, simple_bound_ns, totals_of
from schedc.study.tune.jobs import job_of
from schedc.study.tune.request import PROFILE
from schedc.study.tune.rows import CandidateState, TuneRow
from schedc.study.tune.sums import Sums, check_sums, sums_of, what_fits
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.interruption import Interruption
    from schedc.study.tune.jobs import CandidateJob
    from schedc.study.tune.request import TuneRequest

MOST_SEARCHED_OPS = 50_000
"""Candidates of more compute ops get a bound only: bounds and checks alone would take five seconds and more."""
FEW_OPS = 4_000
"""Candidates of at most this many compute ops are tried first, then those of twice as many, and so on: they take little time."""
BASELINES_SHARE = 0.6
"""Of the time limit, for the first pass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneLimits:
    """When the search ends."""

    time_s: float | None = None
    """For all candidates together."""
    candidate_s: float = 20.0
    """For one candidate in the second pass."""
    gap: float = 0.0
    seed: int = 0
    workers: int = 8
    prune: bool = True
    """False: search also what a bound refuses; the result is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known now."""

    doing: str
    done: int
    total: int
    best: TuneRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What was found."""

    rows: tuple[TuneRow, ...]
    """By step, then by bound; those that cannot be run last."""
    best: TuneRow
    job: CandidateJob
    """Of the best."""
    plan: Plan
    """Of the best."""
    bound_ns: int
    """No schedule of any candidate has a shorter step."""
    sums: Sums
    """Of the best's plan, over the cluster."""
    failures: tuple[Failure, ...]
    """Of methods that ended with an exception of their own, which are defects of schedc. No plan rests on them."""


@dataclass(slots=True)
class _Work:
    """A candidate while it is worked on."""

    row: TuneRow
    job: CandidateJob | None = None
    plan: Plan | None = None
    about_ns: int = 0
    """What the step may take; only for the order."""

    @property
    def ops(self) -> int:
        """Compute ops, as `Problem.num_ops`."""
        candidate = self.row.candidate
        return 3 * candidate.ranks * candidate.chunks * candidate.microbatches

    @property
    def problem(self) -> Problem:
        """Of a candidate that can be compiled."""
        assert self.job is not None
        return self.job.job.problem


@dataclass(slots=True)
class _Search:
    request: TuneRequest
    method: str
    limits: TuneLimits
    interruption: Interruption
    report: Callable[[Progress], None]
    works: list[_Work]
    begun_s: float = field(default_factory=time.perf_counter)
    best: _Work | None = None
    failures: list[Failure] = field(default_factory=list)
    totals: dict[int, Totals] = field(default_factory=dict)
    """Of each microbatch size."""

    def left_s(self, share: float = 1.0) -> float | None:
        """What is left of this share of the time; None: no limit."""
        if self.limits.time_s is None:
            return None
        return share * self.limits.time_s - (time.perf_counter() - self.begun_s)

    def is_over(self, share: float = 1.0) -> bool:
        """Whether nothing more is begun; never before there is a plan."""
        left_s = self.left_s(share)
        return self.best is not None and (self.interruption.requested or (left_s is not None and left_s <= 0))

    def is_refused(self, bound_ns: int | None) -> bool:
        """Whether no schedule of this bound is better than the best plan."""
        return (
            self.limits.prune
            and bound_ns is not None
            and self.best is not None
            and self.best.row.step_ns is not None
            and bound_ns >= self.best.row.step_ns
        )

    def tell(self, doing: str, done: int) -> None:
        self.report(Progress(doing=doing, done=done, total=len(self.works), best=None if self.best is None else self.best.row))


def tune(
    request: TuneRequest,
    *,
    method: str = "auto",
    limits: TuneLimits,
    interruption: Interruption,
    report: Callable[[Progress], None] = lambda _: None,
) -> Tuned:
    """The best candidate, with its plan, and what became of the others.

    Args:
        request: what is asked.
        method: `auto`: baselines for all, then `auto` for the best; else a method's name, which is the only pass.
        limits: when the search ends.
        interruption: what listens to signals; an interruption ends the search with the best plan so far.
        report: is called with what is known, now and then.

    Raises:
        InvalidInput: no candidate uses all devices and the whole batch, or the method's name is wrong.
        Infeasible: the cluster has no room for what every candidate holds all the time; says what would have.
        NoPlanFound: no candidate has a plan; says why of the one that came nearest.
        Defect: a plan breaks a rule, or the sums over the cluster.
    """
    tried = candidates(request.choices)
    if not tried:
        raise (request.source.place / "tune").refuse("no way to divide the devices and the batch", _expected(request))
    search = _Search(
        request,
        method,
        limits,
        interruption,
        report,
        [_Work(TuneRow(candidate=each, state=CandidateState.NOT_REACHED)) for each in tried],
    )
    with TemporaryDirectory(prefix="schedc-tune-") as name:
        _prepare(search, Path(name))
        _first_pass(search, Path(name))
        if is_auto(method):
            _second_pass(search)
    return _tuned(search)


def work_bound_ns(problem: Problem) -> int:
    """A lower bound of the step that takes no time: some rank's work, after its first all-gather and before its last collective."""
    parallel = problem.data_parallel
    most = 0
    for rank in range(problem.ranks):
        stages = problem.stages_on(rank)
        work_ns = 0
        for stage in stages:
            costs = problem.stages[stage]
            for forward, split, weight, fused in zip(
                costs.forward_ns, costs.backward_input_ns, costs.backward_weight_ns, costs.backward_ns, strict=True
            ):
                work_ns += forward + min(split + weight, fused)
        around_ns = 0
        if parallel is not None:
            around_ns += min(parallel.reduce_scatter_ns[stage] for stage in stages)
            around_ns += min((parallel.all_gather_ns[stage] for stage in stages), default=0) if parallel.all_gather_ns else 0
        most = max(most, problem.microbatches * work_ns + around_ns)
    return most


def _prepare(search: _Search, directory: Path) -> None:
    """What is known of the candidates before their jobs are made; those that cannot fit or be planned are known here."""
    request = search.request
    for size, text in request.profiles.items():
        (directory / str(size)).mkdir()
        (directory / str(size) / PROFILE).write_text(text, encoding="utf-8")
        search.totals[size] = totals_of(request.layers[size], split_backward=request.file.tune.split_backward)
    for work in search.works:
        candidate = work.row.candidate
        total = search.totals[candidate.microbatch_size]
        why_not = no_room(request, candidate, total)
        if why_not:
            work.row = replace(work.row, state=CandidateState.NO_ROOM, why_not=why_not)
            continue
        work.row = replace(work.row, bound_ns=simple_bound_ns(request, candidate, total))
        work.about_ns = about_ns(request, candidate, total)
        if work.ops > MOST_SEARCHED_OPS:
            work.row = replace(work.row, state=CandidateState.TOO_LARGE, why_not=_too_large(work.ops))


def _make(search: _Search, work: _Work, directory: Path) -> None:
    """The candidate's job, unless it has no room."""
    candidate = work.row.candidate
    try:
        work.job = job_of(search.request, candidate, directory / str(candidate.microbatch_size))
    except InvalidInput as error:
        work.row = replace(work.row, state=CandidateState.NO_ROOM, why_not=str(error))
        return
    why_not = _no_room(work.problem)
    if why_not:
        work.row = replace(work.row, state=CandidateState.NO_ROOM, why_not=why_not)
        return
    bound_ns = max(work.row.bound_ns or 0, work_bound_ns(work.problem))
    work.row = replace(work.row, bound_ns=bound_ns, collectives_ns=max(work.job.collectives_ns))


def _no_room(problem: Problem) -> str:
    """Why not even one microbatch fits, if so."""
    for rank, (limit, needed) in enumerate(zip(problem.memory_limit_bytes, minimum_limit_bytes(problem), strict=True)):
        if limit is not None and limit < needed:
            return f"rank {rank} has room for {format_bytes(limit)} of activations; one microbatch needs {format_bytes(needed)}"
    return ""


def _first_pass(search: _Search, directory: Path) -> None:
    """The baselines, or the method that the user names, on every candidate that may be the best."""
    by_name = not is_auto(search.method)
    works = [work for work in search.works if work.row.state is CandidateState.NOT_REACHED]
    works.sort(key=lambda work: ((work.ops // FEW_OPS).bit_length(), work.about_ns))
    for done, work in enumerate(works):
        if search.is_over(1.0 if by_name else BASELINES_SHARE):
            break
        search.tell("baselines", done)
        if _refuse(search, work):
            continue
        _make(search, work, directory)
        if work.row.state is CandidateState.NO_ROOM or _refuse(search, work):
            continue
        work.row = replace(work.row, bound_ns=max(work.row.bound_ns or 0, cheap_bound_ns(work.problem)))
        if _refuse(search, work):
            continue
        if by_name:
            _compile(search, work, search.limits.candidate_s)
        else:
            _baselines(search, work)


def _second_pass(search: _Search) -> None:
    """`auto` on those whose bound is below the best step: the shortest step first, then those for which no baseline has room."""
    works = [work for work in search.works if work.row.state in (CandidateState.PLANNED, CandidateState.NO_PLAN)]
    works.sort(key=lambda work: (work.row.step_ns is None, work.row.step_ns or work.row.bound_ns or 0))
    for done, work in enumerate(works):
        left_s = search.left_s()
        if search.is_over() or (left_s is not None and left_s <= 0):
            break
        if search.is_refused(work.row.bound_ns) or (left_s is not None and left_s < work.row.seconds):
            continue  # the second: there is no time to do again even what the baselines did
        search.tell("searching", done)
        limit_s = search.limits.candidate_s if left_s is None else min(search.limits.candidate_s, left_s)
        _compile(search, work, limit_s)


def _refuse(search: _Search, work: _Work) -> bool:
    if not search.is_refused(work.row.bound_ns):
        return False
    work.row = replace(work.row, state=CandidateState.BOUNDED, why_not="its lower bound is not below the best step")
    return True


def _baselines(search: _Search, work: _Work) -> None:
    begun_s = time.perf_counter()
    made = baseline_of(work.problem, Limits(time_s=search.limits.candidate_s, seed=search.limits.seed), search.interruption)
    search.failures += made.failures
    if made.plan is None:
        work.row = replace(work.row, state=CandidateState.NO_PLAN, why_not=made.why_not)
    else:
        _keep(search, work, made.plan, time.perf_counter() - begun_s)


def _compile(search: _Search, work: _Work, limit_s: float) -> None:
    """The method on a candidate, within its time and what bounds and checks take at least."""
    limits = Limits(
        time_s=max(limit_s, _least_s(work.problem)),
        gap=search.limits.gap,
        seed=search.limits.seed,
        workers=search.limits.workers,
    )
    begun_s = time.perf_counter()
    try:
        compiled = compile_problem(work.problem, method=search.method, limits=limits, interruption=search.interruption)
    except (NoPlanFound, Unsupported) as error:
        if work.plan is None:
            work.row = replace(work.row, state=CandidateState.NO_PLAN, why_not=str(error))
        return
    search.failures += compiled.failures
    _keep(search, work, compiled.plan, time.perf_counter() - begun_s)


def _keep(search: _Search, work: _Work, plan: Plan, seconds: float) -> None:
    """The plan and its bound, each if it is better than what is known of the candidate."""
    assert work.job is not None
    bound_ns = work.row.bound_ns or 0
    if not plan.certificate.bound.is_solvers:  # a solver's holds for whole blocks only: it says nothing of other schedules
        bound_ns = max(plan.certificate.lower_bound_ns, bound_ns)
    if work.plan is None or plan.certificate.makespan_ns < work.plan.certificate.makespan_ns:
        work.plan = plan
    certificate = work.plan.certificate
    step_ns = certificate.makespan_ns
    peaks = zip(work.job.static_bytes, certificate.peak_activation_bytes, strict=True)
    choices, sequence = search.request.choices, search.request.sequence
    work.row = replace(
        work.row,
        state=CandidateState.PLANNED,
        method=work.plan.made_by.method,
        step_ns=step_ns,
        stage_span_ns=certificate.stage_span_ns,
        tokens_per_s=None if sequence is None else choices.batch * sequence / (step_ns / 1e9),
        peak_bytes=max(static + activations for static, activations in peaks),
        bound_ns=bound_ns,
        gap=relative_gap(step_ns, bound_ns, certificate.bound),
        seconds=work.row.seconds + seconds,
        why_not="",
    )
    if search.best is None or search.best.row.step_ns is None or step_ns < search.best.row.step_ns:
        search.best = work


def _tuned(search: _Search) -> Tuned:
    best = search.best
    if best is None or best.job is None or best.plan is None:
        unfit = what_fits(search.request, search.totals)
        if unfit:
            raise Infeasible(f"{search.request.name}: none of {len(search.works)} candidates has room: {unfit}")
        reasons = sorted((work.row for work in search.works if work.row.why_not), key=_nearness)
        raise NoPlanFound(
            f"{search.request.name}: none of {len(search.works)} candidates has a plan; {_says(reasons[-1])}"
            if reasons
            else f"{search.request.name}: no candidate was reached in the time given"
        )
    sums = sums_of(
        search.request,
        best.row.candidate,
        best.job.static_bytes,
        best.plan.certificate.peak_activation_bytes,
        best.plan.certificate.makespan_ns,
    )
    check_sums(sums, search.request.name)
    best.row = replace(best.row, state=CandidateState.BEST)
    for work in search.works:
        if work.row.state in (CandidateState.NOT_REACHED, CandidateState.TOO_LARGE):
            _refuse(search, work)
    order = {state: number for number, state in enumerate(CandidateState)}
    rows = sorted(
        (work.row for work in search.works),
        key=lambda row: (row.step_ns is None, row.step_ns or 0, order[row.state], row.bound_ns or 0),
    )
    bounds = [row.bound_ns for row in rows if row.state is not CandidateState.NO_ROOM]
    # A candidate without a bound may be as good as one likes.
    bound_ns = min((0 if bound is None else bound for bound in bounds), default=0)
    return Tuned(
        rows=tuple(rows),
        best=best.row,
        job=best.job,
        plan=best.plan,
        bound_ns=bound_ns,
        sums=sums,
        failures=tuple(search.failures),
    )


def _least_s(problem: Problem) -> float:
    """What checks take, below which a limit leaves nothing for a search."""
    return 1.1 * checks_s(problem)


def _too_large(ops: int) -> str:
    return f"{ops} compute ops, more than the {MOST_SEARCHED_OPS} that are searched; larger microbatches have fewer"


def _nearness(row: TuneRow) -> tuple[bool, bool, int]:
    """How near a candidate came to a plan; the nearest last."""
    return row.state is CandidateState.NO_PLAN, row.bound_ns is not None, -row.candidate.microbatch_size


def _says(row: TuneRow) -> str:
    each = row.candidate
    return f"with {each.ranks} ranks and {each.microbatch_size} in a microbatch: {row.why_not}"


def _expected(request: TuneRequest) -> str:
    choices = request.choices
    return (
        f"ranks that divide the {sum(choices.groups_of_site)} groups of {request.group} devices, pipelines that divide the batch of"
        f" {choices.batch}, and microbatches that divide the rest"
    )
