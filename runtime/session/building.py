"""A model's layers as the stages of one rank of a plan; whether all ranks have taken them from the same model."""

from __future__ import annotations

import hashlib
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
from torch import nn
from torch.nn.parameter import is_lazy

from schedc.errors import InvalidInput
from schedc.ir import Plan, Problem
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.layers import Layers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from schedc.formats.graph_entries import LayerEdge, ModuleEntry


def build_stages(
    layers: Iterable[nn.Module],
    plan: Path | str | Plan,
    rank: int | None = None,
    *,
    modules: Sequence[ModuleEntry | Mapping[str, Any]] = (),
    edges: Sequence[LayerEdge | Mapping[str, Any]] = (),
) -> dict[int, Layers]:
    """This rank's stages for `load`, by index: of each the layers that the plan gives it.

    Args:
        layers: the whole model in the order of the forward, as the job's profile or partition counts it: a list of modules, or an
            `nn.Sequential`. Each takes what the one before gives, a tensor or the tensors of a tuple. Where layers of several
            ranks share a weight, `load` ties its copies, as `schedc.runtime.training.ties.tie_weights` does.
        plan: the plan file, or the plan.
        rank: in the pipeline; None: `torch.distributed`'s.
        modules: where the layers are a graph, as the job's `[[module]]` or the profile.json has them: dicts with the same keys, or
            as `schedc.runtime.profiling.ModuleEntry`. A layer takes then what its edges carry, one value after another, as the
            profiler calls it. Batches, targets and loss functions may be dicts by the names of modules.
        edges: likewise, as `[[edge]]` has them.

    Returns:
        The stages, of the modules themselves. Where two of them have the same layers (both paths of a bidirectional placement), the
        second one has copies.

    Raises:
        InvalidInput: the file is no plan of a known version, does not say which layers a stage has, or is for other layers or
            ranks, or another graph.
        Unsupported: the plan has a bidirectional placement or slices, and modules and edges are no chain.
    """
    plan, given = read(plan, verify=False), list(layers)
    known = bounds_of_stages(plan, "compile it with a profile.json or pipeline.partition")
    count = max(last for _, last in known)
    if len(given) != count:
        raise InvalidInput(f"the model has {len(given)} layers, plan {plan.name!r} is for {count}; give build_stages as many")
    rank = dist.get_rank() if rank is None else rank
    if not 0 <= rank < plan.problem.ranks:
        raise InvalidInput(f"this is rank {rank}, plan {plan.name!r} is for the ranks 0 to {plan.problem.ranks - 1}")
    graph = None
    if modules or edges:
        from schedc.runtime.session.graph_building import GraphLayers, LayerGraph

        graph = LayerGraph(modules, edges, plan, known)
    kinds = tuple(map(_kind, given))
    ties = _ties(given, [(each, stage.rank) for each, stage in zip(known, plan.problem.stages, strict=True)])
    stages: dict[int, Layers] = {}
    copied: dict[int, object] = {}  # one for all stages: a weight that two of them share has one copy
    for stage in plan.problem.stages_on(rank):
        first, last = known[stage]
        if graph is not None and not graph.is_chain:
            own: Layers = GraphLayers(*given[first:last]).wire(graph, stage, first)
        elif plan.problem.edges or plan.problem.slices:
            from schedc.runtime.session.row import Row

            own = Row(*given[first:last]).wire(first, sliced=bool(plan.problem.slices))
        else:
            own = Layers(*given[first:last])
        stages[stage] = deepcopy(own, copied) if any(known[stage] == known[other] for other in stages) else own
        stages[stage].layers_of_model = kinds
        names = {weight: name for name, weight in own.named_parameters()}
        stages[stage].ties_of_ranks = {name: names[weight] for name, weight in ties.items() if weight in names}
    return stages


def bounds_of_stages(plan: Plan, remedy: str) -> list[tuple[int, int]]:
    """The layers of each stage, first and last + 1.

    Raises:
        InvalidInput: the plan does not say which these are; says the remedy.
    """
    known = [stage.layers for stage in plan.problem.stages if stage.layers is not None]
    if len(known) < len(plan.problem.stages):
        raise InvalidInput(f"plan {plan.name!r} does not say which layers its stages have; {remedy}")
    return known


