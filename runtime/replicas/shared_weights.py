"""Stages that hold the same weights on different paths (bidirectional placements): they start equal, and sum their gradients."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import torch

from schedc.errors import CheckFailed
from schedc.runtime.common.failure import with_others
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.buffers import SharedBuffers, saved_buffers
from schedc.runtime.replicas.gradients import Bucket, by_gradient_type, check_known

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups

LOST = "a rank that holds one of them has ended or failed, and its own message says why"


def weights_digest(stage: nn.Module) -> str:
    """A digest of the stage's parameters, in their order: types, shapes and values; and of its buffers' types and shapes."""
    kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in saved_buffers(stage)]
    return digest_of(stage.parameters()) + (hashlib.sha256(repr(kinds).encode()).hexdigest() if kinds else "")


def digest_of(parameters: Iterable[nn.Parameter]) -> str:
    """A digest of these parameters."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(f"{parameter.dtype} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
        digest.update(parameter.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _check_shared(replicas: Sequence[Sequence[int]], shared: Sequence[Mapping[int, Sequence[int]]]) -> None:
    """Refuse replicas whose weights belong to other stages, too, on one rank, but not on another; `shared` is by rank."""
    for number, members in enumerate(replicas):
        first, *others = [rank for rank, sets in enumerate(shared) if number in sets]
        for other in others:
            if shared[first][number] != shared[other][number]:
                raise CheckFailed(
                    f"stages {' and '.join(map(str, members))} are replicas, but the weights that they share with other stages"
                    f" (tied weights) differ between ranks {first} and {other}; share the same ones on both"
                )


class ReplicaSums(ReplicaHooks):
    """All sets of replicas that this rank has a stage of."""

    def __init__(self, problem: Problem, stages: Mapping[int, nn.Module], groups: Groups) -> None:
        """Connect their ranks; all ranks do this together.

        A weight that several of a rank's stages share (tied embeddings) is summed with the first set that has it.

        Args:
            problem: of the plan.
            stages: this rank's.
            groups: makes the process groups.

        Raises:
            CheckFailed: the replicas' stages do not share the same weights.
            TransferFailed: another rank does not come.
        """
        self._sums: list[tuple[Bucket, str]] = []
        """With each, who sums what with whom: `rank 0 sums the gradients of stages 0 and 7 with rank 3`."""
        self._buffers: list[tuple[SharedBuffers, str]] = []
        self._replicated: dict[int, nn.Module] = {}
        self._known: set[nn.Parameter] = set()
        summed: dict[nn.Parameter, int] = {}  # with which set of replicas, by its place in `replicas_of`
        shared: dict[int, list[int]] = {}  # of each set, for each weight the set that sums it
        for number, members in enumerate(replicas_of(problem)):
            modules = list(dict.fromkeys(stages[stage] for stage in members if stage in stages))
            if modules:
                self._replicated.update((stage, stages[stage]) for stage in members if stage in stages)
                ranks = sorted({problem.stages[stage].rank for stage in members})
                group = groups.make(ranks)
                others = " and ".join(f"rank {rank}" for rank in ranks if rank != groups.rank)
                doing = f"rank {groups.rank} sums the gradients of stages {' and '.join(map(str, members))} with {others}"
                first = ranks.index(problem.stages[members[0]].rank)
                self._buffers.append(
                    (SharedBuffers(modules, group, first), doing.replace("sums the gradients", "shares the buffers"))
                )
                weights = zip(*([weight for weight in one.parameters() if weight.requires_grad] for one in modules), strict=True)
                each = [tuple(dict.fromkeys(own)) for own in weights]
                shared[number] = [summed.setdefault(own[0], number) for own in each]
                same = {own[0]: own for own, by in zip(each, shared[number], strict=True) if by == number}
                self._sums += [(Bucket([same[first] for first in firsts], group), doing) for firsts in by_gradient_type(same)]
        self._known.update(weight for module in self._replicated.values() for weight in module.parameters() if weight.requires_grad)
        _check_shared(replicas_of(problem), groups.exchange(shared))

    def begin_step(self) -> None:
        """Put aside gradients from before the step, which are summed already.

        Raises:
            Unsupported: a weight has been unfrozen since `load`.
        """
        check_known(self._replicated, self._known)
        self.gather()
        for bucket, _ in self._sums:
            bucket.begin()

    def gather(self) -> None:
        """Let all replicas have the buffers of the first.

        Raises:
            TransferFailed: another rank of a set is lost.
        """
        for buffers, doing in self._buffers:
            with with_others(doing, LOST):
                work = buffers.start()
                if work is not None:
                    work.wait()
            buffers.finish()

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """Give every replica the sum of what the step has added to each.

        Raises:
            TransferFailed: another rank of a set is lost.
        """
        for bucket, doing in self._sums:
            sum_gradients(bucket, doing)
        return loss


def sum_gradients(bucket: Bucket, doing: str) -> None:
    """Give the weights of a bucket the sum of what the step has added to each copy; `doing` is for messages.

    Raises:
        TransferFailed: another rank that has them is lost.
    """
    with with_others(doing, LOST):
        bucket.start().wait()
    bucket.finish()
