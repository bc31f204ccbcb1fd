"""`schedc export megatron` and `schedc export torchtitan`: the options with which these tools build a plan's stages."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from schedc.cli.sound_plan import read_sound_plan

PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="The plan file (JSON).")]
ProfileOption = Annotated[
    Path, typer.Option("--profile", metavar="PROFILE", help="The profile of the plan's job: it says what each layer is.")
]
OutputOption = Annotated[Path, typer.Option("-o", "--output", metavar="OUT", help="Where to write the options, one for each line.")]


def export_megatron(plan: PlanArgument, profile: ProfileOption, output: OutputOption) -> None:
    """Write Megatron-LM's pipeline layout of a plan; - is standard output. Megatron decides the order of ops itself."""
    from schedc.formats.layouts import megatron_options, read_model_layers
    from schedc.io.outputs import check_outputs, is_standard, write_output

    check_outputs({"-o": output}, (plan, profile), standard=True)
    read = read_sound_plan(plan)
    write_output(output, megatron_options(read, read_model_layers(profile)).encode())
    if not is_standard(output):
        _say_written(output)
    typer.echo(
        "note: Megatron runs its own order, 1F1B or interleaved; schedc.runtime.frameworks.megatron runs the plan's", err=True
    )
    if any(stage.recompute for stage in read.problem.stages):
        typer.echo("note: the plan has stages that recompute; Megatron has options of its own for that", err=True)


def export_torchtitan(
    plan: PlanArgument,
    profile: ProfileOption,
    output: OutputOption,
    head: Annotated[str, typer.Option(metavar="NAME", help="The name of the head's module; output in older models.")] = "lm_head",
) -> None:
    """Write torchtitan's options for a plan, with its CSV beside them as OUT's name with .csv."""
    from schedc.errors import InvalidInput
    from schedc.formats.layouts import read_model_layers, torchtitan_lines
    from schedc.formats.torch_csv.exporter import torch_csv
    from schedc.formats.torch_csv.stage_map import notes
    from schedc.io.outputs import check_outputs, write_atomically

    if output.suffix == ".csv":
        raise InvalidInput(f"-o: found {output}, expected another ending, as the CSV beside it has this name")
    if not head.strip():
        raise InvalidInput(f"--head: found {head!r}, expected the name of the head's module")
    check_outputs({"-o": output}, (plan, profile))
    beside = output.with_suffix(".csv")
    check_outputs({"-o": output, "the CSV of -o": beside}, (plan, profile))
    read = read_sound_plan(plan)
    csv = torch_csv(read, "compute_only")  # before anything is written, as it may be refused
    lines = torchtitan_lines(read, read_model_layers(profile), beside.name, head)
    write_atomically(beside, csv.encode())
    write_atomically(output, lines.encode())
    _say_written(output, beside)
    for note in notes(read):
        typer.echo(f"note: {note}", err=True)


def _say_written(*paths: Path) -> None:
    from schedc.io.location import one_line

    typer.echo(one_line(f"written to {' and '.join(map(str, paths))}"))
