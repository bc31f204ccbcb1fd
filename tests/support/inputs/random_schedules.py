"""Random valid schedules: any order that some execution could have taken, so never a deadlock. Memory limits are not looked at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from schedc.ir.ops import WHOLE, Kind, Op
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
        for kind in Kind
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
