"""How files say a graph of layers: modules and edges, in a job and in a profile.json; and the edges between layers that they are.

Layers are counted from 0, in the order of the forward. `edges_of_entries` takes the entries and the layers' sizes, and gives the
edges of a Workload: none where the layers are a chain after all.
"""

from __future__ import annotations

import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, NamedTuple, TypeAlias

from msgspec import Meta

from schedc.io.conform import Count, Section, Size, key
from schedc.io.location import Location, show
from schedc.ir import Edge, TiedWeight
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.ir import Layer

Name: TypeAlias = Annotated[str, Meta(min_length=1, pattern=r"^[A-Za-z_][\w-]*$")]
LayerName: TypeAlias = Annotated[str, Meta(min_length=1)] | Annotated[int, Meta(ge=0, le=2**20)]

OUTPUT = "output"
"""What the value is called that each layer of a module gives to the next."""


class ModuleEntry(Section, frozen=True, kw_only=True):
    """A part of the model whose layers are a chain."""

    name: Annotated[Name, key("By which `inputs` and edges name it.")]
    layers: Annotated[Count, key("How many layers it has: those behind the ones of the modules before it.")]
    inputs: Annotated[
        tuple[Name, ...] | None,
        key(
            "The modules whose output its first layer takes; they are before it. `[]`: it begins with the batch. Default: the"
            " module before it."
        ),
    ] = None


class LayerEdge(Section, frozen=True, kw_only=True):
    """A value that one layer takes of another, besides the output of the layer before it."""

    source: Annotated[
        LayerName,
        key("The layer that gives it: its number, or `text.3`, layer 3 of module `text`; `text` is that module's last layer."),
    ]
    destination: Annotated[LayerName, key("The layer that takes it; `text` is that module's first layer.")]
    value: Annotated[
        Name,
        key("What it is called. Edges of one source with the same name carry the same value, which goes to a rank once."),
    ] = OUTPUT
    message_bytes: Annotated[Size | None, key("Its size. Default: the source's `message`.")] = None
    gradient: Annotated[bool, key("Whether a gradient comes back; false: integers, such as token ids.")] = True
    gradient_message_bytes: Annotated[Size | None, key("The gradient's size. Default: the source's, or `message` if given.")] = None


class TiedEntry(Section, frozen=True, kw_only=True):
    """A weight that two layers hold, such as an embedding that is the head's matrix as well."""

    first: Annotated[LayerName, key("A layer that holds it, as in `[[edge]]`; `text` is that module's first layer.")]
    last: Annotated[LayerName, key("The other; `text` is that module's last layer.")]
    gradient_bytes: Annotated[Size, key("What its gradient takes.", example='"1 GiB"')]


def ties_of_entries(
    modules: Sequence[ModuleEntry], ties: Sequence[TiedEntry], layers: int, place: Location
) -> tuple[TiedWeight, ...]:
    """The weights that two layers hold.

    Raises:
        InvalidInput: names that do not exist, or one layer twice.
    """
    first, found = _first_layers(modules, layers, place), []
    for at, entry in enumerate(ties):
        one = _layer(entry.first, first, layers, place / at / "first", last=False)
        other = _layer(entry.last, first, layers, place / at / "last", last=True)
        if one == other:
            raise (place / at / "last").refuse(f"layer {one}, as in `first`", "another layer")
        found.append(TiedWeight(layers=(one, other), gradient_bytes=entry.gradient_bytes))
    return tuple(found)


class LayerJoint(NamedTuple):
    """An edge between two layers, and the entry that says so; None: it is one within or between modules."""

    source: int
    destination: int
    entry: LayerEdge | None
    place: Location

    @property
    def value(self) -> str:
        """What it carries."""
        return OUTPUT if self.entry is None else self.entry.value


def joints_of(
    modules: Sequence[ModuleEntry], edges: Sequence[LayerEdge], layers: int, places: tuple[Location, Location]
) -> tuple[LayerJoint, ...]:
    """The edges between layers: those of each module, its inputs first, then the others.

    Modules are in the order of the forward; none: all layers are one. `edges` are besides those within and between modules;
    `places`, of both, are for errors.

    Raises:
        InvalidInput: modules that do not have all layers, names that do not exist, edges that lead back or are given before, or a
            part of the model that nothing joins with the rest.
    """
    first = _first_layers(modules, layers, places[0])
    found: dict[tuple[int, int], LayerJoint] = {}

    def add(source: int, destination: int, of: LayerEdge | None, place: Location) -> None:
        if source >= destination:
            raise place.refuse(f"an edge from layer {source} to layer {destination}", "one to a layer behind its source")
        if (source, destination) in found:
            raise place.refuse(f"a second edge from layer {source} to layer {destination}", "one, which may carry several tensors")
        found[source, destination] = LayerJoint(source, destination, of, place)

    starts = [*first.values(), layers]
    for at, (begin, end) in enumerate(pairwise(starts)):
        inputs = modules[at].inputs if modules else ()
        before = list(first)[at - 1 : at] if inputs is None else inputs
        for index, other in enumerate(before):
            place = places[0] / at / "inputs" / index
            _known(other, first, place)
            add(starts[list(first).index(other) + 1] - 1, begin, None, place)
        for layer in range(begin, end - 1):
            add(layer, layer + 1, None, places[0] / at / "layers")
    for at, entry in enumerate(edges):
        place = places[1] / at
        source = _layer(entry.source, first, layers, place / "source", last=True)
        add(source, _layer(entry.destination, first, layers, place / "destination", last=False), entry, place)
    _check_joined(found, first, layers, places[0])
    return tuple(found.values())


