"""A bound on the period by what a rank with a memory limit can hold and run at a moment, in whole microbatches.

Takes a rank's limit, its costs, and what microbatches do between its stages; gives a bound in whole nanoseconds.

A microbatch passes phases: its F runs on a stage of the rank, it is away, its F runs on the rank's next stage, and so on to its
last backward there. A *state* says how many are in each phase; one op runs at a time. The activations of the phases and the stashed
versions that as many must read fit the limit, and no more are under way than the mode's rule allows.

Proof: let c count phases, `need(p)` be the time that the microbatches of one step spend in phase p at least, and w(p) >= 0. Over a
period, the integral of the sum of w(p) c(p) is at least the sum of w(p) need(p), and at most T times the largest sum of w(p) c(p)
of a state that occurs. So T is at least their quotient, for any w; a linear program finds a good one, whose quotient is then taken
in whole numbers. Which states occur: from any moment on, let no more microbatches enter; what is left holds less at each moment, so
it still fits, and drains. Likewise those that are under way at a moment could have come so far without the others. So a state that
occurs is reached from the empty one by moves of one microbatch that fit, and leads back to it: that all wait for memory which the
others hold does not occur.

W, and what a fused backward takes longer than B, run without being counted as under way, with what W needs beside what the others
hold: where W runs later, or the backward is fused, the rank holds more. With n microbatches in a step, k under way on a stage read
k / n versions or more, as n F run from one U to the next; one of these may be the newest, but not while U makes that. With D
updates at most in between, the forwards of D + 1 steps may be under way, of D while U runs; under 2BW D is 1.

Assumes: as in `period`; microbatches may overtake each other, and differ.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from schedc.ir import Versions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.bounds.period_chains import RoundTrips
    from schedc.ir import Problem

MOST_STATES = 3_000
"""A rank that may have more is left out: it has room for many microbatches, and whole numbers matter little."""
SCALE = 1 << 24
"""Weights are whole numbers up to this."""

Counts = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Move:
    """A microbatch's op on the rank: from one phase away from it to the next."""

    source: int
    """The phase before; −1: it enters."""
    target: int
    """−1: it leaves."""
    running: int
    """The phase in which the op runs."""


