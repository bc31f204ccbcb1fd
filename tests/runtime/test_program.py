"""The programs of all ranks fit together: run here without torch, rank after rank in any order that the messages allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.graphs import graph_problem, random_order
from inputs.plans import plan_of, plans
from inputs.problems import make_problem

from schedc.ir.ops import Kind, parse_op, token
from schedc.ir.schedule import Parts, Schedule
from schedc.runtime.common.program import Wire, connecting_order, program_of, wires_of
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.program import Instruction, Message, Slot


@st.composite
def graph_plans(draw: st.DrawFn) -> Plan:
    """A plan of stages that are a graph, in any order that has no deadlock."""
    random = draw(st.randoms(use_true_random=False))
    problem = graph_problem(random, most_ranks=4, most_stages=7, edges=True, slices=False, memory=False)
    schedule = random_order(random, problem, limited=False)
    assert schedule is not None
    return plan_of(problem, schedule)


@pytest.mark.slow
@given(plan=plans() | graph_plans(), data=st.data())
def test_programs_fit_together(plan: Plan, data: st.DataObject) -> None:
    """Every transfer is posted once, before it is needed, sent once and taken once; nothing is let go before it has been taken.

    Each op has by then what the edges say, and nothing is left.
    """
    problem, wires = plan.problem, wires_of(plan)
    programs = [program_of(plan, rank) for rank in range(problem.ranks)]
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
        needs = programs[rank].instructions[at[rank]].needs
        return all(need.receive in sent if need.receive else (rank, need.message) in local for need in needs)

    def run(rank: int, one: Instruction) -> None:
        posted.extend(one.posts)
        assert all(wires[slot.wire].destination == rank for slot in one.posts)
        for message, receive, arrived, stays in one.needs:
            if receive:
                assert wires[receive.wire].destination == rank
                assert wires[receive.wire].messages[receive.at] == message
                assert receive in posted
                taken.append(receive)
                local.add((rank, message))
            if not stays:
                local.remove((rank, message))
            for slot in arrived:
                assert wires[slot.wire].source == rank
                assert slot in taken
            let_go.extend(arrived)
        for message, send in one.gives:
            if send:
                assert wires[send.wire].source == rank
                assert wires[send.wire].messages[send.at] == message
                sent.append(send)
            else:
                local.add((rank, message))
        _check_edges(problem, one)

    while runnable := [rank for rank in range(len(programs)) if ready(rank)]:
        rank = data.draw(st.sampled_from(runnable))
        run(rank, programs[rank].instructions[at[rank]])
        at[rank] += 1
    assert at == [len(program.instructions) for program in programs]
    every = sorted((w, i) for w, wire in enumerate(wires) for i in range(len(wire.transfers)))
    assert sorted(sent) == sorted(posted) == sorted(taken) == every
    assert len(set(let_go)) == len(let_go)
    assert not local


def _check_edges(problem: Problem, one: Instruction) -> None:
    """An op takes what its edges carry, and gives it."""
    op, edges = one.op, problem.edges_of(problem.path_of[one.op.microbatch])
    backward, into, out = op.kind is not Kind.F, [], []
    for edge in edges if op.kind is not Kind.W else ():
        if edge.has_gradient or not backward:
            into += [edge] if op.stage == (edge.source if backward else edge.destination) else []
            out += [edge] if op.stage == (edge.destination if backward else edge.source) else []
    rank_of = [stage.rank for stage in problem.stages]
    if one.first:
        assert [(need.message.gradient, need.message.source) for need in one.needs] == [(backward, edge.source) for edge in into]
        for need, edge in zip(one.needs, into, strict=True):  # a value of another edge comes only where that is as good
            same = [e for e in edges if (e.source, e.destination) == (edge.source, need.message.destination)]
            assert [(e.value, rank_of[e.destination]) for e in same] == [(edge.value, rank_of[edge.destination])]
            assert not backward or same == [edge]
    if one.last:
        given = [(gift.message.source, gift.message.destination) for gift in one.gives]
        first = {(edge.value, rank_of[edge.destination]): edge for edge in reversed(out)}.values()
        assert given == [(edge.source, edge.destination) for edge in out if backward or edge in first]


def test_forward_sends_are_let_go_when_the_gradient_comes() -> None:
    problem = make_problem(2, 3)
    first = program_of(plan_of(problem, constructive("1f1b")(problem)), 0)
    assert [
        (one.op.kind, one.op.microbatch, [slot.at for need in one.needs for slot in need.arrived]) for one in first.instructions
    ] == [
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
        {
            token(one.op): (any(need.receive for need in one.needs), any(gift.send for gift in one.gives))
            for one in program_of(plan, rank).instructions
        }
        for rank in range(2)
    ]
    assert ends == [
        {"F0.0/0": (False, False), "F0.0/1": (False, True), "B0.0": (True, False), "W0.0": (False, False)},
        {"F1.0": (True, False), "B1.0/0": (False, False), "B1.0/1": (False, True), "W1.0": (False, False)},
    ]


def connected_after(pairs: list[tuple[int, int]], order: list[int]) -> int:
    """How long all ranks take to connect, each its wires one after the other in an order, where one takes 1; 0: never."""
    left = {rank: [number for number in order if rank in pairs[number]] for rank in {rank for pair in pairs for rank in pair}}
    for now in range(len(pairs) + 1):
        if not any(left.values()):
            return now
        meeting = [number for number, pair in enumerate(pairs) if all(left[rank][:1] == [number] for rank in pair)]
        for number in meeting:
            for rank in pairs[number]:
                del left[rank][0]
    return 0


def wires_between(pairs: list[tuple[int, int]]) -> list[Wire]:
    return [Wire(source=x, destination=y, name="send", receiver_name="recv", transfers=(), messages=()) for x, y in pairs]


@pytest.mark.parametrize(("ranks", "closed"), [(2, False), (8, False), (64, False), (8, True), (64, True)])
def test_a_chain_connects_in_four_rounds(ranks: int, closed: bool) -> None:
    """And so does a ring; in the order of the wires the last would wait for all."""
    neighbours = [(rank, (rank + 1) % ranks) for rank in range(ranks if closed else ranks - 1)]
    pairs = sorted(way for x, y in neighbours for way in ((x, y), (y, x)))
    assert connected_after(pairs, connecting_order(wires_between(pairs))) == (2 if ranks == 2 else 4)
    if ranks > 2:
        assert connected_after(pairs, list(range(len(pairs)))) > ranks


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)).filter(lambda pair: pair[0] != pair[1]), unique=True, max_size=24))
def test_any_wires_connect(pairs: list[tuple[int, int]]) -> None:
    """In at most as many rounds as two ranks together have wires, less the one that they share."""
    order = connecting_order(wires_between(pairs))
    assert sorted(order) == list(range(len(pairs)))
    of = {rank: sum(rank in pair for pair in pairs) for rank in range(8)}
    most = max((of[x] + of[y] - 1 for x, y in pairs), default=0)
    assert (connected_after(pairs, order) > 0) == bool(pairs)
    assert connected_after(pairs, order) <= most
