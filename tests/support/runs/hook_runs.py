"""What rank processes run in the tests of the hooks between replicas: hooks of a job's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

import schedc.runtime
from runs.faults import Faults
from runs.harness import Run, gradients_of, grid, load, make_batch, make_stages, noting
from runs.retry_runs import on_failing
from schedc.ir.ops import token

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import nn

    from schedc.ir.plan import Plan


class Recording(schedc.runtime.ReplicaHooks):
    """Writes down what it is called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def begin_step(self) -> None:
        self.calls.append("begin")

    def on_weights_needed(self, stage: int) -> None:
        self.calls.append(f"needed {stage}")

    def on_gradients_complete(self, stage: int) -> None:
        self.calls.append(f"complete {stage}")

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        self.calls.append("end")
        return loss * 2

    def close(self) -> None:
        self.calls.append("close")


class Ops(schedc.runtime.Observer):
    """Writes down the ops between them."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def op(self, times: schedc.runtime.OpTimes) -> None:
        self.calls.append(token(times.op))


class AllReduce(schedc.runtime.ReplicaHooks):
    """Sums the gradients of each stage over the pipelines, by PyTorch's calls on the job's own group."""

    def __init__(self, stages: Mapping[int, nn.Module], group: dist.ProcessGroup) -> None:
        self.pipelines = group.size()
        self.stages = stages
        self.group = group
        self.sums: list[Any] = []

    def on_gradients_complete(self, stage: int) -> None:
        for weight in self.stages[stage].parameters():
            self.sums.append(dist.all_reduce(weight.grad, group=self.group, async_op=True))

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        while self.sums:
            self.sums.pop().wait()
        total = loss.clone()
        dist.all_reduce(total, group=self.group)
        return total / self.pipelines


def recorded(rank: int, plan: Plan) -> tuple[list[str], float, float]:
    """Two steps with hooks that write down what they are called with: the calls, what the last step gave, and its mean loss."""
    hooks = Recording()
    with load(plan, make_stages(plan, rank), replicas=hooks, observe=Ops(hooks.calls)) as pipe:
        for step in range(2):
            total = pipe.step(*make_batch(plan, step))
    return hooks.calls, total.item(), pipe.losses.mean().item()


def same_sums(rank: int, plan: Plan) -> dict[str, Any]:
    """One step of two pipelines with the built-in sums and one with the job's own: whether they agree."""
    found = []
    for built_in in (True, False):
        run = Run(plan)
        data_group = run.groups["data_parallel_group"]
        how: dict[str, Any] = {} if built_in else {"replicas": AllReduce(run.stages, data_group), "data_parallel_group": None}
        with run.load(**how) as pipe:
            found.append((pipe.step(*run.share(run.batch(0))), gradients_of(run.stages)))
    (one, gradients), (other, others) = found
    return {"loss": torch.equal(one, other), "weights": len(gradients), "gradients": all(map(torch.equal, gradients, others))}


def refused(rank: int, plan: Plan, with_a_group: bool) -> str:
    """What `load` says to hooks of the job's own."""
    group = dist.group.WORLD if with_a_group else None
    load(plan, make_stages(plan, rank), replicas=schedc.runtime.ReplicaHooks(), data_parallel_group=group).close()
    return "accepted"


def unlike(rank: int, plan: Plan, agree: bool) -> str:
    """What `load` says where only rank 0 has hooks: they sum over two pipelines, or `agree` and over one as the others."""
    hooks = schedc.runtime.ReplicaHooks() if rank == 0 else None
    if hooks is not None and not agree:
        hooks.pipelines = 2
    with on_failing([Faults()]), load(plan, make_stages(plan, rank), replicas=hooks, timeout_s=20) as pipe:
        pipe.step(*make_batch(plan, 0))
        return f"retries: {pipe.steps.retries}"


def refuse_batches(rank: int, plan: Plan, knows: bool) -> list[str]:
    """What two steps of the first of two pipelines say to targets that do not fit, with hooks that may know what the other says."""
    pipeline_group, data_group = grid(2, 2)
    hooks = AllReduce(stages := make_stages(plan, rank % 2), data_group)
    if knows:
        hooks.begins = lambda fits: fits  # type: ignore[method-assign]
    lines = list[str]()
    with load(plan, stages, pipeline_group=pipeline_group, replicas=hooks) as pipe:
        inputs, targets = make_batch(plan, 0)
        for _ in range(2 * (rank < 2)):
            with noting(lines):
                pipe.step(inputs if rank == 0 else None, targets[:0] if rank == 1 else None)
    return lines
