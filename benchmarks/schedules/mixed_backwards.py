"""`auto` on 30 small cases whose best schedule fuses some backwards and splits others: how many optima it reaches, and proves.

A case has 2 to 4 ranks, 3 to 8 microbatches, slow links and memory limits; BW takes 75 to 97 % of B and W. It counts where its
proven optimum is better than that of all backwards fused and that of all split, so that only a mixture reaches it. CP-SAT proves
the three optima, without a limit; then `auto` has 20 s of this machine's time. Exit status 1: an optimum was missed, or fewer than
27 proven.

Run it as `python benchmarks/schedules/mixed_backwards.py [FIRST_SEED]`; other seeds are other cases.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from itertools import count, islice
from random import Random
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from schedc.compile.driver import compile_problem
from schedc.ir.network import Link
from schedc.ir.ops import Kind
from schedc.ir.problem import Problem, Stage
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.exact.cpsat import solve_cpsat
from schedc.solvers.heuristics.greedy import Greedy

if TYPE_CHECKING:
    from collections.abc import Iterator

CASES = 30
LEAST_PROVEN = 27
AUTO_S = 20.0
MS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A problem that counts, and its three proven optima."""

    seed: int
    problem: Problem
    optimum_ns: int
    fused_ns: int
    """The optimum where all backwards are fused."""
    split_ns: int
    """The optimum where all are split."""


def random_problem(seed: int) -> Problem:
    """The problem of this number: one stage on each rank."""
    random = Random(seed)
    ranks, microbatches = random.randint(2, 4), random.randint(3, 8)
    stages = []
    for rank in range(ranks):
        forward, gradient, weight = random.randint(8, 14), random.randint(8, 16), random.randint(6, 12)
        fused_ns = round(random.uniform(0.75, 0.97) * (gradient + weight)) * MS
        whole = random.randint(4, 8)
        stages.append(
            Stage(
                rank=rank,
                forward_ns=(forward * MS,),
                backward_input_ns=(gradient * MS,),
                backward_weight_ns=(weight * MS,),
                backward_ns=(fused_ns,),
                activation_bytes=whole,
                activation_after_input_bytes=random.randint(0, whole),
            )
        )
    links = tuple(
        Link(source=a, destination=b, latency_ns=random.choice([0, 5, 20, 40]) * MS, transfer_ns=random.choice([0, 0, 4, 12]) * MS)
        for a, b in [pair for left in range(ranks - 1) for pair in ((left, left + 1), (left + 1, left))]
    )
    return Problem(
        name=f"mixed-{seed}",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(stages),
        paths=(tuple(range(ranks)),),
        path_of=(0,) * microbatches,
        links=links,
        memory_limit_bytes=tuple(random.choice([None, random.randint(1, 4) * stage.activation_bytes]) for stage in stages),
        placement="unidirectional",
    )


def optimum_ns(problem: Problem) -> int:
    """The proven optimum among schedules of whole blocks."""
    found = solve_cpsat(problem, Greedy(n_sub=1)(problem), limits=Limits())
    if found.lower_bound_ns != found.objective_ns:
        raise RuntimeError(f"{problem.name}: CP-SAT proved {found.lower_bound_ns} and found {found.objective_ns}")
    return found.objective_ns


def cases(first_seed: int) -> Iterator[Case]:
    """All cases that count, from this seed on."""
    for seed in count(first_seed):
        problem = random_problem(seed)
        split = tuple(
            replace(stage, backward_ns=(stage.backward_input_ns[0] + stage.backward_weight_ns[0],)) for stage in problem.stages
        )
        best_ns = optimum_ns(problem)
        fused_ns = optimum_ns(replace(problem, split_backward=False))
        split_ns = optimum_ns(replace(problem, stages=split))
        if best_ns < min(fused_ns, split_ns):
            yield Case(seed=seed, problem=problem, optimum_ns=best_ns, fused_ns=fused_ns, split_ns=split_ns)


def main() -> int:
    """Run all cases and print a line for each."""
    table = Table("seed", title=f"auto, {AUTO_S:.0f} s, on cases whose best schedule mixes fused and split backwards")
    for heading in (
        "ranks",
        "microbatches",
        "all fused ms",
        "all split ms",
        "optimum ms",
        "auto ms",
        "bound ms",
        "BW",
        "B",
        "s",
        "by",
    ):
        table.add_column(heading, justify="right")
    optimal = proven = 0
    first_seed = int(sys.argv[1]) if len(sys.argv) > 1 else 0
    for case in islice(cases(first_seed), CASES):
        begun = time.perf_counter()
        compiled = compile_problem(case.problem, SearchSettings(method="auto", limits=Limits(time_s=AUTO_S)))
        seconds = time.perf_counter() - begun
        certificate = compiled.plan.certificate
        optimal += certificate.makespan_ns <= case.optimum_ns  # cutting W may even be better
        proven += certificate.lower_bound_ns == certificate.makespan_ns
        kinds = [op.kind for rank in compiled.plan.ranks for op in rank.compute]
        times_ns = (case.fused_ns, case.split_ns, case.optimum_ns, certificate.makespan_ns, certificate.lower_bound_ns)
        table.add_row(
            str(case.seed),
            str(case.problem.ranks),
            str(case.problem.microbatches),
            *(f"{time_ns / MS:.0f}" for time_ns in times_ns),
            str(kinds.count(Kind.BW)),
            str(kinds.count(Kind.B)),
            f"{seconds:.1f}",
            compiled.plan.made_by.method,
        )
    console = Console(width=132)
    console.print(table)
    console.print(f"{optimal} of {CASES} are optimal, {proven} proven (required: {CASES} and {LEAST_PROVEN})")
    return 0 if optimal == CASES and proven >= LEAST_PROVEN else 1


if __name__ == "__main__":
    sys.exit(main())
