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
import zlib
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import nn

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported
from schedc.ir import Plan
from schedc.runtime.adapt.state_transfer.pieces import Manifest, describe, let_go, rank_of_piece, restore
from schedc.runtime.adapt.state_transfer.stream import Inlet, Outlet, Tensors
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.execution.gate import TrafficGate
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.agreement import plan_digest
from schedc.runtime.session.building import bounds_of_stages, layers_of_stage
from schedc.runtime.stage.training import with_loss
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from schedc.runtime.session.pipe import Pipe

CHUNK_BYTES = 1 << 20
REMEDY = "make it with build_stages"


class _Offer(NamedTuple):
    """What a rank says before anything is sent."""

    refusal: str | None
    plans: tuple[str, str] = ("", "")
    settings: tuple[str, ...] = ()
    """Of its optimizers."""


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
        most_behind: of how many steps the gradients are kept; if more wait, the link is too slow, and nothing moves.

    Raises:
        SchedcError: on all ranks: one of them refuses, or they do not agree. Nothing has moved, and the pipe is open.
        TransferFailed: another rank has ended or does not answer.
    """
    migration = Migration(pipe, build, chunk_bytes, priority=priority, most_behind=most_behind)
    with pipe._closing_on_errors():
        try:
            offer = migration.prepare(optimizer, plan)
        except SchedcError as error:
            offer = _Offer(str(error))
        offers = pipe.groups.exchange(offer)
    refusal = _refusal(offers)
    if refusal is not None:
        raise CheckFailed(f"{refusal}; nothing has moved")
    with pipe._closing_on_errors():
        migration.begin()
    return migration


def _refusal(offers: list[_Offer]) -> str | None:
    first = offers[0]
    for rank, offer in enumerate(offers):
        if offer.refusal is not None:
            return f"rank {rank} refuses the migration: {offer.refusal}"
    settings = {each for offer in offers for each in offer.settings}
    for rank, offer in enumerate(offers):
        if offer.plans != first.plans:
            return f"ranks 0 and {rank} have different plans to migrate to; give all the same"
    if len(settings) > 1:
        return f"optimizers of ranks differ: {' and '.join(sorted(settings)[:2])}"
    return None


@dataclass(eq=False)
class _Coming:
    """What has come from one rank."""

    source: int
    inlet: Inlet | None = None
    replays: dict[int, torch.optim.Optimizer] = field(default_factory=dict)
    """By the number of the source's optimizer, one of the layers' weights that makes its updates."""
    weights: dict[tuple[int, str], nn.Parameter] = field(default_factory=dict)
    ready: bool = False
    """Whether it has been less than a step behind."""
    whole: threading.Event = field(default_factory=threading.Event)
    """Set once the last record has come, or none will."""


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
        self._gate = TrafficGate() if priority else None
        self._failed: str | None = None
        self._cut: str | None = None
        """The connection that is lost, which is often because of another rank's failure."""
        self._lock = threading.Lock()
        self._outlets: dict[int, Outlet] = {}
        self._coming: dict[int, _Coming] = {}
        self._hooks: list[Any] = []

    def prepare(self, optimizer: torch.optim.Optimizer | None, given: Path | str | Plan) -> _Offer:
        """What this rank says, once it knows all that is to move.

        Raises:
            SchedcError: it refuses.
        """
        pipe, rank = self._pipe, self._pipe.groups.rank
        running = pipe.plan
        plan = self._plan = read(given, verify=rank == 0)
        _check(pipe, running, plan)
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
        self._described: dict[int, Manifest] = {}
        """By the number of the optimizer."""
        for number, one in enumerate(self._distinct):
            pieces = {at: layer for at, layer in self._layers.items() if self._optimizers.get(stage_of[at]) is one}
            self._described[number] = describe(pieces, one, apart=True)
        self._incoming: dict[int, nn.Module] = {}
        if any(piece.destination == rank for piece in self._pieces.values()):
            device = stage_device(pipe.stages)
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                built = self._build(plan, rank)
            for stage in plan.problem.stages_on(rank):
                if stage not in built:
                    raise InvalidInput(f"build gave the stages {sorted(built)}, expected {[*plan.problem.stages_on(rank)]}")
                found = layers_of_stage(plan, stage, built[stage], REMEDY)
                self._incoming |= {at: layer for at, layer in found.items() if at in self._pieces and new[at] == rank}
        self._check_fit(plan, own)
        return _Offer(None, (plan_digest(running), plan_digest(plan)), tuple(one.settings for one in self._described.values()))

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
                    updating.by_stage[stage] = _like(self._optimizers[stage], [weights])
            options = {"optimizers": updating}
        pipe._fits(plan, stages=stages, **options)  # type: ignore[call-arg]
        type(pipe).check(plan, with_loss(plan.problem, stages, pipe.steps.loss_fn), alone=True)

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
        self._key = f"migration/{pipe.steps.count}"
        if self._gate is not None:
            self._gate.watch(pipe.steps.wiring.senders.values())
        pairs = sorted({(piece.source, piece.destination) for piece in self._pieces.values()})
        for source, destination in pairs:
            if rank not in (source, destination):
                continue
            group, peer = pipe.groups.make((source, destination)), source + destination - rank
            lost = partial(self._note, None, f"rank {rank}: the connection to rank {peer} for layers is lost")
            if rank == source:
                self._outlets[peer] = Outlet(group, self._gate, self._chunk_bytes, lost)
                self._send_snapshot(peer)
            else:
                coming = self._coming[peer] = _Coming(peer)
                coming.inlet = Inlet(group, self._chunk_bytes, partial(self._take, coming), lost)
        for number, one in enumerate(self._distinct):
            places = self._places(number, one)
            if places:
                self._hooks.append(one.register_step_pre_hook(partial(self._captured, number, places)))
        if not self._coming:
            self._meet()

    def _leaving(self, peer: int) -> set[int]:
        rank = self._pipe.groups.rank
        return {at for at, piece in self._pieces.items() if (piece.source, piece.destination) == (rank, peer)}

    def _places(self, number: int, optimizer: torch.optim.Optimizer) -> list[tuple[int, int, int, tuple[int, str]]]:
        """Of weights that leave: group, place in it, where to, and which piece's weight of which name."""
        names: dict[torch.Tensor, tuple[int, tuple[int, str]]] = {}
        for at, piece in self._pieces.items():
            if piece.source == self._pipe.groups.rank:
                names |= {weight: (piece.destination, (at, name)) for name, weight in self._layers[at].named_parameters()}
        return [
            (group, place, *names[weight])
            for group, options in enumerate(optimizer.param_groups)
            for place, weight in enumerate(options["params"])
            if weight in names
        ]

    def _send_snapshot(self, peer: int) -> None:
        leaving = self._leaving(peer)
        for number, manifest in self._described.items():
            weights = {key: weight for key, weight in manifest.weights.items() if key[0] in leaving}
            kinds = {
                (at, name): getattr(weight, "grad_dtype", None)
                for at in leaving
                for name, weight in self._layers[at].named_parameters()
                if (at, name) in weights and weight.requires_grad
            }
            tensors = {key: value for key, value in manifest.values.items() if key[0] in leaving}
            if weights or tensors:
                self._outlets[peer].put(("snapshot", number, weights, kinds), tensors)
        for manifest in self._described.values():
            manifest.values.clear()

    def _captured(
        self,
        number: int,
        places: list[tuple[int, int, int, tuple[int, str]]],
        optimizer: torch.optim.Optimizer,
        given: tuple[Any, ...],
        options: dict[str, Any],
    ) -> None:
        """Before the optimizer's step: what it is going to see."""
        if any(one is not None and one is not optimizer for one in (*given, *options.values())):
            self._note("an optimizer's step was called with arguments, which cannot be repeated on another rank")
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        gradients: dict[int, Tensors] = {peer: {} for peer in self._outlets}
        for group, place, peer, key in places:
            gradient = optimizer.param_groups[group]["params"][place].grad
            if gradient is not None and gradient.layout is not torch.strided:
                self._note(f"{key[1]} of layer {key[0]} has sparse gradients; such layers cannot migrate")
                return
            if gradient is not None:
                gradients[peer][key] = gradient
        for peer in {peer for _, _, peer, _ in places}:
            self._outlets[peer].put(("update", number, settings), gradients[peer])

    def _take(self, coming: _Coming, note: tuple[Any, ...], tensors: Tensors) -> None:
        """A record has come; in the thread of its connection."""
        try:
            kind, number, *more = note
            if kind == "snapshot":
                self._restore(coming, number, tensors, *more)
            elif kind == "update":
                self._replay(coming, coming.replays[number], tensors, *more)
            elif not more[0]:
                self._caught_up(coming, number)
            else:
                self._end(coming, tensors, more[0])
        except Exception as error:  # for all ranks, when they meet: nothing has moved
            self._note(f"{type(error).__name__}: {error}")

    def _restore(self, coming: _Coming, number: int, tensors: Tensors, weights: Any, kinds: Mapping[Any, Any]) -> None:
        pieces = {at: self._incoming[at] for at in sorted({key[0] for key in tensors} | {key[0] for key in weights})}
        own = {(at, name): weight for at, layer in pieces.items() for name, weight in layer.named_parameters()}
        groups: list[list[nn.Parameter]] = [[] for _ in self._distinct[0].param_groups]
        for key, weight in weights.items():
            if weight.group is not None and key in own:
                groups[weight.group].append(own[key])
        replay = coming.replays[number] = _like(self._distinct[0], groups)
        metas = {key: TensorMeta(value.dtype, tuple(value.shape)) for key, value in tensors.items()}
        restore(pieces, replay, Manifest(metas, dict(weights), values=dict(tensors)), self._distinct[0])
        for key, dtype in kinds.items():
            if dtype is not None and dtype != own[key].dtype:
                own[key].grad_dtype = dtype
        coming.weights |= own

    @staticmethod
    def _replay(coming: _Coming, replay: torch.optim.Optimizer, gradients: Tensors, settings: list[dict[str, Any]]) -> None:
        for group, options in zip(replay.param_groups, settings, strict=True):
            group.update(options)
        for key, gradient in gradients.items():
            coming.weights[key].grad = gradient.to(coming.weights[key].device)
        replay.step()
        replay.zero_grad(set_to_none=True)

    def _caught_up(self, coming: _Coming, boundary: int) -> None:
        with self._lock:
            coming.ready = coming.ready or boundary >= self.boundaries - 1
            meets = all(each.ready for each in self._coming.values())
        if meets:
            self._meet()

    def _end(self, coming: _Coming, tensors: Tensors, sums: Mapping[tuple[int, str], int]) -> None:
        """The last record: buffers as they are, and sums of what updates have made."""
        buffers = {(at, name): one for at in self._incoming for name, one in self._incoming[at].named_buffers()}
        with torch.no_grad():
            for key, value in tensors.items():
                buffers[key].copy_(value)
        found = _sums(coming.weights.items(), coming.replays.values())
        other = next((key for key, one in sums.items() if found.get(key) != one), None)
        if other is not None:
            self._note(
                f"{other[1]} of layer {other[0]} is not what the optimizer's steps alone make of it; move it between two steps with"
                " schedc.runtime.adapt.state_transfer.exchange.move"
            )
        coming.whole.set()

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
        self._pipe.groups.store.set(f"{self._key}/{self._pipe.groups.rank}", "")

    def all_have_offered(self) -> bool:
        """For the pipe, on the rank that looks: whether all are ready."""
        return self._pipe.groups.store.check([f"{self._key}/{rank}" for rank in range(self._pipe.groups.size)])

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
            if self._gate is not None:
                self._gate.watch(pipe.steps.wiring.senders.values())
            for peer, outlet in self._outlets.items():
                if outlet.waiting > 2 * self._most_behind and self._failed is None:
                    self._note(
                        f"rank {pipe.groups.rank} sends gradients more slowly to rank {peer} than it makes them, and is"
                        f" {self._most_behind} steps behind; move the layers between two steps with"
                        " schedc.runtime.adapt.state_transfer.exchange.move, or give a larger most_behind"
                    )
                self._send_boundary(peer, outlet, last=last)
            if last:
                self._settle()
        if self.reason is not None:
            warnings.warn(f"no layer has moved, and training goes on: {self.reason}", RuntimeWarning, stacklevel=2)

    def _send_boundary(self, peer: int, outlet: Outlet, *, last: bool) -> None:
        if not last:
            outlet.put(("boundary", self.boundaries, None), {})
            return
        layers = {at: self._layers[at] for at in self._leaving(peer)}
        weights = {(at, name): weight for at, layer in layers.items() for name, weight in layer.named_parameters()}
        buffers = {(at, name): one for at, layer in layers.items() for name, one in layer.named_buffers()}
        outlet.put(("boundary", self.boundaries, _sums(weights.items(), self._distinct)), buffers)

    def _settle(self) -> None:
        pipe = self._pipe
        for coming in self._coming.values():
            if not coming.whole.wait(0.8 * pipe.groups.timeout_s):
                self._failed = self._failed or f"the last gradients have not come from rank {coming.source} in time"
        said = pipe.groups.exchange((self._failed, self._cut))
        reasons = [f"rank {rank}: {failed}" for rank, (failed, _) in enumerate(said) if failed]
        reasons += [cut for _, cut in said if cut]
        pipe._swapper = self._former
        if self._gate is not None:
            self._gate.release(pipe.steps.wiring.senders.values())
        for hook in self._hooks:
            hook.remove()
        self.state, self.reason = ("refused", reasons[0]) if reasons else ("done", None)
        self._hang_up()
        if not reasons:
            self._take_over()

    def _hang_up(self) -> None:
        for outlet in self._outlets.values():
            outlet.close()
        for coming in self._coming.values():
            if coming.inlet is not None:
                coming.inlet.close()

    def _take_over(self) -> None:
        """Nothing here waits for another rank but new connections."""
        pipe, plan, steps = self._pipe, self._plan, self._pipe.steps
        groups: dict[nn.Parameter, int] = {}
        state: dict[torch.Tensor, Any] = {}
        for one in (*self._distinct, *(each for coming in self._coming.values() for each in coming.replays.values())):
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


