"""The exact optimum of tiny problems by search over all schedules, and the timing of a given one; shares no code with the product.

Problems are chains, graphs, and either in slices.

Both run one machine state forward in time. A rank that is free may start any op whose inputs are there and whose memory fits, or
wait for one that is still to come; an op that it declined may only start after another has, as it would have started earlier
otherwise. So every order of every rank is tried once, and none is assumed to be better. Durations, of parts too, are at least 1 ns.
"""

from __future__ import annotations

from itertools import chain, pairwise, permutations, product
from typing import TYPE_CHECKING

from oracles.pipeline_state import FAR, ProblemArrays, State
from schedc.ir.ops import Kind
from schedc.ir.problem import Objective
from schedc.ir.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.ops import Op
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Parts


class SearchTooLarge(Exception):
    """The search visited more states than it was allowed to."""


def timing(problem: Problem, schedule: Schedule) -> tuple[int, int]:
    """The makespan and the stage span of a valid schedule.

    Raises:
        ValueError: the schedule deadlocks.
    """
    state, _ = _run(problem, schedule)
    return max(*state.ended, state.collectives_end), max(state.spans())


def peaks(problem: Problem, schedule: Schedule) -> list[int]:
    """Per rank, the most bytes that it holds under a valid schedule, with values that wait for others."""
    return _run(problem, schedule)[1]


def _run(problem: Problem, schedule: Schedule) -> tuple[State, list[int]]:
    """The state at the end of a schedule, and the peak of each rank."""
    facts = ProblemArrays(problem, schedule.parts)
    firsts = (dict.fromkeys(op.stage for op in order if op.kind == Kind.F) for order in schedule.orders)
    state = State(facts, list(chain.from_iterable(firsts)))
    at, most = [0] * problem.ranks, [0] * problem.ranks
    while any(busy is not None for busy in state.running) or any(i < len(o) for i, o in zip(at, schedule.orders, strict=True)):
        for rank, order in enumerate(schedule.orders):
            if state.running[rank] is None and at[rank] < len(order):
                op = order[at[rank]]
                ready = True
                if op.kind == Kind.F and op.part <= 0:
                    ready = state.is_there(False, op[1:3])
                elif op.kind in (Kind.B, Kind.BW) and op.part <= 0 and facts.inputs[True, *op[1:3]]:
                    ready = state.is_there(True, op[1:3])
                if ready:
                    state.start(facts, rank, op)
                    at[rank] += 1
        most = [max(pair) for pair in zip(most, state.bytes_on(facts), strict=True)]
        moment = state.next_moment()
        if moment is None:
            raise ValueError("the schedule deadlocks")
        state.now = moment
        state.end_ops(facts)
    return state, most


def optimum(problem: Problem, parts: Sequence[Parts] = (), *, symmetry: bool = True, most_states: int = 1_000_000) -> int | None:
    """The least objective of any schedule of the problem, with blocks cut into these parts; None if there is no schedule.

    Args:
        symmetry: take forwards of microbatches that cost the same on the same path in their order on the path's first stage.
        most_states: how many moments may be visited.

    Raises:
        SearchTooLarge: the search visited more.
    """
    return best_schedule(problem, parts, symmetry=symmetry, most_states=most_states)[0]


