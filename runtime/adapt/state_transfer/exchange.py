"""An exchange of places between the processes of a job, at a step boundary: rank 1 of pipeline 0 becomes rank 2 of pipeline 1.

All processes call `move` together. First all agree on where everything goes, and every process receives what it will need; nothing
of the old state changes. Only when all have received everything do they go on, each by itself: the old stages are emptied, the
job's callbacks make new ones, and these get the values that have come. If a process ends before, all others raise one error, and
what they have is as it was.

Memory: until all have received everything, a process holds its old state and, in the host's memory, what has come from others, and
copies of what it sends where that is on a GPU. A GPU holds the old state or the new one, never both, but for pieces that stay on
their process while others come or go: these it holds twice until their new weight has been filled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.runtime.adapt.state_transfer.carry import carried, lost, routes_of
from schedc.runtime.adapt.state_transfer.pieces import (
    Manifest,
    add_random,
    by_layers,
    describe,
    empty,
    pieces_of,
    rank_of_piece,
    restore,
    set_random,
)
from schedc.runtime.common.failure import is_own
from schedc.runtime.common.groups import Groups, share
from schedc.runtime.session.agreement import plan_digest
from schedc.runtime.stage.training import WithLoss
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    import torch.distributed as dist
    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.adapt.places import Places
    from schedc.runtime.session.pipe import Pipe

T = TypeVar("T")


class Moved(NamedTuple):
    """What to give to `load` next, and the optimizer."""

    stages: Mapping[int, nn.Module]
    optimizer: torch.optim.Optimizer
    pipeline_group: dist.ProcessGroup
    data_parallel_group: dist.ProcessGroup


class _Offer(NamedTuple):
    """What a process says before anything moves."""

    refusal: str | None
    request: tuple[Any, ...] = ()
    """Places before and after, and digests of the plans: the same on all processes."""
    manifest: Manifest = Manifest({}, {}, "", {})


def move(
    pipe: Pipe,
    optimizer: torch.optim.Optimizer,
    before: Places,
    after: Places,
    *,
    build: Callable[[Plan, int], Mapping[int, nn.Module]],
    optimizer_of: Callable[[Mapping[int, nn.Module]], torch.optim.Optimizer],
    plan: Plan | None = None,
    timeout_s: float = 60.0,
) -> Moved:
    """Exchange places, or layers between ranks, or both; all processes of the job call it together, between two steps.

    Weights, buffers, the optimizer's state and settings, and torch's random state of a place go to the process that takes the
    place. The pipe is closed. Where a process's stages change, the old ones and the old optimizer are emptied, and the callbacks
    make the new ones. Then `load` again, with what this gives.

    Args:
        pipe: this process's.
        optimizer: of its weights and of no others; there are no gradients.
        before: the places that processes have.
        after: the places that they take.
        build: makes the stages of a rank of a plan, as the job did at its start, of new modules; their values are replaced.
        optimizer_of: makes the optimizer of such stages, as the job did at its start.
        plan: to go on with; it has as many ranks, and may have other layers on each. None: that which runs.
        timeout_s: how long to wait for another process.

    Raises:
        SchedcError: on all processes: one of them refuses, or they do not agree. If it says so, nothing has moved.
        TransferFailed: another process has ended or does not answer.
    """
    new = pipe.plan if plan is None else plan
    groups = Groups(timeout_s)
    own, running = groups.rank, pipe.plan
    try:
        offer = _offer(pipe, optimizer, before, after, new, groups)
        offers = _all(groups, offer, "agrees on an exchange with the others")
        _check(offers)
        layers = by_layers(running, new)
        try:
            pipeline, replicas = after.groups(timeout_s)
        except RuntimeError as error:
            if is_own(error):
                raise
            raise lost(own, "makes process groups with the others", timeout_s) from error
        routes = routes_of(before, after, rank_of_piece(running, layers=layers), rank_of_piece(new, layers=layers))
        routes += routes_of(before, after, *[{-1 - rank: rank for rank in range(before.ranks)}] * 2)  # random states
        state = carried(groups, routes, [each.manifest for each in offers], offer.manifest.values)
        _all(groups, None, "waits until the others have received everything")
        offer.manifest.values.clear()
        stages, made = pipe.stages, optimizer
        refusal: SchedcError | None = None
        pipe.close()
        if before.of_process[own] != after.of_process[own] or _layers(running, before.rank(own)) != _layers(new, after.rank(own)):
            try:
                empty(pipe.stages, optimizer)
                stages = build(new, after.rank(own))
                made = optimizer_of(stages)
                restore(pieces_of(stages, new, layers=layers), made, state, optimizer)
            except SchedcError as error:
                refusal = error
        set_random(state)  # the callbacks may have drawn some
        said = _all(groups, None if refusal is None else str(refusal), "waits until the others have their stages")
    finally:
        groups.close()
    if refusal is not None:
        raise refusal
    for process, reason in enumerate(said):
        if reason is not None:
            raise CheckFailed(f"process {process} cannot go on after the exchange: {reason}; go on from a checkpoint")
    return Moved(stages, made, pipeline, replicas)


def _all(groups: Groups, value: T, doing: str) -> list[T]:
    """What every process gives.

    Raises:
        TransferFailed: another process has ended or does not answer.
    """
    try:
        return share(groups.all, value)
    except RuntimeError as error:
        if is_own(error):
            raise
        raise lost(groups.rank, doing, groups.timeout_s) from error


def _offer(pipe: Pipe, optimizer: torch.optim.Optimizer, before: Places, after: Places, new: Plan, groups: Groups) -> _Offer:
    """What this process says: what it has, or why it refuses."""
    running = pipe.plan
    try:
        for name, places in (("before", before), ("after", after)):
            if (places.ranks, len(places.of_process)) != (pipe.groups.size, groups.size):
                raise InvalidInput(
                    f"{name}: found {counted(len(places.of_process), 'place')} in pipelines of {counted(places.ranks, 'rank')},"
                    f" expected {groups.size} and {pipe.groups.size}, as the job has"
                )
        if before.rank(groups.rank) != pipe.groups.rank:
            raise InvalidInput(
                f"before: found rank {before.rank(groups.rank)} for process {groups.rank}, which has rank {pipe.groups.rank}"
            )
        after.check_groups()
        if new.problem.ranks != running.problem.ranks:
            raise InvalidInput(
                f"plan {new.name!r} is for {counted(new.problem.ranks, 'rank')}, this job has {running.problem.ranks}"
            )
        parallel = running.problem.data_parallel
        if parallel is not None and parallel.zero_stage > 0:
            raise Unsupported("weights that are sharded over replicas (ZeRO 1) cannot move; compile with zero_stage = 0")
        if any(next(one.loss_fn.parameters(), None) is not None for one in pipe.modules.values() if isinstance(one, WithLoss)):
            raise Unsupported("the loss function has weights, which cannot move; load the plan anew from a checkpoint")
        layers = by_layers(running, new)
        old_ranks, new_ranks = rank_of_piece(running, layers=layers), rank_of_piece(new, layers=layers)
        if {*old_ranks} != {*new_ranks}:
            raise InvalidInput(
                f"plan {new.name!r} has {counted(len(new_ranks), 'layer')}, plan {running.name!r} has {len(old_ranks)}"
            )
        manifest = describe(pieces_of(pipe.stages, running, layers=layers), optimizer, apart=layers)
        add_random(manifest, -1 - pipe.groups.rank, pipe.stages)
    except SchedcError as error:
        return _Offer(str(error))
    return _Offer(None, (before, after, plan_digest(running), plan_digest(new)), manifest)


def _check(offers: Sequence[_Offer]) -> None:
    """Refuse where a process does, or where two differ."""
    first = offers[0]
    for process, offer in enumerate(offers):
        if offer.refusal is not None:
            raise CheckFailed(f"process {process} refuses the exchange: {offer.refusal}; nothing has moved")
    for process, offer in enumerate(offers):
        if offer.request != first.request:
            raise CheckFailed(
                f"processes 0 and {process} ask for different exchanges; give all the same places and plan; nothing has moved"
            )
        if offer.manifest.settings != first.manifest.settings:
            raise CheckFailed(
                f"the optimizers of processes 0 and {process} differ: {first.manifest.settings} and {offer.manifest.settings};"
                " nothing has moved"
            )


def _layers(plan: Plan, rank: int) -> list[tuple[int, tuple[int, int] | None]]:
    """The stages of a rank, and what they are."""
    return [(stage, plan.problem.stages[stage].layers) for stage in plan.problem.stages_on(rank)]
