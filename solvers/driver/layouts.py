"""The methods at work on one workload whose layout is open: which layouts, and which schedule in them.

A Workload and an OpenLayout go in; the best layout with its schedule comes out, and a bound over all layouts.

1. The baselines (`schedc.solvers.layout.baselines`).
2. With `auto`, where there are few layouts, of few ops: the exact search for a share of the time.
3. The method that was asked for, on the balanced partitions in the known placements.
4. Annealing over layouts (`LayoutClimb`), begun again from other seeds.
5. The method on the best layouts by successive halving: all of them for a short time, then the better half, until one has the rest.

While time is left, 4 and 5 are repeated with other seeds. A constructive method alone makes the schedule of the plan, on all named
layouts and on those found; with any other method, better schedules of the steps before are kept. It ends at the gap, the limit, or
a proof; an interruption ends it with what is known then.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from schedc.analysis.bounds.layouts.layout_bound import layout_bound
from schedc.compiled.compiler import at_hand, compile_ahead, compiled
from schedc.errors import Infeasible, NoPlanFound, Unsupported
from schedc.ir.plan import BoundName
from schedc.lower.placement import placement_name
from schedc.solvers.common.interruption import Interruption, OutOfTime
from schedc.solvers.driver.best_layout import BestLayout, LayoutsProgress
from schedc.solvers.driver.layout_options import Options
from schedc.solvers.driver.portfolio import Candidate, Ended, solve
from schedc.solvers.driver.registry import LAYOUT_METHODS, SEARCHES, is_auto, layout_method
from schedc.solvers.layout.baselines import attempts
from schedc.solvers.layout.climb import LayoutClimb
from schedc.solvers.layout.enumerate import cuts_of
from schedc.solvers.layout.evaluation.kernel import evaluate
from schedc.solvers.layout.exact import search_layouts
from schedc.solvers.layout.laid_out import LaidOut, lay_out

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from schedc.ir.layout import Layout, OpenLayout
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Construct, Limits
    from schedc.solvers.common.failure import Failure
    from schedc.solvers.common.incumbent import Improvement
    from schedc.solvers.common.interruption import Ends
    from schedc.solvers.driver.layout_options import Option
    from schedc.solvers.driver.portfolio import Outcome
    from schedc.solvers.layout.exact import LayoutProgress

__all__ = ["LayoutsOutcome", "solve_layouts"]

EXACT_LAYOUTS, EXACT_OPS = 20_000, 300
"""The exact search runs where there are at most this many layouts, of at most this many compute ops."""
BASELINES_SHARE, EXACT_SHARE, NAMED_SHARE, CLIMB_SHARE = 0.15, 0.4, 0.25, 0.3
"""Of the time or work left then: of the baselines, of the exact search, of the method on named layouts, of the annealing."""
CLIMB_UNITS = 2.0
"""Without a limit, and for methods that take none, layouts are sought with this much work."""
OPS_PER_UNIT, LEAST_OPS = 10_000_000, 4000
"""About this many ops are placed in a unit of work, and this many at least for a layout."""
LAYOUTS_AT_ONCE = 2000
"""The annealing begins again after this many layouts, as it ends in a local optimum; there are more of these than it can leave."""
MOST_FOUND, MOST_ALIKE = 8, 2
"""This many layouts are handed on, at most this many of them with the same stages on each rank."""
MOST_BARREN = 3
"""After this many searches in a row that find no layout that may be better, nothing is left to try."""
FIRST_ROUND = 0.5
"""Of the time of halving, the first round gets this share, as do later ones of what is left."""
HANDED_ON = ("balanced unidirectional", "balanced loop 2", "balanced wave 2", "balanced explicit")
"""The named layouts that are handed on before any are found, beside the one with the best baseline; where there are few: all."""
WALKS, WALKS_OPS = 2, 4000
"""This many walks seek layouts beside each other where a layout has this many compute ops; with fewer, threads only wait."""
LEAST_S, S_PER_OP = 0.8, 1e-4
"""A method does nothing worth while with a layout in less time than this, and this for each compute op."""
WAIT_SHARE = 0.3
"""Where compiled code is not at hand, the search for layouts waits for it for this share of the time that is left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutsOutcome:
    """What the methods found."""

    best: LaidOut
    known: BestLayout
    candidates: tuple[Candidate, ...]
    """The baselines, the searches over layouts, and what became of each layout that a method worked on."""
    failures: tuple[Failure, ...]
    """Of methods that ended with an exception of their own."""
    ended: Ended


