"""The modulo schedule: one step of a run without end, whose ops repeat after a period of T nanoseconds.

A problem whose steps overlap (`Updates.is_period`) and T go in; a CP-SAT model comes out that has a solution if and only if some
schedule has a period of at most T, but for what bytes lose in units. A rank's period begins with its first stage's U. In it each op
has a place, by a Boolean for each two, and a time; the whole periods by which its op of step 0 is off are its turn. Times are
bound by differences, each under a Boolean, so that a cycle that takes too long is one conflict, and its Booleans are learned.
Where an op of one rank follows one of another, the turns differ by as many as those Booleans leave. What is held, versions, and
the mode's rule follow from turns and Booleans alone (`schedc.models.modulo_memory`), without times. Links and trunks serve
transfers in the order of the rank that sends them, a wire from several ranks in that of the rank that takes them.

A timetable with period T has one with every longer period: its orders, of ranks and links, are a graph whose longest cycle takes at
most T for each period that it spans (`analysis.simulation.period`), and rules and memory depend on the orders alone. So where
no T is feasible, no smaller one is, and of feasible ones the least is the optimum.

Says twice, as it prunes: how long a microbatch is away from each stage, from F to the start of its backward, which is at least what
it is away from the next stage and the way there and back; and of each op, that what is before it on its rank has ended.

Assumes, without loss: microbatches that are alike run in their order on each stage, steps after steps. Take any schedule, and let
the i-th F, the i-th gradient and the i-th last backward of a stage be those of its i-th microbatch. Each still finds its input, as
the i-th input of any order has come by then; what is held of activations depends on how many have begun and ended, all of equal
bytes; U of a step comes after that many backwards, F of a step after that many F, and pairs of F and backward that are each sorted
lie no more updates apart than the worst pair did. Of stashed versions, all of which equally many F read, the newest are then read
by those under way, which are no more than before. Also, of the slack of one kind of hop in all alike microbatches whole periods can
be left out: what follows then starts earlier by as much, and is held for less; so turns lie within a horizon. Where they may not be
sorted so (`ModuloModel.sorted`), they enter the first stage in order, within a step, as one may be called the other.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, Problem, Resource, Schedule, Versions, groups_of
from schedc.models.modulo_memory import add_memory
from schedc.models.modulo_orders import ModuloNeed, may_fuse, needs_between, needs_of, turned
from schedc.models.modulo_variables import ModuloModel

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ortools.sat.python import cp_model, cp_model_helper

SPARE = 2
"""Turns before that of the first microbatch, where not all microbatches are alike: each starts within two periods of the others."""


class Moment(NamedTuple):
    """A time in a rank's period, that period, and what the time is at least and at most."""

    time: cp_model.IntVar
    period: cp_model.LinearExpr
    least_ns: int
    most_ns: int


