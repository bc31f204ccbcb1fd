"""What the rank processes of the swap tests run: training that moves to other plans, beside the same model without a pipeline.

And two pipelines whose stages meet in each F, which move together.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn

from runs.harness import Descent, Orders, Run, grid, load, make_batch, make_stages, noting
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.measure.recording import Recorder
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.runtime.session.swap import Swap


def swap_while_training(
    rank: int,
    plans: Sequence[Any],
    calls: Sequence[Mapping[int, int]],
    steps: int,
    sleeps: Mapping[int, float] | None = None,
    batches_of: Plan | None = None,
) -> dict[str, Any]:
    """Train from plan 0 on; before its step k this rank swaps to plan `calls[rank][k]`.

    Args:
        rank: this one.
        plans: plans, or files.
        calls: of each rank, the plan to swap to by the step before which it does so.
        steps: how many.
        sleeps: of some ranks, how many seconds they are late with each call.
        batches_of: a plan for which all batches are made; None: each for the plan of its step.

    Returns:
        Of each step the largest relative error of a gradient, the loss and the one expected, the ops, and the microbatches that
        the pipe said it would take; of each swap its state, step and reason; all warnings.
    """
    run, orders = Run(plans[0]), Orders()
    found: dict[str, Any] = {"errors": [], "losses": [], "expected": [], "microbatches": []}
    swaps: list[Swap] = []
    with warnings.catch_warnings(record=True) as heard, run.load(observe=orders) as pipe:
        warnings.simplefilter("always")
        for step in range(steps):
            if step in calls[rank]:
                time.sleep((sleeps or {}).get(rank, 0))
                swaps.append(pipe.swap(plans[calls[rank][step]]))
            found["microbatches"].append(pipe.plan.problem.microbatches)
            run.clear()
            loss, expected = run.step(step, of=batches_of)
            found["losses"].append(loss.item())
            found["expected"].append(expected.item())
            found["errors"].append(max(run.gradient_errors()))
            run.descend()
            assert len(orders.steps) == step + 1
    return {
        **found,
        "orders": orders.steps,
        "swaps": [(swap.state, swap.step, swap.reason) for swap in swaps],
        "warnings": [f"{warning.category.__name__}: {warning.message}" for warning in heard],
    }


def swap_in_a_step(rank: int, plans: Sequence[Plan]) -> list[int]:
    """All ranks call `swap` in step 1, in a thread, while its last microbatch runs forward: the plans of the steps."""
    stages, ran, calls = make_stages(plans[0], rank), [], list[int]()
    with load(plans[0], stages) as pipe:

        def forward(module: nn.Module, inputs: Any) -> None:
            calls.append(1)
            if len(calls) == 2 * plans[0].problem.microbatches:
                thread = threading.Thread(target=pipe.swap, args=(plans[1],))
                thread.start()
                thread.join()

        for module in stages.values():
            module.register_forward_pre_hook(forward)
        for step in range(3):
            ran.append(plans.index(pipe.plan))
            pipe.step(*make_batch(pipe.plan, step))
    return ran


def swap_wrongly(rank: int, plan: Plan) -> list[str]:
    """What a second swap says while one is pending, after which training goes on, and what a swap of a closed pipe says."""
    lines = list[str]()
    pipe = load(plan, make_stages(plan, rank))
    if rank == 0:
        pipe.swap(plan)
    for _ in range(2):
        pipe.step(*make_batch(plan, 0))
        if rank == 0:
            with noting(lines):
                pipe.swap(plan)
    pipe.close()
    with noting(lines):
        pipe.swap(plan)
    return lines


def record_and_swap(rank: int, plans: Sequence[Plan], paths: Sequence[Path]) -> list[str | None]:
    """Write a trace before and after a swap, to one path each, and once more right after it; what is said to each."""
    lines: list[str | None] = []

    def write(path: Path) -> None:
        with noting(lines):
            pipe.write_trace(path)
            lines.append(None)

    stages = make_stages(plans[0], rank)
    with load(plans[0], stages, observe=Recorder(skip=0)) as pipe:
        pipe.step(*make_batch(plans[0], 0))
        write(paths[0])
        swap = pipe.swap(plans[1])
        while swap.state == "pending":
            pipe.step(*make_batch(plans[0], 0))
        write(paths[1])
        for _ in range(2):
            pipe.step(*make_batch(plans[1], 0))
        write(paths[1])
    with load(plans[0], stages) as pipe:
        write(paths[0])
    return lines


def meet(group: dist.ProcessGroup, now: list[int], *_: object) -> None:
    """Before a stage's forward, a collective with its peers, as a slice of a layer has.

    All must be in the same step, at the same op, of the same plan.
    """
    found = [torch.zeros(2, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(found, torch.tensor(now), group=group)
    assert all(torch.equal(found[0], other) for other in found), f"peers are in steps, of plans: {found}"


def swap_with_peers(process: int, plans: Sequence[Plan], calls: Sequence[Mapping[int, int]], steps: int, together: bool) -> Any:
    """Two pipelines of two ranks train; before its step k a process swaps to plan `calls[process][k]`.

    Returns:
        Of each swap its state, step and reason; the warnings.
    """
    pipeline, peers = grid(2, 2)
    stages, now = make_stages(plans[0], pipeline.rank()), [0, 0]
    for stage in stages.values():
        stage.register_forward_pre_hook(partial(meet, peers, now))
    orders = [str(plan.ranks) for plan in plans]
    swaps = []
    given: dict[str, Any] = {"swap_group": peers} if together else {}
    with (
        warnings.catch_warnings(record=True) as heard,
        load(plans[0], stages, timeout_s=30, pipeline_group=pipeline, **given) as pipe,
    ):
        warnings.simplefilter("always")
        for step in range(steps):
            if step in calls[process]:
                swaps.append(pipe.swap(plans[calls[process][step]]))
            now[:] = step, orders.index(str(pipe.plan.ranks))
            pipe.step(*make_batch(pipe.plan, step))
    return [(swap.state, swap.step, swap.reason) for swap in swaps], [str(warning.message) for warning in heard]


def load_with_peers(process: int, plans: Sequence[Plan]) -> str:
    """What `load` says where the pipelines have a plan each."""
    pipeline, peers = grid(2, 2)
    plan = plans[peers.rank()]
    load(plan, make_stages(plan, pipeline.rank()), timeout_s=30, pipeline_group=pipeline, swap_group=peers).close()
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
            dist.all_reduce(weight.grad, group=self._group)
        return self.total(loss) / 2

    def total(self, value: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        total = value.clone()
        dist.all_reduce(total, getattr(dist.ReduceOp, "MAX" if largest else "SUM"), group=self._group)
        return total


def experts(process: int, plan: Plan, path: str) -> dict[str, Any]:
    """Two pipelines that share some weights and have an expert each: what clipping, scaling and checkpoints say and do."""
    pipeline, peers = grid(2, 2)
    stage = pipeline.rank()
    module = Experts(process)
    found: dict[str, Any] = {"said": [], "errors": []}
    with load(
        plan,
        {stage: module},
        loss_fn=nn.functional.mse_loss,
        pipeline_group=pipeline,
        replicas=Summed([*module.dense.parameters()], peers),
        swap_group=peers,
        check_loss=False,
    ) as pipe:
        torch.manual_seed(10 + peers.rank())
        batch = torch.randn(2, 2 * plan.problem.microbatches, 3)
        pipe.step(*batch)
        with noting(found["said"]):
            clip_grad_norm_(pipe, 1.0)
        for p in (2.0, 1.0, math.inf):
            norms: Any = [
                [float(torch.nn.utils.get_total_norm([one.grad for one in part.parameters() if one.grad is not None], p))]
                for part in (module.dense, module.expert)
            ]
            every: list[Any] = [None] * 4
            dist.all_gather_object(every, norms)
            each = torch.tensor([*(one for dense, _ in every[:2] for one in dense), *(one for _, own in every for one in own)])
            expected = float(torch.linalg.vector_norm(each, p))
            norm = clip_grad_norm_(pipe, expected / 2, p, local=module.expert.parameters()).item()
            after = clip_grad_norm_(pipe, math.inf, p, local=module.expert.parameters()).item()
            found["errors"] += [abs(norm / expected - 1), abs(2 * after / expected - 1)]
        optimizer: Any = Descent(module.parameters())
        scaler = GradScaler(pipe, init_scale=4.0)
        pipe.step(*batch, scale=scaler.get_scale())
        if process == 1:
            module.expert.weight.grad.fill_(math.inf)  # type: ignore[union-attr]
        before = module.dense.weight.detach().clone()
        scaler.step(optimizer)
        scaler.update()
        found["scale"] = scaler.get_scale(), torch.equal(before, module.dense.weight)
        with noting(found["said"]):
            save_checkpoint(pipe, path, model=nn.ModuleDict({str(stage): module}))
        named = nn.ModuleDict({f"{stage}_dense": module.dense, f"{stage}_expert_{peers.rank()}": module.expert})
        save_checkpoint(pipe, path, model=named)
        dist.barrier()
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
    with load(plan, make_stages(plan, pipeline.rank()), pipeline_group=pipeline, swap_group=peers) as pipe:
        pipe.step(*make_batch(plan, 0), divide_by=(30, 10)[peers.rank()])
    return "stepped"