def _check(pipe: Pipe, running: Plan, plan: Plan) -> None:
    """Refuse what cannot migrate.

    Raises:
        SchedcError: says why.
    """
    move = "move the layers between two steps with schedc.runtime.adapt.state_transfer.exchange.move"
    old, new = running.problem, plan.problem
    if type(pipe.hooks) is not ReplicaHooks or old.data_parallel is not None or new.data_parallel is not None:
        raise Unsupported(f"layers of replicas do not migrate while they train; {move}")
    if pipe.swap_group is not None:
        raise Unsupported("a swap_group was given; pipelines that move together do not migrate layers")
    if pipe.steps.ties:
        raise Unsupported("weights of several ranks are tied; such layers do not migrate")
    if pipe._swapper is not None and (pipe._swapper.pending or isinstance(pipe._swapper, Migration)):
        raise InvalidInput("another swap or migration is pending; wait until its state says what has become of it")
    if any(
        module is not pipe.stages[stage] and next(module.loss_fn.parameters(), None) is not None  # type: ignore[union-attr]
        for stage, module in pipe.modules.items()
    ):
        raise Unsupported("the loss function has weights, which do not migrate")
    if [stage.rank for stage in old.stages] != [stage.rank for stage in new.stages] or old.paths != new.paths:
        raise InvalidInput(f"plan {plan.name!r} has other stages than plan {running.name!r}, or on other ranks; {move}")
    if (old.updates is None) != (new.updates is None):
        raise InvalidInput(f"only one of the plans {plan.name!r} and {running.name!r} has updates; swap before or after")


