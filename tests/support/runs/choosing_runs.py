"""What the rank processes of the tests of choosing inside a step run."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from rank_processes import gave_up, until_others_give_up
from torch import nn

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from schedc.errors import SchedcError
from schedc.ir.ops import token
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.emulation.injected import inject_links
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan


class Held(Observer):
    """The ops of each step, and the most that the plan's sizes say was held."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def begin_step(self, step: int, now_ns: int) -> None:
        self.steps.append([])

    def op(self, times: OpTimes) -> None:
        self.steps[-1].append(token(times.op))


def stages_with_dropout(plan: Plan, rank: int) -> dict[int, nn.Module]:
    """The stages in float32, with random numbers in their forwards."""
    first = {path[0] for path in plan.problem.paths}
    return {stage: nn.Sequential(nn.Identity() if stage in first else nn.Dropout(0.2), module.float(), nn.Dropout(0.1))
            for stage, module in make_stages(plan, rank).items()}  # fmt: skip


def train(
    rank: int,
    plan: Plan,
    choosing: Sequence[bool],
    trace: LinkTrace | None,
    options: Mapping[str, Any],
    swap_to: Plan | None = None,
) -> dict[str, Any]:
    """Three steps and an evaluation: the gradients of each as bytes, the losses, the orders, what was warned of.

    Args:
        rank: this one.
        plan: what is run.
        choosing: by rank, whether it chooses.
        trace: the links' delays; None: none.
        options: of `load`.
        swap_to: to swap to after the first step.
    """
    torch.manual_seed(rank)
    stages, order = stages_with_dropout(plan, rank), Held()
    wrap = None if trace is None else partial(inject_links, trace=trace)
    kind = ChoosingPipe if choosing[rank] else Pipe
    gradients, losses = [], []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with schedc.runtime.load(
            plan, stages=stages, loss_fn=loss_fn, timeout_s=60, observe=order, wrap=wrap, kind=kind, **options
        ) as pipe:
            for step in range(3 if swap_to is None else 4):
                for parameter in nn.ModuleList(stages.values()).parameters():
                    parameter.grad = None
                losses.append(pipe.step(*make_batch(plan, step)).item())
                gradients.append(
                    [parameter.grad.numpy().tobytes() for module in stages.values() for parameter in module.parameters()
                     if parameter.grad is not None]
                )  # fmt: skip
                if step == 0 and swap_to is not None:
                    pipe.swap(swap_to)
                if step == 1:
                    losses.append(pipe.evaluate(*make_batch(plan, 9)).item())
    said = [str(each.message) for each in warned if issubclass(each.category, RuntimeWarning)]
    return {"gradients": gradients, "losses": losses, "orders": order.steps, "warned": said}


def train_replicated(rank: int, plan: Plan, choose: bool, trace: LinkTrace | None) -> dict[str, Any]:
    """Two pipelines of the plan, which sum their gradients: those of the second step as bytes, and its order."""
    ranks = plan.problem.ranks
    pipelines = [dist.new_group(list(range(first, first + ranks))) for first in (0, ranks)]
    replicas = [dist.new_group([own, own + ranks]) for own in range(ranks)]
    torch.manual_seed(rank)
    stages, order = stages_with_dropout(plan, rank % ranks), Held()
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn,
        observe=order,
        wrap=None if trace is None else partial(inject_links, trace=trace),
        kind=ChoosingPipe if choose else Pipe,
        pipeline_group=pipelines[rank // ranks],
        data_parallel_group=replicas[rank % ranks],
    ) as pipe:
        for step in range(2):
            for parameter in nn.ModuleList(stages.values()).parameters():
                parameter.grad = None
            pipe.step(*make_batch(plan, 2 * step + rank // ranks))
    found = [parameter.grad for module in stages.values() for parameter in module.parameters() if parameter.grad is not None]
    return {"gradients": [gradient.numpy().tobytes() for gradient in found], "orders": order.steps}


class Failing(nn.Module):
    """Fails in its n-th forward."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.left -= 1
        if self.left == 0:
            raise ValueError("enough")
        return x


def fail(rank: int, plan: Plan, who: int, how: str) -> str:
    """What a rank says when one of them fails in the second step: raises, or is stuck longer than the others wait."""
    stages = make_stages(plan, rank)
    timeout_s = 5 if how == "hangs" else 60
    try:
        with schedc.runtime.load(plan, stages=stages, loss_fn=loss_fn, timeout_s=timeout_s, kind=ChoosingPipe) as pipe:
            pipe.step(*make_batch(plan, 0))
            if rank == who and how == "raises":
                stages[rank].append(Failing(2))  # type: ignore[operator]
            if rank == who and how == "hangs":
                until_others_give_up()
            pipe.step(*make_batch(plan, 1))
    except (SchedcError, ValueError) as error:
        gave_up()
        return f"{type(error).__name__}: {error}"
    return "nothing"
