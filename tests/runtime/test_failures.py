"""A rank that ends, fails or gets stuck in the middle of a step makes all others fail, with a message, within the limit."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_plans import few_plan
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import fault_runs, pipeline_runs, transport_runs
from runs.processes import DEAD, Ranks, rank_processes

from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from schedc.ir.plan import Plan

METHODS: dict[str, dict[str, Any]] = {
    "1f1b": {},
    "zb-v": {"placement": "wave", "chunks": 2},
    "chimera": {"placement": "bidirectional"},
}


@pytest.mark.parametrize(
    ("method", "culprit", "way"),
    [
        pytest.param("1f1b", 2, "kill", marks=pytest.mark.slow),
        ("1f1b", 0, "raise"),
        ("1f1b", 3, "exit"),
        ("zb-v", 1, "raise"),
        ("chimera", 3, "kill"),
        ("zb-v", 0, "exit"),
    ],
)
def test_a_rank_that_ends_or_fails(tmp_path_factory: pytest.TempPathFactory, method: str, culprit: int, way: str) -> None:
    """The limit of the wait is far beyond the test's: all ranks learn of it at once, not by waiting."""
    problem = make_problem(4, 8, **METHODS[method])
    plan = plan_of(problem, constructive(method)(problem))
    with rank_processes(4, tmp_path_factory.mktemp("failing")) as ranks:
        results = ranks.run(pipeline_runs.fail, plan, culprit, way, 600.0)
    for rank, said in enumerate(results):
        if rank != culprit:
            assert_lost(said, rank)
        elif way == "raise":
            assert said[0] == "ValueError: this stage cannot go on"
            assert said[-2].startswith("in F") and said[-2].endswith(f" on rank {rank}")
            assert said[-1].startswith("InvalidInput: the pipe is closed")
        else:
            assert said == DEAD


def assert_lost(said: list[str], rank: int) -> None:
    """One line that names the op, the transfer or message, and the peer; then the pipe is closed."""
    error, *rest = said
    assert error.startswith(f"TransferFailed: rank {rank}")
    assert "the connection is lost; rank " in error or " sums the gradients of stages " in error
    assert "\n" not in error
    assert rest[-1].startswith("InvalidInput: the pipe is closed")


