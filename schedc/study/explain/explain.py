"""The explanation of a plan: where its time goes, what its links tolerate, and what would shorten the step.

`explain_plan` takes a Plan and says what the simulator and the searches found. The first half follows from the plan alone
(`schedc.analysis.attribution`); the second half solves problems again (`resolve`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from schedc.analysis.attribution.idle import Idle, IdleCause, idle_of
from schedc.analysis.attribution.slack import slacks_of
from schedc.analysis.attribution.tolerance import Tolerance, lengthened_ns
from schedc.analysis.attribution.waits import Segment, critical_path, waits_of
from schedc.analysis.bounds.clock import Clock
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import bounds_within, check_plan
from schedc.compile.driver import compile_job
from schedc.compile.plans import problem_for, time_plan
from schedc.errors import CheckFailed, Infeasible, NoPlanFound
from schedc.frontend.chosen_layout import job_in_layout
from schedc.ir import Objective, Plan, Problem
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.common.interruption import Interruption, OutOfTime
from schedc.study.explain.changes import Change, ChangeKind, faster_link, more_memory, one_more_microbatch, other_choices
from schedc.study.explain.resolve import LinkDelay, PairDelay, Resolved, Solver, pair_delays, resolved_delay
from schedc.verify.problem import check_costs, check_pipeline, verify_problem

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.analysis.simulation.timeline import Timeline
    from schedc.frontend.job import Job

SEARCH_WORK = 0.1
"""The deterministic limit of each search, in CP-SAT's units."""
LAYOUT_WORK = 1.0
"""That of the search for a layout."""
CHEAP = [ChangeKind(name) for name in ("link", "split", "recompute", "layout", "placement", "microbatch", "memory")]
"""What is tried first."""
TIME_LIMIT_S = 30.0
"""The limit of an explanation."""
DELAYS_SHARE, LEAST_DELAYS_S = 0.3, 1.0
"""What links tolerate with the plan's orders may take this share of the time that is left then, or this long if that is more."""
LAYOUT_SHARE = 0.5
"""The same of the search for a layout."""
RESOLVED_DELAYS = 3
"""The delays of this many links are found again with other schedules."""
LATE = ": there was no time (--time-limit)"
NO_ROOM = ": no schedule was found within memory"
MOST_BOUNDED_OPS = 5000
"""Up to this many compute ops the bound of every change is computed, and what proves that there is no gain is no search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """What a change was found to be worth."""

    change: Change
    before_ns: int
    """The objective that is known of the unchanged problem."""
    after_ns: int
    """Of the changed one."""
    lower_bound_ns: int
    """No schedule of the changed problem is better."""
    searched: bool
    """Whether the problem was searched; else the bound says that there is no gain, and `after_ns` is `before_ns`."""
    microbatches_before: int
    microbatches_after: int

    @property
    def share(self) -> float:
        """By how much less time a microbatch takes: 0.1 is 10 % less; below 0 it takes more."""
        before, after = self.before_ns / self.microbatches_before, self.after_ns / self.microbatches_after
        return 1 - after / before if before else 0.0

    @property
    def is_proven(self) -> bool:
        """Whether the changed problem has no better schedule than the one that was found."""
        return self.after_ns == self.lower_bound_ns or not self.searched


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What is known of a plan."""

    timeline: Timeline
    """Of the plan."""
    path: tuple[Segment, ...]
    """The critical path; its segments add up to the makespan."""
    idle: tuple[tuple[Idle, ...], ...]
    """Per rank; they add up to the makespan without the rank's busy time."""
    allowed: float
    """By which share the step may be longer, for the delays."""
    delays: tuple[LinkDelay, ...]
    """Per link that transfers cross, the least tolerant first."""
    delays_are_exact: bool
    """Whether no larger delay is tolerated, as no links share a trunk."""
    pairs: tuple[PairDelay, ...]
    objective: Objective
    planned_ns: int
    """The plan's objective."""
    base_ns: int
    """The objective of the best schedule of the plan's own problem: what gains are against; the plan's, or a better one."""
    base_bound_ns: int
    gains: tuple[Gain, ...]
    """The largest first."""
    not_tried: tuple[str, ...]
    """What was not solved again, and why."""
    time_limit_s: float
    interrupted: bool


