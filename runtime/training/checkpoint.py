"""Checkpoints by `torch.distributed.checkpoint` that know layers, not stages: saved under one plan, loaded under another.

Every process saves and loads the weights and the optimizer's state of its own layers, under the names that they have in the whole
model, `model.3.up.weight`. What several processes have (replicas) one of them writes.
"""

from __future__ import annotations

import os
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.runtime.common.hooks import shards_of
from schedc.runtime.session.building import layers_of_stage
from schedc.runtime.stage.training import losses_of
from schedc.runtime.training.checkpoint_checks import (
    METADATA,
    check_alike,
    check_names,
    check_optimizers,
    digest_of,
    fingerprints,
    saved_in,
    take_new,
    weight_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.runtime.session.pipe import Pipe
    from schedc.runtime.training.beside import Writing

    Optimizers: TypeAlias = torch.optim.Optimizer | list[torch.optim.Optimizer] | tuple[torch.optim.Optimizer, ...]


def layers_of(pipe: Pipe) -> nn.Module:
    """This rank's layers, by their number in the whole model: its parameters have the names of `nn.Sequential(*layers)`.

    With a last stage, and a loss function that has weights, that is `loss_fn`; buffers of one that has none are the job's.

    Args:
        pipe: whose plan says which layers each stage has, and whose stages are as `build_stages` makes them.

    Raises:
        InvalidInput: the plan does not say it, or a stage is something else.
        Unsupported: this rank has a layer twice, or one of several losses has weights.
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
            if sum(map(len, losses_of(pipe.plan.problem, pipe.stages).values())) > 1:
                raise Unsupported(
                    "the model has several losses, of which one has weights, which has no name in a checkpoint; give model="
                )
            layers["loss_fn"] = loss
    return layers


def save_checkpoint(
    pipe: Pipe, path: Path | str, optimizer: Optimizers | None = None, *, model: nn.Module | None = None, beside: bool = False
) -> Writing:
    """Save weights, buffers and the optimizer's state; all processes of the job call it together, between two steps.

    Args:
        pipe: this rank's.
        path: a new folder, which all processes see, of the same name on all of them.
        optimizer: of all this process's weights (of its shards under ZeRO 1), one or several; None, on all processes: its state is
            not saved. A rank without weights to train has an empty list.
        model: this rank's layers, under the names that they have in the whole model; None: `layers_of(pipe)`.
        beside: return as soon as all is copied, and write it while the next steps run. One checkpoint is written at a time: the
            next waits for it, as does the end of the pipe.

    Returns:
        How far it is; done, unless it is written `beside`.

    Raises:
        SchedcError: on all ranks: it cannot be saved, and why; or the one before it, written `beside`, could not be.
    """
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    from schedc.runtime.training.beside import Writer, Writing, reason
    from schedc.runtime.training.shares import SavesShares

    saved = f"the others to save {path}"
    given_calls = pipe.groups.everywhere((Path(path).name, beside, optimizer is None), saved)

    def check_calls() -> None:
        names, ways, _ = ({*each} for each in zip(*given_calls, strict=True))
        if len(names) > 1:
            raise InvalidInput(
                f"{path}: processes were given folders of different names, {', '.join(sorted(names))}; give all of them the same"
            )
        if len(ways) > 1:
            raise InvalidInput(f"{path}: some processes save it beside steps, others do not; give all of them the same beside=")
        check_optimizers(path, [none for *_, none in given_calls])

    if pipe.beside is None:  # before torch makes a group, in which a rank that has ended or does not come is waited for
        pipe.groups.all_or_none_everywhere(check_calls, saved)
    if beside and pipe.beside is None:
        pipe.beside = Writer(pipe.groups.timeout_s)
    writer = pipe.beside
    pipe.gather()

    def checked() -> dict[str, Any]:
        if writer is not None:
            writer.settle()
        check_calls()
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
        if "optim" in state:
            state["optim"].update(_under_all_names(layers, state["optim"]))
        return state

    state = pipe.groups.all_or_none_everywhere(checked, saved)
    if pipe.swap_group is not None:
        buffers = {name for name, _ in (layers_of(pipe) if model is None else model).named_buffers()}
        weights = {name: value for name, value in state["model"].items() if name not in buffers}
        given = pipe.swap_group.exchange(fingerprints(weights), saved)
        pipe.groups.all_or_none_everywhere(lambda: check_alike(path, given), saved)
    if beside:
        assert isinstance(writer, Writer)
        return writer.write(path, state)
    try:
        save(state, checkpoint_id=str(path), planner=SavesShares())
    except CheckpointException as error:  # of all ranks, on all of them
        raise CheckFailed(f"{path}: was not written: {reason(error)}") from error
    return Writing(path)


def last_checkpoint(folder: Path | str) -> tuple[int, Path] | None:
    """The newest whole checkpoint of those in a folder, whose names end with their steps, as `step-1000`.

    What is half-written is no checkpoint, as a job leaves it whose processes are killed: torch writes the metadata last.

    Args:
        folder: where they are.

    Returns:
        The number that its name ends with, and its folder; None: there is none. A warning says which newer one has lost a file.
    """
    found = [(int(number[0]), each) for each in Path(folder).glob("*") if (number := re.findall(r"\d+$", each.name))]
    for step, path in sorted(found, reverse=True):
        if (path / METADATA).is_file():
            try:
                saved_in(path)
            except InvalidInput as error:
                warnings.warn(f"not taken for a checkpoint: {error}", RuntimeWarning, stacklevel=2)
            else:
                return step, path
    return None


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

    from schedc.runtime.training.beside import reason
    from schedc.runtime.training.shares import LoadsShares, Share, module_of_shards, shards_by_name

    loaded = f"the others to load {path}"
    digests, nones = zip(*pipe.groups.everywhere((digest_of(Path(path)), optimizer is None), loaded), strict=True)

    def checked() -> tuple[dict[str, Any], dict[str, Any], nn.Module]:
        if not (Path(path) / METADATA).is_file():
            half = "; one that has not been written to its end" if any(Path(path).glob("*.distcp")) else ""
            raise InvalidInput(f"{path}: found no {METADATA}, expected a folder that save_checkpoint has written{half}")
        if len({*digests}) > 1:
            raise InvalidInput(f"{path}: another process has another checkpoint, or none, in its folder; give all the same")
        check_optimizers(path, nones)
        layers = layers_of(pipe) if model is None else model
        if any(not one.state and any(each.grad is not None for each in _weights_of(one)) for one in _each(optimizer)):
            raise InvalidInput(f"rank {pipe.groups.rank}: the optimizer has no state yet and there are gradients; zero them first")
        return _state(pipe, optimizer, layers), saved_in(Path(path)), layers

    state, saved, layers = pipe.groups.all_or_none_everywhere(checked, loaded)
    begins = pipe.groups.all_or_none_everywhere(lambda: take_new(path, state, saved), loaded)
    if not any(name.startswith("master.") for name in saved):
        state.pop("master", None)
    own = {f"{part}.{name}": value for part, values in state.items() for name, value in values.items()}
    pipe.groups.all_or_none_everywhere(lambda: check_names(path, own, saved), loaded)
    everywhere = {name for names in pipe.groups.exchange([*own], loaded) for name in names}
    if pipe.swap_group is not None:
        everywhere = {name for names in pipe.swap_group.exchange(everywhere, loaded) for name in names}
    more = sorted(name for name in saved if name.startswith("model.") and name not in everywhere)
    if more:
        raise InvalidInput(f"{path}: found {more[0]} (and {len(more) - 1} more), which no layer of the plan has")
    try:
        load(state, checkpoint_id=str(path), planner=LoadsShares())
    except CheckpointException as error:  # of all ranks, on all of them
        raise CheckFailed(
            f"{path}: cannot be read: {reason(error)}; weights may be half loaded: load another checkpoint"
        ) from error
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    set_model_state_dict(layers, state["model"], options=options)
    shards = shards_of(pipe.hooks) or ()
    with torch.no_grad():
        for shard in shards if "master" not in state else ():  # else they have been loaded into
            shard.weight.copy_(shard.whole.flatten()[shard.start : shard.stop])
    if "optim" in state:
        assert optimizer is not None
        trained = module_of_shards(shards_by_name(layers, shards)) if shards else layers
        found: Any = {key: one.values if isinstance(one, Share) else one for key, one in (state["optim"] | begins).items()}
        set_optimizer_state_dict(trained, optimizer, found, options=options)
        for name in {weight_of(key) for key in begins}:
            for one in _each(optimizer):
                one.state.pop(trained.get_parameter(name), None)


def _state(pipe: Pipe, optimizer: Optimizers | None, layers: nn.Module) -> dict[str, dict[str, Any]]:
    """What is saved, or loaded into.

    Under ZeRO 1 the optimizer's state, and weights that it has in another type than the modules, are shares.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    from schedc.runtime.training.shares import as_share, module_of_shards, shards_by_name

    known, who = set(layers.parameters()), f"rank {pipe.groups.rank}"
    if not known.issuperset(weight for module in pipe.modules.values() for weight in module.parameters()):
        raise InvalidInput(f"{who}: model= lacks a weight of this rank's stages or loss function")
    state: dict[str, dict[str, Any]] = {"model": get_model_state_dict(layers)}
    shards = shards_by_name(layers, shards_of(pipe.hooks) or ())
    wider = {name: shard for name, shard in shards.items() if shard.weight.dtype != shard.whole.dtype}
    if wider:
        state["master"] = {name: as_share(shard, shard.weight.detach(), name) for name, shard in wider.items()}
    if optimizer is None:
        return state
    trained = known if not shards else {shard.weight for shard in shards.values()}
    if not trained.issuperset(weight for one in _each(optimizer) for weight in _weights_of(one)):
        what = "this rank's layers" if not shards else "this process's shards, pipe.shards() (ZeRO 1)"
        raise InvalidInput(f"{who}: the optimizer has a weight that is not of {what}")
    if not _each(optimizer):
        if any(weight.requires_grad for weight in trained):
            raise InvalidInput(f"{who}: found an empty list of optimizers and weights that are trained; give their optimizer")
        return state
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    optim = get_optimizer_state_dict(module_of_shards(shards) if shards else layers, optimizer, options=options)
    for key, value in optim.items() if shards else ():
        if key.startswith("state."):
            optim[key] = as_share(shards[weight_of(key)], value, f"{who}: {key.removeprefix('state.')}")
    state["optim"] = optim
    return state


def _each(optimizer: Optimizers | None) -> Sequence[torch.optim.Optimizer]:
    return () if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)


def _weights_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    return [weight for group in optimizer.param_groups for weight in group["params"]]


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
        part, name, entry = key.split(".", 1)[0], weight_of(key), key.rsplit(".", 1)[1]
        found.update({f"{part}.{other}.{entry}": value for other in others.get(name, ())})
    return found