def edges_of_entries(
    modules: Sequence[ModuleEntry], edges: Sequence[LayerEdge], layers: Sequence[Layer], places: tuple[Location, Location]
) -> tuple[Edge, ...]:
    """The edges between layers; none: they are a chain.

    Arguments are those of `joints_of`, with the layers for their sizes.

    Raises:
        InvalidInput: as `joints_of`, and a value of two sizes.
    """
    if not modules and not edges:
        return ()
    values: dict[int, dict[str, tuple[int, int]]] = {}
    found = []
    for joint in joints_of(modules, edges, len(layers), places):
        source, of, value = joint.source, joint.entry, joint.value
        size, back = layers[source].message_bytes, layers[source].gradient_message_bytes
        if of is not None:
            if of.message_bytes is not None:
                size = back = of.message_bytes
            back = back if of.gradient_message_bytes is None else of.gradient_message_bytes
        named = values.setdefault(source, {})
        number, known = named.setdefault(value, (len(named), size))
        if known != size:
            raise joint.place.refuse(f"{show(value)} of layer {source} with {size} B", f"{known} B, as of an edge before")
        found.append(
            Edge(
                source=source,
                destination=joint.destination,
                message_bytes=size,
                gradient_message_bytes=back if of is None or of.gradient else None,
                value=number,
            )
        )
    pairs = [(edge.source, edge.destination) for edge in found]
    return () if pairs == list(pairwise(range(len(layers)))) and all(edge.has_gradient for edge in found) else tuple(found)


def _first_layers(modules: Sequence[ModuleEntry], layers: int, place: Location) -> dict[str, int]:
    """Per module, its first layer."""
    if not modules:
        return {"": 0}
    names = [module.name for module in modules]
    for at, name in enumerate(names):
        if name in names[:at]:
            raise (place / at / "name").refuse(f"{show(name)} for the second time", "a name of its own")
    total = sum(module.layers for module in modules)
    if total != layers:
        raise place.refuse(f"{total} layers in all", f"{layers}, as many as the profile has")
    return dict(zip(names, accumulate((module.layers for module in modules[:-1]), initial=0), strict=True))


def _known(name: str, first: dict[str, int], place: Location) -> None:
    if name not in first:
        names = [each for each in first if each]
        expected = f"one of {', '.join(names)}{nearest(name, names)}" if names else "a layer's number, as there are no modules"
        raise place.refuse(show(name), expected)


def _layer(name: str | int, first: dict[str, int], layers: int, place: Location, *, last: bool) -> int:
    """The layer that a name means: that of its number, of a number in a module, or a module's last or first one."""
    if isinstance(name, int):
        if name >= layers:
            raise place.refuse(f"layer {name}", f"0 to {layers - 1}")
        return name
    module, dot, number = name.partition(".")
    _known(module, first, place)
    begin = first[module]
    count = min([each for each in first.values() if each > begin], default=layers) - begin
    if not dot:
        return begin + count - 1 if last else begin
    if not re.fullmatch("[0-9]{1,9}", number) or int(number) >= count:
        raise place.refuse(show(name), f"a layer of module {module}, {module}.0 to {module}.{count - 1}")
    return begin + int(number)


def _check_joined(edges: Iterable[tuple[int, int]], first: dict[str, int], layers: int, place: Location) -> None:
    """All layers are one graph."""
    beside: list[list[int]] = [[] for _ in range(layers)]
    for source, destination in edges:
        beside[source].append(destination)
        beside[destination].append(source)
    reached, waiting = {0}, [0]
    while waiting:
        new = set(beside[waiting.pop()]) - reached
        reached |= new
        waiting += new
    if len(reached) < layers:
        apart = next(layer for layer in range(layers) if layer not in reached)
        what = next(f"module {name}" if name else f"layer {apart}" for name, begin in reversed(first.items()) if begin <= apart)
        raise place.refuse(f"nothing that joins {what} with the first layer", "an input or an edge, as the model is one graph")
