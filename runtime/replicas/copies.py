"""Weights that several stages hold: they start equal, and at the end of each step their gradients are summed.

`ReplicaSums`: stages that hold the same weights on different paths (bidirectional placements).

`TiedSums`: a weight that stages of several ranks hold, such as an embedding that is the head's matrix as well. Each rank has a
copy, and equal optimizers keep them equal. With data parallelism each pipeline sums them after its replicas have summed theirs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.ir import Plan, Problem
from schedc.runtime.common.hooks import ReplicaHooks, shards_of
from schedc.runtime.common.program import replicas_of
from schedc.runtime.replicas.buckets import Bucket, Partners, by_gradient_type, check_known, is_summed, own_part
from schedc.runtime.replicas.buffers import SharedBuffers, saved_buffers

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence

    from torch import nn

    from schedc.runtime.common.groups import Groups

LOST = "a rank that holds one of them has ended or failed, and its own message says why"


def weights_digest(stage: nn.Module, among: Collection[int] = ()) -> str:
    """A digest of the stage's parameters, in their order: types, shapes and values; and of its buffers' types and shapes.

    Without those parameters that are spread over the processes `among`.
    """
    kinds = [f"{tensor.dtype} {tuple(tensor.shape)}" for tensor in saved_buffers(stage)]
    found = digest_of(weight for weight in stage.parameters() if is_summed(weight, among))
    return found + (hashlib.sha256(repr(kinds).encode()).hexdigest() if kinds else "")


def digest_of(parameters: Iterable[nn.Parameter]) -> str:
    """A digest of these parameters."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(f"{parameter.dtype} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
        digest.update(own_part(parameter).detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


class ReplicaSums(ReplicaHooks):
    """All sets of replicas that this rank has a stage of."""

    def __init__(self, problem: Problem, stages: Mapping[int, nn.Module], groups: Groups) -> None:
        """Connect their ranks; all ranks do this together.

        A weight that several of a rank's stages share (tied embeddings) is summed with the first set that has it.

        Raises:
            CheckFailed: the replicas' stages do not share the same weights.
            TransferFailed: another rank does not come.
        """
        self._sums: list[Bucket] = []
        self._buffers: list[SharedBuffers] = []
        self._replicated: dict[int, nn.Module] = {}
        summed: dict[nn.Parameter, int] = {}  # with which set of replicas, by its place in `replicas_of`
        shared: dict[int, list[int]] = {}  # of each set, for each weight the set that sums it
        for number, members in enumerate(replicas_of(problem)):
            own = {stage: stages[stage] for stage in members if stage in stages}
            if not own:
                continue
            self._replicated.update(own)
            modules = list(dict.fromkeys(own.values()))
            ranks = sorted({problem.stages[stage].rank for stage in members})
            partners = Partners(groups.make(ranks), LOST)
            others = " and ".join(f"rank {rank}" for rank in ranks if rank != groups.rank)
            what = f"of stages {' and '.join(map(str, members))} with {others}"
            first = ranks.index(problem.stages[members[0]].rank)
            self._buffers.append(SharedBuffers(modules, partners, f"rank {groups.rank} shares the buffers {what}", first))
            weights = zip(*([weight for weight in one.parameters() if weight.requires_grad] for one in modules), strict=True)
            each = [tuple(dict.fromkeys(held)) for held in weights]
            shared[number] = [summed.setdefault(held[0], number) for held in each]
            same = {held[0]: held for held, by in zip(each, shared[number], strict=True) if by == number}
            doing = f"rank {groups.rank} sums the gradients {what}"
            self._sums += [Bucket([same[one] for one in alike], partners, doing) for alike in by_gradient_type(same)]
        self._known = {weight for module in self._replicated.values() for weight in module.parameters() if weight.requires_grad}
        given = groups.exchange(shared)
        for number, members in enumerate(replicas_of(problem)):
            holder, *holders = [rank for rank, sets in enumerate(given) if number in sets]
            for other in holders:
                if given[holder][number] != given[other][number]:
                    raise CheckFailed(
                        f"stages {' and '.join(map(str, members))} are replicas, but the weights that they share with other stages"
                        f" (tied weights) differ between ranks {holder} and {other}; share the same ones on both"
                    )

    def begin_step(self) -> None:
        """Put aside gradients from before the step, which are summed already.

        Raises:
            Unsupported: a weight has been unfrozen since `load`.
        """
        check_known(self._replicated, self._known)
        self.gather()
        for bucket in self._sums:
            bucket.begin()

    def gather(self) -> None:
        """Let all replicas have the buffers of the first.

        Raises:
            TransferFailed: another rank of a set is lost.
        """
        for buffers in self._buffers:
            buffers.share()

    def end_step(self, loss: torch.Tensor) -> torch.Tensor:
        """Give every replica the sum of what the step has added to each.

        Raises:
            TransferFailed: another rank of a set is lost.
        """
        _add_up(self._sums)
        return loss


def _add_up(sums: Iterable[Bucket]) -> None:
    """One after the other, as all processes do."""
    for bucket in sums:
        bucket.start()
        bucket.finish()


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

    `weights` are this rank's, by a name that all ranks with a copy give it; None: it is none any more.

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
    if replicas_of(plan.problem):
        raise Unsupported(f"plan {plan.name!r} has stages that are replicas of each other; share the weight on each rank")
    if shards_of(hooks) is not None:
        raise Unsupported("weights that are sharded over replicas (ZeRO 1) cannot be tied; compile with zero_stage = 0")
    sums: list[Bucket] = []
    for ranks in sorted({*holders.values()}):
        names = [name for name in sorted(holders) if holders[name] == ranks]
        if groups.rank in ranks:
            partners = Partners(groups.make(ranks), LOST)
            doing = f"rank {groups.rank} sums the gradients of {', '.join(names)} with the other ranks that have them"
            alike = by_gradient_type([new[name] for name in names])
            sums += [Bucket([(weight,) for weight in own], partners, doing) for own in alike]
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


class TiedSums:
    """The sums of weights of this rank that were tied together, after what is done between replicas."""

    def __init__(self, sums: Sequence[Bucket], elsewhere: Mapping[nn.Parameter, bool]) -> None:
        """Take the sums, and of each weight whether a rank before has a copy."""
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
        for bucket in self._sums:
            bucket.begin()

    def add_up(self, gradients: Sequence[MutableMapping[nn.Parameter, torch.Tensor | None]]) -> None:
        """Sum other gradients than `.grad`, and put the sums in their place: where steps overlap, those of one step.

        Args:
            gradients: of the stages, by weight.

        Raises:
            TransferFailed: another rank is lost.
        """
        for bucket in self._sums:
            own = {weight: found for found in gradients for weight in bucket.first_weights if weight in found}
            given = {weight: found.pop(weight) for weight, found in own.items()}
            totals = bucket.sum_of(given).wait()
            for weight, total in zip(bucket.first_weights, totals, strict=True):
                own[weight][weight] = total

    def end_step(self) -> None:
        """After a step, and after the sums over replicas: those over ranks of this pipeline.

        Raises:
            TransferFailed: another rank is lost.
        """
        _add_up(self._sums)
