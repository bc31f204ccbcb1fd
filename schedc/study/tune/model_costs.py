"""The model of a tune job: what its layers cost by degrees and microbatch size, predicted or measured; which degrees it takes."""

from __future__ import annotations

from functools import cache, partial
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from schedc.costs.architecture import Experts, second_embedding
from schedc.costs.efficiency import sustained
from schedc.costs.layers import architecture_of, parts_of
from schedc.costs.predicted import DEFAULT_SEQUENCE, predicted
from schedc.errors import InvalidInput, Unsupported
from schedc.formats.profile_file import ProfileFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_json
from schedc.spelling import counted
from schedc.study.tune.degrees import Degrees, tried_degrees
from schedc.study.tune.layer_costs import LayerCosts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from schedc.costs.architecture import Architecture
    from schedc.costs.devices import Accelerator
    from schedc.costs.efficiency import Efficiency
    from schedc.frontend.job_source import JobSource
    from schedc.frontend.tune_file import TuneFile

MICROBATCH_SIZES = (1, 2, 4, 8)
"""What is tried where the job says nothing and has a model by name."""


class ModelCosts(NamedTuple):
    """A model as a tune job has it."""

    of: tuple[Callable[[Degrees, int, bool, bool], LayerCosts], ...]
    """Of each site, by degrees, microbatch size, whether B computes norms and activation functions again, and whether W may run
    apart from it."""
    degrees: tuple[Degrees, ...]
    """Those that its dimensions and the sites can be divided by."""
    sizes: tuple[int, ...]
    """Of microbatches."""
    sequence: int | None
    """Tokens."""
    architecture: Architecture | None
    """None: the layers are measured ones."""
    files: tuple[Path, ...]
    """That were read."""


def model_costs(source: JobSource, file: TuneFile, devices: Sequence[Accelerator], rates: Sequence[Efficiency]) -> ModelCosts:
    """Of the file of a source, on the devices of each site, or as measured.

    Raises:
        InvalidInput: a file that it names cannot be read or used, or the model or the sites cannot be divided.
    """
    if file.tune.profiles is not None:
        return _measured(source, file)
    return _predicted(source, file, devices, rates)


def _predicted(source: JobSource, file: TuneFile, devices: Sequence[Accelerator], rates: Sequence[Efficiency]) -> ModelCosts:
    model, at = file.model, source.place / "model"
    path = None if model.config is None else source.directory / model.config
    named, sizes = model.name or str(path), file.tune.microbatch_sizes or MICROBATCH_SIZES
    table = None if model.table is None else source.directory / model.table
    try:
        architecture = architecture_of(named)
    except InvalidInput as error:
        said = str(error) if path is None else f"found {show(model.config)}; {error}"
        raise (at / ("name" if path is None else "config")).error(said) from error
    except Unsupported as error:
        raise at.error(str(error)) from error
    sequence = model.sequence or min(DEFAULT_SEQUENCE, architecture.positions or DEFAULT_SEQUENCE)

    @cache
    def on(device: Accelerator, own: Efficiency, degrees: Degrees, size: int, selective: bool, split: bool) -> LayerCosts:
        made = predicted(
            named,
            device.name,
            tp=degrees.tensor,
            cp=degrees.context,
            ep=degrees.expert,
            etp=degrees.expert_tensor,
            context_exchange=model.context_exchange,
            expert_exchange=model.expert_exchange,
            node=device.group,
            framework=model.framework,
            microbatch=size,
            sequence=sequence,
            selective_recompute=selective or model.recompute == "selective",
            split_backward=split,
            rates=own if model.efficiency is None else sustained(model.efficiency),
        )
        second = second_embedding(architecture)
        return LayerCosts(
            entries=made.layers,
            split_backward=split,
            title=f"{made.title}, predicted",
            parts=parts_of(made.architecture, made.setting),
            setting=made.setting,
            shared_parameters=0 if second is None else made.setting.rows(architecture.vocabulary) * architecture.hidden,
            shared_layer=second or 0,
        )

    blocks = (sublayer for block in architecture.blocks for sublayer in block.sublayers)
    experts = max((each.count for each in blocks if isinstance(each, Experts)), default=0)
    of = tuple(partial(on, *site) for site in zip(devices, rates, strict=True))
    degrees, refused = [], None
    for each in _tried(source, file, sequence, min(device.group for device in devices), experts):
        try:
            of[0](each, sizes[0], False, file.tune.split_backward)
            degrees.append(each)
        except Unsupported as error:
            refused = refused or error
    if not degrees:
        raise at.error(str(refused)) from refused
    return ModelCosts(of, tuple(degrees), sizes, sequence, architecture, tuple(each for each in (path, table) if each))


