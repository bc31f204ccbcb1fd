"""Checkpoints by `torch.distributed.checkpoint` that know layers, not stages: saved under one plan, loaded under another.

Every process saves and loads the weights and the optimizer's state of its own layers, under the names that they have in the whole
model, `model.3.up.weight`. What several processes have (replicas) one of them writes.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from schedc.errors import CheckFailed, InvalidInput, SchedcError, Unsupported

if TYPE_CHECKING:
    from schedc.runtime.replicas.shards import Shard
    from schedc.runtime.session.pipe import Pipe

__all__ = ["layers_of", "load_checkpoint", "save_checkpoint"]

METADATA = ".metadata"
"""The file that torch writes last."""


def layers_of(pipe: Pipe) -> nn.Module:
    """This rank's layers, by their number in the whole model: its parameters have the names of `nn.Sequential(*layers)`.

    Args:
        pipe: whose plan says which layers each stage has, and whose stages are as `build_stages` makes them.

    Raises:
        InvalidInput: the plan does not say it, or a stage is something else.
        Unsupported: this rank has a layer twice.
    """
    layers = nn.ModuleDict()
    for stage, module in sorted(pipe.stages.items()):
        bounds = pipe.plan.problem.stages[stage].layers
        if bounds is None or not isinstance(module, nn.Sequential) or len(module) != bounds[1] - bounds[0]:
            raise InvalidInput(
                f"stage {stage} is not an nn.Sequential of the layers that the plan gives it; make stages with build_stages, or"
                " give model=, a module with this rank's layers under the names that they have in the whole model"
            )
        for number, layer in enumerate(module, bounds[0]):
            if str(number) in layers:
                raise Unsupported(f"rank {pipe.groups.rank} has layer {number} twice, on both paths of a bidirectional placement")
            layers[str(number)] = layer
    return layers


def save_checkpoint(
    pipe: Pipe, path: Path | str, optimizer: torch.optim.Optimizer | None = None, *, model: nn.Module | None = None
) -> None:
    """Save weights, buffers and the optimizer's state; all processes of the job call it together, between two steps.

    Args:
        pipe: this rank's.
        path: a new folder, which all processes see.
        optimizer: of all this process's weights; None: its state is not saved.
        model: this rank's layers, under the names that they have in the whole model; None: `layers_of(pipe)`.

    Raises:
        SchedcError: on all ranks: it cannot be saved, and why.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    def checked() -> dict[str, Any]:
        if (Path(path) / METADATA).exists():
            raise InvalidInput(f"{path}: found a checkpoint, expected a new folder")
        layers = layers_of(pipe) if model is None else model
        state = _state(pipe, optimizer, layers)
        if optimizer is not None:
            state["optim"].update(_under_all_names(layers, state["optim"]))
        return state

    pipe.gather()
    save(_together(pipe, checked), checkpoint_id=str(path))


