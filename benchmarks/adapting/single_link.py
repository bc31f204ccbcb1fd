"""PipeMorph's figure 15: GPT-2 14B on 8 ranks, 24 microbatches, the link between ranks 6 and 7 delayed by 0 to 60 ms.

Each method predicted by the simulator and, with --emulate, run by real processes over real channels with injected links, beside
what PipeMorph's authors measured on H800s (`benchmarks/others/slow_link.py` says how each of their engines sends, and where its
numbers are from). Ours is `replan`: what a running job with ZB's plan moves to once the link is known to be slow. It keeps ZB's
memory, 16 microbatches on each rank; PipeMorph moves activations to the host, so its plan has no limit, and beside it is ours
without one. The optimum is the best plan that `compile` finds in --time-limit seconds with the same memory, and its bound.

Run it as `python benchmarks/adapting/single_link.py FOLDER [--emulate] [--delays 0,30,60]`, where FOLDER has
`profiles/pipemorph-gpt2-14b-h800-stages.json`. Exit status 1: a plan of ours is slower than PipeMorph's or above the bound by 3 %.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from schedc.adapt.replan import replan
from schedc.analysis.comparison.compare import compare
from schedc.analysis.simulation.engines import Transfers, simulate_engine
from schedc.analysis.simulation.memory import peak_bytes
from schedc.compile.certify import certify
from schedc.compile.driver import compile_problem
from schedc.compile.plans import time_plan
from schedc.ir.conditions import Conditions, LinkState
from schedc.ir.plan import MadeBy
from schedc.runtime.emulation.emulate import emulate
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import constructive
from schedc.study.bench.pipelines import FREE, LinkTimes

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.pipemorph_slow_link import DELAYS_MS, MEASURED_MS, MS, ROOM, SLOW_LINK, problem_of, stages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem, Stage
    from schedc.ir.schedule import Schedule

MOST_ABOVE = 0.03


class Case(NamedTuple):
    """One method under one delay."""

    method: str
    plan: Plan
    queues: int = 4
    bound_ns: int | None = None

    @property
    def predicted_ns(self) -> int:
        """What the simulator says."""
        transfers = Transfers.DECOUPLED if self.queues == 4 else Transfers.ONE_QUEUE
        return simulate_engine(self.plan.problem, self.plan.schedule(), transfers).makespan_ns

    @property
    def held(self) -> int:
        """The most microbatches whose activations a rank holds, of two bytes each."""
        return max(peak_bytes(self.plan.problem, self.plan.schedule())) // 2


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--emulate", action="store_true", help="run each plan, too")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each plan")
    parser.add_argument("--delays", default="0," + ",".join(map(str, DELAYS_MS)), help="ms")
    parser.add_argument("--time-limit", type=float, default=20.0, help="seconds for the optimum under each delay")
    arguments = parser.parse_args()
    path: Path = arguments.folder / "profiles" / "pipemorph-gpt2-14b-h800-stages.json"
    stages = stages_of(json.loads(path.read_text(encoding="utf-8"))["layers"])
    delays_ms = [int(each) for each in arguments.delays.split(",")]
    console = Console()
    console = console if console.is_terminal else Console(width=140)
    table = Table(title="PipeMorph's 14B, ms; delay on the link between ranks 6 and 7", title_justify="left", box=None)
    table.add_column("method")
    for header in ("delay", "predicted", "emulated", "to predicted", "bound", "microbatches held", "measured on H800", "to theirs"):
        table.add_column(header, justify="right")
    sound = True
    for delay_ms in delays_ms:
        found = cases(stages, delay_ms, arguments.time_limit)
        for case in found:
            emulated_ns = None
            if arguments.emulate:
                trace = emulate(case.plan, runs=arguments.runs, queues=case.queues).trace
                emulated_ns = compare(case.plan, time_plan(case.plan), trace).measured.median_ns
            theirs = MEASURED_MS.get(case.method)
            theirs_ms = None if theirs is None else (theirs[0], *theirs[1:])[(0, *DELAYS_MS).index(delay_ms)]
            table.add_row(
                case.method,
                str(delay_ms),
                f"{case.predicted_ns / MS:.0f}",
                "" if emulated_ns is None else f"{emulated_ns / MS:.0f}",
                "" if emulated_ns is None else f"{emulated_ns / case.predicted_ns:.3f}",
                "" if case.bound_ns is None else f"{case.bound_ns / MS:.0f}",
                str(case.held),
                "" if theirs_ms is None else str(theirs_ms),
                "" if theirs_ms is None else f"{case.predicted_ns / MS / theirs_ms:.3f}",
            )
            print(f"{delay_ms} ms, {case.method}: done", file=sys.stderr)
        table.add_section()
        by_name = {case.method: case for case in found}
        optimum = by_name["optimum, 16 microbatches"]
        assert optimum.bound_ns is not None
        sound = sound and by_name["ours, no limit"].predicted_ns <= by_name["PipeMorph"].predicted_ns
        sound = sound and by_name["ours, 16 microbatches"].predicted_ns <= (1 + MOST_ABOVE) * optimum.bound_ns
    console.print(table)
    return int(not sound)


def cases(stages: Sequence[Stage], delay_ms: int, limit_s: float) -> list[Case]:
    """The rows of one delay."""
    free, slow = problem_of(stages, FREE), problem_of(stages, LinkTimes(delay_ms * MS, 0))
    in_turn = problem_of(stages, LinkTimes(0, delay_ms * MS, "pair"))
    room = (2 * ROOM,) * len(stages)
    limited = replace(free, memory_limit_bytes=room)
    usual = constructive("pipemorph{policy=initial}")(limited)
    adapted = constructive("pipemorph")(slow) if delay_ms else usual
    state = LinkState(latency_ns=delay_ms * MS)
    conditions = Conditions(links={(SLOW_LINK, SLOW_LINK + 1): state, (SLOW_LINK + 1, SLOW_LINK): state} if delay_ms else {})
    best = compile_problem(replace(slow, memory_limit_bytes=room), SearchSettings(limits=Limits(time_s=limit_s, gap=0.0))).plan
    return [
        Case("1F1B", _plan(slow, constructive("1f1b")(slow), "1f1b"), queues=1),
        Case("ZB", _plan(in_turn, usual, "zb")),
        Case("ZB with delegates", _plan(slow, usual, "zb")),
        Case("PipeMorph", _plan(slow, adapted, "pipemorph")),
        Case("ours, no limit", _replanned(free, usual, slow, conditions)),
        Case("ours, 16 microbatches", _replanned(limited, usual, replace(slow, memory_limit_bytes=room), conditions)),
        Case("optimum, 16 microbatches", best, bound_ns=best.certificate.lower_bound_ns),
    ]


def _replanned(before: Problem, usual: Schedule, slow: Problem, conditions: Conditions) -> Plan:
    """The plan that `replan` proposes to a job that runs ZB's, with the slow link's costs."""
    proposal = replan(_plan(before, usual, "zb"), conditions)
    return _plan(slow, proposal.plan.schedule(), "replan")


def _plan(problem: Problem, schedule: Schedule, method: str) -> Plan:
    return certify(problem, schedule, MadeBy(schedc="benchmark", method=method))


if __name__ == "__main__":
    sys.exit(main())
