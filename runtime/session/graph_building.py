"""Layers that are a graph as the stages of one rank of a plan: which values of layers go over each edge between stages.

Takes the layers' graph as a job or a profile.json says it, and a plan; gives stages that `stage.graph` can call. A layer is called
as the profiler calls it (docs/measuring.md): with what its edges carry, one value after another; it gives its output, or a dict.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput, Unsupported
from schedc.formats.graph_entries import LayerEdge, LayerJoint, ModuleEntry, joints_of
from schedc.io.conform import conform
from schedc.io.location import Location
from schedc.runtime.common.boundary import tensors_of
from schedc.runtime.session.layers import Layers
from schedc.runtime.stage.named import taken_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import torch

    from schedc.ir import Plan

Key = tuple[int, str]
"""A value of the model: the layer that gives it, and its name."""


class LayerGraph:
    """What layers take of each other, and so what goes from stage to stage."""

    def __init__(self, modules: Sequence[Any], edges: Sequence[Any], plan: Plan, bounds: Sequence[tuple[int, int]]) -> None:
        """Look at the graph.

        Modules are as a job's `[[module]]`, edges as its `[[edge]]`, or dicts with these keys; sizes do not matter. `bounds` has
        the layers of each stage, first and last + 1.

        Raises:
            InvalidInput: a graph that cannot be, or another than that of the plan.
            Unsupported: the plan has two paths, or slices.
        """
        places, count = (Location("modules of the model"), Location("edges of the model")), bounds[-1][1]
        named = [
            each if isinstance(each, ModuleEntry) else conform(each, ModuleEntry, places[0] / at) for at, each in enumerate(modules)
        ]
        joined = [
            each if isinstance(each, LayerEdge) else conform(each, LayerEdge, places[1] / at) for at, each in enumerate(edges)
        ]
        parts = plan.problem.ranks if named and count == sum(module.layers for module in named) + plan.problem.ranks else 0
        joints = _with_parts(joints_of(named, joined, count - parts, places), count - 1 - parts, parts)
        self.is_chain = [joint[:2] for joint in joints] == [*pairwise(range(count))] and all(
            joint.entry is None or joint.entry.gradient for joint in joints
        )
        if (len(plan.problem.paths) > 1 or plan.problem.slices) and not self.is_chain:
            what = "microbatches in slices" if plan.problem.slices else "a bidirectional placement"
            raise Unsupported(
                f"plan {plan.name!r} has {what}, and the layers are a graph of modules; compile without,"
                " or give load stages of your own (docs/slices-and-split-head.md)"
            )
        self.needs: list[list[Key]] = [
            [(joint.source, joint.value) for joint in joints if joint.destination == at] for at in range(count)
        ]
        """Per layer, what it takes."""
        self.names = [[*dict.fromkeys(joint.value for joint in joints if joint.source == at)] for at in range(count)]
        """Per layer, the names of the values that others take of it; none: it has a loss."""
        self.module_of = [module.name for module in named for _ in range(module.layers)] or ["the model"] * count
        self.module_of += self.module_of[-1:] * parts
        stage_of = {layer: stage for stage, (first, last) in enumerate(bounds) for layer in range(first, last)}
        crossing: dict[tuple[int, int], set[Key]] = {}
        back: dict[tuple[int, int], bool] = {}
        for joint in joints:
            ends = stage_of[joint.source], stage_of[joint.destination]
            if ends[0] != ends[1]:
                crossing.setdefault(ends, set()).add((joint.source, joint.value))
                back[ends] = back.get(ends, False) or joint.entry is None or joint.entry.gradient
        self.carried = {ends: sorted(keys) for ends, keys in crossing.items()}
        """By edge between stages, the values of layers that go over it."""
        self.edges = plan.problem.edges_of(0)
        self.losses: dict[int, tuple[str, ...]] = {}
        for layer, names in enumerate(self.names):
            if not names:
                self.losses[stage_of[layer]] = (*self.losses.get(stage_of[layer], ()), self.module_of[layer])
        alike = {(edge.source, edge.value): self.carried.get((edge.source, edge.destination)) for edge in self.edges}
        found = {(edge.source, edge.destination): edge.has_gradient for edge in self.edges}
        if found != back or any(
            alike[edge.source, edge.value] != self.carried[edge.source, edge.destination] for edge in self.edges
        ):
            raise InvalidInput(
                f"plan {plan.name!r}: its stages take of each other {_listed(found)}, by the modules and edges given they do so"
                f" {_listed(back)}; give build_stages those of the plan's job"
            )


def _with_parts(joints: Sequence[LayerJoint], head: int, parts: int) -> list[LayerJoint]:
    """The edges between layers where the last one, the head, is split into this many parts, and a join behind them."""
    if not parts:
        return [*joints]
    split = [joint._replace(destination=head + part) for joint in joints if joint.destination == head for part in range(parts)]
    to_join = [LayerJoint(head + part, head + parts, None, Location("")) for part in range(parts)]
    return [*(joint for joint in joints if joint.destination != head), *split, *to_join]


def _listed(edges: Iterable[tuple[int, int]]) -> str:
    return ", ".join(f"{source}→{destination}" for source, destination in sorted(edges))


class GraphLayers(Layers):
    """Layers of a graph as one stage."""

    begins: tuple[str, ...]
    """The modules that begin with the batch here."""
    losses_of_model: Mapping[int, tuple[str, ...]]
    """By stage of the plan, the modules that end in a loss."""
    takes_targets: str
    """The module whose targets it takes, as it has a part of its head; empty: none."""

    def wire(self, graph: LayerGraph, stage: int, first: int) -> GraphLayers:
        """Take its place in the graph: which stage it is, and its first layer; the stage itself."""
        self._graph, self._first = graph, first
        self._into = [graph.carried[edge.source, stage] for edge in graph.edges if edge.destination == stage]
        self._values = {edge.value: graph.carried[stage, edge.destination] for edge in graph.edges if edge.source == stage}
        own = range(first, first + len(self))
        self.begins = tuple(graph.module_of[layer] for layer in own if not graph.needs[layer])
        self.losses_of_model = graph.losses
        wanting = [graph.module_of[at] for at, layer in zip(own, self, strict=True) if getattr(layer, "takes_targets", False)]
        self.takes_targets = "".join(wanting[:1])
        return self

    def forward(
        self,
        *taken: Any,
        inputs: Mapping[str, Sequence[torch.Tensor]] = MappingProxyType({}),
        targets: object = None,
        **kwargs: Any,
    ) -> dict[int | str, Any]:
        """What its losses are computed of, by module, and its values by number.

        `taken` has the tensors of each edge in, in the order of the edges; `inputs` are of the modules that begin with the batch.
        """
        graph, known, found = self._graph, dict[Key, Any](), dict[int | str, Any]()
        for keys, tensors in zip(self._into, taken, strict=True):
            known.update({keys[0]: tensors} if len(keys) == 1 else {key: (one,) for key, one in zip(keys, tensors, strict=True)})
        for number, layer in enumerate(self, self._first):
            needs, names, module = graph.needs[number], graph.names[number], graph.module_of[number]
            values = [tensor for key in needs for tensor in known[key]] if needs else inputs[module]
            more = {"targets": targets} if getattr(layer, "takes_targets", False) else {}
            given = layer(*values, **more, **taken_by(layer, kwargs))
            if not names:
                found[module] = given
                continue
            if len(names) == 1 and not (isinstance(given, Mapping) and names[0] in given):
                given = {names[0]: given}
            if not isinstance(given, Mapping) or not given.keys() >= {*names}:
                what = f"a dict with {[*given]}" if isinstance(given, Mapping) else f"a {type(given).__name__}"
                raise InvalidInput(f"layer {number} gives {what}, expected a dict with {names}, the values of its edges")
            known.update({(number, name): tensors_of(given[name], f"value {name!r} of layer {number}") for name in names})
        for value, keys in self._values.items():
            for key in keys if len(keys) > 1 else ():
                if len(known[key]) != 1:
                    others = ", ".join(f"{name!r} of layer {layer}" for layer, name in keys)
                    raise InvalidInput(
                        f"value {key[1]!r} of layer {key[0]} is {len(known[key])} tensors; expected one, as these go to a stage"
                        f" together: {others}"
                    )
            found[value] = tuple(tensor for key in keys for tensor in known[key])
        return found
