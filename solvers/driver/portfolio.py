"""The methods at work on one problem: `solve` runs the method that was asked for, or all that help (`auto`), within limits.

A Problem goes in; an `Incumbent` comes out: the best schedule and bound, how each candidate did, and the history.
Searches start from the constructive candidates, CP-SAT from the best. `auto` runs the constructive methods, then the searches in
their turns (`turns`); while a clock leaves time, the local searches go on from other seeds. A search that finds nothing better says
what share it had, and for what. It ends at the gap, the limit, or a proof; an interruption ends it with what is known then.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any

from schedc.analysis.simulation.memory import exceeded_limit
from schedc.compiled.compiler import at_hand, compile_ahead
from schedc.errors import InvalidInput, Unsupported
from schedc.ir import BoundName, Problem, Schedule
from schedc.solvers.common.base import ignore
from schedc.solvers.common.incumbent import Candidate, Ended, Incumbent
from schedc.solvers.common.interruption import OutOfTime
from schedc.solvers.common.method import FUSED, SMALL_OPS, Constructive, LocalSearch, Method, fusing_frees, fusing_saves_time
from schedc.solvers.driver.registry import constructive, is_auto, is_constructive, method_named, methods, search_of
from schedc.solvers.driver.turns import CPSAT_OPS, Turn, afterwards_of, turns_of
from schedc.solvers.heuristics.greedy import ONE_RULE
from schedc.solvers.kernel.climb import climb, climb_mixing, climb_without_reserves
from schedc.solvers.kernel.joints import takes_joints
from schedc.solvers.kernel.list_scheduler import rule_kernel
from schedc.solvers.kernel.order_climb import polish_kernel
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.solvers.common.base import Construct, Limits, SearchSettings
    from schedc.solvers.common.method import Search

CONSTRUCTIVE_S = 3.0
"""However short the limit, the methods that make a schedule at once get this many seconds, a third of them on larger problems."""

MEANWHILE_S = 4.0
"""Where the local searches still wait for compiled code, and a clock ends the work, CP-SAT goes first for this many seconds."""

LAST_RESORTS = (ONE_RULE, "sequential")
"""What makes a good schedule soonest, and what always makes one; where the time is up and there is none yet, nothing ends them."""

OVERLAPPING = "one-by-one"
"""What always makes a schedule at once where steps overlap."""

NOTHING_BETTER = "found nothing better"
"""Of a search that worked."""

AGAIN = 1_000_003
"""By which the seed of a local search's next turn is another one: with the same numbers it would try the same changes again."""

NEARLY = 0.95
"""A search that ended by itself so close to the limit was ended by it."""


