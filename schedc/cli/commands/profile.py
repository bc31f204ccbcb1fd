"""`schedc profile`: a profile.json of a model that is measured, or from a torch pipeline's traces; a device's table of products.

torch is imported only where a model is measured.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from schedc.cli.options import ExpertOption, JsonOption, MicrobatchOption, output_to
from schedc.errors import InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import check_outputs, write_atomically, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.formats.operator_table import Product


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
    operators: Annotated[
        str | None,
        Option(metavar="NAME|CONFIG.json", help="Measure the products of this model's operators, into a table for costs --table."),
    ] = None,
    accelerator: Annotated[
        str | None, Option(metavar="NAME", help="With --operators: what this device is, as h100, whose peaks count.")
    ] = None,
    tp: Annotated[list[int] | None, Option(min=1, help="With --operators: tensor parallel sizes. Default: 1.")] = None,
    ep: ExpertOption = 1,
    microbatch: MicrobatchOption = 1,
    sequence: Annotated[int, Option(min=1, help="With --operators: tokens in a sequence.")] = 4096,
    device: Annotated[Literal["cpu", "cuda"] | None, Option(help="Where to measure. Default: cuda where there is one.")] = None,
    repeats: Annotated[int, Option(min=1, help="Timed runs of each phase.")] = 20,
    warmup: Annotated[int, Option(min=1, help="Untimed runs before these.")] = 5,
    dtype: Annotated[NumberType | None, Option(help="Cast parameters and inputs to this type.")] = None,
    autocast: Annotated[NumberType | None, Option(help="Run under torch.autocast with this type.")] = None,
    merge: Annotated[bool, Option(help="Write equal layers in a row as one entry with repeat, or each layer.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Measure a model's layers (F, B, W, memory) and write them as a profile for jobs."""
    if [model is None, not from_trace, operators is None].count(False) != 1:
        raise InvalidInput(
            "expected one of --model, to measure, --operators, to measure a device, and --from-trace, to read what torch recorded"
        )
    if operators is not None:
        if accelerator is None:
            raise InvalidInput("--accelerator: found nothing, expected what this device is, as h100")
        if as_json or dtype or autocast:
            raise InvalidInput(
                "expected --operators without --json, --dtype and --autocast: it measures 16-bit products, into the file"
            )
        _operators(operators, accelerator, output, tp or [1], ep, microbatch, sequence, device, repeats, warmup)
        return
    if accelerator is not None or tp is not None or (ep, microbatch, sequence) != (1, 1, 4096):
        raise InvalidInput("expected --accelerator, --tp, --ep, --microbatch and --sequence with --operators alone")
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
    notes, on = warnings(measured, written), described(where)
    write_output(output, profile_json(layers, modules=loaded.modules, edges=edges, model=loaded.name, device=on).encode())
    if as_json:
        show({"model": loaded.name, "measured_on": on, **measured_json(rows, notes)})
    else:
        title = f"{loaded.name or model}, measured on {on}; medians of {repeats} for each layer"
        show(shown_profile(rows, notes, title, output), console_beside(output))


def _operators(
    model: str,
    accelerator: str,
    output: Path,
    tensor_parallel: Sequence[int],
    ep: int,
    microbatch: int,
    sequence: int,
    device: str | None,
    repeats: int,
    warmup: int,
) -> None:
    """Add to the table what it lacks; each row is written as soon as it is measured. Under torchrun, collectives alone."""
    from msgspec.structs import replace

    from schedc.costs.devices import device_named as accelerator_named
    from schedc.costs.layers import parts_of, products_of
    from schedc.costs.predicted import predicted
    from schedc.formats.operator_table import OperatorTable, operator_table_json, read_operator_table
    from schedc.runtime.profiling.model import described, device_named
    from schedc.runtime.profiling.products import collectives_of_all, measured, measured_constants
    from schedc.view.terminal.progress import working

    check_outputs({"-o": output}, ())
    peaks, where = accelerator_named(accelerator), device_named(device)
    table = OperatorTable(format="schedc.operators", version=1, device=accelerator, source=f"measured on {described(where)}")
    if output.exists():
        table = read_operator_table(output)
        if table.device != accelerator:
            raise InvalidInput(f"-o: found {output}, a table of {table.device}, expected one of {accelerator}, or no file")
    again = {"repeats": repeats, "warmup": warmup}
    rows = collectives_of_all(where, **again)
    if rows is not None:
        if rows:
            others = [row for row in table.collectives if row[1] != rows[0][1]]
            write_atomically(output, operator_table_json(replace(table, collectives=(*others, *rows))).encode())
            typer.echo(one_line(f"wrote {output}: {len(rows)} collectives among {rows[0][1]} devices"))
        return
    found: dict[tuple[str, tuple[float, ...]], Product] = {}
    for size in tensor_parallel:
        made = predicted(model, accelerator, tp=size, ep=ep, microbatch=microbatch, sequence=sequence)
        products = products_of(parts_of(made.architecture, made.setting), microbatch)
        found |= {(product.engine, product.shape): product for product in products}
    known = {(row[0], row[2:6]) for row in table.shares}
    missing = [product for key, product in found.items() if key not in known]
    none = []
    if not table.constants.given():
        table = replace(table, constants=measured_constants(where, peaks.memory_bytes_per_s, **again))
    with working("measuring", done=0, total=len(missing)) as progress:
        for done, each in enumerate(measured(missing, where, peaks.flops_per_s, **again)):
            none += [] if each else [missing[done]]
            table = replace(table, shares=(*table.shares, *each))
            write_atomically(output, operator_table_json(table).encode())
            progress(f"{missing[done].engine} {missing[done].shape}", done + 1)
    write_atomically(output, operator_table_json(table).encode())
    typer.echo(one_line(f"wrote {output}: {len(table.shares)} shares, of {len(missing) - len(none)} products that it had not"))
    for product in none:
        typer.echo(f"note: no memory for {product.engine} {product.shape}", err=True)


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
