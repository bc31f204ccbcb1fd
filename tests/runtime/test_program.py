"""The programs of all ranks fit together: run here without torch, rank after rank in any order that the messages allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plans import plan_of, plans
from problems import make_problem

from schedc.ir.ops import Kind, parse_op, token
from schedc.ir.schedule import Parts, Schedule
from schedc.runtime.program import program_of, wires_of
from schedc.solvers.registry import constructive

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.runtime.program import Instruction, Message, Slot


@pytest.mark.slow
@given(plan=plans(), data=st.data())
def test_programs_fit_together(plan: Plan, data: st.DataObject) -> None:
    """Every transfer is posted once, before it is needed, sent once and taken once; nothing is let go before it has been taken."""
    wires = wires_of(plan)
    programs = [program_of(plan, rank) for rank in range(plan.problem.ranks)]
    assert [[one.op for one in program.instructions] for program in programs] == [list(rank.compute) for rank in plan.ranks]
    sent: list[Slot] = []
    posted: list[Slot] = []
    taken: list[Slot] = []
    let_go: list[Slot] = []
    local: set[tuple[int, Message]] = set()
    at = [0] * len(programs)

    def ready(rank: int) -> bool:
        if at[rank] == len(programs[rank].instructions):
            return False
        one = programs[rank].instructions[at[rank]]
        return one.receive in sent if one.receive else one.needs is None or (rank, one.needs) in local

    def run(rank: int, one: Instruction) -> None:
        posted.extend(one.posts)
        assert all(wires[slot.wire].destination == rank for slot in one.posts)
        if one.receive:
            assert wires[one.receive.wire].destination == rank
            assert wires[one.receive.wire].messages[one.receive.at] == one.needs
            assert one.receive in posted
            taken.append(one.receive)
        elif one.needs:
            local.remove((rank, one.needs))
        for slot in one.arrived:
            assert wires[slot.wire].source == rank
            assert slot in taken
        let_go.extend(one.arrived)
        if one.send:
            assert wires[one.send.wire].source == rank
            assert wires[one.send.wire].messages[one.send.at] == one.gives
            sent.append(one.send)
        elif one.gives:
            local.add((rank, one.gives))

    while runnable := [rank for rank in range(len(programs)) if ready(rank)]:
        rank = data.draw(st.sampled_from(runnable))
        run(rank, programs[rank].instructions[at[rank]])
        at[rank] += 1
    assert at == [len(program.instructions) for program in programs]
    every = sorted((w, i) for w, wire in enumerate(wires) for i in range(len(wire.transfers)))
    assert sorted(sent) == sorted(posted) == sorted(taken) == every
    assert len(set(let_go)) == len(let_go)
    assert not local


def test_forward_sends_are_let_go_when_the_gradient_comes() -> None:
    problem = make_problem(2, 3)
    first = program_of(plan_of(problem, constructive("1f1b")(problem)), 0)
    assert [(one.op.kind, one.op.microbatch, [slot.at for slot in one.arrived]) for one in first.instructions] == [
        (Kind.F, 0, []),
        (Kind.F, 1, []),
        (Kind.BW, 0, [0]),
        (Kind.F, 2, []),
        (Kind.BW, 1, [1]),
        (Kind.BW, 2, [2]),
    ]


def test_parts() -> None:
    """The first part waits, the last one sends."""
    problem = make_problem(2, 1)
    cut = (Parts(kind=Kind.F, stage=0, shares=(1, 1)), Parts(kind=Kind.B, stage=1, shares=(1, 1)))
    orders = ("F0.0/0 F0.0/1 B0.0 W0.0", "F1.0 B1.0/0 B1.0/1 W1.0")
    plan = plan_of(problem, Schedule(orders=tuple(tuple(map(parse_op, order.split())) for order in orders), parts=cut))
    ends = [
        {token(one.op): (one.receive is not None, one.send is not None) for one in program_of(plan, rank).instructions}
        for rank in range(2)
    ]
    assert ends == [
        {"F0.0/0": (False, False), "F0.0/1": (False, True), "B0.0": (True, False), "W0.0": (False, False)},
        {"F1.0": (True, False), "B1.0/0": (False, False), "B1.0/1": (False, True), "W1.0": (False, False)},
    ]