def load_checkpoint(
    pipe: Pipe, path: Path | str, optimizer: torch.optim.Optimizer | None = None, *, model: nn.Module | None = None
) -> None:
    """Load what `save_checkpoint` has saved, under this plan or another of the same model; all processes call it together.

    Args:
        pipe: this rank's.
        path: the folder.
        optimizer: of all this process's weights, of the kind that was saved; None: only weights and buffers are loaded.
        model: as for `save_checkpoint`.

    Raises:
        SchedcError: on all ranks, before anything is changed: the folder is no checkpoint of this model and optimizer.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    def checked() -> tuple[dict[str, Any], dict[str, Any], nn.Module]:
        if not (Path(path) / METADATA).is_file():
            raise InvalidInput(f"{path}: found no {METADATA}, expected a folder that save_checkpoint has written")
        layers = layers_of(pipe) if model is None else model
        if optimizer is not None and not optimizer.state and any(each.grad is not None for each in _weights_of(optimizer)):
            raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has no state yet and there are gradients; zero them first")
        return _state(pipe, optimizer, layers), FileSystemReader(str(path)).read_metadata().state_dict_metadata, layers

    state, saved, layers = _together(pipe, checked)
    begins = _together(pipe, lambda: _take_new(path, state, saved))
    own = {f"{part}.{name}": value for part, values in state.items() for name, value in values.items()}
    _together(pipe, lambda: _check_names(path, own, saved))
    everywhere = {name for names in pipe.groups.exchange([*own]) for name in names}
    more = sorted(name for name in saved if name.startswith("model.") and name not in everywhere)
    if more:
        raise InvalidInput(f"{path}: found {more[0]} (and {len(more) - 1} more), which no layer of the plan has")
    load(state, checkpoint_id=str(path))
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    set_model_state_dict(layers, state["model"], options=options)
    with torch.no_grad():
        for shard in _shards(pipe):
            whole = pipe.stages[shard.stage].get_parameter(shard.name)
            shard.weight.copy_(whole.flatten()[shard.start : shard.stop])
    if optimizer is not None:
        set_optimizer_state_dict(layers, optimizer, state["optim"] | begins, options=options)
        for name in {_weight_of(key) for key in begins}:
            del optimizer.state[layers.get_parameter(name)]


def _state(pipe: Pipe, optimizer: torch.optim.Optimizer | None, layers: nn.Module) -> dict[str, dict[str, Any]]:
    """What is saved, or loaded into."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    known = set(layers.parameters())
    if not known.issuperset(weight for module in pipe.stages.values() for weight in module.parameters()):
        raise InvalidInput(f"rank {pipe.groups.rank}: model= lacks a weight of this rank's stages")
    state: dict[str, dict[str, Any]] = {"model": get_model_state_dict(layers)}
    if optimizer is None:
        return state
    if _shards(pipe):
        raise Unsupported("the optimizer's state is sharded over replicas (ZeRO 1); save and load without it: give no optimizer")
    if not known.issuperset(_weights_of(optimizer)):
        raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has a weight that is not of this rank's layers")
    state["optim"] = get_optimizer_state_dict(layers, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    return state


def _weights_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def _weight_of(key: str) -> str:
    """The weight of `state.3.up.weight.exp_avg`: `3.up.weight`."""
    return key.split(".", 1)[1].rsplit(".", 1)[0]


def _under_all_names(layers: nn.Module, optim: dict[str, Any]) -> dict[str, Any]:
    """What belongs to tied weights of one rank, which torch gives under the first of their names, under the others.

    Another plan may have them on two ranks.
    """
    names: dict[nn.Parameter, list[str]] = {}
    for name, weight in layers.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    others = {first: rest for first, *rest in names.values() if rest}
    found: dict[str, Any] = {}
    for key, value in optim.items():
        part, name, entry = key.split(".", 1)[0], _weight_of(key), key.rsplit(".", 1)[1]
        found.update({f"{part}.{other}.{entry}": value for other in others.get(name, ())})
    return found


def _take_new(path: Path | str, state: dict[str, dict[str, Any]], saved: dict[str, Any]) -> dict[str, Any]:
    """Take out of the state, and give, that of weights that had none when it was saved, as no step had given them a gradient.

    They are in the checkpoint's settings, by which they differ from those of another kind of optimizer.

    Raises:
        InvalidInput: the other way round: the optimizer has no state of a weight that the checkpoint has.
    """
    optim = state.get("optim", {})
    own = {key.rsplit(".", 1)[0] for key in optim}
    there = {key.removeprefix("optim.").rsplit(".", 1)[0] for key in saved if key.startswith("optim.")}
    for weight in sorted({_weight_of(key) for key in optim}):
        if f"state.{weight}" in there and f"state.{weight}" not in own:
            raise InvalidInput(f"{path}: found a state of {weight}, of which the optimizer has none; load into a new optimizer")
    new = {weight for weight in map(_weight_of, optim) if f"param_groups.{weight}" in there and f"state.{weight}" not in there}
    return {key: optim.pop(key) for key in [*optim] if key.startswith("state.") and _weight_of(key) in new}


def _shards(pipe: Pipe) -> list[Shard]:
    """What this process owns of the weights under ZeRO 1; otherwise nothing."""
    try:
        return pipe.shards()
    except InvalidInput:
        return []


def _check_names(path: Path | str, own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Refuse a checkpoint without something of this rank's, or with something of another shape."""
    for name, value in own.items():
        if name not in saved:
            raise InvalidInput(f"{path}: found no {name}; expected a checkpoint of the same model and the same kind of optimizer")
        size = getattr(saved[name], "size", None)
        if isinstance(value, torch.Tensor) and size is not None and tuple(size) != tuple(value.shape):
            raise InvalidInput(f"{path}: {name}: found the shape {list(size)}, expected {list(value.shape)}")


def _together(pipe: Pipe, work: Any) -> Any:
    """What this rank makes, if all ranks can make theirs.

    Raises:
        SchedcError: this rank's refusal; or another's.
    """
    refusal: SchedcError | None = None
    made: Any = None
    try:
        made = work()
    except SchedcError as error:
        refusal = error
    reasons = pipe.groups.exchange(None if refusal is None else str(refusal))
    if refusal is not None:
        raise refusal
    for rank, reason in enumerate(reasons):
        if reason is not None:
            raise CheckFailed(f"rank {rank} has refused: {reason}")
    return made