def solve(
    problem: Problem,
    settings: SearchSettings,
    *,
    bound_ns: int,
    bound_by: BoundName,
    known: Sequence[tuple[Schedule, str]] = (),
    least_s: float | None = None,
) -> Incumbent:
    """Run the method on the problem until the gap, the limit, a proof, or an interruption.

    Nothing outlasts the time limit, or `least_s` if that is longer, but the first schedule.

    Args:
        problem: a valid problem.
        settings: the method, and when to stop.
        bound_ns: the best analytic lower bound on the objective.
        bound_by: its name.
        known: schedules within memory from an earlier run, with the names of their methods. Where there are some, the searches
            begin with them, and the methods that make a schedule at once are not run again.
        least_s: however short the limit, these methods get this many seconds, a third of them on larger problems; None:
            `CONSTRUCTIVE_S`.

    Raises:
        InvalidInput: the method's name or options are wrong.
        Exception: of a method that failed, where no other found a schedule.
        KeyboardInterrupt: the run was interrupted before there was any schedule, and nothing listens.
    """
    method, limits = settings.method, settings.limits
    at_once, auto, overlap = is_constructive(method), is_auto(method), problem.updates is not None
    if not auto and (named := method_named(method)) is not None and named.steps_overlap != overlap:
        known_names = ", ".join(name for name, each in methods(Method).items() if each.steps_overlap == overlap)
        steps = "overlap" if overlap else "end before the next begins"
        raise InvalidInput(f"method {method!r} is not for steps that {steps}; expected auto, {known_names}")
    turns = () if at_once else turns_of(problem) if auto else (Turn(method, 1.0, "as asked"),)
    runs = [(turn, search_of(turn.search)) for turn in turns]  # a wrong option is refused at once
    if auto:
        runs = [(turn, search) for turn, search in runs if not search.misfit(problem)]
    if at_once:
        settings = replace(settings, on_method=ignore)  # there is one
    incumbent = Incumbent(problem=problem, bound_ns=bound_ns, bound_by=bound_by, settings=settings)
    for schedule, found_by in known:
        incumbent.offer(schedule, found_by)
    interrupted = False
    try:
        least_s = CONSTRUCTIVE_S if least_s is None else least_s
        least_s = least_s if problem.num_ops <= SMALL_OPS else least_s / 3
        constructive_s = None if limits.clock_s is None else max(limits.clock_s, least_s)
        if at_once:
            with incumbent.alarm(constructive_s):
                try_methods(incumbent, (method,))
        elif not known:
            _begin(incumbent, constructive_s)
        can_wait = auto and limits.clock_s is not None and not overlap
        meanwhile = search_of("cpsat")
        if can_wait and problem.num_ops <= CPSAT_OPS and not meanwhile.misfit(problem) and not at_hand(_climb(problem)):
            assert limits.clock_s is not None
            left_s = max(limits.clock_s - incumbent.seconds, MEANWHILE_S)
            runs.insert(0, (Turn("cpsat", MEANWHILE_S / left_s, "while code is compiled"), meanwhile))
        with incumbent.alarm(limits.clock_s):
            _search(incumbent, runs, limits, by_name=not auto)
            if can_wait:
                _search_on(incumbent)
    except OutOfTime:
        incumbent.cut_short = True
        if incumbent.schedule is None and not at_once:
            with incumbent.alarm(None):  # late is better than without a plan
                for last in LAST_RESORTS if not overlap else (OVERLAPPING,):
                    if incumbent.schedule is None:
                        try_methods(incumbent, (last,))
    except KeyboardInterrupt:
        if incumbent.schedule is None:
            raise
        incumbent.cut_short = interrupted = True
    if incumbent.schedule is None and incumbent.failures:
        raise incumbent.failures[0].exception
    incumbent.end(_ended(incumbent, searched=not at_once), interrupted=interrupted)
    return incumbent


def _begin(incumbent: Incumbent, time_s: float | None) -> None:
    """Run the methods that make a schedule at once, from which every search starts."""
    problem = incumbent.problem
    if problem.updates is not None:
        with incumbent.alarm(time_s):
            try_methods(incumbent, candidate_names(problem))
        return
    first = _climb(problem)
    if problem.num_ops > SMALL_OPS:
        compile_ahead(first, polish_kernel(problem), rule_kernel(problem))  # the last for the next job, if this one takes as long
    with incumbent.alarm(time_s):
        try_methods(incumbent, candidate_names(problem))
    # May wait for compiled code, or load it, which takes longer than the others.
    if incumbent.schedule is None or incumbent.gap > incumbent.limits.gap:
        compile_ahead(first, polish_kernel(problem))
        fused = fusing_saves_time(problem) or fusing_frees(problem)
        tables = ("rule-table", f"rule-table{FUSED}") if fused else ("rule-table",)
        with incumbent.alarm(time_s):
            try_methods(incumbent, tables)
    if incumbent.schedule is None:
        try_methods(incumbent, ("sequential",))


def _climb(problem: Problem) -> Callable[..., Any]:
    """The kernel on which the local searches wait."""
    if takes_joints(problem):
        return climb
    return climb_mixing if fusing_saves_time(problem) else climb_without_reserves


def _search(incumbent: Incumbent, runs: Iterable[tuple[Turn, Search]], limits: Limits, *, by_name: bool) -> bool:
    """Run the searches one after another; whether others may still find something.

    One that does not exist for the problem is an error only where it was asked for by name.
    """
    some_worked, turns = False, Counter[str]()
    for (name, share, aim), search in runs:
        if incumbent.schedule is None or incumbent.gap <= limits.gap:
            return False
        left_s = None if limits.time_s is None else limits.time_s - incumbent.seconds
        if left_s is not None and left_s <= 0 and limits.deterministic is None:
            incumbent.cut_short = True
            return False
        slice_s = None if left_s is None else share * left_s
        work = None if limits.deterministic is None else share * max(0.0, limits.deterministic - incumbent.work)
        incumbent.settings.on_method(name)
        seed = limits.seed + AGAIN * turns[search.name]
        turns[search.name] += isinstance(search, LocalSearch)
        run = partial(_improve, search, incumbent, replace(limits, time_s=slice_s, deterministic=work, seed=seed))
        begun, before_ns = time.perf_counter(), incumbent.objective_ns
        why_not = "ended before it found anything better"
        try:
            with incumbent.interruption.raising():
                failed = incumbent.fails(name, run)
                why_not = "failed" if failed else f"{NOTHING_BETTER} in {share:.0%} of what was left: {aim}"
                some_worked |= not failed
        except Unsupported as reason:
            if by_name:
                raise
            why_not = str(reason)
        finally:
            is_better = incumbent.objective_ns != before_ns
            incumbent.candidates.append(
                Candidate(
                    method=name,
                    seconds=time.perf_counter() - begun,
                    makespan_ns=incumbent.makespan_ns if is_better else None,
                    objective_ns=incumbent.objective_ns if is_better else None,
                    why_not="" if is_better else why_not,
                )
            )
    return some_worked


