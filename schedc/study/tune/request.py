"""A tune job read and checked: the layers of one microbatch of each size, the cluster, and the choices.

Takes the source of a job; gives a `TuneRequest`. Whatever is wrong is said in one line that names the key.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from schedc.costs.devices import RESERVE, device_named
from schedc.costs.efficiency import ROOFLINE, efficiency_of
from schedc.costs.layers import is_known
from schedc.errors import InvalidInput
from schedc.frontend.tune_file import TuneFile
from schedc.io.conform import conform
from schedc.ir import MessageCost, Semantics, Versions
from schedc.study.loss.delay_table import read_delay_table
from schedc.study.loss.time_to_loss import Measurements, Theory, theory_of
from schedc.study.tune.candidates import Choices
from schedc.study.tune.model_costs import model_costs
from schedc.study.tune.sites import OptimizerRates, SiteDevices
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.costs.architecture import Architecture
    from schedc.costs.devices import Accelerator
    from schedc.costs.efficiency import Efficiency
    from schedc.frontend.job_source import JobSource
    from schedc.io.location import Location
    from schedc.study.tune.degrees import Degrees
    from schedc.study.tune.model_costs import ModelCosts


LESS = 0.02
"""What fused backwards hold less, as a share, to be tried beside split ones: experts' 3 to 15 %, others' 0.2 %, of logits alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """A tune job that was read."""

    source: JobSource
    file: TuneFile
    name: str
    choices: Choices
    sites: tuple[SiteDevices, ...]
    sequence: int | None
    """Tokens."""
    between: MessageCost | None
    """Of all devices of a site together."""
    architecture: Architecture | None
    """None: the layers are measured ones."""
    loss: Theory | Measurements | None
    """How many updates reach the loss; None: candidates are compared by their steps."""
    files: tuple[Path, ...]
    """All files that were read."""

    @property
    def tokens_of_sequence(self) -> int:
        """What counts as tokens of an update; by the theory all candidates have as many."""
        return self.sequence or 1


