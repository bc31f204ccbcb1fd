"""Stages that FSDP2 (`fully_shard`) has sharded over processes: once in a step weights are gathered, and gradients reduced.

By itself FSDP reduces gradients at the end of each backward, and lets go of weights there. Here a backward runs for each
microbatch, and B and W may be apart. So a stage's weights are gathered before its first F and go after its last W or BW, or when
the plan says so (ZeRO 3). Gradients add up and are reduced once, by the calls with which `torch.distributed.pipelining` does that.
`reshard_after_forward` is not looked at. Only what has such stages imports it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import Unsupported
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import ShardMoment

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


class ShardedStages(ReplicaHooks):
    """Those of one rank. Its calls come beside those of the hooks between pipelines."""

    def __init__(self, roots: Mapping[int, Sequence[Any]], hooks: ReplicaHooks, among: Collection[int]) -> None:
        """Take the stages.

        Args:
            roots: of each stage the outermost modules that FSDP is around.
            hooks: asked, before anything goes to other processes, whether all pipelines are called for the same.
            among: the processes that each give a share of the mean: FSDP sums gradients over these, and takes the mean over others
                of its own.
        """
        self._stages = {stage: [_Root(root, among) for root in own] for stage, own in roots.items()}
        self._hooks = hooks
        self._summing: list[int] = []
        """The stages whose sums are under way."""

    def begin_step(self) -> None:
        """Gradients add up from now on.

        Raises:
            Unsupported: a weight has been frozen or unfrozen since an earlier step.
        """
        self._summing.clear()
        for own in self._stages.values():
            for root in own:
                root.begin()

    def on_weights_needed(self, stage: int) -> None:
        """Gather the stage's weights."""
        self.at(ShardMoment("gather", stage))
        self.at(ShardMoment("await weights", stage))

    def on_gradients_complete(self, stage: int) -> None:
        """Reduce the stage's gradients into those of its shards, and let go of its weights."""
        self.at(ShardMoment("sum", stage))

    def at(self, moment: ShardMoment) -> None:
        """As `ReplicaHooks.at`, of all stages."""
        what, stage = moment
        if stage not in self._stages:
            return
        if what == "gather":
            self._hooks.begins(True)
        if what == "sum":
            self._summing.append(stage)
        elif what == "await sum":
            if stage not in self._summing:
                return
            self._summing.remove(stage)
        for root in self._stages[stage]:
            root.moments[what]()

    def finish(self) -> None:
        """After the last op: wait for sums that are under way."""
        while self._summing:
            self.at(ShardMoment("await sum", self._summing[0]))

    def release(self) -> None:
        """Let the weights be shards, after an evaluation: those that were gathered for it are old after the optimizer's step."""
        for own in self._stages.values():
            for root in own:
                root.release()

    def close(self) -> None:
        """The pipe is closed, perhaps in the middle of a step: the modules are as before their first."""
        for own in self._stages.values():
            for root in own:
                root.reset()


class _Root:
    """One of these modules, and those within that FSDP is around as well."""

    def __init__(self, module: Any, among: Collection[int]) -> None:
        self._module, self._state = module, module._get_fsdp_state()
        self._among = among
        self._watched: set[int] = set()
        self.moments = {
            "gather": self._gather,
            "await weights": self._await_weights,
            "release": self.release,
            "sum": self._sum,
            "await sum": self._await_sum,
        }
        """What is done, by `ShardMoment.what`."""

    def begin(self) -> None:
        self.release()
        self._module.set_reshard_after_forward(False)
        self._now(last=False)
        for group in self._groups():
            for weight in group.fsdp_params:
                whole = getattr(weight, "_unsharded_param", weight.sharded_param)
                if whole.requires_grad != weight.sharded_param.requires_grad:
                    raise Unsupported(
                        f"{weight._param_fqn} of a fully_shard has been frozen or unfrozen after a step, which FSDP does not see;"
                        " choose what is trained before the first step"
                    )
            if not self._among:
                continue
            over = {*group.mesh_info.mesh.mesh.flatten().tolist()}
            group.gradient_divide_factor = len(over) / max(1, len(over.intersection(self._among)))
            group.force_sum_reduction_for_comms = True  # with NCCL else by an op that other backends lack

    def _gather(self) -> None:
        for group in self._groups():
            group.unshard(async_op=True)

    def _await_weights(self) -> None:
        for group in self._groups():
            group.wait_for_unshard()
            for weight in group.fsdp_params:
                if id(weight) not in self._watched:
                    self._watched.add(id(weight))
                    if weight.reduce_dtype is not None and weight.unsharded_param.requires_grad:  # done else at a backward's end
                        weight.unsharded_param.register_post_accumulate_grad_hook(partial(_add_to_sum, weight))

    def _sum(self) -> None:
        self._now(last=True)
        for group in self._groups():
            for weight in group.fsdp_params:
                whole = weight.unsharded_param
                if whole.requires_grad and whole.grad is None and weight.unsharded_accumulated_grad is None:
                    kind = weight.reduce_dtype or whole.dtype  # another process may have used what this one has not
                    weight.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=kind)
            group.post_backward()

    def _await_sum(self) -> None:
        self._state._root_post_backward_final_callback()

    def reset(self) -> None:
        """Let go of what a step has left that has failed: weights that were gathered, and gradients that have added up."""
        if self._state._is_root is None:  # none has begun
            return
        for group in self._groups():
            group._all_gather_result = None  # not waited for, as the others may be gone
            for weight in group.fsdp_params:
                weight.unsharded_accumulated_grad = None
                if hasattr(weight, "_unsharded_param"):
                    weight._unsharded_param.grad = None
        self._state._reset_iter_state()

    def release(self) -> None:
        for group in self._groups():
            group.reshard()

    def _groups(self) -> list[Any]:
        self._state._lazy_init()
        return [group for state in self._state._state_ctx.all_states for group in state._fsdp_param_groups]

    def _now(self, *, last: bool) -> None:
        self._module.set_is_last_backward(last)
        self._module.set_reshard_after_backward(last)
        self._module.set_requires_gradient_sync(last)


def _add_to_sum(weight: Any, _gathered: Any) -> None:
    """A gradient has been added to `.grad` of the gathered weight: add it to the sum, which is of the reduction's type."""
    weight.accumulate_unsharded_grad_if_needed()
    weight.to_accumulated_grad_if_needed()
