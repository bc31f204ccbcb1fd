"""Clipping gradients by their norm over all ranks of a pipeline: each weight counts once, wherever it is.

`over_ranks` is how all ranks add something up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.failure import NonFiniteLoss, with_others
from schedc.runtime.common.hooks import shards_of
from schedc.runtime.common.program import replicas_of
from schedc.runtime.transports.gloo import finish

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from torch import nn

    from schedc.runtime.replicas.buckets import Shard
    from schedc.runtime.session.pipe import Pipe

ALIKE = 1e-3
"""By how much gradients that processes compute alike may differ, as their kernels add in any order."""


def clip_grad_norm_(
    pipe: Pipe,
    max_norm: float,
    norm_type: float = 2.0,
    *,
    error_if_nonfinite: bool = False,
    local: Iterable[nn.Parameter] = (),
) -> torch.Tensor:
    """As `torch.nn.utils.clip_grad_norm_` on the whole model; all processes call it together, after a step.

    Args:
        pipe: this rank's. Under ZeRO 1 the gradients are those of `pipe.shards()`, otherwise those of the stages' parameters.
        max_norm: of all gradients together, after it; infinite: none is changed, and only the norm is wanted.
        norm_type: p of the p-norm, above 0; may be infinite.
        error_if_nonfinite: whether to raise if the norm is infinite or NaN.
        local: those of the stages' weights of which each process of the `swap_group` has others: experts, and slices that are plain
            tensors. DTensors are none of them: their mesh is known.

    Returns:
        The norm before, a float64 scalar on the CPU, the same on all processes.

    Raises:
        InvalidInput: there is no such norm.
        Unsupported: on all processes: other weights than `local` have other gradients in other processes of the `swap_group`.
        NonFiniteLoss: the norm is not finite, on all processes.
        TransferFailed: another rank has ended, or does not answer.
    """
    p = float(norm_type)
    if not p > 0:
        raise InvalidInput(f"norm_type: found {norm_type}, expected a number above 0")
    shards = shards_of(pipe.hooks)
    sharded = shards is not None  # each process of a rank in several pipelines has other weights (ZeRO 1), and counts them all
    apart, spread = set(local), list[float]()
    if shards is None:
        weights = list(dict.fromkeys(weight for module in pipe.modules.values() for weight in module.parameters()))
        elsewhere = _in_replicas(pipe).union(*(tie.counted_elsewhere for tie in pipe.steps.ties))
        counted = [weight for weight in weights if weight not in elsewhere]
    else:
        weights = [shard.weight for shard in shards]
        counted = [shard.weight for shard in shards if not _split_over(shard.whole)]
        spread = _norms_over_meshes(pipe, shards, p)
        apart = {shard.weight for shard in shards if shard.whole in apart}
    if pipe.swap_group is None:
        total = _over_ranks(pipe, counted, p, sharded=sharded, more=spread)
    else:
        of_all = _over_ranks(pipe, [weight for weight in counted if weight not in apart], p, sharded=sharded, more=spread)
        of_this = _over_ranks(pipe, [weight for weight in counted if weight in apart], p, sharded=sharded)
        total = _over_peers(pipe.swap_group.exchange((of_all, of_this)), p)
    total = total if math.isinf(p) else total ** (1 / p)
    if error_if_nonfinite and not math.isfinite(total):
        raise NonFiniteLoss(f"the norm of the gradients of all ranks is {total}; zero them before going on")
    for alike in _by_kind(weights):
        first = alike[0].grad
        assert first is not None
        kind = torch.promote_types(first.dtype.to_real(), torch.float32)
        torch.nn.utils.clip_grads_with_norm_(alike, max_norm, torch.tensor(total, dtype=kind, device=first.device))
    return torch.tensor(total, dtype=torch.float64, device="cpu")


def _over_ranks(pipe: Pipe, weights: list[nn.Parameter], p: float, *, sharded: bool, more: Sequence[float] = ()) -> float:
    """Over all ranks, the p-th power of the norm of these weights' gradients and of `more` norms; where p is infinite, the norm."""
    norms = [*(_norm(alike, p) for alike in _by_kind(weights)), *more]
    if math.isinf(p):
        largest = max((math.inf if math.isnan(norm) else norm for norm in norms), default=0.0)
        return over_ranks(pipe, largest, "compares gradients", sharded=sharded, largest=True)
    return over_ranks(pipe, sum(norm**p for norm in norms), "adds up gradients", sharded=sharded)


