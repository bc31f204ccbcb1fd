"""Every way of carrying tensors brings each to its receive, whatever the order; it ends with its peer and with its pipe."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, strategies as st
from inputs.plans import plan_of
from inputs.problems import make_problem
from inputs.random_schedules import random_schedules
from runs import gpu_runs, pipeline_runs, transport_runs
from runs.processes import DEAD, Ranks, rank_processes
from suite.example_counts import examples

from schedc.runtime.transports.delegate import queues_needed
from schedc.solvers.driver.registry import constructive

WAYS = ["gloo", "delegate"]
PLANS: dict[str, dict[str, Any]] = {"1f1b": {}, "zb-v": {"placement": "wave", "chunks": 2}}


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[list[Any], list[list[tuple[str, int, float]]]]:
    """Transfers, of which some have the same tag; sends and receives that are posted and taken in any order that tags allow."""
    kinds = [
        (torch.float32, (3,)),
        (torch.bfloat16, (40, 500)),
        (torch.int16, ()),
        (torch.bool, (0, 3)),
        (torch.complex64, (2, 2)),
        (torch.float64, (1 << 16,)),
    ]
    tags = draw(st.lists(st.integers(0, 3), min_size=1, max_size=8))
    transfers = [(tag, *draw(st.sampled_from(kinds))) for tag in tags]
    pause = st.sampled_from([0.0, 0.0, 0.0, 0.002])
    sends: list[tuple[str, int, float]] = []
    for number in range(len(transfers)):
        sends += [("send", number, 0.0), ("sleep", 0, draw(pause))]
    sends += [("done", number, 0.0) for number in draw(st.permutations(range(len(transfers))))]
    tagged = {tag: [number for number, other in enumerate(tags) if other == tag] for tag in tags}
    receives: list[tuple[str, int, float]] = []
    open_: list[int] = []
    while any(tagged.values()) or open_:
        ready = [tag for tag, numbers in tagged.items() if numbers]
        if ready and (not open_ or draw(st.booleans())):
            number = tagged[draw(st.sampled_from(ready))].pop(0)
            open_.append(number)
            receives.append(("post", number, 0.0))
        else:
            receives.append(("take", open_.pop(draw(st.integers(0, len(open_) - 1))), 0.0))
        receives.append(("sleep", 0, draw(pause)))
    return transfers, [sends, receives]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(exchange=exchanges(), queues=st.integers(1, 4))
def test_any_order_of_sends_and_receives(two: Ranks, way: str, exchange: Any, queues: int) -> None:
    transfers, script = exchange
    assert two.run(transport_runs.exchange, way, transfers, script, queues) == [[], []]


@pytest.mark.slow
@pytest.mark.parametrize("method", PLANS)
@pytest.mark.parametrize("queues", [1, 3])
def test_gradients_through_the_delegate(two: Ranks, method: str, queues: int) -> None:
    problem = make_problem(2, 6, **PLANS[method])
    plan = plan_of(problem, constructive(method)(problem))
    for result in two.run(pipeline_runs.train, plan, channels="delegate", queues=queues):
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9
        assert result["losses"] == pytest.approx(result["expected"], rel=1e-12)


def assert_lost(said: list[Any], way: str, culprit: int) -> None:
    """The first transfer fails; but what the delegate's peer has read before an op asked for it was sent."""
    error, number, _ = said
    assert error == "ConnectionLost" and number <= (4 if way == "delegate" and culprit == 1 else 1)


