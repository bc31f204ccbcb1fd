"""The pipelines of a data-parallel job as one process sees them: its *replicas*, the processes of the same rank in each of them.

What plans may run beside each other: those with the same collectives, which a rank starts in the order of its queue.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Collective, Kind, Plan
from schedc.runtime.common.groups import Groups
from schedc.runtime.replicas.buckets import Partners

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from torch import nn


CALLS = (
    "step",
    "step with weights",
    "evaluation",
    "evaluation with weights",
    "gather",
    "loss",
    "sum",
    "largest number",
)
"""What pipelines do with each other, besides sums and gathers of tensors."""
WIDTH = 5
"""How many numbers each message has: if they are for different calls, they still meet. On another size gloo ends the process."""
LOST = "a replica has ended or failed, and its own message says why"


class Pipelines(Groups):
    """Connections to the replicas, apart from those that the job has made. Its ranks are the pipelines, by number."""

    def __init__(self, timeout_s: float, group: dist.ProcessGroup) -> None:
        """Connect; all members of the group do this together.

        Args:
            timeout_s: how long to wait for them.
            group: the replicas of this process, in the order of their pipelines.

        Raises:
            InvalidInput: this process is not in the group.
            TransferFailed: another one does not come.
        """
        super().__init__(timeout_s, group, "data_parallel_group")
        self._given = group
        self.processes = dist.get_process_group_ranks(group)
        """Their ranks in the job."""
        self._partners = Partners(self.all, LOST, 2 * timeout_s)
        """With time for another pipeline, which may have to find out first that a channel has failed."""

    def over(self, modules: Iterable[nn.Module]) -> Partners:
        """With whom the gradients of these modules are summed.

        Over gloo on the CPU; elsewhere the group given, which is for their device, and waits there.
        """
        elsewhere = any(weight.device.type != "cpu" for module in modules for weight in module.parameters())
        return Partners(self._given, LOST) if elsewhere else Partners(self.all, LOST, self.timeout_s)

    def say(self, call: str, *numbers: float) -> tuple[torch.Tensor, dist.Work]:
        """Start to send the others what this pipeline does, one of `CALLS`, and numbers; what to `hear`.

        Raises:
            TransferFailed: a replica is lost.
        """
        heard = torch.zeros(self.size, WIDTH, dtype=torch.float64, device="cpu")
        own = [float(CALLS.index(call)), *numbers]
        said = torch.tensor([[*own, *(0.0,) * (WIDTH - len(own))]], dtype=torch.float64, device="cpu")
        doing = f"pipeline {self.rank} tells the others of its {call}"
        return heard, self._partners.start(lambda: self.all._allgather_base(heard, said), doing)

    def hear(self, said: tuple[torch.Tensor, dist.Work], what: str) -> torch.Tensor:
        """The numbers of all pipelines, by pipeline, which do the same; `what` this one waits for is for messages.

        Raises:
            InvalidInput: they are called for something else.
            TransferFailed: a replica is lost, or too late.
        """
        heard, work = said
        self._partners.wait(work, f"pipeline {self.rank} waits for {what}")
        calls = [CALLS[int(number)] for number in heard[:, 0].tolist()]
        other = next((at for at, call in enumerate(calls) if call != calls[0]), None)
        if other is not None:
            raise InvalidInput(
                f"pipelines 0 and {other} are called for {calls[0]} and {calls[other]}; call all of them for the same"
            )
        return heard[:, 1:]


def queue_of(plan: Plan, rank: int) -> tuple[Collective, ...]:
    """The collectives of a rank in the order in which they start.

    Those of the plan; where it has none, or no all-gathers though it is for ZeRO 1, those that it leaves out, in the order in which
    the lowering would have put them: by first F, then by last W or BW. Where weights are sharded (ZeRO 3) sums alone are here.
    """
    own = plan.ranks[rank]
    parallel = plan.problem.data_parallel
    queue = tuple(one for one in own.collectives if one.before < 0)
    if not queue:
        last = {op.stage: index for index, op in enumerate(own.compute) if op.kind in (Kind.W, Kind.BW)}
        queue = tuple(Collective("RS", stage) for stage in sorted(last, key=last.__getitem__))
    if parallel is not None and parallel.zero_stage == 1 and not any(collective.kind == "AG" for collective in queue):
        first = dict.fromkeys(op.stage for op in own.compute if op.kind is Kind.F)
        queue = (*(Collective("AG", stage) for stage in first), *queue)
    return queue


def check_same_collectives(old: Plan, new: Plan) -> None:
    """Refuse to go from one plan to another while other replicas of the pipeline may still run the old one.

    Raises:
        InvalidInput: the replicas would then start different collectives, or weigh their microbatches differently.
    """
    if old.problem.microbatches != new.problem.microbatches:
        raise InvalidInput(
            f"plan {new.name!r} has {new.problem.microbatches} microbatches, the one that runs {old.problem.microbatches};"
            " replicas of a pipeline move at different steps, so their number must stay"
        )
    for rank in range(old.problem.ranks):
        queues = (plan.ranks[rank].collectives or queue_of(plan, rank) for plan in (old, new))
        before, after = (" ".join(f"{one.kind}{one.stage}" for one in queue) for queue in queues)
        if before != after:
            raise InvalidInput(
                f"plan {new.name!r} has the collectives {after} on rank {rank}, the one that runs {before};"
                " replicas of a pipeline move at different steps, so their order must stay"
            )


def check_weights(stages: Mapping[int, nn.Module], among: Collection[int], *, sharded: bool) -> None:
    """Refuse weights that replicas cannot sum.

    `among` are the processes that have replicas; `sharded`: whether each of them is to own a share of the weights (ZeRO 1).

    Raises:
        Unsupported: one is not of a floating type, or is spread over a part of these processes, or cannot be shared out.
    """
    for stage, module in stages.items():
        for name, weight in module.named_parameters():
            if weight.requires_grad and not weight.is_floating_point():
                raise Unsupported(f"stage {stage}: {name} is {weight.dtype}; replicas can sum the gradients of floating types only")
            mesh = getattr(weight, "device_mesh", None)
            if mesh is None:
                continue
            common = len({*mesh.mesh.flatten().tolist()}.intersection(among))
            if sharded and common > 1:
                raise Unsupported(
                    f"stage {stage}: {name} is a DTensor over {common} processes of the data_parallel_group, which ZeRO 1 does not"
                    " share out; compile with zero_stage = 0"
                )
            if 1 < common < len(among):
                raise Unsupported(
                    f"stage {stage}: {name} is a DTensor over {common} of the {len(among)} processes of the data_parallel_group;"
                    " spread it over all of them or over none, as with a mesh of two dimensions (replicate, shard)"
                )
