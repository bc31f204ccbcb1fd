"""What the compiler's spine costs: simulate, greedy, compile, and the plan file, each measured in a process of its own.

Run it as `python benchmarks/compiler/spine.py`. Each figure is the median of several runs in wall time. Nothing here is a test:
machines differ, and a slow one may miss a limit.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.ir.network import Link
from schedc.ir.problem import Problem, Stage

if TYPE_CHECKING:
    from collections.abc import Callable

MS = 1_000_000


def uniform(ranks: int, microbatches: int) -> Problem:
    """F, B and W of 10 ms on every rank, links with 1 ms of latency and 1 ms of occupancy, memory as 1F1B."""
    stage = Stage(
        rank=0,
        forward_ns=(10 * MS,),
        backward_input_ns=(10 * MS,),
        backward_weight_ns=(10 * MS,),
        backward_ns=(20 * MS,),
        activation_bytes=2,
        activation_after_input_bytes=1,
    )
    return Problem(
        name=f"{ranks}x{microbatches}",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(replace(stage, rank=rank) for rank in range(ranks)),
        paths=(tuple(range(ranks)),),
        path_of=(0,) * microbatches,
        links=tuple(
            Link(source=source, destination=source + step, latency_ns=MS, transfer_ns=MS)
            for source in range(ranks)
            for step in (-1, 1)
            if 0 <= source + step < ranks
        ),
        memory_limit_bytes=(2 * ranks,) * ranks,
        placement="unidirectional",
    )


def timed(call: Callable[[], object], runs: int) -> float:
    """The median seconds of the runs; the first, which warms up, does not count."""
    call()
    seconds = []
    for _ in range(runs):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def simulate_case(ranks: int, microbatches: int) -> dict[str, float]:
    """One ZB-H1 schedule: F, B and W apart, so three ops for each stage and microbatch."""
    from schedc.analysis.simulation.simulate import simulate
    from schedc.solvers.driver.registry import constructive

    problem = uniform(ranks, microbatches)
    schedule = constructive("zb-h1")(problem)
    begun = time.perf_counter()
    simulate(problem, schedule)
    first = time.perf_counter() - begun
    return {"ops": sum(map(len, schedule.orders)), "first": first, "seconds": timed(lambda: simulate(problem, schedule), 9)}


def greedy_case(ranks: int, microbatches: int) -> dict[str, float]:
    """The greedy method, whole."""
    from schedc.solvers.driver.registry import constructive

    problem = uniform(ranks, microbatches)
    begun = time.perf_counter()
    constructive("greedy")(problem)
    return {"seconds": time.perf_counter() - begun}


def plan_case(ranks: int, microbatches: int) -> dict[str, float]:
    """Writing and reading a plan."""
    from schedc.compile.certify import certify
    from schedc.formats.plan.plan_file import read_plan, write_plan
    from schedc.ir.plan import MadeBy
    from schedc.solvers.driver.registry import constructive

    problem = uniform(ranks, microbatches)
    plan = certify(problem, constructive("zb-h1")(problem), MadeBy(schedc="0", method="zb-h1"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        write = timed(lambda: write_plan(plan, path), 3)
        read = timed(lambda: read_plan(path), 3)
        return {"megabytes": path.stat().st_size / 1e6, "write": write, "read": read}


def compile_case(ranks: int, microbatches: int) -> dict[str, float]:
    """`schedc compile --method auto`, from the process's start to its end: without searching on, and to the proof."""
    job = f"""
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
[profile]
forward = "38 ms"
backward_input = "46.5 ms"
backward_weight = "20.5 ms"
activation = "1 GiB"
activation_after_input = "512 MiB"
[memory]
in_flight = {ranks}
[topology]
sites = [{ranks // 2}, {ranks - ranks // 2}]
between = {{ latency = "76 ms", transfer = "76 ms" }}
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.toml"
        path.write_text(job)
        command = [sys.executable, "-m", "schedc.cli.app", "compile", str(path), "-o", f"{folder}/plan.json", "--quiet"]
        candidates = timed(lambda: subprocess.run([*command, "--time-limit", "0s"], check=True), 5)
        return {"candidates": candidates, "proof": timed(lambda: subprocess.run(command, check=True), 5)}


CASES = {"simulate": simulate_case, "greedy": greedy_case, "plan": plan_case, "compile": compile_case}


def measure(name: str, ranks: int, microbatches: int) -> dict[str, float]:
    """The case in a fresh process."""
    command = [sys.executable, __file__, name, str(ranks), str(microbatches)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    """Print the table."""
    table = Table(title="The spine on this machine", title_justify="left", box=None)
    for header in ("what", "measured", "required", ""):
        table.add_column(header)

    def row(what: str, value: float, limit: float, unit: str) -> None:
        table.add_row(what, f"{value:.4g} {unit}", f"under {limit:g} {unit}", "met" if value < limit else "NOT MET")

    large = measure("simulate", 64, 1024)
    row(f"simulate 64 × 1,024 ({large['ops']:,.0f} compute ops)", large["seconds"], 1, "s")
    row("  the first call, compiled loop loaded", large["first"], 1, "s")
    row("  peak memory of the process", large["peak_gib"], 1, "GiB")
    row("simulate 8 × 32", measure("simulate", 8, 32)["seconds"] * 1e3, 2, "ms")
    row("greedy 64 × 1,024", measure("greedy", 64, 1024)["seconds"], 5, "s")
    compiled = measure("compile", 8, 16)
    row("compile auto 8 × 16, whole process, templates and heuristics", compiled["candidates"], 1, "s")
    row("  searched on to the proven optimum", compiled["proof"], 60, "s")
    plan = measure("plan", 64, 1024)
    row("plan file 64 × 1,024", plan["megabytes"], 15, "MB")
    row("  written", plan["write"], 2, "s")
    row("  read", plan["read"], 2, "s")
    Console().print(table)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What the compiler's spine costs.")
    parser.add_argument("case", nargs="?", choices=CASES, help="one case, in this process, as JSON; without it, the table")
    parser.add_argument("ranks", nargs="?", type=int, default=8)
    parser.add_argument("microbatches", nargs="?", type=int, default=16)
    arguments = parser.parse_args()
    if arguments.case is None:
        main()
    else:
        result = CASES[arguments.case](arguments.ranks, arguments.microbatches)
        result["peak_gib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(json.dumps(result))