def _over_peers(given: Sequence[tuple[float, float]], p: float) -> float:
    """The same over a `swap_group`, of each member's for the weights that all have and for those of its own."""
    shared = [common for common, _ in given]
    if all(map(math.isfinite, shared)) and max(shared) - min(shared) > ALIKE * max(shared):
        raise Unsupported(
            "processes of the swap_group have different gradients of weights that are not DTensors; give clip_grad_norm_ local=,"
            " the weights of which each process has its own"
        )
    if math.isinf(p):
        return max(map(max, given))
    return (math.nan if any(map(math.isnan, shared)) else max(shared)) + sum(own for _, own in given)


def _by_kind(weights: Iterable[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Those that have gradients, apart by what these are distributed over: plain tensors, or DTensors of a mesh each."""
    kinds: dict[Any, list[nn.Parameter]] = {}
    for weight in weights:
        if weight.grad is not None:
            kinds.setdefault(getattr(weight.grad, "device_mesh", None), []).append(weight)
    return list(kinds.values())


def _norm(weights: list[nn.Parameter], p: float) -> float:
    """The norm of their gradients; of DTensors, of what they are together."""
    norm: Any = torch.nn.utils.get_total_norm([weight.grad for weight in weights if weight.grad is not None], p)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _split_over(weight: Any) -> tuple[tuple[Any, int], ...]:
    """Of a DTensor its mesh with each dimension along which processes have other parts; none of another weight."""
    places = enumerate(weight.placements) if hasattr(weight, "device_mesh") else ()
    return tuple((weight.device_mesh, dim) for dim, placement in places if placement.is_shard())


def _norms_over_meshes(pipe: Pipe, shards: Sequence[Shard], p: float) -> list[float]:
    """Under ZeRO 1 the norms of what the processes of each mesh own of its DTensors together; all of them ask together."""
    found, kind = list[float](), dist.ReduceOp.MAX if math.isinf(p) else dist.ReduceOp.SUM
    for places in dict.fromkeys(_split_over(weight) for module in pipe.modules.values() for weight in module.parameters()):
        norm = _norm([shard.weight for shard in shards if _split_over(shard.whole) == places], p) if places else 0.0
        for mesh, dim in places:
            total = torch.tensor(math.inf if math.isnan(norm) else norm, dtype=torch.float64, device=mesh.device_type)
            total = total if math.isinf(p) else total**p
            dist.all_reduce(total, kind, group=mesh.get_group(dim))
            norm = total.item() if math.isinf(p) else total.item() ** (1 / p)
        found.append(norm)
    return found


def _in_replicas(pipe: Pipe) -> set[nn.Parameter]:
    """Weights that the rank with the first stage of a set of replicas counts; a weight of several sets belongs to the first.

    Replicas in other pipelines have the same weights, and count them too, unless they are sharded.
    """
    problem = pipe.plan.problem
    seen: set[nn.Parameter] = set()
    elsewhere: set[nn.Parameter] = set()
    for members in replicas_of(problem):
        own = {weight for stage in members if stage in pipe.modules for weight in pipe.modules[stage].parameters()} - seen
        seen |= own
        first = members[0]
        elsewhere |= own - set(pipe.modules[first].parameters()) if first in pipe.modules else own
    return elsewhere


def over_ranks(pipe: Pipe, value: float, doing: str, *, sharded: bool, largest: bool = False) -> float:
    """The sum, or the largest, of a number that every rank of the pipeline gives; all ranks of all pipelines call it together.

    `doing` is for messages: `sums the norms of gradients`; `sharded`: whether those of the other pipelines are added as well.

    Raises:
        TransferFailed: another rank has ended, or does not answer.
    """
    total = torch.tensor(value, dtype=torch.float64, device="cpu")
    kind: Any = dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM
    groups = pipe.groups
    late = f"no answer in {groups.timeout_s:g} s; all ranks call it together"
    with with_others(f"rank {groups.rank} {doing} with the others", "one of them has ended or failed", late):
        finish(groups.all.allreduce([total], kind), groups.timeout_s)
    return (pipe.hooks.total(total, largest=largest) if sharded else total).item()
