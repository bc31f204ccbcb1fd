"""Checkpoints by `torch.distributed.checkpoint` that know layers, not stages: saved under one plan, loaded under another.

Every process saves and loads the weights and the optimizer's state of its own layers, under the names that they have in the whole
model, `model.3.up.weight`. What several processes have (replicas) one of them writes.
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.runtime.common.hooks import shards_of
from schedc.runtime.session.building import layers_of_stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.runtime.session.pipe import Pipe

    Optimizers: TypeAlias = torch.optim.Optimizer | list[torch.optim.Optimizer] | tuple[torch.optim.Optimizer, ...]

ALIKE = 1e-2
"""By how much weights that processes train alike may differ, relative to their norm: kernels add in any order, step after step.
Weights that are meant to differ, as those of experts do, differ by about their norm."""

METADATA = ".metadata"
"""The file that torch writes last."""


def layers_of(pipe: Pipe) -> nn.Module:
    """This rank's layers, by their number in the whole model: its parameters have the names of `nn.Sequential(*layers)`.

    With a last stage, and a loss function that has weights, that is `loss_fn`; buffers of one that has none are the job's.

    Args:
        pipe: whose plan says which layers each stage has, and whose stages are as `build_stages` makes them.

    Raises:
        InvalidInput: the plan does not say it, or a stage is something else.
        Unsupported: this rank has a layer twice.
    """
    layers = nn.ModuleDict()
    for stage, module in sorted(pipe.stages.items()):
        remedy = (
            "make stages with build_stages, or give model=, a module with this rank's layers under the names that they have in the"
            " whole model"
        )
        for number, layer in layers_of_stage(pipe.plan, stage, module, remedy).items():
            if str(number) in layers:
                raise Unsupported(f"rank {pipe.groups.rank} has layer {number} twice, on both paths of a bidirectional placement")
            layers[str(number)] = layer
        loss = None if pipe.modules[stage] is module else pipe.modules[stage].get_submodule("loss_fn")
        if loss is not None and any(True for _ in loss.parameters()):
            layers["loss_fn"] = loss
    return layers


def save_checkpoint(pipe: Pipe, path: Path | str, optimizer: Optimizers | None = None, *, model: nn.Module | None = None) -> None:
    """Save weights, buffers and the optimizer's state; all processes of the job call it together, between two steps.

    Args:
        pipe: this rank's.
        path: a new folder, which all processes see.
        optimizer: of all this process's weights, one or several; None: its state is not saved. A rank without weights to train has
            an empty list.
        model: this rank's layers, under the names that they have in the whole model; None: `layers_of(pipe)`.

    Raises:
        SchedcError: on all ranks: it cannot be saved, and why.
    """
    from torch.distributed.checkpoint.state_dict_saver import save

    optimizer = optimizer or None

    def checked() -> dict[str, Any]:
        if (Path(path) / METADATA).exists():
            raise InvalidInput(f"{path}: found a checkpoint, expected a new folder")
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path}: cannot be written: {error.strerror}") from error
        if not os.access(path, os.W_OK | os.X_OK):
            raise InvalidInput(f"{path}: cannot be written: the folder is write-protected")
        layers = layers_of(pipe) if model is None else model
        state = _state(pipe, optimizer, layers)
        if optimizer is not None:
            state["optim"].update(_under_all_names(layers, state["optim"]))
        return state

    pipe.gather()
    state = pipe.groups.all_or_none(checked)
    if pipe.swap_group is not None:
        buffers = {name for name, _ in (layers_of(pipe) if model is None else model).named_buffers()}
        weights = {name: value for name, value in state["model"].items() if name not in buffers}
        given = pipe.swap_group.exchange(_fingerprints(weights))
        pipe.groups.all_or_none(lambda: _check_alike(path, given))
    save(state, checkpoint_id=str(path))


def load_checkpoint(pipe: Pipe, path: Path | str, optimizer: Optimizers | None = None, *, model: nn.Module | None = None) -> None:
    """Load what `save_checkpoint` has saved, under this plan or another of the same model; all processes call it together.

    Args:
        pipe: this rank's.
        path: the folder.
        optimizer: of all this process's weights, of the kind that was saved, one or several; None: weights and buffers alone.
            An empty list as for `save_checkpoint`.
        model: as for `save_checkpoint`.

    Raises:
        SchedcError: on all ranks, before anything is changed: the folder is no checkpoint of this model and optimizer.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict
    from torch.distributed.checkpoint.state_dict_loader import load

    optimizer = optimizer or None

    def checked() -> tuple[dict[str, Any], dict[str, Any], nn.Module]:
        if not (Path(path) / METADATA).is_file():
            raise InvalidInput(f"{path}: found no {METADATA}, expected a folder that save_checkpoint has written")
        layers = layers_of(pipe) if model is None else model
        if any(not one.state and any(each.grad is not None for each in _weights_of(one)) for one in _each(optimizer)):
            raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has no state yet and there are gradients; zero them first")
        return _state(pipe, optimizer, layers), _saved(Path(path)), layers

    state, saved, layers = pipe.groups.all_or_none(checked)
    begins = pipe.groups.all_or_none(lambda: _take_new(path, state, saved))
    own = {f"{part}.{name}": value for part, values in state.items() for name, value in values.items()}
    pipe.groups.all_or_none(lambda: _check_names(path, own, saved))
    everywhere = {name for names in pipe.groups.exchange([*own]) for name in names}
    if pipe.swap_group is not None:
        everywhere = {name for names in pipe.swap_group.exchange(everywhere) for name in names}
    more = sorted(name for name in saved if name.startswith("model.") and name not in everywhere)
    if more:
        raise InvalidInput(f"{path}: found {more[0]} (and {len(more) - 1} more), which no layer of the plan has")
    try:
        load(state, checkpoint_id=str(path))
    except CheckpointException as error:  # of all ranks, on all of them
        reason = " ".join(str(next(iter(error.failures.values()), (error,))[0]).split())
        raise CheckFailed(f"{path}: cannot be read: {reason[:200]}; weights may be half loaded: load another checkpoint") from error
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    set_model_state_dict(layers, state["model"], options=options)
    with torch.no_grad():
        for shard in shards_of(pipe.hooks) or ():
            shard.weight.copy_(shard.whole.flatten()[shard.start : shard.stop])
    if optimizer is not None:
        set_optimizer_state_dict(layers, optimizer, state["optim"] | begins, options=options)
        for name in {_weight_of(key) for key in begins}:
            for one in _each(optimizer):
                one.state.pop(layers.get_parameter(name), None)


