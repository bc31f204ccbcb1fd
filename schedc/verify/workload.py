"""What must hold between the fields of a Workload. Takes a workload; gives every violation, none if it is sound.

Rules of one value are checked where it is made (`schedc.ir.costs`, `schedc.ir.problem`); what must hold of a layout with it is in
`schedc.verify.layout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir import BLOCKS, Objective, Semantics, Workload
from schedc.verify.network import NETWORK
from schedc.verify.violation import Checks, Found, Violation, edge_faults, negative, slice_faults, too_few

if TYPE_CHECKING:
    from enum import StrEnum

CHECKS: Checks[[Workload]] = Checks()


def verify_workload(workload: Workload) -> tuple[Violation, ...]:
    """Every rule of a workload that is broken, with its place; empty if the workload is sound."""
    return CHECKS.broken(workload) + NETWORK.broken(workload.network, workload.ranks)


@CHECKS
def check_counts(workload: Workload) -> Found:
    """There is at least one microbatch, layer and device."""
    yield from too_few(microbatches=workload.microbatches, layers=len(workload.layers), devices=len(workload.devices))


@CHECKS
def check_microbatch_costs(workload: Workload) -> Found:
    """Durations are one for all microbatches, or one for each."""
    for index, layer in enumerate(workload.layers):
        for kind in BLOCKS:
            count = len(layer.durations_ns(kind))
            if count not in (1, workload.microbatches):
                message = f"expected 1 duration of {kind.name}, or {workload.microbatches}, one per microbatch; found {count}"
                yield f"layers[{index}]", message
        again = layer.forward_again_ns
        if again is not None and (len(again) not in (1, workload.microbatches) or min(again) < 0):
            message = f"expected 1 duration of at least 0, or {workload.microbatches}, one per microbatch; found {again}"
            yield f"layers[{index}].forward_again_ns", message


@CHECKS
def check_layer_values(workload: Workload) -> Found:
    """No layer has fewer than 0 parameters or bytes, nor more parameters of experts, or of its durations, than in all."""
    for index, layer in enumerate(workload.layers):
        for name in ("parameters", "expert_parameters", "static_bytes", "state_gradient_bytes"):
            value = getattr(layer, name)
            if value < 0:
                yield f"layers[{index}].{name}", f"expected at least 0, found {value}"
        if min(layer.fixed, *layer.quadratic) < 0 or layer.fixed + max(layer.quadratic) > 1:
            yield f"layers[{index}].fixed", f"expected shares from 0, at most 1 in all, found {layer.fixed} and {layer.quadratic}"
        if layer.expert_parameters > max(0, layer.parameters):
            yield f"layers[{index}].expert_parameters", f"expected at most all {layer.parameters}, found {layer.expert_parameters}"


@CHECKS
def check_edges(workload: Workload) -> Found:
    """The edges of a graph go forward, join two layers once, and all of them; equal values have equal sizes."""
    if not workload.edges:
        return
    layers = range(len(workload.layers))
    yield from edge_faults("layer", workload.edges, layers)
    joined = list(layers)  # by layer, the least that is known to be of the same graph

    def least(layer: int) -> int:
        while joined[layer] != layer:
            layer = joined[layer]
        return layer

    for edge in workload.edges:
        if edge.source in layers and edge.destination in layers:
            a, b = sorted((least(edge.source), least(edge.destination)))
            joined[b] = a
    apart = next((layer for layer in layers if least(layer) != 0), None)
    if apart is not None:
        yield "edges", f"none joins layer {apart} with layer 0 over any others; expected one graph"


@CHECKS
def check_ties(workload: Workload) -> Found:
    """A tied weight is in two layers, of steps that end before the next begins, and is summed over links of its own."""
    for index, tie in enumerate(workload.ties):
        if tie.layers[0] == tie.layers[1] or not all(0 <= layer < len(workload.layers) for layer in tie.layers):
            yield f"ties[{index}].layers", f"expected two of the layers 0 to {len(workload.layers) - 1}, found {tie.layers}"
        yield from negative(f"ties[{index}].gradient_bytes", (tie.gradient_bytes,))
    if workload.ties and (workload.updates is not None or (workload.data_parallel and workload.data_parallel.trunk is not None)):
        yield "ties", "are not modelled where steps overlap, nor beside collectives on a trunk"


@CHECKS
def check_modules(workload: Workload) -> Found:
    """Modules have all layers."""
    if workload.modules and (min(workload.modules) < 1 or sum(workload.modules) != len(workload.layers)):
        yield "modules", f"found {list(workload.modules)}, expected numbers above 0 whose sum is the {len(workload.layers)} layers"


@CHECKS
def check_slices(workload: Workload) -> Found:
    """Slices have a length above 0, and microbatches all of them."""
    yield from slice_faults(workload.slices, workload.microbatches)


@CHECKS
def check_chain(workload: Workload) -> Found:
    """Where steps overlap, and of torch, microbatches are whole and layers a chain."""
    given = "edges" if workload.edges else "slices"
    if (workload.edges or workload.slices) and (workload.updates is not None or workload.semantics is Semantics.TORCH):
        where = "where steps overlap" if workload.updates is not None else "by torch's runtime"
        yield given, f"are not run {where}; expected a chain of whole microbatches"


@CHECKS
def check_positions(workload: Workload) -> Found:
    """Of all layers or of none it is known where in the model they are; each is one or more of the model's layers."""
    known = [layer.position is not None for layer in workload.layers]
    for index, layer in enumerate(workload.layers):
        place = f"layers[{index}].position"
        if known[index] != known[0]:
            yield place, "expected positions of all layers or of none"
        if layer.position is not None and not 0 <= layer.position[0] < layer.position[1]:
            yield place, f"found {layer.position[0]} to {layer.position[1]}, expected one or more layers from 0 on"


