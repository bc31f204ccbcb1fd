"""A lower bound for many alike microbatches: no few of them in a row keep ahead of some pace, so neither does the whole step.

Takes a chain with one stage on each rank and a memory limit; gives a better lower bound. A pace is a time for each microbatch.
CP-SAT is asked whether a microbatch can be followed by `ahead` others that all keep ahead of a pace (`models.cpsat.pace`, which
defines this), for one pace after another between what is proven and the best makespan. A no refutes the pace. The bound is CP-SAT's
word. It holds for schedules whose F, B and BW are whole, however they cut W.

Proof that refuted paces bound the makespan C of N microbatches, with the numbers 0 to N - 1. Let mark(k) be the start of the first
rank's gradient part k, and D(n) the time from mark(N - n), when n microbatches are left, to C. Let pace P be refuted for `ahead`.

1. Each microbatch j with `ahead` others behind it has one among these, j + l, with mark(j + l) - mark(j) >= l × P. So if n is more
   than `ahead`, D(n) is at least the least of l × P + D(n - l) over all l from 1 to `ahead`. That holds for each `ahead` and its
   pace. And D(n) is at least D(n - 1), as marks ascend.
2. The first rank runs n backwards in D(n). If n is more than the `slots` microbatches that its memory holds, the last n - `slots`
   of them enter after the gradient part that starts at the mark. So D(n) is at least that part, and the lower bound of a step of
   these last ones, without collectives before and after them.
3. Go from microbatch 0 to such a one as in 1, from this to the next, and so on. As no move is longer than `ahead`, one of any
   `ahead` numbers in a row is reached. Where n are left then, its mark is at least mark(0) + (N - n) × P. And mark(0) is at least
   the time that must come before any gradient part of the first rank. So C is at least the sum of these and D(n): of its values in
   the row, the least.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import replace
from operator import add
from typing import TYPE_CHECKING

from schedc.analysis.bounds.clock import Clock, never
from schedc.analysis.bounds.heads_and_tails import frames_of
from schedc.analysis.bounds.lower_bounds import bounds_in_time
from schedc.analysis.bounds.residency import beside_gathered, without_recomputed_bytes
from schedc.ir import BLOCKS, BoundName, Objective, Problem
from schedc.models.cpsat.pace import MOST_PAIRS, PARTS, ChainTicks, build_pace
from schedc.solvers.common.base import SolverStatus
from schedc.solvers.common.method import Search
from schedc.solvers.exact.cpsat_solver import asked_of, digest_of, run, solver_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ortools.sat.python import cp_model

    from schedc.analysis.bounds.clock import Until
    from schedc.solvers.common.base import Limits
    from schedc.solvers.common.incumbent import Incumbent

SHARE, LEAST_S, FINEST = 0.3, 0.25, 2000
"""A question gets this share of what is left of a limit, but at least this many seconds or units of work, where that is left. The
search ends when the paces that are still open differ by less than the last part of the largest; two questions differ by no less."""
FEW_SHARE, FEW_LEAST_S, FEW_FINEST = 0.02, 0.0, 250
"""The same for all but the two largest `ahead`, which come first and mostly bound the end of the step."""
MOST_TICKS = 20_000
"""A round trip has about this many ticks at most; durations are rounded down to ticks."""
MOST_SLOTS = 12
"""The first rank's memory holds at most this many microbatches: the model grows with the square of how many it holds."""
LEAST_AHEAD, LEAST_ROUNDS, ROUNDS_AHEAD = 16, 4, (2, 3, 4, 6, 8)
"""`ahead` takes the values max(LEAST_AHEAD, r × slots), r of ROUNDS_AHEAD, that are below the step's microbatches, of which
there are more than LEAST_AHEAD and than LEAST_ROUNDS × slots. More in a row refute a higher pace, but later: what was ready
before the first of them helps only once. Of the two largest, the larger is asked where the smaller refutes nothing."""