@pytest.mark.slow
def test_a_rank_that_is_stuck(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is alive and never answers: who waits for it gives up after `timeout_s`."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(2, tmp_path_factory.mktemp("stuck")) as ranks:
        (said,) = ranks.run(pipeline_runs.fail, plan, 0, "stop", 5.0, of=[1])
    assert said[0].startswith("TransferFailed: rank 1: F1.2 waits for F0.2 from rank 0 on recv_prev: no answer in 5 s;")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("comes", "doing"), [(False, "connects the ranks 0, 1, 2"), (True, "waits for what the others have loaded")]
)
def test_a_rank_that_ends_before_the_first_step(tmp_path_factory: pytest.TempPathFactory, comes: bool, doing: str) -> None:
    problem = make_problem(3, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(3, tmp_path_factory.mktemp("absent")) as ranks:
        results = ranks.run(pipeline_runs.load_without, plan, 1, comes)
    for rank, said in enumerate(results):
        if rank == 1:
            assert said == DEAD
        else:
            assert said.startswith(f"TransferFailed: rank {rank} {doing}: another rank has ended or failed, and its own message")
            assert "\n" not in said


def test_a_rank_that_ends_while_groups_connect_costs_one_timeout(two: Ranks) -> None:
    """Gloo waits five times its timeout for a first connection, so it gets a fifth; what waits later has all of it."""
    assert two.run(transport_runs.connecting_timeouts, 60.0) == [[(12.0, 60.0)] * 2 + [(12.0, 1800.0)]] * 2
    assert two.run(transport_runs.connecting_timeouts, 9.0) == [[(2.0, 9.0)] * 2 + [(2.0, 1800.0)]] * 2


def planned(method: str, ranks: int = 4, microbatches: int = 8) -> Plan:
    problem = make_problem(ranks, microbatches, **METHODS[method])
    return plan_of(problem, constructive(method)(problem))


@pytest.mark.slow
@pytest.mark.parametrize(("method", "way"), [("1f1b", "kill"), ("zb-v", "exit"), ("chimera", "kill")])
def test_a_rank_that_ends_at_any_moment(tmp_path_factory: pytest.TempPathFactory, method: str, way: str) -> None:
    """In the second step, somewhere in its middle; `benchmarks/runtime/faults.py` does it fifty times at random moments."""
    directory = tmp_path_factory.mktemp("dying")
    plan = planned(method)
    death = fault_runs.Death(1, len(plan.ranks[1].compute) * 3 // 2, 0.5, way, str(directory / "diary"))
    with rank_processes(4, directory) as ranks:
        results = ranks.run(fault_runs.die, plan, death, 600.0)
    assert (directory / "diary").exists()
    assert results[1] == DEAD
    for rank in (0, 2, 3):
        error = results[rank].error
        assert error.startswith("TransferFailed: ") and "lost" in error and "\n" not in error
        assert any(f"rank {peer}" in error for peer in range(4) if peer != rank), error


@pytest.mark.slow
def test_a_rank_that_is_late_but_not_too_late(four: Ranks) -> None:
    plan = planned("1f1b")
    losses = [result[1] for result in four.run(fault_runs.be_late, plan, 2, 0.0, 60.0)]
    results = four.run(fault_runs.be_late, plan, 2, 1.0, 60.0)
    for rank, (said, own) in enumerate(results):
        assert said.error is None
        assert own == losses[rank] and len(own) == 3


@pytest.mark.slow
def test_a_rank_that_is_too_late(four: Ranks) -> None:
    """All raise: some because they have waited long enough, then the others, the late one among them, because those are gone."""
    results = four.run(fault_runs.be_late, planned("1f1b"), 2, None, 5.0)
    waited = "no answer in 5 s; it is stuck or slower than the timeout_s given to load"
    for rank, (said, own) in enumerate(results):
        assert own == []
        assert said.error.startswith(f"TransferFailed: rank {rank}")
        assert waited in said.error or "the connection is lost; rank " in said.error
    assert any(waited in said.error and "from rank 2 " in said.error for said, _ in results)
    assert waited not in results[2][0].error


@pytest.mark.parametrize("method", ["1f1b", "chimera"])
def test_a_loss_that_is_no_number(four: Ranks, method: str) -> None:
    """All ranks raise the same after the step, and the next step is sound."""
    plan = planned(method)
    results = four.run(fault_runs.lose_numbers, plan, {3: float("nan"), 6: float("inf")}, True)
    root = plan.problem.stages[plan.problem.path(3)[-1]].rank
    expected = (
        f"NonFiniteLoss: step 1: the loss of microbatch 3 (and of 1 more), computed on rank {root}, is nan;"
        " zero the gradients, which hold this step's, before going on, or give load check_loss=False"
    )
    for result in results:
        assert [said.error for said, *_ in result] == [None, expected, None]
        assert [finite for *_, finite in result] == [True, False, True]
        assert [at for at, loss in enumerate(result[1][2]) if not math.isfinite(loss)] == [3, 6]
        assert result[2][1] == results[0][2][1]


def test_a_loss_that_is_no_number_and_is_not_checked(four: Ranks) -> None:
    for result in four.run(fault_runs.lose_numbers, planned("1f1b"), {3: float("inf")}, False):
        assert [said.error for said, *_ in result] == [None] * 3
        assert [math.isfinite(loss) for _, loss, *_ in result] == [True, False, True]


@pytest.mark.parametrize(
    ("after", "own"),
    [
        (0, (2, "RuntimeError: Given normalized_shape=[6], expected input with shape [*, 6], but got input of size[2, 3, 12]")),
        (2, (1, "InvalidInput: microbatch 2: stage 1's output is float64[2, 3, 12], expected float64[2, 3, 6] as before")),
    ],
)
def test_a_stage_whose_output_does_not_fit(four: Ranks, after: int, own: tuple[int, str]) -> None:
    """Rank 1 sends what rank 2's stage does not take, or changes it after two microbatches."""
    plan = planned("1f1b")
    results = four.run(fault_runs.misfit, [plan] * 4, 1, after, 600.0)
    for rank, said in enumerate(results):
        if rank == own[0]:
            assert said.error.startswith(own[1])
            assert f"in F{rank}." in said.error and f"on rank {rank}" in said.error
            assert ("on float64[2, 3, 12] from rank 1" in said.error) == (rank == 2)
        elif own[1].startswith("InvalidInput"):
            assert said.error.startswith(f"InvalidInput: rank 1: {own[1].partition(': ')[2]}") and "\n" not in said.error
        else:
            assert said.error.startswith(f"TransferFailed: rank {rank}") and "the connection is lost; rank " in said.error


def test_plans_that_are_not_for_these_ranks(four: Ranks) -> None:
    for said in four.run(fault_runs.misfit, [planned("1f1b", ranks=2)] * 4, None, 0, 600.0):
        assert said.error == "InvalidInput: plan 'test' is for 2 ranks, this job has 4; start as many, or compile for as many"


def test_a_peer_with_another_plan(four: Ranks) -> None:
    plans = [planned("1f1b")] * 4
    plans[2] = planned("1f1b", microbatches=4)
    for said in four.run(fault_runs.misfit, plans, None, 0, 600.0):
        assert said.error.startswith("CheckFailed: ranks 0 and 2 have different plans (digests ")


@pytest.mark.slow
def test_steps_leave_nothing_behind(four: Ranks) -> None:
    """After 10 steps as many tensors live as after 40; `benchmarks/runtime/overhead.py` looks at 1,000, and at memory."""
    for found in four.run(fault_runs.grow, planned("zb-v", microbatches=2), 40, 10):
        assert len(found) == 4
        assert {living for _, living in found} == {found[0][1]}


def test_the_first_step_has_a_limit_of_its_own(two: Ranks) -> None:
    """Who compiles its stages is waited for; who is as late in a later step is named."""
    first, _ = two.run(pipeline_runs.late, few_plan("1f1b"), [1, 9], 7.0, timeout_s=4.0, first_timeout_s=60.0)
    assert first[:2] == ["stepped"] * 2
    assert "from rank 1 on recv_next: no answer in 4 s; it is stuck or slower than the timeout_s" in first[2]


def test_a_late_rank_is_named_while_it_is_waited_for(two: Ranks) -> None:
    """After a quarter of the limit."""
    first, _ = two.run(pipeline_runs.late, few_plan("1f1b"), [5], 4.0, timeout_s=8.0)
    assert first.count("stepped") == 3
    said = r"rank 0: BW0\.0 waits for BW1\.0 from rank 1 on recv_next: for [\d.]+ s so far, 8 s at most"
    assert any(re.fullmatch(said, line) for line in first), first
