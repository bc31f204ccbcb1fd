"""A weight that stages of several ranks hold, such as an embedding that is the head's matrix as well.

Each rank has a copy. They start equal, and at the end of each step their gradients are summed, so that equal optimizers keep them
equal. With data parallelism each pipeline does so after its replicas have summed theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.gradients import Bucket, by_gradient_type
from schedc.runtime.replicas.shared_weights import digest_of, sum_gradients

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.session.pipe import Pipe

__all__ = ["TiedSums", "tie_weights"]


class _Copy(NamedTuple):
    """What a rank says of a weight of its own."""

    kind: str
    digest: str


def tie_weights(pipe: Pipe, weights: Mapping[str, nn.Parameter]) -> None:
    """Let copies of a weight on several ranks be one weight; all ranks call it together, once, between `load` and the first step.

    Args:
        pipe: this rank's.
        weights: those of its stages' weights that other ranks have as well, by a name that is the same on all of them; empty on
            ranks that have none. Those that stages of this rank share need no name.

    Raises:
        InvalidInput: on all ranks: a weight is not of this rank's stages, only one rank has a weight of this name, or weights of
            this pipe are tied already.
        CheckFailed: on all ranks: the copies differ.
        Unsupported: on all ranks: stages are replicas of each other, or weights are sharded.
        TransferFailed: another rank has ended, or does not call it.
    """
    refusal: SchedcError | None = None
    copies: dict[str, _Copy] = {}
    try:
        copies = _copies(pipe, weights)
    except SchedcError as error:
        refusal = error
    given = pipe.groups.exchange((copies, None if refusal is None else str(refusal)))
    if refusal is not None:
        raise refusal
    for rank, (_, reason) in enumerate(given):
        if reason is not None:
            raise CheckFailed(f"rank {rank} has refused to tie its weights: {reason}")
    holders = _holders([found for found, _ in given])
    sums: list[tuple[Bucket, str]] = []
    for ranks in sorted({*holders.values()}):
        names = [name for name in sorted(holders) if holders[name] == ranks]
        if pipe.groups.rank in ranks:
            group = pipe.groups.make(ranks)
            doing = f"rank {pipe.groups.rank} sums the gradients of {', '.join(names)} with the other ranks that have them"
            sums += [
                (Bucket([(weight,) for weight in alike], group), doing)
                for alike in by_gradient_type([weights[name] for name in names])
            ]
    elsewhere = [weight for name, weight in weights.items() if holders[name][0] != pipe.groups.rank]
    pipe.hooks = TiedSums(pipe.hooks, sums, elsewhere)


def _copies(pipe: Pipe, weights: Mapping[str, nn.Parameter]) -> dict[str, _Copy]:
    """What this rank has, if it can be tied."""
    if isinstance(pipe.hooks, TiedSums):
        raise InvalidInput("weights of this pipe are tied already; give all of them in one call of tie_weights")
    if replicas_of(pipe.plan.problem):
        raise Unsupported(f"plan {pipe.plan.name!r} has stages that are replicas of each other; share the weight on each rank")
    try:
        pipe.shards()
    except InvalidInput:  # as it must be
        pass
    else:
        raise Unsupported("weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with zero_stage = 0")
    known = {weight for module in pipe.stages.values() for weight in module.parameters()}
    copies: dict[str, _Copy] = {}
    for name, weight in weights.items():
        if weight not in known:
            raise InvalidInput(f"the weight {name!r} is not a parameter of a stage of rank {pipe.groups.rank}")
        if type(weight).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise Unsupported(f"the weight {name!r} is a {type(weight).__name__}; ranks can share plain tensors only")
        copies[name] = _Copy(f"{weight.dtype} {list(weight.shape)} requires_grad={weight.requires_grad}", digest_of([weight]))
    if len({*weights.values()}) < len(weights):
        raise InvalidInput("one weight was given two names; give it one")
    return copies


def _holders(given: Sequence[Mapping[str, _Copy]]) -> dict[str, tuple[int, ...]]:
    """The ranks that have each weight, ascending; all have the same."""
    holders: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys(name for found in given for name in found):
        first, *others = holders[name] = tuple(rank for rank, found in enumerate(given) if name in found)
        if not others:
            raise InvalidInput(f"only rank {first} has a weight {name!r}; give it on every rank that has a copy")
        for other in others:
            one, two = given[first][name], given[other][name]
            if one != two:
                how = f": {one.kind} and {two.kind}" if one.kind != two.kind else "; build both from the same seed or checkpoint"
                raise CheckFailed(f"the weight {name!r} differs between ranks {first} and {other}{how}")
    return holders


class TiedSums(ReplicaHooks):
    """What a pipe does between replicas, and then the sums of this rank's tied weights."""

    def __init__(self, inner: ReplicaHooks, sums: list[tuple[Bucket, str]], elsewhere: Collection[nn.Parameter]) -> None:
        self._inner = inner
        self._sums = sums
        self.counted_elsewhere = elsewhere
        """Those of this rank's weights of which a rank before it has a copy."""
        self.pipelines, self.agrees = inner.pipelines, inner.agrees

    def begin_step(self) -> None:
        """As the inner ones; before them, gradients from before the step are put aside."""
        for bucket, _ in self._sums:
            bucket.begin()
        self._inner.begin_step()

    def on_weights_needed(self, stage: int) -> None:
        """As the inner ones."""
        self._inner.on_weights_needed(stage)

    def on_gradients_complete(self, stage: int) -> None:
        """As the inner ones."""
        self._inner.on_gradients_complete(stage)

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """As the inner ones; then the sums over ranks of this pipeline.

        Raises:
            TransferFailed: another rank is lost.
        """
        self._inner.step_counts = self.step_counts
        loss = self._inner.end_step(loss)
        self.step_counts = self._inner.step_counts
        for bucket, doing in self._sums:
            sum_gradients(bucket, doing)
        return loss

    def total(self, value: torch.Tensor, *, largest: bool = False) -> torch.Tensor:
        """As the inner ones."""
        return self._inner.total(value, largest=largest)

    def gather(self) -> None:
        """As the inner ones."""
        self._inner.gather()

    def shards(self) -> list[object]:
        """As the inner ones."""
        return self._inner.shards()

    def check_swap(self, running: Plan, other: Plan) -> None:
        """As the inner ones."""
        self._inner.check_swap(running, other)

    def close(self) -> None:
        """As the inner ones."""
        self._inner.close()
