"""Ranks that choose their next op by what has come: they do reorder, and gradients and losses are those of the plan's order."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.plans import plan_of
from inputs.problems import MS, make_problem
from runs import choosing_runs
from runs.forked import fork_emulations
from runs.processes import Ranks, rank_processes
from runs.stage_blocks import WIDTH, Residual, Watching, gradients
from torch import nn

from schedc.ir.conditions import LinkState, LinkTrace
from schedc.ir.ops import Kind, parse_op
from schedc.ir.schedule import Parts, Schedule
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.program import program_of
from schedc.runtime.emulation.emulate import emulate
from schedc.runtime.execution.arrivals import Arrivals
from schedc.runtime.execution.online import QUEUE_OF, _choices
from schedc.runtime.stage.batches import Microbatches
from schedc.runtime.stage.training import Training
from schedc.runtime.transports.base import Ends, UnderWay
from schedc.solvers.driver.registry import constructive
from schedc.verify.plan.checks import verify_plan

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schedc.ir.plan import Plan

RANKS = 3
CUT = (Kind.B, Kind.BW)
SLOW_PAIR = LinkTrace.of([(0, pair, LinkState(latency_ns=15_000_000)) for pair in ((0, 1), (1, 0))])
SLOW = LinkTrace.of([(0, pair, LinkState(latency_ns=15_000_000)) for pair in ((0, 1), (1, 0), (1, 2), (2, 1), (2, 0), (0, 2))])


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    with rank_processes(RANKS, tmp_path_factory.mktemp("choosing")) as processes:
        yield processes


def plan_by(method: str, **options: Any) -> Plan:
    problem = make_problem(RANKS, 6, in_flight=5, **options)
    return plan_of(replace(problem, name=method), constructive(method)(problem))


def in_parts(plan: Plan) -> Plan:
    """The same orders with each B and BW in two parts, one right behind the other."""
    orders = tuple(
        tuple(piece for op in rank.compute for piece in ([op._replace(part=0), op._replace(part=1)] if op.kind in CUT else [op]))
        for rank in plan.ranks
    )
    kinds = {(op.kind, op.stage) for rank in plan.ranks for op in rank.compute if op.kind in CUT}
    parts = tuple(Parts(kind=kind, stage=stage, shares=(1, 1)) for kind, stage in sorted(kinds))
    return plan_of(plan.problem, Schedule(orders=orders, parts=parts))


def peak(plan: Plan, rank: int, order: list[str]) -> int:
    """What the plan's sizes say that the order holds at most."""
    held = most = 0
    for op in map(parse_op, order):
        stage = plan.problem.stages[op.stage]
        held += stage.activation_bytes if op.kind is Kind.F else 0
        most = max(most, held)
        if op.part == 0:  # of B or BW: the last part releases
            continue
        after = stage.activation_after_input_bytes
        held -= {Kind.F: 0, Kind.B: stage.activation_bytes - after, Kind.W: after, Kind.BW: stage.activation_bytes}[op.kind]
    return most


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "options"),
    [
        (plan_by("1f1b"), {"recompute": True}),
        (in_parts(plan_by("zb-h1")), {"recompute": True}),
        (plan_by("zb-h1"), {"channels": "delegate"}),
        (plan_by("greedy", placement="loop", chunks=2), {}),
        (plan_by("zb-v", placement="wave", chunks=2), {}),
        (plan_by("greedy", placement="wave", chunks=2), {"channels": "delegate"}),
        (plan_by("greedy", placement="bidirectional"), {}),
    ],
    ids=[
        "1f1b, recomputed",
        "zb-h1 with B in parts, recomputed",
        "zb-h1, delegate",
        "loop",
        "zb-v",
        "wave, delegate",
        "bidirectional",
    ],
)
def test_they_reorder_and_gradients_are_those_of_the_plan_bit_by_bit(ranks: Ranks, plan: Plan, options: dict[str, Any]) -> None:
    planned = ranks.run(choosing_runs.train, plan, [False] * RANKS, None, **options)
    chosen = ranks.run(choosing_runs.train, plan, [True] * RANKS, SLOW, **options)
    for rank, (one, other) in enumerate(zip(planned, chosen, strict=True)):
        assert other["gradients"] == one["gradients"]
        assert other["losses"] == one["losses"]
        assert other["warned"] == []
        in_order = one["orders"][0]
        assert other["orders"][0] == in_order  # shapes are not known yet
        for order in other["orders"][1:]:
            assert sorted(order) == sorted(in_order)
            limit_bytes = plan.problem.memory_limit_bytes[rank]
            assert limit_bytes is not None
            assert peak(plan, rank, order) <= limit_bytes
            for queue in range(3):
                assert [op for op in order if QUEUE_OF[parse_op(op).kind] == queue] == [
                    op for op in in_order if QUEUE_OF[parse_op(op).kind] == queue
                ]
    assert any(order != each["orders"][0] for each in chosen for order in each["orders"][1:])


