"""The least period of tiny problems by trying all orders of one step and all steps that ops may be of, up to a depth.

Shares nothing with the product but the representations. A rank's sequence gives each op a position: that of its instance of step 0
in the rank's endless order, in which everything comes again after as many positions as a step has ops. So rules and what is held
are comparisons of positions. All combinations of the ranks' sequences are timed at once: a period T is feasible if no cycle of the
differences between starts is positive.
"""

from __future__ import annotations

from itertools import chain, pairwise, permutations, product
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Kind, Op, Resource, Versions

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir import Problem

Position = dict[Op, int]
NEVER = -(1 << 40)
CHUNK = 4_000


class TooMany(Exception):
    """There are more combinations than it was allowed to try."""


def least_period(problem: Problem, *, depth: int, upper: int, most: int = 400_000) -> int | None:
    """The least period of at most `upper` in which ops of the other steps are at most this many ahead; None: there is none.

    Raises:
        TooMany: there are more combinations than `most`.
    """
    per_rank = [list(sequences(problem, rank, depth)) for rank in range(problem.ranks)]
    count = int(np.prod([len(each) for each in per_rank]))
    if count == 0:
        return None
    if count > most:
        raise TooMany
    nodes = _nodes(problem)
    left = np.arange(count)
    best: int | None = None
    low, high = 1, upper
    while low <= high:  # what has no schedule at `period` has none at less
        period = (low + high) // 2
        works = _feasible(problem, nodes, per_rank, left, period)
        if works.any():
            best, high, left = period, period - 1, left[works]
        else:
            low = period + 1
    return best


def sequences(problem: Problem, rank: int, depth: int) -> Iterator[Position]:
    """All that keep needs on the rank, the mode's rule and the memory limit; U of the rank's first stage is at position −1."""
    stages = problem.stages_on(rank)
    blocks = [(stage, microbatch) for stage, microbatch in problem.blocks() if stage in stages]
    for fuse in product((False, True) if problem.split_backward else (True,), repeat=len(blocks)):
        ops = [Op(Kind.U, stage, 0) for stage in stages]
        for (stage, microbatch), fused in zip(blocks, fuse, strict=True):
            ops += [Op(kind, stage, microbatch) for kind in ((Kind.F, Kind.BW) if fused else (Kind.F, Kind.B, Kind.W))]
        size = len(ops)
        reach = [range(-depth, 1) if op.kind is not Kind.U else range(-1, 2) for op in ops[1:]]
        for order in permutations(range(size - 1)):
            for turns in product(*reach):
                position = {ops[0]: size - 1 - size}
                position |= {op: index + turn * size - size for op, index, turn in zip(ops[1:], order, turns, strict=True)}
                sound = _keeps_needs(problem, position) and _keeps_rule(problem, position, size)
                if sound and _fits(problem, rank, position, size):
                    yield position


def _backwards(position: Position, op: Op) -> tuple[int, int]:
    """The first and the last position of the backward of this microbatch on this stage."""
    own = [position[each] for kind in (Kind.B, Kind.W, Kind.BW) if (each := op._replace(kind=kind)) in position]
    return min(own), max(own)


def _keeps_needs(problem: Problem, position: Position) -> bool:
    for op, at in position.items():
        if op.kind is not Kind.F:
            continue
        first, last = _backwards(position, op)
        weights = op._replace(kind=Kind.W)
        if not at < first or last > position[Op(Kind.U, op.stage, 0)] or (weights in position and position[weights] != last):
            return False
        path = problem.path(op.microbatch)
        for before, after in pairwise(path):
            if before == op.stage and (there := op._replace(stage=after)) in position:
                gradient = _backwards(position, there)[0]
                if not (at < position[there] and gradient < first):
                    return False
        if problem.in_order and op.stage == path[0]:
            others = [position[each] for each in position if each[:2] == op[:2] and each.microbatch < op.microbatch]
            if any(other > at for other in others):
                return False
    return True


def _keeps_rule(problem: Problem, position: Position, size: int) -> bool:
    updates = problem.updates
    assert updates is not None
    for op, at in position.items():
        if op.kind is not Kind.F:
            continue
        update = position[Op(Kind.U, op.stage, 0)]
        if updates.versions is Versions.TWO_BUFFERED and at + 2 * size < update:
            return False
        if updates.most_delay is not None:
            last = _backwards(position, op)[1]
            if sum(1 for k in range(-20, 21) if at < update + k * size < last) > updates.most_delay:
                return False
    return True


