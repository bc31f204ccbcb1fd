"""A weight that stages of several ranks hold, such as an embedding that is the head's matrix as well.

Each rank has a copy. They start equal, and at the end of each step their gradients are summed, so that equal optimizers keep them
equal. With data parallelism each pipeline does so after its replicas have summed theirs.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.runtime.common.hooks import ReplicaHooks, shards_of
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
    ties: Sequence[TiedSums],
    hooks: ReplicaHooks,
    plan: Plan,
    stages: Mapping[int, nn.Module],
    groups: Groups,
    weights: Mapping[str, nn.Parameter | None],
) -> list[TiedSums]:
    """The sums with those of these weights; all ranks call it together. What is tied already stays as it is.

    Args:
        ties: what is tied already.
        hooks: what is done between replicas.
        plan: that runs.
        stages: this rank's.
        groups: of the plan's ranks.
        weights: of this rank, by a name that all ranks with a copy give it; None: it is none any more.

    Raises:
        SchedcError: as `schedc.runtime.training.ties.tie_weights` says.
    """
    before = {weight for tie in ties for weight in tie.weights}
    new = {name: weight for name, weight in weights.items() if weight is not None and weight not in before}

    def copies() -> dict[str, _Copy]:
        lost = next((name for name, weight in weights.items() if weight is None), None)
        if lost is not None:
            raise InvalidInput(f"{lost!r}, which several ranks have, is no parameter any more; change it before build_stages")
        return _copies(stages, groups.rank, new)

    given = groups.exchange(groups.all_or_none(copies, "has refused to tie its weights"))
    holders = _holders(given, everywhere=bool(replicas_of(plan.problem)))
    if not holders:
        return [*ties]
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
    return [*ties, TiedSums(sums, {new[name]: ranks[0] != groups.rank for name, ranks in holders.items() if name in new})]


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
    if shards_of(hooks) is not None:
        raise Unsupported("weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with zero_stage = 0")


class TiedSums:
    """The sums of weights of this rank that were tied together, after what is done between replicas."""

    def __init__(self, sums: list[tuple[Bucket, str]], elsewhere: Mapping[nn.Parameter, bool]) -> None:
        """Take the sums and what to call each, and of each weight whether a rank before has a copy."""
        self._sums = sums
        self.weights = set(elsewhere)
        """All that are tied here."""
        self._frozen = [weight for weight in elsewhere if not weight.requires_grad]
        self.counted_elsewhere = {weight for weight, other in elsewhere.items() if other}
        """Those of this rank's weights of which a rank before it has a copy."""

    def begin_step(self) -> None:
        """Before a step, and before what replicas do: put aside gradients from before it.

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

    def end_step(self) -> None:
        """After a step, and after the sums over replicas: those over ranks of this pipeline.

        Raises:
            TransferFailed: another rank is lost.
        """
        for bucket, doing in self._sums:
            sum_gradients(bucket, doing)