@pytest.mark.slow
def test_ranks_that_choose_and_ranks_that_do_not_swap_together(ranks: Ranks) -> None:
    first, second = plan_by("1f1b"), plan_by("zb-h1")
    planned = ranks.run(choosing_runs.train, first, [False] * RANKS, None, second)
    chosen = ranks.run(choosing_runs.train, first, [True, False, True], SLOW, second)
    for rank, (one, other) in enumerate(zip(planned, chosen, strict=True)):
        assert (other["gradients"][-1], other["losses"]) == (one["gradients"][-1], one["losses"])
        assert other["warned"] == []
        if rank == 1:
            assert other["orders"][-1] == one["orders"][-1]


@pytest.mark.slow
def test_replicas_sum_their_gradients_in_one_order(tmp_path: Path) -> None:
    """A loop on two ranks: each has two stages, whose sums must begin in the same order on both replicas."""
    problem = make_problem(2, 4, in_flight=4, placement="loop", chunks=2)
    plan = plan_of(problem, constructive("greedy")(problem))
    with rank_processes(4, tmp_path) as processes:
        planned = processes.run(choosing_runs.train, plan, [False] * 4, None)
        chosen = processes.run(choosing_runs.train, plan, [True] * 4, SLOW_PAIR)
    assert [each["gradients"] for each in chosen] == [each["gradients"] for each in planned]
    assert any(each["orders"][1] != each["orders"][0] for each in chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("how", "line"), [("raises", "another rank has ended"), ("hangs", "no answer in 5 s")])
def test_a_rank_that_fails_ends_the_step_of_all(tmp_path: object, how: str, line: str) -> None:
    with rank_processes(RANKS, tmp_path) as processes:  # type: ignore[arg-type]
        said = processes.run(choosing_runs.fail, plan_by("1f1b"), 1, how)
    assert all(each.startswith("TransferFailed") for each in (said[0], said[2])), said
    assert said[1].startswith("ValueError: this stage cannot go on" if how == "raises" else "TransferFailed"), said
    if how == "hangs":
        assert any(line in each for each in said), said


@pytest.mark.slow
def test_a_rank_that_hangs_is_found_though_an_op_waits_for_its_time(tmp_path: Path) -> None:
    """The plan says seconds where ops take microseconds: F0.2 is ready, and its time is 40 s away."""
    problem = make_problem(2, 4, in_flight=4, costs_ns=(10_000 * MS, 10_000 * MS, 10_000 * MS))
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(2, tmp_path) as processes:
        said = processes.run(choosing_runs.fail, plan, 1, "hangs in an op")
    assert said[0].startswith("TransferFailed: rank 0: BW0.0 waits for BW1.0 from rank 1 on recv_next: no answer in 5 s"), said
    assert said[1].startswith("TransferFailed"), said


def test_what_has_come_is_there_without_waiting() -> None:
    """A rank whose time is over takes only what has come."""

    class Slow(threading.Condition):
        def __exit__(self, *error: Any) -> None:
            super().__exit__(*error)
            if threading.current_thread() is not threading.main_thread():
                time.sleep(0.2)  # whoever waits for this goes on before the thread that notifies

    plan = plan_by("1f1b")
    wire = next(each for each in program_of(plan, 1).wires if each.destination == 1)
    arrivals = Arrivals()
    arrivals.changed = Slow()
    inner: Any = SimpleNamespace(receive=lambda kind, tag: UnderWay(lambda timeout_s: torch.ones(2)))
    taken = arrivals.around(None)(wire, Ends(inner, inner)).data.receive(TensorMeta.of(torch.ones(2)), 0)
    with arrivals.changed:
        assert arrivals.changed.wait_for(lambda: arrivals.has_come(wire, 0), 10)
    arrivals.expired = True
    assert taken.wait(10).tolist() == [1, 1]