def solve_layouts(
    workload: Workload,
    open_layout: OpenLayout,
    method: str,
    limits: Limits,
    *,
    report: Callable[[Improvement], None] = lambda _: None,
    on_method: Callable[[str], None] = lambda _: None,
    on_layouts: Callable[[LayoutsProgress], None] = lambda _: None,
    interruption: Interruption | None = None,
) -> LayoutsOutcome:
    """Choose a layout and a schedule until the gap, the limit, a proof, or an interruption.

    Under a deterministic limit, and with a constructive method that no time limit cuts short, the result depends on the seed alone.

    Args:
        workload: what `schedc.verify.workload` accepts.
        open_layout: what may be chosen.
        method: `auto`, or a method's name with options in braces.
        limits: when to stop.
        report: is called with each better schedule or bound at once.
        on_method: is called with the name of what begins.
        on_layouts: is called now and then while layouts are evaluated.
        interruption: what listens to signals, if something does; one that comes before there is any schedule waits for the first.

    Raises:
        Infeasible: no layout has room on its ranks.
        NoPlanFound: no method found a schedule within the memory limits.
        InvalidInput: the method's name or options are wrong.
        Unsupported: the search that is asked for by name works in none of the layouts.
    """
    bound = layout_bound(workload, open_layout)
    if bound.value_ns is None:
        raise Infeasible(f"{workload.name}: {bound.detail}")
    work = _Work(
        workload=workload,
        open_layout=open_layout,
        method=method,
        limits=limits,
        known=BestLayout(bound_ns=bound.value_ns, report=report, interruption=interruption or Interruption()),
        options=Options(workload),
        on_method=on_method,
        on_layouts=on_layouts,
    )
    work.run()
    return work.outcome()


