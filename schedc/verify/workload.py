"""What must hold between the fields of a Workload. Takes a workload; gives every violation, none if it is sound.

Rules of one value are checked where it is made (`schedc.ir.costs`, `schedc.ir.problem`); what must hold of a layout with it is in
`schedc.verify.layout`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.ir.ops import Kind
from schedc.ir.problem import Objective
from schedc.ir.workload import Semantics, Workload
from schedc.verify.violation import Violation

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import StrEnum


def verify_workload(workload: Workload) -> tuple[Violation, ...]:
    """Every rule of a workload that is broken, with its place; empty if the workload is sound."""
    return tuple(violation for check in _CHECKS for violation in check(workload))


def check_counts(workload: Workload) -> Iterator[Violation]:
    """There is at least one microbatch, layer and device."""
    counts = {"microbatches": workload.microbatches, "layers": len(workload.layers), "devices": len(workload.devices)}
    for name, count in counts.items():
        if count < 1:
            yield Violation("counts", name, f"expected at least 1, found {count}")


def check_microbatch_costs(workload: Workload) -> Iterator[Violation]:
    """Durations are one for all microbatches, or one for each."""
    for index, layer in enumerate(workload.layers):
        for kind in Kind:
            count = len(layer.durations_ns(kind))
            if count not in (1, workload.microbatches):
                message = f"expected 1 duration of {kind.name}, or {workload.microbatches}, one per microbatch; found {count}"
                yield Violation("microbatch-costs", f"layers[{index}]", message)
        again = layer.forward_again_ns
        if again is not None and (len(again) not in (1, workload.microbatches) or min(again) < 0):
            message = f"expected 1 duration of at least 0, or {workload.microbatches}, one per microbatch; found {again}"
            yield Violation("microbatch-costs", f"layers[{index}].forward_again_ns", message)


def check_layer_values(workload: Workload) -> Iterator[Violation]:
    """No layer has fewer than 0 parameters or bytes, nor more parameters of experts than in all."""
    for index, layer in enumerate(workload.layers):
        for name in ("parameters", "expert_parameters", "static_bytes"):
            value = getattr(layer, name)
            if value < 0:
                yield Violation("layer-values", f"layers[{index}].{name}", f"expected at least 0, found {value}")
        if layer.expert_parameters > max(0, layer.parameters):
            message = f"expected at most all {layer.parameters}, found {layer.expert_parameters}"
            yield Violation("layer-values", f"layers[{index}].expert_parameters", message)


def check_positions(workload: Workload) -> Iterator[Violation]:
    """Of all layers or of none it is known where in the model they are; each is one or more of the model's layers."""
    known = [layer.position is not None for layer in workload.layers]
    for index, layer in enumerate(workload.layers):
        place = f"layers[{index}].position"
        if known[index] != known[0]:
            yield Violation("positions", place, "expected positions of all layers or of none")
        if layer.position is not None and not 0 <= layer.position[0] < layer.position[1]:
            message = f"found {layer.position[0]} to {layer.position[1]}, expected one or more layers from 0 on"
            yield Violation("positions", place, message)


def check_devices(workload: Workload) -> Iterator[Violation]:
    """A device has a speed above 0. It says in at most one way what it can hold, and no less than nothing."""
    for rank, device in enumerate(workload.devices):
        if device.speed <= 0:
            yield Violation("devices", f"devices[{rank}].speed", f"expected more than 0, found {device.speed}")
        given = {
            name: value for name in ("limit_bytes", "in_flight", "capacity_bytes") if (value := getattr(device, name)) is not None
        }
        if len(given) > 1:
            yield Violation("devices", f"devices[{rank}]", f"expected one limit at most, found {' and '.join(given)}")
        for name, value in given.items():
            if value < 0:
                yield Violation("devices", f"devices[{rank}].{name}", f"expected at least 0, found {value}")


def check_sites(workload: Workload) -> Iterator[Violation]:
    """Every rank is in a site; sites are counted from 0."""
    sites = workload.network.site_of_rank
    if len(sites) != workload.ranks:
        message = f"expected one site for each of the {workload.ranks} ranks, found {len(sites)}"
        yield Violation("sites", "network.site_of_rank", message)
    for rank, site in enumerate(sites):
        if site < 0:
            yield Violation("sites", f"network.site_of_rank[{rank}]", f"expected at least 0, found {site}")