def test_what_a_transfer_proves_has_been_used_in_every_order() -> None:
    """A gradient proves the peer's F of its microbatch, and those before it; and in a loop of three the sends in the other way."""
    plan = plan_by("zb-h1")
    choices = _choices(plan, program_of(plan, 0))
    proven: set[tuple[int, int]] = set()
    for choice in choices:
        if choice.instruction.op.kind is Kind.B:
            arrived = {slot for need in choice.instruction.needs for slot in need.arrived}
            proven |= arrived
            assert {slot.at for slot in arrived} <= set(range(choice.instruction.op.microbatch + 1))
    assert {at for _, at in proven} == set(range(6))


@pytest.mark.parametrize("kind", CUT)
def test_what_runs_between_the_parts_of_a_backward_that_the_job_recomputes(kind: Kind) -> None:
    """Gradients are those of the plan's order bit by bit. The first part does all: no two recomputations hold memory at once."""
    problem = make_problem(1, 3)
    orders = {
        Kind.B: ("F0.0 F0.1 B0.0/0 B0.0/1 W0.0 B0.1/0 B0.1/1 F0.2 W0.1 B0.2/0 B0.2/1 W0.2",
                 "F0.0 F0.1 B0.0/0 F0.2 B0.0/1 B0.1/0 W0.0 B0.1/1 W0.1 B0.2/0 B0.2/1 W0.2"),
        Kind.BW: ("F0.0 F0.1 BW0.0/0 BW0.0/1 BW0.1/0 BW0.1/1 F0.2 BW0.2/0 BW0.2/1",
                  "F0.0 F0.1 BW0.0/0 F0.2 BW0.0/1 BW0.1/0 BW0.1/1 BW0.2/0 BW0.2/1"),
    }[kind]  # fmt: skip
    planned, chosen = (tuple(map(parse_op, order.split())) for order in orders)
    plan = plan_of(problem, Schedule(orders=(planned,), parts=(Parts(kind=kind, stage=0, shares=(1, 1)),)))
    assert verify_plan(plan) == ()
    instruction_of = {one.op: one for one in program_of(plan, 0).instructions}
    inputs, targets, found = torch.randn(3, WIDTH), torch.randn(3, WIDTH), []
    losses: Any = SimpleNamespace(add=lambda microbatch, loss: None)
    for order in (planned, chosen):
        torch.manual_seed(0)
        middle = Watching([nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)])
        stage = nn.Sequential(Residual(), nn.Dropout(0.5), middle)
        training = Training(plan, program_of(plan, 0), {0: stage}, lambda output, target: (output * target).sum(), recompute=True)
        training.begin(Microbatches(inputs.chunk(3), targets.chunk(3)), losses)
        for op in order:
            training.run(instruction_of[op], ())
            if op.part == 0:
                assert middle.live() == ([0, 2] if kind is Kind.B else [])  # what W reads
        training.finish()
        found.append([None if each is None else each.numpy().tobytes() for each in gradients(stage)])
    assert found[1] == found[0]


@pytest.mark.slow
def test_a_weight_gradient_waits_for_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan leaves rank 1 idle for 3 ms, until F0.1 arrives; W1.0 would take 10 ms (tests/analysis/test_choosing.py)."""
    fork_emulations(monkeypatch)
    links = {(0, 1): (0, 23 * MS), (1, 0): (0, 0)}
    problem = make_problem(2, 2, costs_ns=(10 * MS, 10 * MS, 10 * MS), links=links, in_flight=2)
    text = "F0.0 F0.1 B0.0 W0.0 B0.1 W0.1", "F1.0 B1.0 F1.1 B1.1 W1.0 W1.1"
    plan = plan_of(problem, Schedule(orders=tuple(tuple(map(parse_op, order.split())) for order in text)))
    (run,) = emulate(plan, runs=1, choose=True).orders
    assert run[1] == plan.ranks[1].compute
