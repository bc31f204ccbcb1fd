"""A lower bound for many alike microbatches: no few of them in a row keep ahead of some pace, so neither does the whole step.

Takes a chain with one stage on each rank and a memory limit; gives a better lower bound. CP-SAT is asked whether a microbatch can
be followed by `ahead` others that all keep ahead of a pace (`models.cpsat.pace`, which defines this), for one pace after another.
A no refutes it. The bound is CP-SAT's word. It holds for schedules whose F, B and BW are whole, however they cut W.

Proof that refuted paces bound the makespan C of N microbatches, with the numbers 0 to N - 1. Let mark(k) be the start of gradient
part k on one rank, and as much later as its way to the first rank takes at least: that rank's gradient part k starts no sooner. Let
D(n) be the time from mark(N - n), when n microbatches are left, to C. Let pace P be refuted for `ahead`.

1. Each microbatch j with `ahead` others behind it has one among these, j + l, with mark(j + l) - mark(j) >= l × P. So if n is more
   than `ahead`, D(n) is at least the least of l × P + D(n - l) over all l from 1 to `ahead`. That holds for each `ahead` and its
   pace. And D(n) is at least D(n - 1), as marks ascend.
2. From its gradient part N - n on, thus in D(n), the first rank runs n backwards. If n is more than the `slots` microbatches that
   its memory holds, the last n - `slots` enter after this gradient part. So D(n) is at least that part, and the lower bound of a
   step of these last ones, without collectives before and after them.
3. Go from microbatch 0 to such a one as in 1, from this to the next, and so on. As no move is longer than `ahead`, one of any
   `ahead` numbers in a row is reached. Where n are left then, its mark is at least mark(0) + (N - n) × P. And mark(0) is at least
   the time that must come before any gradient part of its rank, and that way. So C is at least the sum of these and D(n): of its
   values in the row, the least.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from copy import copy
from dataclasses import dataclass, replace
from itertools import accumulate
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

SHARE, LEAST, FINEST = 0.3, 0.25, 2000
"""A question gets this share of what is left of a limit, but at least this many seconds or units of work, where that is left. The
search ends when the paces that are still open differ by less than the last part of the largest; two questions differ by no less."""
FEW_SHARE, FEW_LEAST, FEW_FINEST, FEW_TOGETHER = 0.15, 0.0, 600, 0.12
"""The same for all but the two largest `ahead`. These come first, mostly bound the end of the step, and show which rank's marks
refute more. Together, those of one rank get the last part of the limit."""
MOST_TICKS = 20_000
"""A round trip has about this many ticks at most; durations are rounded down to ticks."""
MOST_SLOTS = 12
"""The first rank's memory holds at most this many microbatches: the model grows with the square of how many it holds."""
LEAST_AHEAD, LEAST_ROUNDS, ROUNDS_AHEAD = 16, 4, (2, 3, 4, 6, 8)
"""`ahead` is max(LEAST_AHEAD, r × slots), r of ROUNDS_AHEAD, less than the step's microbatches: more than LEAST_AHEAD, and than
LEAST_ROUNDS × slots. More refute a higher pace, but later. The largest is asked where the second largest refutes nothing."""


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
        begun_s, clock = time.perf_counter(), None if limits.clock_s is None else Clock(SHARE * limits.clock_s)
        problem = without_recomputed_bytes(beside_gathered(incumbent.problem))
        first = Paces(problem, until=clock or never, known_ns=incumbent.bound_ns)
        incumbent.cut_short |= clock is not None and clock.has_cut
        questions, limits = _Questions(incumbent, incumbent.work, time.perf_counter()), limits.left(begun_s, 0.0)
        hops = first.chain.gradient_hops
        marked = (first, first.marking(1 + hops.index(max(hops, key=sum)))) if any(map(any, hops)) else (first,)
        for number, paces in enumerate(marked, 1):
            for ahead in first.aheads[:-2]:
                questions.narrow(paces, [ahead], limits.part(number * FEW_TOGETHER), FEW_SHARE, FEW_LEAST, FEW_FINEST)
        questions.narrow(max(marked, key=Paces.bound_ns), first.aheads[-2:], limits, SHARE, LEAST, FINEST)