def _like(optimizer: torch.optim.Optimizer, groups: Iterable[list[nn.Parameter]]) -> torch.optim.Optimizer:
    """An optimizer that does the same, of other weights, without state and hooks."""
    made: torch.optim.Optimizer = object.__new__(type(optimizer))
    made.__dict__.update(optimizer.__dict__)
    made.__dict__.pop("step", None)  # a schedule of learning rates puts one there that counts the other's steps
    made.state = defaultdict(dict)
    for name, value in optimizer.__dict__.items():
        if name.endswith("_hooks"):
            setattr(made, name, type(value)())
    made.param_groups = [{**group, "params": weights} for group, weights in zip(optimizer.param_groups, groups, strict=False)]
    return made


def _sums(
    weights: Iterable[tuple[tuple[int, str], nn.Parameter]], optimizers: Iterable[torch.optim.Optimizer]
) -> dict[tuple[int, str], int]:
    """Of each weight, a sum of its bytes and of those of its optimizer's state."""
    states: dict[torch.Tensor, Any] = {weight: state for one in optimizers for weight, state in one.state.items()}
    found = {}
    for key, weight in weights:
        value = 0
        for tensor in (weight, *(one for _, one in sorted(states.get(weight, {}).items()) if isinstance(one, torch.Tensor))):
            memory: Any = tensor.detach().to("cpu").contiguous().reshape(-1).view(torch.uint8).numpy()
            value = zlib.crc32(memory, value)
        found[key] = value
    return found
