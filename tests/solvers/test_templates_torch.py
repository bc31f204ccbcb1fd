"""The known schedules are PyTorch's, op by op, wherever PyTorch's own generators take the numbers."""

from __future__ import annotations

import pytest
from inputs.problems import make_problem
from oracles.pytorch_orders import bare, by_rank, ops
from torch.distributed.pipelining import schedules

from schedc.ir.ops import Kind, Op
from schedc.solvers.templates import TEMPLATES

Order = tuple[Op, ...]


def ours(name: str, ranks: int, microbatches: int, placement: str = "unidirectional", chunks: int = 1) -> tuple[Order, ...]:
    return TEMPLATES[name].construct(make_problem(ranks, microbatches, placement=placement, chunks=chunks)).orders


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 5, 8, 16, 17])
def test_gpipe(ranks: int, microbatches: int) -> None:
    order = bare(schedules.ScheduleGPipe, ranks, microbatches, 1)._get_pipeline_order()
    assert ours("gpipe", ranks, microbatches) == tuple(tuple(ops(order[rank])) for rank in range(ranks))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 2, 5, 9])
def test_1f1b(ranks: int, more: int) -> None:
    """From p microbatches on. PyTorch's list numbers the last rank's forwards from 1; it executes them from 0."""
    microbatches = ranks + more
    order = bare(schedules.Schedule1F1B, ranks, microbatches, 1)._get_pipeline_order()
    theirs = [tuple(ops(order[rank])) for rank in range(ranks)]
    theirs[-1] = tuple(op._replace(microbatch=op.microbatch - 1) if op.kind is Kind.F else op for op in theirs[-1])
    assert ours("1f1b", ranks, microbatches) == tuple(theirs)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("chunks", [2, 3, 4])
def test_interleaved(ranks: int, chunks: int) -> None:
    """For every number of microbatches that PyTorch takes: fewer than p, multiples of p, and whole rounds of more than p."""
    taken = [count for count in range(1, 5 * ranks) if count % max(1, count // ranks) == 0]
    assert any(count % ranks for count in taken) or ranks == 1
    for microbatches in taken:
        theirs = by_rank(bare(schedules.ScheduleInterleaved1F1B, ranks, microbatches, chunks))
        assert ours("interleaved", ranks, microbatches, "loop", chunks) == theirs


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 7, 8, 16, 17])
def test_zb_h1(ranks: int, microbatches: int) -> None:
    """PyTorch's interleaved zero bubble with one stage per rank is ZB-H1."""
    assert ours("zb-h1", ranks, microbatches) == by_rank(bare(schedules.ScheduleInterleavedZeroBubble, ranks, microbatches, 1))


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("microbatches", [1, 2, 3, 4, 7, 8, 15, 16, 17, 40])
def test_zb_v(ranks: int, microbatches: int) -> None:
    theirs = by_rank(bare(schedules.ScheduleZBVZeroBubble, ranks, microbatches, 2))
    assert ours("zb-v", ranks, microbatches, "wave", 2) == theirs


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("more", [0, 1, 2, 5, 9])
def test_dualpipe_v(ranks: int, more: int) -> None:
    """From 2p microbatches on. What PyTorch marks to overlap is a forward and a fused backward, one after the other."""
    microbatches = 2 * ranks + more
    theirs = by_rank(bare(schedules.ScheduleDualPipeV, ranks, microbatches, 2))
    assert ours("dualpipe-v", ranks, microbatches, "wave", 2) == theirs
