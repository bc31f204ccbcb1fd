"""A plan as a pipeline schedule of torchtitan: its trainer calls `step` with the microbatches of a batch.

torchtitan's loss of a microbatch is a sum over tokens, divided by the number of tokens of the whole step on all ranks. The step's
gradients are those of the sum of these losses, so each backward starts from 1, where the runtime by itself takes the mean.

What FSDP2 around a stage does in a step is `schedc.runtime.replicas.sharded`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, Replicate

from schedc.errors import Unsupported
from schedc.ir import Kind, Plan
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.session.loading import load

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch.distributed as dist

    from schedc.runtime.common.hooks import Observer
    from schedc.runtime.session.pipe import Pipe


class PlanSchedule:
    """What torchtitan's trainer calls its `pp_schedule`."""

    def __init__(
        self,
        plan: Plan,
        parts: Mapping[int, nn.Module],
        loss_fn: Callable[..., Any],
        group: dist.ProcessGroup,
        *,
        timeout_s: float,
        observe: Observer | None,
    ) -> None:
        """Take what is loaded with the first step, once the weights are there.

        `loss_fn` is torchtitan's: it takes the output, the labels and keywords, and gives the loss and metrics.
        """
        self._plan = plan
        self._group = group
        self._timeout_s = timeout_s
        self._observe = observe
        self._last = len(plan.problem.stages) - 1
        self._stages = {
            stage: _Stage(part, _order_of_forwards(plan, stage), loss_fn if stage == self._last else None)
            for stage, part in parts.items()
        }
        self._targets = [torch.empty(0)] * plan.problem.microbatches  # the stage itself has the labels, and computes the loss
        self._pipe: Pipe | None = None

    @property
    def pipe(self) -> Pipe:
        """The loaded plan; all ranks load it together with their first step."""
        if self._pipe is None:
            self._pipe = load(
                self._plan,
                stages=self._stages,
                loss_fn=lambda loss, _nothing: loss,
                timeout_s=self._timeout_s,
                pipeline_group=self._group,
                observe=self._observe,
                check_loss=False,  # torchtitan checks it, where it logs
                replicas=_Moments(self._stages.values()),
            )
            weakref.finalize(self, self._pipe.close)
        return self._pipe

    def step(
        self,
        *,
        arg_mbs: Sequence[tuple[torch.Tensor, ...]] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None = None,
        target_mbs: Sequence[torch.Tensor] | None = None,
        losses: list[torch.Tensor] | None = None,
        loss_kwargs: Mapping[str, Any] | None = None,
        return_outputs: bool = False,
    ) -> None:
        """Run the plan once: add the gradients of the sum of the microbatches' losses.

        Args:
            arg_mbs: what the first stage takes, by microbatch; None on ranks without it.
            kwarg_mbs: further arguments of every stage (positions, attention masks), by microbatch.
            target_mbs: the labels, by microbatch; None on ranks without the last stage.
            losses: the microbatches' losses are appended to it on the rank with the last stage.
            loss_kwargs: further arguments of the loss.
            return_outputs: must be False: the plan keeps no outputs.

        Raises:
            Unsupported: outputs are wanted.
            SchedcError: as `Pipe.step`.
        """
        if return_outputs:
            raise Unsupported("return_outputs: found True, expected False; a plan keeps no outputs of its last stage")
        self._begin(arg_mbs, kwarg_mbs, target_mbs, loss_kwargs or {})
        self.pipe.step(_own_parts(arg_mbs), self._targets)
        self._append(losses)

    def eval(
        self,
        *,
        arg_mbs: Sequence[tuple[torch.Tensor, ...]] | None = None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None = None,
        target_mbs: Sequence[torch.Tensor] | None = None,
        losses: list[torch.Tensor] | None = None,
    ) -> None:
        """Run the plan's forwards alone; arguments and errors are as for `step`."""
        self._begin(arg_mbs, kwarg_mbs, target_mbs, {})
        for stage in self._stages.values():
            stage.begin_step()
        self.pipe.evaluate(_own_parts(arg_mbs), self._targets)
        self._append(losses)

    def _begin(
        self,
        arg_mbs: Sequence[tuple[torch.Tensor, ...]] | None,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None,
        target_mbs: Sequence[torch.Tensor] | None,
        loss_kwargs: Mapping[str, Any],
    ) -> None:
        for number, stage in self._stages.items():
            stage.begin(arg_mbs if number == 0 else None, kwarg_mbs or [{}] * len(self._targets), target_mbs, loss_kwargs)

    def _append(self, losses: list[torch.Tensor] | None) -> None:
        """The microbatches' losses in their order, to the caller's list, on the rank that has them."""
        last = self._stages.get(self._last)
        if last is not None and losses is not None:
            losses += [last.losses[microbatch] for microbatch in range(len(self._targets))]