def _measured(source: JobSource, file: TuneFile) -> ModelCosts:
    root, of_sites = source.place, _profile_paths(source, file)
    sizes = file.tune.microbatch_sizes or tuple(sorted(of_sites[0]))
    for paths, (index, size) in product(of_sites, enumerate(sizes)):
        if size not in paths:
            raise (root / "tune" / "microbatch_sizes" / index).refuse(
                f"{size}", f"one of tune.profiles: {', '.join(map(str, paths))}"
            )
    degrees = _tried(source, file, None, 1, 0)[0]
    files = tuple(dict.fromkeys(paths[size] for paths in of_sites for size in sizes))
    read = {path: _profile(path, degrees.expert, file.tune.split_backward) for path in files}
    first = read[files[0]]
    for path, costs in read.items():
        if len(of_sites) > 1 and [each.parameters for each in costs.layers] != [each.parameters for each in first.layers]:
            raise Location(str(path)).refuse("layers with other parameters", f"those of {files[0]}, as it is the same model")

    def of_site(paths: dict[int, Path]) -> Callable[[Degrees, int, bool, bool], LayerCosts]:
        return lambda _degrees, size, _selective, _split: read[paths[size]]

    of = tuple(map(of_site, of_sites if len(of_sites) > 1 else of_sites * len(file.topology.sites)))
    return ModelCosts(of, (degrees,), sizes, file.model.sequence, None, files)


def _tried(source: JobSource, file: TuneFile, sequence: int | None, node: int, experts: int) -> tuple[Degrees, ...]:
    sites = file.topology.sites
    tried = tried_degrees(file.model, sites, sequence=sequence, node=node, experts=experts)
    if not tried:
        least, experts = _least(file.model.tp) * _least(file.model.cp), _least(file.model.ep)
        index = next((at for at, devices in enumerate(sites) if devices % least), None)
        if index is None:
            raise (source.place / "model" / "ep").refuse(str(experts), f"at most {sum(sites)}, as many devices as there are")
        raise (source.place / "topology" / "sites" / index).refuse(
            counted(sites[index], "device"), f"a multiple of {least}, as model.tp × model.cp of them make a rank"
        )
    return tried


def _least(sizes: int | tuple[int, ...] | None) -> int:
    return min(sizes) if isinstance(sizes, tuple) else sizes or 1


def _profile_paths(source: JobSource, file: TuneFile) -> list[dict[int, Path]]:
    """The paths of the profiles, by microbatch size: for all sites, or for each."""
    at, given = source.place / "tune" / "profiles", file.tune.profiles
    found = []
    for table in given if isinstance(given, list) else [given]:
        for key, name in table.items():
            if not (key.isascii() and key.isdigit() and int(key) > 0):
                raise at.refuse(f"the microbatch size {show(key)}", "a whole number of at least 1")
            if not isinstance(name, str):
                raise (at / key).refuse(show(name), "the path of a profile.json")
        found.append({int(key): source.directory / name for key, name in table.items()})
    return found


def _profile(path: Path, expert_parallel: int, split_backward: bool) -> LayerCosts:
    """Of a profile.json that has all that tuning needs."""
    place = Location(str(path))
    content = read_bytes(path)
    profile = conform(parse_json(content, str(path)), ProfileFile, place)
    if profile.modules or profile.edges:
        raise place.refuse(
            "layers that are a graph (modules, edges)", "a chain of layers, as `schedc tune` compares layouts of these"
        )
    layers = profile.layers
    if not any(layer.parameters for layer in layers):
        raise (place / "layers").refuse("no parameters", "parameters of each layer, for memory and data parallelism")
    if expert_parallel > 1 and not any(layer.expert_parameters for layer in layers):
        raise (place / "layers").refuse("no expert_parameters", "those of each layer, as model.ep divides the replicas of experts")
    if not any(layer.activation_bytes for layer in layers):
        raise (place / "layers").refuse("no activation", "activation of each layer, for memory")
    for index, layer in enumerate(layers):
        if layer.is_fused and split_backward:
            expected = "the times of B and W, as they may run apart; profile with B and W apart, or set tune.split_backward = false"
            raise (place / "layers" / index / "backward_input").refuse("a backward measured fused alone", expected)
        if not layer.message_bytes and (index < len(layers) - 1 or layer.repeat > 1):
            raise (place / "layers" / index / "message").refuse("nothing", 'a size such as "64 MiB", as a stage may end there')
    text = content.decode("utf-8-sig")
    return LayerCosts(entries=layers, split_backward=split_backward, title=profile.model, text=text, file=str(path))
