"""Seeded random problems that an exact solver settles at once: every placement, unequal stages, links, memory, collectives.

Every other five are in odd nanoseconds of seconds and odd bytes of GiB, unless they may not.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from inputs.odd_numbers import odd
from inputs.problems import make_problem
from inputs.shared_links import with_shared_links
from schedc.ir.problem import DataParallel, Objective
from schedc.lower.placement import place

if TYPE_CHECKING:
    from schedc.ir.problem import Problem

PLACEMENTS = ("unidirectional", "loop", "wave", "bidirectional", "explicit")


def small_problem(
    seed: int, *, objective: Objective = Objective.MAKESPAN, shared_trunks: bool = False, may_be_odd: bool = True
) -> Problem:
    """The problem of this number: at most 3 ranks and 4 microbatches, 2 and 3 where a rank has several stages.

    Its memory limits hold at least one microbatch. With `shared_trunks` most links share some (`with_shared_links`), on which the
    models may serve transfers in another order than the simulator; half of these have one stage on each of 3 ranks.
    """
    random = Random(seed)
    name = PLACEMENTS[seed % len(PLACEMENTS)]
    if shared_trunks and random.random() < 0.4:
        name = "unidirectional"
    chunks = 2 if name in ("loop", "wave") else 1
    ranks = random.randint(3 if shared_trunks and chunks == 1 else 2, 2 if chunks > 1 else 3)
    placement: str | list[int] = name
    if name == "explicit":
        placement = [*random.sample(range(ranks), ranks), *random.choices(range(ranks), k=random.randint(0, 1))]
    size = len(place(placement, ranks, chunks).rank_of_stage)
    several = size > ranks
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    problem = make_problem(
        ranks,
        random.choice([2, 2, 3]) if shared_trunks else random.randint(1, 3 if several else 4),
        placement=placement,
        chunks=chunks,
        costs_ns=[(random.randint(1, 12), random.randint(1, 12), random.randint(1, 12)) for _ in range(size)],
        activation=[(random.randint(1, 5), random.randint(0, 1)) for _ in range(size)],
        in_flight=random.choice([None, 1, 1.5, 2, 3]),
        links={pair: random.choice([(0, 0), (random.randint(0, 15), random.randint(0, 8))]) for pair in pairs},
        split_backward=random.random() < 0.7,
    )
    parallel = None
    if random.random() < 0.3:
        parallel = DataParallel(
            size=2,
            zero_stage=1,
            reduce_scatter_ns=tuple(random.randint(0, 20) for _ in range(size)),
            all_gather_ns=random.choice([(), tuple(random.randint(0, 10) for _ in range(size))]),
        )
    problem = replace(problem, objective=objective, data_parallel=parallel)
    is_odd = may_be_odd and seed // len(PLACEMENTS) % 2 == 1
    if shared_trunks:
        problem = with_shared_links(problem, random, sized=not is_odd)
    return odd(problem, random).problem if is_odd else problem
