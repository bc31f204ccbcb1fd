"""Problems of 20 to 60 ops to hold bounds and proofs against: small numbers for a model of unit parts, odd large ones for half.

Most have several stages on a rank, half of them minimize the stage span, and in many a rank has reason to begin with a microbatch
that arrives late: long forwards before long weight gradients, microbatches that differ, slow links. Half have links that share
trunks, and messages that hold them for long (`with_shared_links`).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from inputs.odd_numbers import odd
from inputs.problems import make_problem
from inputs.shared_links import with_shared_links
from schedc.ir.ops import Kind
from schedc.ir.problem import DataParallel, Objective
from schedc.ir.schedule import Parts
from schedc.lower.placement import place

if TYPE_CHECKING:
    from inputs.odd_numbers import Odd
    from schedc.ir.problem import Problem

LEAST_OPS, MOST_OPS = 20, 60
MOST_UNITS = 130
"""Of all compute together, for the model of unit parts."""
PLACEMENTS = ("unidirectional", "loop", "loop", "wave", "wave", "bidirectional", "explicit", "explicit")


def claim_problem(seed: int) -> tuple[Problem, Odd | None]:
    """The problem of this number in small numbers; every other one also in odd ones, in which it is to be solved."""
    random = Random(seed)
    shared, sized = seed // 2 % 2 == 1, seed % 2 == 0
    problem = drawn_problem(random, least_ops=LEAST_OPS, most_ops=MOST_OPS, most_units=MOST_UNITS, shared=shared, sized=sized)
    return problem, odd(problem, random) if seed % 2 else None


def drawn_problem(
    random: Random, *, least_ops: int, most_ops: int, most_units: int, shared: bool = False, sized: bool = False
) -> Problem:
    """A problem with this many ops, whose compute takes at most this many nanoseconds in all, none of them less than 1.

    Where links are `shared` and `sized`, see `with_shared_links`.
    """
    while True:
        problem = _drawn(random)
        if shared:
            problem = with_shared_links(problem, random, sized=sized)
        units = sum(problem.duration_ns(kind, *block) for block in problem.blocks() for kind in (Kind.F, Kind.B, Kind.W))
        if least_ops <= problem.num_ops <= most_ops and units <= most_units:
            return problem


def long_weights(seed: int) -> Problem:
    """2 or 3 ranks, mostly with several stages; W takes longer than F and B, so that cutting it can help, and is fused in some."""
    random = Random(seed)
    placement = random.choice(["unidirectional", "unidirectional", "loop", "wave", "bidirectional"])
    chunks = 2 if placement in ("loop", "wave") else 1
    ranks = 2 if chunks == 2 or random.random() < 0.7 else 3
    microbatches = 2 if chunks == 2 else random.randint(2, 3)
    count = ranks * chunks * (2 if placement == "bidirectional" else 1)
    costs = [(random.randint(1, 3), random.randint(1, 3), random.randint(3, 6)) for _ in range(count)]
    fuses = random.random() < 0.3
    problem = make_problem(
        ranks,
        microbatches,
        placement=placement,
        chunks=chunks,
        costs_ns=costs if random.random() < 0.5 else costs[0],
        in_flight=random.choice([None, 1, 1.5, 2]),
        activation=random.choice([(3, 1), (2, 1), (4, 3), (1, 1)]),
        links={(x, y): (random.randint(0, 5), random.choice([0, 0, 2])) for x in range(ranks) for y in range(ranks) if x != y},
    )
    both = [(stage.backward_input_ns[0], stage.backward_weight_ns[0]) for stage in problem.stages]
    fused = [(random.randint(max(pair), sum(pair)) if fuses else sum(pair),) for pair in both]
    return replace(
        problem, stages=tuple(replace(stage, backward_ns=each) for stage, each in zip(problem.stages, fused, strict=True))
    )


def weights_in_units(problem: Problem) -> tuple[Parts, ...]:
    """Every W in parts of 1 ns."""
    return tuple(Parts(kind=Kind.W, stage=at, shares=(1,) * each.backward_weight_ns[0]) for at, each in enumerate(problem.stages))


def _drawn(random: Random) -> Problem:
    placement: str | list[int] = random.choice(PLACEMENTS)
    ranks, microbatches = random.randint(2, 4), random.randint(2, 8)
    chunks = random.choice([2, 2, 3]) if placement in ("loop", "wave") else 1
    if placement == "explicit":
        ranks = min(ranks, 3)
        placement = [*range(ranks), *random.choices(range(ranks), k=random.randint(1, ranks))]
        random.shuffle(placement)
    rank_of_stage = place(placement, ranks, chunks).rank_of_stage
    costs = _costs(random, rank_of_stage)
    held = [_held(random) for _ in rank_of_stage]
    if random.random() < 0.5:
        held = [held[0]] * len(held)
    slow, busy = random.choice([0, 3, 8, 14]), random.choice([0, 0, 2, 4])
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    problem = make_problem(
        ranks,
        microbatches,
        placement=placement,
        chunks=chunks,
        costs_ns=costs,
        activation=held,
        in_flight=random.choice([None, None, 1, 1.5, 2, 2, 3]),
        links={pair: (random.randint(0, slow), random.randint(0, busy)) for pair in pairs},
        trunks={pair: "trunk" for pair in pairs if random.random() < 0.1},
        split_backward=random.random() < 0.9,
    )
    stages = list(problem.stages)
    if random.random() < 0.5:  # fused measured apart
        stages = [
            replace(each, backward_ns=(random.randint(max(b, w), b + w + 1),))
            for each in stages
            for b, w in [(each.backward_input_ns[0], each.backward_weight_ns[0])]
        ]
    if random.random() < 0.3:  # microbatches of one or two lengths
        lengths = [random.choice([1, 2]) for _ in range(microbatches)]
        stages = [
            replace(
                each,
                forward_ns=tuple(each.forward_ns[0] * n for n in lengths),
                backward_input_ns=tuple(each.backward_input_ns[0] * n for n in lengths),
                backward_weight_ns=tuple(each.backward_weight_ns[0] * n for n in lengths),
                backward_ns=tuple(each.backward_ns[0] * n for n in lengths),
            )
            for each in stages
        ]
    parallel = None
    if random.random() < 0.15:
        scatter, gather = ([random.randint(0, 6) for _ in stages] for _ in range(2))
        parallel = DataParallel(
            size=2, zero_stage=1, reduce_scatter_ns=tuple(scatter), all_gather_ns=tuple(gather) if random.random() < 0.6 else ()
        )
    objective = random.choice(list(Objective))
    return replace(problem, stages=tuple(stages), data_parallel=parallel, objective=objective, in_order=random.random() < 0.1)


def _costs(random: Random, rank_of_stage: tuple[int, ...]) -> list[tuple[int, int, int]]:
    """F, B and W of each stage: of each its own, or one for the stages of a rank, with a long F or a long W by chance."""

    def one() -> tuple[int, int, int]:
        f, b, w = (random.randint(1, random.choice([2, 3])) for _ in range(3))
        longer = random.choice([0, 0, 3, 5])
        return (f + longer, b, w) if random.random() < 0.5 else (f, b, w + longer)

    if random.random() < 0.5:
        of_rank = {rank: one() for rank in set(rank_of_stage)}
        return [of_rank[rank] for rank in rank_of_stage]
    return [one() for _ in rank_of_stage]


def _held(random: Random) -> tuple[int, int]:
    whole = random.randint(0 if random.random() < 0.1 else 1, 4)
    return whole, random.randint(0, whole)
