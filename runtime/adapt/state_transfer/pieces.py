"""What of a training state goes from process to process: pieces, each with its weights, buffers and optimizer state, by name.

A piece is a stage where the stages keep their layers, and a layer where layers go from stage to stage. A process describes its
pieces in a `Manifest`, which all processes see; the tensors follow in the order of the manifest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan
from schedc.runtime.common.boundary import TensorMeta
from schedc.runtime.session.building import bounds_of_stages, layers_of_stage
from schedc.runtime.transports.choice import stage_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PLAIN = (int, float, bool, str, type(None))
"""What an optimizer may keep of a weight besides tensors."""


class Sent(NamedTuple):
    """In place of a tensor of an optimizer's state, which is sent by itself."""

    on_host: bool
    """Whether it is in the host's memory whatever the weight's device is, as Adam's counter of steps."""


class Weight(NamedTuple):
    """What belongs to a weight besides its value."""

    requires_grad: bool
    group: int | None
    """The number of its group of the optimizer; None: the optimizer does not have it."""
    state: Mapping[str, Any]
    """The optimizer's; with `Sent` in place of tensors."""


class Settings(NamedTuple):
    """Of an optimizer."""

    kind: str
    groups: tuple[Mapping[str, str], ...]
    """Its groups without their weights, each value as Python writes it."""

    def unlike(self, other: Settings) -> str:
        """The first in which they differ, in a few words; these are different settings."""
        if self.kind != other.kind:
            return f"{self.kind} and {other.kind}"
        if len(self.groups) != len(other.groups):
            return f"{len(self.groups)} and {len(other.groups)} groups of weights"
        number = next(at for at, (one, another) in enumerate(zip(self.groups, other.groups, strict=True)) if one != another)
        one, another = self.groups[number], other.groups[number]
        name = next(name for name in (*one, *another) if one.get(name) != another.get(name))
        values = (each.get(name, "nothing") for each in (one, another))
        return f"group {number} has {name} = {' and '.join(value if len(value) <= 40 else value[:39] + '…' for value in values)}"


