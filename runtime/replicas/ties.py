"""A weight that stages of several ranks hold, such as an embedding that is the head's matrix as well.

Each rank has a copy. They start equal, and at the end of each step their gradients are summed, so that equal optimizers keep them
equal. With data parallelism each pipeline does so after its replicas have summed theirs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.gradients import Bucket, by_gradient_type
from schedc.runtime.replicas.shared_weights import digest_of, sum_gradients

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.common.groups import Groups


def weights_named(ties: Iterable[tuple[nn.Module, Mapping[str, str]]]) -> dict[str, nn.Parameter | None]:
    """For `tied`, of modules and `Layers.ties_of_ranks`: the weights by their names in the whole model."""
    found: dict[str, nn.Parameter | None] = {}
    for module, names in ties:
        for name, own in names.items():
            try:
                found[name] = module.get_parameter(own)
            except AttributeError:  # a parametrization has made it something else
                found[name] = None
    return found


class _Copy(NamedTuple):
    """What a rank says of a weight of its own."""

    kind: str
    digest: str
    shared: bool
    """Whether several modules of this rank have it."""


def tied(
    hooks: ReplicaHooks, plan: Plan, stages: Mapping[int, nn.Module], groups: Groups, weights: Mapping[str, nn.Parameter | None]
) -> ReplicaHooks:
    """The hooks with sums of these weights after them; all ranks call it together. What is tied already stays as it is.

    Args:
        hooks: what is done between replicas.
        plan: that runs.
        stages: this rank's.
        groups: of the plan's ranks.
        weights: of this rank, by a name that all ranks with a copy give it; None: it is none any more.

    Raises:
        SchedcError: as `schedc.runtime.training.ties.tie_weights` says.
    """
    before = hooks.weights if isinstance(hooks, TiedSums) else set()
    new = {name: weight for name, weight in weights.items() if weight is not None and weight not in before}
    refusal: SchedcError | None = None
    copies: dict[str, _Copy] = {}
    try:
        lost = next((name for name, weight in weights.items() if weight is None), None)
        if lost is not None:
            raise InvalidInput(f"{lost!r}, which several ranks have, is no parameter any more; change it before build_stages")
        copies = _copies(stages, groups.rank, new)
    except SchedcError as error:
        refusal = error
    given = groups.exchange((copies, None if refusal is None else str(refusal)))
    if refusal is not None:
        raise refusal
    for rank, (_, reason) in enumerate(given):
        if reason is not None:
            raise CheckFailed(f"rank {rank} has refused to tie its weights: {reason}")
    holders = _holders([found for found, _ in given], everywhere=bool(replicas_of(plan.problem)))
    if not holders:
        return hooks
    _check_ways(hooks, plan)
    sums: list[tuple[Bucket, str]] = []
    for ranks in sorted({*holders.values()}):
        names = [name for name in sorted(holders) if holders[name] == ranks]
        if groups.rank in ranks:
            group = groups.make(ranks)
            doing = f"rank {groups.rank} sums the gradients of {', '.join(names)} with the other ranks that have them"
            sums += [
                (Bucket([(weight,) for weight in alike], group), doing) for alike in by_gradient_type([new[name] for name in names])
            ]
    return TiedSums(hooks, sums, {new[name]: ranks[0] != groups.rank for name, ranks in holders.items() if name in new})


def _copies(stages: Mapping[int, nn.Module], rank: int, weights: Mapping[str, nn.Parameter]) -> dict[str, _Copy]:
    """What this rank has, if it can be tied."""
    uses = Counter(weight for module in stages.values() for _, weight in module.named_parameters(remove_duplicate=False))
    copies: dict[str, _Copy] = {}
    for name, weight in weights.items():
        if weight not in uses:
            raise InvalidInput(f"the weight {name!r} is not a parameter of a stage of rank {rank}")
        if type(weight).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise Unsupported(f"the weight {name!r} is a {type(weight).__name__}; ranks can share plain tensors only")
        kind = f"{weight.dtype} {list(weight.shape)} requires_grad={weight.requires_grad}"
        copies[name] = _Copy(kind, digest_of([weight]), uses[weight] > 1)
    if len({*weights.values()}) < len(weights):
        raise InvalidInput("one weight was given two names; give it one")
    return copies


def _holders(given: Sequence[Mapping[str, _Copy]], *, everywhere: bool) -> dict[str, tuple[int, ...]]:
    """The ranks that have each weight, ascending, the same on all; those whose ends are on one rank already are left out.

    Args:
        given: by rank.
        everywhere: whether ranks have the same stages (replicas), so that each of them may have all ends.
    """
    holders: dict[str, tuple[int, ...]] = {}
    for name in dict.fromkeys(name for found in given for name in found):
        ranks = first, *others = tuple(rank for rank, found in enumerate(given) if name in found)
        if (everywhere or not others) and all(given[rank][name].shared for rank in ranks):
            continue
        if not others:
            raise InvalidInput(f"only rank {first} has a weight {name!r}; give it on every rank that has a copy")
        holders[name] = ranks
        for other in others:
            one, two = given[first][name], given[other][name]
            if one[:2] != two[:2]:
                how = f": {one.kind} and {two.kind}" if one.kind != two.kind else "; build both from the same seed or checkpoint"
                raise CheckFailed(f"the weight {name!r} differs between ranks {first} and {other}{how}")
    return holders


def _check_ways(hooks: ReplicaHooks, plan: Plan) -> None:
    """Refuse ways to train in which copies on several ranks cannot be summed."""
    if replicas_of(plan.problem):
        raise Unsupported(f"plan {plan.name!r} has stages that are replicas of each other; share the weight on each rank")
    try:
        hooks.shards()
    except InvalidInput:  # as it must be
        return
    raise Unsupported("weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with zero_stage = 0")


class TiedSums(ReplicaHooks):
    """What a pipe does between replicas, and then the sums of this rank's tied weights."""

    def __init__(self, inner: ReplicaHooks, sums: list[tuple[Bucket, str]], elsewhere: Mapping[nn.Parameter, bool]) -> None:
        """Take what was done before, the sums and what to call each, and of each weight whether a rank before has a copy."""
        self._inner = inner
        self._sums = sums
        known = inner if isinstance(inner, TiedSums) else None
        self.weights: set[nn.Parameter] = {*elsewhere} | (known.weights if known else set())
        """All that are tied."""
        self._frozen = [weight for weight in elsewhere if not weight.requires_grad]
        first = {weight for weight, other in elsewhere.items() if other}
        self.counted_elsewhere: set[nn.Parameter] = first | (known.counted_elsewhere if known else set())
        """Those of this rank's weights of which a rank before it has a copy."""
        self.pipelines, self.agrees = inner.pipelines, inner.agrees

    def begin_step(self) -> None:
        """As the inner ones; before them, gradients from before the step are put aside.

        Raises:
            Unsupported: a weight has been unfrozen since it was tied.
        """
        if any(weight.requires_grad for weight in self._frozen):
            raise Unsupported(
                "a tied weight requires grad, which it did not when it was tied, so its gradients would not be summed over ranks;"
                " load again after changing which weights are trained"
            )
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
        self._inner.step_counts, self._inner.way = self.step_counts, self.way
        loss = self._inner.end_step(loss)
        self.step_counts = self._inner.step_counts
        for bucket, doing in self._sums:
            sum_gradients(bucket, doing)
        return loss

    def begin_call(self, call: str, *, fits: bool = True) -> None:
        """As the inner ones."""
        self._inner.begin_call(call, fits=fits)

    def begins(self, fits: bool) -> bool:
        """As the inner ones."""
        return self._inner.begins(fits)

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
