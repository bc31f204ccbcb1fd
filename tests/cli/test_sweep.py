"""`schedc sweep` as a command: table, resuming after any end, interruptions, what it refuses and prints."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from signal import SIGINT, SIGKILL, SIGTERM

import pytest
from inputs.sweeps import JOB
from suite.command_line import schedc

from schedc.study.sweep.run import Journal, journal_path

SWEEP = """
job = "job.toml"
[compile]
method = ["greedy", "1f1b"]
[grid]
pipeline.microbatches = [2, 3]
memory.in_flight = [1, 2]
"""
MANY = f"""
job = "job.toml"
[compile]
method = "1f1b"
seed = {list(range(150))}
"""
PAUSING = """
import time
from schedc.study import executors, task
compile_now = task.row_of
def answer(request):
    if request.source.options.seed >= 100:
        time.sleep(1000)
    return compile_now(request)
executors.row_of = answer
executors.serve_tasks()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "sweep.toml").write_text(SWEEP)
    (tmp_path / "many.toml").write_text(MANY)
    return tmp_path


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_sweep_is_a_table_and_goes_on_where_it_was(folder: Path) -> None:
    table = folder / "table.csv"
    done = schedc("sweep", folder / "sweep.toml", "-o", table, "--processes", 1)
    assert done.returncode == 5, "some jobs have no plan"
    found = rows(table)
    assert [(row["pipeline.microbatches"], row["memory.in_flight"], row["compile.method"]) for row in found] == [
        (count, limit, method) for count in "23" for limit in "12" for method in ("greedy", "1f1b")
    ]
    assert [row["status"] for row in found] == ["planned", "no-plan", "planned", "planned"] * 2
    assert [row["makespan_ns"] for row in found[2:4]] == ["9000000", "11000000"]
    assert "8 jobs on 1 process;" in done.stderr
    assert "planned 6" in " ".join(done.stdout.split())
    assert "no-plan 2" in " ".join(done.stdout.split())
    assert "8 rows written to" in done.stdout
    assert sorted(entry.name for entry in folder.iterdir() if "table" in entry.name) == ["table.csv", "table.csv.journal"]

    content = table.read_bytes()
    table.unlink()
    known = schedc("sweep", folder / "sweep.toml", "-o", table)
    assert (known.returncode, table.read_bytes()) == (5, content)
    assert "8 are known" in known.stderr

    (folder / "sweep.toml").write_text(SWEEP.replace("[2, 3]", "[2]").replace("[1, 2]", "[2]"))
    fewer = schedc("sweep", folder / "sweep.toml", "-o", table)
    assert fewer.returncode == 0
    assert rows(table) == found[2:4]
    assert "6 rows of the journal belong to no job of this sweep" in fewer.stderr
    as_json = json.loads(schedc("sweep", folder / "sweep.toml", "-o", table, "--json").stdout)
    assert as_json.pop("seconds") >= 0
    assert as_json == {"jobs": 2, "rows": 2, "kept": 2, "statuses": {"planned": 2}}
    quiet = schedc("sweep", folder / "sweep.toml", "-o", table, "--quiet")
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")


def test_what_cannot_be_written_or_read_is_refused_before_any_work(folder: Path) -> None:
    for arguments, message in (
        (("sweep.toml", "-o", folder / "t.txt"), "-o: found 't.txt', expected a name that ends with .csv or .parquet"),
        (("none.toml", "-o", folder / "t.csv"), "none.toml: found no readable file"),
        (("sweep.toml", "-o", folder / "none" / "t.csv"), "does not exist; create it first"),
        (
            ("sweep.toml", "-o", folder / "t.csv", "--cluster", "tcp://127.0.0.1:1", "--processes", 2),
            "--processes: found it beside",
        ),
    ):
        done = schedc("sweep", folder / arguments[0], *arguments[1:])
        assert (done.returncode, done.stdout) == (2, "")
        assert message in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(entry.name for entry in folder.iterdir()) == ["job.toml", "many.toml", "sweep.toml"]


def started(folder: Path, processes: int) -> subprocess.Popen[str]:
    """The command, which does not get beyond the first 100 jobs, so that there is time to end it."""
    code = f"from schedc.study import executors\nexecutors.WORKER = ('-c', {PAUSING!r})\nfrom schedc.__main__ import main\nmain()"
    arguments = ["sweep", str(folder / "many.toml"), "-o", str(folder / "t.csv"), "--processes", str(processes)]
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_rows(folder: Path, count: int) -> None:
    journal = journal_path(folder / "t.csv")
    until_s = time.monotonic() + 100
    while not (journal.exists() and journal.read_bytes().count(b"\n") > count):
        assert time.monotonic() < until_s
        time.sleep(0.01)


def children_of(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


@pytest.mark.slow
def test_killed_children_and_a_killed_command_cost_no_row_and_double_none(folder: Path) -> None:
    with started(folder, 2) as command:
        wait_for_rows(folder, 10)
        os.kill(children_of(command.pid)[0], SIGKILL)
        wait_for_rows(folder, 60)
        command.send_signal(SIGKILL)
    assert not (folder / "t.csv").exists()
    with Journal(journal_path(folder / "t.csv")) as journal:
        before = dict(journal.answers)
    assert 60 <= len(before) < 150
    done = schedc("sweep", folder / "many.toml", "-o", folder / "t.csv", "--processes", 2, "--json")
    assert json.loads(done.stdout)["kept"] == len(before)
    found = rows(folder / "t.csv")
    assert Counter(row["compile.seed"] for row in found) == Counter(map(str, range(150)))
    assert {row["status"] for row in found} == {"planned"}
    assert len(journal_path(folder / "t.csv").read_bytes().splitlines()) == 151
    with Journal(journal_path(folder / "t.csv")) as journal:
        assert before.items() <= journal.answers.items()


@pytest.mark.slow
@pytest.mark.parametrize("number", [SIGINT, SIGTERM])
def test_an_interruption_writes_the_rows_so_far(folder: Path, number: int) -> None:
    with started(folder, 1) as command:
        wait_for_rows(folder, 5)
        child = children_of(command.pid)[0]
        command.send_signal(number)
        _, errors = command.communicate(timeout=250)
    assert command.returncode == 130
    count = len(rows(folder / "t.csv"))
    assert 5 <= count < 150
    assert f"schedc: {count} of 150 rows are written to {folder / 't.csv'}; the same command goes on from there\n" in errors
    assert errors.endswith("schedc: interrupted\n")
    assert not Path(f"/proc/{child}").exists()
