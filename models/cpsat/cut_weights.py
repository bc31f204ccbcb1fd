"""The CP-SAT model of all schedules that cut weight gradients wherever they like: a rank does W in whatever time it has left.

F, B and BW are whole; the W of each chain are a fluid, done first in, first out. Its variables: before each whole op of a rank, how
many ticks of each chain's W are done by its start. `start` of a W is its end less its duration, so that windows, precedences, order
and collectives are those of the whole model.

**Every schedule that cuts W alone is a solution.** Name the W of a chain anew: of all the time that a rank spends on them, the
first `duration` ticks are of the first, and so on. What a rank does at any time stays the same. The k-th begins no sooner than k of
the chain's B have ended: else more had been done than these allow. At any time as many W have ended as before, or more, so no more
memory is held. Two ends of a chain lie at least a duration apart, as the order of its W asks.

**A solution is a schedule** where no collectives follow: between two whole ops a rank does what it is said to do there. With the
order given, the least starts and the most that can be done by then are integers: whole ops as early as they can, in what is left W
in the order in which memory asks for them. So parts of one tick are as good as any, and the optimum is an integer. With
collectives, two of a rank's stages may both end as if the last gap were theirs alone: a relaxation.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, Problem, Resource
from schedc.models.blocks import unit_bytes
from schedc.models.cpsat.memory import add_memory_limit
from schedc.models.cpsat.model import add_collectives, add_microbatch_order, add_objective, add_precedences, add_transfers
from schedc.models.cpsat.variables import CpSatVariables, variables_of

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

    from schedc.models.blocks import Blocks
    from schedc.models.start_windows import Windows

MOST_UNITS = 1 << 26
"""What a rank holds is at most this many units in a row; see `models.cpsat.memory`."""


def build_cut(problem: Problem, blocks: Blocks, windows: Windows, lower: int, upper: int) -> cp_model.CpModel:
    """The model of all schedules that cut W alone, of a makespan of at most `upper` ticks, for which the windows are.

    Raises:
        NothingAtMost: `upper` is below `lower` or what every schedule takes.
    """
    variables = variables_of(blocks, windows, lower, upper)
    shared: dict[Resource, list[cp_model.IntervalVar]] = defaultdict(list)
    add_precedences(variables)
    add_transfers(variables, windows, shared)
    add_microbatch_order(variables)
    for rank in sorted({problem.rank_of(op) for op in blocks.duration}):
        on_rank = _Rank(variables, problem, rank, windows)
        on_rank.add_order()
        on_rank.add_releases()
        on_rank.add_memory_limit()
        on_rank.add_ends()
    add_memory_limit(variables, problem, windows.end)  # follows from the ranks' own, and refutes far sooner
    add_collectives(variables, problem, windows.end, shared)
    for intervals in shared.values():
        variables.model.add_no_overlap(intervals)
    add_objective(variables, problem, windows)
    return variables.model


@dataclass(slots=True)
class _Rank:
    """The whole ops of a rank, in which order, and what W is done before each."""

    variables: CpSatVariables
    problem: Problem
    rank: int
    windows: Windows
    chains: list[tuple[Op, ...]] = field(init=False)
    """Of W."""
    ops: list[Op] = field(init=False)
    """Those that are whole."""
    done: dict[tuple[int, Op], cp_model.IntVar] = field(init=False)
    """By the number of a chain and the op: how many ticks of the chain are done when the op starts."""
    nothing: cp_model.IntVar = field(init=False)
    """0: what sums begin with."""
    before: dict[tuple[Op, Op], cp_model.BoolVarT] = field(init=False, default_factory=dict)
    """Whether the first one comes first; of two ops, both ways."""

    def __post_init__(self) -> None:
        blocks, model = self.variables.blocks, self.variables.model
        mine = [chain for chain in blocks.chains if self.problem.rank_of(chain[0]) == self.rank]
        self.chains = [chain for chain in mine if chain[0].kind is Kind.W]
        self.ops = [op for chain in mine if chain[0].kind is not Kind.W for op in chain]
        work = [sum(blocks.duration[op] for op in chain) for chain in self.chains]
        self.done = {(c, op): model.new_int_var(0, work[c], "") for c in range(len(self.chains)) for op in self.ops}
        self.nothing, always = model.new_constant(0), model.new_bool_var("")
        model.add(always == 1)
        for chain in mine:
            for first, second in combinations(chain if chain[0].kind is not Kind.W else (), 2):
                self.before[first, second], self.before[second, first] = always, ~always

    def until(self, chain: int, count: int) -> cp_model.LinearExpr:
        """What the first n W of a chain take together, those that are fused nothing."""
        blocks, fused = self.variables.blocks, self.variables.fused
        ticks = self.nothing + 0
        for op in self.chains[chain][:count]:
            backward = blocks.backward_of(op)
            ticks = ticks + blocks.duration[op] * (~fused[backward] if backward in fused else 1)
        return ticks

    def add_order(self) -> None:
        """One op at a time, and what is done of each chain grows from one to the next, by no more than there is time between."""
        model, start, windows, blocks = self.variables.model, self.variables.start, self.windows, self.variables.blocks
        busy: list[cp_model.IntervalVar] = []
        for op in self.ops:
            apart = model.new_int_var(0, windows.latest[op], "")  # the time before it that is not spent on W
            model.add(apart == start[op] - sum(self.done[c, op] for c in range(len(self.chains))))
            if (fused := self.variables.fused.get(op)) is None:
                busy.append(model.new_fixed_size_interval_var(apart, blocks.duration[op], ""))
                continue
            for length, present in ((blocks.duration[op], ~fused), (blocks.fused[op], fused)):
                busy.append(model.new_optional_fixed_size_interval_var(apart, length, present, ""))
        model.add_no_overlap(busy)
        for chain in blocks.chains:
            if chain[0] in self.ops:
                for first, second in pairwise(chain):
                    self._add_turn(first, second, None)
        for first, second in combinations(self.ops, 2):
            if (first, second) in self.before:
                continue
            order = model.new_bool_var("")
            self.before[first, second], self.before[second, first] = order, ~order
            if windows.earliest[second] + blocks.least(second) > windows.latest[first]:
                model.add(order == 1)
            elif windows.earliest[first] + blocks.least(first) > windows.latest[second]:
                model.add(order == 0)
            self._add_turn(first, second, order)
            self._add_turn(second, first, ~order)

    def _add_turn(self, first: Op, second: Op, order: cp_model.BoolVarT | None) -> None:
        variables, literals = self.variables, [] if order is None else [order]
        later = variables.start[second] + 0
        for c in range(len(self.chains)):
            variables.model.add(self.done[c, second] >= self.done[c, first]).only_enforce_if(literals)
            later = later - self.done[c, second] + self.done[c, first]
        variables.add_after(later, first, only_if=literals)

    def add_releases(self) -> None:
        """Of a chain no more is done than that of the B that have ended."""
        for c, chain in enumerate(self.chains):
            for count, weight in enumerate(chain):
                backward = self.variables.blocks.backward_of(weight)
                for op in self.ops:
                    limit = self.variables.model.add(self.done[c, op] <= self.until(c, count))
                    if op != backward:
                        limit.only_enforce_if(self.before[op, backward])
            for op in self.ops:
                self.variables.model.add(self.done[c, op] <= self.until(c, len(chain)))

    def add_ends(self) -> None:
        """After each op there is time for all that is not done yet; where a reduce-scatter waits, also for its stage alone."""
        model, variables, blocks = self.variables.model, self.variables, self.variables.blocks
        left = [self.until(c, len(chain)) for c, chain in enumerate(self.chains)]
        for op in self.ops:
            rest = sum(left[c] - self.done[c, op] for c in range(len(self.chains)))
            variables.add_after(variables.objective - rest, op)
        for c, chain in enumerate(self.chains):
            last = chain[-1]
            for op in self.ops if blocks.scatter.get(last.stage, 0) else ():
                done = model.new_bool_var("")
                model.add(self.done[c, op] >= left[c]).only_enforce_if(done)
                end = variables.start[last] + blocks.duration[last] - left[c] + self.done[c, op]
                variables.add_after(end, op, only_if=[~done])

    def add_memory_limit(self) -> None:
        """What each op that takes some finds on the rank when it starts fits with what it takes: counted in units of bytes."""
        problem, limit_bytes = self.problem, self.problem.memory_limit_bytes[self.rank]
        stages = [problem.stages[stage] for stage in problem.stages_on(self.rank)]
        most = sum(problem.stages[op.stage].most_bytes for op in self.ops if op.kind is Kind.F)
        if limit_bytes is None or limit_bytes >= most:
            return
        sizes = [
            size for each in stages for size in (each.activation_bytes, each.activation_after_input_bytes, each.recomputed_bytes)
        ]
        unit = unit_bytes([most, *sizes], limit_bytes, MOST_UNITS)
        for taker in self.ops:
            again = problem.stages[taker.stage].recomputed_bytes if taker.kind is not Kind.F else 0
            if taker.kind is Kind.F or again:
                self._add_room(taker, again // unit, limit_bytes // unit, unit)

    def _add_room(self, taker: Op, again: int, limit: int, unit: int) -> None:
        """Room for one op: a microbatch counts what it has from its F, less what B gave back, less what its W did."""
        model = self.variables.model
        held = self.nothing + again
        place = {weight: (c, at) for c, chain in enumerate(self.chains) for at, weight in enumerate(chain)}
        for op in self.ops:
            stage = self.problem.stages[op.stage]
            kept = stage.activation_after_input_bytes // unit if self.problem.split_backward else 0
            begun = 1 if op == taker else self.before[op, taker]
            if op.kind is Kind.F:
                held = held + (stage.activation_bytes // unit) * begun
            elif op != taker:
                held = held - (stage.activation_bytes // unit - kept) * begun
                if kept:
                    held = held - kept * self._all_done(taker, op, *place[op._replace(kind=Kind.W)])
        model.add(held <= limit)

    def _all_done(self, taker: Op, backward: Op, chain: int, at: int) -> cp_model.IntVar:
        """A literal that is true only where the microbatch of the backward has nothing left when the taker starts."""
        model, fused = self.variables.model, self.variables.fused.get(backward)
        done = model.new_bool_var("")
        model.add_implication(done, self.before[backward, taker])
        split = [] if fused is None else [~fused]
        model.add(self.done[chain, taker] >= self.until(chain, at + 1)).only_enforce_if([done, *split])
        weight = self.chains[chain][at]
        self.variables.add_after(self.variables.start[taker], weight, only_if=[done, *split])
        return done
