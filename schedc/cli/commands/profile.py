"""`schedc profile`: a profile.json from a model that is measured layer by layer, or from the traces of a torch pipeline.

torch is imported only where a model is measured.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.comparison.times import SampledTimes
    from schedc.formats.profile_file import LayerEntry


class DeviceName(StrEnum):
    """Where a model is measured."""

    cpu = "cpu"
    cuda = "cuda"


class NumberType(StrEnum):
    """Floating types, by torch's names and the usual short ones."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"
    float64 = "float64"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    fp64 = "fp64"


OutputOption = Annotated[
    Path, typer.Option("-o", "--output", metavar="PROFILE", help="Where to write the profile (JSON); - is standard output.")
]
TracesOption = Annotated[
    list[Path] | None,
    typer.Option(metavar="TRACE", help="Read the PP: spans of torch.profiler traces instead; one trace per rank."),
]


def profile_command(
    output: OutputOption,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FACTORY", help="Measure the schedc.runtime.profiling.Model that this function returns."),
    ] = None,
    from_trace: TracesOption = None,
    device: Annotated[DeviceName | None, typer.Option(help="Where to measure. Default: cuda where there is one.")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each phase.")] = 20,
    warmup: Annotated[int, typer.Option(min=1, help="Untimed runs before these.")] = 5,
    dtype: Annotated[NumberType | None, typer.Option(help="Cast parameters and inputs to this type.")] = None,
    autocast: Annotated[NumberType | None, typer.Option(help="Run under torch.autocast with this type.")] = None,
    merge: Annotated[bool, typer.Option(help="Write equal layers in a row as one entry with repeat, or each layer.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
) -> None:
    """Measure a model's layers (F, B, W, memory) and write them as a profile for jobs."""
    from schedc.io.outputs import check_outputs

    if (model is None) == (not from_trace):
        raise InvalidInput("expected either --model, to measure, or --from-trace, to read what a torch pipeline has recorded")
    check_outputs({"-o": output}, from_trace or (), standard=True, as_json=as_json)
    if model is None:
        _from_traces(from_trace or [], output, as_json)
    else:
        _measure(
            model, device, output, dtype=dtype, autocast=autocast, repeats=repeats, warmup=warmup, merge=merge, as_json=as_json
        )


def _measure(
    spec: str,
    device: DeviceName | None,
    output: Path,
    *,
    dtype: NumberType | None,
    autocast: NumberType | None,
    repeats: int,
    warmup: int,
    merge: bool,
    as_json: bool,
) -> None:
    from schedc.formats.profile_file import profile_json
    from schedc.io.outputs import check_outputs, write_output
    from schedc.runtime.profiling import load_model, merged, profile_layer, profile_model, warnings
    from schedc.runtime.profiling.named import described, device_named, dtype_named
    from schedc.view.terminal.profile import ProfileRow, print_profile, telling
    from schedc.view.terminal.results import print_json

    where = device_named(device)
    loaded = load_model(spec)
    source = getattr(sys.modules[spec.partition(":")[0]], "__file__", None)
    check_outputs({"-o": output}, () if source is None else (Path(source),), standard=True)
    types = {"dtype": dtype_named(dtype), "autocast": dtype_named(autocast)}
    with telling(as_json) as on_layer:
        measured = profile_model(loaded, device=where, repeats=repeats, warmup=warmup, on_layer=on_layer, **types)
    written = merged(measured) if merge else measured
    layers = [profile_layer(layer) for layer in written]
    write_output(output, profile_json(layers, model=loaded.name).encode())
    said = warnings(measured, written)
    if as_json:
        entries = [
            {**_entry(layer, found.phases()), "held_bytes": found.held_bytes} for layer, found in zip(layers, written, strict=True)
        ]
        print_json({"model": loaded.name, "measured_on": described(where), "layers": entries, "warnings": list(said)})
    else:
        rows = [ProfileRow(layer, found.phases(), found.parameters) for layer, found in zip(layers, written, strict=True)]
        title = f"{loaded.name or spec}, measured on {described(where)}; medians of {repeats} for each layer"
        print_profile(rows, said, title, output)


def _from_traces(paths: Sequence[Path], output: Path, as_json: bool) -> None:
    from schedc.formats.profile_file import profile_json
    from schedc.formats.torch_profiler.profile import PHASES, stage_times, stages_profile
    from schedc.formats.torch_profiler.trace import read_torch_trace
    from schedc.io.outputs import write_output
    from schedc.view.terminal.profile import ProfileRow, print_profile
    from schedc.view.terminal.results import print_json

    traces = [read_torch_trace(path) for path in paths]
    times = stage_times(traces)
    layers, notes = stages_profile(traces, times)
    write_output(output, profile_json(layers, model=f"from traces: {', '.join(path.name for path in paths)}").encode())
    phases = [{PHASES[kind]: found for kind, found in kinds.items()} for kinds in times.values()]
    if as_json:
        entries = [_entry(layer, found) for layer, found in zip(layers, phases, strict=True)]
        print_json({"layers": entries, "warnings": list(notes)})
    else:
        where = "on the GPU" if all(trace.on_gpu for trace in traces) else "on the CPU"
        rows = [ProfileRow(layer, found, None) for layer, found in zip(layers, phases, strict=True)]
        print_profile(rows, notes, f"from {len(traces)} traces, {where}: medians after the first step", output)


def _entry(layer: LayerEntry, phases: dict[str, SampledTimes]) -> dict[str, object]:
    """A layer for machines; what is not known is left out."""
    from msgspec import structs

    return {
        **{name: value for name, value in structs.asdict(layer).items() if value not in (None, "")},
        "spread": {phase: times.spread for phase, times in phases.items()},
        "samples": {phase: len(times.samples_ns) for phase, times in phases.items()},
    }
