"""The search over candidates, in two passes: all of them with baselines, then `auto` on those that may still be the best.

A candidate whose lower bound is not below the best step known is not searched: no schedule of it is better. Small ones go
first, those of a size in the order of what they about take; most are refused before a job is made.

With a loss, the time to it takes the place of the step. How many updates it takes follows from the delays, so its bound is
the less, of no delay and some delay, of the fewest updates that they need × the least period that leaves them. In the first pass
a candidate is refused where neither would be the best of its kind, so that the verdict has the best of both.
"""

from __future__ import annotations

import time
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from schedc.analysis.bounds.lower_bounds import cheap_bound_ns
from schedc.analysis.bounds.residency import rank_without_room
from schedc.compile.driver import CHECKS_S_PER_OP, checks_s
from schedc.errors import Infeasible, InvalidInput, NoPlanFound, Unsupported
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.driver.registry import is_auto, method_named
from schedc.study.loss.time_to_loss import TimeToLoss, sorted_rows
from schedc.study.tune.candidates import CandidateState, TuneRow, candidates, cell
from schedc.study.tune.causes import Compared, causes_ns
from schedc.study.tune.estimates import undelayed_ns, work_bound_ns
from schedc.study.tune.first_plans import best_period_of
from schedc.study.tune.planned import take_plan
from schedc.study.tune.planner import Planner
from schedc.study.tune.prepare import prepare, reached_by
from schedc.study.tune.problems import candidate_problem
from schedc.study.tune.sums import check_sums, sums_of
from schedc.study.tune.tuned import Tuned, least_bound_ns, no_plan, pipeline_verdict
from schedc.study.tune.work import Progress, Work, in_order
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from schedc.ir import Problem
    from schedc.solvers.common.base import SearchSettings
    from schedc.solvers.common.incumbent import Failure
    from schedc.study.tune.request import TuneRequest

MOST_TRIES, COMPARED = 5, 24
"""This many candidates of a kind are planned before bounds refuse all of it, and this many of the kind that lost once the best is
known: so verdicts have good plans of both sides."""
LEAST_S_PER_OP = 2 * CHECKS_S_PER_OP
BASELINES_SHARE = 0.6
"""Of the time limit, for the first pass."""