def _fits(problem: Problem, rank: int, position: Position, size: int) -> bool:
    updates, limit = problem.updates, problem.memory_limit_bytes[rank]
    assert updates is not None
    if limit is None:
        return True
    for now in range(size):
        held = 0
        for stage in problem.stages_on(rank):
            costs, update = problem.stages[stage], position[Op(Kind.U, stage, 0)]
            newest = (now - update) // size
            read = set()
            for forward in (op for op in position if op.kind is Kind.F and op.stage == stage):
                begun = position[forward]
                first, last = _backwards(position, forward)
                for k in range((now - last) // size - 1, (now - begun) // size + 1):
                    if begun + k * size <= now <= last + k * size:
                        read.add((begun + k * size - update) // size)
                        is_back = now >= first + k * size
                        after_first = now > first + k * size
                        held += costs.activation_after_input_bytes if after_first else costs.activation_bytes
                        held += costs.recomputed_bytes if is_back and not after_first else 0
            more = len(read - {newest}) if updates.versions is Versions.STASH else int(updates.versions is Versions.TWO_BUFFERED)
            held += more * costs.version_bytes
        if held > limit:
            return False
    return True


def _nodes(problem: Problem) -> dict[object, int]:
    """Per stage, microbatch and kind (B and BW are one; W apart), and per transfer: its index."""
    names: list[object] = []
    for stage, microbatch in problem.blocks():
        names += [(kind, stage, microbatch) for kind in "FBW"]
        names += [("sent", kind, stage, microbatch) for kind in "FB" if _hop(problem, kind, stage, microbatch) is not None]
    names += [("U", stage, 0) for stage in range(len(problem.stages))]
    return {name: index for index, name in enumerate(names)}


def _hop(problem: Problem, kind: str, stage: int, microbatch: int) -> int | None:
    """The stage on another rank to which the block sends something."""
    path = problem.path(microbatch)
    at = path.index(stage) + (1 if kind == "F" else -1)
    if not 0 <= at < len(path) or problem.stages[path[at]].rank == problem.stages[stage].rank:
        return None
    return path[at]


def _rank_matrix(problem: Problem, nodes: dict[object, int], position: Position, period: int) -> np.ndarray:
    """What the rank's sequence says of the differences between starts of step 0, its transfers and their links included."""
    matrix = np.full((len(nodes), len(nodes)), NEVER, np.int64)

    def later(before: int, after: int, time: int) -> None:
        matrix[before, after] = max(matrix[before, after], time)

    size = len(position)
    order = sorted(position, key=lambda op: position[op] % size)
    name = {op: ("B" if op.kind is Kind.BW else op.kind.name, op.stage, op.microbatch) for op in order}
    turn = {op: position[op] // size for op in order}
    length = {op: problem.duration_ns(op.kind, op.stage, op.microbatch) for op in order}
    for index, op in enumerate(order):
        after = order[(index + 1) % size]
        ahead = int(index + 1 == size)  # the instance of step 0 is `turn` rounds after the one in the first round
        later(nodes[name[op]], nodes[name[after]], length[op] + (turn[after] - turn[op] - ahead) * period)
    sent: dict[Resource, list[Op]] = {}
    for op in order:
        stage = _hop(problem, name[op][0], op.stage, op.microbatch) if name[op][0] in "FB" else None
        if stage is not None:
            link = problem.link(problem.stages[op.stage].rank, problem.stages[stage].rank)
            sent.setdefault(Resource.of_link(link), []).append(op)
            later(nodes[name[op]], nodes["sent", *name[op]], length[op])
            occupied = link.occupancy_ns(problem.message_bytes(op))
            later(nodes["sent", *name[op]], nodes[name[op][0], stage, op.microbatch], occupied + link.latency_ns)
    for ops in sent.values():
        for index, op in enumerate(ops):
            after = ops[(index + 1) % len(ops)]
            stage = _hop(problem, name[op][0], op.stage, op.microbatch)
            assert stage is not None
            link = problem.link(problem.stages[op.stage].rank, problem.stages[stage].rank)
            occupied = link.occupancy_ns(problem.message_bytes(op))
            ahead = int(index + 1 == len(ops))
            later(nodes["sent", *name[op]], nodes["sent", *name[after]], occupied + (turn[after] - turn[op] - ahead) * period)
    return matrix


def _feasible(
    problem: Problem, nodes: dict[object, int], per_rank: list[list[Position]], wanted: np.ndarray, period: int
) -> np.ndarray:
    """Which combinations of sequences, by number, have a timetable with this period."""
    matrices = [np.stack([_rank_matrix(problem, nodes, each, period) for each in of_rank]) for of_rank in per_rank]
    found = []
    for begin in range(0, len(wanted), CHUNK):
        number = wanted[begin : begin + CHUNK]
        whole = None
        for of_rank in matrices:
            own = of_rank[number % len(of_rank)]
            number = number // len(of_rank)
            whole = own if whole is None else np.maximum(whole, own)
        assert whole is not None
        for middle in range(len(nodes)):
            np.maximum(whole, np.maximum(whole[:, :, middle, None] + whole[:, None, middle, :], NEVER), out=whole)
        diagonal = whole[:, range(len(nodes)), range(len(nodes))]
        found.append((diagonal <= 0).all(axis=1))
    return np.array(list(chain.from_iterable(found)))
