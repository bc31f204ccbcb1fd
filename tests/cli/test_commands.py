"""The command line as its users run it: every command, its JSON, its exit statuses, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from suite.command_line import schedc

from schedc.view.document import Table, right
from schedc.view.terminal.show import show

ROOT = Path(__file__).parents[2]
JOB = ROOT / "examples" / "m70-2dc" / "job.toml"


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of the M70 example by 1F1B."""
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    done = schedc("compile", JOB, "-o", path, "--method", "1f1b")
    assert done.returncode == 0, done.stderr
    return path


def test_compile_auto_prints_candidates_and_certificate_and_writes_a_plan_that_verifies(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    done = schedc("compile", JOB, "-o", path)
    assert done.returncode == 0, done.stderr
    for expected in ("1f1b", "zb-h1", "greedy", "pipemorph", "not zb-v: needs a wave placement", "lower bound", "bubble ratio"):
        assert expected in done.stdout
    assert schedc("verify", path, "--job", JOB).returncode == 0
    assert list(tmp_path.iterdir()) == [path]


def test_compile_says_where_a_partition_is_far_from_balanced(tmp_path: Path) -> None:
    """With the stages' work; and as JSON. The example itself is balanced."""
    example = ROOT / "examples" / "llama-3b"
    (tmp_path / "profile.json").write_bytes((example / "profile.json").read_bytes())
    job = tmp_path / "job.toml"
    job.write_text((example / "job.toml").read_text().replace("[9, 8, 7, 6]", "[8, 8, 7, 7]"))
    done = schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "1f1b")
    said = " ".join(done.stdout.split())
    assert "note: the busiest rank has 12.5% more work than with the balanced partition" in said
    assert "[8, 8, 8, 6] instead of [8, 8, 7, 7] layers" in said
    assert "2 2 16 to 22 1.789 s 22.5% 5.469 GiB 10.5 GiB" in said
    found = json.loads(schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "1f1b", "--json").stdout)
    assert found["layout"]["partition"] == [8, 8, 7, 7] and found["layout"]["balanced_partition"] == [8, 8, 8, 6]
    assert (found["layout"]["placement"], found["layout"]["recompute"]) == ("unidirectional", [False] * 4)
    assert found["layout"]["stages"][2] == {
        "rank": 2, "layers": [16, 23], "work_ns": 1_788_640_000, "activation_bytes": 5600 * 2**20, "static_bytes": 21 * 2**29,
    }  # fmt: skip
    assert len(found["notes"]) == 1
    done = schedc("compile", example / "job.toml", "-o", tmp_path / "plan.json", "--method", "1f1b")
    assert done.returncode == 0 and "note" not in done.stdout


def test_compile_json_is_one_object_with_the_promised_keys(tmp_path: Path) -> None:
    done = schedc("compile", JOB, "-o", tmp_path / "plan.json", "--json")
    found = json.loads(done.stdout)
    keys = {"makespan_ns", "lower_bound_ns", "gap", "bound", "method", "seconds", "candidates", "history"}
    assert keys <= found.keys()
    by_method = {entry["method"]: entry for entry in found["candidates"]}
    assert by_method["1f1b"]["makespan_ns"] == 4_543_000_000
    assert by_method["zb-h1"]["makespan_ns"] == 4_174_000_000
    assert "wave" in by_method["zb-v"]["why_not"]
    assert found["makespan_ns"] == found["lower_bound_ns"] == 2_736_000_000  # the proven optimum
    assert found["makespan_ns"] <= min(entry["makespan_ns"] for entry in found["candidates"] if "makespan_ns" in entry)
    assert found["history"][-1]["makespan_ns"] == found["makespan_ns"]
    assert found["method"] in {step["found_by"] for step in found["history"]}
    assert found["gap"] == (found["makespan_ns"] - found["lower_bound_ns"]) / found["makespan_ns"]


def test_a_stage_span_is_shown_where_it_is_the_objective(tmp_path: Path) -> None:
    """ "Against the best" compares the objective, so the table has it beside the makespan; the history of --json has both."""
    job = tmp_path / "job.toml"
    job.write_text(
        '[pipeline]\nranks = 2\nmicrobatches = 4\n[objective]\nminimize = "stage-span"\n'
        '[profile]\nforward = ["3 ms", "5 ms"]\nbackward_input = ["1 ms", "5 ms"]\nbackward_weight = ["1 ms", "9 ms"]\n'
    )
    shown = schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "greedy")
    header, row = shown.stdout.splitlines()[1:3]
    assert header.split()[:3] == ["method", "makespan", "stage-span"]
    assert row.split()[:5] == ["greedy", "79", "ms", "76", "ms"]
    assert schedc("templates", job).stdout.splitlines()[1].split()[:3] == ["method", "makespan", "stage-span"]
    found = json.loads(schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "greedy", "--json").stdout)
    assert (found["objective"], found["objective_ns"], found["stage_span_ns"]) == ("stage-span", 76_000_000, 76_000_000)
    (step,) = found["history"]
    assert (step["makespan_ns"], step["objective_ns"]) == (79_000_000, 76_000_000)
    assert found["gap"] == 1 - found["lower_bound_ns"] / 76_000_000
    (entry,) = found["candidates"]
    assert (entry["makespan_ns"], entry["objective_ns"]) == (79_000_000, 76_000_000)


