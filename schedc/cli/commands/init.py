"""`schedc init`: a first job.toml for a model, a device and a topology, which compiles as it is written."""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from schedc.cli import options
from schedc.errors import InvalidInput
from schedc.io.location import Location, one_line
from schedc.io.outputs import check_outputs, is_standard, write_output
from schedc.spelling import counted
from schedc.units import parse_bandwidth, parse_bytes, parse_duration_ns

if TYPE_CHECKING:
    from schedc.formats.profile_file import LayerEntry

LATENCY_WITHIN = "10 us"
"""Of a message within a site."""
MICROBATCHES_PER_RANK = 4
UNKNOWN_LINK = 'with bandwidth = "25 GB/s" or so: python -m schedc.runtime.links measures it, --device NAME knows some'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Profile:
    """The model's layers, and the file that has them."""

    name: str
    title: str
    layers: tuple[LayerEntry, ...]
    path: Path
    content: str | None
    """What is to be written there; None: it is there."""
    notes: tuple[str, ...] = ()
    """What to know of the prediction."""


def init_command(
    output: Annotated[Path, options.output_to("JOB", "Where to write the job; - is standard output.")],
    ranks: Annotated[int | None, Option(min=1, max=2**14, help="Pipeline ranks. Required without --tune.")] = None,
    tune: Annotated[
        bool, Option("--tune", help="Write a job of schedc tune instead, of --model, --device, --devices and --batch.")
    ] = False,
    devices: options.DevicesOption = None,
    batch: options.BatchOption = None,
    model: Annotated[
        str | None, Option(metavar="NAME|CONFIG.json", help="As of schedc costs; its profile is written beside the job.")
    ] = None,
    profile: Annotated[Path | None, Option(metavar="PROFILE", help="A profile.json instead, which you have.")] = None,
    device: Annotated[
        str | None, Option(metavar="NAME", help="Whose memory and links there are. Default: h100; with --profile none is assumed.")
    ] = None,
    tp: options.TensorOption = 1,
    cp: options.ContextOption = 1,
    ep: options.ExpertOption = 1,
    microbatch: options.MicrobatchOption = 1,
    sequence: options.SequenceOption = None,
    microbatches: Annotated[int | None, Option(min=1, help="In a training step. Default: 4 for each rank.")] = None,
    sites: options.SitesOption = 1,
    latency: options.LatencyOption = None,
    bandwidth: options.BandwidthOption = None,
    bytes_per_parameter: Annotated[
        float,
        Option(min=0, max=2**20, help="Held all the time: 18 for Adam in mixed precision with 32-bit gradients, less with ZeRO."),
    ] = 18,
    bytes_per_expert_parameter: Annotated[
        float | None, Option(min=0, max=2**20, help="The same for routed experts. Default: --bytes-per-parameter.")
    ] = None,
    reserve: Annotated[
        str | None, Option(metavar="SIZE", help="Of the device's memory, what no plan uses. Default: 6 % of it.")
    ] = None,
    memory_limit: Annotated[
        str | None, Option(metavar="SIZE", help="For activations on a rank. Default: what the device leaves for them.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Replace files that exist.")] = False,
) -> None:
    """Write a commented job for a model, a device and a topology; it compiles as it is."""
    from schedc.costs.devices import RESERVE, device_named
    from schedc.frontend.first_job import Noted, first_job

    checked = (
        ("--latency", latency, parse_duration_ns),
        ("--bandwidth", bandwidth, parse_bandwidth),
        ("--reserve", reserve, parse_bytes),
        ("--memory-limit", memory_limit, parse_bytes),
    )
    for option, text, parse in checked:
        if text is not None:
            options.option_value(option, text, parse)
    if tune:
        if model is None or devices is None or batch is None or ranks is not None or profile is not None:
            raise InvalidInput("--tune: expected --model, --devices and --batch with it, and neither --ranks nor --profile")
        if max(tp, cp, ep, microbatch, microbatches or 1) > 1:
            raise InvalidInput(
                "--tune: found --tp, --cp, --ep, --microbatch or --microbatches, expected none, as these are searched"
            )
        from schedc.study.tune.request import tune_table

        table = tune_table(
            model,
            device or "h100",
            output.parent,
            devices=devices,
            batch=batch,
            sites=sites,
            sequence=sequence,
            latency=latency,
            bandwidth=bandwidth,
        )
        _write_tune(table, output, force=force)
        return
    if ranks is None:
        raise InvalidInput("--ranks: expected it, the number of pipeline ranks; init --tune writes a job that searches for it")
    if devices is not None or batch is not None:
        raise InvalidInput("--ranks: expected it, without --devices and --batch, which are for --tune")
    if (model is None) == (profile is None):
        raise InvalidInput("expected either --model, a name or a config.json, or --profile, a profile.json that exists")
    if sites > ranks:
        raise InvalidInput(f"--sites: found {sites}, expected at most the {ranks} of --ranks")
    if (sites > 1) != (latency is not None or bandwidth is not None):
        raise InvalidInput("expected --sites of 2 or more together with --latency, --bandwidth or both, of the links between them")
    if is_standard(output) and model is not None:
        raise InvalidInput("-o: found -, expected a file, as the model's profile is written beside it")
    if model is not None:
        device = device or "h100"
        known = _predicted(model, device, output, tp=tp, cp=cp, ep=ep, microbatch=microbatch, sequence=sequence)
    else:
        assert profile is not None
        if sequence is not None or max(microbatch, cp, ep) > 1:
            raise InvalidInput(
                "--sequence, --microbatch, --cp and --ep: found one beside --profile, which has its own; expected none"
            )
        known = _read(profile)
    written = {"-o": output, "the profile of -o": known.path if known.content is not None else None}
    read = known.path if model is None else Path(model)
    check_outputs(written, (read,) if read.exists() else (), standard=True)
    for path in written.values():
        if path is not None and not is_standard(path) and not force and os.path.lexists(path):
            raise InvalidInput(f"{path}: found a file, expected none; name another with -o, or replace it with --force")
    accelerator, group = None if device is None else device_named(device), tp * cp
    has_experts = any(layer.expert_parameters for layer in known.layers)
    if bytes_per_expert_parameter is not None and not has_experts:
        found = f"{bytes_per_expert_parameter:g}, expected none, as {known.name} has no experts"
        raise InvalidInput(f"--bytes-per-expert-parameter: found {found}")
    layers = sum(layer.repeat for layer in known.layers)
    if layers < ranks:
        raise InvalidInput(f"--ranks: found {ranks}, expected at most {layers}, as {known.name} has as many layers")
    of_sites = tuple(ranks // sites + (site < ranks % sites) for site in range(sites))  # as even as can be
    of_expert = bytes_per_parameter if bytes_per_expert_parameter is None else bytes_per_expert_parameter
    memory: object = Noted(None, "no --device was given, so memory does not count")
    within = _link(known, LATENCY_WITHIN, None, UNKNOWN_LINK)
    if accelerator is not None:
        memory = Noted(None, "the profile has no activations or no parameters, so memory does not count")
        if any(layer.activation_bytes for layer in known.layers) and any(layer.parameters for layer in known.layers):
            memory = {
                "capacity": f"{accelerator.memory_mib} MiB",
                "reserve": reserve or f"{round(RESERVE * accelerator.memory_mib)} MiB",
                "bytes_per_parameter": float(bytes_per_parameter),
                "bytes_per_expert_parameter": float(of_expert) if has_experts else None,
            }
        is_near = max(of_sites) * group <= accelerator.group  # the largest site
        rate = accelerator.link_bytes_per_s if is_near else accelerator.network_bytes_per_s
        between_what = "between devices of a node" if is_near else "of a device to other nodes"
        within = _link(known, LATENCY_WITHIN, f"{rate / 1e9:g} GB/s", f"{between_what} ({accelerator.title})")
    is_fused = any(layer.is_fused for layer in known.layers)
    given = {
        "name": known.name,
        "pipeline": {
            "ranks": ranks,
            "microbatches": microbatches or MICROBATCHES_PER_RANK * ranks,
            "split_backward": Noted(False, "the profile does not know B and W apart") if is_fused else None,
        },
        "profile": {"path": Noted(_path_from(known, output), "predicted; schedc profile measures" * (known.content is not None))},
        "memory": memory if memory_limit is None else {"limit": memory_limit},
        "topology": {
            "sites": of_sites,
            "within": within,
            "between": _between(known, latency, bandwidth, group) if sites > 1 else None,
        },
    }
    text = first_job(f"{known.title}, on {counted(ranks, 'rank')}" + (f" in {sites} sites" if sites > 1 else ""), given)
    _check_compiles(text, known, output)
    if known.content is not None:
        write_output(known.path, known.content.encode())
    write_output(output, text.encode())
    if not is_standard(output):
        files = " and ".join(one_line(str(path)) for path in written.values() if path is not None)
        typer.echo(f"wrote {files}; schedc compile {one_line(str(output))} -o plan.json makes a plan")
        for note in known.notes:
            typer.echo(f"note: {note}")


def _write_tune(table: dict[str, Any], output: Path, *, force: bool) -> None:
    """A job of `tune`, which is read as it would be."""
    from schedc.frontend.first_job import first_job
    from schedc.frontend.job_source import source_of_table
    from schedc.frontend.tune_file import TuneFile
    from schedc.study.tune.request import read_request

    if not is_standard(output) and not force and os.path.lexists(output):
        raise InvalidInput(f"{output}: found a file, expected none; name another with -o, or replace it with --force")
    request = read_request(source_of_table(table, directory=output.parent, name="the options"))
    check_outputs({"-o": output}, request.files, standard=True)
    name = table["model"].get("name") or table["model"]["config"]
    title = f"{name} on {counted(sum(request.choices.sites), 'device')}: {table['model']['device']}"
    write_output(output, first_job(one_line(title), table, TuneFile).encode())
    if not is_standard(output):
        typer.echo(f"wrote {one_line(str(output))}; schedc tune {one_line(str(output))} -o tuned says what to run")


def _predicted(
    model: str, device: str, output: Path, *, tp: int, cp: int, ep: int, microbatch: int, sequence: int | None
) -> _Profile:
    from schedc.costs.predicted import predicted

    made = predicted(model, device, tp=tp, cp=cp, ep=ep, microbatch=microbatch, sequence=sequence)
    content = made.profile_json()
    path = output.with_name(f"{output.stem}.profile.json")
    return _Profile(name=made.architecture.name, title=made.title, layers=made.layers, path=path, content=content, notes=made.notes)


def _read(path: Path) -> _Profile:
    from schedc.formats.profile_file import ProfileFile
    from schedc.io.conform import conform
    from schedc.io.input_file import read_bytes
    from schedc.io.tables import parse_json

    file = conform(parse_json(read_bytes(path), str(path)), ProfileFile, Location(str(path)))
    name = one_line(path.stem if path.stem != "profile" else path.resolve().parent.name)
    return _Profile(name=name, title=one_line(file.model) or name, layers=file.layers, path=path, content=None)


def _path_from(profile: _Profile, job: Path) -> str:
    """The profile's path as the job has it: relative to the job's folder unless it is absolute.

    Raises:
        InvalidInput: a job cannot have it.
    """
    path = str(profile.path)
    if profile.content is not None:
        path = profile.path.name
    elif not profile.path.is_absolute():
        path = os.path.relpath(profile.path, job.parent)
    if not path.isprintable():
        raise InvalidInput(f"found the path {path!r} of a profile, expected printable text")
    return path


def _between(profile: _Profile, latency: str | None, bandwidth: str | None, group: int) -> dict[str, Any]:
    """The link between two sites. A job's messages are those of one device, so it has one device's part of the bandwidth."""
    note = "one direction, shared by all ranks"
    if bandwidth is not None and group > 1:
        note = f"{note}; of {bandwidth.strip()}, as each of a rank's {group} devices sends a message"
        part = max(1, parse_bandwidth(bandwidth) // group) / 1e9
        bandwidth = f"{part:.9f}".rstrip("0").rstrip(".") + " GB/s"
    return _link(profile, latency, bandwidth, note)


def _link(profile: _Profile, latency: str | None, bandwidth: str | None, note: str) -> dict[str, Any]:
    """The link, with a note about its bandwidth; without one where the profile does not say how large messages are."""
    from schedc.frontend.first_job import Noted

    is_sized = all(layer.message_bytes for layer in profile.layers[:-1]) and (
        profile.layers[-1].repeat == 1 or profile.layers[-1].message_bytes
    )
    if bandwidth is not None and not is_sized:
        if latency is None:
            raise InvalidInput(f"--bandwidth: found {bandwidth!r}, expected --latency, as layers of {profile.path} have no message")
        bandwidth, note = None, f"bandwidth = {bandwidth!r}, if the profile's layers had messages"
    return {"latency": Noted(latency, "" if bandwidth else note), "bandwidth": Noted(bandwidth, note)}


def _check_compiles(text: str, profile: _Profile, output: Path) -> None:
    """Refuse a job of this text that cannot be compiled.

    Raises:
        InvalidInput: it has no room for what stages hold all the time, or a value cannot be used.
        Infeasible: it has no room for one microbatch.
    """
    from schedc.compile.driver import check_feasible
    from schedc.frontend.job import checked_job
    from schedc.frontend.job_source import source_of_table

    with TemporaryDirectory() as folder:
        directory = output.parent
        if profile.content is not None:
            directory = Path(folder)
            (directory / profile.path.name).write_text(profile.content, encoding="utf-8")
        try:
            job = checked_job(source_of_table(tomllib.loads(text), directory=directory, name=profile.name))
        except InvalidInput as error:
            if "memory.capacity" not in str(error):
                raise
            advice = "more --ranks or --tp, less --bytes-per-parameter (ZeRO), or another --device"
            raise InvalidInput(f"{profile.title}: no room: {str(error).partition('; ')[0]}; {advice}") from error
        check_feasible(job.problem)
