"""What keeps layers from migrating: in what ranks say before anything is sent, in the pipe, or in the two plans."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.stage.training import loss_has_weights

if TYPE_CHECKING:
    from schedc.ir import Plan
    from schedc.runtime.adapt.state_transfer.pieces import Settings
    from schedc.runtime.session.pipe import Pipe


class MigrationOffer(NamedTuple):
    """What a rank says before anything is sent."""

    refusal: str | None
    plans: tuple[str, str] = ("", "")
    settings: tuple[Settings, ...] = ()
    """Of its optimizers."""
    chunk_bytes: int | None = None


def refusal_of(offers: list[MigrationOffer]) -> str | None:
    """Why what the ranks say, by rank, does not go together; None: it does."""
    first = offers[0]
    for rank, offer in enumerate(offers):
        if offer.refusal is not None:
            return f"rank {rank} refuses the migration: {offer.refusal}"
    settings = [(rank, each) for rank, offer in enumerate(offers) for each in offer.settings]
    for rank, offer in enumerate(offers):
        if offer.plans != first.plans:
            return f"ranks 0 and {rank} have different plans to migrate to; give all the same"
        if offer.chunk_bytes != first.chunk_bytes:
            return f"rank 0 has chunk_bytes={first.chunk_bytes}, rank {rank} {offer.chunk_bytes}; give all the same"
    for rank, each in settings:
        if each != settings[0][1]:
            whose = f"of ranks {settings[0][0]} and {rank}" if rank != settings[0][0] else f"of rank {rank}"
            return f"the optimizers {whose} differ: {settings[0][1].unlike(each)}; layers migrate between optimizers that are alike"
    return None


def check_pipe(pipe: Pipe, running: Plan, plan: Plan) -> None:
    """Refuse what cannot migrate.

    Raises:
        SchedcError: says why.
    """
    move = "move the layers between two steps with schedc.runtime.adapt.state_transfer.exchange.move"
    old, new = running.problem, plan.problem
    of_replicas = any(problem.data_parallel is not None and problem.data_parallel.size > 1 for problem in (old, new))
    if type(pipe.hooks) is not ReplicaHooks or of_replicas:
        raise Unsupported(f"layers of replicas do not migrate while they train; {move}")
    if pipe.steps.is_graph or new.edges or new.slices:
        raise Unsupported(f"layers of stages that are a graph, or run in slices, do not migrate; {move}")
    if pipe.swap_group is not None:
        raise Unsupported("a swap_group was given; pipelines that move together do not migrate layers")
    if pipe.steps.ties:
        raise Unsupported("weights of several ranks are tied; such layers do not migrate")
    if pipe.moving == "adapting":
        raise InvalidInput("the pipe adapts, to plans for the layout that it has; close the adaptation before layers migrate")
    if pipe._swapper is not None and (pipe._swapper.pending or pipe.moving == "migration"):
        raise InvalidInput("another swap or migration is pending; wait until its state says what has become of it")
    if loss_has_weights(pipe.modules.values()):
        raise Unsupported("the loss function has weights, which do not migrate")
    if [stage.rank for stage in old.stages] != [stage.rank for stage in new.stages] or old.paths != new.paths:
        raise InvalidInput(f"plan {plan.name!r} has other stages than plan {running.name!r}, or on other ranks; {move}")
    if (old.updates is None) != (new.updates is None):
        raise InvalidInput(f"only one of the plans {plan.name!r} and {running.name!r} has updates; swap before or after")