def best_schedule(
    problem: Problem, parts: Sequence[Parts] = (), *, symmetry: bool = True, most_states: int = 1_000_000
) -> tuple[int | None, Schedule | None]:
    """The optimum, see there, and a schedule that reaches it."""
    facts = ProblemArrays(problem, parts)
    makespan = problem.objective is Objective.MAKESPAN
    best = FAR
    best_log: list[tuple[int, Op]] = []
    log: list[tuple[int, Op]] = []
    seen: dict[object, int] = {}
    before_in_gathers: dict[int, int] = {}
    visited = 0

    def hopeless(state: State) -> bool:
        now = state.now
        for rank, work in enumerate(state.work):
            busy = state.running[rank]
            end = (busy[0] if busy else now if work else state.ended[rank]) + work
            begun = state.begun[rank]
            if end - (0 if makespan else now if begun is None else begun) >= best:
                return True
        if not makespan:
            return False
        if state.collectives_end >= best:
            return True
        for visit in facts.visits:
            forward, backward = facts.chain[visit]
            key = (Kind.F, *visit)
            if key not in state.complete:
                at = state.input_at.get((False, *visit), -1)
                running = any(busy is not None and busy[1][:3] == key for busy in state.running)
                if at >= 0 and not running and key not in state.parts_done and max(now, at) + forward >= best:
                    return True
            elif (at := state.input_at.get((True, *visit), -1)) > now and at + backward >= best:
                return True
        return False

    def key_of(state: State) -> tuple[object, int]:
        """What the future depends on, relative to now, and what has been spent; less spent at the same key is never worse."""
        now = state.now
        key: tuple[object, ...] = (
            tuple(busy and (busy[0] - now, busy[1]) for busy in state.running),
            tuple(state.declined),
            frozenset((name, at - now) for name, at in state.free.items() if at > now),
            frozenset((which, max(0, at - now)) for which, at in state.input_at.items()),
            frozenset((which, tuple(sorted((max(0, at - now), size) for at, size in got))) for which, got in state.arrived.items()),
            state.complete,
            frozenset(state.parts_done.items()),
        )
        if makespan:
            return (*key, max(0, state.collectives_end - now)), now
        idle = [work == 0 and busy is None for work, busy in zip(state.work, state.running, strict=True)]
        ages = tuple(None if done or at is None else now - at for done, at in zip(idle, state.begun, strict=True))
        return (*key, ages), max((span for span, done in zip(state.spans(), idle, strict=True) if done), default=0)

    def visit_moment(state: State) -> None:
        """The moment's ends have happened; decide for each rank, then go on."""
        nonlocal visited
        visited += 1
        if visited > most_states:
            raise SearchTooLarge(f"more than {most_states} states")
        if hopeless(state):
            return
        key, value = key_of(state)
        if seen.get(key, FAR) <= value:
            return
        seen[key] = value
        decide(state, 0)

    def decide(state: State, rank: int) -> None:
        nonlocal best, best_log
        if rank == problem.ranks:
            if not state.fits(facts):
                return
            if not any(state.work) and not any(state.running):
                objective = max(*state.ended, state.collectives_end) if makespan else max(state.spans())
                if objective < best:
                    best, best_log = objective, log.copy()
                return
            moment = state.next_moment()
            if moment is not None:
                following = state.copy()
                following.now = moment
                following.end_ops(facts)
                visit_moment(following)
            return
        if state.running[rank] is not None:
            decide(state, rank + 1)
            return
        able = list(state.candidates(facts, rank))
        fresh = [op for op in able if op not in state.declined[rank] and not out_of_turn(state, op)]
        for op in sorted(fresh, key=lambda op: (op.kind != Kind.B, op.kind != Kind.F, op)):
            following = state.copy()
            following.start(facts, rank, op)
            log.append((rank, op))
            decide(following, rank + 1)
            log.pop()
        if able and not state.may_come(facts, rank):
            return
        before, state.declined[rank] = state.declined[rank], frozenset(able)
        decide(state, rank + 1)
        state.declined[rank] = before

    def out_of_turn(state: State, op: Op) -> bool:
        if op.kind != Kind.F or op.part > 0 or op.stage not in facts.sources:
            return out_of_gathers(state, op)
        is_first = symmetry and problem.path(op.microbatch)[0] == op.stage
        before = facts.before.get(op.microbatch) if problem.in_order else facts.twins.get(op.microbatch) if is_first else None
        key = (Kind.F, op.stage, before)
        waits = before is not None and key not in state.complete and key not in state.parts_done
        return waits or out_of_gathers(state, op)

    def out_of_gathers(state: State, op: Op) -> bool:
        """Whether it is an F of a stage that is gathered after one of which no F has started: stages are gathered as first used."""
        if op.kind != Kind.F or op.stage not in before_in_gathers:
            return False
        begun = state.complete | state.parts_done.keys()
        return not any(kind == Kind.F and stage == before_in_gathers[op.stage] for kind, stage, _ in begun)

    for gathers in orders_of_gathers(facts):
        seen.clear()
        rank_of = [stage.rank for stage in problem.stages]
        before_in_gathers = {b: a for a, b in pairwise(gathers) if rank_of[a] == rank_of[b]}
        visit_moment(State(facts, gathers))
    if best == FAR:
        return None, None
    orders = tuple(tuple(op for at, op in best_log if at == rank) for rank in range(problem.ranks))
    return best, Schedule(orders=orders, parts=tuple(parts))


def orders_of_gathers(facts: ProblemArrays) -> list[list[int]]:
    """All orders in which the ranks can gather their stages, rank after rank; one where nothing is gathered: none counts then."""
    problem = facts.problem
    if problem.data_parallel is None or not problem.data_parallel.all_gather_ns:
        return [[]]
    mine = [[stage for stage in sorted(facts.visitors) if problem.stages[stage].rank == rank] for rank in range(problem.ranks)]
    return [list(chain.from_iterable(each)) for each in product(*map(permutations, mine))]
