"""`schedc profile`: a profile.json from a model that is measured layer by layer, or from the traces of a torch pipeline.

torch is imported only where a model is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from schedc.cli.options import JsonOption, output_to
from schedc.errors import InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import check_outputs, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence


NumberType = Literal["float32", "bfloat16", "float16", "float64", "fp32", "bf16", "fp16", "fp64"]
"""Floating types, by torch's names and the usual short ones."""


def profile_command(
    output: Annotated[Path, output_to("PROFILE", "Where to write the profile (JSON); - is standard output.")],
    model: Annotated[
        str | None, Option(metavar="MODULE:FACTORY", help="Measure the schedc.runtime.profiling.Model that this function returns.")
    ] = None,
    from_trace: Annotated[
        list[Path] | None, Option(metavar="TRACE", help="Read the PP: spans of torch.profiler traces instead; one trace per rank.")
    ] = None,
    device: Annotated[Literal["cpu", "cuda"] | None, Option(help="Where to measure. Default: cuda where there is one.")] = None,
    repeats: Annotated[int, Option(min=1, help="Timed runs of each phase.")] = 20,
    warmup: Annotated[int, Option(min=1, help="Untimed runs before these.")] = 5,
    dtype: Annotated[NumberType | None, Option(help="Cast parameters and inputs to this type.")] = None,
    autocast: Annotated[NumberType | None, Option(help="Run under torch.autocast with this type.")] = None,
    merge: Annotated[bool, Option(help="Write equal layers in a row as one entry with repeat, or each layer.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's layers (F, B, W, memory) and write them as a profile for jobs."""
    if (model is None) == (not from_trace):
        raise InvalidInput("expected either --model, to measure, or --from-trace, to read what a torch pipeline has recorded")
    check_outputs({"-o": output}, from_trace or (), standard=True, as_json=as_json)
    if model is None:
        _from_traces(from_trace or [], output, as_json=as_json)
        return
    from schedc.formats.profile_file import profile_json
    from schedc.runtime.profiling import load_model, measured_edges, merged, profile_layer, profile_model, warnings
    from schedc.runtime.profiling.model import described, device_named, dtype_named
    from schedc.view.terminal.profile import ProfileRow, console_beside, measured_json, shown_profile
    from schedc.view.terminal.progress import working
    from schedc.view.terminal.show import show

    where = device_named(device)
    loaded = load_model(model)
    source = getattr(sys.modules[model.partition(":")[0]], "__file__", None)
    check_outputs({"-o": output}, () if source is None else (Path(source),), standard=True)
    types = {"dtype": dtype_named(dtype), "autocast": dtype_named(autocast)}
    with working("measuring", hidden=as_json, logs=False) as progress:
        measured = profile_model(
            loaded,
            device=where,
            repeats=repeats,
            warmup=warmup,
            on_layer=lambda name: progress(one_line(f"measuring {name}"), 0),
            **types,
        )
    written = merged(measured) if merge else measured
    rows = [ProfileRow(profile_layer(layer), layer.phases(), layer.parameters, layer.held_bytes) for layer in written]
    layers, edges = [row.layer for row in rows], measured_edges(loaded, measured)
    write_output(output, profile_json(layers, modules=loaded.modules, edges=edges, model=loaded.name).encode())
    notes, on = warnings(measured, written), described(where)
    if as_json:
        show({"model": loaded.name, "measured_on": on, **measured_json(rows, notes)})
    else:
        title = f"{loaded.name or model}, measured on {on}; medians of {repeats} for each layer"
        show(shown_profile(rows, notes, title, output), console_beside(output))


def _from_traces(paths: Sequence[Path], output: Path, *, as_json: bool) -> None:
    from schedc.formats.profile_file import profile_json
    from schedc.formats.torch_profiler import PHASES, read_torch_trace, stage_times, stages_profile
    from schedc.view.terminal.profile import ProfileRow, console_beside, measured_json, shown_profile
    from schedc.view.terminal.show import show

    traces = [read_torch_trace(path) for path in paths]
    times = stage_times(traces)
    layers, notes = stages_profile(traces, times)
    write_output(output, profile_json(layers, model=f"from traces: {', '.join(path.name for path in paths)}").encode())
    phases = [{PHASES[kind]: found for kind, found in kinds.items()} for kinds in times.values()]
    rows = [ProfileRow(layer, found, None) for layer, found in zip(layers, phases, strict=True)]
    where = "on the GPU" if all(trace.on_gpu for trace in traces) else "on the CPU"
    if as_json:
        show(measured_json(rows, notes))
    else:
        title = f"from {len(traces)} traces, {where}: medians after the first step"
        show(shown_profile(rows, notes, title, output), console_beside(output))