def check_link_ends(workload: Workload) -> Iterator[Violation]:
    """What is said of two sites or of two ranks is about two that exist."""
    network = workload.network
    sites = max(network.site_of_rank, default=-1) + 1
    for index, between in enumerate(network.site_links):
        for site in (between.source, between.destination):
            if not 0 <= site < sites:
                message = f"site {site} does not exist; the sites are 0 to {sites - 1}"
                yield Violation("link-ends", f"network.site_links[{index}]", message)
        if between.source == between.destination:
            yield Violation("link-ends", f"network.site_links[{index}]", f"expected two sites, found {between.source} twice")
    for index, link in enumerate(network.links):
        for rank in (link.source, link.destination):
            if not 0 <= rank < workload.ranks:
                message = f"rank {rank} does not exist; the ranks are 0 to {workload.ranks - 1}"
                yield Violation("link-ends", f"network.links[{index}]", message)


def check_link_unique(workload: Workload) -> Iterator[Violation]:
    """A directed pair of sites, or of ranks, is described once."""
    network = workload.network
    pairs = {
        "site_links": [(link.source, link.destination) for link in network.site_links],
        "links": [(link.source, link.destination) for link in network.links],
    }
    for name, described in pairs.items():
        first: dict[tuple[int, int], int] = {}
        for index, pair in enumerate(described):
            if pair in first:
                message = f"{pair[0]} to {pair[1]} is already given by {name}[{first[pair]}]"
                yield Violation("link-unique", f"network.{name}[{index}]", message)
            first.setdefault(pair, index)


def check_static(workload: Workload) -> Iterator[Violation]:
    """What stages hold all the time is at least nothing."""
    if not workload.static_bytes:
        yield Violation("static", "static_bytes", "expected one value for every stage or one for each, found none")
    for index, size in enumerate(workload.static_bytes):
        if size < 0:
            yield Violation("static", f"static_bytes[{index}]", f"expected at least 0, found {size}")


def check_collectives(workload: Workload) -> Iterator[Violation]:
    """There is a group, and durations that go with the ZeRO stage and are at least 0."""
    given = workload.data_parallel
    if given is None:
        return
    if given.size < 1:
        yield Violation("collectives", "data_parallel.size", f"expected at least 1, found {given.size}")
    if given.zero_stage not in (0, 1):
        yield Violation("collectives", "data_parallel.zero_stage", f"expected 0 or 1, found {given.zero_stage}")
    if bool(given.all_gather_ns) != (given.zero_stage == 1):
        message = f"expected durations for ZeRO 1 and none for ZeRO 0, found {given.all_gather_ns} for {given.zero_stage}"
        yield Violation("collectives", "data_parallel.all_gather_ns", message)
    if not given.reduce_scatter_ns:
        message = "expected one duration for every stage or one for each, found none"
        yield Violation("collectives", "data_parallel.reduce_scatter_ns", message)
    for name, values in (("reduce_scatter_ns", given.reduce_scatter_ns), ("all_gather_ns", given.all_gather_ns)):
        for index, value in enumerate(values):
            if value < 0:
                yield Violation("collectives", f"data_parallel.{name}[{index}]", f"expected at least 0, found {value}")


def check_names(workload: Workload) -> Iterator[Violation]:
    """Semantics and objective are ones that exist."""
    names: tuple[tuple[str, str, type[StrEnum]], ...]
    names = (("semantics", workload.semantics, Semantics), ("objective", workload.objective, Objective))
    for name, value, known in names:
        if not isinstance(value, known):
            yield Violation("names", name, f"expected {' or '.join(known)}, found {value!r}")


_CHECKS = (
    check_counts,
    check_microbatch_costs,
    check_layer_values,
    check_positions,
    check_devices,
    check_sites,
    check_link_ends,
    check_link_unique,
    check_static,
    check_collectives,
    check_names,
)
