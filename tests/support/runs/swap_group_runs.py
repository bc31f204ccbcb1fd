"""What the rank processes of the tests of swap groups run: two pipelines whose stages meet in each F, and move to other plans."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from runs.replicated_runs import grid
from runs.training_runs import Plain
from schedc.errors import SchedcError
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler

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


class Experts(nn.Module):
    """A layer that all processes have, and one expert for each."""

    def __init__(self, process: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.dense = nn.Linear(3, 3)
        torch.manual_seed(process)
        self.expert = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.dense(x) + self.expert(x)
        return result


class Summed(ReplicaHooks):
    """Sums over two pipelines the gradients of what both have."""

    pipelines = 2

    def __init__(self, weights: Sequence[nn.Parameter], group: dist.ProcessGroup) -> None:
        self._weights, self._group = weights, group

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        for weight in self._weights:
            torch.distributed.all_reduce(weight.grad, group=self._group)
        return self.total(loss) / 2

    def total(self, value: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        total = value.clone()
        torch.distributed.all_reduce(total, getattr(torch.distributed.ReduceOp, "MAX" if largest else "SUM"), group=self._group)
        return total


def experts(process: int, plan: Plan, path: str) -> dict[str, Any]:
    """Two pipelines that share some weights and have an expert each: what clipping, scaling and checkpoints say and do."""
    pipeline, peers = grid(2, 2)
    stage = pipeline.rank()
    module = Experts(process)
    found: dict[str, Any] = {"said": [], "errors": []}

    def told(work: Any, *arguments: Any, **options: Any) -> None:
        try:
            work(*arguments, **options)
        except SchedcError as error:
            found["said"].append(f"{type(error).__name__}: {error}")

    with schedc.runtime.load(
        plan,
        stages={stage: module},
        loss_fn=nn.functional.mse_loss,
        timeout_s=60,
        pipeline_group=pipeline,
        replicas=Summed([*module.dense.parameters()], peers),
        swap_group=peers,
        check_loss=False,
    ) as pipe:
        torch.manual_seed(10 + peers.rank())
        batch = torch.randn(2, 2 * plan.problem.microbatches, 3)
        pipe.step(*batch)
        told(clip_grad_norm_, pipe, 1.0)
        for p in (2.0, 1.0, math.inf):
            norms: Any = [
                [float(torch.nn.utils.get_total_norm([one.grad for one in part.parameters() if one.grad is not None], p))]
                for part in (module.dense, module.expert)
            ]
            every: list[Any] = [None] * 4
            torch.distributed.all_gather_object(every, norms)
            each = torch.tensor([*(one for dense, _ in every[:2] for one in dense), *(one for _, own in every for one in own)])
            expected = float(torch.linalg.vector_norm(each, p))
            norm = clip_grad_norm_(pipe, expected / 2, p, local=module.expert.parameters()).item()
            after = clip_grad_norm_(pipe, math.inf, p, local=module.expert.parameters()).item()
            found["errors"] += [abs(norm / expected - 1), abs(2 * after / expected - 1)]
        optimizer: Any = Plain([*module.parameters()])
        scaler = GradScaler(pipe, init_scale=4.0)
        pipe.step(*batch, scale=scaler.get_scale())
        if process == 1:
            module.expert.weight.grad.fill_(math.inf)  # type: ignore[union-attr]
        before = module.dense.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        found["scale"] = scaler.get_scale(), torch.equal(before, module.dense.weight)
        told(save_checkpoint, pipe, path, model=nn.ModuleDict({str(stage): module}))
        named = nn.ModuleDict({f"{stage}_dense": module.dense, f"{stage}_expert_{peers.rank()}": module.expert})
        save_checkpoint(pipe, path, model=named)
        torch.distributed.barrier()
        kept = [weight.detach().clone() for weight in module.parameters()]
        with torch.no_grad():
            for weight in module.parameters():
                weight.zero_()
        load_checkpoint(pipe, path, model=named)
        found["loaded"] = all(torch.equal(one, two) for one, two in zip(kept, module.parameters(), strict=True))
    return found


def differing(process: int, plan: Plan) -> str:
    """What a step says where each pipeline divides by its own number of tokens."""
    pipeline, peers = grid(2, 2)
    stages = make_stages(plan, pipeline.rank())
    try:
        with schedc.runtime.load(
            plan, stages=stages, loss_fn=loss_fn, timeout_s=60, pipeline_group=pipeline, swap_group=peers
        ) as pipe:
            pipe.step(*make_batch(plan, 0), divide_by=(30, 10)[peers.rank()])
    except SchedcError as error:
        return f"{type(error).__name__}: {error}"
    return "stepped"
