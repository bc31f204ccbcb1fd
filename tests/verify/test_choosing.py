"""Ranks of any plan may choose their next op by what has come: nothing deadlocks, and no rank holds more than it has room for."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given, settings, strategies as st
from inputs.plans import plan_of
from inputs.problems import problems
from inputs.random_schedules import random_schedules

from schedc.analysis.simulation.memory import peak_bytes
from schedc.ir.ops import Kind, Op
from schedc.verify.plan.channels import needs_of

if TYPE_CHECKING:
    from schedc.ir.plan import Channel

QUEUES = {Kind.F: 0, Kind.B: 1, Kind.BW: 1, Kind.W: 2}


@settings(max_examples=50)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_nothing_can_deadlock_whatever_ranks_prefer_and_how_late_receives_are_posted(data: st.DataObject, seed: int) -> None:
    """Random executions without times: any ready op, any transfer that is sent and posted; some ranks keep to the plan's order.

    Receives are posted as late as the proof allows: those of the queues' heads and all before them, or by `post_before`.
    """
    problem = data.draw(problems(memory=False, max_microbatches=5, max_time_ns=5))
    schedule = data.draw(random_schedules(problem))
    peaks = peak_bytes(problem, schedule)
    rooms = [peak + data.draw(st.sampled_from([0, 0, 1, 3])) for peak in peaks]
    plan = plan_of(replace(problem, memory_limit_bytes=tuple(rooms)), schedule)
    generator = random.Random(seed)
    chooses = [generator.random() < 0.8 for _ in plan.ranks]
    ran, held = [set[int]() for _ in plan.ranks], [0] * problem.ranks
    needs = needs_of(plan)
    inputs = {(need.destination, need.consumer): op for op, need in needs.items()}
    delivered: set[Op] = set()
    receiving = {(rank.rank, channel.peer): channel for rank in plan.ranks for channel in rank.channels if channel.receives}

    def heads(rank: int) -> list[int]:
        left = [at for at in range(len(plan.ranks[rank].compute)) if at not in ran[rank]]
        if not chooses[rank]:
            return left[:1]
        kinds = [QUEUES[plan.ranks[rank].compute[at].kind] for at in left]
        return [left[kinds.index(queue)] for queue in set(kinds)]

    def is_ready(rank: int, at: int) -> bool:
        order = plan.ranks[rank].compute
        kind, stage, microbatch, part = order[at]
        before = {Kind.F: None, Kind.B: Kind.F, Kind.BW: Kind.F, Kind.W: Kind.B}[kind]
        missing = [i for i, op in enumerate(order) if op[:3] == (before, stage, microbatch) and i not in ran[rank]]
        takes = problem.stages[stage].activation_bytes if kind is Kind.F and part <= 0 else 0
        has_come = (rank, at) not in inputs or inputs[rank, at] in delivered
        return not missing and has_come and held[rank] + takes <= rooms[rank]

    def is_posted(rank: int, channel: Channel, place: int) -> bool:
        if not chooses[rank]:
            return all(at in ran[rank] for at in range(channel.post_before[place]))
        wanted = {inputs.get((rank, at)) for at in heads(rank)}
        return any(op in wanted for op in channel.transfers[place:])

    while True:
        able: list[tuple[int, int] | Op] = [(rank, at) for rank in range(problem.ranks) for at in heads(rank) if is_ready(rank, at)]
        for (rank, _), channel in receiving.items():
            place = next((i for i, op in enumerate(channel.transfers) if op not in delivered), None)
            if place is not None:
                need = needs[channel.transfers[place]]
                if need.producer in ran[need.source] and is_posted(rank, channel, place):
                    able.append(need.op)
        if not able:
            break
        action = generator.choice(able)
        if isinstance(action, Op):
            delivered.add(action)
            continue
        rank, at = action
        kind, stage, _, part = plan.ranks[rank].compute[at]
        costs, parts = problem.stages[stage], schedule.parts_of(kind, stage)
        if kind is Kind.F and part <= 0:
            held[rank] += costs.activation_bytes
        elif kind is not Kind.F and (part < 0 or parts is None or part == len(parts.shares) - 1):
            after = costs.activation_after_input_bytes
            held[rank] -= {Kind.B: costs.activation_bytes - after, Kind.W: after, Kind.BW: costs.activation_bytes}[kind]
        assert held[rank] <= rooms[rank]
        ran[rank].add(at)
    assert [len(done) for done in ran] == [len(rank.compute) for rank in plan.ranks]