@dataclass(slots=True)
class _Search:
    request: TuneRequest
    settings: SearchSettings
    prune: bool
    report: Callable[[Progress], None]
    works: list[Work]
    planner: Planner
    begun_s: float = field(default_factory=time.perf_counter)
    leaders: dict[bool, Work] = field(default_factory=dict)
    """The best of those without delay (False), and of those with some; steps that overlap may have none."""
    took: tuple[float, int] = (0.0, 0)
    """The seconds of all baselines that were made but the first, which loads and compiles what all use, and their compute ops."""
    failures: list[Failure] = field(default_factory=list)
    tries: dict[tuple[bool, bool], int] = field(default_factory=dict)
    """Of each kind, how many were begun without a plan; -1: there is one."""

    @property
    def best(self) -> Work | None:
        """Of all; of equal ones that without delay."""
        return min(self.leaders.values(), key=lambda work: (self.value_ns(work.row), any(work.row.delays)), default=None)

    def merit(self, row: TuneRow) -> tuple[float, float]:
        """Less is better: what candidates are compared by; of equal ones that whose fullest rank holds less."""
        return self.value_ns(row), inf if row.peak_bytes is None else row.peak_bytes

    def value_ns(self, row: TuneRow) -> float:
        """What candidates are compared by: the time to the loss, or else the step; infinite: there is none."""
        value_ns = row.step_ns if self.request.loss is None else row.time_to_loss_ns
        return inf if value_ns is None else value_ns

    def bound_ns(self, row: TuneRow) -> int | None:
        """No schedule of the candidate has less."""
        return row.bound_ns if self.request.loss is None else row.time_to_loss_bound_ns

    def left_s(self, share: float = 1.0) -> float | None:
        """What is left of this share of the time; None: no limit."""
        time_s = self.settings.limits.time_s
        return None if time_s is None else share * time_s - (time.perf_counter() - self.begun_s)

    def is_over(self, share: float = 1.0) -> bool:
        """Whether nothing more is begun; never before there is a plan."""
        left_s = self.left_s(share)
        return self.best is not None and (self.settings.interruption.requested or (left_s is not None and left_s <= 0))

    def is_too_long(self, work: Work, share: float = 1.0) -> bool:
        """Whether planning the candidate would take longer than what is left of this share, as others took; then it is left.

        Where no other was planned, at least what checks take, and as much for bounds and schedules.
        """
        left_s, (took_s, ops) = self.left_s(share), self.took
        return self.best is not None and left_s is not None and work.ops * max(took_s / max(1, ops), LEAST_S_PER_OP) > left_s

    def refuses(self, work: Work, *, of_kind: bool = False) -> bool:
        """Whether no schedule of the candidate is better than the best plan, or the best of its kind, by its bounds."""
        best, bound_ns = self.best, self.bound_ns(work.row)
        if not self.prune or best is None or bound_ns is None or (of_kind and 0 <= self.tries.get(work.kind, 0) < MOST_TRIES):
            return False
        if not of_kind or self.request.loss is None:
            return bound_ns >= self.value_ns(best.row)
        times_ns = work.times_ns()
        return all(late in self.leaders and time_ns >= self.value_ns(self.leaders[late].row) for late, time_ns in times_ns.items())

    def tell(self, doing: str, done: int) -> None:
        """Say what is known."""
        self.report(Progress(doing=doing, done=done, total=len(self.works), best=None if self.best is None else self.best.row))

    def first_pass(self, candidate_s: float) -> None:
        """The baselines, or the method that the user names, on every candidate that may be the best."""
        by_name = not is_auto(self.settings.method)
        works = in_order([work for work in self.works if work.row.state is CandidateState.NOT_REACHED])
        firsts = {work.kind: id(work) for work in reversed(works)}
        works.sort(key=lambda work: id(work) != firsts[work.kind])  # where the time ends soon, the verdicts have all kinds
        waiting = deque(works)
        while waiting and not self.is_over(1.0 if by_name else BASELINES_SHARE):
            self.tell("baselines", len(works) - len(waiting))
            asked: list[tuple[Work, float, bool]] = []
            while waiting and len(asked) < self.planner.at_once:
                work = waiting.popleft()
                # Each bound costs more than the one before it.
                refuses = partial(self.refuses, work, of_kind=True)
                if self.is_too_long(work, 1.0 if by_name else BASELINES_SHARE):
                    continue
                if not refuses() and (problem := self._problem(work)) is not None and not refuses():
                    work.raise_bound(cheap_bound_ns(problem))
                if refuses():
                    self.bound_out((work,), of_kind=True)
                elif work.row.state is CandidateState.NOT_REACHED:
                    asked.append((work, candidate_s, not by_name or not self._is_for(work)))
                if work.plan is None and self.tries.get(work.kind, 0) >= 0:
                    self.tries[work.kind] = self.tries.get(work.kind, 0) + 1
            self._plan_all(asked)

    def second_pass(self, candidate_s: float) -> None:
        """`auto` on those whose bound is below the best step: the shortest step first, then those without a baseline."""
        works = [work for work in self.works if work.row.state in (CandidateState.PLANNED, CandidateState.NO_PLAN)]
        works.sort(key=lambda work: (self.value_ns(work.row), self.bound_ns(work.row) or 0))
        waiting = deque(works)
        while waiting and not self.is_over():
            left_s = self.left_s()
            if left_s is not None and left_s <= 0:
                break
            self.tell("searching", len(works) - len(waiting))
            asked: list[tuple[Work, float, bool]] = []
            while waiting and len(asked) < self.planner.at_once:
                work = waiting.popleft()
                if self.refuses(work) or (left_s is not None and left_s < work.row.seconds):
                    continue  # the second: there is no time to do again even what the baselines did
                asked.append((work, candidate_s if left_s is None else min(candidate_s, left_s), False))
            self._plan_all(asked)

    def verdict_pass(self, candidate_s: float) -> None:
        """The baselines on what may be the best with a pipeline, where the best has none, or the other way round."""
        best = self.best
        assert best is not None
        works = [
            work for work in self.works if work.kind == (best.overlaps, not best.kind[1]) and self.bound_ns(work.row) is not None
        ]
        works = [work for work in works if work.row.state in (CandidateState.BOUNDED, CandidateState.NOT_REACHED)]
        works.sort(key=lambda work: work.about_ns)
        known = [work for work in self.works if work.kind[1] is not best.kind[1] and work.plan is not None]
        for done, work in enumerate(works[:COMPARED]):
            least_ns = min((self.value_ns(each.row) for each in known), default=inf)
            if self.is_over():
                break
            self.tell("comparing", done)
            if self.is_too_long(work):
                continue
            state, work.row.state = work.row.state, CandidateState.NOT_REACHED
            if (self.bound_ns(work.row) or 0) < least_ns and (work.made is not None or self._problem(work) is not None):
                self._plan(work, candidate_s, baseline=True)
                known.append(work)
            work.row.state = state if work.row.state is CandidateState.NOT_REACHED else work.row.state

    def wanted(self, against: Mapping[str, str]) -> list[Work]:
        """The candidates whose columns of the table are so."""
        if not against:
            return []
        columns = [{name: str(cell(value)) for name, value in work.row.candidate.columns.items()} for work in self.works]
        found = [work for work, own in zip(self.works, columns, strict=True) if against.items() <= own.items()]
        if not found:
            said = ",".join(f"{name}={value}" for name, value in against.items())
            expected = f"values of {', '.join(columns[0])}"
            for name, value in against.items():
                known = dict.fromkeys(own.get(name, value) for own in columns)
                if value not in known:
                    expected = f"{name} of {', '.join(known)}"
            raise InvalidInput(f"--why: found {said}, which no candidate has; expected {expected}")
        return found

    def plan_wanted(self, wanted: list[Work], candidate_s: float) -> None:
        """Make a plan of the one that may be fastest, if none of them has one."""
        if self.best is None or any(work.plan is not None and work is not self.best for work in wanted):
            return
        for work in sorted(wanted, key=lambda work: work.about_ns)[:COMPARED]:
            if work.row.state in (CandidateState.BOUNDED, CandidateState.NOT_REACHED) and self._problem(work) is not None:
                self._plan(work, candidate_s, baseline=True)
                break

    def compared(self, best: Work, rows: list[TuneRow], wanted: list[Work]) -> Compared | None:
        """The best, by cause, beside what is wanted, or beside the best without a pipeline, or with one where it has none."""
        places = {id(row): place for place, row in enumerate(rows)}
        others = wanted or [work for work in self.works if work.kind[1] is not best.kind[1]]
        others = [work for work in others if work.plan is not None and work is not best]
        if not others or best.made is None or best.plan is None:
            return None
        other = min(others, key=lambda work: places[id(work.row)])
        assert other.made is not None and other.plan is not None
        return Compared(
            row=other.row,
            best_ns=causes_ns(self.request, best.row.candidate, best.made, best.plan),
            other_ns=causes_ns(self.request, other.row.candidate, other.made, other.plan),
        )

    def bound_out(self, works: Iterable[Work], *, of_kind: bool = False) -> None:
        """Candidates are not searched, those that the best plan, or that of their kind, refuses."""
        for work in works:
            if self.refuses(work, of_kind=of_kind):
                best = "step" if self.request.loss is None else "time to the loss"
                work.end(CandidateState.BOUNDED, f"its lower bound is not below the best {best}")

    def _is_for(self, work: Work) -> bool:
        """Whether the method that the user names is for the candidate's steps; those that overlap have their own."""
        named = method_named(self.settings.method)
        return named is None or named.steps_overlap == work.overlaps

    def _problem(self, work: Work) -> Problem | None:
        """The candidate's problem, made; None: it has no room."""
        try:
            work.made = made = candidate_problem(self.request, work.row.candidate)
        except InvalidInput as error:
            work.end(CandidateState.NO_ROOM, str(error))
            return None
        if full := rank_without_room(made.problem):
            rank, has, needs = full[0], format_bytes(full[1]), format_bytes(full[2])
            work.end(CandidateState.NO_ROOM, f"rank {rank} has room for {has} of activations; one microbatch needs {needs}")
            return None
        work.row.collectives_ns = max(made.collectives_ns)
        if self.request.loss is not None and not work.overlaps:
            work.row.update_ns = made.update_ns
        if False in work.ways:
            updates, least_ns = work.ways[False]
            work.ways[False] = updates, max(least_ns, undelayed_ns(made.problem))
        work.raise_bound(work_bound_ns(made.problem))
        return made.problem

    def _plan_all(self, asked: Sequence[tuple[Work, float, bool]]) -> None:
        """Plans of candidates, each with its limit and whether the baselines are enough; at the same time where others help."""
        problems = [(work.made.problem, limit_s, baseline) for work, limit_s, baseline in asked if work.made is not None]
        apart = [(each, self._settings(each, limit_s, first), first) for each, limit_s, first in problems if each.updates is None]
        self.planner.ahead(apart, self.failures)
        for work, limit_s, baseline in asked:
            self._plan(work, limit_s, baseline=baseline)

    def _settings(self, problem: Problem, limit_s: float, baseline: bool) -> SearchSettings:
        left_s = self.left_s()
        if left_s is not None and self.best is not None:
            limit_s = min(limit_s, max(0.0, left_s))
        if not baseline:
            limit_s = max(limit_s, 1.1 * checks_s(problem))  # a limit below what checks take leaves nothing for a search
        return replace(self.settings, limits=replace(self.settings.limits, time_s=limit_s))

    def _plan(self, work: Work, limit_s: float, *, baseline: bool) -> None:
        """The baselines, or the method, on a candidate; the plan and its bound, each if it is better than what is known of it."""
        assert work.made is not None
        problem, row, begun_s = work.made.problem, work.row, time.perf_counter()
        settings = self._settings(problem, limit_s, baseline)
        try:
            if baseline and work.overlaps:
                plan = best_period_of(
                    problem, settings, self.failures, lambda at_ns, delays: reached_by(self.request, work, at_ns, delays)
                )
            else:
                plan = self.planner.plan(problem, settings, self.failures, baseline=baseline)
        except (Infeasible, NoPlanFound, Unsupported, OutOfTime) as error:
            is_up = self.settings.interruption.is_late or self.is_too_long(work)
            cut_short = is_up and isinstance(error, (NoPlanFound, OutOfTime))  # with more time there may be a plan
            if work.plan is None:
                state = row.state if cut_short else CandidateState.NO_PLAN
                work.end(state, str(error) or "the time was up before there was a plan")
            return
        self.tries[work.kind] = -1
        if baseline and self.best is not None:
            self.took = self.took[0] + time.perf_counter() - begun_s, self.took[1] + work.ops
        row.seconds += time.perf_counter() - begun_s
        take_plan(self.request, work, plan)
        if row.state is not CandidateState.PLANNED:
            return
        late = any(row.delays)
        if late not in self.leaders or self.merit(row) < self.merit(self.leaders[late].row):
            self.leaders[late] = work