class Pace(Search, frozen=True):
    """A better bound alone: CP-SAT shows that no few microbatches in a row keep ahead of a pace."""

    name, place = "pace", 265

    @classmethod
    def misfit(cls, problem: Problem) -> str:
        """It is for the makespan of many alike microbatches that go through a chain, and a first rank that holds few of them."""
        if why_not := super().misfit(problem):
            return why_not
        if problem.objective is not Objective.MAKESPAN:
            return f"{cls.name} bounds the makespan; the objective is {problem.objective}"
        if len(problem.paths) > 1 or any(len(problem.stages_on(rank)) > 1 for rank in range(problem.ranks)):
            return f"{cls.name} needs one path, and one stage on each rank"
        if any(len(stage.durations_ns(kind)) > 1 for stage in problem.stages for kind in BLOCKS):
            return f"{cls.name} needs microbatches that take the same time"
        rank = problem.stages[problem.paths[0][0]].rank
        slots = _slots(without_recomputed_bytes(beside_gathered(problem)), rank)
        if not 0 < slots <= MOST_SLOTS or problem.microbatches <= max(LEAST_AHEAD, LEAST_ROUNDS * slots):
            return (
                f"{cls.name} needs a memory limit by which 1 to {MOST_SLOTS} microbatches fit the first rank, and a step of more"
                f" than {LEAST_AHEAD}, and of more than {LEAST_ROUNDS} times as many"
            )
        return ""

    def improve(self, incumbent: Incumbent, limits: Limits) -> None:
        """Offer better bounds."""
        if incumbent.schedule is None or not BoundName.CPSAT_CUT.speaks_of(incumbent.schedule.parts):
            return  # what is best cuts other blocks than W, of which the bound does not speak
        begun_s, spent, clock = time.perf_counter(), 0.0, None if limits.clock_s is None else Clock(SHARE * limits.clock_s)
        paces = Paces(without_recomputed_bytes(beside_gathered(incumbent.problem)), until=clock or never)
        incumbent.cut_short |= clock is not None and clock.has_cut
        refuted: dict[int, int] = {}
        log: tuple[str, ...] = ()

        def refute(asked: int, ahead: int, share: float, least: float) -> bool | None:
            """Whether the pace is refuted; None: nothing is left to ask with."""
            nonlocal spent, log
            left = limits.left(begun_s, spent)
            if left.least <= 0:
                incumbent.cut_short |= left.clock_s is not None
                return None
            model, solver = build_pace(paces.chain, ahead, asked), pace_solver(left.part(share, least=least))
            status, ended_by = run(solver, model)
            taken = solver.response_proto.deterministic_time
            spent, incumbent.work = spent + taken, incumbent.work + taken
            if ended_by is not None:
                raise ended_by
            if status is not SolverStatus.INFEASIBLE:
                return False
            refuted[ahead], bound_ns = asked, paces.bound_ns(refuted | {ahead: asked})
            log = (
                *(log or asked_of(solver)),
                f"pace: none is followed by {ahead} others at less than {asked * paces.tick_ns / PARTS:.15g} ns for each",
                digest_of(model),
                f"status {SolverStatus.INFEASIBLE} without presolve, at least {bound_ns} ns",
            )
            incumbent.raise_bound(bound_ns, BoundName.CPSAT_CUT, log)
            return True

        few = [([ahead], FEW_SHARE, FEW_LEAST_S, FEW_FINEST) for ahead in paces.aheads[:-2]]
        for aheads, share, least, finest in (*few, (list(paces.aheads[-2:]), SHARE, LEAST_S, FINEST)):
            low, high = paces.pace(incumbent.bound_ns, aheads[0], refuted), paces.pace(incumbent.objective_ns, aheads[-1], refuted)
            while high - low > (step := max(1, high // finest)) and incumbent.gap > limits.gap:
                asked = low + max(step, (high - low) // 4)  # below the middle: a no comes soon, all else may take the whole share
                for more, ahead in enumerate(aheads):
                    if paces.bound_ns(refuted | {ahead: asked}) <= incumbent.bound_ns:
                        continue
                    answer = refute(asked, ahead, share, least)
                    if answer is None:
                        return
                    if answer:
                        low = asked
                        del aheads[:more]
                        break
                else:
                    high = asked - 1


def pace_solver(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT as it answers these questions soonest, some in a tenth of the time: one search, of the model as it is."""
    solver = solver_of(replace(limits, workers=1, gap=0.0))
    parameters = solver.parameters
    parameters.linearization_level, parameters.cp_model_presolve, parameters.interleave_search = 0, False, False
    return solver


class Paces:
    """What each microbatch takes, on a grid of ticks, and the bound on the makespan that follows from a refuted pace.

    Paces are whole numbers, in 1/`PARTS` ticks per microbatch.
    """

    def __init__(self, problem: Problem, aheads: Sequence[int] = (), until: Until = never) -> None:
        """Of a problem that is no misfit, whose ranks hold nothing but activations.

        `aheads` are how many microbatches may have to keep ahead, each fewer than there are, in ascending order; none: as many as
        the memory suggests (`ROUNDS_AHEAD`). The bounds of the last microbatches (2 of the proof) take ten seconds for 64 ranks;
        where the time is up before (`until`) they are weaker.
        """
        (each,) = frames_of(problem)[0].classes
        costs, hops = each.microbatches.costs, (each.microbatches.forward, each.microbatches.backward)
        stages = [problem.stages[stage] for stage in each.microbatches.path]
        first, cost, slots = stages[0], costs[0], _slots(problem, stages[0].rank)
        taken_ns = [time_ns for cost in costs for time_ns in (cost.forward_ns, cost.gradient_ns, cost.backward_ns)]
        taken_ns += [time_ns for there in hops for hop in there for time_ns in (hop.occupancy_ns, hop.latency_ns)]
        self.tick_ns = max(1, math.gcd(*taken_ns), each.microbatches.round_trip_ns[0] // MOST_TICKS)
        self._microbatches, self._mark_ns = problem.microbatches, each.gradient_head_ns[0]
        kept_bytes, limit_bytes = first.activation_after_input_bytes, problem.memory_limit_bytes[first.rank]
        rest_ns, kept = cost.backward_ns - cost.gradient_ns, list[int]()
        if problem.split_backward and kept_bytes and rest_ns and limit_bytes is not None:
            whole = range(slots, max(0, slots - MOST_PAIRS), -1)
            kept = [count + (limit_bytes - count * first.activation_bytes) // kept_bytes for count in whole]
        self.chain = ChainTicks(
            forward=tuple(cost.forward_ns // self.tick_ns for cost in costs),
            gradient=tuple(cost.gradient_ns // self.tick_ns for cost in costs),
            rest=rest_ns // self.tick_ns,
            forward_hops=tuple((hop.occupancy_ns // self.tick_ns, hop.latency_ns // self.tick_ns) for hop in hops[0]),
            gradient_hops=tuple((hop.occupancy_ns // self.tick_ns, hop.latency_ns // self.tick_ns) for hop in hops[1]),
            slots=tuple(min(slots, _slots(problem, stage.rank) or slots) for stage in stages),
            kept=tuple(kept),
        )
        least = (max(LEAST_AHEAD, rounds * slots) for rounds in ROUNDS_AHEAD)
        self.aheads = aheads or tuple(dict.fromkeys(ahead for ahead in least if ahead < problem.microbatches))
        self._last_ns = [count * cost.backward_ns for count in range(1, self.aheads[-1] + 1)]
        """For the last 1, 2, … microbatches, least time from the mark of the first of them to the end (2 of the proof)."""
        for index in range(slots, self.aheads[-1]):
            step = replace(problem, microbatches=index + 1 - slots, path_of=(0,) * (index + 1 - slots), data_parallel=None)
            alone_ns = max(bound.value_ns for bound in bounds_in_time(step, until))
            self._last_ns[index] = max(self._last_ns[index], cost.gradient_ns + alone_ns)

    def bound_ns(self, refuted: Mapping[int, int]) -> int:
        """The lower bound on the makespan; `refuted` is the refuted pace by `ahead`."""
        taken = {ahead: [self._taken_ns(count, pace) for count in range(1, ahead + 1)] for ahead, pace in refuted.items()}
        most = min(self._microbatches - 1, len(self._last_ns) + max(refuted))
        to_end_ns = [0]  # by how many microbatches are left
        for left in range(1, most + 1):
            own_ns = self._last_ns[left - 1] if left <= len(self._last_ns) else 0
            after_ns = (min(map(add, each, reversed(to_end_ns[-ahead:]))) for ahead, each in taken.items() if ahead < left)
            to_end_ns.append(max(own_ns, to_end_ns[-1], *after_ns))
        rows = ((pace, range(most - ahead + 1, most + 1)) for ahead, pace in refuted.items())
        return self._mark_ns + max(
            min(self._taken_ns(self._microbatches - left, pace) + to_end_ns[left] for left in row) for pace, row in rows
        )

    def _taken_ns(self, count: int, pace: int) -> int:
        """What this many microbatches take at a pace."""
        return -(-count * pace * self.tick_ns // PARTS)

    def pace(self, value_ns: int, ahead: int, refuted: Mapping[int, int]) -> int:
        """The largest pace that, if it is refuted as well, bounds the makespan by no more than this; 0 if there is none."""
        paces = range(PARTS * value_ns // self.tick_ns)
        return max(0, bisect_right(paces, value_ns, key=lambda pace: self.bound_ns({**refuted, ahead: pace})) - 1)


def _slots(problem: Problem, rank: int) -> int:
    """How many activations fit on the rank that has one stage; 0 where nothing limits them."""
    (stage,) = problem.stages_on(rank)
    limit_bytes, activation_bytes = problem.memory_limit_bytes[rank], problem.stages[stage].activation_bytes
    return 0 if limit_bytes is None or not activation_bytes else limit_bytes // activation_bytes