def test_a_search_that_fails_is_told_and_the_plan_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise KeyError("lost")

    monkeypatch.setattr("schedc.solvers.exact.milp.Milp.improve", failing)
    job = tmp_path / "job.toml"  # its least makespan is above every analytic bound
    job.write_text(
        '[pipeline]\nranks = 2\nmicrobatches = 2\nplacement = "wave"\nchunks = 2\n[topology.within]\nlatency = "1 ms"\n'
        '[profile]\nforward = "3 ms"\nbackward_input = "4 ms"\nbackward_weight = "12 ms"\nbackward = "6 ms"\n'
    )
    for extra in ("--quiet", "--json"):
        path = tmp_path / f"plan{extra}.json"
        done = schedc("compile", job, "-o", path, "--method", "milp", extra)
        assert done.returncode == 0
        assert schedc("verify", path, "--job", job).returncode == 0
        (line,) = done.stderr.splitlines()
        assert line.startswith("schedc: a defect of schedc, please report it: method milp failed with KeyError at schedc.solvers.")
        assert line.endswith(": 'lost'; the plan was written and does not rest on it")
    (failure,) = json.loads(done.stdout)["failures"]
    assert (failure["method"], failure["error"], failure["message"]) == ("milp", "KeyError", "'lost'")
    assert failure["place"].startswith("schedc.solvers.")


@pytest.mark.slow
def test_another_process_gives_the_same_bytes(tmp_path: Path) -> None:
    limit = ("--deterministic-limit", "1")
    schedc("compile", JOB, "-o", tmp_path / "one.json", "--quiet", *limit)
    command = [sys.executable, "-m", "schedc.cli.app", "compile", str(JOB), "-o", str(tmp_path / "two.json"), "--quiet", *limit]
    subprocess.run(command, check=True, env={"PYTHONHASHSEED": "7"})
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_simulate_prints_each_rank_and_the_published_makespan(plan: Path) -> None:
    found = json.loads(schedc("simulate", plan, "--json").stdout)
    assert found["makespan_ns"] == 4_543_000_000
    assert [entry["rank"] for entry in found["ranks"]] == list(range(8))
    assert found["busy_ns"] == [entry["busy_ns"] for entry in found["ranks"]]
    for entry in found["ranks"]:
        assert entry["busy_ns"] == 16 * 105_000_000
        assert entry["busy_ns"] + entry["idle_ns"] == found["makespan_ns"]
    assert found["ranks"][0]["peak_activation_bytes"] == 8 << 30
    assert "4.543 s" in schedc("simulate", plan).stdout


def test_simulate_with_another_job_takes_its_costs(plan: Path, tmp_path: Path) -> None:
    """The same pipeline without delay between the sites: CrossPipe's first cell."""
    job = tmp_path / "job.toml"
    job.write_text(JOB.read_text().replace('"76 ms"', '"0 ms"'))
    assert json.loads(schedc("simulate", plan, "--job", job, "--json").stdout)["makespan_ns"] == 2_415_000_000


def test_simulate_with_transfers_that_hold_up_compute(plan: Path) -> None:
    usual = json.loads(schedc("simulate", plan, "--json").stdout)
    assert usual["transfers"] == "decoupled"
    assert json.loads(schedc("simulate", plan, "--transfers", "decoupled", "--json").stdout) == usual
    queued = json.loads(schedc("simulate", plan, "--transfers", "one-queue", "--json").stdout)
    assert queued["transfers"] == "one-queue"
    assert queued["makespan_ns"] > usual["makespan_ns"]
    assert queued["busy_ns"] == usual["busy_ns"]
    shown = schedc("simulate", plan, "--transfers", "one-queue").stdout
    longer = queued["makespan_ns"] / usual["makespan_ns"] - 1
    assert f"with one-queue transfers; decoupled ones take 4.543 s, so these cost {longer:+.2%}" in " ".join(shown.split())