def layers_of_stage(plan: Plan, stage: int, module: nn.Module, remedy: str) -> dict[int, nn.Module]:
    """The layers of a stage that is as `build_stages` makes it, by their number in the model.

    Raises:
        InvalidInput: it is another, or the plan does not say which layers it has; says the remedy.
    """
    bounds = plan.problem.stages[stage].layers
    if bounds is None or not isinstance(module, nn.Sequential) or len(module) != bounds[1] - bounds[0]:
        raise InvalidInput(f"stage {stage} is not an nn.Sequential of the layers that the plan gives it; {remedy}")
    return dict(enumerate(module, bounds[0]))


def _kind(layer: nn.Module) -> str:
    """The layer's class and, if it has parameters, a digest of their shapes; equal for layers that these do not tell apart."""
    layer = getattr(layer, "_orig_mod", layer)  # of torch.compile
    shapes = sorted(() if is_lazy(weight) else tuple(weight.shape) for weight in layer.parameters())
    if not shapes:
        return type(layer).__name__
    return f"{type(layer).__name__} {hashlib.sha256(repr(shapes).encode()).hexdigest()[:6]}"


def _ties(layers: Sequence[nn.Module], stages: Iterable[tuple[tuple[int, int], int]]) -> dict[str, nn.Parameter]:
    """The weights that not all ranks have that have a layer with it, by their first name in the whole model.

    Args:
        layers: of the model.
        stages: the layers of each stage, first and last + 1, and its rank.
    """
    ranks: list[set[int]] = [set() for _ in layers]
    for bounds, rank in stages:
        for own in ranks[slice(*bounds)]:
            own.add(rank)
    found: dict[nn.Parameter, tuple[str, list[set[int]]]] = {}
    for number, layer in enumerate(layers):
        for name, weight in layer.named_parameters(str(number)):
            found.setdefault(weight, (name, []))[1].append(ranks[number])
    return {name: weight for weight, (name, where) in found.items() if any(one != where[0] for one in where)}


def unlike_layers(problem: Problem, lists: Sequence[Sequence[str]]) -> str | None:
    """Which rank trains a layer that is elsewhere in the model of another rank; None: none is known to do so.

    A rank's list may have something else in place of layers that it does not train, and its own may be wrapped, with another class,
    or cut, with other shapes. So a list of exactly those layers that are trained, in another order, is a mistake. So is one with
    the shapes of another rank's list in another order, if both have layers with parameters at the same places, and some are alike:
    else each rank may have cut all of its own.

    Args:
        problem: says which rank trains which layers.
        lists: of each rank what each layer of its model is; empty: not known.
    """
    if len(set(map(tuple, lists))) == 1:
        return None
    owners = {layer: stage.rank for stage in problem.stages if stage.layers is not None for layer in range(*stage.layers)}
    trained = [lists[owners[layer]][layer] for layer in sorted(owners) if lists[owners[layer]]]
    shapes = [[kind.partition(" ")[2] for kind in known] for known in lists]
    for rank, known in enumerate(lists):
        others: list[tuple[Sequence[str], Sequence[str], int | None]] = [
            (shapes[rank], shapes[other], other) for other in range(rank) if _may_be_one(shapes[rank], shapes[other])
        ]
        if len(trained) == len(owners):
            others.insert(0, (known, trained, None))
        for own, theirs, at in others:
            if list(own) != list(theirs) and sorted(own) == sorted(theirs):
                layer = next(layer for layer, (one, other) in enumerate(zip(own, theirs, strict=True)) if one != other)
                found, where = (trained, f"{owners[layer]}, which trains it") if at is None else (lists[at], f"{at}")
                return (
                    f"layer {layer} of the model is {known[layer]} on rank {rank}, and {found[layer]} on rank {where};"
                    " give build_stages the same layers in the same order on all ranks"
                )
    return None


def _may_be_one(one: Sequence[str], other: Sequence[str]) -> bool:
    """Whether two lists of shapes may be of one whole model: empty where a layer has no parameters."""
    return [*map(bool, one)] == [*map(bool, other)] and any(own == theirs != "" for own, theirs in zip(one, other, strict=True))
