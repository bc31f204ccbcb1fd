"""`schedc costs`: a profile.json of an architecture that is known by name or by its Hugging Face config.json, without a GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Recompute(StrEnum):
    """What B computes again instead of keeping it."""

    none = "none"
    selective = "selective"


def costs_command(
    model: Annotated[
        str, typer.Argument(metavar="NAME|CONFIG.json", help="A known model's name, or the path of a Hugging Face config.json.")
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="PROFILE", help="Where to write the profile (JSON); - is standard output.")
    ],
    device: Annotated[str, typer.Option(metavar="NAME", help="What it runs on, as h100.")] = "h100",
    tp: Annotated[int, typer.Option(min=1, help="Tensor parallel size.")] = 1,
    cp: Annotated[int, typer.Option(min=1, help="Context parallel size.")] = 1,
    ep: Annotated[int, typer.Option(min=1, help="Expert parallel size.")] = 1,
    microbatch: Annotated[int, typer.Option(min=1, help="Sequences in a microbatch.")] = 1,
    sequence: Annotated[
        int | None, typer.Option(min=1, help="Tokens in a sequence. Default: 4096, or the model's position embeddings if fewer.")
    ] = None,
    recompute: Annotated[Recompute, typer.Option(help="Compute norms and activation functions again in B.")] = Recompute.none,
    split_backward: Annotated[bool, typer.Option(help="Whether B and W may run apart; if not, nothing is kept for W.")] = True,
    efficiency: Annotated[
        float | None,
        typer.Option(min=0.001, max=1, metavar="X", help="Take this share of the peak for all FLOPs, and nothing else."),
    ] = None,
    operators: Annotated[
        bool, typer.Option("--operators", help="Print what each operator of each kind of layer costs, too.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output instead of tables.")] = False,
) -> None:
    """Predict what a model's layers cost on a device, and write them as a profile for jobs."""
    from msgspec import structs

    from schedc.costs.efficiency import ROOFLINE, sustained
    from schedc.costs.parameters import expert_parameters, parameters
    from schedc.costs.predicted import is_known, predicted
    from schedc.formats.profile_file import profile_json
    from schedc.io.outputs import check_outputs, is_standard, write_output
    from schedc.view.terminal.operators import first_parts, operators_json, print_operators
    from schedc.view.terminal.profile import ProfileRow, print_profile
    from schedc.view.terminal.results import print_json

    path = None if is_known(model) else Path(model)
    check_outputs({"-o": output}, () if path is None or not path.exists() else (path,), standard=True, as_json=as_json)
    made = predicted(
        model,
        device,
        tp=tp,
        cp=cp,
        ep=ep,
        microbatch=microbatch,
        sequence=sequence,
        selective_recompute=recompute is Recompute.selective,
        split_backward=split_backward,
        rates=ROOFLINE if efficiency is None else sustained(efficiency),
    )
    architecture, layers, sizes = made.architecture, made.layers, {"tp": tp, "cp": cp, "ep": ep}
    write_output(output, profile_json(layers, model=f"{made.title}, predicted").encode())
    total, of_experts = parameters(architecture), expert_parameters(architecture)
    if as_json:
        of_layers = (operators_json(part.operators, made) for part in first_parts(made))
        entries = [
            {**{name: value for name, value in structs.asdict(layer).items() if value not in (None, "")}, "operators": each}
            for layer, each in zip(layers, of_layers, strict=True)
        ]
        counts = {"parameters": total, "expert_parameters": of_experts}
        print_json({"model": architecture.name, "device": made.device.name, **counts, **sizes, "layers": entries})
    else:
        notes = [f"the model has {total:,} parameters; the table has those of one device, for each layer"]
        if of_experts:
            notes.append(f"{of_experts:,} are of routed experts, whose replicas are data parallel ÷ expert parallel size")
        print_profile([ProfileRow(layer, {}, layer.parameters or 0) for layer in layers], notes, f"{made.title}: predicted", output)
        if operators:
            print_operators(made, stderr=is_standard(output))
