"""`schedc export`: a plan in the formats of other tools: torch, Megatron-LM, torchtitan, NeMo Automodel, Perfetto."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Option

from schedc.cli.options import PlanArgument, output_to, read_run, read_sound_plan
from schedc.errors import InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import check_outputs, is_standard, write_atomically, write_output

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.formats.layouts import ModelLayer
    from schedc.ir import Plan

ProfileOption = Annotated[
    Path, Option("--profile", metavar="PROFILE", help="The profile of the plan's job: it says what each layer is.")
]
HeadOption = Annotated[str, Option(metavar="NAME", help="The name of the head's module; output in older models.")]
OptionsOption = Annotated[Path, output_to("OUT", "Where to write the options, one for each line.")]

export_app = typer.Typer(help="Write a plan in another tool's format.", no_args_is_help=True, rich_markup_mode=None)


@export_app.command("torch")
def export_torch(
    plan: PlanArgument,
    output: Annotated[
        Path, output_to("CSV", "Where to write the CSV, with NAME.stages.json beside it; - is standard output, without it.")
    ],
    layout: Annotated[
        Literal["compute_comms", "compute_only"],
        Option("--format", help="compute_comms: all actions. compute_only: torch adds the transfers."),
    ] = "compute_comms",
) -> None:
    """Write a plan as the CSV that torch.distributed.pipelining loads, with a stage map beside it."""
    from schedc.formats.torch_csv.exporter import stage_map_path, torch_csv, write_torch_csv
    from schedc.formats.torch_csv.stage_map import notes

    beside = None if is_standard(output) else stage_map_path(output)
    check_outputs({"-o": output, "the stage map of -o": beside}, (plan,), standard=True)
    read = read_sound_plan(plan)
    if beside is None:
        write_output(output, torch_csv(read, layout).encode())
    else:
        write_torch_csv(read, output, layout)
        typer.echo(one_line(f"written to {output} ({layout}), the stage map to {beside}"))
    _say_notes(notes(read, layout))


@export_app.command("megatron")
def export_megatron(plan: PlanArgument, profile: ProfileOption, output: OptionsOption) -> None:
    """Write Megatron-LM's pipeline layout of a plan; - is standard output. Megatron decides the order of ops itself."""
    from schedc.formats.layouts import megatron_options, read_model_layers

    check_outputs({"-o": output}, (plan, profile), standard=True)
    read = read_sound_plan(plan)
    write_output(output, megatron_options(read, read_model_layers(profile)).encode())
    if not is_standard(output):
        typer.echo(one_line(f"written to {output}"))
    _say_notes(["Megatron runs its own order, 1F1B or interleaved; schedc.runtime.frameworks.megatron runs the plan's"])
    if any(stage.recompute for stage in read.problem.stages):
        _say_notes(["the plan has stages that recompute; Megatron has options of its own for that"])


@export_app.command("torchtitan")
def export_torchtitan(plan: PlanArgument, profile: ProfileOption, output: OptionsOption, head: HeadOption = "lm_head") -> None:
    """Write torchtitan's options for a plan, with its CSV beside them as OUT's name with .csv."""
    from schedc.formats.layouts import torchtitan_lines

    _beside_csv(plan, profile, output, lambda read, layers, csv: torchtitan_lines(read, layers, csv, _named(head)))


@export_app.command("automodel")
def export_automodel(
    plan: PlanArgument,
    profile: ProfileOption,
    output: Annotated[Path, output_to("OUT", "Where to write the keys of the recipe (YAML).")],
    head: HeadOption = "lm_head",
    prefix: Annotated[
        str, Option(metavar="TEXT", help="What the names of the other modules begin with, as model.language_model.")
    ] = "model.",
) -> None:
    """Write what a recipe of NeMo Automodel says of a plan, with its CSV beside it as OUT's name with .csv."""
    from schedc.formats.layouts import automodel_lines

    _beside_csv(plan, profile, output, lambda read, layers, csv: automodel_lines(read, layers, csv, _named(head), prefix))


def _named(head: str) -> str:
    if not head.strip():
        raise InvalidInput(f"--head: found {head!r}, expected the name of the head's module")
    return head


def _beside_csv(plan: Path, profile: Path, output: Path, text: Callable[[Plan, Sequence[ModelLayer], str], str]) -> None:
    """Write torch's CSV of a plan, and beside it what `text` makes of plan, its layers and the CSV's name."""
    from schedc.formats.layouts import read_model_layers
    from schedc.formats.torch_csv.exporter import torch_csv
    from schedc.formats.torch_csv.stage_map import notes

    if output.suffix == ".csv":
        raise InvalidInput(f"-o: found {output}, expected another ending, as the CSV beside it has this name")
    check_outputs({"-o": output}, (plan, profile))
    beside = output.with_suffix(".csv")
    check_outputs({"-o": output, "the CSV of -o": beside}, (plan, profile))
    read = read_sound_plan(plan)
    csv = torch_csv(read, "compute_only")  # before anything is written, as it may be refused
    lines = text(read, read_model_layers(profile), beside.name)
    write_atomically(beside, csv.encode())
    write_atomically(output, lines.encode())
    typer.echo(one_line(f"written to {output} and {beside}"))
    _say_notes(notes(read, "compute_only"))


@export_app.command("perfetto")
def export_perfetto(
    plan: PlanArgument,
    output: Annotated[Path, output_to("OUT", "Where to write the events (JSON); - is standard output.")],
) -> None:
    """Write a plan for ui.perfetto.dev: ops and transfers over time, memory of ranks and messages on links as curves."""
    from schedc.compile.plans import time_plan
    from schedc.view.perfetto import perfetto_of_plan

    check_outputs({"-o": output}, (plan,), standard=True)
    read = read_run(plan)
    write_output(output, perfetto_of_plan(read, time_plan(read)))
    if not is_standard(output):
        typer.echo(one_line(f"written to {output}; open it in https://ui.perfetto.dev"))


def _say_notes(notes: Iterable[str]) -> None:
    for note in notes:
        typer.echo(f"note: {note}", err=True)
