"""How large the plan file of a large plan is, and how long it takes to write, read and verify it.

Run it as `python benchmarks/compiler/plan_file.py [ranks] [microbatches]`; the default is 64 ranks and 1,024 microbatches of 1F1B.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from schedc.analysis.bounds.lower_bounds import lower_bounds
from schedc.analysis.gap import relative_gap
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.formats.plan.plan_file import read_plan, write_plan
from schedc.ir.network import Link
from schedc.ir.ops import Kind, Op
from schedc.ir.plan import Certificate, MadeBy, Plan
from schedc.ir.problem import Problem, Stage
from schedc.ir.schedule import Schedule
from schedc.lower.plan import lower
from schedc.verify.plan.checks import verify_plan

MS = 1_000_000


def large_plan(ranks: int, microbatches: int) -> Plan:
    """1F1B with B and W apart, so three ops for each block of the model."""
    pairs = [pair for rank in range(ranks - 1) for pair in ((rank, rank + 1), (rank + 1, rank))]
    problem = Problem(
        name="large",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(
            Stage(
                rank=rank,
                forward_ns=(38 * MS,),
                backward_input_ns=(40 * MS,),
                backward_weight_ns=(20 * MS,),
                backward_ns=(60 * MS,),
                activation_bytes=2**30,
            )
            for rank in range(ranks)
        ),
        paths=(tuple(range(ranks)),),
        path_of=(0,) * microbatches,
        links=tuple(Link(source=source, destination=destination, latency_ns=MS, transfer_ns=MS) for source, destination in pairs),
        memory_limit_bytes=(None,) * ranks,
    )
    orders = []
    for rank in range(ranks):
        ahead = min(ranks - rank, microbatches)
        order = [Op(Kind.F, rank, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            order += [Op(Kind.B, rank, microbatch), Op(Kind.W, rank, microbatch)]
            if ahead + microbatch < microbatches:
                order.append(Op(Kind.F, rank, ahead + microbatch))
        orders.append(tuple(order))
    schedule = Schedule(orders=tuple(orders))
    timeline = simulate(problem, schedule)
    bound = max(lower_bounds(problem), key=lambda bound: bound.value_ns)
    certificate = Certificate(
        makespan_ns=timeline.makespan_ns,
        lower_bound_ns=bound.value_ns,
        gap=relative_gap(timeline.makespan_ns, bound.value_ns, bound.name),
        bound=bound.name,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(problem, schedule),
        stage_span_ns=timeline.stage_span_ns,
    )
    return lower(problem, schedule, timeline, certificate=certificate, made_by=MadeBy(schedc="benchmark", method="1f1b"))


def main() -> None:
    """Print size and seconds."""
    parser = argparse.ArgumentParser(description="How large a plan file is, and how long it takes to write, read and verify it.")
    parser.add_argument("ranks", nargs="?", type=int, default=64)
    parser.add_argument("microbatches", nargs="?", type=int, default=1024)
    arguments = parser.parse_args()
    ranks, microbatches = arguments.ranks, arguments.microbatches
    if min(ranks, microbatches) < 1:
        parser.error(f"{ranks} ranks and {microbatches} microbatches: expected at least 1 of each")
    started = time.perf_counter()
    plan = large_plan(ranks, microbatches)
    print(f"simulated and lowered in {time.perf_counter() - started:.2f} s")
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "large.plan.json"
        started = time.perf_counter()
        write_plan(plan, path)
        written = time.perf_counter()
        again = read_plan(path)
        read = time.perf_counter()
        print(f"{path.stat().st_size / 1e6:.2f} MB, written in {written - started:.2f} s, read in {read - written:.2f} s")
    if again != plan:
        raise SystemExit("the plan that was read differs from the one that was written")
    started = time.perf_counter()
    violations = verify_plan(plan)
    print(f"verified in {time.perf_counter() - started:.2f} s, {len(violations)} violations")


if __name__ == "__main__":
    main()