def test_simulate_with_ranks_that_choose(plan: Path, tmp_path: Path) -> None:
    usual = json.loads(schedc("simulate", plan, "--json").stdout)
    found = json.loads(schedc("simulate", plan, "--choose", "--json").stdout)
    assert found["chooses"] and found["as_planned_ns"] == usual["makespan_ns"] > found["makespan_ns"]
    assert (found["moved_ops"] > 0, found["busy_ns"]) == (True, usual["busy_ns"])
    assert max(found["peak_activation_bytes"]) == 8 << 30
    links = tmp_path / "links.csv"
    links.write_text("time_ms,ranks,latency_ms,bandwidth_GBps\n1000,3-4,0,\n1000,4-3,0,\n")
    changed = json.loads(schedc("simulate", plan, "--links", links, "--json").stdout)
    assert changed["makespan_ns"] == changed["as_planned_ns"] < usual["makespan_ns"]
    shown = " ".join(schedc("simulate", plan, "--choose").stdout.split())
    less = found["makespan_ns"] / usual["makespan_ns"] - 1
    assert (
        f"in the plan's orders it takes 4.543 s, which choosing changes by {less:+.2%}; {found['moved_ops']} ops run at another"
        in shown
    )
    done = schedc("simulate", plan, "--choose", "--transfers", "blocking")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "schedc: --transfers blocking: cannot be combined with --choose or --links; leave one out\n"


def test_simulate_names_the_cycle_where_blocking_transfers_deadlock(tmp_path: Path) -> None:
    """PipeMorph's plan has two more forwards in flight on rank 0 than on rank 1, which ends in a deadlock without queues."""
    plan = tmp_path / "plan.json"
    schedc("compile", JOB.parent.parent / "pipemorph-4x12" / "job.toml", "-o", plan, "--method", "pipemorph", "--quiet")
    done = schedc("simulate", plan, "--transfers", "blocking")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "schedc: pipemorph-4x12: the plan cannot be timed: where transfers block, the ranks wait for each other indefinitely:"
        " rank 0 to send F0.7 to rank 1, rank 1 to send B1.3 to rank 0\n"
    )


def test_simulate_refuses_a_job_with_another_pipeline(plan: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.read_text().replace("microbatches = 16", "microbatches = 12"))
    done = schedc("simulate", plan, "--job", job)
    assert done.returncode == 1
    assert "pipeline.microbatches" in done.stderr