OF_NONE = Settings("", ())


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a process has, without the values."""

    tensors: dict[tuple[int, str], TensorMeta] = field(default_factory=dict)
    """By piece and name: `weight up.bias`, `buffer norm.mean`, `state exp_avg of up.bias`; in the order in which they are sent."""
    weights: dict[tuple[int, str], Weight] = field(default_factory=dict)
    settings: Settings = OF_NONE
    values: dict[tuple[int, str], torch.Tensor] = field(default_factory=dict, repr=False)
    """The tensors themselves; stay at home."""

    def add(self, piece: int, name: str, tensor: torch.Tensor) -> None:
        """Take a tensor.

        Raises:
            Unsupported: it is no plain one.
        """
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            raise Unsupported(f"{name} of piece {piece} is a {type(tensor).__name__}; only plain tensors can move")
        self.tensors[piece, name] = TensorMeta(tensor.dtype, tuple(tensor.shape))
        self.values[piece, name] = tensor.detach()

    def __reduce__(self) -> Any:
        """For other processes: without the values."""
        return Manifest, (self.tensors, self.weights, self.settings)


def by_layers(old: Plan, new: Plan) -> bool:
    """Whether pieces are layers: stages of the two plans differ in layers or ranks."""
    return [(stage.rank, stage.layers) for stage in old.problem.stages] != [
        (stage.rank, stage.layers) for stage in new.problem.stages
    ]


def rank_of_piece(plan: Plan, *, layers: bool) -> dict[int, int]:
    """The rank of each piece.

    Raises:
        InvalidInput: the plan does not say which layers its stages have.
        Unsupported: a layer is in two stages.
    """
    if not layers:
        return {number: stage.rank for number, stage in enumerate(plan.problem.stages)}
    found: dict[int, int] = {}
    for stage, bounds in zip(plan.problem.stages, bounds_of_stages(plan, "compile it with a profile.json"), strict=True):
        for layer in range(*bounds):
            if layer in found:
                raise Unsupported(f"plan {plan.name!r} has layer {layer} in two stages; layers can move where there is one path")
            found[layer] = stage.rank
    return found


def pieces_of(stages: Mapping[int, nn.Module], plan: Plan, *, layers: bool) -> dict[int, nn.Module]:
    """The pieces of a process's stages.

    Raises:
        InvalidInput: layers are asked for, and a stage is not an nn.Sequential of those that the plan gives it.
    """
    if not layers:
        return dict(sorted(stages.items()))
    found: dict[int, nn.Module] = {}
    for stage, module in sorted(stages.items()):
        found |= layers_of_stage(plan, stage, module, "make it with build_stages")
    return found


def describe(pieces: Mapping[int, nn.Module], optimizer: torch.optim.Optimizer, *, apart: bool) -> Manifest:
    """What a process has.

    `apart`: whether pieces of one process may go to several.

    Raises:
        InvalidInput: there are gradients, or the optimizer has a weight of no piece.
        Unsupported: a weight is no plain tensor, two pieces that may part share one, or the optimizer keeps something unknown.
    """
    groups = {weight: number for number, group in enumerate(optimizer.param_groups) for weight in group["params"]}
    settings = ({key: repr(value) for key, value in group.items() if key != "params"} for group in optimizer.param_groups)
    found = Manifest(settings=Settings(type(optimizer).__name__, tuple(settings)))
    owner: dict[torch.Tensor, int] = {}
    for piece, module in pieces.items():
        for name, weight in module.named_parameters():
            if weight.grad is not None:
                raise InvalidInput("gradients cannot move; call optimizer.zero_grad() between the step and the move")
            if apart and owner.setdefault(weight, piece) != piece:
                raise Unsupported(f"layers {owner[weight]} and {piece} share the weight {name}; such layers cannot move")
            owner.setdefault(weight, piece)
            found.add(piece, f"weight {name}", weight)
            state = dict(optimizer.state.get(weight, {}))
            for key, value in state.items():
                if isinstance(value, torch.Tensor):
                    found.add(piece, f"state {key} of {name}", value)
                    state[key] = Sent(on_host=value.device.type == "cpu" != weight.device.type)
                elif not isinstance(value, PLAIN):
                    raise Unsupported(
                        f"the optimizer keeps {key!r} of a weight as {type(value).__name__}, expected a tensor or a number"
                    )
            found.weights[piece, name] = Weight(weight.requires_grad, groups.get(weight), state)
        for name, buffer in module.named_buffers():
            found.add(piece, f"buffer {name}", buffer)
    if not {*groups} <= {*owner}:
        raise InvalidInput("the optimizer has a weight that is not of this process's stages; such weights cannot move")
    return found


def restore(
    pieces: Mapping[int, nn.Module], optimizer: torch.optim.Optimizer, state: Manifest, before: torch.optim.Optimizer
) -> None:
    """Give new modules and a new optimizer the values that have come; each value is let go as it is used.

    `state` is what belongs to these pieces, with values; the new optimizer gets the settings of `before`, the old one.

    Raises:
        InvalidInput: modules or optimizer are not as the ones that were described.
    """
    groups = {weight: number for number, group in enumerate(optimizer.param_groups) for weight in group["params"]}
    if type(optimizer) is not type(before) or len(optimizer.param_groups) != len(before.param_groups):
        raise InvalidInput("the new optimizer is of another kind, or has another number of groups, than the old one")
    found: set[tuple[int, str]] = set()
    with torch.no_grad():
        for piece, module in pieces.items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                what = f"{'weight' if isinstance(tensor, nn.Parameter) else 'buffer'} {name}"
                kind = state.tensors.get((piece, what))
                if kind is None or (kind.dtype, kind.shape) != (tensor.dtype, tuple(tensor.shape)):
                    expected = "none" if kind is None else f"{kind.dtype} {list(kind.shape)}"
                    raise InvalidInput(
                        f"the new piece {piece}: {what}: found {tensor.dtype} {list(tensor.shape)}, expected {expected} as before"
                    )
                tensor.copy_(state.values.pop((piece, what)))
                found.add((piece, what))
                if isinstance(tensor, nn.Parameter):
                    weight = state.weights[piece, name]
                    tensor.requires_grad_(weight.requires_grad)
                    if groups.get(tensor) != weight.group:
                        raise InvalidInput(
                            f"the new optimizer has {name} of piece {piece} in group {groups.get(tensor)}, expected"
                            f" {weight.group} as before"
                        )
                    kept = dict(weight.state)
                    for key, given in weight.state.items():
                        if isinstance(given, Sent):
                            value = state.values.pop((piece, f"state {key} of {name}"))
                            kept[key] = value.clone() if given.on_host else value.to(tensor.device, copy=True)
                    if kept:
                        optimizer.state[tensor] = kept
    missing = sorted(key for key in state.tensors if key[0] >= 0 and not key[1].startswith("state ") and key not in found)
    if missing:
        raise InvalidInput(f"the new piece {missing[0][0]}: found no {missing[0][1]}, expected it as before")
    for group, old in zip(optimizer.param_groups, before.param_groups, strict=True):
        group.update({key: value for key, value in old.items() if key != "params"})


def empty(stages: Mapping[int, nn.Module], optimizer: torch.optim.Optimizer) -> None:
    """Let go of all values of stages and optimizer, whoever else has the modules."""
    let_go(stages.values())
    optimizer.state.clear()


def let_go(modules: Iterable[nn.Module]) -> None:
    """Let go of the values of modules and of their gradients, whoever else has them."""
    for module in modules:
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.grad = None
            tensor.data = torch.empty(0, dtype=tensor.dtype, device=tensor.device)


def add_random(manifest: Manifest, piece: int, stages: Mapping[int, nn.Module]) -> None:
    """Add torch's random state of this process, the host's and that of the stages' GPU, as a piece of its own."""
    device = stage_device(stages)
    states = {"host": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    for name, state in states.items():
        manifest.add(piece, name, state)


def set_random(state: Manifest) -> None:
    """Take the random state that has come with the place."""
    for (piece, name), value in state.values.items():
        if piece < 0:
            (torch.set_rng_state if name == "host" else torch.cuda.set_rng_state)(value)
