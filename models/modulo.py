"""The modulo schedule: one step of a run without end, whose ops repeat after a period of T nanoseconds.

A problem whose steps overlap (`Updates.is_period`) and T go in; a CP-SAT model comes out that has a solution if some schedule has
a period of at most T. The variable of an op is when it starts in step 0; in step k it starts k T later. So a start is a residue,
which says what else its rank does then, and a number of whole periods, its turn. Ranks, links and trunks serve one thing at a time
modulo T; needs, the mode's rule on updates, and what is held follow from starts and turns; all of it is linear, as T is given.

A timetable with period T has one with every longer period: its orders, of ranks and links, are a graph whose longest cycle takes at
most T for each period that it spans (`analysis.simulation.period`), and rules and memory depend on the orders alone. So where
no T is feasible, no smaller one is, and of feasible ones the least is the optimum.

A transfer may wait here, and be passed by another; a link serves them as they come. So the model is a relaxation, and what it finds
is timed again, unless it is built `in_turn`: then transfers of a link are in the order in which its rank makes them, and those of
a wire into a rank, from several, in the order in which it takes them.

Assumes, without loss: microbatches that are alike run in their order on each stage, steps after steps. Take any schedule, and let
the i-th F, the i-th gradient and the i-th last backward of a stage be those of its i-th microbatch. Each still finds its input, as
the i-th input of any order has come by then; what is held of activations depends on how many have begun and ended, all of equal
bytes; U of a step comes after that many backwards, F of a step after that many F, and pairs of F and backward that are each sorted
lie no more updates apart than the worst pair did. Of stashed versions, all of which equally many F read, the newest are then read
by those under way, which are no more than before. Also, of the slack of one kind of hop in all alike microbatches whole periods can
be left out: what follows then starts earlier by as much, and is held for less; so starts lie within a horizon.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from schedc.ir import Kind, Op, Problem, Resource, Schedule, Versions, groups_of
from schedc.models.blocks import unit_bytes
from schedc.models.periodic import held_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ortools.sat.python import cp_model

SPARE = 2
"""Turns before that of the first microbatch, where not all microbatches are alike: each starts within two periods of the others."""
MOST_SUM = 1 << 60
"""CP-SAT adds in 64 bits, and refuses a model whose sums may be larger."""
MOST_UNITS = 1 << 30
"""What is held is counted in units, so that a rank holds at most this many."""


class ModuloNeed(NamedTuple):
    """A block starts after another of its microbatch, by way of a link or trunk (None: both are on one rank)."""

    producer: Op
    consumer: Op
    resource: Resource | None
    occupancy_ns: int
    latency_ns: int


class Stay(NamedTuple):
    """Bytes that a stage holds, from the start of an op to some moment."""

    begin: Op
    end: cp_model.LinearExpr
    held_bytes: int


@dataclass(slots=True)
class ModuloModel:
    """The model and what is read back of it."""

    problem: Problem
    period_ns: int
    model: cp_model.CpModel
    turns: int
    """Each op starts before this many periods are over."""
    start: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """When each op of step 0 starts; B stands for BW where it is fused, and U has microbatch 0."""
    residue: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    turn: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    fused: dict[Op, cp_model.IntVar] = field(default_factory=dict)
    """Per B that may be fused, whether it is."""
    delay: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    """Per stage and microbatch."""

    @property
    def sorted(self) -> bool:
        """Whether alike microbatches run in order: not where fused and split backwards mix, and when a backward has ended matters.

        It does where stashed versions count, and where a mode's rule says how updates and microbatches follow each other: sorting
        the last backwards apart from their forwards could move a W behind an update.
        """
        updates, stages = self.problem.updates, self.problem.stages
        assert updates is not None
        counts = updates.versions is not Versions.STASH or any(stage.version_bytes for stage in stages)
        return not (counts and self.fused and self.problem.microbatches > 1)

    def moment(self, turns: int = 0) -> tuple[cp_model.IntVar, cp_model.IntVar, cp_model.IntVar]:
        """A new moment: when, its residue, its turn, which is at most `turns`, or else one in which ops start."""
        residue = self.model.new_int_var(0, self.period_ns - 1, "")
        turn = self.model.new_int_var(0, turns or self.turns, "")
        when = self.model.new_int_var(0, self.period_ns * ((turns or self.turns) + 1) - 1, "")
        self.model.add(when == residue + self.period_ns * turn)
        return when, residue, turn

    def lengths(self, op: Op) -> list[tuple[int, list[cp_model.BoolVarT]]]:
        """What the op takes, by what its backward is; a fused W takes none."""
        problem, backward = self.problem, op._replace(kind=Kind.B)
        if op.kind is Kind.U:
            return [(problem.stages[op.stage].update_ns, [])]
        own_ns = problem.duration_ns(op.kind, op.stage, op.microbatch)
        if op.kind not in (Kind.B, Kind.W) or backward not in self.fused:
            return [(own_ns, [])]
        fused = self.fused[backward]
        together_ns = problem.duration_ns(Kind.BW, op.stage, op.microbatch) if op.kind is Kind.B else 0
        return [(own_ns, [~fused]), (together_ns, [fused])]

    def least_ns(self, op: Op) -> int:
        """What the op takes at least."""
        return min(length_ns for length_ns, _ in self.lengths(op))

    def add_after(self, later: cp_model.LinearExpr, op: Op) -> None:
        """The moment is no earlier than the end of the op of step 0."""
        for length_ns, literals in self.lengths(op):
            added = self.model.add(later >= self.start[op] + length_ns)
            if literals:
                added.only_enforce_if(literals)


def may_fuse(problem: Problem, stage: int, microbatch: int) -> bool:
    """Whether a backward may be split, and takes less time fused; else one of the two does all that the other does."""
    b_ns, w_ns, bw_ns = (problem.duration_ns(kind, stage, microbatch) for kind in (Kind.B, Kind.W, Kind.BW))
    return problem.split_backward and bw_ns < b_ns + w_ns


def needs_of(problem: Problem) -> Iterator[ModuloNeed]:
    """Along the path of each microbatch of a step, and back; B stands for the whole backward unless the problem fuses all."""
    backward = Kind.B if problem.split_backward else Kind.BW
    for microbatch in range(problem.microbatches):
        path = problem.path(microbatch)
        yield ModuloNeed(Op(Kind.F, path[-1], microbatch), Op(backward, path[-1], microbatch), None, 0, 0)
        for before, after in pairwise(path):
            for kind, source, destination in ((Kind.F, before, after), (backward, after, before)):
                producer, consumer = Op(kind, source, microbatch), Op(kind, destination, microbatch)
                ranks = problem.rank_of(producer), problem.rank_of(consumer)
                if ranks[0] == ranks[1]:
                    yield ModuloNeed(producer, consumer, None, 0, 0)
                else:
                    link = problem.link(*ranks)
                    occupancy_ns = link.occupancy_ns(problem.message_bytes(producer))
                    yield ModuloNeed(producer, consumer, Resource.of_link(link), occupancy_ns, link.latency_ns)


def build_modulo(problem: Problem, period_ns: int, *, in_turn: bool = False) -> ModuloModel:
    """The model of all schedules whose period is at most this long; whole blocks.

    Args:
        problem: one step of a run without end.
        period_ns: at least 1.
        in_turn: whether a link, trunk or wire serves transfers in the order of its rank, as it does, or in any.
    """
    from ortools.sat.python import cp_model  # takes long

    groups = groups_of(problem)
    needs = list(needs_of(problem))
    hops_ns = [0] * len(problem.stages)
    for need in needs:
        hops_ns[need.producer.stage] = max(hops_ns[need.producer.stage], need.occupancy_ns + need.latency_ns)
    work_ns = sum(max(stage.durations_ns(kind)) for stage in problem.stages for kind in Kind)
    hops = 2 * max(map(len, problem.paths)) + 2
    turns = 2 * -(-(2 * sum(hops_ns) + work_ns) // period_ns) + (2 if problem.microbatches == 1 else 4) * hops + SPARE
    built = ModuloModel(problem, period_ns, cp_model.CpModel(), turns)
    for stage, microbatch in problem.blocks():
        kinds = (Kind.F, Kind.B, Kind.W) if problem.split_backward else (Kind.F, Kind.BW)
        for op in (Op(kind, stage, microbatch) for kind in kinds):
            built.start[op], built.residue[op], built.turn[op] = built.moment()
        if may_fuse(problem, stage, microbatch):
            built.fused[Op(Kind.B, stage, microbatch)] = built.model.new_bool_var("")
    for stage in range(len(problem.stages)):
        op = Op(Kind.U, stage, 0)
        built.start[op], built.residue[op], built.turn[op] = built.moment()
    first = Op(Kind.F, problem.path(0)[0], 0)
    built.model.add(built.start[first] == (0 if built.sorted and len(set(groups)) == 1 else SPARE * period_ns))
    _add_ranks(built)
    _add_needs(built, needs, in_turn=in_turn)
    ended = {block: _last_end(built, *block) for block in problem.blocks()}
    _add_updates(built, ended)
    _add_order(built, groups)
    _add_memory(built, ended, one_group=len(set(groups)) == 1)
    return built


def minimize_delays(built: ModuloModel) -> None:
    """Make it the objective that the delays of the stages, the largest of each, add up to the least."""
    largest = []
    for stage in range(len(built.problem.stages)):
        own = [delay for (at, _), delay in built.delay.items() if at == stage]
        if own:
            largest.append(built.model.new_int_var(0, built.turns, ""))
            for each in own:
                built.model.add(largest[-1] >= each)
    built.model.minimize(sum(largest))


def _no_overlap(built: ModuloModel, intervals: Sequence[tuple[cp_model.IntVar, int, cp_model.BoolVarT | None]]) -> None:
    """One at a time, modulo the period: what starts at a residue, and again one period later, within two periods."""
    made = []
    for residue, length_ns, only_if in intervals:
        for begin in (residue, residue + built.period_ns):
            if only_if is None:
                made.append(built.model.new_fixed_size_interval_var(begin, length_ns, ""))
            else:
                made.append(built.model.new_optional_fixed_size_interval_var(begin, length_ns, only_if, ""))
    built.model.add_no_overlap(made)


def _add_ranks(built: ModuloModel) -> None:
    """A rank runs one op at a time; W follows B."""
    on_rank: dict[int, list[tuple[cp_model.IntVar, int, cp_model.BoolVarT | None]]] = defaultdict(list)
    for op, residue in built.residue.items():
        vanishes = op.kind is Kind.W and op._replace(kind=Kind.B) in built.fused
        for length_ns, literals in built.lengths(op)[: 1 if vanishes else None]:
            on_rank[built.problem.rank_of(op)].append((residue, length_ns, literals[0] if literals else None))
        if op.kind is Kind.W:
            backward = op._replace(kind=Kind.B)
            built.add_after(built.start[op], backward)
            if backward in built.fused:  # it is nowhere then: right behind
                together_ns = built.problem.duration_ns(Kind.BW, op.stage, op.microbatch)
                built.model.add(built.start[op] == built.start[backward] + together_ns).only_enforce_if(built.fused[backward])
    for intervals in on_rank.values():
        _no_overlap(built, intervals)


def _add_needs(built: ModuloModel, needs: Sequence[ModuloNeed], *, in_turn: bool) -> None:
    """Each block follows what it needs; a transfer is ready when its producer has ended, and occupies its link alone."""
    model = built.model
    sent: dict[Resource, list[tuple[ModuloNeed, cp_model.IntVar, cp_model.IntVar]]] = defaultdict(list)
    for need in needs:
        producer, consumer, resource, occupancy_ns, latency_ns = need
        if resource is None or (occupancy_ns == 0 and not in_turn):
            built.add_after(built.start[consumer] - latency_ns, producer)
            continue
        send, residue, _ = built.moment()
        built.add_after(send, producer)
        model.add(built.start[consumer] >= send + occupancy_ns + latency_ns)
        sent[resource].append((need, send, residue))
    for transfers in sent.values():
        _no_overlap(built, [(residue, need.occupancy_ns, None) for need, _, residue in transfers])
        if in_turn:
            one_source = len({built.problem.rank_of(need.producer) for need, _, _ in transfers}) == 1
            for (need, send, _), (other, send_other, _) in combinations(transfers, 2):
                ops = (need.producer, other.producer) if one_source else (need.consumer, other.consumer)
                apart = model.new_int_var(-built.turns - 1, built.turns, "")  # by how many periods the one is behind, rounded down
                for first, second, first_ns, second_ns in (
                    (built.start[ops[0]], built.start[ops[1]], built.least_ns(ops[0]), built.least_ns(ops[1])),
                    (send, send_other, need.occupancy_ns, other.occupancy_ns),
                ):
                    model.add(first - second >= apart * built.period_ns + second_ns)
                    model.add(first - second <= (apart + 1) * built.period_ns - first_ns)


def _last_end(built: ModuloModel, stage: int, microbatch: int) -> cp_model.LinearExpr:
    """When all of the backward has ended, or later."""
    last = Op(Kind.W if built.problem.split_backward else Kind.BW, stage, microbatch)
    length_ns, literals = built.lengths(last)[0]
    if not literals:
        return built.start[last] + length_ns
    ended = built.model.new_int_var(0, (built.turns + 2) * built.period_ns, "")
    built.add_after(ended, last)  # of a fused one, W starts when it ends
    return ended


def _add_updates(built: ModuloModel, ended: Mapping[tuple[int, int], cp_model.LinearExpr]) -> None:
    """U follows all backwards of its step; what F reads; and the rule of the mode."""
    problem, model, period_ns = built.problem, built.model, built.period_ns
    updates = problem.updates
    assert updates is not None
    for (stage, microbatch), last in ended.items():
        update, forward = built.start[Op(Kind.U, stage, 0)], built.start[Op(Kind.F, stage, microbatch)]
        update_ns, forward_ns = problem.stages[stage].update_ns, problem.duration_ns(Kind.F, stage, microbatch)
        model.add(update >= last)
        if updates.versions is Versions.TWO_BUFFERED:
            model.add(forward + 2 * period_ns >= update + update_ns)
            continue
        # F of step k reads what U of step k - 1 - delay made: that one has ended, and the next has not begun.
        delay = built.delay[stage, microbatch] = model.new_int_var(0, built.turns, "")
        model.add(forward >= update + update_ns - (1 + delay) * period_ns)
        model.add(forward + forward_ns <= update - delay * period_ns)
        if updates.most_delay is not None:
            model.add(update + (updates.most_delay - delay) * period_ns >= last)


def _add_order(built: ModuloModel, groups: Sequence[int]) -> None:
    """Microbatches that are alike run in their order on each stage; where they must enter in order, all do on the first."""
    problem, period_ns = built.problem, built.period_ns
    chains: list[list[Op]] = []
    for group in set(groups) if built.sorted else ():
        alike = [microbatch for microbatch, of in enumerate(groups) if of == group]
        for stage in problem.path(group):
            kinds = [kind for kind in Kind if Op(kind, stage, group) in built.start and kind is not Kind.U]
            fusing = Op(Kind.B, stage, group) in built.fused
            chains += [[Op(kind, stage, each) for each in alike] for kind in kinds if kind is not Kind.W or not fusing]
    if problem.in_order:
        for number, path in enumerate(problem.paths):
            chains.append([Op(Kind.F, path[0], each) for each, of in enumerate(problem.path_of) if of == number])
    for chain in chains:
        for before, after in pairwise(chain):
            built.add_after(built.start[after], before)
        if len(chain) > 1:
            built.add_after(built.start[chain[0]] + period_ns, chain[-1])


def _add_memory(built: ModuloModel, ended: Mapping[tuple[int, int], cp_model.LinearExpr], *, one_group: bool) -> None:
    """On each rank, what is held never exceeds the limit.

    Of a thing that is held from residue b of one turn to residue e of another there are, at residue t, as many as the turns differ,
    one more from b on and one less from e on. So a rank's limit less what is held as the residues begin is what intervals from b to
    the end of the period, and from its beginning to e, share.
    """
    problem, period_ns = built.problem, built.period_ns
    updates = problem.updates
    assert updates is not None
    for rank, limit_bytes in enumerate(problem.memory_limit_bytes):
        if limit_bytes is None:
            continue
        stages = [stage for stage in problem.stages_on(rank) if any(stage in path for path in problem.paths)]
        stays = [stay for stage in stages for stay in _activations(built, stage, ended)]
        versions = {stage: problem.stages[stage].version_bytes for stage in stages if problem.stages[stage].version_bytes}
        if updates.versions is Versions.STASH:
            for stage, size_bytes in versions.items():
                # The version that U of step 0 replaces is there until then, and on until its last reader has ended.
                replaced, gone = Op(Kind.U, stage, 0), built.moment(2 * built.turns)[0]
                built.model.add(gone >= built.start[replaced])
                for (at, microbatch), last in ended.items():
                    if at == stage:
                        built.model.add(gone >= last + (built.delay[at, microbatch]) * period_ns)
                stays.append(Stay(replaced, gone, size_bytes))
        elif updates.versions is Versions.TWO_BUFFERED:
            limit_bytes -= sum(versions.values())
        if limit_bytes < 0:
            built.model.add_bool_or([])
            continue
        stays = [stay for stay in stays if stay.held_bytes]
        if one_group and built.sorted and len(stages) == 1:
            _add_counts(built, stages[0], limit_bytes)
        _add_cumulative(built, stays, limit_bytes)


def _activations(built: ModuloModel, stage: int, ended: Mapping[tuple[int, int], cp_model.LinearExpr]) -> Iterator[Stay]:
    """What F holds until B ends, or until W does; and what a recomputation holds from B on."""
    problem, costs = built.problem, built.problem.stages[stage]
    kept = costs.activation_after_input_bytes if problem.split_backward else 0
    again = costs.recomputed_bytes
    old = max(0, kept - again)  # of what W needs, what F took
    for at, microbatch in ended:
        if at != stage:
            continue
        forward = Op(Kind.F, stage, microbatch)
        backward = Op(Kind.B if problem.split_backward else Kind.BW, stage, microbatch)
        sent: cp_model.LinearExpr = built.start[backward] + built.lengths(backward)[0][0]
        if backward in built.fused:
            sent = built.model.new_int_var(0, (built.turns + 1) * built.period_ns - 1, "")
            built.add_after(sent, backward)
        yield Stay(forward, sent, costs.activation_bytes - old)
        yield Stay(forward, ended[at, microbatch], old)
        yield Stay(backward, sent, again - kept + old)
        yield Stay(backward, ended[at, microbatch], kept - old)


def _add_counts(built: ModuloModel, stage: int, limit_bytes: int) -> None:
    """Where a rank has one stage and microbatches are alike: an F starts once enough of those before it are done.

    At most some are unsent, between the start of F and the end of the gradient: they all are so when the next backward starts,
    which may take more bytes; and under stash their F read at least one version for each step's microbatches. Where W keeps some
    bytes, one of the largest pairs of unsent and unfinished microbatches that fit must be met.
    """
    problem, costs = built.problem, built.problem.stages[stage]
    updates, count = problem.updates, problem.microbatches
    assert updates is not None
    if not costs.activation_bytes:
        return
    size_bytes = costs.version_bytes if updates.versions is Versions.STASH else 0
    most = (limit_bytes - costs.recomputed_bytes) // costs.activation_bytes
    while most > 0 and most * costs.activation_bytes + (-(-most // count) - 1) * size_bytes > limit_bytes:
        most -= 1
    if most <= 0:
        built.model.add_bool_or([])
        return
    backward, split = (Kind.B, True) if problem.split_backward else (Kind.BW, False)

    def add(microbatch: int, kind: Kind, back: int, only_if: Sequence[cp_model.BoolVarT] = ()) -> None:
        """F starts after this op of the microbatch that many before it."""
        turn, other = divmod(microbatch - back, count)
        begin = built.start[Op(Kind.F, stage, microbatch)] - turn * built.period_ns
        for length_ns, literals in built.lengths(Op(kind, stage, other)):
            added = built.model.add(begin >= built.start[Op(kind, stage, other)] + length_ns)
            if literals or only_if:
                added.only_enforce_if([*literals, *only_if])

    kept = costs.activation_after_input_bytes
    pairs = held_pairs(costs.activation_bytes, kept, limit_bytes, built.turns * count) if 0 < kept <= costs.activation_bytes else []
    for microbatch in range(count):
        add(microbatch, backward, most)
        if split and pairs and not built.fused:
            chosen = [built.model.new_bool_var("") for _ in pairs]
            for literal, (unsent, unfinished) in zip(chosen, pairs, strict=True):
                add(microbatch, Kind.B, unsent, [literal])
                add(microbatch, Kind.W, unfinished, [literal])
            built.model.add_bool_or(chosen)


def _add_cumulative(built: ModuloModel, stays: Sequence[Stay], limit_bytes: int) -> None:
    model, period_ns = built.model, built.period_ns
    if not stays:
        return
    limit_bytes = min(limit_bytes, 2 * built.turns * sum(stay.held_bytes for stay in stays))  # of each that many at most
    unit = unit_bytes([stay.held_bytes for stay in stays], limit_bytes, MOST_UNITS)
    limit, total = limit_bytes // unit, sum(stay.held_bytes // unit for stay in stays)
    intervals, demands, whole, lives = [], [], [], []
    for begin, end, held_bytes in stays:
        held = held_bytes // unit
        gone, residue, turn = built.moment(2 * built.turns)
        model.add(gone >= end)
        start = built.residue[begin]
        intervals += [
            model.new_interval_var(start, period_ns - start, period_ns, ""),
            model.new_interval_var(0, residue, residue, ""),
        ]
        demands += [held, held]
        whole.append(held * (turn - built.turn[begin] - 1))
        lives.append(held * (gone - built.start[begin]))
    room = model.new_int_var(0, 2 * total, "")
    model.add(room <= limit - sum(whole))
    model.add_cumulative(intervals, demands, room)
    if max(limit, 4 * built.turns * total) * period_ns < MOST_SUM:
        model.add(sum(lives) <= limit * period_ns)


def orders_of(built: ModuloModel, value: Callable[[cp_model.IntVar], int]) -> Schedule:
    """The schedule that a solution is a timetable of."""
    starts = {}
    for op, start in built.start.items():
        backward = op._replace(kind=Kind.B)
        fused = backward in built.fused and bool(value(built.fused[backward]))
        if not (fused and op.kind is Kind.W):
            starts[op._replace(kind=Kind.BW) if fused and op.kind is Kind.B else op] = value(start)
    return schedule_of_starts(built.problem, starts, built.period_ns)


def schedule_of_starts(problem: Problem, starts: Mapping[Op, int], period_ns: int) -> Schedule:
    """The period that a timetable repeats: each rank's ops by residue, with the steps that they are of.

    What starts together (something of it takes no time) is in the order in which a microbatch does it. A rank's period begins where
    its ops are of the fewest steps.

    Args:
        problem: what it is a timetable of.
        starts: when each op of step 0 starts.
        period_ns: after which it repeats.
    """
    orders = []
    place = {(path, stage): at for path, stages in enumerate(problem.paths) for at, stage in enumerate(stages)}

    def depth(op: Op) -> int:
        if op.kind is Kind.U:
            return 4 * len(problem.stages)
        at = place[problem.path_of[op.microbatch], op.stage]
        return at if op.kind is Kind.F else 3 * len(problem.stages) - at if op.kind is Kind.W else 2 * len(problem.stages) - at

    for rank in range(problem.ranks):
        own = [op for op in starts if problem.rank_of(op) == rank]
        length_ns = {op: problem.duration_ns(op.kind, op.stage, op.microbatch) for op in own}
        own.sort(key=lambda op: (starts[op] % period_ns, length_ns[op] > 0, depth(op)))
        steps = [-(starts[op] // period_ns) for op in own]
        ways = []
        for first in range(len(own)):
            turned = [*zip(steps[first:], own[first:], strict=True), *((step + 1, op) for step, op in zip(steps, own, strict=True))]
            turned = turned[: len(own)]
            least = min(step for step, _ in turned)
            ways.append((max(step for step, _ in turned) - least, own[first].kind is not Kind.F, first, least, turned))
        _, _, _, least, turned = min(ways, key=lambda way: way[:3])
        n = problem.microbatches
        orders.append(
            tuple(op._replace(microbatch=op.microbatch + (step - least) * (1 if op.kind is Kind.U else n)) for step, op in turned)
        )
    return Schedule(orders=tuple(orders))
