"""`schedc costs`: a profile.json of an architecture that is known by name or by its Hugging Face config.json, without a GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from schedc.cli.options import ContextOption, ExpertOption, JsonOption, MicrobatchOption, TensorOption, output_to
from schedc.errors import InvalidInput
from schedc.io.location import one_line, show as shown
from schedc.io.outputs import check_outputs, write_output


def costs_command(
    model: Annotated[
        str, Argument(metavar="NAME|CONFIG.json", help="A known model's name, or the path of a Hugging Face config.json.")
    ],
    output: Annotated[Path, output_to("PROFILE", "Where to write the profile (JSON); - is standard output.")],
    device: Annotated[str, Option(metavar="NAME", help="What it runs on, as h100.")] = "h100",
    tp: TensorOption = 1,
    cp: ContextOption = 1,
    ep: ExpertOption = 1,
    etp: Annotated[int | None, Option(min=1, help="Devices that divide the width of an expert. Default: --tp.")] = None,
    context_exchange: Annotated[
        Literal["ring", "all-to-all"], Option(help="How devices of one sequence meet: keys go round, or heads are exchanged.")
    ] = "ring",
    expert_exchange: Annotated[
        Literal["all-to-all", "hierarchical"],
        Option(help="How tokens come to experts: a copy for each, or one for each node, as DeepEP and HybridEP send them."),
    ] = "all-to-all",
    framework: Annotated[
        Literal["plain", "megatron-te"], Option(help="Whose habits count: none's, or Megatron-LM's with Transformer Engine.")
    ] = "plain",
    microbatch: MicrobatchOption = 1,
    sequence: Annotated[
        int | None, Option(min=1, help="Tokens in a sequence. Default: 4096, or the model's position embeddings if fewer.")
    ] = None,
    images: Annotated[
        int, Option(min=0, metavar="N", help="Images in a microbatch, of a model that takes them; 0 is its decoder alone.")
    ] = 0,
    image_size: Annotated[
        str | None, Option(metavar="WIDTHxHEIGHT", help="Pixels of each image, as 1024x768. Default: as the model has it.")
    ] = None,
    recompute: Annotated[Literal["none", "selective"], Option(help="Compute norms and activation functions again in B.")] = "none",
    split_backward: Annotated[bool, Option(help="Whether B and W may run apart; if not, nothing is kept for W.")] = True,
    efficiency: Annotated[
        float | None, Option(min=0.001, max=1, metavar="X", help="Take this share of the peak for all FLOPs, and nothing else.")
    ] = None,
    table: Annotated[
        Path | None, Option(metavar="TABLE", help="Measured products of the device, as schedc profile --operators writes them.")
    ] = None,
    measured: Annotated[
        Path | None, Option(metavar="PROFILE", help="Measured layers, which take the place of those of their kinds.")
    ] = None,
    bias: Annotated[
        float | None,
        Option(min=0.1, max=10, metavar="X", help="With --measured: what a layer takes in a model, of what it takes alone."),
    ] = None,
    other_device: Annotated[bool, Option("--other-device", help="With --measured: take layers of another device, too.")] = False,
    operators: Annotated[bool, Option("--operators", help="Print what each operator of each kind of layer costs, too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Predict what a model's layers cost on a device, and write them as a profile for jobs."""
    from schedc.costs.architecture import expert_parameters, parameters
    from schedc.costs.efficiency import sustained
    from schedc.costs.layers import is_known
    from schedc.costs.measured import with_measured
    from schedc.costs.predicted import predicted
    from schedc.view.terminal import profile
    from schedc.view.terminal.show import show

    if table is not None and efficiency is not None:
        raise InvalidInput("found --efficiency and --table, expected one of them")
    for name, is_given in {"bias": bias is not None, "other-device": other_device}.items():
        if is_given and measured is None:
            raise InvalidInput(f"found --{name} without --measured, expected both, or neither of them")
    path = None if is_known(model) else Path(model)
    read = [each for each in (path, table, measured) if each and each.exists()]
    check_outputs({"-o": output}, read, standard=True, as_json=as_json)
    made = predicted(
        model,
        device,
        tp=tp,
        cp=cp,
        ep=ep,
        etp=etp,
        context_exchange=context_exchange,
        expert_exchange=expert_exchange,
        framework=framework,
        microbatch=microbatch,
        sequence=sequence,
        images=images,
        image_size=None if image_size is None else _pixels(image_size),
        selective_recompute=recompute == "selective",
        split_backward=split_backward,
        rates=None if efficiency is None else sustained(efficiency),
        table=table,
    )
    if measured is not None:
        of_layers, said = with_measured(made.layers, measured, made.device, bias=bias or 1.0, other_device=other_device)
        title = f"{made.title}, with the layers of {one_line(measured.name)}"
        made = replace(made, title=title, layers=of_layers, notes=(*made.notes, *said))
    architecture, layers = made.architecture, made.layers
    write_output(output, made.profile_json().encode())
    total, of_experts = parameters(architecture), expert_parameters(architecture)
    if as_json:
        entries = [
            {**profile.entry_json(layer), "operators": profile.operators_json(part.operators, made)}
            for layer, part in zip(layers, profile.first_parts(made), strict=True)
        ]
        counts = {"parameters": total, "expert_parameters": of_experts}
        degrees = {"tp": tp, "cp": cp, "ep": ep, "etp": made.setting.expert_tensor}
        graph = {"modules": [{"name": each.name, "layers": each.layers} for each in made.modules]} if made.modules else {}
        show({"model": architecture.name, "device": made.device.name, **counts, **degrees, **graph, "layers": entries})
        return
    notes = [f"the model has {total:,} parameters; the table has those of one device, for each layer", *made.notes]
    if of_experts:
        notes.append(f"{of_experts:,} are of routed experts, whose replicas are data × context × tensor ÷ (ep × etp) devices")
    rows = [profile.ProfileRow(layer, {}, layer.parameters or 0) for layer in layers]
    out = profile.console_beside(output)
    show(profile.shown_profile(rows, notes, f"{made.title}: predicted", output), out)
    if operators:
        show(profile.shown_operators(made), out)


def _pixels(text: str) -> tuple[int, int]:
    found = re.fullmatch("([1-9][0-9]{0,5})x([1-9][0-9]{0,5})", text)
    if found is None:
        raise InvalidInput(f"--image-size: found {shown(text)}, expected width and height in pixels, as in 1024x768")
    return int(found[1]), int(found[2])
