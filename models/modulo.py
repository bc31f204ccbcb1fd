"""The modulo schedule: one step of a run without end, whose ops repeat after a period of T nanoseconds.

A problem whose steps overlap (`Updates.is_period`) and T go in; a CP-SAT model comes out that has a solution if and only if some
schedule has a period of at most T, but for what bytes lose in units. Each op of step 0 has a time. Two ops of a rank meet in a
*round*: the other runs k periods after the one has ended, and ends before the one runs again, k + 1 periods later. A Boolean for
each k says whether it is that or more. So all that is said of times is a difference of two, always or under one Boolean: a cycle
that takes too long is one conflict, and its Booleans are learned. What is held, versions, and the mode's rule follow from rounds
alone (`schedc.models.modulo_memory`), which are few (`schedc.models.modulo_ranges`). Links and trunks serve transfers in the rounds
of the rank that sends them, a wire from several ranks in those of the rank that takes them.

A timetable with period T has one with every longer period: its orders, of ranks and links, are a graph whose longest cycle takes at
most T for each period that it spans (`analysis.simulation.period`), and rules and memory depend on the orders alone. So where
no T is feasible, no smaller one is, and of feasible ones the least is the optimum.

Assumes, without loss: microbatches that are alike run in their order on each stage, steps after steps. Take any schedule, and let
the i-th F, the i-th gradient and the i-th last backward of a stage be those of its i-th microbatch. Each still finds its input, as
the i-th input of any order has come by then; what is held of activations depends on how many have begun and ended, all of equal
bytes; U of a step comes after that many backwards, F of a step after that many F, and pairs of F and backward that are each sorted
lie no more updates apart than the worst pair did. Of stashed versions, all of which equally many F read, the newest are then read
by those under way, which are no more than before. Where fused and split backwards mix (`ModuloModel.is_mixed`), the last backwards
are not those of their B in this order, so W runs in any. Then rules and versions are said of how many have ended: a relaxation,
which all schedules keep. With `is_strict` each microbatch keeps them by itself, as a schedule must.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING

from schedc.ir import Kind, Op, Problem, Resource, Schedule, Versions, groups_of
from schedc.models.modulo_memory import add_memory
from schedc.models.modulo_orders import ModuloNeed, may_fuse, needs_between, turned
from schedc.models.modulo_ranges import RoundRanges
from schedc.models.modulo_variables import ModuloModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ortools.sat.python import cp_model


def pairs_of(problem: Problem, ranks: Collection[int]) -> int:
    """How many pairs of ops one of these ranks runs in a period, which a model's size follows: a Boolean for each, or a few."""
    ops = [len(problem.stages_on(rank)) for rank in range(problem.ranks)]
    for stage, _ in problem.blocks():
        ops[problem.stages[stage].rank] += 3 if problem.split_backward else 2
    return sum(ops[rank] * (ops[rank] - 1) // 2 for rank in ranks)


def build_modulo(problem: Problem, period_ns: int, ranks: Collection[int] | None = None, *, is_strict: bool = False) -> ModuloModel:
    """The model of all schedules whose period is at most this long; whole blocks.

    Args:
        problem: one step of a run without end.
        period_ns: at least 1.
        ranks: which run one op at a time and keep their limits, in order; of the others only the time that ops take counts. Each
            schedule of the problem keeps the model of some, so that what has no solution there has no schedule. None: all.
        is_strict: where fused and split backwards mix, each microbatch keeps the rules by itself. What has no solution may have a
            schedule then.
    """
    from ortools.sat.python import cp_model  # takes long

    built = ModuloModel(problem, period_ns, cp_model.CpModel(), range(problem.ranks) if ranks is None else ranks, is_strict)
    for stage, microbatch in built.blocks():
        if may_fuse(problem, stage, microbatch):
            built.fused[Op(Kind.B, stage, microbatch)] = built.model.new_bool_var("")
    for rank in range(problem.ranks):
        stages = problem.stages_on(rank) if rank in built.ranks else ()
        ops = [Op(Kind.U, stage, 0) for stage in stages]
        built.ops.append(ops + [Op(kind, *block) for block in built.blocks() if block[0] in stages for kind in built.kinds])
    needs = list(needs_between(problem, built.ranks))
    links = _links(problem, needs)
    ranges = RoundRanges(built, needs, {need for transfers in links for need in transfers})
    if not ranges.is_possible:
        built.model.add_bool_or([])
        return built
    first = next(op for ops in built.ops for op in ops)
    for ops in built.ops:
        for op in ops:
            least_ns, most_ns = ranges.span_ns(first, op)
            built.time[op] = built.model.new_int_var(least_ns, most_ns, "")
        for one, other in combinations(ops, 2):
            built.meet(one, other, *ranges.rounds(one, other))
            built.add_apart((one, other), (built.time[one], built.end(one)), (built.time[other], built.end(other)))
        _add_timeless(built, ops)
    _add_needs(built, needs, links)
    _add_backwards(built)
    _add_updates(built)
    _add_order(built)
    add_memory(built)
    # What decides in an order decides the Booleans first: times that are decided creep round a cycle by nanoseconds, for hours.
    literals = [each for rounds in built.met.values() for each in rounds.later]
    built.model.add_decision_strategy([*built.fused.values(), *literals], cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)
    return built


def minimize_delays(built: ModuloModel) -> None:
    """Make it the objective that the delays of the stages, the largest of each, add up to the least. Under 2BW all are 1."""
    largest = []
    for stage in range(len(built.problem.stages)):
        largest.append(built.model.new_int_var(0, 1 << 20, ""))
        for at, microbatch in built.problem.blocks():
            if at == stage:
                built.model.add(largest[-1] >= built.round(Op(Kind.F, stage, microbatch), Op(Kind.U, stage, 0)))
    built.model.minimize(sum(largest))


def _links(problem: Problem, needs: Sequence[ModuloNeed]) -> list[list[ModuloNeed]]:
    """The messages that wait for each other, by their link or trunk."""
    sent: dict[Resource, list[ModuloNeed]] = defaultdict(list)
    for need in needs:
        if need.resource is not None:
            sent[need.resource].append(need)
    return [
        transfers
        for transfers in sent.values()
        if len({problem.rank_of(need.producer) for need in transfers}) > 1 or any(need.occupancy_ns for need in transfers)
    ]


def _add_timeless(built: ModuloModel, ops: Sequence[Op]) -> None:
    """Ops that take no time have an order, too: three at the same time would else be before each other in a cycle.

    They have places, of as many as they are in a round. W of a fused backward need not be counted: it is before and after the same
    ops as its B.
    """
    timeless = [op for op in ops if not all(ns for ns, _ in (built.lengths(op)[:1] if op.kind is Kind.W else built.lengths(op)))]
    count = len(timeless)
    if count < 3:
        return
    far = count * (1 << 10)
    place = {op: built.model.new_int_var(-far, far, "") for op in timeless}
    for one, other in combinations(timeless, 2):
        apart = place[other] - place[one] - count * built.round(one, other)
        built.model.add(apart >= 1)
        built.model.add(apart <= count - 1)


def _add_needs(built: ModuloModel, needs: Sequence[ModuloNeed], links: Sequence[Sequence[ModuloNeed]]) -> None:
    """Each block follows what it needs; a transfer is ready when its producer has ended, and occupies its link alone."""
    problem, time = built.problem, built.time
    for need in needs:
        built.model.add(time[need.consumer] - built.end(need.producer) >= need.occupancy_ns + need.latency_ns)
        if problem.rank_of(need.producer) == problem.rank_of(need.consumer):  # an order, also where neither takes time
            built.model.add(built.round(need.producer, need.consumer) >= 0)
    for transfers in links:
        by_source = len({problem.rank_of(need.producer) for need in transfers}) == 1
        if any(need.occupancy_ns > built.period_ns for need in transfers):
            built.model.add_bool_or([])
        if len(transfers) == 1:
            continue
        served = []
        for producer, consumer, _, occupancy_ns, latency_ns in transfers:
            least_ns, most_ns = time[producer].proto.domain[0], time[consumer].proto.domain[-1]
            start = built.model.new_int_var(least_ns, max(least_ns, most_ns), "")
            built.model.add(start - built.end(producer) >= 0)
            built.model.add(time[consumer] - start >= occupancy_ns + latency_ns)
            served.append((producer if by_source else consumer, (start, start + occupancy_ns)))
        for (one, span), (other, other_span) in combinations(served, 2):
            built.add_apart((one, other), span, other_span)


def _add_backwards(built: ModuloModel) -> None:
    """W follows B; of a fused one it takes nothing, and is right behind."""
    problem, time = built.problem, built.time
    for stage, microbatch in built.blocks() if problem.split_backward else ():
        backward, weights = Op(Kind.B, stage, microbatch), Op(Kind.W, stage, microbatch)
        built.model.add(time[weights] - built.end(backward) >= 0)
        built.model.add(built.round(backward, weights) >= 0)
        if backward in built.fused:
            fused = [built.fused[backward]]
            built.add_if(time[weights] - time[backward] == problem.duration_ns(Kind.BW, stage, microbatch), fused)
            built.add_if(built.round(backward, weights) == 0, fused)
            for other in built.ops[problem.rank_of(backward)]:
                if other not in (backward, weights):
                    built.add_if(built.round(backward, other) == built.round(weights, other), fused)


def _add_updates(built: ModuloModel) -> None:
    """U follows all backwards of its step; and the rule of the mode."""
    problem, time = built.problem, built.time
    updates = problem.updates
    assert updates is not None
    behind: dict[int, list[cp_model.LinearExpr]] = defaultdict(list)
    late: dict[int, list[cp_model.LinearExpr]] = defaultdict(list)
    for stage, microbatch in built.blocks():
        forward, ended, update = Op(Kind.F, stage, microbatch), Op(built.last, stage, microbatch), Op(Kind.U, stage, 0)
        behind[stage].append(built.round(ended, update))
        if updates.versions is Versions.TWO_BUFFERED:
            built.model.add(time[forward] - time[update] >= problem.stages[stage].update_ns - 2 * built.period_ns)
            built.model.add(built.round(forward, update) <= 1)
        if updates.most_delay is not None:  # one update in each round of it that begins between them
            late[stage].append(built.round(update, ended) - built.round(update, forward) - updates.most_delay)
    for stage, rounds in behind.items():
        each = [[sum(rounds)], [sum(late[stage])]] if built.is_mixed and not built.is_strict else [rounds, late[stage]]
        for one in each[0]:
            built.model.add(one >= 0)
        for one in each[1]:
            built.model.add(one <= 0)


def _add_order(built: ModuloModel) -> None:
    """Microbatches that are alike run in their order on each stage; where they must enter in order, all do on the first."""
    problem = built.problem
    groups = groups_of(problem)
    chains: list[list[Op]] = []
    for group in set(groups):
        alike = [microbatch for microbatch, of in enumerate(groups) if of == group]
        for stage in built.path(group):
            for kind in built.kinds:
                if kind is not Kind.W or Op(Kind.B, stage, group) not in built.fused:
                    chains.append([Op(kind, stage, each) for each in alike])
    if problem.in_order:
        for number, path in enumerate(problem.paths):
            if problem.stages[path[0]].rank in built.ranks:
                chains.append([Op(Kind.F, path[0], each) for each, of in enumerate(problem.path_of) if of == number])
    for chain in chains:
        for one, other in combinations(chain, 2):  # within a period of each other
            built.model.add(built.round(one, other) == 0)


def orders_of(built: ModuloModel, value: Callable[[cp_model.LinearExpr], int]) -> Schedule:
    """The schedule that a solution is a timetable of."""
    orders = []
    for ops in built.ops:
        own = []
        turns = {op: value(built.round(ops[0], op)) if op != ops[0] else 0 for op in ops}
        for op in ops:
            fused = op._replace(kind=Kind.B) in built.fused and bool(value(built.fused[op._replace(kind=Kind.B)]))
            if not (fused and op.kind is Kind.W):
                place = sum(value(built.round(other, op)) == turns[op] - turns[other] for other in ops if other != op)
                own.append((place, -turns[op], op._replace(kind=Kind.BW) if fused and op.kind is Kind.B else op))
        orders.append(turned(built.problem, [(step, op) for _, step, op in sorted(own)]))
    return Schedule(orders=tuple(orders))
