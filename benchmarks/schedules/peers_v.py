"""`auto` beside the peers' V schedules within the memory of p activations, on random problems: worse, equal or better?

Of each problem all ranks cost the same, in nanoseconds that are not round, and so do all links, which is what the peers'
schedulers can express: 4 to 16 ranks, 2p to 4p microbatches, two stages on a rank as a V, F : B : W from 1 : 0.5 : 0.2 to 1 : 2 :
1.5, no latency in a third of them, else up to 0.3 F of a rank, or up to 3 F. The peers' best is that of ZB-V as torch has it,
which is our template, and of ZB-V's heuristic, V-Half and V-Min, rebuilt apart from ours (`tests/support/benches/peers_v.py`),
that the verifier accepts; the simulator times all.

Run it as `python benchmarks/schedules/peers_v.py [--problems 500] [--work 2] [--first 0]`: no result depends on the machine.
Exits with 1 if `auto` is worse somewhere.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import suppress
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))
from benches.peers_v import Costs, peer_schedules

from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.ir import Problem
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.portfolio import solve
from schedc.solvers.templates import TEMPLATES
from schedc.study.bench.pipelines import LinkTimes, pipeline
from schedc.verify.schedule.checks import verify_schedule


def drawn(seed: int) -> tuple[Problem, Costs]:
    """The problem of the seed, and the same as the peers take it."""
    source = Random(seed + 28_000_000)
    ranks = source.randint(4, 16)
    microbatches = source.randint(2 * ranks, 4 * ranks)
    forward = source.randint(2_000_001, 60_000_000)
    backward, weight = (int(forward * source.uniform(*span)) for span in ((0.5, 2), (0.2, 1.5)))
    message = int(2 * forward * source.uniform(0, (0, 0.3, 3)[seed % 3]))
    costs_ns = (2 * forward, 2 * backward, 2 * weight)
    problem = pipeline(
        f"v-{seed}", ranks, microbatches, costs_ns, in_flight=ranks, placement="wave", otherwise=LinkTimes(message, 0)
    )
    return problem, Costs(ranks, microbatches, forward, backward, weight, message)


def best_of_peers(problem: Problem, costs: Costs) -> tuple[int, str] | None:
    """The least makespan of those that keep the memory, in ns, and whose it is."""
    schedules = list(peer_schedules(costs))
    with suppress(Unsupported):
        schedules.append(("zb-v", TEMPLATES["zb-v"](problem)))
    fitting = [(name, each) for name, each in schedules if not verify_schedule(problem, each)]
    return min(((simulate(problem, each).makespan_ns, name) for name, each in fitting), default=None)


def main() -> int:
    """Print each problem where `auto` is worse, and the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--work", type=float, default=2.0, help="deterministic work for each problem, about seconds")
    options = parser.parse_args()
    outcomes: list[str] = []
    best_by: dict[str, int] = {}
    ratios: list[float] = []
    for seed in range(options.first, options.first + options.problems):
        problem, costs = drawn(seed)
        peers = best_of_peers(problem, costs)
        if peers is None:
            outcomes.append("no peer's fits")
            continue
        bound = best_bound(problem)
        settings = SearchSettings(limits=Limits(deterministic=options.work, workers=2))
        ours = solve(problem, settings, bound_ns=bound.value_ns, bound_by=bound.name)
        peers_ns, name = peers
        best_by[name] = best_by.get(name, 0) + 1
        ratios.append(ours.objective_ns / peers_ns)
        outcomes.append("worse" if ours.objective_ns > peers_ns else "equal" if ours.objective_ns == peers_ns else "better")
        if outcomes[-1] == "worse":
            ours_ms = f"{ours.objective_ns / 1e6:.3f} ms by {ours.found_by}"
            print(f"seed {seed}, {costs}: {ours_ms}, {name} {peers_ns / 1e6:.3f} ms", flush=True)
    print(
        f"{len(outcomes)} problems, work {options.work:g}: "
        + ", ".join(f"{outcomes.count(each)} {each}" for each in dict.fromkeys(outcomes))
    )
    if ratios:
        mean = sum(ratios) / len(ratios)
        print(f"auto over the best of the peers: {mean:.4f} in the mean, {min(ratios):.4f} to {max(ratios):.4f}")
    print("the peers' best: " + ", ".join(f"{name} {times}" for name, times in sorted(best_by.items())))
    return int("worse" in outcomes)


if __name__ == "__main__":
    sys.exit(main())
