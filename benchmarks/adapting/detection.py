"""How soon real processes find a slow link, where the plan has slack on it and where it has none.

Three ranks over gloo with injected links of 40 ms; the stage of rank 1 takes 25 ms for each forward, the others nearly nothing. So
all messages from rank 0 to rank 1 but a step's first wait there until they are needed: what an op sees of them is its own
time, not the link's. Rank 2 waits for each message of rank 1.
After 100 steps one of these links gets slower, by 20 %, by 50 %, or to the double; or both directions of it do. Shown are the steps
from then until the rank that the link leads to says so, for both directions the one and the other, what it says, and the steps'
times before and after. With both, the links recover 30 steps later, and that is shown as well. All steps are measured here.

Run it as `python benchmarks/adapting/detection.py`; ten minutes.
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

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.execution.wiring import Wrap

MS = 1_000_000
LATENCY_NS, FORWARD_S = 40 * MS, 0.025
CALM, SLOW, WELL, MICROBATCHES = 100, 30, 24, 4
LINKS: dict[str, tuple[tuple[int, int], ...]] = {
    "0>1, with slack": ((0, 1),),
    "1>2, without": ((1, 2),),
    "1>2 and 2>1": ((1, 2), (2, 1)),
}
FACTORS = (1.2, 1.5, 2.0)


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

    monitor, batch = Monitor(least_gap_s=0.0), library.zeros(MICROBATCHES, 4)
    found = []
    with schedc.runtime.load(
        plan,
        stages={rank: Stage()},
        loss_fn=lambda output, target: (output - target).square().mean(),
        timeout_s=60,
        observe=monitor,
        wrap=partial(monitor.wrap, around=inject),
    ) as pipe:
        for step in range(CALM + SLOW + WELL):
            if step in (CALM, CALM + SLOW):
                injections[0].clock.start(time.perf_counter_ns() - (10**9 if step == CALM else 10**15))
            begun_s = time.perf_counter()
            pipe.step(batch, batch)
            found.append((time.perf_counter() - begun_s, monitor.conditions()))
    monitor.close()
    return found


def main() -> None:
    """Print the table."""
    from inputs.plans import plan_of
    from inputs.problems import make_problem
    from runs.processes import rank_processes

    from schedc.ir.conditions import LinkState, LinkTrace
    from schedc.solvers.driver.registry import constructive

    pairs = [pair for a, b in pairwise(range(3)) for pair in ((a, b), (b, a))]
    problem = make_problem(3, MICROBATCHES, costs_ns=(MS, MS, MS), links=dict.fromkeys(pairs, (LATENCY_NS, 0)))
    plan = plan_of(problem, constructive("1f1b")(problem))
    print(f"{'link':<20} {'slower':>7} {'steps until known':>18} {'as':>20} {'until well':>11} {'step before':>12} {'after':>9}")
    for name, links in LINKS.items():
        for factor in FACTORS:
            slow = LinkState(latency_ns=round(factor * LATENCY_NS))
            entries = [(at_ns, link, state) for at_ns, state in ((1, slow), (10**12, LinkState())) for link in links]
            with tempfile.TemporaryDirectory() as directory, rank_processes(3, Path(directory)) as processes:
                ranks = processes.run(train, plan, LinkTrace.of(entries), limit_s=300)
            for each in ranks:
                if not isinstance(each, list):
                    raise SystemExit(f"a rank failed: {each}")
            known, well, what = zip(*(said(ranks[link[1]], link) for link in links), strict=True)
            times_s = [seconds for seconds, _ in ranks[links[0][1]]]
            before_s, after_s = (median(part) for part in (times_s[:CALM], times_s[CALM : CALM + SLOW]))
            wrong = [link for rank in ranks for _, found in rank if found is not None for link in found.links if link not in links]
            print(
                f"{name:<20} {factor - 1:>+7.0%} {', '.join(known):>18} {', '.join(what):>20} {', '.join(well):>11}"
                f" {before_s * 1e3:>9.1f} ms {after_s * 1e3:>6.1f} ms" + (f"  wrong: {sorted(set(wrong))}" if wrong else ""),
                flush=True,
            )


def said(steps: list[tuple[float, Any]], link: tuple[int, int]) -> tuple[str, str, str]:
    """How many steps it took until the link was known to be slow, and to be well again, and how slow it was said to be."""
    known = [found is not None and link in found.links for _, found in steps]
    slow = known.index(True, CALM) if True in known[CALM:] else None
    if slow is None:
        return "–", "–", "–"
    well = known.index(False, max(slow, CALM + SLOW)) if False in known[max(slow, CALM + SLOW) :] else None
    latency_ns = steps[max(slow, CALM + SLOW - 1)][1].links[link].latency_ns
    return str(slow - CALM + 1), "–" if well is None else str(well - CALM - SLOW + 1), f"{latency_ns / MS:.1f} ms"


if __name__ == "__main__":
    main()