def _improve(search: Search, incumbent: Incumbent, limits: Limits) -> None:
    """Run the search, if it is for such problems."""
    if why_not := search.misfit(incumbent.problem):
        raise Unsupported(why_not)
    search.improve(incumbent, limits)


def _search_on(incumbent: Incumbent) -> None:
    """Run the local searches with other seeds and more and more rounds until the time is up, or none of them works here."""
    limits = incumbent.limits
    for number in count():
        rounds = f"{{rounds={16 << min(number, 10)}}}"
        turns = [turn._replace(search=turn.search + rounds) for turn in afterwards_of(incumbent.problem)]
        runs = [(turn, search_of(turn.search)) for turn in turns]
        if not _search(incumbent, runs, replace(limits, seed=limits.seed + 1 + number), by_name=False):
            return


def _ended(incumbent: Incumbent, *, searched: bool) -> Ended:
    """Which limit ended the work, or that it ended by itself."""
    limits = incumbent.limits
    if limits.deterministic is not None and searched:
        return Ended.OUT_OF_WORK
    if limits.clock_s is not None and incumbent.cut_short and incumbent.seconds >= NEARLY * limits.clock_s:
        return Ended.OUT_OF_TIME
    return Ended.EXHAUSTED if searched else Ended.DONE


def candidate_names(problem: Problem) -> tuple[str, ...]:
    """The constructive methods that every search starts from, with their options; `rule-table` comes after them.

    Those that fuse some backwards that may be split come behind the others, and behind these those that fuse all.
    """
    overlap = problem.updates is not None
    fitting = (each for each in methods(Constructive).values() if each.steps_overlap == overlap and not each.misfit(problem))
    texts = [text for method in fitting for text in method.candidates(problem)]
    return tuple(sorted(texts, key=lambda text: ("{fused=" in text) + 2 * text.endswith(FUSED)))


def try_methods(incumbent: Incumbent, methods: Iterable[str]) -> None:
    """Offer each constructive method's schedule to the incumbent, which keeps what became of it.

    While there is no schedule, an interruption waits for the first.

    Raises:
        InvalidInput: a method's name or options are wrong.
    """
    for method in methods:
        construct = constructive(method)
        incumbent.settings.on_method(method)
        begun = time.perf_counter()
        try:
            with incumbent.interruption.raising(at="time" if incumbent.schedule is None else "both"):
                made = _construct(incumbent, method, construct)
                incumbent.cut_short |= incumbent.interruption.is_up  # `steady` keeps its best then, and says nothing
                incumbent.candidates.append(made)
        except OutOfTime:
            late = Candidate(method=method, seconds=time.perf_counter() - begun, why_not="was not done in time")
            incumbent.candidates.append(late)
            raise


def _construct(incumbent: Incumbent, method: str, construct: Construct) -> Candidate:
    """Offer one method's schedule to the incumbent; what became of it."""
    begun = time.perf_counter()
    reached: list[tuple[int, int]] = []

    def work() -> None:
        schedule = construct(incumbent.problem)
        excess = exceeded_limit(incumbent.problem, schedule)
        if excess is not None:
            rank, peak, limit = excess
            raise Unsupported(f"holds {format_bytes(peak)} of activations on rank {rank}, whose limit is {format_bytes(limit)}")
        reached.append(incumbent.offer(schedule, method))

    why_not = "failed"
    try:
        incumbent.fails(method, work)
    except Unsupported as reason:
        why_not = str(reason)
    seconds = time.perf_counter() - begun
    if not reached:
        return Candidate(method=method, seconds=seconds, why_not=why_not)
    ((makespan_ns, objective_ns),) = reached
    return Candidate(method=method, seconds=seconds, makespan_ns=makespan_ns, objective_ns=objective_ns)
