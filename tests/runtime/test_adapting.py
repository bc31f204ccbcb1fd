"""Adapting while training: the plan follows what the monitors say; what goes wrong neither ends training nor spoils a gradient."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import adapt_runs
from runs.adapt_runs import Fault
from runs.processes import DEAD, Ranks, rank_processes
from torch._C._distributed_c10d import PrefixStore, TCPStore

from schedc.adapt.replan import replan
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState
from schedc.runtime.adapt.leading import PlanStore
from schedc.solvers.common.base import SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.robust.family import compile_family

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan

SLOW = Conditions(links={(0, 1): LinkState(latency_ns=150)})
SLOW_BACK = Conditions(links={(1, 0): LinkState(latency_ns=60)})


def job() -> Plan:
    problem = make_problem(2, 6, costs_ns=(18, 19, 11), in_flight=6)
    return plan_of(problem, constructive("rule-table")(problem))


def assert_trained(results: Sequence[Any]) -> None:
    """Every gradient was right, and all ranks ran the same plans."""
    for result in results:
        assert isinstance(result, dict), result
        assert result["error"] < 1e-9
        assert result["plans"] == results[0]["plans"]
        assert [swap[:2] for swap in result["swaps"]] == [swap[:2] for swap in results[0]["swaps"]]


def assert_gone(pid: int) -> None:
    """The process has ended."""
    end_s = time.monotonic() + 100
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def test_to_another_plan_and_back(two: Ranks) -> None:
    """Each rank measures the link to it; when both are as planned, the job's own plan comes back."""
    scripts = [[SLOW_BACK, AS_PLANNED], [SLOW, AS_PLANNED]]
    results = two.run(adapt_runs.adapt_while_training, job(), scripts, 2)
    assert_trained(results)
    for result in results:
        assert [state for state, *_ in result["swaps"]] == ["done", "done"]
        assert result["plans"] == ["test", "replan", "test"]
        assert result["same"]
        assert result["warnings"] == []
    assert results[1]["pid"] is None
    assert_gone(results[0]["pid"])


def test_a_monitor_that_is_asked_while_a_step_runs(two: Ranks) -> None:
    """What it finds is posted, and the plan for it is taken, by the threads."""
    results = two.run(partial(adapt_runs.adapt_while_training, kind=adapt_runs.Signalling), job(), [[None], [SLOW]], 1)
    assert_trained(results)
    for result in results:
        assert [state for state, *_ in result["swaps"]] == ["done"]
        assert result["warnings"] == []


@pytest.mark.slow
def test_nothing_measured_nothing_moved(two: Ranks) -> None:
    results = two.run(adapt_runs.adapt_while_training, job(), [[None], [None]], 0, Fault(), 60)
    assert_trained(results)
    assert [result["swaps"] for result in results] == [[], []]


@pytest.mark.parametrize("way", [pytest.param("garble", marks=pytest.mark.slow), "drop"])
def test_a_plan_that_comes_torn(two: Ranks, way: str) -> None:
    """No rank moves, each says so once, and the next plan is taken."""
    results = two.run(adapt_runs.adapt_while_training, job(), [[SLOW], [SLOW]], 2, Fault(way))
    assert_trained(results)
    for result in results:
        assert [state for state, *_ in result["swaps"]] == ["refused", "done"]
        (warning,) = result["warnings"]
        assert "has refused the plan: plan 1 of the proposer " in warning and "\n" not in warning


@pytest.mark.parametrize(
    ("way", "after", "after_s", "reason"),
    [
        ("kill", 0, 0.0, "it ended by SIGKILL"),
        ("stop", 1, 0.0, "it had no answer after 5 s"),
        pytest.param("kill", 1, 0.003, "it ended by SIGKILL", marks=pytest.mark.slow),
        pytest.param("kill", 2, 0.02, "it ended by SIGKILL", marks=pytest.mark.slow),
        pytest.param("kill", 3, 0.05, "it ended by SIGKILL", marks=pytest.mark.slow),
    ],
)
def test_a_proposer_that_dies_or_hangs(two: Ranks, way: str, after: int, after_s: float, reason: str) -> None:
    """Plans come and go; then training goes on with the one it has. The leader says so once; nothing is started again."""
    script = [[SLOW, AS_PLANNED] * 300] * 2
    results = two.run(adapt_runs.adapt_while_training, job(), script, 10**6, Fault(way, after, after_s))
    assert_trained(results)
    (warning,) = results[0]["warnings"]
    assert warning == f"RuntimeWarning: no more adapting: the proposer has ended: {reason}; plan 'test' goes on"
    assert results[1]["warnings"] == []
    assert len(results[0]["swaps"]) >= after
    assert_gone(results[0]["pid"])


