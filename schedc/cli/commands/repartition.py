"""`schedc repartition`: which layers to give to other ranks when a rank computes slower, or can hold less."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from typer import Argument, Option

from schedc.api import repartition_plan
from schedc.cli.options import JsonOption, SetOption, option_value, output_to, read_job, read_step
from schedc.errors import InvalidInput
from schedc.io.location import show as shown
from schedc.io.outputs import check_outputs, write_output
from schedc.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.conditions import LinkState

T = TypeVar("T")
_OF_RANK = re.compile(r"\s*([0-9]{1,9})\s*=(.*)", re.ASCII)


def repartition_command(
    plan: Annotated[Path, Argument(metavar="PLAN", help="The plan that runs (JSON).")],
    job: Annotated[Path, Option("--job", metavar="JOB", help="The plan's job, whose profile has layers; - is standard input.")],
    slow: Annotated[
        list[str] | None, Option("--slow", metavar="RANK=FACTOR", help="The rank takes this many times as long: 2=1.3. Repeatable.")
    ] = None,
    links: Annotated[
        list[str] | None, Option("--links", metavar="RANKS=LATENCY", help="A slow link: 3-4=30ms, 3>4=30ms, all=30ms. Repeatable.")
    ] = None,
    memory_limits: Annotated[
        list[str] | None,
        Option(
            "--memory-limit",
            metavar="RANK=SIZE",
            help="What the rank can hold, as the job's capacity or limit: 2=20GiB. Repeatable.",
        ),
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
    """Say which layers to give to other ranks when a rank computes slower or can hold less, and what a step takes then."""
    from schedc.formats.plan.plan_file import plan_json
    from schedc.ir.conditions import Conditions
    from schedc.study.robust.requests import grid_of
    from schedc.view.terminal.results import repartition_json, shown_repartition
    from schedc.view.terminal.show import show

    if not slow and not links and not memory_limits:
        expected = "--slow RANK=FACTOR, --links RANKS=LATENCY or --memory-limit RANK=SIZE"
        raise InvalidInput(f"found nothing that has changed, expected {expected}")
    if top_k is not None and method != "condensation":
        raise InvalidInput(f"--top-k: found {top_k} with --method {method}, expected --method condensation")
    read, loaded = read_step(plan), read_job(job, values)
    if output is not None:
        check_outputs({"-o": output}, (plan, *loaded.files), as_json=as_json)
    factors = _by_rank("--slow", slow or (), read.problem.ranks, "RANK=FACTOR with a number above 0, as in 2=1.3", _factor)
    limits = _by_rank("--memory-limit", memory_limits or (), read.problem.ranks, "RANK=SIZE, as in 2=20GiB", parse_bytes)
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
        memory_limits=limits,
        steps=steps,
        pause_s=option_value("--pause", pause) / 1e9,
        bytes_per_parameter=bytes_per_parameter,
        method=method,
        top_k=top_k,
    )
    if output is not None:
        write_output(output, plan_json(found.plan))
    show(repartition_json(read, found) if as_json else shown_repartition(read, found, slow=factors, limits=limits, steps=steps))


def _factor(text: str) -> float:
    """A number above 0; raises a ValueError for anything else."""
    factor = float(text)
    if not 0 < factor < math.inf:
        raise ValueError
    return factor


def _by_rank(option: str, texts: Sequence[str], ranks: int, expected: str, value: Callable[[str], T]) -> dict[int, T]:
    """By rank, the value of each text, `RANK=VALUE`; `value` raises a ValueError for what is none."""
    found: dict[int, T] = {}
    for text in texts:
        match = _OF_RANK.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{option}: found {shown(text)}, expected {expected}")
        try:
            of_rank = value(match[2])
        except ValueError:
            raise InvalidInput(f"{option}: found {shown(text)}, expected {expected}") from None
        rank = int(match[1])
        if rank >= ranks:
            raise InvalidInput(f"{option}: found {shown(text)}, expected a rank from 0 to {ranks - 1}")
        if rank in found:
            raise InvalidInput(f"{option}: found {shown(text)}, expected each rank at most once")
        found[rank] = of_rank
    return found
