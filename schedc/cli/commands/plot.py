"""`schedc plot`: a plan, or the table of a sweep or of tune, as a picture for a paper or a slide."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from schedc.cli.options import output_to, read_run
from schedc.errors import InvalidInput
from schedc.io.location import one_line
from schedc.io.outputs import check_outputs, write_atomically

Column = str | None


def plot_command(
    source: Annotated[
        Path, Argument(metavar="PLAN|TABLE", help="A plan (.json), or the table of a sweep or of tune (.csv or .parquet).")
    ],
    output: Annotated[Path, output_to("FILE", "Where to write the picture: .svg, .png or .pdf.")],
    transfers: Annotated[bool, Option("--transfers", help="Of a plan: draw transfers, from start to arrival.")] = False,
    x: Annotated[Column, Option("--x", metavar="COLUMN", help="Of a table: the x axis. Default: a setting that varies.")] = None,
    y: Annotated[Column, Option("--y", metavar="COLUMN", help="Of a table: the y axis. Default: the objective.")] = None,
    by: Annotated[
        list[str] | None,
        Option("--by", metavar="COLUMN", help="Of a table: a curve for each value. Repeatable. Default: all other settings."),
    ] = None,
    width: Annotated[float, Option(min=2, max=40, metavar="INCHES", help="Of the picture; a page of a paper has 7.")] = 7.0,
    title: Annotated[str, Option(metavar="TEXT", help="Above the picture. Default: none.")] = "",
) -> None:
    """Draw a plan, or curves from a table; needs matplotlib, which pip install 'schedc[plot]' adds."""
    from schedc.compile.plans import time_plan
    from schedc.view.plot.curves import curves
    from schedc.view.plot.figure import check_ending
    from schedc.view.plot.gantt import gantt
    from schedc.view.plot.table import choose_axes, read_columns

    check_ending(output)
    check_outputs({"-o": output}, (source,))
    if source.suffix in (".csv", ".parquet"):
        if transfers:
            raise InvalidInput(f"--transfers: found it with the table {source}, expected a plan")
        axes = choose_axes(read_columns(source), x, y, by or ())
        content = curves(axes, output.suffix, width_inches=width, title=title)
    else:
        for option, given in (("--x", x), ("--y", y), ("--by", by)):
            if given:
                raise InvalidInput(f"{option}: found it with the plan {source}, expected a table (.csv or .parquet)")
        plan = read_run(source)
        content = gantt(plan, time_plan(plan), output.suffix, width_inches=width, transfers=transfers, title=title)
    write_atomically(output, content)
    typer.echo(one_line(f"written to {output}"))
