"""Jobs on a cluster of Dask workers on this machine, one of which is killed; what is wrong with a cluster in one line."""

from __future__ import annotations

import os
from signal import SIGKILL
from typing import TYPE_CHECKING, Any

import pytest
from sweeps import sweep_in

from schedc.errors import InvalidInput
from schedc.sweep import cluster as cluster_module
from schedc.sweep.journal import Journal
from schedc.sweep.run import run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

distributed: Any = pytest.importorskip("distributed", reason="needs schedc[cluster]")
pytestmark = pytest.mark.slow


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Two workers on this machine, one thread each."""
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as made:
        yield made


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


def test_a_cluster_that_cannot_be_used_is_refused_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "CONNECT_S", 0.5)
    sweep = sweep_in(tmp_path, 'job = "job.toml"')
    for address in ("tcp://127.0.0.1:1", "nonsense://x:1"):
        with (
            Journal(tmp_path / "journal") as journal,
            pytest.raises(InvalidInput, match="found no scheduler of Dask at") as refused,
        ):
            list(run(sweep, journal, processes=1, cluster=address))
        assert "\n" not in str(refused.value)


def test_a_cluster_without_workers_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_module, "NO_WORKER_S", 0.5)
    sweep = sweep_in(tmp_path, 'job = "job.toml"')
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=None, host="127.0.0.1") as made,
        Journal(tmp_path / "journal") as journal,
        pytest.raises(InvalidInput, match=r"has had no worker for 0\.5 s; start some"),
    ):
        list(run(sweep, journal, processes=1, cluster=made.scheduler_address))
