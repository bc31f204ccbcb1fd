"""A tune job read and checked: the layers of one microbatch of each size, the cluster, and the choices.

Takes the source of a job; gives a `TuneRequest`. Whatever is wrong is said in one line that names the key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from schedc.costs.devices import RESERVE, Accelerator, device_named
from schedc.costs.efficiency import ROOFLINE, Efficiency, efficiency_of, sustained
from schedc.costs.layers import Part, parts_of
from schedc.costs.predicted import Predicted, predicted
from schedc.errors import InvalidInput, Unsupported
from schedc.formats.profile_file import ProfileFile
from schedc.frontend.profile import layers_of_entries
from schedc.frontend.tune_file import TuneFile
from schedc.io.conform import conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_json
from schedc.ir import Layer, MessageCost, Semantics, Versions
from schedc.study.loss.delay_table import read_delay_table
from schedc.study.loss.time_to_loss import Measurements, Theory, theory_of
from schedc.study.tune.candidates import Choices, Degrees, divisors
from schedc.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.costs.architecture import Architecture, Setting
    from schedc.frontend.job_source import JobSource

PROFILE = "profile.json"
MICROBATCH_SIZES = (1, 2, 4, 8)
"""What is tried where the job says nothing and has a model by name."""


class OptimizerRates(NamedTuple):
    """Nanoseconds for each parameter."""

    own: Fraction
    """Of those whose state a device has."""
    every: Fraction
    """Of those whose gradient it has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneRequest:
    """A tune job that was read."""

    source: JobSource
    file: TuneFile
    name: str
    choices: Choices
    profiles: dict[int, str]
    """The text of profile.json for each microbatch size, which goes into the folder with the best."""
    layers: dict[int, tuple[Layer, ...]]
    """What it says."""
    sequence: int | None
    """Tokens."""
    within: MessageCost
    """Of one device."""
    between: MessageCost | None
    """Of all devices of a site together."""
    capacity_bytes: int
    """Of a device, as is `reserve_bytes`."""
    reserve_bytes: int
    architecture: Architecture | None
    """None: the layers are measured ones."""
    device: Accelerator | None
    loss: Theory | Measurements | None
    """How many updates reach the loss; None: candidates are compared by their steps."""
    optimizer: OptimizerRates
    rates: Efficiency
    """Which share of the links' bandwidth collectives reach, and how long they take besides."""
    parts: dict[int, tuple[Part, ...]]
    """The layers' operators for each microbatch size; none of layers that were measured."""
    setting: Setting | None
    files: tuple[Path, ...]
    """All files that were read."""

    @property
    def tokens_of_sequence(self) -> int:
        """What counts as tokens of an update; by the theory all candidates have as many."""
        return self.sequence or 1

    @property
    def room_bytes(self) -> int:
        """What a plan may use of a device."""
        return self.capacity_bytes - self.reserve_bytes

    @property
    def shared_parameters(self) -> int:
        """Of a device, in the matrix that embedding and head share, which both layers count; a rank with both holds it once."""
        architecture, setting = self.architecture, self.setting
        return setting.rows(architecture.vocabulary) * architecture.hidden if architecture and setting and architecture.tied else 0

    @property
    def degrees(self) -> Degrees:
        """How ranks and weights are divided."""
        return self.choices.degrees

    @property
    def group(self) -> int:
        """How many devices a rank has."""
        return self.degrees.group