def _state(pipe: Pipe, optimizer: Optimizers | None, layers: nn.Module) -> dict[str, dict[str, Any]]:
    """What is saved, or loaded into."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    known = set(layers.parameters())
    if not known.issuperset(weight for module in pipe.modules.values() for weight in module.parameters()):
        raise InvalidInput(f"rank {pipe.groups.rank}: model= lacks a weight of this rank's stages or loss function")
    state: dict[str, dict[str, Any]] = {"model": get_model_state_dict(layers)}
    if optimizer is None:
        return state
    if shards_of(pipe.hooks):
        raise Unsupported("the optimizer's state is sharded over replicas (ZeRO 1); save and load without it: give no optimizer")
    if not known.issuperset(weight for one in _each(optimizer) for weight in _weights_of(one)):
        raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has a weight that is not of this rank's layers")
    state["optim"] = get_optimizer_state_dict(layers, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))
    return state


def _saved(path: Path) -> dict[str, Any]:
    """What the folder's metadata say that it has, all of which is there.

    Raises:
        InvalidInput: the metadata cannot be read, or a file is missing or too short.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        metadata = FileSystemReader(str(path)).read_metadata()
    except (pickle.UnpicklingError, EOFError, OSError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{path / METADATA}: found no metadata of a checkpoint, as of a copy that was cut short: {error}"
        ) from error
    ends: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    for name, end in sorted(ends.items()):
        file = path / name
        found = file.stat().st_size if file.is_file() else None
        if found is None or found < end:
            raise InvalidInput(f"{file}: found {'no file' if found is None else f'{found} bytes'}, expected {end} bytes or more")
    return metadata.state_dict_metadata


def _each(optimizer: Optimizers | None) -> Sequence[torch.optim.Optimizer]:
    return () if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)


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


def _fingerprints(tensors: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Of each tensor the sum and the norm; but for DTensors, of which torch knows what each process has."""
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not hasattr(tensor, "device_mesh"):
            value = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            exact = value if value.is_floating_point() else value.double()
            found[name] = float(exact.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(exact, dtype=torch.float64))
    return found


def _check_alike(path: Path | str, given: Sequence[Mapping[str, tuple[float, float]]]) -> None:
    """Refuse to save one for several that have the same name and are not the same, as experts of different processes may have."""
    for name in dict.fromkeys(name for found in given for name in found):
        (total, norm), *others = [found[name] for found in given if name in found]
        if any(abs(total - other) + abs(norm - more) > ALIKE * norm for other, more in others):
            raise InvalidInput(
                f"{path}: {name} is not the same in all processes of the swap_group, and would be saved once; give model=, with a"
                " name of its own for each"
            )


def _check_names(path: Path | str, own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Refuse a checkpoint without something of this rank's, or with something of another shape or a type that would be rounded."""
    for name, value in own.items():
        if name not in saved:
            raise InvalidInput(f"{path}: found no {name}; expected a checkpoint of the same model and the same kind of optimizer")
        size = getattr(saved[name], "size", None)
        if isinstance(value, torch.Tensor) and size is not None and tuple(size) != tuple(value.shape):
            raise InvalidInput(f"{path}: {name}: found the shape {list(size)}, expected {list(value.shape)}")
        kind = getattr(getattr(saved[name], "properties", None), "dtype", None)
        if isinstance(value, torch.Tensor) and kind is not None and torch.promote_types(kind, value.dtype) != value.dtype:
            raise InvalidInput(f"{path}: {name}: found {kind}, expected {value.dtype}, or what it holds without rounding")
