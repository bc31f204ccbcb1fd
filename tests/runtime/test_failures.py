"""A rank that ends, fails or gets stuck in the middle of a step makes all others fail, with a message, within the limit."""

from __future__ import annotations

import pipeline_runs
import pytest
from plans import plan_of
from problems import make_problem
from rank_processes import DEAD, rank_processes

from schedc.solvers.registry import constructive

METHODS = {"1f1b": {}, "zb-v": {"placement": "wave", "chunks": 2}, "chimera": {"placement": "bidirectional"}}


@pytest.mark.parametrize(
    ("method", "culprit", "way"),
    [
        ("1f1b", 2, "kill"),
        ("1f1b", 0, "raise"),
        ("1f1b", 3, "exit"),
        ("zb-v", 1, "raise"),
        ("chimera", 3, "kill"),
        ("zb-v", 0, "exit"),
    ],
)
def test_a_rank_that_ends_or_fails(tmp_path_factory: pytest.TempPathFactory, method: str, culprit: int, way: str) -> None:
    """The limit of the wait is far beyond the test's: all ranks learn of it at once, not by waiting."""
    problem = make_problem(4, 8, **METHODS[method])  # type: ignore[arg-type]
    plan = plan_of(problem, constructive(method)(problem))
    with rank_processes(4, tmp_path_factory.mktemp("failing")) as ranks:
        results = ranks.run(pipeline_runs.fail, plan, culprit, way, 600.0)
    for rank, said in enumerate(results):
        if rank != culprit:
            assert_lost(said, rank)
        elif way == "raise":
            assert said[0] == "ValueError: this stage cannot go on"
            assert said[1].startswith("in F") and said[1].endswith(f" on rank {rank}")
            assert said[2].startswith("InvalidInput: the pipe is closed")
        else:
            assert said == DEAD


def assert_lost(said: list[str], rank: int) -> None:
    """One line that names the op, the transfer or message, and the peer; then the pipe is closed."""
    error, *rest = said
    assert error.startswith(("TransferFailed: rank ", "TransferFailed: summing the gradients"))
    assert f"rank {rank}" in error
    assert "the connection is lost; rank " in error
    assert "\n" not in error
    assert rest[-1].startswith("InvalidInput: the pipe is closed")


def test_a_rank_that_is_stuck(tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is alive and never answers: who waits for it gives up after `timeout_s`."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(2, tmp_path_factory.mktemp("stuck")) as ranks:
        (said,) = ranks.run(pipeline_runs.fail, plan, 0, "stop", 1.0, of=[1])
    assert said[0].startswith("TransferFailed: rank 1: F1.2 waits for F0.2 from rank 0 on recv_prev: no answer in 1 s;")


@pytest.mark.parametrize(("comes", "doing"), [(False, "connects the ranks 0, 1, 2"), (True, "hears what the others have loaded")])
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
