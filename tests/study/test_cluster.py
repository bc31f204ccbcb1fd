"""Jobs on a cluster of Dask workers on this machine, one of which is killed; what is wrong with a cluster in one line."""

from __future__ import annotations

import os
import sys
from concurrent.futures import CancelledError
from dataclasses import dataclass
from signal import SIGKILL
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.sweeps import sweep_in

from schedc.errors import InvalidInput, Unsupported
from schedc.study import executors as executors_module
from schedc.study.sweep.run import Journal, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

distributed: Any = pytest.importorskip("distributed", reason="needs schedc[cluster]")
from distributed.scheduler import KilledWorker  # noqa: E402


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers on this machine, one thread each."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as made:
        yield made


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_no_job(tmp_path: Path, cluster: Any) -> None:
    sweep = sweep_in(tmp_path, f'job = "job.toml"\ncompile = {{method = "1f1b", seed = {list(range(60))}}}')
    with distributed.Client(cluster.scheduler_address) as client:
        pids = list(client.run(os.getpid).values())
    with Journal(tmp_path / "journal") as journal:
        for _ in run(sweep, journal, processes=1, cluster=cluster.scheduler_address):
            if len(journal.answers) > 5 and pids:
                os.kill(pids.pop(), SIGKILL)
                pids.clear()
        assert {answer.status for answer in journal.answers.values()} == {"planned"}
        assert {job.key for job in sweep.jobs} == set(journal.answers)
    assert (tmp_path / "journal").read_bytes().count(b"\n") == 61, "no row is double"


@pytest.mark.slow
def test_a_cluster_that_cannot_be_used_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_module, "CONNECT_S", 0.5)
    sweep = sweep_in(tmp_path, 'job = "job.toml"')
    none, not_one = "found no scheduler of Dask at", "expected the address of a scheduler of Dask"
    for address, says in (("tcp://127.0.0.1:1", none), ("nonsense://x:1", not_one), ("head", not_one), ("", not_one)):
        with Journal(tmp_path / "journal") as journal, pytest.raises(InvalidInput, match=says) as refused:
            list(run(sweep, journal, processes=1, cluster=address))
        assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_cluster_without_workers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors_module, "NO_WORKER_S", 0.5)
    sweep = sweep_in(tmp_path, 'job = "job.toml"')
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as made,
        Journal(tmp_path / "journal") as journal,
        pytest.raises(InvalidInput, match=r"has had no worker for 0\.5 s; start some"),
    ):
        list(run(sweep, journal, processes=1, cluster=made.scheduler_address))


@dataclass(frozen=True)
class Ended:
    """A future of Dask that has ended in some way."""

    error: BaseException | None

    def exception(self, timeout: float) -> BaseException | None:
        assert timeout > 0
        if isinstance(self.error, CancelledError):
            raise self.error
        return self.error


class Lost:
    """A future that had ended, and whose row cannot be fetched."""

    def exception(self, timeout: float) -> BaseException | None:
        raise TimeoutError(timeout)


def test_each_way_in_which_dask_gives_no_answer_has_its_words() -> None:
    worker: Any = SimpleNamespace(address="tcp://here:1")
    executor = executors_module.DaskExecutor(None, "tcp://there:2")
    killed = executor.row_of(Ended(KilledWorker("task", worker, 3)))
    assert killed is not None
    assert (killed.status, killed.error) == ("crashed", "its worker died at each attempt, and last tcp://here:1")
    with pytest.raises(InvalidInput, match=r"a worker of tcp://there:2 cannot run schedc .No module named 'schedc'.; install"):
        executor.row_of(Ended(ModuleNotFoundError("No module named 'schedc'")))
    with pytest.raises(InvalidInput, match="the scheduler at tcp://there:2 lost jobs; run the command again"):
        executor.row_of(Ended(CancelledError()))
    with pytest.raises(ZeroDivisionError):
        executor.row_of(Ended(ZeroDivisionError()))
    with pytest.raises(TimeoutError, match="of the task itself"):
        executor.row_of(Ended(TimeoutError("of the task itself")))
    assert executor.row_of(Lost()) is None, "the wait for a row took too long, as its worker was lost"


def test_without_dask_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    sweep = sweep_in(tmp_path, 'job = "job.toml"')
    with Journal(tmp_path / "journal") as journal, pytest.raises(Unsupported, match=r"pip install 'schedc\[cluster\]'"):
        list(run(sweep, journal, processes=1, cluster="tcp://127.0.0.1:1"))
