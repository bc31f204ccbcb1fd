"""A plan as a pipeline schedule of torchtitan: its trainer calls `step` with the microbatches of a batch.

torchtitan's loss of a microbatch is a sum over tokens, divided by the number of tokens of the whole step on all ranks. The step's
gradients are those of the sum of these losses, so each backward starts from 1, where the runtime by itself takes the mean.

FSDP2 (`fully_shard`) around a stage by itself reduces gradients at the end of each backward, and lets go of the weights there.
Here the backward runs once for each microbatch, and B and W may be apart: FSDP keeps the weights from the first forward to the end
of the stage's last backward, lets gradients add up, and reduces them once, then. This is what `torch.distributed.pipelining` does
with FSDP, by the same calls.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from schedc.errors import Unsupported
from schedc.ir import Kind, Plan
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.session.loading import load

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

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
        device: torch.device,
        *,
        timeout_s: float,
        observe: Observer | None,
    ) -> None:
        """Take what is loaded with the first step, once the weights are there.

        Args:
            plan: the plan.
            parts: this rank's model parts by stage.
            loss_fn: torchtitan's: takes the output, the labels and keywords; gives the loss and metrics.
            group: the pipeline's processes, rank by rank.
            device: of the parts.
            timeout_s: as for `load`.
            observe: as for `load`.
        """
        self._plan = plan
        self._group = group
        self._timeout_s = timeout_s
        self._observe = observe
        self._last = len(plan.problem.stages) - 1
        self._stages = {
            stage: _Stage(part, _order_of_forwards(plan, stage), loss_fn if stage == self._last else None, device)
            for stage, part in parts.items()
        }
        self._targets = [torch.empty(0)] * plan.problem.microbatches  # the stage itself has the labels, and computes the loss
        self._pipe: Pipe | None = None

    @property
    def pipe(self) -> Pipe:
        """The loaded plan; all ranks load it together with their first step."""
        if self._pipe is None:
            stages = {stage: one.sharded for stage, one in self._stages.items() if one.sharded is not None}
            self._pipe = load(
                self._plan,
                stages=self._stages,
                loss_fn=lambda loss, _nothing: loss,
                timeout_s=self._timeout_s,
                pipeline_group=self._group,
                observe=self._observe,
                check_loss=False,  # torchtitan checks it, where it logs
                replicas=_Moments(self._stages.values(), stages),
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
        self._begin(kwarg_mbs, target_mbs, loss_kwargs or {})
        self.pipe.step(arg_mbs, self._targets)
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
        self._begin(kwarg_mbs, target_mbs, {})
        for stage in self._stages.values():
            stage.begin_step()
        self.pipe.evaluate(arg_mbs, self._targets)
        self._append(losses)

    def _begin(
        self,
        kwarg_mbs: Sequence[Mapping[str, Any]] | None,
        target_mbs: Sequence[torch.Tensor] | None,
        loss_kwargs: Mapping[str, Any],
    ) -> None:
        for stage in self._stages.values():
            stage.begin(kwarg_mbs or [{}] * len(self._targets), target_mbs, loss_kwargs)

    def _append(self, losses: list[torch.Tensor] | None) -> None:
        """The microbatches' losses in their order, to the caller's list, on the rank that has them."""
        last = self._stages.get(self._last)
        if last is not None and losses is not None:
            losses += [last.losses[microbatch] for microbatch in range(len(self._targets))]


class _Stage(nn.Module):
    """A model part as a stage of the plan: it gets what belongs to its microbatch besides the activations.

    The part is not its submodule: what wraps the part is not the runtime's to look at, as `ShardedStage` serves it.
    """

    def __init__(self, part: nn.Module, order: Sequence[int], loss_fn: Callable[..., Any] | None, device: torch.device) -> None:
        """Take the part, the microbatches in the order of its forwards, and on a last stage the loss."""
        super().__init__()
        self.register_buffer("where", torch.empty(0, device=device), persistent=False)  # shows the runtime the device
        self._part = (part,)
        self._order = order
        self._loss_fn = loss_fn
        self._forwards = 0
        self._kwargs: Sequence[Mapping[str, Any]] = ()
        self._targets: Sequence[torch.Tensor] | None = None
        self._loss_kwargs: Mapping[str, Any] = {}
        self.sharded = ShardedStage.around(part)
        self.losses: dict[int, torch.Tensor] = {}
        """Of the last step's microbatches, on a last stage."""

    def begin(
        self, kwargs: Sequence[Mapping[str, Any]], targets: Sequence[torch.Tensor] | None, loss_kwargs: Mapping[str, Any]
    ) -> None:
        """Take the batch of a step."""
        self._kwargs, self._targets, self._loss_kwargs = kwargs, targets, loss_kwargs

    def begin_step(self) -> None:
        """Before the step's first op."""
        self._forwards = 0
        self.losses.clear()

    def forward(self, *inputs: torch.Tensor) -> Any:
        """The part on the next microbatch of the plan's order; on a last stage its loss."""
        microbatch = self._order[self._forwards]
        self._forwards += 1
        output = self._part[0](*inputs, **self._kwargs[microbatch])
        if self.sharded is not None:
            self.sharded.ran()
        if self._loss_fn is None:
            return output
        assert self._targets is not None
        loss, _ = self._loss_fn(output, self._targets[microbatch], **self._loss_kwargs)
        self.losses[microbatch] = loss.detach()
        start: Any = _StartFromOne
        return start.apply(loss)


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
    """Where in a step the stages' own gradients begin, and where FSDP may reduce them."""

    def __init__(self, stages: Any, sharded: Mapping[int, ShardedStage]) -> None:
        """Take the rank's stages, and of those with FSDP what serves it."""
        self._stages = list(stages)
        self._sharded = sharded

    def begin_step(self) -> None:
        """Before the first op."""
        for stage in self._stages:
            stage.begin_step()
        for sharded in self._sharded.values():
            sharded.begin_step()

    def on_gradients_complete(self, stage: int) -> None:
        """After the last W or BW of a stage."""
        if stage in self._sharded:
            self._sharded[stage].reduce()


