"""What the rank processes of the lockstep tests run: two pipelines whose stages meet in each F, and move to other plans."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from pipeline_runs import loss_fn, make_batch, make_stages
from replicated_runs import grid
from torch import nn

import schedc.runtime
from schedc.errors import SchedcError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist

    from schedc.ir.plan import Plan


class Meeting(nn.Module):
    """A stage whose forward has a collective with its peers, as a slice of a layer has: all must be in the same step, at the same
    op, of the same plan."""

    def __init__(self, inner: nn.Module, group: dist.ProcessGroup, now: list[int]) -> None:
        super().__init__()
        self.inner = inner
        self.group = group
        self.now = now

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = [torch.zeros(2, dtype=torch.int64) for _ in range(self.group.size())]
        torch.distributed.all_gather(found, torch.tensor(self.now), group=self.group)
        assert all(torch.equal(found[0], other) for other in found), f"peers are in steps, of plans: {found}"
        result: torch.Tensor = self.inner(x)
        return result


def swap_with_peers(process: int, plans: Sequence[Plan], calls: Sequence[Mapping[int, int]], steps: int, together: bool) -> Any:
    """Two pipelines of two ranks train; before its step k a process swaps to plan `calls[process][k]`.

    Returns:
        Of each swap its state, step and reason; the warnings; or what is raised.
    """
    pipeline, peers = grid(2, 2)
    rank = pipeline.rank()
    now = [0, 0]
    stages = {stage: Meeting(module, peers, now) for stage, module in make_stages(plans[0], rank).items()}
    orders = [str(plan.ranks) for plan in plans]
    swaps = []
    given: dict[str, Any] = {"swap_group": peers} if together else {}
    try:
        with (
            warnings.catch_warnings(record=True) as heard,
            schedc.runtime.load(plans[0], stages=stages, loss_fn=loss_fn, timeout_s=30, pipeline_group=pipeline, **given) as pipe,
        ):
            warnings.simplefilter("always")
            for step in range(steps):
                if step in calls[process]:
                    swaps.append(pipe.swap(plans[calls[process][step]]))
                now[:] = step, orders.index(str(pipe.plan.ranks))
                pipe.step(*make_batch(pipe.plan, step))
    except (SchedcError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return [(swap.state, swap.step, swap.reason) for swap in swaps], [str(warning.message) for warning in heard]


def load_with_peers(process: int, plans: Sequence[Plan]) -> str:
    """What `load` says where the pipelines have a plan each."""
    pipeline, peers = grid(2, 2)
    plan = plans[peers.rank()]
    try:
        stages = make_stages(plan, pipeline.rank())
        schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=30, pipeline_group=pipeline, swap_group=peers).close()
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "loaded"