@pytest.mark.slow
@examples(12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_receives_are_posted_in_the_order_of_the_sends(two: Ranks, data: st.DataObject) -> None:
    """From the first step on, in which the shapes are not known; NCCL matches them by nothing else."""
    placement: Any = data.draw(st.sampled_from(["loop", "wave", "bidirectional", [0, 1, 1, 0, 1, 0]]))
    chunks = data.draw(st.integers(2, 3)) if placement in ("loop", "wave") else 1
    links = {pair: data.draw(st.tuples(st.integers(0, 15), st.integers(0, 8))) for pair in [(0, 1), (1, 0)]}
    problem = make_problem(2, data.draw(st.integers(1, 4)), placement=placement, chunks=chunks, links=links)
    for result in two.run(transport_runs.train_without_tags, plan_of(problem, data.draw(random_schedules(problem)))):
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_peer_that_is_killed(tmp_path_factory: pytest.TempPathFactory, way: str, culprit: int) -> None:
    """It is known at once, long before a wait would give up."""
    with rank_processes(2, tmp_path_factory.mktemp("killed")) as ranks:
        results = ranks.run(transport_runs.end_in_the_middle, way, "kill", culprit, 600.0)
    assert results[culprit] == DEAD
    assert_lost(results[1 - culprit], way, culprit)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_peer_that_closes(tmp_path_factory: pytest.TempPathFactory, way: str, culprit: int) -> None:
    with rank_processes(2, tmp_path_factory.mktemp("closed")) as ranks:
        results = ranks.run(transport_runs.end_in_the_middle, way, "close", culprit, 600.0)
    assert results[culprit] == []
    assert_lost(results[1 - culprit], way, culprit)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_peer_that_is_killed_in_a_transfer(tmp_path_factory: pytest.TempPathFactory, way: str, culprit: int) -> None:
    """Known at once, too, though gloo itself does not end the wait of what has come or gone in part."""
    with rank_processes(2, tmp_path_factory.mktemp("killed")) as ranks:
        results = ranks.run(transport_runs.die_in_a_transfer, way, culprit)
    assert results[culprit] == DEAD
    said = results[1 - culprit]
    doing = [
        "rank 0 waits until rank 1 has received all of the step",
        "rank 1: F1.1 waits for F0.1 from rank 0 on recv_prev",
    ][1 - culprit]
    assert said.startswith(f"{doing}: the connection is lost; rank {culprit} has ended or failed")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("culprit", [0, 1])
def test_a_peer_that_is_stuck(tmp_path_factory: pytest.TempPathFactory, way: str, culprit: int) -> None:
    """Who waits gives up in time, and no earlier."""
    with rank_processes(2, tmp_path_factory.mktemp("stuck")) as ranks:
        (said,) = ranks.run(transport_runs.end_in_the_middle, way, "stop", culprit, 1.0, of=[1 - culprit])
    error, number, waited_s = said
    assert error == "NoAnswer" and number <= (4 if way == "delegate" and culprit == 1 else 1)
    assert waited_s > 0.9


@pytest.mark.parametrize("way", ["delegate"])
def test_a_rank_that_fails_in_a_step(tmp_path_factory: pytest.TempPathFactory, way: str) -> None:
    """The pipe's error names the op; threads end with the pipe, or the processes would not end in time."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(2, tmp_path_factory.mktemp("failing")) as ranks:
        killed, said = ranks.run(pipeline_runs.fail, plan, 0, "kill", 600.0, channels=way)
    assert killed == DEAD
    # What the killed rank had sent may still be on its way, and is lost with it.
    lost = r"TransferFailed: rank 1: F1\.([012]) waits for F0\.\1 from rank 0 on recv_prev: the connection is lost; rank 0"
    assert re.match(lost, said[0])


@pytest.mark.parametrize(("produced", "carried", "queues"), [(8, 2, 4), (1, 10, 1), (7, 2, 4), (6, 2, 3)])
def test_number_of_queues(produced: float, carried: float, queues: int) -> None:
    """PipeMorph 5.2: 8 activations a second, 2 by each delegate: at least 4 queues."""
    assert queues_needed(produced, carried) == queues


def test_channels_that_cannot_be(two: Ranks) -> None:
    problem = make_problem(2, 2)
    plan = plan_of(problem, constructive("1f1b")(problem))
    refusals = {
        ("nccl", "nccl"): "InvalidInput: channels='nccl' carries tensors of GPUs, rank 0's stages are on the CPU; use 'auto'",
        ("ucx", "ucx"): "InvalidInput: channels='ucx'; expected one of 'auto', 'nccl', 'gloo', 'delegate'",
        ("gloo", "auto"): "InvalidInput: ranks 0 and 1 load with channels='gloo', queues=2 and channels='auto', queues=2; give all",
    }
    for channels, said in refusals.items():
        for refusal in two.run(pipeline_runs.refuse, [plan] * 2, [[0], [1]], each=[{"channels": name} for name in channels]):
            assert refusal.startswith(said)
    assert two.run(pipeline_runs.refuse, [plan, plan], [[0], [1]]) == ["accepted"] * 2


def test_what_is_read_in_a_trace() -> None:
    """The GPU benchmark's reader: copies on streams without kernels, and how long each runs beside one."""
    kernel: dict[str, Any] = {"cat": "kernel", "name": "gemm", "args": {"stream": 7}}
    events: list[dict[str, Any]] = [
        kernel | {"ts": 0.0, "dur": 100.0},
        kernel | {"ts": 150.0, "dur": 50.0},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pinned)", "ts": 90.0, "dur": 80.0, "args": {"stream": 13}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pinned -> Device)", "ts": 300.0, "dur": 20.0, "args": {"stream": 17}},
        {"cat": "gpu_memcpy", "name": "Memcpy HtoD (Pageable -> Device)", "ts": 0.0, "dur": 20.0, "args": {"stream": 7}},
        {"cat": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)", "ts": 0.0, "dur": 20.0, "args": {"stream": 17}},
        {"cat": "cpu_op", "name": "aten::mm", "ts": 0.0, "dur": 9.0},
    ]
    found = gpu_runs.read_overlap(events)
    assert found == {"kernel_streams": 1, "copy_streams": 2, "copies": 2, "copy_ms": pytest.approx(0.1), "beside_ms": 0.03}


def test_the_gpu_benchmark_on_a_cpu(two: Ranks) -> None:
    """Its gradients' part, which takes any device."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("zb-h1")(problem))
    for result in two.run(gpu_runs.equal, plan, "float32", 16, 2, 3, "cpu"):
        assert isinstance(result, dict), result
        assert result["error"] < 1e-5 and result["loss"] == pytest.approx(result["expected"], rel=1e-5)


@pytest.mark.slow
def test_what_the_two_gpus_are_asked_when_a_peer_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The program for two GPUs asks what holds on the CPU, too."""
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    with rank_processes(2, tmp_path_factory.mktemp("ends")) as ranks:
        (found,) = ranks.run(gpu_runs.lose_peer, plan, "auto", 60.0, "cpu", "ends", of=[1])
    said, waited_s, computed = found
    assert "rank 0 has ended or failed" in said and computed == 64
    assert waited_s < 60


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 1e-4), ("bfloat16", 1e-2)])
def test_gradients_of_two_ranks_on_one_gpu(two: Ranks, dtype: str, limit: float) -> None:
    problem = make_problem(2, 4)
    plan = plan_of(problem, constructive("1f1b")(problem))
    for result in two.run(gpu_runs.equal, plan, dtype, 256, 2, 16):
        assert isinstance(result, dict), result
        assert result["error"] < limit
