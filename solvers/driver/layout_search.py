"""Steps that seek layouts: baselines, one by one, by a method over layouts, by annealing. What they find are options.

Each takes the `LayoutWork` and goes on until its share of the limits is spent.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compiled.compiler import at_hand, compiled
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir import BoundName, OpenLayout, OpenSlices, Workload
from schedc.solvers.driver.registry import is_auto, layout_method
from schedc.solvers.layout.baselines import attempts
from schedc.solvers.layout.climb import LayoutClimb
from schedc.solvers.layout.cuts import RULES, SEARCHED_BY, CutSearch
from schedc.solvers.layout.evaluation.evaluate import kernel_of
from schedc.solvers.layout.layout_arrays import lay_out
from schedc.solvers.layout.listed import open_layouts

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.driver.layout_work import LayoutOption, LayoutWork
    from schedc.solvers.layout.exact import LayoutsKnown
    from schedc.solvers.layout.layout_arrays import ScheduledLayout

EXACT_LAYOUTS, EXACT_OPS = 20_000, 300
"""The exact search runs where there are at most this many layouts, of at most this many compute ops."""
BASELINES_SHARE, CLIMB_SHARE, CUTS_SHARE = 0.15, 0.3, 0.5
"""Of the time or work left then: of the baselines, of the annealing, of the search over cuts into slices."""
FIRST_EXACT_SHARE, LATER_EXACT_SHARE = 0.1, 0.25
"""Of the time or work left then: of the exact search before other methods, and once they have found what it must be better than."""
CLIMB_UNITS = 2.0
"""Without a limit, and for methods that take none, layouts are sought with this much work."""
OPS_PER_UNIT = 10_000_000
"""About this many ops are placed in a unit of work."""
LEAST_OPS = 4000
"""A layout counts as at least this many ops."""
LAYOUTS_AT_ONCE = 2000
"""The annealing begins again after this many layouts, as it ends in a local optimum; there are more of these than it can leave."""
MOST_FOUND, MOST_ALIKE = 8, 2
"""This many layouts are handed on, at most this many of them with the same stages on each rank."""
WALKS, WALKS_OPS = 2, 4000
"""This many walks seek layouts beside each other where a layout has this many compute ops; with fewer, threads only wait."""
WAIT_SHARE = 0.3
"""Where compiled code is not at hand, the search for layouts waits for it for this share of the time that is left."""


def try_baselines(work: LayoutWork) -> None:
    """The known methods in the known layouts, which are options then; the even partitions are tried last."""
    named: set[str] = set()
    until = None if work.left is None else (1 - BASELINES_SHARE) * work.left
    for attempt in sorted(attempts(work.workload, work.open_layout), key=lambda each: each.layout_name.startswith("even ")):
        title, layout = attempt.title, attempt.layout
        if work.is_over:
            return
        if work.is_timed and work.best is not None and (work.left or 0.0) < (until or 0.0):
            work.tried(title, 0.0, why_not="there was no time for it")
            work.cut_short = True
            continue
        work.settings.on_method(title)
        begun, why_not, found = time.perf_counter(), "was not done in time", None
        with work.region():
            try:
                found = lay_out(work.workload, layout, attempt.construct, title)
            except Unsupported as reason:
                why_not = str(reason)
        seconds = time.perf_counter() - begun
        named.add(attempt.layout_name)
        option: LayoutOption | None = None
        with work.region():
            option = work.add(attempt.layout_name, layout)
        work.layouts = len(named)
        if found is None or option is None:
            work.tried(title, seconds, why_not=why_not)
            continue
        work.tried(title, seconds, found)
        option.may_take(found.objective_ns)
        if not work.is_constructive:
            work.offer(found, attempt.method, title)


def search_exactly(work: LayoutWork) -> None:
    """The best schedule of whole blocks over all layouts, where they are few and small; only better ones than what is known then.

    The first time it gets little: what is small enough is proven then. Later it is known what a layout must be better than.

    Where any stage may recompute, the layouts are those in which none does: an answer is then no worse than where none may. A bound
    over these holds for them alone, and is not kept.
    """
    open_layout = replace(work.open_layout, recompute_is_open=False)
    if work.is_over or work.listed or not is_auto(work.method) or not _is_small(work.workload, open_layout):
        return
    is_whole = not work.open_layout.recompute_is_open
    if not is_whole:
        try:
            least_ns = layout_bound(work.workload, open_layout, work.until).value_ns
        except Infeasible:
            return
        if work.best is not None and least_ns >= work.best.objective_ns:
            return
    from schedc.solvers.layout.exact import search_layouts  # loads CP-SAT

    title = "layouts one by one"
    is_first = all(each.method != title for each in work.candidates)
    work.settings.on_method(title)
    left, timed = work.left, work.limits.deterministic is None
    share = None if left is None else (FIRST_EXACT_SHARE if is_first else LATER_EXACT_SHARE) * left
    given = replace(work.limits, time_s=share if timed else None, deterministic=None if timed else share)
    begun, before = time.perf_counter(), work.layouts
    start = work.best if work.schedule is not None and not work.schedule.parts else None
    if not is_whole and start is not None and start.layout.recomputed:
        start = None  # none of those that are listed
    latest: LayoutsKnown | None = None
    has_room = True

    def keep(known: LayoutsKnown) -> None:
        nonlocal latest
        latest = known
        work.layouts = before + known.evaluated
        work.progress(None if known.best is None else known.best.objective_ns)

    with work.region():
        try:
            latest = search_layouts(work.workload, open_layout, given, keep, start)
            work.interrupted |= latest.interrupted
            work.listed = latest.complete
        except NoPlanFound:
            work.cut_short |= timed  # the limit came first
        except Infeasible:
            if is_whole:
                raise
            has_room, work.listed = False, True
    work.work += 0.0 if share is None or timed else share
    seconds = time.perf_counter() - begun
    found = None if latest is None else latest.best
    if found is not None and (start is None or found.objective_ns < start.objective_ns):
        option = work.add(title, found.layout)
        if option is not None:
            option.may_take(found.objective_ns)
            work.offer(found, "cpsat", title)
            work.cut_short |= timed and work.title == title  # threads raced for it
        work.tried(title, seconds, found)
    else:
        in_time = "was not done in time" if has_room else "none has room without recomputation"
        work.tried(title, seconds, why_not="found none better" if start or found else in_time)
    if is_whole and latest is not None and latest.lower_bound_ns > work.bound_ns:  # of equal ones the first's log stays
        work.raise_bound(latest.lower_bound_ns, BoundName.CPSAT, latest.log)


def _is_small(workload: Workload, open_layout: OpenLayout) -> bool:
    """Whether the layouts can be looked at one by one; those of chains."""
    microbatches = workload.microbatches
    if workload.edges or workload.slices or open_layout.slices or True in open_layout.heads:
        return False
    if 3 * workload.ranks * microbatches > EXACT_OPS:
        return False
    layouts = list(islice(open_layouts(workload, open_layout), EXACT_LAYOUTS + 1))
    stages = max((len(each.ranks) for each in layouts), default=0)
    return 0 < len(layouts) <= EXACT_LAYOUTS and 3 * microbatches * stages <= EXACT_OPS


def run_layout_method(work: LayoutWork) -> None:
    """The method that is asked for chooses layout and schedule."""
    if work.is_over:
        return
    work.settings.on_method(work.method)
    _wait_for_code(work, replace(work.open_layout, heads=(False,)))
    begun, before = time.perf_counter(), work.layouts
    stopped = False

    def stop() -> bool:
        nonlocal stopped
        stopped = work.interruption.requested or (work.is_timed and work.left == 0)
        return stopped

    def report(evaluated: int, objective_ns: int) -> None:
        work.layouts = before + evaluated
        work.progress(objective_ns)

    try:
        found = layout_method(work.method).choose(work.workload, work.open_layout, stop=stop, report=report)
    except (NoPlanFound, Unsupported) as reason:
        work.tried(work.method, time.perf_counter() - begun, why_not=str(reason))
    else:
        work.tried(work.method, time.perf_counter() - begun, found)
        work.offer(found, work.method, work.method)
    work.cut_short |= stopped
    work.exhausted = not stopped


def evaluated_by(workload: Workload, open_layout: OpenLayout) -> Callable[..., Any]:
    """The kernel that times layouts, or cuts where these are open."""
    return kernel_of(workload, split_head=True in open_layout.heads) if open_layout.slices is None else SEARCHED_BY


def _wait_for_code(work: LayoutWork, open_layout: OpenLayout) -> None:
    """Wait until compiled code is at hand, for a share of the time; without it layouts are evaluated in Python."""
    form = evaluated_by(work.workload, open_layout)
    if not at_hand(form):
        work.settings.on_method("compiling")
        with work.region(WAIT_SHARE):
            compiled(form)


def seek_layouts(work: LayoutWork, number: int) -> None:
    """Seek layouts from the seed with this number, or cuts where these are open; the best of them are options."""
    heads = work.open_layout.heads
    if work.open_layout.slices is not None:
        _seek_cuts(work, work.open_layout.slices, number)
    elif not work.workload.slices:
        for split_head in heads:
            _seek(work, number, replace(work.open_layout, heads=(split_head,)), 1 / len(heads))


def _seek(work: LayoutWork, number: int, open_layout: OpenLayout, part: float) -> None:
    """Layouts of whole microbatches, where it is given whether the head is split, for this part of what is given to it."""
    workload = work.workload
    if work.is_over:
        return
    _wait_for_code(work, open_layout)
    if work.is_over:
        return
    work.settings.on_method("layouts")
    left, timed = work.left, work.is_timed and not work.is_constructive
    share = CLIMB_UNITS if left is None or work.is_constructive else CLIMB_SHARE * left
    share *= part
    begun, before = time.perf_counter(), work.layouts
    found: list[ScheduledLayout] = []
    climb: LayoutClimb | None = None

    def gather(climb: LayoutClimb) -> None:
        """The best layouts of a run; of those with no time to be handed on, the best."""
        found.extend(climb.scheduled() if work.left != 0 else climb.scheduled(1))
        work.layouts = before + climb.evaluated

    with work.region():
        try:
            workers = WALKS if work.ops_of_two_chunks >= WALKS_OPS else 1
            climb = LayoutClimb(workload, open_layout, seed=work.limits.seed + number, workers=workers)
        except Unsupported as reason:
            work.tried("layouts", time.perf_counter() - begun, why_not=str(reason))
            return
        evaluations = max(100, int(share * OPS_PER_UNIT / max(LEAST_OPS, work.ops_of_two_chunks)))
        at_once = max(LAYOUTS_AT_ONCE, evaluations // 50)
        until_s = time.perf_counter() + share
        while (time.perf_counter() < until_s) if timed else climb.evaluated < evaluations:
            climb.restart()
            climb.run(
                seconds=max(0.0, until_s - time.perf_counter()) if timed else None,
                evaluations=at_once if timed else min(at_once, evaluations - climb.evaluated),
                report=lambda evaluated, kept: work.progress(kept.value_ns, before + evaluated),
            )
            gather(climb)
        climb.restart()
    if climb is not None:
        gather(climb)  # of a run that was ended
    work.cut_short |= timed
    work.work += 0.0 if timed else share
    best = sorted(found, key=lambda each: each.objective_ns)
    if best:
        work.tried("layouts", time.perf_counter() - begun, best[0])
    taken: Counter[tuple[int, ...]] = Counter()
    for each in best:
        ranks = each.layout.rank_of_stage
        if taken[ranks] < MOST_ALIKE and taken.total() < MOST_FOUND:
            taken[ranks] += 1
            option = work.add(f"searched layout {len(work.options) + 1}", each.layout)
            if option is not None:
                option.may_take(each.objective_ns)
                if not work.is_constructive:
                    work.offer(each, "layouts", "layouts")


def _seek_cuts(work: LayoutWork, slices: OpenSlices, number: int) -> None:
    """Seek cuts into slices in the best layout known; the best of them are options."""
    base = work.best.layout if work.best is not None else next((each.layout for each in work.hopeful()), None)
    if work.is_over or base is None or slices.most < 2:
        return
    _wait_for_code(work, work.open_layout)
    work.settings.on_method("slices")
    left, timed = work.left, work.is_timed and not work.is_constructive
    share = CLIMB_UNITS if left is None or work.is_constructive else CUTS_SHARE * left
    begun, before = time.perf_counter(), work.layouts
    most = max(100, int(share * OPS_PER_UNIT / (RULES * max(LEAST_OPS, work.ops_of_two_chunks))))
    search = CutSearch(work.workload, base, slices, seed=work.limits.seed + number, plain=not at_hand(SEARCHED_BY))

    def share_left() -> float:
        spent = (time.perf_counter() - begun) / max(1e-9, share) if timed else search.looks / most
        return 0.0 if work.interruption.requested else 1 - spent

    found: list[ScheduledLayout] = []
    with work.region():
        search.begin(share_left)
        search.run(share_left, lambda value_ns: work.progress(value_ns, before + len(search.known)))
    work.layouts = before + len(search.known)
    with work.region():
        for each in search.scheduled(MOST_FOUND if work.left != 0 else 1):
            found.append(each)
    work.cut_short |= timed
    work.work += 0.0 if timed else share
    if found:
        work.tried("slices", time.perf_counter() - begun, min(found, key=lambda each: each.objective_ns))
    for each in found:
        option = work.add(each.name, each.layout)
        if option is not None:
            option.may_take(each.objective_ns)
            if not work.is_constructive:
                work.offer(each, "rule-table", each.name)