def explain_plan(
    plan: Plan,
    job: Job | None = None,
    *,
    time_limit_s: float = TIME_LIMIT_S,
    most: int = 6,
    allowed: float = 0.05,
    on_work: Callable[[str], None] = lambda _: None,
    interruption: Interruption | None = None,
    clock: Clock | None = None,
) -> Explanation:
    """Explain a plan; arguments are those of `schedc.explain_plan`, and some besides.

    Changes are tried by the methods that make a schedule at once, then by searches, the most promising first. Each search does a
    little work; unless the time ends it, the result is the same on every machine. With `most` 0 nothing is solved again. `on_work`
    is called with what is solved next. An interruption, by what listens to signals, ends the searches; what was found stays. The
    `clock` is of the time limit, where it began before the call.

    Raises:
        CheckFailed: the plan breaks a rule, or is not one of the job.
    """
    clock = clock or Clock(time_limit_s)
    violations, cut = verify_problem(plan.problem), False
    if not violations:
        bounds, cut = bounds_within(plan.problem, Limits(time_s=time_limit_s))
        violations = check_plan(plan, with_bounds=not cut, known=bounds)  # of bounds that are cut a plan may know more
    if violations:
        raise CheckFailed(f"{plan.name}: {violations[0]} (`schedc verify` lists all {len(violations)})")
    problem, schedule = plan.problem, plan.schedule()
    if job is not None:
        of_job, unlike = problem_for(plan, job)
        if of_job is not None:
            unlike += check_pipeline(plan, of_job) + check_costs(plan, of_job)
        if unlike:
            first = unlike[0]
            raise CheckFailed(f"{plan.name}: is not a plan of the job: {first.place} differs (`schedc verify --job` lists all)")
    timeline = time_plan(plan)
    waits = waits_of(problem, timeline)
    idle = idle_of(problem, schedule, timeline, waits)
    tolerance = Tolerance(problem, schedule)
    delays = []
    slack_of_links = slacks_of(timeline, waits).of_links(timeline)
    until = Clock(max(DELAYS_SHARE * clock.left_s, LEAST_DELAYS_S))
    for link, slack_ns in sorted(slack_of_links.items(), key=lambda each: each[1]):
        if until():
            break
        on_work(f"delays of link {link[0]}>{link[1]}")
        allowed_ns = tolerance.extra_latency_ns(link, lengthened_ns(timeline.makespan_ns, allowed))
        free_ns = tolerance.extra_latency_ns(link) if slack_ns else 0
        delays.append(LinkDelay(source=link[0], destination=link[1], slack_ns=slack_ns, free_ns=free_ns, allowed_ns=allowed_ns))
    delays.sort(key=lambda delay: (delay.allowed_ns, delay.free_ns))
    pairs = pair_delays(problem, schedule, until)

    solver = Solver(work=SEARCH_WORK, clock=clock, interruption=interruption or Interruption(), on_work=on_work)
    not_tried = solver.not_tried
    planned_ns = timeline.objective_ns(problem.objective)
    changes, gains = list[Change](), list[Gain]()
    if most == 0:
        base = Resolved(objective_ns=planned_ns, lower_bound_ns=solver.bound(problem).value_ns, schedule=schedule)
        not_tried.append("all changes: --most 0 was given")
    else:
        on_work("the unchanged problem")
        base = solver.settle(problem, schedule)
        changes, gains = _chosen(problem, base, idle, most, solver)
    if until.has_cut:
        not_tried.append(f"delays of {len(slack_of_links) - len(delays)} more links, and of pairs of neighbours{LATE}")
    if job is None:
        not_tried.append("other placements, split, recomputation and layouts: they need the plan's job (--job)")
    elif most:
        given = job if job.open_layout is None else job_in_layout(job.source, plan, plan.name)
        others, why_not = other_choices(given, problem)
        changes += others
        not_tried += why_not
    gains = _gains(changes, problem, base, solver) + gains
    if problem.objective is Objective.MAKESPAN and most:
        target_ns = lengthened_ns(timeline.makespan_ns, allowed)
        for at, delay in enumerate(delays[:RESOLVED_DELAYS]):
            if solver.is_over:
                not_tried += [] if solver.interruption.requested else [f"delays of link {delay.source}>{delay.destination}{LATE}"]
            else:
                on_work(f"delays of link {delay.source}>{delay.destination}, solved again")
                resolved = resolved_delay(problem, (schedule, base.schedule), solver, delay, target_ns)
                delays[at] = replace(delay, resolved=resolved)
    # A solver's bound says something of the plan, and nothing of a better schedule that cuts other blocks.
    base_bound_ns = base.lower_bound_ns
    if base.objective_ns == planned_ns:
        base_bound_ns = max(base_bound_ns, plan.certificate.lower_bound_ns)
    return Explanation(
        timeline=timeline,
        path=critical_path(timeline, waits),
        idle=idle,
        allowed=allowed,
        delays=tuple(delays),
        delays_are_exact=tolerance.exact,
        pairs=pairs,
        objective=problem.objective,
        planned_ns=planned_ns,
        base_ns=base.objective_ns,
        base_bound_ns=base_bound_ns,
        gains=tuple(sorted(gains, key=lambda gain: -gain.share)),
        not_tried=tuple(not_tried),
        time_limit_s=time_limit_s,
        interrupted=solver.interruption.requested,
    )