def test_a_rank_that_dies_in_a_swap(tmp_path: Path) -> None:
    """The others end with one line."""
    with rank_processes(2, tmp_path) as ranks:
        lost, dead = ranks.run(adapt_runs.adapt_while_training, job(), [[SLOW], [SLOW]], 1, Fault("die"))
    assert dead == DEAD
    line, *notes = lost.splitlines()
    assert "TransferFailed: rank 0" in line
    assert all(note.startswith("in ") for note in notes)


@pytest.mark.slow
def test_the_proposer_ends_with_a_job_that_is_killed(tmp_path: Path) -> None:
    """However its rank ends."""
    with rank_processes(1, tmp_path) as ranks:
        (pid,) = ranks.run(adapt_runs.start_and_stay)
        assert Path(f"/proc/{pid}").exists()
    assert_gone(pid)


@pytest.mark.slow
def test_ranks_that_choose_simulate_a_plan_in_the_thread_that_takes_it(two: Ranks) -> None:
    """The first one while they load; one rank here keeps to its plan's order."""
    scripts = [[None], [SLOW, AS_PLANNED]]
    results = two.run(partial(adapt_runs.adapt_while_training, choosing=1), job(), scripts, 2)
    assert_trained(results)
    assert [result["plans"] for result in results] == [["test", "replan", "test"]] * 2
    assert [result["threads"] for result in results] == [[], ["MainThread", "schedc adapting", "schedc adapting"]]


@pytest.mark.slow
def test_to_a_plan_of_a_family_back_and_there_again(two: Ranks, tmp_path: Path) -> None:
    """The family's plan for these conditions is as good as a new one, so it comes first; the leader alone has the folder."""
    plan = job()
    family = compile_family(
        plan.problem, [("as planned", AS_PLANNED), ("slow", SLOW)], tmp_path, settings=SearchSettings(method="rule-table")
    )
    assert family.plans[1].certificate.makespan_ns <= replan(plan, SLOW).objective_ns
    scripts = [[None], [SLOW, AS_PLANNED, SLOW]]
    results = two.run(partial(adapt_runs.adapt_while_training, known=str(tmp_path)), plan, scripts, 3)
    assert_trained(results)
    for result in results:
        assert [state for state, *_ in result["swaps"]] == ["done", "done", "done"]
        assert result["plans"] == ["test", "rule-table", "test", "rule-table"]
        assert result["warnings"] == []


def test_what_adapting_refuses(two: Ranks, tmp_path: Path) -> None:
    compile_family(make_problem(2, 4), [("as planned", AS_PLANNED)], tmp_path, settings=SearchSettings(method="1f1b"))
    said = two.run(adapt_runs.adapt_wrongly, job(), str(tmp_path))
    for rank, lines in enumerate(said):
        assert lines[0] == "InvalidInput: adapting: leader: found 2, expected a rank from 0 to 1"
        assert lines[-1].startswith("Unsupported: adapting: the pipelines of a swap_group move to one plan together")
        assert lines[1:-1] == (
            []
            if rank
            else [
                f"InvalidInput: {tmp_path}/plan-0.json: pipeline.microbatches: found a plan of another job, expected one of that of"
                " plan 'test': the plan has 4, the job 6; compile the job again, with schedc family"
            ]
        )
        assert all("\n" not in line for line in lines)


@pytest.mark.slow
def test_plans_that_the_ranks_refuse(two: Ranks) -> None:
    """After a few of them there are no more: they would be refused, too."""
    results = two.run(adapt_runs.adapt_while_training, job(), [[SLOW], [SLOW]], 10**6, Fault("refuse"))
    assert_trained(results)
    for result in results:
        assert [state for state, *_ in result["swaps"]] == ["refused"] * 3
    assert results[1]["warnings"] == results[0]["warnings"][:3]
    assert results[0]["warnings"][3:] == [
        "RuntimeWarning: no more adapting: the ranks have refused 3 plans in a row; plan 'test' goes on"
    ]


def test_ranks_that_wait_for_plans_ask_the_store_once() -> None:
    """However long no plan comes: many ranks would be too many for one store."""

    class Counting:
        def __init__(self, store: Any) -> None:
            self.store, self.calls = store, list[str]()

        def clone(self) -> Any:
            return self

        def __getattr__(self, name: str) -> Any:
            self.calls.append(name)
            return getattr(self.store, name)

    server: Any = TCPStore("127.0.0.1", 0, is_master=True)
    stores = [Counting(PrefixStore("job", server if rank == 0 else server.clone())) for rank in range(3)]
    given: list[Any] = list(stores)
    plans = [PlanStore(store, rank, 3) for rank, store in enumerate(given)]
    threads = [threading.Thread(target=plans[rank].wait_for, args=(1,)) for rank in (1, 2)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    assert [store.calls for store in stores] == [[], ["wait"], ["wait"]]
    plans[0].publish(1, b"content")
    for thread in threads:
        thread.join()
    assert plans[1].take(1)[1] == b"content"
    plans[0].wake(0, 2)
    plans[0].wait_for(2)  # ends without a plan
