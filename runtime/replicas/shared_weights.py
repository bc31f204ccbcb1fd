"""Stages that hold the same weights on different paths (bidirectional placements): they start equal, and sum their gradients."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from schedc.errors import CheckFailed
from schedc.runtime.common.failure import TransferFailed, is_own
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.gradients import gradient_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch.distributed as dist
    from torch import nn

    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups

__all__ = ["ReplicaSums", "check_equal", "weights_digest"]


def weights_digest(stage: nn.Module) -> str:
    """A digest of the stage's parameters, in their order: types, shapes and values."""
    digest = hashlib.sha256()
    for parameter in stage.parameters():
        digest.update(f"{parameter.dtype} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def check_equal(replicas: Sequence[Sequence[int]], digests: Mapping[int, str]) -> None:
    """Refuse replicas that do not start equal.

    Args:
        replicas: the sets of stages with the same weights.
        digests: of each of these stages.

    Raises:
        CheckFailed: names the first two that differ.
    """
    for first, *others in replicas:
        for other in others:
            if digests[first] != digests[other]:
                raise CheckFailed(
                    f"stages {first} and {other} are replicas, but their weights differ;"
                    " build both from the same seed or checkpoint"
                )


class ReplicaSums(ReplicaHooks):
    """All sets of replicas that this rank has a stage of."""

    def __init__(self, problem: Problem, stages: Mapping[int, nn.Module], groups: Groups) -> None:
        """Connect their ranks; all ranks do this together.

        Args:
            problem: of the plan.
            stages: this rank's.
            groups: makes the process groups.

        Raises:
            TransferFailed: another rank does not come.
        """
        self._sums: list[_ReplicaSum] = []
        for members in replicas_of(problem):
            own = [stages[stage] for stage in members if stage in stages]
            if own:
                ranks = sorted({problem.stages[stage].rank for stage in members})
                group = groups.make(ranks) if len(ranks) > 1 else None
                others = " and ".join(f"rank {rank}" for rank in ranks if rank != groups.rank)
                doing = f"rank {groups.rank} sums the gradients of stages {' and '.join(map(str, members))} with {others}"
                self._sums.append(_ReplicaSum(own, group, doing))

    def begin_step(self) -> None:
        """Put aside gradients from before the step, which are summed already."""
        for one in self._sums:
            one.begin()

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """Give every replica the sum of what the step has added to each.

        Raises:
            TransferFailed: another rank of a set is lost.
        """
        for one in self._sums:
            one.finish()
        return loss


class _ReplicaSum:
    """One set of replicas, as one rank sees it."""

    def __init__(self, stages: Sequence[nn.Module], group: dist.ProcessGroup | None, doing: str) -> None:
        """Take this rank's members.

        Args:
            stages: this rank's modules of the set, one or more; a module may be given twice.
            group: the ranks that have members; None: only this one has.
            doing: who sums what with whom, for messages: `rank 0 sums the gradients of stages 0 and 7 with rank 3`.
        """
        modules = list(dict.fromkeys(stages))
        self._parameters = list(zip(*([p for p in m.parameters() if p.requires_grad] for m in modules), strict=True))
        self._group = group
        self._doing = doing
        self._before: list[list[torch.Tensor | None]] = []

    def begin(self) -> None:
        """Put aside gradients from before the step, which are summed already."""
        self._before = [[parameter.grad for parameter in same] for same in self._parameters]
        for same in self._parameters:
            for parameter in same:
                parameter.grad = None

    def finish(self) -> None:
        """Give every replica the sum of what the step has added to each.

        Raises:
            TransferFailed: another rank of the set is lost.
        """
        sums: list[torch.Tensor | None] = []
        for same in self._parameters:
            given = [parameter.grad for parameter in same if parameter.grad is not None]
            sums.append(torch.stack(given).sum(0) if len(given) > 1 else next(iter(given), None))
        if self._group is not None:
            sums = self._over_ranks(sums)
        for same, total, before in zip(self._parameters, sums, self._before, strict=True):
            for number, (parameter, old) in enumerate(zip(same, before, strict=True)):
                if total is None:
                    parameter.grad = old
                else:
                    own = total if number == 0 else total.clone()
                    parameter.grad = own if old is None else old.add_(own)
        self._before = []

    def _over_ranks(self, sums: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """The sums over the ranks; a parameter that no rank has used keeps having no gradient."""
        used = torch.tensor([total is not None for total in sums], dtype=torch.int32)
        self._all_reduce(used)
        found: list[torch.Tensor | None] = [None] * len(sums)
        by_type: dict[torch.dtype, list[int]] = {}
        for index, same in enumerate(self._parameters):
            if used[index]:
                by_type.setdefault(gradient_type(same[0]), []).append(index)
        for kind, indices in by_type.items():
            parts = [torch.zeros_like(self._parameters[i][0], dtype=kind) if (part := sums[i]) is None else part for i in indices]
            bucket = torch.cat([part.reshape(-1) for part in parts])
            self._all_reduce(bucket)
            for index, part, piece in zip(indices, parts, torch.split(bucket, [part.numel() for part in parts]), strict=True):
                found[index] = piece.view(part.shape)
        return found

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        assert self._group is not None
        try:
            self._group.allreduce([tensor]).wait()
        except RuntimeError as error:
            if is_own(error):
                raise
            lost = "the connection is lost; a rank that holds one of them has ended or failed, and its own message says why"
            raise TransferFailed(f"{self._doing}: {lost}") from error