def _order_of_forwards(plan: Plan, stage: int) -> list[int]:
    """The microbatches in the order in which their F begins on the stage."""
    compute = plan.ranks[plan.problem.stages[stage].rank].compute
    return list(dict.fromkeys(op.microbatch for op in compute if op.stage == stage and op.kind is Kind.F))


class ShardedStage:
    """The FSDP modules of one stage, of which its module is the root."""

    def __init__(self, module: FSDPModule) -> None:
        """Take the stage's module."""
        self._module = module
        self._state: Any = fully_shard.state(module)  # type: ignore[attr-defined]
        self._watched: set[int] = set()

    @classmethod
    def around(cls, module: nn.Module) -> ShardedStage | None:
        """What serves a stage's module; None: FSDP is not around it."""
        return cls(module) if isinstance(module, FSDPModule) else None

    def begin_step(self) -> None:
        """From now on gradients add up, and weights stay."""
        self._now(last=False)

    def ran(self) -> None:
        """After a forward: let gradients add up in the type of the reduction, where this is not the weights'.

        FSDP does so at the end of a backward; W ends none.
        """
        for group in self._groups():
            for weight in group.fsdp_params:
                if id(weight) not in self._watched and hasattr(weight, "_unsharded_param"):
                    self._watched.add(id(weight))
                    if weight.reduce_dtype is not None and weight.unsharded_param.requires_grad:
                        weight.unsharded_param.register_post_accumulate_grad_hook(partial(_add_to_sum, weight))

    def reduce(self) -> None:
        """After the last backward of a step: the gradients over all replicas go into `.grad`, and the weights go."""
        self._now(last=True)
        for group in self._groups():
            group.post_backward()
        self._state._root_post_backward_final_callback()

    def _now(self, *, last: bool) -> None:
        self._module.set_is_last_backward(last)
        self._module.set_reshard_after_backward(last)
        self._module.set_requires_gradient_sync(last)

    def _groups(self) -> list[Any]:
        return [group for state in self._state._state_ctx.all_states for group in state._fsdp_param_groups]


def _add_to_sum(weight: Any, _gathered: torch.Tensor) -> None:
    """A gradient has been added to `.grad` of the gathered weight, FSDP's own object: add it to the sum that FSDP reduces later."""
    weight.accumulate_unsharded_grad_if_needed()
    weight.to_accumulated_grad_if_needed()