@CHECKS
def check_devices(workload: Workload) -> Found:
    """A device has a speed above 0. It says in at most one way what it can hold, and no less than nothing."""
    for rank, device in enumerate(workload.devices):
        if device.speed <= 0:
            yield f"devices[{rank}].speed", f"expected more than 0, found {device.speed}"
        given = {
            name: value for name in ("limit_bytes", "in_flight", "capacity_bytes") if (value := getattr(device, name)) is not None
        }
        if len(given) > 1:
            yield f"devices[{rank}]", f"expected one limit at most, found {' and '.join(given)}"
        for name, value in given.items():
            if value < 0:
                yield f"devices[{rank}].{name}", f"expected at least 0, found {value}"


@CHECKS
def check_static(workload: Workload) -> Found:
    """What stages hold all the time is at least nothing."""
    if not workload.static_bytes:
        yield "static_bytes", "expected one value for every stage or one for each, found none"
    yield from negative("static_bytes", workload.static_bytes)


@CHECKS
def check_collectives(workload: Workload) -> Found:
    """There is a group, and durations that go with the ZeRO stage and are at least 0."""
    given = workload.data_parallel
    if given is None:
        return
    if given.size < 1:
        yield "data_parallel.size", f"expected at least 1, found {given.size}"
    if given.zero_stage not in (0, 1, 3):
        yield "data_parallel.zero_stage", f"expected 0, 1 or 3, found {given.zero_stage}"
    if bool(given.all_gather_ns) != (given.zero_stage > 0):
        message = f"expected durations for ZeRO 1 and 3 and none for ZeRO 0, found {given.all_gather_ns} for {given.zero_stage}"
        yield "data_parallel.all_gather_ns", message
    if not given.reduce_scatter_ns:
        yield "data_parallel.reduce_scatter_ns", "expected one duration for every stage or one for each, found none"
    yield from negative("data_parallel.reduce_scatter_ns", given.reduce_scatter_ns)
    yield from negative("data_parallel.all_gather_ns", given.all_gather_ns)
    for name in ("gathered_bytes", "gradient_bytes"):
        if bool(getattr(given, name)) != (given.zero_stage == 3):
            yield f"data_parallel.{name}", f"expected sizes for ZeRO 3 alone, found {getattr(given, name)} for {given.zero_stage}"
        yield from negative(f"data_parallel.{name}", getattr(given, name))


@CHECKS
def check_names(workload: Workload) -> Found:
    """Semantics and objective are ones that exist."""
    names: tuple[tuple[str, str, type[StrEnum]], ...]
    names = (("semantics", workload.semantics, Semantics), ("objective", workload.objective, Objective))
    for name, value, known in names:
        if not isinstance(value, known):
            yield name, f"expected {' or '.join(known)}, found {value!r}"