@dataclass(slots=True)
class _Questions:
    """Paces that CP-SAT is asked about, one after another."""

    incumbent: Incumbent
    work: float  # of the incumbent, before the first
    begun_s: float

    def narrow(self, paces: Paces, aheads: Sequence[int], limits: Limits, share: float, least: float, finest: int) -> None:
        """Refute higher and higher paces for the first of `aheads`, or for the next where it refutes nothing."""
        low, high = paces.pace(paces.bound_ns(), aheads[0]), paces.pace(self.incumbent.objective_ns, aheads[-1])
        while high - low > (step := max(1, high // finest)) and self.incumbent.gap > limits.gap:
            asked = low + max(step, (high - low) // 4)  # below the middle: a no comes soon, all else may take the whole share
            ahead = next((ahead for ahead in aheads if self._refutes(paces, ahead, asked, limits, share, least)), None)
            if ahead is None:
                high = asked - 1
            else:
                low, aheads = asked, aheads[aheads.index(ahead) :]

    def _refutes(self, paces: Paces, ahead: int, asked: int, limits: Limits, share: float, least: float) -> bool:
        """Whether CP-SAT refutes the pace, and with it proves more; it is not asked where no limit is left."""
        left = limits.left(self.begun_s, self.incumbent.work - self.work)
        self.incumbent.cut_short |= left.clock_s is not None and left.least <= 0
        if left.least <= 0 or (bound_ns := paces.bound_ns({ahead: asked})) <= paces.bound_ns():
            return False
        model, solver = build_pace(paces.chain, ahead, asked), pace_solver(left.part(share, least))
        status, ended_by = run(solver, model)
        self.incumbent.work += solver.response_proto.deterministic_time
        self.incumbent.cut_short |= left.clock_s is not None and status is SolverStatus.UNKNOWN
        if ended_by is not None:
            raise ended_by
        if status is not SolverStatus.INFEASIBLE:
            return False
        paces.refuted[ahead], pace_ns = asked, asked * paces.tick_ns / PARTS
        said = f"place {paces.chain.marked} of the path: none is followed by {ahead} others at less than {pace_ns:.15g} ns for each"
        proof = f"status {SolverStatus.INFEASIBLE} without presolve, at least {bound_ns} ns"
        paces.log = (*(paces.log or asked_of(solver)), f"pace on {said}", digest_of(model), proof)
        self.incumbent.raise_bound(bound_ns, BoundName.CPSAT_CUT, paces.log)
        return True


def pace_solver(limits: Limits) -> cp_model.CpSolver:
    """CP-SAT as it answers these questions soonest, some in a tenth of the time: one search, of the model as it is."""
    solver = solver_of(replace(limits, workers=1, gap=0.0))
    parameters = solver.parameters
    parameters.linearization_level, parameters.cp_model_presolve, parameters.interleave_search = 0, False, False
    return solver


class Paces:
    """What each microbatch takes, in ticks, and the bound from refuted paces, in whole 1/`PARTS` ticks per microbatch."""

    def __init__(self, problem: Problem, aheads: Sequence[int] = (), until: Until = never, known_ns: int = 0) -> None:
        """Of a problem that is no misfit, whose ranks hold nothing but activations, with a lower bound on its makespan.

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
        back_ns = accumulate((hop.total_ns + cost.gradient_ns for hop, cost in zip(hops[1], costs[1:], strict=True)), initial=0)
        self._marks_ns: list[int] = list(map(add, each.gradient_head_ns, back_ns))
        """Per rank, the least time before its first mark."""
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
            marked=0,
        )
        self._microbatches, self._known_ns, self.log = problem.microbatches, known_ns, tuple[str, ...]()
        self.refuted: dict[int, int] = {}  # the pace by `ahead`
        most = (max(LEAST_AHEAD, rounds * slots) for rounds in ROUNDS_AHEAD)
        self.aheads = aheads or tuple(dict.fromkeys(ahead for ahead in most if ahead < problem.microbatches))
        self._last_ns = [count * cost.backward_ns for count in range(1, self.aheads[-1] + 1)]
        """For the last 1, 2, … microbatches, least time from the mark of the first of them to the end (2 of the proof)."""
        for index in range(slots, self.aheads[-1]):
            step = replace(problem, microbatches=index + 1 - slots, path_of=(0,) * (index + 1 - slots), data_parallel=None)
            self._last_ns[index] = max(
                self._last_ns[index], cost.gradient_ns + max(b.value_ns for b in bounds_in_time(step, until))
            )

    def marking(self, rank: int) -> Paces:
        """The same for the marks of this rank, with nothing refuted."""
        other = copy(self)
        other.chain, other.refuted, other.log = replace(self.chain, marked=rank), {}, ()
        return other

    def bound_ns(self, more: Mapping[int, int] | None = None) -> int:
        """The lower bound on the makespan where these are refuted, too."""
        refuted = {**self.refuted, **(more or {})}
        taken = {ahead: [-(-n * pace * self.tick_ns // PARTS) for n in range(1, ahead + 1)] for ahead, pace in refuted.items()}
        most = min(self._microbatches - 1, len(self._last_ns) + max(refuted, default=0))
        to_end_ns = [0]  # by how many microbatches are left
        for left in range(1, most + 1):
            own_ns = self._last_ns[left - 1] if left <= len(self._last_ns) else 0
            after_ns = (min(map(add, each, reversed(to_end_ns[-ahead:]))) for ahead, each in taken.items() if ahead < left)
            to_end_ns.append(max(own_ns, to_end_ns[-1], *after_ns))
        least_ns = [0]  # from the first mark on
        for ahead, pace in refuted.items():
            row = range(most - ahead + 1, most + 1)
            least_ns.append(min((self._microbatches - n) * pace * self.tick_ns // PARTS + to_end_ns[n] for n in row))
        return max(self._known_ns, self._marks_ns[self.chain.marked] + max(least_ns))

    def pace(self, value_ns: int, ahead: int) -> int:
        """The largest pace that, if it is refuted as well, bounds the makespan by no more than this; 0 if there is none."""
        paces = range(PARTS * value_ns // self.tick_ns)
        return max(0, bisect_right(paces, value_ns, key=lambda pace: self.bound_ns({ahead: pace})) - 1)


def _slots(problem: Problem, rank: int) -> int:
    """How many activations fit on the rank that has one stage; 0 where nothing limits them."""
    (stage,) = problem.stages_on(rank)
    limit_bytes, activation_bytes = problem.memory_limit_bytes[rank], problem.stages[stage].activation_bytes
    return 0 if limit_bytes is None or not activation_bytes else limit_bytes // activation_bytes
