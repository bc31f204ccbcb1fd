"""Layers that move while training goes on: no step is lost, and all is as if the new layout had been there from the start."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.asynchronous_plans import period_plan
from inputs.few_plans import made_by
from runs import migration_runs
from runs.processes import DEAD, rank_processes

from schedc.compile.driver import compile_problem
from schedc.ir import DataParallel, Versions
from schedc.lower.run import run_of
from schedc.runtime.execution.gate import TrafficGate
from schedc.runtime.transports.base import Ends
from schedc.solvers.common.base import SearchSettings

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir import Plan


EXACT = 1e-12


def merged(results: list[Any]) -> dict[str, Any]:
    """The values of all ranks."""
    for result in results:
        assert isinstance(result, dict), result
    return {name: value for result in results for name, value in result["values"].items()}


def same(one: Any, other: Any, *, exact: bool) -> bool:
    """Whether they are equal, but for the order in which a norm of all ranks adds up."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key], exact=exact) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(same(*pair, exact=exact) for pair in zip(one, other, strict=True))
    return bool(one == other or (not exact and abs(one - other) < EXACT))


def check(ranks: Ranks, layouts: list[Plan], moves: dict[int, Plan], steps: int, kind: str, **options: Any) -> None:
    """The losses of a job in which layers move are those with the last layout, and so is all that the ranks have at the end."""
    usual = ranks.run(migration_runs.trained, layouts[-1], {}, steps, kind, **options)
    moved = ranks.run(migration_runs.trained, layouts[0], moves, steps, kind, **options)
    assert same(merged(moved), merged(usual), exact="max_norm" not in options)
    assert all(same(each["losses"], usual[0]["losses"], exact="max_norm" not in options) for each in moved)
    assert all(len(each["took"]) == len(moves) and each["took"] == moved[0]["took"] for each in moved), moved[0]["took"]


@pytest.mark.parametrize(("method", "kind"), [("1f1b", "adamw"), ("zb-h1", "sgd")])
def test_a_layer_moves_between_two_ranks(two: Ranks, method: str, kind: str) -> None:
    one, other = (made_by(method, 2, 3, counts=counts) for counts in ([4, 2], [3, 3]))
    check(two, [one, other], {1: other}, 12, kind, max_norm=0.1, accumulated=2)


@pytest.mark.slow
def test_layers_of_several_ranks_move_at_once_and_on(four: Ranks) -> None:
    plans = [made_by("zb-h1", 4, 5, counts=counts) for counts in ([2, 2, 1, 1], [1, 1, 2, 2], [1, 2, 2, 1])]
    check(four, plans, {1: plans[1], 12: plans[2]}, 26, "adamw", max_norm=0.1)


def test_at_once_and_without_priority(two: Ranks) -> None:
    """With dropout, which draws the same on the new rank, as the job has a seed."""
    one, other = (made_by("1f1b", 2, 3, counts=counts) for counts in ([2, 4], [3, 3]))
    check(two, [one, other], {2: other}, 10, "adamw", priority=False, chunk_bytes=None, dropout=0.3)


@pytest.mark.slow
def test_ranks_that_no_layer_leaves_and_float32(four: Ranks) -> None:
    """Ranks 0 and 3 give none and get none."""
    one, other = (made_by("1f1b", 4, 4, counts=counts) for counts in ([1, 3, 1, 1], [1, 2, 2, 1]))
    check(four, [one, other], {1: other}, 14, "sgd", dtype=torch.float32)


class Message:
    """One that is through when it is said to be."""

    def __init__(self) -> None:
        self.through = threading.Event()

    def wait(self, timeout_s: float) -> None:
        assert self.through.wait(timeout_s)


def test_the_gate_is_open_while_no_message_is_under_way() -> None:
    first, second = messages = [Message(), Message()]
    inner: Any = SimpleNamespace(send=lambda tensor, tag: messages[tag])
    sender: Any = SimpleNamespace(ends=Ends(inner, inner))
    gate = TrafficGate()
    gate.watch([sender])
    watched = sender.ends.data
    gate.watch([sender])
    assert sender.ends.data is watched
    assert watched.send(torch.zeros(1), 0) is first
    assert gate.wait(0)  # as nothing uses it
    gate.use(1)
    sent = [watched.send(torch.zeros(1), tag) for tag in range(2)]
    first.through.set()
    sent[0].wait(60)
    assert not gate.wait(0)
    second.through.set()
    sent[1].wait(60)
    assert gate.wait(60)


@pytest.mark.parametrize("mode", [Versions.STASH, Versions.TWO_BUFFERED])
def test_where_steps_overlap(two: Ranks, mode: Versions) -> None:
    one, other = (with_layers(run_of(period_plan(2, 3, mode), 4), counts) for counts in ([4, 2], [3, 3]))
    way: dict[str, Any] = {"max_norm": 0.1, "per_stage": mode is Versions.STASH}
    moved = two.run(migration_runs.overlapping, one, {1: other}, range(8), "adamw", **way)
    ((took,), *_) = [each["took"] for each in moved]
    if mode is Versions.STASH:  # the delays of layers are those of their stages: the same layouts in turn
        begun = two.run(migration_runs.overlapping, one, {}, range(took + 1), "adamw", **way)
        usual = two.run(migration_runs.overlapping, other, {}, range(took + 1, 8), "adamw", merged(begun), **way)
    else:
        begun = [{"losses": []}] * 2
        usual = two.run(migration_runs.overlapping, other, {}, range(8), "adamw", **way)
    assert same(merged(moved), merged(usual), exact=False)
    assert same(moved[1]["losses"], begun[1]["losses"] + usual[1]["losses"], exact=False)