@dataclass(slots=True)
class RankStates:
    """The phases of one rank: what each holds, by stage, and the time of a step's microbatches in it."""

    problem: Problem
    rank: int
    need_ns: list[int] = field(default_factory=list)
    held_bytes: list[int] = field(default_factory=list)
    under_way: list[tuple[int, ...]] = field(default_factory=list)
    """The stages on which a microbatch in the phase is under way."""
    moves: list[Move] = field(default_factory=list)
    alone: list[tuple[int, int, int]] = field(default_factory=list)
    """What runs without a microbatch: phase, bytes beside what the others hold, stage whose U it is (−1: a W)."""

    def fits(self, counts: Counts, more_bytes: int = 0, updated: int = -1) -> bool:
        """Whether these many can be in the phases at once, beside that many bytes, and while U of a stage runs."""
        problem, updates = self.problem, self.problem.updates
        assert updates is not None
        held_bytes = more_bytes + sum(count * each for count, each in zip(counts, self.held_bytes, strict=True) if count)
        on: dict[int, int] = defaultdict(int)
        for count, stages in zip(counts, self.under_way, strict=True):
            for stage in stages if count else ():
                on[stage] += count
        two_buffered = updates.versions is Versions.TWO_BUFFERED
        steps = 2 if two_buffered else None if updates.most_delay is None else updates.most_delay + 1
        for stage, count in on.items():
            read = -(-count // problem.microbatches)  # versions, or more
            if steps is not None and read > steps - (stage == updated):
                return False
            if updates.versions is Versions.STASH:
                held_bytes += (read - (stage != updated)) * problem.stages[stage].version_bytes
        limit_bytes = problem.memory_limit_bytes[self.rank]
        if two_buffered:
            held_bytes += sum(problem.stages[stage].version_bytes for stage in set().union(*self.under_way))
        return limit_bytes is None or held_bytes <= limit_bytes

    def phase(self, need_ns: int, held_bytes: int = 0, under_way: Sequence[int] = ()) -> int:
        """Add one; its number."""
        self.need_ns.append(need_ns)
        self.held_bytes.append(held_bytes)
        self.under_way.append(tuple(under_way))
        return len(self.need_ns) - 1


def states_bound_ns(problem: Problem, rank: int, chains: Sequence[RoundTrips]) -> int:
    """The bound of a rank; 0 where it has no stage, or too many states.

    `chains`: what microbatches that are alike do, of all of the step.
    """
    states = _phases(problem, rank, chains)
    rows = _rows(states) if states.moves else None
    if rows is None:
        return 0
    weights = np.round(np.clip(_weights(np.array(states.need_ns, float), rows), 0, None) * SCALE).astype(np.int64)
    most = int((rows.astype(np.int64) @ weights).max())
    total = sum(int(weight) * need_ns for weight, need_ns in zip(weights, states.need_ns, strict=True))
    return -(-total // most) if most else 0


def _phases(problem: Problem, rank: int, chains: Sequence[RoundTrips]) -> RankStates:
    """Phases and moves, of each path apart."""
    states = RankStates(problem, rank)
    by_path: dict[tuple[int, ...], list[RoundTrips]] = defaultdict(list)
    for chain in chains:
        by_path[chain.path].append(chain)
    for path, alike in by_path.items():
        places = [place for place, stage in enumerate(path) if problem.stages[stage].rank == rank]
        ops = [(place, False) for place in places] + [(place, True) for place in reversed(places)]
        source, held, stages = -1, 0, list[int]()
        for index, (place, is_back) in enumerate(ops):
            stage = path[place]
            costs = problem.stages[stage]
            if not is_back:
                held += costs.activation_bytes
                stages = [*stages, stage]
            run_ns = sum(each.count * (each.gradient_ns if is_back else each.forward_ns)[place] for each in alike)
            running = states.phase(run_ns, held + costs.recomputed_bytes * is_back, stages)
            if is_back:
                held -= costs.activation_bytes
                stages = stages[:-1]
                rest_ns = sum(each.count * (each.whole_ns[place] - each.gradient_ns[place]) for each in alike)
                states.alone.append((states.phase(rest_ns), costs.activation_after_input_bytes * problem.split_backward, -1))
            target = -1
            if index + 1 < len(ops):
                target = states.phase(sum(each.count * _away_ns(each, *ops[index : index + 2]) for each in alike), held, stages)
            states.moves.append(Move(source, target, running))
            source = target
    for stage in problem.stages_on(rank):
        states.alone.append((states.phase(problem.stages[stage].update_ns), 0, stage))
    return states


def _away_ns(chain: RoundTrips, after: tuple[int, bool], until: tuple[int, bool]) -> int:
    """From the end of an op of the rank (of a backward: from when its gradient is sent) to the start of its next, at least."""
    (one, _), (other, is_back) = after, until
    if one == other:
        return chain.return_ns(one)
    low, high = min(one, other), max(one, other)
    hops = sum(hop[1] + hop[2] for hop in (chain.back if is_back else chain.there)[low:high] if hop is not None)
    return hops + sum((chain.gradient_ns if is_back else chain.forward_ns)[low + 1 : high])


def _rows(states: RankStates) -> np.ndarray | None:
    """The states that may occur, a row each: how many are in each phase. None: too many."""
    empty: Counts = (0,) * len(states.need_ns)

    def changed(counts: Counts, *changes: tuple[int, int]) -> Counts:
        now = list(counts)
        for phase, by in changes:
            if phase >= 0:
                now[phase] += by
        return tuple(now)

    before: dict[Counts, list[tuple[Counts, Counts]]] = {empty: []}
    left = [empty]
    while left:
        counts = left.pop()
        for move in states.moves:
            if move.source >= 0 and not counts[move.source]:
                continue
            during = changed(counts, (move.source, -1), (move.running, 1))
            if not states.fits(during):
                continue
            after = changed(during, (move.running, -1), (move.target, 1))
            if after not in before:
                if len(before) == MOST_STATES:
                    return None
                before[after] = []
                left.append(after)
            before[after].append((counts, during))
    rows: set[Counts] = set()
    safe, left = {empty}, [empty]
    while left:
        for counts, during in before[left.pop()]:
            rows.add(during)
            if counts not in safe:
                safe.add(counts)
                left.append(counts)
    for counts in safe:
        rows.add(counts)
        rows.update(changed(counts, (phase, 1)) for phase, size, stage in states.alone if states.fits(counts, size, stage))
    return np.array(sorted(rows), np.int32)


def _weights(need: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Weights whose sum over needs is about the largest of those that are at most 1 over each row; rows are added as they bind."""
    some = list({int(rows[:, phase].argmax()) for phase in range(len(need)) if need[phase]})
    weights = np.zeros(len(need))
    need = need / max(1.0, need.max())
    for _ in range(200):
        weights = _simplex(need, rows[some].astype(float))
        values = rows @ weights
        worst = int(values.argmax())
        if values[worst] <= 1 + 1e-9 or worst in some:
            break
        some.append(worst)
    return weights


def _simplex(need: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Weights >= 0 of the largest sum over needs with a sum of at most 1 over each row."""
    count, width = rows.shape
    table = np.zeros((count + 1, width + count + 1))
    table[:count, :width], table[:count, width : width + count], table[:count, -1] = rows, np.eye(count), 1.0
    table[count, :width] = -need
    basis = list(range(width, width + count))
    for _ in range(20 * (count + width)):
        enter = int(table[count, :-1].argmin())
        column = table[:count, enter]
        if table[count, enter] > -1e-12 or not (column > 1e-12).any():
            break
        ratios = np.where(column > 1e-12, table[:count, -1] / np.where(column > 1e-12, column, 1.0), np.inf)
        leave = int(ratios.argmin())
        table[leave] /= table[leave, enter]
        others = np.arange(count + 1) != leave
        table[others] -= np.outer(table[others, enter], table[leave])
        basis[leave] = enter
    weights = np.zeros(width)
    for row, variable in enumerate(basis):
        if variable < width:
            weights[variable] = table[row, -1]
    return weights
