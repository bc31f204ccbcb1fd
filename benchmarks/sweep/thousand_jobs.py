"""A sweep of 1,000 jobs: what it costs beside a loop in one process, and what is left of it when processes are killed.

Run it as `python benchmarks/sweep/thousand_jobs.py`; with `--cluster` it also runs on two workers of Dask on this machine, one of
which is killed. The jobs are tiny and greedy, so that the work of the sweep itself shows. Every table must have 1,000 rows, none
double, with the makespans of the loop; otherwise it ends with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from schedc.study.sweep.jobs import read_sweep
from schedc.study.sweep.run import Journal, journal_path

if TYPE_CHECKING:
    from collections.abc import Iterator

JOBS = 1000
JOB = """
pipeline = { ranks = 2, microbatches = 4 }
topology = { sites = [1, 1], between = { latency = "1 ms" } }
[profile]
forward = "10 ms"
backward_input = "11 ms"
backward_weight = "9 ms"
activation = "1 GiB"
activation_after_input = "512 MiB"
"""
SWEEP = f"""
job = "job.toml"
compile = {{ method = "greedy" }}
[grid]
"pipeline.microbatches" = {list(range(2, 12))}
"topology.between.latency" = {[f"{ms} ms" for ms in range(50)]}
"memory.in_flight" = [2, 3]
"""
LOOP = """
import json, sys
from pathlib import Path
from statistics import median
from schedc.study.sweep.jobs import read_sweep
from schedc.study.task import row_of
print(json.dumps({job.key: row_of(job.task).makespan_ns for job in read_sweep(Path(sys.argv[1])).jobs}))
"""


@dataclass(frozen=True)
class Run:
    """A command that ended by itself."""

    seconds: float
    processor_s: float
    """With all processes that it waited for."""
    output: str


def run(*arguments: object) -> Run:
    """Run Python with these arguments to its end."""
    before, begun_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run([sys.executable, *map(str, arguments)], stdout=subprocess.PIPE, text=True, check=True)
    seconds, after = time.perf_counter() - begun_s, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Run(seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout)


def sweep(folder: Path, table: str, *options: object) -> Run:
    """Run the sweep to its end."""
    return run("-m", "schedc", "sweep", folder / "sweep.toml", "-o", folder / table, "--json", *options)


def answered(table: Path) -> int:
    """How many rows the journal of the table has."""
    path = journal_path(table)
    return max(0, path.read_bytes().count(b"\n") - 1) if path.exists() else 0


def wait_for_rows(table: Path, count: int) -> None:
    """Wait until the journal has this many rows."""
    while answered(table) < count:
        time.sleep(0.005)


def children_of(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def killed(folder: Path, table: str) -> int:
    """Begin the sweep, kill a worker, then the command; how many rows are there."""
    path = folder / table
    command = [sys.executable, "-m", "schedc", "sweep", str(folder / "sweep.toml"), "-o", str(path), "--processes", "2", "--quiet"]
    with subprocess.Popen(command) as process:
        wait_for_rows(path, 300)
        workers = children_of(process.pid)
        os.kill(workers[0], signal.SIGKILL)
        wait_for_rows(path, 600)
        workers = children_of(process.pid)
        process.send_signal(signal.SIGKILL)
    until_s = time.monotonic() + 30
    while any(Path(f"/proc/{worker}/exe").exists() for worker in workers):
        assert time.monotonic() < until_s, "a worker outlives its command"
        time.sleep(0.01)
    return answered(path)


def check(folder: Path, table: str, expected: dict[str, int]) -> str:
    """What the table has; an error if that is not every job once, as the loop has it."""
    from pyarrow import parquet

    rows = parquet.read_table(folder / table).to_pylist()
    jobs = read_sweep(folder / "sweep.toml").jobs
    settings = [name for name in rows[0] if "." in name]
    counts = Counter(tuple(row[name] for name in settings) for row in rows)
    assert counts == Counter(tuple(job.columns[name] for name in settings) for job in jobs), "rows are missing or double"
    with Journal(journal_path(folder / table)) as journal:
        assert {key: answer.makespan_ns for key, answer in journal.answers.items()} == expected
    assert [row["makespan_ns"] for row in rows] == [expected[job.key] for job in jobs]
    again = sum(row["attempts"] > 1 for row in rows)
    return f"{len(rows)} rows, {sum(counts.values()) - len(counts)} double, {again} begun a second time, all as in the loop"


@contextmanager
def cluster() -> Iterator[tuple[str, list[int]]]:
    """Two workers of Dask on this machine: the scheduler's address, and the workers' process ids."""
    import distributed

    library: Any = distributed
    with (
        library.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1", silence_logs=50) as made,
        library.Client(made.scheduler_address) as client,
    ):
        yield made.scheduler_address, list(client.run(os.getpid).values())


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cluster", action="store_true", help="also on two workers of Dask")
    parser.add_argument("--rounds", type=int, default=1, help="measure this often, and print the medians")
    arguments = parser.parse_args()
    out = Console(width=120, highlight=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "job.toml").write_text(JOB)
        (folder / "sweep.toml").write_text(SWEEP)
        loop = run("-c", LOOP, folder / "sweep.toml")
        expected = json.loads(loop.output)
        assert len(expected) == JOBS
        rounds = [[loop, *(sweep(folder, f"{count}.parquet", "--processes", count) for count in (1, 2))]]
        for number in range(1, arguments.rounds):
            again = [sweep(folder, f"{number}-{count}.parquet", "--processes", count) for count in (1, 2)]
            rounds.append([run("-c", LOOP, folder / "sweep.toml"), *again])
        names = (("a loop in one process", 1), ("schedc sweep", 1), ("schedc sweep", 2))
        speed = Table("", box=None, pad_edge=False, title=f"{JOBS} jobs, with the start of the command", title_justify="left")
        for header in ("processes", "seconds", "jobs/s", "jobs/s per process", "jobs per processor second"):
            speed.add_column(header, justify="right")
        for (what, processes), runs in zip(names, zip(*rounds, strict=True), strict=True):
            seconds, processor_s = median(each.seconds for each in runs), median(each.processor_s for each in runs)
            rate = JOBS / seconds
            figures = (f"{seconds:.1f}", f"{rate:.1f}", f"{rate / processes:.1f}", f"{JOBS / processor_s:.1f}")
            speed.add_row(what, str(processes), *figures)
        out.print(speed)
        ends = Table("end", "then", "table", box=None, pad_edge=False, title="\nWhat is left", title_justify="left")
        ends.add_row("none, 1 process", "", check(folder, "1.parquet", expected))
        ends.add_row("none, 2 processes", "", check(folder, "2.parquet", expected))
        before = killed(folder, "killed.parquet")
        kept = json.loads(sweep(folder, "killed.parquet", "--processes", 2).output)["kept"]
        assert kept == before
        then = f"resumed with {kept} rows"
        ends.add_row("a worker killed, then the command", then, check(folder, "killed.parquet", expected))
        if arguments.cluster:
            with cluster() as (address, pids):
                command = [sys.executable, "-m", "schedc", "sweep", str(folder / "sweep.toml"), "-o", str(folder / "c.parquet")]
                with subprocess.Popen([*command, "--cluster", address, "--quiet"]) as process:
                    wait_for_rows(folder / "c.parquet", 300)
                    os.kill(pids[0], signal.SIGKILL)
                assert process.returncode == 0
            ends.add_row("a Dask worker of two killed", "went on", check(folder, "c.parquet", expected))
        out.print(ends)


if __name__ == "__main__":
    main()
