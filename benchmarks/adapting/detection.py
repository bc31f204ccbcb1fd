"""How soon real processes find a slow link, where the plan has slack on it and where it has none.

Three ranks over gloo with injected links of 40 ms; the stage of rank 1 takes 25 ms for each forward, the others nearly nothing. So
all messages from rank 0 to rank 1 but a step's first wait there until they are needed: what an op sees of them is its own
time, not the link's. Rank 2 waits for each message of rank 1.
After 100 steps one of these links gets slower, by 20 %, by 50 %, or to the double. Shown are the steps from then until the rank
that the link leads to says so, what it says, and the steps' times before and after.

Run it as `python benchmarks/adapting/detection.py`; three minutes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

if TYPE_CHECKING:
    import torch

    from schedc.ir.link_trace import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.execution.wiring import Wrap

MS = 1_000_000
LATENCY_NS, FORWARD_S = 40 * MS, 0.025
CALM, SLOW, MICROBATCHES = 100, 24, 4


def train(rank: int, plan: Plan, trace: LinkTrace) -> list[tuple[float, Any]]:
    """By step, its seconds and what the monitor says after it."""
    from torch import nn

    import schedc.runtime
    from schedc.runtime.adapt.monitor import Monitor
    from schedc.runtime.emulation.injected import Injection

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            if rank == 1:
                time.sleep(FORWARD_S)
            result: torch.Tensor = self.linear(value)
            return result

    injections: list[Injection] = []

    def inject(problem: Problem, groups: Groups, device: torch.device) -> Wrap:
        injections.append(Injection(problem, groups, device=device, trace=trace))
        return injections[0].wrap

    import torch as library

    monitor, batch = Monitor(), library.zeros(MICROBATCHES, 4)
    found = []
    with schedc.runtime.load(
        plan,
        stages={rank: Stage()},
        loss_fn=lambda output, target: (output - target).square().mean(),
        timeout_s=60,
        observe=monitor,
        wrap=partial(monitor.wrap, around=inject),
    ) as pipe:
        for step in range(CALM + SLOW):
            if step == CALM:
                injections[0].clock.start(time.perf_counter_ns() - 10**9)
            begun_s = time.perf_counter()
            pipe.step(batch, batch)
            found.append((time.perf_counter() - begun_s, monitor.conditions()))
    monitor.close()
    return found


def main() -> None:
    """Print the table."""
    from plans import plan_of
    from problems import make_problem
    from rank_processes import rank_processes

    from schedc.ir.conditions import LinkState
    from schedc.ir.link_trace import LinkTrace
    from schedc.solvers.driver.registry import constructive

    pairs = [pair for a, b in pairwise(range(3)) for pair in ((a, b), (b, a))]
    problem = make_problem(3, MICROBATCHES, costs_ns=(MS, MS, MS), links=dict.fromkeys(pairs, (LATENCY_NS, 0)))
    plan = plan_of(problem, constructive("1f1b")(problem))
    print(f"{'link':<20} {'slower':>7} {'steps until known':>18} {'known as':>12} {'step before':>12} {'after':>9}")
    for link, name in (((0, 1), "0>1, with slack"), ((1, 2), "1>2, without")):
        for factor in (1.2, 1.5, 2.0):
            trace = LinkTrace.of([(1, link, LinkState(latency_ns=round(factor * LATENCY_NS)))])
            with tempfile.TemporaryDirectory() as directory, rank_processes(3, Path(directory)) as processes:
                ranks = processes.run(train, plan, trace, limit_s=300)
            steps = ranks[link[1]]
            if not isinstance(steps, list):
                raise SystemExit(f"a rank failed: {steps}")
            known = [at for at, (_, found) in enumerate(steps) if found is not None and link in found.links]
            before_s, after_s = (median(seconds for seconds, _ in part) for part in (steps[:CALM], steps[CALM:]))
            when = str(known[0] - CALM + 1) if known else f"more than {SLOW}"
            what = f"{steps[-1][1].links[link].latency_ns / MS:.1f} ms" if known else "–"
            print(
                f"{name:<20} {factor - 1:>+7.0%} {when:>18} {what:>12} {before_s * 1e3:>9.1f} ms {after_s * 1e3:>6.1f} ms",
                flush=True,
            )


if __name__ == "__main__":
    main()