def pairs_of(problem: Problem, ranks: Collection[int]) -> int:
    """How many pairs of ops one of these ranks runs in a period, which a model's size follows: a Boolean for each."""
    ops = [len(problem.stages_on(rank)) for rank in range(problem.ranks)]
    for stage, _ in problem.blocks():
        ops[problem.stages[stage].rank] += 3 if problem.split_backward else 2
    return sum(ops[rank] * (ops[rank] - 1) // 2 for rank in ranks)


def build_modulo(problem: Problem, period_ns: int, ranks: Collection[int] | None = None) -> ModuloModel:
    """The model of all schedules whose period is at most this long; whole blocks.

    Args:
        problem: one step of a run without end.
        period_ns: at least 1.
        ranks: which run one op at a time and keep their limits, in order; of the others only the time that ops take counts. Each
            schedule of the problem keeps the model of some, so that what has no solution there has no schedule. None: all.
    """
    from ortools.sat.python import cp_model  # takes long

    ranks = range(problem.ranks) if ranks is None else ranks
    needs = list(needs_of(problem))
    hops_ns = [0] * len(problem.stages)
    sent: dict[Resource, list[ModuloNeed]] = defaultdict(list)
    for need in needs:
        if need.resource is not None:
            sent[need.resource].append(need)
    for transfers in sent.values():
        ways_ns = [need.occupancy_ns + need.latency_ns for need in transfers]
        if len({problem.rank_of(need.producer) for need in transfers}) > 1:
            # The wire serves messages in the order in which they are taken, so they may all be as late as the slowest.
            ways_ns = [max(ways_ns)] * len(ways_ns)
        for need, way_ns in zip(transfers, ways_ns, strict=True):
            hops_ns[need.producer.stage] = max(hops_ns[need.producer.stage], way_ns)
    work_ns = sum(max(stage.durations_ns(kind)) for stage in problem.stages for kind in Kind)
    hops = 2 * max(map(len, problem.paths)) + 2
    turns = 2 * -(-(2 * sum(hops_ns) + work_ns) // period_ns) + (2 if problem.microbatches == 1 else 4) * hops + SPARE
    built = ModuloModel(problem, period_ns, cp_model.CpModel(), turns, ranks)
    for stage, microbatch in built.blocks():
        if may_fuse(problem, stage, microbatch):
            built.fused[Op(Kind.B, stage, microbatch)] = built.model.new_bool_var("")
    for rank in range(problem.ranks):
        _add_rank(built, rank)
    needs = list(needs_between(problem, ranks))
    _add_backwards(built)
    _add_needs(built, needs)
    _add_round_trips(built, needs)
    _add_updates(built)
    _add_order(built)
    add_memory(built)
    # What decides in an order decides the Booleans first: times that are decided creep round a cycle by nanoseconds, for hours.
    literals = [each for each in (*built.before.values(), *built.fused.values()) if isinstance(each, cp_model.IntVar)]
    built.model.add_decision_strategy(literals, cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)
    built.model.add_decision_strategy([*built.turn.values(), *built.lead], cp_model.CHOOSE_FIRST, cp_model.SELECT_MIN_VALUE)
    return built


def minimize_delays(built: ModuloModel) -> None:
    """Make it the objective that the delays of the stages, the largest of each, add up to the least. Under 2BW all are 1."""
    largest = []
    for stage in range(len(built.problem.stages)):
        largest.append(built.model.new_int_var(0, 2 * built.turns + 2, ""))
        for at, microbatch in built.problem.blocks():
            if at == stage:
                forward, update = Op(Kind.F, stage, microbatch), Op(Kind.U, stage, 0)
                delay = built.turn[update] - built.turn[forward] + built.before[forward, update] - 1
                built.model.add(largest[-1] >= delay)
    built.model.minimize(sum(largest))


def _add_rank(built: ModuloModel, rank: int) -> None:
    """A rank runs one op at a time, all of its period within T from the start of its first U."""
    from ortools.sat.python import cp_model

    problem, model, period_ns = built.problem, built.model, built.period_ns
    stages = problem.stages_on(rank) if rank in built.ranks else ()
    kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
    ops = [Op(Kind.U, stage, 0) for stage in stages]
    ops += [Op(kind, stage, microbatch) for stage, microbatch in problem.blocks() if stage in stages for kind in kinds]
    is_first = not any(built.ops)
    built.ops.append(ops)
    built.lead.append(model.new_int_var(-built.turns, built.turns, "") if ops and not is_first else model.new_constant(0))
    if not ops:
        return
    begin = model.new_constant(0) if is_first else model.new_int_var(0, period_ns - 1, "")
    first, *others = ops
    first_ns = built.least_ns(first)
    built.time[first], built.turn[first] = begin, model.new_constant(0)
    for op in others:
        built.time[op], built.turn[op] = model.new_int_var(0, 2 * period_ns, ""), model.new_int_var(-built.turns, built.turns, "")
        built.before[first, op], built.before[op, first] = model.new_constant(1), model.new_constant(0)
        model.add(built.time[op] - begin >= first_ns)
        for length_ns, literals in built.lengths(op):
            built.add_if(built.time[op] - begin <= period_ns - length_ns, literals)
    for one, other in combinations(others, 2):
        literal = model.new_bool_var("")
        built.before[one, other], built.before[other, one] = literal, ~literal
        for earlier, later, is_so in ((one, other, literal), (other, one, ~literal)):
            for length_ns, literals in built.lengths(earlier):
                built.add_if(built.time[later] - built.time[earlier] >= length_ns, [is_so, *literals])
    _add_timeless(built, others)
    weights = [built.least_ns(op) for op in others]
    for at, op in enumerate(others):
        rest, rest_ns = others[:at] + others[at + 1 :], weights[:at] + weights[at + 1 :]
        ahead = cp_model.LinearExpr.weighted_sum([built.before[each, op] for each in rest], rest_ns)
        model.add(built.time[op] - begin - ahead >= first_ns)
        behind = cp_model.LinearExpr.weighted_sum([built.before[op, each] for each in rest], rest_ns)
        model.add(built.time[op] - begin + behind <= period_ns - weights[at])


def _add_timeless(built: ModuloModel, others: Sequence[Op]) -> None:
    """Ops that take no time have an order, too: three at the same time would else be before each other in a cycle.

    W of a fused backward need not be counted: it is before and after the same ops as its B.
    """
    timeless = [op for op in others if not all(ns for ns, _ in (built.lengths(op)[:1] if op.kind is Kind.W else built.lengths(op)))]
    if len(timeless) < 3:
        return
    place = {op: built.model.new_int_var(0, len(timeless) - 1, "") for op in timeless}
    for one, other in combinations(timeless, 2):
        for earlier, later in ((one, other), (other, one)):
            built.add_if(place[later] - place[earlier] >= 1, [built.before[earlier, later]])


def _add_backwards(built: ModuloModel) -> None:
    """W follows B; of a fused one it takes nothing, and is right behind."""
    problem = built.problem
    for stage, microbatch in built.blocks() if problem.split_backward else ():
        backward, weights = Op(Kind.B, stage, microbatch), Op(Kind.W, stage, microbatch)
        built.add_follows(backward, weights)
        if backward in built.fused:
            fused = [built.fused[backward]]
            built.add_if(built.time[weights] - built.time[backward] == problem.duration_ns(Kind.BW, stage, microbatch), fused)
            built.add_if(built.turn[weights] == built.turn[backward], fused)
            for other in built.ops[problem.rank_of(backward)][1:]:
                if other not in (backward, weights):
                    built.add_if(built.before[other, backward] == built.before[other, weights], fused)


def _add_after(
    built: ModuloModel, earlier: Moment, later: Moment, after_ns: int, literals: Sequence[cp_model_helper.Literal] = ()
) -> None:
    """The one is at least so long after the other: the fewer whole periods are between, the more the times must differ."""
    period_ns = built.period_ns
    fewest = -(-(after_ns - later.most_ns + earlier.least_ns) // period_ns)
    # Per number of periods between, from the fewest on, whether the times are enough apart for it.
    enough: list[cp_model.IntVar] = []
    while (apart_ns := after_ns - (fewest + len(enough)) * period_ns) > later.least_ns - earlier.most_ns:
        enough.append(built.model.new_bool_var(""))
        built.add_if(later.time - earlier.time >= apart_ns, [enough[-1], *literals])
    for fewer, more in pairwise(enough):
        built.model.add_implication(fewer, more)
    built.add_if(later.period - earlier.period >= fewest + sum(1 - each for each in enough), literals)


def _add_needs(built: ModuloModel, needs: Sequence[ModuloNeed]) -> None:
    """Each block follows what it needs; a transfer is ready when its producer has ended, and occupies its link alone."""
    problem, model, period_ns = built.problem, built.model, built.period_ns
    sent: dict[Resource, list[ModuloNeed]] = defaultdict(list)

    def moment(op: Op) -> Moment:
        return Moment(built.time[op], built.place(op), 0, 2 * period_ns)

    def add_delayed(need: ModuloNeed) -> None:
        for length_ns, literals in built.lengths(need.producer):
            after_ns = length_ns + need.occupancy_ns + need.latency_ns
            _add_after(built, moment(need.producer), moment(need.consumer), after_ns, literals)

    for need in needs:
        if need.resource is not None:
            sent[need.resource].append(need)
        elif need.latency_ns:
            add_delayed(need)
        else:
            built.add_follows(need.producer, need.consumer)

    for transfers in sent.values():
        by_source = len({problem.rank_of(need.producer) for need in transfers}) == 1
        if len(transfers) == 1 or (by_source and not any(need.occupancy_ns for need in transfers)):
            for need in transfers:
                add_delayed(need)
            if transfers[0].occupancy_ns > period_ns:
                model.add_bool_or([])
            continue
        starts = []
        longest_ns = max(need.occupancy_ns + need.latency_ns for need in transfers)
        for producer, consumer, _, occupancy_ns, latency_ns in transfers:
            # It starts in time of the rank whose order it follows: within a period of what that alone would make it.
            least_ns, most_ns = (0, 4 * period_ns) if by_source else (-longest_ns - 2 * period_ns, 2 * period_ns)
            start = model.new_int_var(least_ns, most_ns, "")
            own = Moment(start, built.place(producer if by_source else consumer), least_ns, most_ns)
            for length_ns, literals in built.lengths(producer):
                if by_source:
                    built.add_if(start - built.time[producer] >= length_ns, literals)
                else:
                    _add_after(built, moment(producer), own, length_ns, literals)
            if by_source:
                _add_after(built, own, moment(consumer), occupancy_ns + latency_ns)
            else:
                model.add(built.time[consumer] - start >= occupancy_ns + latency_ns)
            starts.append((producer if by_source else consumer, start, occupancy_ns))
        for one, other in combinations(starts, 2):
            for (op, start, busy_ns), (op_after, start_after, after_ns) in ((one, other), (other, one)):
                literal = built.before[op, op_after]
                built.add_if(start_after - start >= busy_ns, [literal])
                built.add_if(start - start_after >= after_ns - period_ns, [literal])


def _add_round_trips(built: ModuloModel, needs: Sequence[ModuloNeed]) -> None:
    """How long each microbatch is away: from stage to stage, and between any two of its ops that one rank runs."""
    problem, model, period_ns = built.problem, built.model, built.period_ns
    way_ns = {(need.producer, need.consumer): need.occupancy_ns + need.latency_ns for need in needs}
    for microbatch in range(problem.microbatches):
        path = built.path(microbatch)
        away: cp_model.IntVar | None = None
        for place in reversed(range(len(path))):
            forward, backward = Op(Kind.F, path[place], microbatch), Op(built.backward, path[place], microbatch)
            own = model.new_int_var(0, period_ns * (2 * built.turns + 2), "")
            model.add(own == built.time[backward] - built.time[forward] + period_ns * (built.turn[backward] - built.turn[forward]))
            if away is None:
                model.add(own >= built.least_ns(forward) + way_ns[forward, backward])
            else:
                forward_after, sends = (each._replace(stage=path[place + 1]) for each in (forward, backward))
                ways_ns = built.least_ns(forward) + way_ns[forward, forward_after] + way_ns[sends, backward]
                for length_ns, literals in built.lengths(sends):
                    built.add_if(own - away >= ways_ns + length_ns, literals)
            away = own
        chain = [Op(Kind.F, stage, microbatch) for stage in path] + [
            Op(built.backward, stage, microbatch) for stage in reversed(path)
        ]
        at_ns = [0]
        for producer, consumer in pairwise(chain):
            at_ns.append(at_ns[-1] + built.least_ns(producer) + way_ns[producer, consumer])
        for (index, earlier), (later_index, later) in combinations(enumerate(chain), 2):
            if (later_index > index + 1 or way_ns[earlier, later]) and problem.rank_of(earlier) == problem.rank_of(later):
                _add_turns(built, earlier, later, at_ns[later_index] - at_ns[index])


def _add_turns(built: ModuloModel, earlier: Op, later: Op, after_ns: int) -> None:
    """Two ops of a rank start this long after each other: what that says of their turns, by which is before the other."""
    period_ns, later_ns = built.period_ns, built.least_ns(later)
    others_ns = later_ns + built.least_ns(built.ops[built.problem.rank_of(later)][0])
    least_ns, most_ns = later_ns - period_ns, period_ns - later_ns  # what their times may differ by
    moments = (
        Moment(built.time[earlier], built.turn[earlier], 0, 0),
        Moment(built.time[later], built.turn[later], least_ns, most_ns),
    )
    _add_after(built, *moments, after_ns)
    if_behind, if_before = -(-(after_ns + later_ns) // period_ns), -(-(after_ns + others_ns - period_ns) // period_ns)
    turns = built.turn[later] - built.turn[earlier]
    built.model.add(turns + (if_behind - if_before) * built.before[earlier, later] >= if_behind)


def _add_updates(built: ModuloModel) -> None:
    """U follows all backwards of its step; and the rule of the mode."""
    problem, model, turn, before = built.problem, built.model, built.turn, built.before
    updates = problem.updates
    assert updates is not None
    for stage, microbatch in built.blocks():
        forward, ended, update = Op(Kind.F, stage, microbatch), Op(built.last, stage, microbatch), Op(Kind.U, stage, 0)
        built.add_follows(ended, update)
        if updates.versions is Versions.TWO_BUFFERED:
            model.add(turn[forward] - turn[update] + before[update, forward] >= -1)
        if updates.most_delay is not None:  # one update in each period that begins between them
            model.add(turn[ended] - turn[forward] + before[update, ended] - before[update, forward] <= updates.most_delay)


def _add_order(built: ModuloModel) -> None:
    """Microbatches that are alike run in their order on each stage; where they must enter in order, all do on the first."""
    problem, turn = built.problem, built.turn
    groups = groups_of(problem)
    chains: list[list[Op]] = []
    for group in set(groups):
        alike = [microbatch for microbatch, of in enumerate(groups) if of == group]
        for stage in built.path(group) if built.sorted else ():
            for kind in (Kind.F, built.backward, built.last):
                if kind is not Kind.W or Op(Kind.B, stage, group) not in built.fused:
                    chains.append([Op(kind, stage, each) for each in alike])
        if not built.sorted and not problem.in_order and built.path(group):
            for one, other in pairwise([Op(Kind.F, built.path(group)[0], each) for each in alike]):
                built.add_follows(one, other)
    if problem.in_order:
        for number, path in enumerate(problem.paths):
            if problem.stages[path[0]].rank in built.ranks:
                chains.append([Op(Kind.F, path[0], each) for each, of in enumerate(problem.path_of) if of == number])
    for chain in chains:
        for one, other in combinations(chain, 2):  # within a period of each other
            built.model.add(built.before[one, other] == 1 - (turn[other] - turn[one]))


def orders_of(built: ModuloModel, value: Callable[[cp_model.LinearExpr], int]) -> Schedule:
    """The schedule that a solution is a timetable of."""
    orders = []
    for ops in built.ops:
        own = []
        for op in ops:
            fused = op._replace(kind=Kind.B) in built.fused and bool(value(built.fused[op._replace(kind=Kind.B)]))
            if not (fused and op.kind is Kind.W):
                place = sum(bool(value(built.before[other, op])) for other in ops if other != op)
                own.append((place, -value(built.turn[op]), op._replace(kind=Kind.BW) if fused and op.kind is Kind.B else op))
        orders.append(turned(built.problem, [(step, op) for _, step, op in sorted(own)]))
    return Schedule(orders=tuple(orders))