def test_plans_of_one_pipeline_whose_steps_end_with_the_optimizers(two: Ranks) -> None:
    """`tune` puts it where a reduce-scatter would be; there are no replicas, so nothing is in the way."""
    step = DataParallel(size=1, zero_stage=0, reduce_scatter_ns=(1, 1))
    problems = [replace(made_by("1f1b", 2, 3, counts=counts).problem, data_parallel=step) for counts in ([4, 2], [3, 3])]
    one, other = (compile_problem(problem, SearchSettings(method="1f1b")).plan for problem in problems)
    assert one.ranks[0].collectives
    check(two, [one, other], {1: other}, 6, "sgd")


def with_layers(plan: Plan, counts: list[int]) -> Plan:
    """With this many layers in each stage."""
    firsts = [sum(counts[:at]) for at in range(len(counts) + 1)]
    stages = tuple(replace(stage, layers=(firsts[at], firsts[at + 1])) for at, stage in enumerate(plan.problem.stages))
    return replace(plan, problem=replace(plan.problem, stages=stages))


def test_refusals(two: Ranks) -> None:
    """Training goes on with the old layout."""
    one, other = (made_by("1f1b", 2, 3, counts=counts) for counts in ([4, 2], [3, 3]))
    for to, way, expected in (
        (made_by("1f1b", 2, 3, counts=[3, 2]), "", "CheckFailed: rank 0 refuses the migration: plan 'test' is for 5 layers, plan"),
        (made_by("1f1b", 2, 3), "", "CheckFailed: rank 0 refuses the migration: plan 'test' does not say which layers"),
        (other, "replicas", "CheckFailed: rank 0 refuses the migration: layers of replicas do not migrate while they train; move"),
        (other, "loss", "CheckFailed: rank 1 refuses the migration: the loss function has weights, which do not migrate; nothing"),
        (
            other,
            "elsewhere",
            "CheckFailed: rank 1 refuses the migration: build gave the stages [0], expected [1]; nothing has moved",
        ),
        (other, "list", "CheckFailed: rank 0 refuses the migration: found a list for the optimizer, expected one torch.optim."),
        (other, "chunk", "CheckFailed: rank 0 refuses the migration: found chunk_bytes=-1, expected a number above 0; nothing has"),
        (other, "chunks", "CheckFailed: rank 0 has chunk_bytes=9, rank 1 10; give all the same; nothing has moved"),
        (other, "rate", "CheckFailed: the optimizers of ranks 0 and 1 differ: group 0 has lr = 0.1 and 0.2; layers migrate"),
        (other, "groups", "CheckFailed: the optimizers of ranks 0 and 1 differ: 25 and 10 groups of weights; layers migrate"),
        (other, "adapting", "CheckFailed: rank 0 refuses the migration: the pipe adapts, to plans for the layout that it has;"),
        (other, "adapts", "InvalidInput: adapting: a migration of layers, or another adaptation, moves the pipe; wait until that"),
        (other, "early", "rank 0: inner.norm.weight of layer 3 has a gradient that no step of the optimizer has used; call"),
        (other, "changed", "rank 1: shift of layer 3 is not what the optimizer's steps alone make of it;"),
        (other, "slow", "rank 0: rank 0 sends gradients more slowly to rank 1 than it makes them"),
    ):
        for lines in two.run(migration_runs.refused, one, to, way):
            assert isinstance(lines, list), lines
            assert lines[0].startswith(expected), lines
            assert len(lines) == (3 if way in ("changed", "early", "slow") else 2)
            assert lines[-1] is True


def test_steps_of_an_optimizer_are_what_is_behind(two: Ranks) -> None:
    """All four of a run wait after it, and no other record counts."""
    one, other = (with_layers(run_of(period_plan(2, 3, Versions.STASH), 4), counts) for counts in ([4, 2], [3, 3]))
    for most, runs, behind in ((3, 1, 4), (4, 2, 8), (8, 3, 12)):
        (noted, reason), (_, same_reason) = two.run(migration_runs.behind, one, other, most)
        assert (noted, reason) == (runs, same_reason)
        assert f", and is {behind} steps behind, more than {most}; move the layers" in reason


def test_layers_keep_their_modes_and_what_is_frozen(two: Ranks) -> None:
    """Dropout that is off by `eval` in a model that trains, and weights that are frozen while they are under way."""
    one, other = (made_by("1f1b", 2, 3, counts=counts) for counts in ([4, 2], [3, 3]))
    usual = two.run(migration_runs.with_modes, other, {})
    moved = two.run(migration_runs.with_modes, one, {0: other})
    assert all(each[2] for each in moved), moved
    assert [each[:2] for each in moved] == [each[:2] for each in usual]


def test_a_pipe_that_is_closed_while_layers_are_under_way_keeps_no_gradients(two: Ranks) -> None:
    one, other = (made_by("1f1b", 2, 3, counts=counts) for counts in ([4, 2], [3, 3]))
    assert all(each < 5 for each in two.run(migration_runs.closed, one, other))


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_a_killed_rank_ends_all(tmp_path: Path, victim: int) -> None:
    """The source, the destination, a bystander."""
    one, other = (made_by("1f1b", 4, 4, counts=counts) for counts in ([3, 1, 1, 1], [2, 2, 1, 1]))
    with rank_processes(4, tmp_path) as ranks:
        said = ranks.run(migration_runs.killed, one, other, victim)
    assert said[victim] == DEAD
    for rank, line in enumerate(said):
        if rank != victim:
            assert line.startswith("TransferFailed: "), said
            assert line.endswith(" running"), said
            assert "\n" not in line