def read_request(source: JobSource) -> TuneRequest:
    """The tune job that a source states.

    Raises:
        InvalidInput: it, or a file that it names, cannot be read or used.
    """
    root = source.place
    file = conform(source.document, TuneFile, root)
    model, tune = file.model, file.tune
    group, device = model.tp * model.cp, None
    for index, devices in enumerate(file.topology.sites):
        if devices % group:
            raise (root / "topology" / "sites" / index).refuse(
                f"{devices} devices", f"a multiple of {group}, as model.tp × model.cp of them make a rank"
            )
    groups = tuple(devices // group for devices in file.topology.sites)
    if model.device is not None:
        try:
            device = device_named(model.device)
        except InvalidInput as error:
            raise (root / "model" / "device").error(str(error)) from error
    sizes = tune.microbatch_sizes
    architecture, setting, parts = None, None, {}
    if tune.profiles is not None:
        sequence, files = model.sequence, _profile_paths(source, file, root)
        sizes = sizes or tuple(sorted(files))
        for index, size in enumerate(sizes):
            if size not in files:
                raise (root / "tune" / "microbatch_sizes" / index).refuse(
                    f"{size}", f"one of tune.profiles: {', '.join(map(str, files))}"
                )
        read = {size: _profile(files[size], model.ep, tune.split_backward) for size in sizes}
        named = tuple(files[size] for size in sizes)
    else:
        sizes = sizes or MICROBATCH_SIZES
        made, named = _predicted(source, file, sizes, root)
        first = next(iter(made.values()))
        sequence, architecture, setting = first.setting.sequence_length, first.architecture, first.setting
        parts = {size: parts_of(each.architecture, each.setting) for size, each in made.items()}
        read = {
            size: (
                each.profile_json(exact=True),
                layers_of_entries(each.layers, Location(PROFILE), split_backward=tune.split_backward),
            )
            for size, each in made.items()
        }
    capacity = file.memory.capacity_bytes or (None if device is None else device.memory_bytes)
    if capacity is None:
        raise (root / "memory" / "capacity").refuse("nothing", 'a size such as "80 GB", or model.device')
    reserve = round(RESERVE * capacity) if file.memory.reserve_bytes is None else file.memory.reserve_bytes
    if reserve >= capacity:
        raise (root / "memory" / "reserve").refuse(format_bytes(reserve), f"less than the capacity, {format_bytes(capacity)}")
    layers = min(len(each) for _, each in read.values())
    within_bandwidth = file.topology.within.bytes_per_second
    if within_bandwidth is None and device is not None:
        within_bandwidth = round(
            device.link_bytes_per_s if max(file.topology.sites) <= device.group else device.network_bytes_per_s
        )
    if within_bandwidth is None:
        raise (root / "topology" / "within" / "bandwidth").refuse("nothing", 'a bandwidth such as "50 GB/s", or model.device')
    between = file.topology.between
    recompute = tune.recompute or (("none",) if tune.semantics is Semantics.TORCH else ("none", "full"))
    own = () if source.path is None else (source.path,)
    loss, of_loss = _loss(source, file, sequence, root)
    rates = ROOFLINE if device is None else efficiency_of(device.name)
    if model.efficiency is not None:  # nothing but FLOPs takes time; bytes take what the links say
        rates = replace(rates, link=1.0, collective_s=0.0)
    parameters = sum(layer.parameters for layer in next(iter(read.values()))[1])
    optimizer = OptimizerRates(Fraction(0), Fraction(0))
    if file.loss is not None and file.loss.update_ns is not None:
        optimizer = OptimizerRates(Fraction(file.loss.update_ns, max(1, parameters)), Fraction(0))
    elif device is not None and model.efficiency is None:
        optimizer = _optimizer(file, 1e9 / (rates.memory * device.memory_bytes_per_s))
    return TuneRequest(
        source=source,
        file=file,
        name=file.name or source.default_name,
        choices=Choices(
            groups_of_site=groups,
            batch=_batch(file, sequence, root),
            layers=layers,
            ranks=tune.ranks or tuple(each for each in divisors(sum(groups)) if each <= layers),
            microbatch_sizes=sizes,
            placements=tune.placements,
            chunks=tune.chunks,
            zero_stages=tune.zero_stages,
            recompute=recompute,
            across_sites=tune.across_sites,
            degrees=Degrees(tensor=model.tp, context=model.cp, expert=model.ep, expert_tensor=model.etp or model.tp),
            overlaps=_overlaps(file),
            step_microbatches=tune.step_microbatches or (("all",) if isinstance(loss, Theory) else (1, "all")),
        ),
        profiles={size: text for size, (text, _) in read.items()},
        layers={size: each for size, (_, each) in read.items()},
        sequence=sequence,
        within=MessageCost(latency_ns=file.topology.within.latency_ns, bytes_per_second=within_bandwidth),
        between=None if between is None else MessageCost(latency_ns=between.latency_ns, bytes_per_second=between.bytes_per_second),
        capacity_bytes=capacity,
        reserve_bytes=reserve,
        architecture=architecture,
        device=device,
        loss=loss,
        optimizer=optimizer,
        rates=rates,
        parts=parts,
        setting=setting,
        files=(*own, *named, *of_loss),
    )


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


def _predicted(
    source: JobSource, file: TuneFile, sizes: tuple[int, ...], root: Location
) -> tuple[dict[int, Predicted], tuple[Path, ...]]:
    """The model's layers for each microbatch size, and the file that the model is in, if it is in one."""
    model, at = file.model, root / "model"
    assert model.device is not None, "a rule of the file"
    path = None if model.config is None else source.directory / model.config
    made = {}
    for size in sizes:
        try:
            made[size] = predicted(
                model.name or str(path),
                model.device,
                tp=model.tp,
                cp=model.cp,
                ep=model.ep,
                etp=model.etp,
                context_exchange=model.context_exchange,
                framework=model.framework,
                microbatch=size,
                sequence=model.sequence,
                selective_recompute=model.recompute == "selective",
                split_backward=file.tune.split_backward,
                rates=None if model.efficiency is None else sustained(model.efficiency),
            )
        except InvalidInput as error:
            said = str(error) if path is None else f"found {show(model.config)}; {error}"
            raise (at / ("name" if path is None else "config")).error(said) from error
        except Unsupported as error:
            raise at.error(str(error)) from error
    return made, () if path is None else (path,)


def _profile_paths(source: JobSource, file: TuneFile, root: Location) -> dict[int, Path]:
    """The paths of the profiles, by microbatch size."""
    at, given = root / "tune" / "profiles", file.tune.profiles
    paths = {}
    for key, name in given.items():
        if not (key.isascii() and key.isdigit() and int(key) > 0):
            raise at.refuse(f"the microbatch size {show(key)}", "a whole number of at least 1")
        if not isinstance(name, str):
            raise (at / key).refuse(show(name), "the path of a profile.json")
        paths[int(key)] = source.directory / name
    return paths


def _profile(path: Path, expert_parallel: int, split_backward: bool) -> tuple[str, tuple[Layer, ...]]:
    """The text and the layers of a profile.json that has all that tuning needs."""
    content = read_bytes(path)
    place = Location(str(path))
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
    return content.decode("utf-8-sig"), layers_of_entries(layers, place, split_backward=split_backward)
