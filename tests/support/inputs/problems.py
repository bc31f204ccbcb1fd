"""Problems for tests, made directly, without a job file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from schedc.ir.network import Link
from schedc.ir.problem import Problem, Stage
from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

MS = 1_000_000
M70_NS = (38 * MS, 46_500_000, 20_500_000)
"""CrossPipe's M70: F, B and W of one of 8 stages, so that 1F1B and ZB-H1 without delay take what its Tables 5 and 6 say."""


def make_problem(
    ranks: int,
    microbatches: int,
    *,
    placement: str | Sequence[int] = "unidirectional",
    chunks: int = 1,
    costs_ns: tuple[int, int, int] | list[tuple[int, int, int]] = (10, 10, 10),
    activation: tuple[int, int] | list[tuple[int, int]] = (2, 1),
    in_flight: float | None = None,
    memory_limit_bytes: Sequence[int | None] | None = None,
    links: Mapping[tuple[int, int], tuple[int, int]] | None = None,
    trunks: Mapping[tuple[int, int], str] | None = None,
    split_backward: bool = True,
) -> Problem:
    """A problem with (F, B, W) costs and (activation, activation after input) bytes, each one for all stages or one per stage.

    `links` maps directed pairs of ranks to (latency_ns, occupancy_ns); all other pairs are free. `trunks` maps pairs to a trunk's
    name. `in_flight` gives the memory limit in whole microbatches of each rank's activations.
    """
    placed = place(placement, ranks, chunks)
    count = len(placed.rank_of_stage)
    per_stage = costs_ns if isinstance(costs_ns, list) else [costs_ns] * count
    held = activation if isinstance(activation, list) else [activation] * count
    stages = []
    for rank, (f, b, w), (whole, after) in zip(placed.rank_of_stage, per_stage, held, strict=True):
        stages.append(
            Stage(
                rank=rank,
                forward_ns=(f,),
                backward_input_ns=(b,),
                backward_weight_ns=(w,),
                backward_ns=(b + w,),
                activation_bytes=whole,
                activation_after_input_bytes=after,
            )
        )
    costs = dict(links or {})
    if memory_limit_bytes is None:
        limits: list[int | None] = [None] * ranks
        if in_flight is not None:
            for rank in range(ranks):
                per_path = [sum(stages[s].activation_bytes for s in path if stages[s].rank == rank) for path in placed.paths]
                limits[rank] = int(in_flight * max(per_path))
    else:
        limits = list(memory_limit_bytes)
    return Problem(
        name="test",
        ranks=ranks,
        microbatches=microbatches,
        stages=tuple(stages),
        paths=placed.paths,
        path_of=placed.path_of(microbatches),
        links=tuple(
            Link(
                source=x,
                destination=y,
                latency_ns=costs.get((x, y), (0, 0))[0],
                transfer_ns=costs.get((x, y), (0, 0))[1],
                trunk=(trunks or {}).get((x, y)),
            )
            for x, y in placed.crossed()
        ),
        memory_limit_bytes=tuple(limits),
        split_backward=split_backward,
        placement=placement if isinstance(placement, str) else "explicit",
    )


def with_fused_backward(problem: Problem, numerator: int, denominator: int = 10) -> Problem:
    """The problem with BW = (B + W) × numerator ÷ denominator, rounded down, for each stage and microbatch."""
    stages = []
    for stage in problem.stages:
        count = max(len(stage.backward_input_ns), len(stage.backward_weight_ns))
        halves = (values * (count // len(values)) for values in (stage.backward_input_ns, stage.backward_weight_ns))
        fused_ns = tuple((b + w) * numerator // denominator for b, w in zip(*halves, strict=True))
        stages.append(replace(stage, backward_ns=fused_ns))
    return replace(problem, stages=tuple(stages))


def m70(latency: float, occupancy: float, *, microbatches: int = 16, in_flight: int = 8) -> Problem:
    """CrossPipe's M70 on 8 ranks in two sites; the middle link's latency and occupancy in units of F."""
    slow = (int(latency * M70_NS[0]), int(occupancy * M70_NS[0]))
    links = {(3, 4): slow, (4, 3): slow}
    return make_problem(8, microbatches, costs_ns=M70_NS, in_flight=in_flight, links=links)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    max_ranks: int = 4,
    max_microbatches: int = 6,
    shared_trunks: bool = True,
    placements: Sequence[str] = ("unidirectional", "loop", "wave", "bidirectional", "explicit"),
    min_duration_ns: int = 1,
    max_time_ns: int = 15,
    memory: bool = True,
) -> Problem:
    """Small random problems over all placements, with unequal stages and links; a memory limit is never below one microbatch.

    With a small `max_time_ns`, which no duration, latency or occupancy exceeds, much happens at the same time.
    """
    ranks = draw(st.integers(1, max_ranks))
    name = draw(st.sampled_from(list(placements)))
    placement: str | list[int] = name
    chunks = draw(st.integers(2, 3)) if name in ("loop", "wave") else 1
    if name == "explicit":
        placement = draw(st.permutations(range(ranks))) + draw(st.lists(st.integers(0, ranks - 1), max_size=3))
    placed = place(placement, ranks, chunks)
    duration = st.integers(min_duration_ns, min(12, max_time_ns))
    size = len(placed.rank_of_stage)
    costs = draw(st.lists(st.tuples(duration, duration, duration), min_size=size, max_size=size))
    held = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 1)), min_size=size, max_size=size))
    pairs = [(x, y) for x in range(ranks) for y in range(ranks) if x != y]
    links = {pair: draw(st.tuples(st.integers(0, max_time_ns), st.integers(0, min(8, max_time_ns)))) for pair in pairs}
    trunks = {pair: draw(st.sampled_from(["east", "west", None])) for pair in pairs} if shared_trunks else {}
    return make_problem(
        ranks,
        draw(st.integers(1, max_microbatches)),
        placement=placement,
        chunks=chunks,
        costs_ns=costs,
        activation=held,
        in_flight=draw(st.one_of(st.none(), st.integers(1, 4))) if memory else None,
        links=links,
        trunks={pair: trunk for pair, trunk in trunks.items() if trunk},
        split_backward=draw(st.booleans()),
    )