def tune(
    request: TuneRequest,
    settings: SearchSettings,
    *,
    candidate_s: float = 20.0,
    prune: bool = True,
    against: Mapping[str, str] | None = None,
    planner: Planner | None = None,
    report: Callable[[Progress], None] = lambda _: None,
) -> Tuned:
    """The best candidate, with its plan, and what became of the others.

    Args:
        request: what is asked.
        settings: `auto`: baselines for all, then `auto` for the best; else a method's name, which is the only pass. The time is
            that of all candidates together; an interruption ends the search with the best plan so far.
        candidate_s: for one candidate in the second pass.
        prune: False: search also what a bound refuses; the result is the same.
        against: by columns of the table, what the candidate has that the best is compared with; it gets a plan, if it can.
        planner: makes the plans, or knows them; None: here, one after the other.
        report: is called with what is known, now and then.

    Raises:
        InvalidInput: no candidate uses all devices and the whole batch, or is as `against` says, or the method's name is wrong.
        Infeasible: the cluster has no room for what every candidate holds all the time; says what would have.
        NoPlanFound: no candidate has a plan; says why of the one that came nearest.
        Defect: a plan breaks a rule, or the sums over the cluster.
    """
    choices = request.choices
    works = [Work(TuneRow(candidate=each, state=CandidateState.NOT_REACHED)) for each in candidates(choices)]
    if not works:
        group = min(each.group for each in choices.degrees)
        expected = (
            f"ranks that divide the {sum(choices.sites) // group} groups of {group} devices, pipelines that divide the"
            f" batch of {choices.batch}, and microbatches that divide the rest"
        )
        raise (request.source.place / "tune").refuse("no way to divide the devices and the batch", expected)
    search = _Search(request, settings, prune, report, works, planner or Planner())
    wanted = search.wanted(against or {})
    prepare(request, works)
    left_s = search.left_s()
    with nullcontext() if left_s is None else settings.interruption.within(left_s):
        search.first_pass(candidate_s)
        if is_auto(settings.method):
            search.second_pass(candidate_s)
            if prune and search.best is not None:
                search.verdict_pass(candidate_s)
    search.plan_wanted(wanted, candidate_s)
    best = search.best
    if best is None or best.made is None or best.plan is None:
        raise no_plan(request, [work.row for work in works])
    sums = sums_of(request, best.row.candidate, best.made.static_bytes, best.plan.certificate)
    check_sums(sums, request.name)
    best.row.state = CandidateState.BEST
    search.bound_out(work for work in works if work.row.state in (CandidateState.NOT_REACHED, CandidateState.TOO_LARGE))
    order = {state: number for number, state in enumerate(CandidateState)}
    rows = sorted(
        (work.row for work in works),
        key=lambda row: (*search.merit(row), row.step_ns is None, row.step_ns or 0, order[row.state], search.bound_ns(row) or 0),
    )
    reached = sorted_rows([work.reached for work in works if work.reached is not None])
    return Tuned(
        rows=tuple(rows),
        best=best.row,
        problem=best.made,
        plan=best.plan,
        bound_ns=least_bound_ns(rows, search.bound_ns) or 0,
        sums=sums,
        failures=tuple(search.failures),
        is_done=not search.is_over() and all(row.state is not CandidateState.NOT_REACHED for row in rows),
        compared=None if request.loss is not None else search.compared(best, rows, wanted),
        pipelines=pipeline_verdict(best.row, rows, search.value_ns, search.bound_ns),
        times=None if request.loss is None else TimeToLoss(rows=reached, source=request.loss.source),
    )