def tune_table(
    model: str,
    device: str,
    folder: Path,
    *,
    devices: int,
    batch: int,
    sites: int = 1,
    sequence: int | None = None,
    latency: str | None = None,
    bandwidth: str | None = None,
) -> dict[str, Any]:
    """The job of `tune` of what a person has: values by section and key.

    Args:
        model: a known name, or the path of a config.json.
        device: a known name.
        folder: where the job is, from which its paths lead.
        devices: of all sites, which share them.
        batch: sequences of a training step.
        sites: how many there are.
        sequence: its tokens; None: the default of `tune`.
        latency: between sites, as text with a unit; None: 0.
        bandwidth: likewise, of all devices together.

    Raises:
        InvalidInput: the devices are not a whole number for each site, or of the sites and the link between them one is missing.
    """
    if devices % sites:
        raise InvalidInput(f"--devices: found {devices}, expected a multiple of the {sites} of --sites, which share them")
    if (sites > 1) != (bandwidth is not None) or (latency is not None and sites == 1):
        raise InvalidInput("expected --sites of 2 or more together with --bandwidth, of the links between them")
    known = is_known(model)
    of_model = {"name": model} if known else {"config": os.path.relpath(model, folder)}
    return {
        "model": {**of_model, "device": device, **({} if sequence is None else {"sequence": sequence})},
        "tune": {"batch": batch},
        "topology": {
            "sites": [devices // sites] * sites,
            **({} if bandwidth is None else {"between": {"latency": latency or "0 ms", "bandwidth": bandwidth}}),
        },
    }


def read_request(source: JobSource) -> TuneRequest:
    """The tune job that a source states.

    Raises:
        InvalidInput: it, or a file that it names, cannot be read or used.
    """
    root = source.place
    file = conform(source.document, TuneFile, root)
    model, tune = file.model, file.tune
    devices = _devices(file, root)
    table = None if model.table is None else source.directory / model.table
    rates = [efficiency_of(each.name, table if each.name == model.device else None) for each in devices]
    costs = model_costs(source, file, devices, rates)
    sequence = costs.sequence
    of_first = [of(costs.degrees[0], size, False, tune.split_backward) for of in costs.of for size in costs.sizes]
    between = file.topology.between
    recompute = tune.recompute or ("none", *(("selective",) if tune.profiles is None and model.recompute == "none" else ()))
    if tune.recompute is None and tune.semantics is not Semantics.TORCH:
        recompute = (*recompute, "full")
    own = () if source.path is None else (source.path,)
    loss, of_loss = _loss(source, file, sequence, root)
    parameters = sum(layer.parameters for layer in of_first[0].layers)
    sites = _sites(file, costs, devices, rates, parameters, root)
    return TuneRequest(
        source=source,
        file=file,
        name=file.name or source.default_name,
        choices=Choices(
            sites=file.topology.sites,
            kinds=tuple(map(sites.index, sites)),
            batch=_batch(file, sequence, root),
            layers=min(len(each.layers) for each in of_first),
            ranks=tune.ranks,
            microbatch_sizes=costs.sizes,
            placements=tune.placements,
            chunks=tune.chunks,
            zero_stages=tune.zero_stages,
            gathers=tune.gathers,
            forms=_forms(file, costs, recompute),
            across_sites=tune.across_sites,
            degrees=costs.degrees,
            overlaps=_overlaps(file),
            step_microbatches=tune.step_microbatches or (("all",) if isinstance(loss, Theory) else (1, "all")),
        ),
        sites=sites,
        sequence=sequence,
        between=None if between is None else MessageCost(latency_ns=between.latency_ns, bytes_per_second=between.bytes_per_second),
        architecture=costs.architecture,
        loss=loss,
        files=(*own, *costs.files, *of_loss),
    )


def _devices(file: TuneFile, root: Location) -> list[Accelerator]:
    """Of each site; none where the layers are measured on devices that nobody named."""
    names, topology, found = file.topology.devices, file.topology, []
    for at in range(len(topology.sites)):
        place = root / "model" / "device" if names is None else root / "topology" / "devices" / at
        name = file.model.device if names is None else names[at]
        if name is None:
            return []
        try:
            device = device_named(name)
        except InvalidInput as error:
            raise place.error(str(error)) from error
        node = device.group if topology.nodes is None else topology.nodes[at]
        found.append(replace(device, group=min(node, topology.sites[at])))
    return found


def _sites(
    file: TuneFile, costs: ModelCosts, devices: Sequence[Accelerator], rates: Sequence[Efficiency], parameters: int, root: Location
) -> tuple[SiteDevices, ...]:
    """What sites have; the same object for those with equal devices."""
    known: dict[object, SiteDevices] = {}
    found: list[SiteDevices] = []
    for at, size in enumerate(file.topology.sites):
        device = devices[at] if devices else None
        own = rates[at] if devices else ROOFLINE
        if file.model.efficiency is not None:  # nothing but FLOPs takes time; bytes take what the links say
            own = replace(own, link=1.0, collective_s=0.0)
        capacity, reserve = (
            values[at] if isinstance(values, tuple) else values
            for values in (file.memory.capacity_bytes, file.memory.reserve_bytes)
        )
        capacity = capacity or (None if device is None else device.memory_bytes)
        if capacity is None:
            raise (root / "memory" / "capacity").refuse("nothing", 'a size such as "80 GB", or model.device')
        reserve = round(RESERVE * capacity) if reserve is None else reserve
        if reserve >= capacity:
            raise (root / "memory" / "reserve").refuse(format_bytes(reserve), f"less than the capacity, {format_bytes(capacity)}")
        bandwidth = file.topology.within.bytes_per_second
        if bandwidth is None and device is not None:
            bandwidth = round(device.link_bytes_per_s if device.group == size else device.network_bytes_per_s)
        if bandwidth is None:
            raise (root / "topology" / "within" / "bandwidth").refuse("nothing", 'a bandwidth such as "50 GB/s", or model.device')
        optimizer = OptimizerRates(Fraction(0), Fraction(0))
        if file.loss is not None and file.loss.update_ns is not None:
            optimizer = OptimizerRates(Fraction(file.loss.update_ns, max(1, parameters)), Fraction(0))
        elif device is not None and file.model.efficiency is None:
            optimizer = _optimizer(file, 1e9 / (own.memory * device.memory_bytes_per_s))
        profiles = str(file.tune.profiles[at]) if isinstance(file.tune.profiles, list) else ""
        same = device, bandwidth, capacity, reserve, profiles
        known.setdefault(
            same,
            SiteDevices(
                costs=costs.of[at],
                device=device,
                rates=own,
                within=MessageCost(latency_ns=file.topology.within.latency_ns, bytes_per_second=bandwidth),
                capacity_bytes=capacity,
                reserve_bytes=reserve,
                optimizer=optimizer,
            ),
        )
        found.append(known[same])
    return tuple(found)


def _forms(file: TuneFile, costs: ModelCosts, recompute: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """What backwards compute again, and whether they are split.

    W needs what selective recomputation does not keep, so this saves memory only where B and W are one. Where nothing is computed
    again, both forms are tried if the fused one holds less by `LESS`; a split one that runs as one has room for what W needs.
    """
    split = file.tune.split_backward
    found = [(each, "split" if split and (each != "selective" or costs.architecture is None) else "fused") for each in recompute]

    def held(each: Degrees, form: bool) -> int:
        return costs.of[0](each, costs.sizes[0], False, form).totals.activation_bytes

    ends = (costs.degrees[0], costs.degrees[-1])
    if split and "none" in recompute and any(held(each, False) <= (1 - LESS) * held(each, True) for each in ends):
        found.insert(1 + found.index(("none", "split")), ("none", "fused"))
    return tuple(found)


def _optimizer(file: TuneFile, byte_ns: float) -> OptimizerRates:
    """Passes over the memory, as Megatron-LM's distributed optimizer makes them.

    Of all gradients that a device has: zeros are written, and what is to be reduced is divided by the replicas (read, written). Of
    those whose state it has: read for the norm, clipped (read, written), read by Adam, which writes the states anew; then the
    weight in 32 bits, a third of these, is read again and written as it is computed with.
    """
    memory = file.memory
    own = 4 * memory.gradient_bytes + 2 * memory.optimizer_bytes + memory.optimizer_bytes / 3 + memory.weight_bytes
    return OptimizerRates(Fraction(own * byte_ns), Fraction(3 * memory.gradient_bytes * byte_ns))


def _overlaps(file: TuneFile) -> tuple[tuple[Versions | None, int | None], ...]:
    """Which weights ops may read, and the most delay; None: steps end."""
    tune = file.tune
    default = ("synchronous",) if file.loss is None or tune.semantics is Semantics.TORCH else ("synchronous", "asynchronous")
    found: list[tuple[Versions | None, int | None]] = []
    for mode in tune.modes or default:
        if mode == "synchronous":
            found.append((None, None))
            continue
        for versions in tune.versions or (Versions.STASH, Versions.TWO_BUFFERED):
            found += (
                [(versions, most) for most in (tune.most_delays or (1,))] if versions is Versions.BOUNDED else [(versions, None)]
            )
    return tuple(found)


def _loss(
    source: JobSource, file: TuneFile, sequence: int | None, root: Location
) -> tuple[Theory | Measurements | None, tuple[Path, ...]]:
    """What says how many updates reach the loss, and the file that it is in, if it is in one."""
    given, at = file.loss, root / "loss"
    if given is None:
        return None, ()
    if given.convergence is not None:
        assert given.error is not None, "a rule of the file"
        measured = source.directory / given.convergence
        return theory_of(measured, error=given.error, learning_rate=given.learning_rate, place=at), (measured,)
    assert given.optimizer is not None and given.tokens is not None, "a rule of the file"
    if sequence is None:
        raise (root / "model" / "sequence").refuse("nothing", "the tokens in a sequence, as loss.tokens counts them")
    path = None if given.delay_table is None else source.directory / given.delay_table
    table = read_delay_table(path)
    table.check(given.optimizer, at / "optimizer")
    return Measurements(table=table, optimizer=given.optimizer, tokens=given.tokens), () if path is None else (path,)


def _batch(file: TuneFile, sequence: int | None, root: Location) -> int:
    """Sequences of a training step."""
    tune, at = file.tune, root / "tune"
    if tune.batch is not None:
        return tune.batch
    assert tune.batch_tokens is not None
    if sequence is None or tune.batch_tokens % sequence:
        expected = "a batch in sequences, or model.sequence" if sequence is None else f"a multiple of the {sequence} of a sequence"
        raise (at / "batch_tokens").refuse(f"{tune.batch_tokens} tokens", expected)
    return tune.batch_tokens // sequence