def _chosen(
    problem: Problem, base: Resolved, idle: Sequence[Sequence[Idle]], most: int, solver: Solver
) -> tuple[list[Change], list[Gain]]:
    """The links and ranks that promise most with the base's orders; of small ones, those that gain nothing by the bounds."""
    waited: dict[tuple[IdleCause, int, int | None], int] = {}
    for each in (each for rank in idle for each in rank):
        cause = each.cause if each.destination is None else IdleCause.LATENCY
        waited[cause, each.rank, each.destination] = waited.get((cause, each.rank, each.destination), 0) + each.idle_ns

    def link_promise(change: Change) -> tuple[int, int]:
        after_ns = simulate(change.problem, base.schedule).objective_ns(problem.objective)
        return base.objective_ns - after_ns, waited.get((IdleCause.LATENCY, change.source or 0, change.destination), 0)

    links = [change for link in problem.links if (change := faster_link(problem, link)) is not None]
    memory = [change for rank in range(problem.ranks) if (change := more_memory(problem, rank)) is not None]
    microbatch = one_more_microbatch(problem)
    not_tried = solver.not_tried
    if len(links) < len(problem.links):
        not_tried.append(f"faster links: {len(problem.links) - len(links)} of {len(problem.links)} take no time")
    if len(memory) < problem.ranks:
        not_tried.append(f"memory: {problem.ranks - len(memory)} of {problem.ranks} ranks have no limit on activations")
    if microbatch is None:
        not_tried.append("one more microbatch: the microbatches differ, so what one more costs is not known")
    proven: list[Gain] = []
    if problem.num_ops <= MOST_BOUNDED_OPS:
        bounds = {change.text: solver.bound(change.problem).value_ns for change in (*links, *memory)}
        hopeless = [change for change in (*links, *memory) if bounds[change.text] >= base.objective_ns]
        proven = [_worth(change, problem, base, None, bounds[change.text]) for change in hopeless]
        links, memory = ([each for each in changes if each not in hopeless] for changes in (links, memory))
    links.sort(key=link_promise, reverse=True)
    memory.sort(key=lambda change: -waited.get((IdleCause.MEMORY, change.source or 0, None), 0))
    for name, changes in (("links", links), ("ranks with more memory", memory)):
        if len(changes) > most:
            not_tried.append(f"{name}: {len(changes) - most} more, which promise less with the plan's orders (--most)")
    return [*links[:most], *memory[:most], *([] if microbatch is None else [microbatch])], proven


def _gains(changes: Sequence[Change], problem: Problem, base: Resolved, solver: Solver) -> list[Gain]:
    """What the changes are worth, without those for which there is no time or no room.

    All are tried first without a search, the cheap ones first; then they are searched, those that promise most first.
    """
    found: dict[Change, Resolved] = {}
    not_tried: list[str] = []
    for change in sorted(changes, key=lambda change: CHEAP.index(change.kind)):
        if solver.is_over:
            not_tried.append(f"{change.text}{LATE}")
            continue
        solver.on_work(change.text)
        known = (base.schedule,) if change.only_helps else ()
        # A faster link makes no schedule possible that was not; more memory and other layouts do.
        at_once = (
            solver.at_once(change.problem, known, anew=change.kind is not ChangeKind.LINK)
            if change.open_job is None
            else _laid_out(change.open_job, solver)
        )
        if at_once is None:
            not_tried.append(f"{change.text}{NO_ROOM}")
        else:
            found[change] = at_once
    closed = [change for change in found if change.open_job is None]
    promising = sorted(closed, key=lambda change: -_worth(change, problem, base, found[change], 0).share)
    for searched, change in enumerate(promising):
        if solver.is_over:
            not_tried.append(f"searches of {len(promising) - searched} of {len(promising)} changes{LATE}")
            break
        solver.on_work(f"search of {change.text}")
        known = (base.schedule,) if change.only_helps else ()
        found[change] = solver.improved(change.problem, (*known, found[change].schedule))
    if not solver.interruption.requested:
        solver.not_tried.extend(not_tried)
    return [_worth(change, problem, base, resolved, resolved.lower_bound_ns) for change, resolved in found.items()]


def _laid_out(job: Job, solver: Solver) -> Resolved | None:
    """The job in the best layout found; None: there is none with a schedule within memory."""
    limits = Limits(deterministic=LAYOUT_WORK, workers=1)
    try:
        with solver.interruption.within(LAYOUT_SHARE * solver.clock.left_s):
            plan = compile_job(job, SearchSettings(limits=limits, interruption=solver.interruption)).plan
    except (Infeasible, NoPlanFound, OutOfTime):
        return None
    claims = plan.certificate
    return Resolved(objective_ns=claims.objective_ns, lower_bound_ns=claims.lower_bound_ns, schedule=plan.schedule())


def _worth(change: Change, problem: Problem, base: Resolved, found: Resolved | None, bound_ns: int) -> Gain:
    return Gain(
        change=change,
        before_ns=base.objective_ns,
        after_ns=base.objective_ns if found is None else found.objective_ns,
        lower_bound_ns=bound_ns,
        searched=found is not None,
        microbatches_before=problem.microbatches,
        microbatches_after=change.problem.microbatches,
    )