@dataclass(slots=True, kw_only=True)
class _Work:
    """The methods at work."""

    workload: Workload
    open_layout: OpenLayout
    method: str
    limits: Limits
    known: BestLayout
    options: Options
    on_method: Callable[[str], None]
    on_layouts: Callable[[LayoutsProgress], None]
    candidates: list[Candidate] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    unsupported: list[Unsupported] = field(default_factory=list)
    """Why a search that is asked for by name does not work in some layout."""
    interrupted: bool = False
    exhausted: bool = False

    @property
    def is_constructive(self) -> bool:
        """Whether the method makes a schedule at once."""
        return not is_auto(self.method) and self.method.partition("{")[0] not in {*SEARCHES, *LAYOUT_METHODS}

    @property
    def is_timed(self) -> bool:
        """Whether a clock ends the work."""
        return self.limits.deterministic is None and self.limits.time_s is not None

    @property
    def left(self) -> float | None:
        """What the limits leave, in seconds or units of work; None: all."""
        if self.limits.deterministic is not None:
            return max(0.0, self.limits.deterministic - self.known.work)
        return None if self.limits.time_s is None else max(0.0, self.limits.time_s - self.known.seconds)

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to be done."""
        if self.known.best is None:
            return False
        return self.interrupted or self.known.interruption.requested or self.known.gap <= self.limits.gap or self.left == 0

    def run(self) -> None:
        """All steps."""
        compile_ahead(evaluate)
        self._try_baselines()
        if self.method in LAYOUT_METHODS:
            self._run_layout_method()
            return
        if self.is_constructive:
            self._climb(0)
            for option in self.options.hopeful(None):
                if self.known.best is None or not (self.interrupted or self.known.interruption.requested):
                    self._hand_on(option, self.left if self.is_timed else None)
            return
        self._search_exactly()
        self._hand_on_named()
        number = barren = 0
        while not (self.is_over or self.exhausted):
            before = len(self.options)
            self._climb(number)
            self._halve()
            number += 1
            barren = barren + 1 if len(self.options) == before and not self._hopeful() else 0
            self.exhausted = not self.is_timed or (barren == MOST_BARREN and self.left != 0)

    def _try_baselines(self) -> None:
        """The known methods in the known layouts; these layouts are options."""
        named = set()
        until = None if self.left is None else (1 - BASELINES_SHARE) * self.left
        for title, layout, construct in sorted(attempts(self.workload, self.open_layout), key=_is_even):
            if self.is_over:
                return
            if self.is_timed and self.known.best is not None and (self.left or 0.0) < (until or 0.0):
                self.candidates.append(Candidate(method=title, seconds=0.0, why_not="there was no time for it"))
                self.known.cut_short = True
                continue
            self.on_method(title)
            begun, why_not, found = time.perf_counter(), "was not done in time", None
            with self._region():
                try:
                    found = lay_out(self.workload, layout, construct, title)
                except Unsupported as reason:
                    why_not = str(reason)
            seconds = time.perf_counter() - begun
            name, _, known_as = title.removeprefix("mist-like (").rstrip(")").rpartition(" ")
            named.add(name)
            option: Option | None = None
            with self._region():
                option = self.options.add(name, layout)
            self.known.layouts = len(named)
            if found is None or option is None:
                self.candidates.append(Candidate(method=title, seconds=seconds, why_not=why_not))
                continue
            row = Candidate(method=title, seconds=seconds, makespan_ns=found.makespan_ns, objective_ns=found.objective_ns)
            self.candidates.append(row)
            option.may_take(found.objective_ns)
            if not self.is_constructive:
                self.known.offer(found, known_as, title)

    def _search_exactly(self) -> None:
        """The best schedule of whole blocks over all layouts, where they are few and small."""
        if self.is_over or not is_auto(self.method) or not self._is_small():
            return
        title = "layouts one by one"
        self.on_method(title)
        left, timed = self.left, self.limits.deterministic is None
        share = None if left is None else EXACT_SHARE * left
        given = replace(self.limits, time_s=share if timed else None, deterministic=None if timed else share)
        begun, before = time.perf_counter(), self.known.layouts
        latest: LayoutProgress | None = None
        bound_ns = 0
        log: tuple[str, ...] = ()

        def keep(progress: LayoutProgress) -> None:
            nonlocal latest, bound_ns, log
            latest, bound_ns, log = progress, progress.lower_bound_ns, progress.log
            self.known.layouts = before + progress.evaluated
            self._progress(progress.objective_ns)

        with self._region():
            try:
                proven = search_layouts(self.workload, self.open_layout, given, keep)
                bound_ns, log = proven.lower_bound_ns, proven.log
                self.interrupted |= proven.interrupted
            except NoPlanFound:
                self.known.cut_short |= timed  # the limit came first
        self.known.work += 0.0 if share is None or timed else share
        found: LaidOut | None = None if latest is None else latest.best
        seconds = time.perf_counter() - begun
        if latest is None or found is None:
            self.candidates.append(Candidate(method=title, seconds=seconds, why_not="was not done in time"))
            return
        row = Candidate(method=title, seconds=seconds, makespan_ns=found.makespan_ns, objective_ns=found.objective_ns)
        self.candidates.append(row)
        option = self.options.add(title, found.layout)
        if option is not None:
            option.may_take(found.objective_ns)
            self.known.offer(found, "cpsat", title)
            self.known.raise_bound(bound_ns, log)
            self.known.cut_short |= timed and self.known.title == title  # threads raced for it

    def _is_small(self) -> bool:
        """Whether the layouts can be looked at one by one."""
        microbatches = self.workload.microbatches
        if self.open_layout.recompute_is_open or 3 * self.workload.ranks * microbatches > EXACT_OPS:
            return False
        cuts = list(islice(cuts_of(self.workload, self.open_layout), EXACT_LAYOUTS + 1))
        stages = max((len(ranks) for _, ranks in cuts), default=0)
        return 0 < len(cuts) <= EXACT_LAYOUTS and 3 * microbatches * stages <= EXACT_OPS

    def _run_layout_method(self) -> None:
        """The method that is asked for chooses layout and schedule."""
        if self.is_over:
            return
        self.on_method(self.method)
        self._wait_for_code()
        begun, before = time.perf_counter(), self.known.layouts
        stopped = False

        def stop() -> bool:
            nonlocal stopped
            stopped = self.known.interruption.requested or (self.is_timed and self.left == 0)
            return stopped

        def report(evaluated: int, objective_ns: int) -> None:
            self.known.layouts = before + evaluated
            self._progress(objective_ns)

        row = Candidate(method=self.method, seconds=0.0)
        try:
            found = layout_method(self.method)(self.workload, self.open_layout, stop=stop, report=report, plain=None)
        except (NoPlanFound, Unsupported) as reason:
            row = replace(row, why_not=str(reason))
        else:
            row = replace(row, makespan_ns=found.makespan_ns, objective_ns=found.objective_ns)
            self.known.offer(found, self.method, self.method)
        self.known.cut_short |= stopped
        self.exhausted = not stopped
        self.candidates.append(replace(row, seconds=time.perf_counter() - begun))

    def _wait_for_code(self) -> None:
        """Wait until compiled code is at hand, for a share of the time; without it layouts are evaluated in Python."""
        if not at_hand(evaluate):
            self.on_method("compiling")
            with self._region(WAIT_SHARE):
                compiled(evaluate)

    def _hand_on_named(self) -> None:
        """The method on some named layouts, for equal times."""
        options = self._hopeful()
        few = len(options) <= len(HANDED_ON)
        chosen = [each for number, each in enumerate(options) if few or number == 0 or each.title in HANDED_ON]
        left = self.left
        share = None if left is None else NAMED_SHARE * left
        if share is not None:
            chosen = chosen[: max(1, int(share / self._least()))]
        for option in chosen:
            if not self.is_over:
                self._hand_on(option, self._least() if share is None else share / len(chosen))

    def _climb(self, number: int) -> None:
        """Seek layouts from the seed with this number; the best of them are options."""
        if self.is_over:
            return
        self._wait_for_code()
        if self.is_over:
            return
        self.on_method("layouts")
        left, timed = self.left, self.is_timed and not self.is_constructive
        share = CLIMB_UNITS if left is None or self.is_constructive else CLIMB_SHARE * left
        begun, before = time.perf_counter(), self.known.layouts
        found: list[LaidOut] = []
        climb: LayoutClimb | None = None
        with self._region():
            try:
                climb = LayoutClimb(
                    self.workload,
                    self.open_layout,
                    recompute=self.open_layout.recompute_is_open,
                    seed=self.limits.seed + number,
                    workers=WALKS if self._ops_of_two_chunks() >= WALKS_OPS else 1,
                )
            except Unsupported as reason:
                self.candidates.append(Candidate(method="layouts", seconds=time.perf_counter() - begun, why_not=str(reason)))
                return
            evaluations = max(100, int(share * OPS_PER_UNIT / self._ops_of_a_layout()))
            at_once = max(LAYOUTS_AT_ONCE, evaluations // 50)
            until_s = time.perf_counter() + share
            while (time.perf_counter() < until_s) if timed else climb.evaluated < evaluations:
                climb.restart()
                climb.run(
                    seconds=max(0.0, until_s - time.perf_counter()) if timed else None,
                    evaluations=at_once if timed else min(at_once, evaluations - climb.evaluated),
                    report=lambda evaluated, kept: self._progress(kept.value_ns, before + evaluated),
                )
                self._gather(climb, found, before)
            climb.restart()
        if climb is not None:
            self._gather(climb, found, before)  # of a run that was ended
        self.known.cut_short |= timed
        self.known.work += 0.0 if timed else share
        self._take_found(found, time.perf_counter() - begun)

    def _gather(self, climb: LayoutClimb, found: list[LaidOut], before: int) -> None:
        """The best layouts of a run."""
        found += [each for each in climb.scheduled() if each is not None]
        self.known.layouts = before + climb.evaluated

    def _take_found(self, found: Sequence[LaidOut], seconds: float) -> None:
        """The best layouts found are options."""
        best = sorted(found, key=lambda each: each.objective_ns)
        if best:
            row = Candidate(method="layouts", seconds=seconds, makespan_ns=best[0].makespan_ns, objective_ns=best[0].objective_ns)
            self.candidates.append(row)
        taken: dict[tuple[int, ...], int] = {}
        for each in best:
            ranks = each.layout.rank_of_stage
            if taken.get(ranks, 0) < MOST_ALIKE and sum(taken.values()) < MOST_FOUND:
                taken[ranks] = taken.get(ranks, 0) + 1
                layout = replace(each.layout, placement=placement_name(ranks, self.workload.ranks))
                option = self.options.add(f"found {len(self.options) + 1}", layout)
                if option is not None:
                    option.may_take(each.objective_ns)
                    if not self.is_constructive:
                        self.known.offer(replace(each, layout=layout, problem=option.problem), "layouts", "layouts")

    def _halve(self) -> None:
        """Hand the options to the method: all of them for a short time, then the better half, until one has the rest."""
        most = len(self.options)
        while not self.is_over:
            left, least = self.left, self._least()
            options = self._hopeful()[:most]
            if left is not None:
                options = options[: max(1, int(FIRST_ROUND * left / least))]
                if left < 0.2 * least and self.known.best is not None:
                    return
            if not options:
                return
            for option in options:
                if self.is_over:
                    return
                slice_ = left
                if len(options) > 1:
                    slice_ = least if left is None else FIRST_ROUND * left / len(options)
                self._hand_on(option, slice_)
            most = len(options) // 2
            if len(options) == 1:
                return

    def _hopeful(self) -> list[Option]:
        """The options that may be better than the best, the most promising first."""
        return self.options.hopeful(None if self.known.best is None else self.known.best.objective_ns)

    def _hand_on(self, option: Option, slice_: float | None) -> None:
        """Let the method work on an option for so many seconds or units of work; None: until it is done."""
        timed = self.limits.deterministic is None
        target_ns = self.known.bound_ns / (1 - self.limits.gap)
        given = replace(
            self.limits,
            time_s=slice_ if timed else None,
            deterministic=None if timed or self.is_constructive else slice_,
            gap=max(0.0, 1 - option.bound_ns / target_ns) if target_ns else 0.0,
            seed=self.limits.seed + (option.row is not None),
        )
        title = f"{option.title} {self.method}"
        self.on_method(title)
        begun = time.perf_counter()
        try:
            outcome = solve(
                option.problem,
                self.method,
                given,
                bound_ns=option.bound_ns,
                bound_by=BoundName.WORK,  # a name for messages: no certificate rests on it
                report=lambda step: self._progress(step.objective_ns),
                interruption=self.known.interruption,
                known=option.known,
            )
        except Unsupported as reason:
            option.settled = True
            self.unsupported.append(reason)
            self.candidates.append(Candidate(method=title, seconds=time.perf_counter() - begun, why_not=str(reason)))
            return
        except KeyboardInterrupt:
            if self.known.best is None:
                raise
            self.interrupted = self.known.cut_short = True
            return
        option.seconds += time.perf_counter() - begun
        self.known.work += 0.0 if timed else slice_ or 0.0
        self._take(option, outcome, title)

    def _take(self, option: Option, outcome: Outcome, title: str) -> None:
        """Keep what the method found."""
        incumbent = outcome.incumbent
        self.failures += outcome.failures
        self.known.cut_short |= incumbent.cut_short
        option.settled = outcome.ended in (Ended.PROVEN, Ended.EXHAUSTED, Ended.DONE)
        why_not = "; ".join(each.why_not for each in outcome.candidates[:1]) or "found no schedule"
        row = Candidate(method=title, seconds=option.seconds, why_not=why_not)
        if incumbent.whole is not None:
            option.keep(incumbent.whole, incumbent.found_by, incumbent.whole_ns)
        if incumbent.schedule is not None:
            option.keep(incumbent.schedule, incumbent.found_by, incumbent.objective_ns)
            found = LaidOut(
                name=title,
                layout=option.layout,
                problem=option.problem,
                schedule=incumbent.schedule,
                objective_ns=incumbent.objective_ns,
                makespan_ns=incumbent.makespan_ns,
            )
            row = replace(row, makespan_ns=found.makespan_ns, objective_ns=found.objective_ns, why_not="")
            self.known.offer(found, incumbent.found_by, title)
        if option.row is None:
            option.row = len(self.candidates)
            self.candidates.append(row)
        else:
            self.candidates[option.row] = row

    @contextmanager
    def _region(self, share: float = 1.0) -> Iterator[None]:
        """Within, an interruption or the end of this share of the time ends the work, and what is behind goes on.

        An interruption waits for the first schedule. If either has come before it begins, what is within ends by its own limits.
        """
        ends: Ends = "time" if self.known.best is None else "both"
        interruption = self.known.interruption
        begun = False
        try:
            left = self.left if self.is_timed else None
            with interruption.alarm(None if left is None else share * left), interruption.raising(at=ends):
                begun = True
                yield
        except OutOfTime:
            self.known.cut_short = True
        except KeyboardInterrupt:
            if self.known.best is None:
                raise
            self.interrupted = self.known.cut_short = True
        if not begun:
            yield

    def _progress(self, objective_ns: int | None, layouts: int | None = None) -> None:
        """Report it, if it is new."""
        best_ns = None if self.known.best is None else self.known.best.objective_ns
        seen = [each for each in (objective_ns, best_ns) if each is not None]
        self.on_layouts(
            LayoutsProgress(
                layouts=self.known.layouts if layouts is None else layouts,
                objective_ns=min(seen, default=None),
                lower_bound_ns=self.known.bound_ns,
            )
        )

    def _ops_of_two_chunks(self) -> int:
        return 3 * self.workload.microbatches * 2 * self.workload.ranks

    def _ops_of_a_layout(self) -> int:
        """About as many ops as are placed for one layout."""
        return max(LEAST_OPS, self._ops_of_two_chunks())

    def _least(self) -> float:
        """What a method needs to do anything worth while with an option, in seconds or units of work."""
        return LEAST_S + S_PER_OP * self._ops_of_two_chunks()

    def outcome(self) -> LayoutsOutcome:
        """What was found.

        Raises:
            NoPlanFound: nothing.
            Unsupported: the search asked for works in no layout.
        """
        best = self.known.best
        tried = [each for each in self.candidates if each.method.endswith(f" {self.method}") and each.objective_ns is not None]
        if self.unsupported and not tried:
            raise self.unsupported[0]
        if best is None:
            failed = [each for each in self.candidates if each.why_not]
            reasons = "; ".join(f"{each.method}: {each.why_not}" for each in failed[-3:])
            in_time = " in the time given" if self.left == 0 and not self.is_constructive else ""
            raise NoPlanFound(f"{self.workload.name}: no layout with a schedule found{in_time}: {reasons or 'none has room'}")
        ended = self._ended()
        self.known.cut_short |= ended is Ended.INTERRUPTED
        return LayoutsOutcome(
            best=best,
            known=self.known,
            candidates=tuple(self.candidates),
            failures=tuple(self.failures),
            ended=ended,
        )

    def _ended(self) -> Ended:
        """Why the work ended."""
        if self.known.gap == 0:
            return Ended.PROVEN
        if self.known.gap <= self.limits.gap:
            return Ended.WITHIN_GAP
        if self.interrupted or self.known.interruption.requested:
            return Ended.INTERRUPTED
        if self.is_constructive or (self.method in LAYOUT_METHODS and self.exhausted):
            return Ended.DONE
        if self.limits.deterministic is not None:
            return Ended.OUT_OF_WORK
        return Ended.EXHAUSTED if self.exhausted else Ended.OUT_OF_TIME


def _is_even(attempt: tuple[str, Layout, Construct]) -> bool:
    """Whether a baseline has the even partition, which is the last to be tried."""
    return attempt[0].startswith("even")
