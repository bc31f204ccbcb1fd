"""An exchange of places between the processes of a job, at a step boundary: rank 1 of pipeline 0 becomes rank 2 of pipeline 1.

All processes call `move` together. First all agree on where everything goes, and every process receives what it will need; nothing
of the old state changes. Only when all have received everything do they go on, each by itself: the old stages are emptied, the
job's callbacks make new ones, and these get the values that have come. If a process ends before, all others raise one error, and
what they have is as it was.

gloo carries the values: every process sends what others will have, and receives its own. What comes is put into the host's memory;
what is sent from a GPU is copied to it first. All sends and receives are under way at once, so no order of processes can block
another. What a process keeps is not copied.

Memory: until all have received everything, a process holds its old state and, in the host's memory, what has come from others, and
copies of what it sends where that is on a GPU. A GPU holds the old state or the new one, never both, but for pieces that stay on
their process while others come or go: these it holds twice until their new weight has been filled.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.ir import Plan
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
from schedc.runtime.common.failure import ConnectionLost, NoAnswer, TransferFailed, is_own
from schedc.runtime.common.groups import Groups, share
from schedc.runtime.session.agreement import plan_digest
from schedc.runtime.stage.training import loss_has_weights
from schedc.runtime.transports.gloo import GlooTransport
from schedc.spelling import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import torch.distributed as dist
    from torch import nn

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
    manifest: Manifest = Manifest()


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
        with _with_all(own, "makes process groups with the others", timeout_s):
            pipeline, replicas = after.groups(timeout_s)
        routes = routes_of(before, after, rank_of_piece(running, layers=layers), rank_of_piece(new, layers=layers))
        routes += routes_of(before, after, *[{-1 - rank: rank for rank in range(before.ranks)}] * 2)  # random states
        with _with_all(own, "exchanges stages with the others", timeout_s, (ConnectionLost, NoAnswer)):
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
    with _with_all(groups.rank, doing, groups.timeout_s):
        return share(groups.all, value)


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
        if loss_has_weights(pipe.modules.values()):
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
                f"the optimizers of processes 0 and {process} differ: {first.manifest.settings.unlike(offer.manifest.settings)};"
                " nothing has moved"
            )


def _layers(plan: Plan, rank: int) -> list[tuple[int, tuple[int, int] | None]]:
    """The stages of a rank, and what they are."""
    return [(stage, plan.problem.stages[stage].layers) for stage in plan.problem.stages_on(rank)]


class Route(NamedTuple):
    """A piece that goes from one process to another, or stays with it."""

    source: int
    destination: int
    piece: int


def routes_of(before: Places, after: Places, old: Mapping[int, int], new: Mapping[int, int]) -> list[Route]:
    """Where every piece of every pipeline goes, in an order that is the same everywhere; `old` and `new` are ranks of pieces."""
    return [
        Route(before.process_at(first + old[piece]), after.process_at(first + new[piece]), piece)
        for first in range(0, len(before.of_process), before.ranks)
        for piece in sorted(old)
    ]


def carried(
    groups: Groups,
    routes: Sequence[Route],
    manifests: Sequence[Manifest],
    values: Mapping[tuple[int, str], torch.Tensor],
) -> Manifest:
    """What this process will have, once all of it has come; all processes do this together.

    Raises:
        ConnectionLost: another process has ended.
        NoAnswer: it does not answer.
    """
    own = groups.rank
    pairs = sorted({(min(route[:2]), max(route[:2])) for route in routes if route.source != route.destination})
    wires = {pair: GlooTransport(groups.make(pair)) for pair in pairs if own in pair}
    state, tag = Manifest(), 0
    works: list[Any] = []
    for source, destination, piece in routes:
        manifest, coming = manifests[source], destination == own
        if coming:
            state.weights.update({key: weight for key, weight in manifest.weights.items() if key[0] == piece})
        for key, kind in manifest.tensors.items():
            if key[0] != piece:
                continue
            tag += 1
            if coming:
                state.tensors[key] = kind
                state.values[key] = values[key] if source == own else torch.empty(kind.shape, dtype=kind.dtype, device="cpu")
            if 0 in kind.shape or source == destination or own not in (source, destination):
                continue
            wire = wires[min(source, destination), max(source, destination)]
            if coming:
                works.append(wire.receive_into(_bytes(state.values[key]), tag))
            else:
                works.append(wire.send(_bytes(values[key].to("cpu").contiguous()), tag))
    for work in works:
        work.wait(groups.timeout_s)
    return state


@contextmanager
def _with_all(
    process: int, doing: str, timeout_s: float, failing: tuple[type[RuntimeError], ...] = (RuntimeError,)
) -> Iterator[None]:
    """What all processes do together.

    Raises:
        TransferFailed: another process has ended or does not answer.
    """
    try:
        yield
    except failing as error:
        if is_own(error):
            raise
        raise TransferFailed(
            f"process {process} {doing}: another process has ended or failed, and its own message says why, or it does not answer"
            f" in {timeout_s:g} s; go on from a checkpoint"
        ) from error


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's own memory, flat."""
    return tensor.reshape(-1).view(torch.uint8)
