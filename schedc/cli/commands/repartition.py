"""`schedc repartition`: which layers to give to other ranks when a rank computes slower."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Argument, Option

from schedc.api import repartition_plan
from schedc.cli.options import JsonOption, SetOption, option_value, output_to, read_job, read_step
from schedc.errors import InvalidInput
from schedc.io.location import show as shown
from schedc.io.outputs import check_outputs, write_output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import LinkState

_FACTOR = re.compile(r"\s*([0-9]{1,9})\s*=(.*)", re.ASCII)


def repartition_command(
    plan: Annotated[Path, Argument(metavar="PLAN", help="The plan that runs (JSON).")],
    job: Annotated[Path, Option("--job", metavar="JOB", help="The plan's job, whose profile has layers; - is standard input.")],
    slow: Annotated[
        list[str] | None, Option("--slow", metavar="RANK=FACTOR", help="The rank takes this many times as long: 2=1.3. Repeatable.")
    ] = None,
    links: Annotated[
        list[str] | None, Option("--links", metavar="RANKS=LATENCY", help="A slow link: 3-4=30ms, 3>4=30ms, all=30ms. Repeatable.")
    ] = None,
    values: SetOption = None,
    steps: Annotated[int, Option(min=0, help="How many steps are to come like this.")] = 1000,
    pause: Annotated[
        str, Option(metavar="TIME", help="What a move takes besides sending: building stages, loading the plan.")
    ] = "0s",
    bytes_per_parameter: Annotated[
        float | None,
        Option(min=0, help="Of weights and optimizer state together. Default: what the job's memory section says of layers."),
    ] = None,
    method: Annotated[
        Literal["transfer", "condensation"],
        Option(help="Layers from stage to stage, or all boundaries behind the layers that take longest."),
    ] = "transfer",
    top_k: Annotated[
        int | None, Option(min=1, help="How many layers those are. Default: as many as make at most 2000 layouts.")
    ] = None,
    output: Annotated[Path | None, output_to("PLAN", "Write the plan to go on with.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Say which layers to give to other ranks when a rank computes slower, and what a step takes then."""
    from schedc.formats.plan.plan_file import plan_json
    from schedc.ir.conditions import Conditions
    from schedc.study.robust.requests import grid_of
    from schedc.view.terminal.results import repartition_json, shown_repartition
    from schedc.view.terminal.show import show

    if not slow and not links:
        raise InvalidInput("found nothing that has changed, expected --slow RANK=FACTOR or --links RANKS=LATENCY")
    if top_k is not None and method != "condensation":
        raise InvalidInput(f"--top-k: found {top_k} with --method {method}, expected --method condensation")
    read, loaded = read_step(plan), read_job(job, values)
    if output is not None:
        check_outputs({"-o": output}, (plan, *loaded.files), as_json=as_json)
    factors = _factors(slow or (), read.problem.ranks)
    slow_links: dict[tuple[int, int], LinkState] = {}
    for text in links or ():
        conditions = grid_of(text, read.problem, option="--links")
        if len(conditions) != 1:
            expected = "RANKS=LATENCY, as in 3-4=30ms"
            raise InvalidInput(f"--links: found {shown(text)}, {len(conditions)} conditions, expected one: {expected}")
        slow_links |= conditions[0][1].links
    found = repartition_plan(
        read,
        loaded,
        Conditions(links=slow_links),
        slow=factors,
        steps=steps,
        pause_s=option_value("--pause", pause) / 1e9,
        bytes_per_parameter=bytes_per_parameter,
        method=method,
        top_k=top_k,
    )
    if output is not None:
        write_output(output, plan_json(found.plan))
    show(repartition_json(read, found) if as_json else shown_repartition(read, found, slow=factors, steps=steps))


def _factors(texts: Sequence[str], ranks: int) -> dict[int, float]:
    """By rank, how many times as long it takes."""
    found: dict[int, float] = {}
    for text in texts:
        match = _FACTOR.fullmatch(text)
        try:
            factor = float(match[2]) if match else 0.0
        except ValueError:
            factor = 0.0
        if match is None or not 0 < factor < math.inf:
            raise InvalidInput(f"--slow: found {shown(text)}, expected RANK=FACTOR with a number above 0, as in 2=1.3")
        rank = int(match[1])
        if rank >= ranks:
            raise InvalidInput(f"--slow: found {shown(text)}, expected a rank from 0 to {ranks - 1}")
        if rank in found:
            raise InvalidInput(f"--slow: found {shown(text)}, expected each rank at most once")
        found[rank] = factor
    return found
