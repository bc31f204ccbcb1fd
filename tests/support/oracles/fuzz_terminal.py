"""The command line on a fuzzer's job: no other exit status than documented ones, and one line of what is wrong."""

from __future__ import annotations

import io
from contextlib import redirect_stderr, redirect_stdout
from typing import TYPE_CHECKING

from schedc.cli.app import main
from schedc.compile.driver import compile_problem
from schedc.formats.plan.plan_file import write_plan
from schedc.solvers.common.base import SearchSettings

if TYPE_CHECKING:
    from pathlib import Path

    from oracles.findings import Checks
    from schedc.ir.problem import Problem


def terminal_whole(problem: Problem, directory: Path, checks: Checks) -> None:
    """The command line on the job as it is on disk, and on the plan of what its extra makes of it."""
    job, plan = directory / "fuzz.toml", directory / "fuzz.plan.json"
    templates = [] if problem.is_sharded else [["templates", job]]  # of whole weights
    for command in (["bounds", job], *templates, ["compile", job, "-o", plan, "--method", "greedy", "--quiet"]):
        status = _run(command, checks)
    if status:
        return
    for command in (["show", plan], ["verify", plan, "--job", job], ["simulate", plan], ["verify", plan, "--json"]):
        if _run(command, checks):
            checks.fail(f"terminal {command[0]}: status", command)
    with checks.step("terminal: plan of the extra"):
        write_plan(compile_problem(problem, SearchSettings(method="greedy")).plan, plan)
        for command in (["show", plan], ["verify", plan], ["simulate", plan, "--json"]):
            if _run(command, checks):
                checks.fail(f"terminal {command[0]}: status", command)
        if not problem.cut_blocks and problem.data_parallel is None:  # torch's collectives stop its ranks
            csv = directory / "fuzz.csv"
            for command in (["export", "torch", plan, "-o", csv], ["lint", csv, "--job", job]):
                if _run(command, checks):
                    checks.fail(f"terminal {command[0]}: status", command)


def _run(command: list[object], checks: Checks) -> int:
    """The exit status of the command line."""
    out, err = io.StringIO(), io.StringIO()
    with checks.step(f"terminal {command[0]}"), redirect_stdout(out), redirect_stderr(err):
        try:
            main([str(word) for word in command])
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else 0
            if status not in (0, 3, 4):
                checks.fail(f"terminal {command[0]}: status {status}", err.getvalue())
            if err.getvalue().count("\n") > 1:
                checks.fail(f"terminal {command[0]}: more than a line", err.getvalue())
            return status
    return 1


def terminal_open(directory: Path, checks: Checks) -> None:
    """The command line on a job that leaves the layout open."""
    job, plan = directory / "fuzz.toml", directory / "fuzz.plan.json"
    if _run(["compile", job, "-o", plan, "--method", "greedy", "--quiet"], checks):
        return
    for command in (["show", plan], ["verify", plan, "--job", job], ["simulate", plan]):
        if _run(command, checks):
            checks.fail(f"terminal, open, {command[0]}: status", command)


def terminal_period(directory: Path, checks: Checks) -> None:
    """The command line on a job whose steps overlap, and on a run of its plan."""
    job, plan, run = directory / "fuzz.toml", directory / "fuzz.plan.json", directory / "run.plan.json"
    for command in (["bounds", job], ["templates", job], ["compile", job, "-o", plan, "--method", "steady", "--quiet"]):
        status = _run(command, checks)
    if status:
        return
    for command in (
        *(["show", plan], ["verify", plan, "--job", job], ["simulate", plan], ["unroll", plan, "--steps", "3", "-o", run]),
        *(["show", run], ["verify", run, "--job", job], ["simulate", run, "--json"]),
    ):
        if _run(command, checks):
            checks.fail(f"terminal, overlapping, {command[0]}: status", command)
