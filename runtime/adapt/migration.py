"""Layers that go from rank to rank while training goes on: between two steps a plan with other layers on its stages takes over.

The source copies what belongs to the layers (weights, buffers, optimizer state) at a step boundary, and sends it in chunks behind
training traffic. It trains on, and sends the gradients of each step as the optimizer sees them, with the settings of its groups.
The destination makes the same updates on its copy until it is less than a step behind. Then all ranks agree on a step boundary, as
for a swap with the loss of a step; the last gradients are waited for, sums of all bytes compared, and all take the new layout over.
So no step is lost or runs twice, and weights are those of a run that has had the layout from the start. DynPipe (section V.C) holds
the layers' updates back while they are under way; here they are made on both sides.

Stages and optimizers stay the same objects: a stage gets other layers, and an optimizer's groups other weights.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.ir import Plan
from schedc.runtime.adapt.migration_checks import MigrationOffer, check_pipe, refusal_of
from schedc.runtime.adapt.state_transfer.coming import Coming, like
from schedc.runtime.adapt.state_transfer.leaving import Leaving
from schedc.runtime.adapt.state_transfer.pieces import Manifest, describe, let_go, rank_of_piece
from schedc.runtime.adapt.state_transfer.stream import Inlet, Outlet
from schedc.runtime.common.failure import with_others
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.agreement import plan_digest
from schedc.runtime.session.building import bounds_of_stages, layers_of_stage
from schedc.runtime.stage.training import with_loss
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from schedc.runtime.session.pipe import Pipe

CHUNK_BYTES = 1 << 20
REMEDY = "make it with build_stages"
PATIENCE = 0.8
"""Of the limit of waits, how long a rank waits for the last gradients: less than the others wait for it."""


class _Piece(NamedTuple):
    """A layer that goes to another rank."""

    source: int
    destination: int


def begin_migration(
    pipe: Pipe,
    optimizer: torch.optim.Optimizer | None,
    plan: Path | str | Plan,
    *,
    build: Callable[[Plan, int], Mapping[int, nn.Module]],
    chunk_bytes: int | None = CHUNK_BYTES,
    priority: bool = True,
    most_behind: int = 64,
) -> Migration:
    """Begin to move layers between ranks; all ranks call it together, between two steps, and then train on.

    Args:
        pipe: this rank's, without replicas.
        optimizer: of all its stages' weights, and of no others, without gradients; None for a pipe that was given optimizers, as
            its steps overlap.
        plan: to go on with; its stages are on the same ranks, and have other layers. A run, where steps overlap.
        build: makes the stages of a rank of a plan, of new modules, as for `move`; called on ranks that get layers, here and now.
        chunk_bytes: how much goes at once; None: all of a step's.
        priority: whether a chunk waits until no message of training is under way from its rank.
        most_behind: of how many steps of an optimizer the gradients are kept; if more wait after a step of the pipe (a run, where
            steps overlap), the link is too slow, and nothing moves.

    Raises:
        SchedcError: on all ranks: one of them refuses, or they do not agree. Nothing has moved, and the pipe is open.
        TransferFailed: another rank has ended or does not answer.
    """
    migration = Migration(pipe, build, chunk_bytes, priority=priority, most_behind=most_behind)
    with pipe._closing_on_errors():
        try:
            offer = migration.prepare(optimizer, plan)
        except SchedcError as error:
            offer = MigrationOffer(str(error))
        offers = pipe.groups.exchange(offer, "the others to begin the migration")
    refusal = refusal_of(offers)
    if refusal is not None:
        raise CheckFailed(f"{refusal}; nothing has moved")
    with pipe._closing_on_errors():
        migration.begin()
    return migration


class Migration:
    """A migration under way, as one rank sees it; `begin_migration` makes it. It is the pipe's swapper until it has ended."""

    pending = False
    """For the pipe: nothing is to be settled within a step."""

    def __init__(
        self,
        pipe: Pipe,
        build: Callable[[Plan, int], Mapping[int, nn.Module]],
        chunk_bytes: int | None,
        *,
        priority: bool,
        most_behind: int,
    ) -> None:
        """Nothing has begun."""
        self.state: Literal["running", "done", "refused"] = "running"
        """`refused`: training goes on with the old layout; the same on all ranks."""
        self.reason: str | None = None
        """Why it was refused."""
        self.boundaries = 0
        """How often `between_steps` has been called until it was settled."""
        self._pipe, self._build, self._chunk_bytes, self._most_behind = pipe, build, chunk_bytes, most_behind
        self._gate = pipe.gate() if priority else None
        self._failed: str | None = None
        self._cut: str | None = None
        """The connection that is lost, which is often because of another rank's failure."""
        self._lock = threading.Lock()
        self._leaving: dict[int, Leaving] = {}
        """By rank that takes them."""
        self._coming: dict[int, Coming] = {}
        """By rank that gives them."""
        self._ends: list[Outlet | Inlet] = []

    def prepare(self, optimizer: torch.optim.Optimizer | None, given: Path | str | Plan) -> MigrationOffer:
        """What this rank says, once it knows all that is to move.

        Raises:
            SchedcError: it refuses.
        """
        pipe, rank = self._pipe, self._pipe.groups.rank
        for name, value in (("chunk_bytes", self._chunk_bytes), ("most_behind", self._most_behind)):
            if value is not None and value < 1:
                raise InvalidInput(f"found {name}={value}, expected a number above 0")
        if optimizer is not None and not hasattr(optimizer, "param_groups"):
            raise InvalidInput(
                f"found a {type(optimizer).__name__} for the optimizer, expected one torch.optim.Optimizer of all stages' weights"
            )
        running = pipe.plan
        plan = self._plan = read(given, verify=rank == 0)
        check_pipe(pipe, running, plan)
        own = getattr(pipe, "optimizers", None)
        if own is not None and running.problem.updates is not None:
            several = next((stage for stage in own.by_stage if len(own.of(stage)) > 1), None)
            if several is not None:
                raise Unsupported(f"stage {several} has several optimizers; give it one, or load the new plan from a checkpoint")
            self._optimizers: dict[int, torch.optim.Optimizer] = {stage: own.of(stage)[0] for stage in own.by_stage}
        elif optimizer is not None:
            self._optimizers = dict.fromkeys(pipe.stages, optimizer)
        else:
            raise InvalidInput("no optimizer was given; give that of the stages' weights")
        self._distinct = list({id(one): one for one in self._optimizers.values()}.values())
        old, new = rank_of_piece(running, layers=True), rank_of_piece(plan, layers=True)
        if {*old} != {*new}:
            raise InvalidInput(f"plan {plan.name!r} is for {len(new)} layers, plan {running.name!r} for {len(old)}")
        stage_of = {
            layer: stage for stage, bounds in enumerate(bounds_of_stages(running, "compile it")) for layer in range(*bounds)
        }
        self._pieces = {at: _Piece(old[at], new[at]) for at in sorted(old) if old[at] != new[at]}
        without = next((at for at in self._pieces if old[at] == rank and stage_of[at] not in self._optimizers), None)
        if without is not None:
            raise Unsupported(f"layer {without} is of a stage without an optimizer, where layers do not migrate")
        self._layers: dict[int, nn.Module] = {}
        for stage, module in pipe.stages.items():
            self._layers |= layers_of_stage(running, stage, module, REMEDY)
        self._described: list[Manifest] = []
        """Of each optimizer."""
        for one in self._distinct:
            pieces = {at: layer for at, layer in self._layers.items() if self._optimizers.get(stage_of[at]) is one}
            self._described.append(describe(pieces, one, apart=True))
        self._incoming: dict[int, nn.Module] = {}
        if any(piece.destination == rank for piece in self._pieces.values()):
            if not self._distinct:
                raise Unsupported("nothing is trained on this rank, which has no optimizer; layers do not migrate to it")
            device = stage_device(pipe.stages)
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                built = self._build(plan, rank)
            for stage in plan.problem.stages_on(rank):
                if stage not in built:
                    raise InvalidInput(f"build gave the stages {sorted(built)}, expected {[*plan.problem.stages_on(rank)]}")
                found = layers_of_stage(plan, stage, built[stage], REMEDY)
                self._incoming |= {at: layer for at, layer in found.items() if at in self._pieces and new[at] == rank}
        self._check_fit(plan, own)
        return MigrationOffer(
            None, (plan_digest(running), plan_digest(plan)), tuple(one.settings for one in self._described), self._chunk_bytes
        )

    def _check_fit(self, plan: Plan, own: Any) -> None:
        """Refuse where the new stages do not fit the plan, as `load` would."""
        pipe, stages = self._pipe, {}
        for stage, module in pipe.stages.items():
            stages[stage] = copy.copy(module)
            stages[stage]._modules = {str(at): layer for at, layer in enumerate(self._stage_layers(plan, stage))}
        options: dict[str, Any] = {}
        if own is not None:
            updating = copy.copy(own)
            updating.by_stage = {}
            for stage, module in stages.items():
                weights = [weight for weight in module.parameters() if weight.requires_grad]
                if weights and stage not in self._optimizers:
                    raise Unsupported(f"stage {stage} has no optimizer; layers that are trained cannot go there")
                if weights:
                    updating.by_stage[stage] = like(self._optimizers[stage], [weights])
            options = {"optimizers": updating}
        pipe._fits(plan, stages=stages, **options)
        kind: type[Pipe] = type(pipe) if own is None else type(type(pipe).__name__, (type(pipe),), options)
        kind.check(plan, with_loss(plan.problem, stages, pipe.steps.loss_fn), alone=True)

    def _stage_layers(self, plan: Plan, stage: int) -> list[nn.Module]:
        bounds = plan.problem.stages[stage].layers
        assert bounds is not None
        return [self._incoming[at] if at in self._incoming else self._layers[at] for at in range(*bounds)]

    def begin(self) -> None:
        """Connect with those that give or take layers; copy, and send.

        Raises:
            TransferFailed: another rank does not come.
        """
        pipe, rank = self._pipe, self._pipe.groups.rank
        self._former, pipe._swapper = pipe._swapper, self  # type: ignore[assignment]
        pipe.moving = "migration"
        self._key = f"migration/{pipe.steps.count}"
        if self._gate is not None:
            self._gate.use(1)
        pairs = sorted({(piece.source, piece.destination) for piece in self._pieces.values()})
        for source, destination in pairs:
            if rank not in (source, destination):
                continue
            group, peer = pipe.groups.make((source, destination)), source + destination - rank
            lost = partial(self._note, None, f"rank {rank}: the connection to rank {peer} for layers is lost")
            moving = [at for at, piece in self._pieces.items() if piece == (source, destination)]
            if rank == source:
                outlet = Outlet(group, self._gate, self._chunk_bytes, lost)
                self._ends.append(outlet)
                layers = {at: self._layers[at] for at in moving}
                self._leaving[peer] = Leaving(layers, outlet, self._distinct, self._described, self._note)
            else:
                layers = {at: self._incoming[at] for at in moving}
                coming = self._coming[peer] = Coming(layers, self._distinct[0], self._note, self._reached)
                self._ends.append(Inlet(group, self._chunk_bytes, coming.take, lost))
        self._described.clear()
        if not self._coming:
            self._meet()

    def _reached(self, coming: Coming, boundary: int) -> None:
        """The updates of a boundary have been made here, too."""
        with self._lock:
            coming.ready = coming.ready or boundary >= self.boundaries - 1
            meets = all(each.ready for each in self._coming.values())
        if meets:
            self._meet()

    def _note(self, failed: str | None, cut: str | None = None) -> None:
        """Something has failed here: all ranks are to meet, and the old layout goes on."""
        if self.state != "running":
            return
        self._failed, self._cut = self._failed or failed, self._cut or cut
        for coming in self._coming.values():
            coming.whole.set()
        if failed is not None:
            self._hang_up()
        self._meet()

    def _meet(self) -> None:
        """Let the others know, by the next loss, that this rank is ready for the boundary at which all decide."""
        with suppress(RuntimeError):  # without the store training ends, too, as the rank that looks finds
            self._pipe.groups.store.set(f"{self._key}/{self._pipe.groups.rank}", "")

    def all_have_offered(self) -> bool:
        """For the pipe, on the rank that looks: whether all are ready.

        Raises:
            TransferFailed: the job's store is lost.
        """
        groups = self._pipe.groups
        with with_others(f"rank {groups.rank} looks who is ready to migrate", "the process that holds the job's store has ended"):
            return groups.store.check([f"{self._key}/{rank}" for rank in range(groups.size)])

    def offer(self, *_: object) -> None:
        """For the pipe's `swap`.

        Raises:
            InvalidInput: always.
        """
        raise InvalidInput("layers migrate; swap to another plan when migration.state is not 'running' any more")

    def between_steps(self) -> None:
        """After each step of the optimizer, on all ranks; once they have agreed, it waits for the last gradients and takes over.

        What is in `.grad` of layers that move is dropped with it. Where it is refused, it warns once.

        Raises:
            TransferFailed: another rank has ended or does not answer. The pipe is closed.
        """
        if self.state != "running":
            return
        pipe, last = self._pipe, self._pipe.steps.offered
        with pipe._closing_on_errors():
            with self._lock:
                self.boundaries += 1
            for peer, leaving in self._leaving.items():
                behind = leaving.behind
                if behind > self._most_behind and self._failed is None:
                    self._note(
                        f"rank {pipe.groups.rank} sends gradients more slowly to rank {peer} than it makes them, and is"
                        f" {behind} steps behind, more than {self._most_behind}; move the layers between two steps with"
                        " schedc.runtime.adapt.state_transfer.exchange.move, or give a larger most_behind"
                    )
                leaving.boundary(self.boundaries, last=last)
            if last:
                self._settle()
        if self.reason is not None:
            warnings.warn(f"no layer has moved, and training goes on: {self.reason}", RuntimeWarning, stacklevel=2)

    def _settle(self) -> None:
        pipe = self._pipe
        for source, coming in self._coming.items():
            if not coming.whole.wait(PATIENCE * pipe.groups.timeout_s):
                self._failed = self._failed or f"the last gradients have not come from rank {source} in time"
        said = pipe.groups.exchange((self._failed, self._cut), "the others to end the migration")
        reasons = [f"rank {rank}: {failed}" for rank, (failed, _) in enumerate(said) if failed]
        reasons += [cut for _, cut in said if cut]
        pipe._swapper, pipe.moving = self._former, None
        if self._gate is not None:
            self._gate.use(-1)
        for leaving in self._leaving.values():
            leaving.end()
        self.state, self.reason = ("refused", reasons[0]) if reasons else ("done", None)
        self._hang_up()
        if not reasons:
            self._take_over()

    def _hang_up(self) -> None:
        for end in self._ends:
            end.close()

    def _take_over(self) -> None:
        """Nothing here waits for another rank but new connections."""
        pipe, plan, steps = self._pipe, self._plan, self._pipe.steps
        groups: dict[nn.Parameter, int] = {}
        state: dict[torch.Tensor, Any] = {}
        for one in (*self._distinct, *(each for coming in self._coming.values() for each in coming.optimizers.values())):
            groups |= {weight: number for number, group in enumerate(one.param_groups) for weight in group["params"]}
            state |= one.state
        owned: dict[int, list[nn.Parameter]] = defaultdict(list)
        for stage in sorted(pipe.stages):
            module, layers = pipe.stages[stage], self._stage_layers(plan, stage)
            module._modules.clear()
            for at, layer in enumerate(layers):
                module.add_module(str(at), layer)
            if stage in self._optimizers:
                owned[id(self._optimizers[stage])] += module.parameters()
        for one in self._distinct:
            one.state.clear()
            for number, group in enumerate(one.param_groups):
                group["params"][:] = [weight for weight in dict.fromkeys(owned[id(one)]) if groups.get(weight) == number]
                one.state.update({weight: state[weight] for weight in group["params"] if weight in state})
        let_go(self._layers[at] for at, piece in self._pieces.items() if piece.source == pipe.groups.rank)
        steps.wiring.move(plan)
        steps.use(plan)
        steps._start = None  # another step may run again, of other modules
        if steps.observer is not None:
            steps.observer.swapped(plan)