def test_verify_names_the_broken_rule_and_its_place(plan: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(plan.read_text().replace('"makespan_ns": 4543000000', '"makespan_ns": 4000000000'))
    done = schedc("verify", broken)
    assert done.returncode == 1
    assert "certificate.makespan_ns" in done.stdout
    assert json.loads(schedc("verify", broken, "--json").stdout)["holds"] is False


def test_verify_says_whose_word_a_solvers_bound_is(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        """
[pipeline]
ranks = 3
microbatches = 4
[profile]
forward = ["1 ns", "6 ns", "5 ns"]
backward_input = ["2 ns", "3 ns", "4 ns"]
backward_weight = ["2 ns", "5 ns", "1 ns"]
activation = "2 B"
activation_after_input = "1 B"
[memory]
in_flight = 2
[[topology.link]]
ranks = [0, 1]
latency = "4 ns"
transfer = "2 ns"
"""
    )
    assert schedc("compile", job, "-o", tmp_path / "plan.json", "--quiet").returncode == 0
    done = schedc("verify", tmp_path / "plan.json")
    assert done.returncode == 0
    assert "proven optimal among schedules of whole blocks" in done.stdout
    assert "the bound is a result of cpsat" in done.stdout


def test_verify_with_a_job_notices_other_costs(plan: Path, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.read_text().replace('"38 ms"', '"39 ms"'))
    done = schedc("verify", plan, "--job", job)
    assert done.returncode == 1
    assert "costs.stages[0]" in done.stdout


@pytest.mark.parametrize("width", [60, 110, 200])
def test_show_fits_the_terminal_and_shows_ranks_links_and_memory(plan: Path, width: int) -> None:
    done = schedc("show", plan, width=width)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    for rank in range(8):
        assert any(line.startswith(f"rank {rank} ") and "=" in line and ">" in line for line in lines)
        assert any(line.startswith(f"mem {rank} ") and "█" in line for line in lines) is (rank == 0)
    assert sum(line.startswith("trunk ") for line in lines) == 2


def test_show_a_stretch_of_time(plan: Path) -> None:
    done = schedc("show", plan, "--from", "0ms", "--to", "38 ms")
    rank_rows = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    assert rank_rows[0].split()[2].startswith("0>>>>")
    assert set(rank_rows[1].split()[2]) == {"·"}


def test_a_stretch_of_time_beyond_the_end_is_refused(plan: Path) -> None:
    for times in (("--from", "10s"), ("--from", "2s", "--to", "1s")):
        done = schedc("show", plan, *times)
        assert done.returncode == 2
        assert "--from" in done.stderr


def test_a_terminal_without_unicode_gets_no_traceback(plan: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "schedc.cli.app", "show", str(plan)],
        capture_output=True,
        check=False,
        env={"PYTHONIOENCODING": "ascii", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    assert b"rank 0" in done.stdout


def test_a_published_warm_up_can_be_asked_for(tmp_path: Path) -> None:
    """PipeMorph 3.1 without delay: warm-up 7, 5, 3, 1 takes 390 ms."""
    job = tmp_path / "job.toml"
    job.write_text((ROOT / "examples" / "pipemorph-4x12" / "job.toml").read_text().replace('"20 ms"', '"0 ms"'))
    method = "pipemorph{warm_up=7,5,3,1}"
    done = schedc("compile", job, "-o", tmp_path / "plan.json", "--method", method, "--json")
    assert json.loads(done.stdout)["makespan_ns"] == 390_000_000


def test_bounds_prints_every_bound_with_the_binding_one_first() -> None:
    found = json.loads(schedc("bounds", JOB, "--json").stdout)
    assert {"work", "link", "residency", "path"} <= found.keys()
    best = max(found, key=lambda name: found[name]["value_ns"])
    rows = schedc("bounds", JOB).stdout.splitlines()
    assert rows[2].split()[0] == best
    assert 0 < found[best]["value_ns"] <= 2_736_000_000  # the proven optimum


def test_templates_are_listed_and_timed() -> None:
    assert "dualpipe-v" in schedc("templates").stdout
    timed = schedc("templates", JOB).stdout
    assert "4.543 s" in timed
    assert "needs" in timed


@pytest.mark.parametrize("file", ["job", "plan", "tune"])
def test_schema_is_a_json_schema(file: str) -> None:
    found = json.loads(schedc("schema", file).stdout)
    assert "$schema" in found or "$ref" in found or "properties" in found


@pytest.mark.parametrize(
    ("arguments", "status", "expected"),
    [
        (("compile", "missing.toml", "-o", "plan.json"), 2, "missing.toml"),
        (("compile", JOB, "-o", "/nonexistent/folder/plan.json"), 2, "/nonexistent/folder"),
        (("compile", JOB, "-o", "plan.json", "--method", "zbh1"), 2, "did you mean 'zb-h1'"),
        (("compile", JOB, "-o", "plan.json", "--method", "zb-v"), 4, "zb-v needs a wave placement"),
        (("compile", JOB, "-o", "plan.json", "--method", "greedy{n_sub}"), 2, "name=value"),
        (("compile", JOB, "-o", "plan.json", "--method", "greedy{sub=2}"), 2, "n_sub"),
        (("compile", JOB, "-o", "plan.json", "--method", "greedy{"), 2, "braces"),
        (("compile", JOB, "-o", "plan.json", "--method", "greedy{n_sub=1,n_sub=2}"), 2, "twice"),
        (("compile", JOB, "-o", "plan.json", "--method", "pipemorph{warm_up=3,2}"), 2, "warm_up"),
        (("compile", JOB, "-o", "plan.json", "--time-limit", "60"), 2, "60"),
        (("verify", "missing.json"), 2, "missing.json"),
        (("verify", JOB), 2, "job.toml"),
        (("show", ROOT), 2, "directory"),
        (("schema", "topology"), 2, "topology"),
        (("nonsense",), 2, "nonsense"),
    ],
)
def test_bad_use_gets_a_message_and_a_status_but_never_a_traceback(
    arguments: tuple[object, ...], status: int, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = schedc(*arguments)
    assert done.returncode == status, done.stderr
    assert expected in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_too_small_a_limit_is_proven_infeasible_with_the_smallest_that_would_do(tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(JOB.read_text().replace('limit = "8 GiB"', 'limit = "1000 MiB"'))
    done = schedc("compile", job, "-o", tmp_path / "plan.json")
    assert done.returncode == 3
    assert "rank 0" in done.stderr
    assert "1 GiB" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_help_imports_nothing_heavy() -> None:
    """Torch, ortools, numpy and numba stay out of `schedc --help`, whatever the machine's speed."""
    script = (
        "import sys\n"
        "from schedc.cli.app import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit: pass\n"
        "heavy = {'torch', 'ortools', 'numpy', 'numba', 'highspy', 'pulp', 'msgspec'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compile" in done.stdout


def test_a_table_that_is_too_wide_leaves_columns_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No cell is cut, no row takes two lines, and what is missing is named."""
    for width, expected in ((80, 0), (24, 1), (12, 2)):
        monkeypatch.setenv("COLUMNS", str(width))
        columns, rows = right("first", "second", "third"), [("12345", "123456789", "12345678")]
        show([Table(title="a title of some length", columns=columns, rows=rows, may_go=("third", "none", "second"))])
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 3 + bool(expected) and "…" not in "".join(lines)
        assert lines[2].split() == ["12345", "123456789", "12345678"][: 3 - expected]
        if expected:
            assert lines[3] == f"not shown in {width} columns: {', '.join(('third', 'second')[:expected])}"
