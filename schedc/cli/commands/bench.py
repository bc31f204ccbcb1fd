"""`schedc bench`: methods side by side on known instances."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - typer reads the annotations
from typing import Annotated

import typer


def bench_command(
    instances: Annotated[str, typer.Argument(metavar="SET", help="A named set of instances; an unknown name lists them.")],
    methods: Annotated[str, typer.Option(metavar="A,B", help="The methods, separated by commas.")] = "greedy,auto",
    time_limit: Annotated[str, typer.Option(metavar="TIME", help="Stop each search after this long.")] = "60s",
    csv: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the rows as CSV, too.")] = None,
    fused_backward: Annotated[
        float | None, typer.Option(metavar="X", help="Let each fused backward take X times B plus W; otherwise 1.")
    ] = None,
) -> None:
    """Run methods side by side on known instances: makespan, bound, gap, time, memory, published results."""
    from schedc.cli.bench_table import run_bench

    run_bench(instances, methods, time_limit, csv, fused_backward)
