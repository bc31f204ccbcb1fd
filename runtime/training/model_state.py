"""What a process has of a model's weights and of its optimizer's state, under the names that they have in the whole model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.common.hooks import shards_of
from schedc.runtime.replicas.buckets import own_part
from schedc.runtime.session.building import layers_of_stage
from schedc.runtime.stage.training import loss_has_weights, losses_of
from schedc.runtime.training.checkpoint_checks import weight_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.runtime.session.pipe import Pipe

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
        if loss_has_weights([pipe.modules[stage]]):
            if sum(map(len, losses_of(pipe.plan.problem, pipe.stages).values())) > 1:
                raise Unsupported(
                    "the model has several losses, and one of them has weights, which have no name in a checkpoint; give model="
                )
            layers["loss_fn"] = pipe.modules[stage].get_submodule("loss_fn")
    return layers


def model_state(pipe: Pipe, optimizer: Optimizers | None, layers: nn.Module) -> dict[str, dict[str, Any]]:
    """What is saved, or loaded into.

    Under ZeRO 1 the optimizer's state, and weights that it has in another type than the modules, are shares.
    """
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict

    from schedc.runtime.training.shares import as_share, module_of_shards, shards_by_name

    known, who = set(layers.parameters()), f"rank {pipe.groups.rank}"
    if not known.issuperset(weight for module in pipe.modules.values() for weight in module.parameters()):
        raise InvalidInput(f"{who}: model= lacks a weight of this rank's stages or loss function")
    state: dict[str, dict[str, Any]] = {"model": get_model_state_dict(layers)}
    owned = shards_of(pipe.hooks)
    shards = shards_by_name(layers, owned or ())
    wider = {name: shard for name, shard in shards.items() if shard.weight.dtype != shard.whole.dtype}
    if wider:
        state["master"] = {name: as_share(shard, shard.weight.detach(), name) for name, shard in wider.items()}
    if optimizer is None:
        return state
    trained = known if owned is None else {shard.weight for shard in owned}
    if not trained.issuperset(weight for one in each_of(optimizer) for weight in weights_of(one)):
        what = "this rank's layers" if owned is None else "this process's shards, pipe.shards() (ZeRO 1)"
        raise InvalidInput(f"{who}: the optimizer has a weight that is not of {what}")
    if not each_of(optimizer):
        if any(weight.requires_grad for weight in trained):
            raise InvalidInput(f"{who}: found an empty list of optimizers and weights that are trained; give their optimizer")
        return state
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    optim = get_optimizer_state_dict(layers if owned is None else module_of_shards(shards), optimizer, options=options)
    for key, value in optim.items():
        if owned is not None and key.startswith("state."):
            optim[key] = as_share(shards[weight_of(key)], value, f"{who}: {key.removeprefix('state.')}")
    state["optim"] = optim
    return state


def set_model_state(
    pipe: Pipe, optimizer: Optimizers | None, layers: nn.Module, state: Mapping[str, dict[str, Any]], begins: dict[str, Any]
) -> None:
    """Take what has been loaded into `model_state`; of weights in `begins` the optimizer has no state yet."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict, set_optimizer_state_dict

    from schedc.runtime.training.shares import Share, module_of_shards, shards_by_name

    options, owned = StateDictOptions(flatten_optimizer_state_dict=True), shards_of(pipe.hooks)
    set_model_state_dict(layers, state["model"], options=options)
    with torch.no_grad():
        for shard in owned or () if "master" not in state else ():  # else they have been loaded into
            shard.weight.copy_(own_part(shard.whole).flatten()[shard.start : shard.stop])
    if optimizer is None or "optim" not in state:
        return
    trained = layers if owned is None else module_of_shards(shards_by_name(layers, owned))
    found: Any = {key: one.values if isinstance(one, Share) else one for key, one in (state["optim"] | begins).items()}
    set_optimizer_state_dict(trained, optimizer, found, options=options)
    for name in {weight_of(key) for key in begins}:
        for one in each_of(optimizer):
            one.state.pop(trained.get_parameter(name), None)


def each_of(optimizer: Optimizers | None) -> Sequence[torch.optim.Optimizer]:
    """One or several."""
    return () if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)


def weights_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """In its order."""
    return [weight for group in optimizer.param_groups for weight in group["params"]]


def under_all_names(layers: nn.Module, optim: dict[str, Any]) -> dict[str, Any]:
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
