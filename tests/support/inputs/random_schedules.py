"""Random valid schedules: any order that some execution could have taken, so never a deadlock. Memory limits are not looked at.

Of a given problem, or with a random small one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import strategies as st

from inputs.problems import problems
from schedc.ir.ops import BLOCKS, WHOLE, Kind, Op
from schedc.ir.problem import DataParallel
from schedc.ir.schedule import Parts, Schedule

if TYPE_CHECKING:
    from schedc.ir.problem import Problem


@st.composite
def random_schedules(draw: st.DrawFn, problem: Problem, *, whole: bool = False) -> Schedule:
    """A schedule of the problem, each block's backward fused or split, each kind of block of each stage whole or cut.

    Args:
        draw: Hypothesis's.
        problem: any.
        whole: cut none.
    """
    shares = st.lists(st.integers(1, 3), min_size=2, max_size=3).map(tuple)
    parts = [
        Parts(kind=kind, stage=stage, shares=draw(shares))
        for kind in BLOCKS
        for stage in range(len(problem.stages))
        if not whole and draw(st.integers(0, 5)) == 0
    ]
    cuts = {(entry.kind, entry.stage): len(entry.shares) for entry in parts}
    fused = {block: not problem.split_backward or draw(st.booleans()) for block in problem.blocks()}
    pending: dict[Op, list[Op]] = {}
    for stage, microbatch in problem.blocks():
        path = problem.path(microbatch)
        at = path.index(stage)
        backward = Kind.BW if fused[stage, microbatch] else Kind.B
        forward = Op(Kind.F, stage, microbatch)
        pending[forward] = [Op(Kind.F, path[at - 1], microbatch)] if at else []
        pending[Op(backward, stage, microbatch)] = [forward]
        if at + 1 < len(path):
            after = path[at + 1]
            pending[Op(backward, stage, microbatch)].append(Op(Kind.BW if fused[after, microbatch] else Kind.B, after, microbatch))
        if backward is Kind.B:
            pending[Op(Kind.W, stage, microbatch)] = [Op(Kind.B, stage, microbatch)]
    orders: list[list[Op]] = [[] for _ in range(problem.ranks)]
    done: set[Op] = set()
    begun: dict[Op, int] = {}
    while pending:
        ready = [op for op, needs in pending.items() if done.issuperset(needs)]
        op = ready[draw(st.integers(0, len(ready) - 1))]
        count = cuts.get((op.kind, op.stage), 0)
        if not count or (op not in begun and draw(st.booleans())):
            orders[problem.rank_of(op)].append(op._replace(part=WHOLE))
            begun.pop(op, None)
        else:
            part = begun.get(op, 0)
            orders[problem.rank_of(op)].append(op._replace(part=part))
            begun[op] = part + 1
            if part + 1 < count:
                continue
        done.add(op)
        del pending[op]
    return Schedule(orders=tuple(map(tuple, orders)), parts=tuple(parts))


def at_least(problem: Problem, occupancy_ns: int) -> Problem:
    """The problem with no link's occupancy below that."""
    links = (replace(link, transfer_ns=max(occupancy_ns, link.transfer_ns or 0)) for link in problem.links)
    return replace(problem, links=tuple(links))


@st.composite
def cases(
    draw: st.DrawFn, *, collectives: bool = True, trunks: bool = True, least_ns: int = 1, least_occupancy_ns: int = 1
) -> tuple[Problem, Schedule]:
    """A small problem and a random valid schedule of it.

    Args:
        draw: Hypothesis's.
        collectives: whether there may be some.
        trunks: whether links may share some.
        least_ns: no op and no collective takes less.
        least_occupancy_ns: of transfers, where links share trunks.
    """
    shared = trunks and draw(st.booleans())
    problem = draw(problems(shared_trunks=shared, max_time_ns=9, max_microbatches=4, min_duration_ns=least_ns))
    if shared:
        problem = at_least(problem, least_occupancy_ns)
    if collectives and draw(st.booleans()):
        count = len(problem.stages)
        times = st.lists(st.integers(least_ns, 9), min_size=count, max_size=count).map(tuple)
        names = sorted({link.trunk for link in problem.links if link.trunk})
        parallel = DataParallel(
            size=2,
            zero_stage=1,
            reduce_scatter_ns=draw(times),
            all_gather_ns=draw(times),
            trunk=draw(st.sampled_from([None, *names])),
        )
        problem = replace(problem, data_parallel=parallel)
    schedule = draw(random_schedules(problem))
    if draw(st.booleans()):
        cut = {parts.stage for parts in schedule.parts if parts.kind in (Kind.B, Kind.BW)}
        again = [0 if stage in cut else draw(st.integers(0, 4)) for stage in range(len(problem.stages))]
        stages = tuple(
            replace(
                stage,
                recompute=size > 0,
                recomputed_bytes=size,
                activation_after_input_bytes=draw(st.integers(0, max(size, stage.activation_after_input_bytes))),
            )
            for stage, size in zip(problem.stages, again, strict=True)
        )
        problem = replace(problem, stages=stages)
    return problem, schedule