class _Stage(nn.Module):
    """A model part as a stage of the plan: it gets what belongs to its microbatch besides the activations."""

    def __init__(self, part: nn.Module, order: Sequence[int], loss_fn: Callable[..., Any] | None) -> None:
        """Take the part, the microbatches in the order of its forwards, and on a last stage the loss."""
        super().__init__()
        self.part = part
        self._order = order
        self._loss_fn = loss_fn
        self._args: Sequence[tuple[torch.Tensor, ...]] | None = None
        self._forwards = 0
        self._kwargs: Sequence[Mapping[str, Any]] = ()
        self._targets: Sequence[torch.Tensor] | None = None
        self._loss_kwargs: Mapping[str, Any] = {}
        self.losses: dict[int, torch.Tensor] = {}
        """Of the last step's microbatches, on a last stage."""

    def begin(
        self,
        args: Sequence[tuple[torch.Tensor, ...]] | None,
        kwargs: Sequence[Mapping[str, Any]],
        targets: Sequence[torch.Tensor] | None,
        loss_kwargs: Mapping[str, Any],
    ) -> None:
        """Take the batch of a step; `args` where the stage is the first."""
        self._args = args
        self._kwargs, self._targets, self._loss_kwargs = kwargs, targets, loss_kwargs

    def begin_step(self) -> None:
        """Before the step's first op."""
        self._forwards = 0
        self.losses.clear()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The part on the next microbatch of the plan's order; on a last stage its loss."""
        microbatch = self._order[self._forwards]
        self._forwards += 1
        inputs = inputs if self._args is None else self._args[microbatch]
        output = self.part(*inputs, **self._kwargs[microbatch])
        if self._loss_fn is None:
            return output
        assert self._targets is not None
        loss, _ = self._loss_fn(output, self._targets[microbatch], **self._loss_kwargs)
        self.losses[microbatch] = loss.detach()  # a DTensor where the job has these alone (`full_dtensor`), as torch's own
        if isinstance(loss, DTensor):
            loss = loss.to_local(grad_placements=[Replicate()] * loss.device_mesh.ndim)
        start: Any = _StartFromOne
        return start.apply(loss)


def _own_parts(args: Sequence[tuple[torch.Tensor, ...]] | None) -> Sequence[tuple[torch.Tensor, ...]] | None:
    """What the runtime sees of a batch: of DTensors what this process has of them. The first stage takes the batch itself."""
    if args is None:
        return None
    return [tuple(one.to_local() if isinstance(one, DTensor) else one for one in arguments) for arguments in args]


class _StartFromOne(torch.autograd.Function):
    """An identity whose gradient is 1, whatever share of the step's loss the runtime gives it."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor) -> torch.Tensor:
        return loss.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (share,) = gradients
        return torch.ones_like(share)


class _Moments(ReplicaHooks):
    """Where a step begins, on which stages count their forwards."""

    def __init__(self, stages: Iterable[_Stage]) -> None:
        """Take the rank's stages."""
        self._stages = stages

    def begin_step(self) -> None:
        """Before the first op."""
        for stage in self._stages:
            stage.begin_step()


def _order_of_forwards(plan: Plan, stage: int) -> list[int]:
    """The microbatches in the order in which their F begins on the stage."""
    compute = plan.ranks[plan.problem.stages[stage].rank].compute
    return list(dict.fromkeys(op.microbatch for op in compute if op.stage == stage and op.kind is Kind.F))
