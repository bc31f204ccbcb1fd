"""`schedc diff`: what is different between two plans, short enough for a pull request."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from schedc.api import diff_plans, read_plan
from schedc.cli.options import JsonNotLinesOption
from schedc.io.location import one_line


def diff_command(
    before: Annotated[Path, Argument(metavar="A", help="The plan before the change (JSON).")],
    after: Annotated[Path, Argument(metavar="B", help="The plan after the change (JSON).")],
    as_json: JsonNotLinesOption = False,
) -> None:
    """Say what is different between two plans: layout, orders, certificate, memory, costs. Status 1: they differ."""
    from schedc.view.terminal.difference import difference_json, difference_lines
    from schedc.view.terminal.show import show

    first, second = read_plan(before), read_plan(after)
    difference = diff_plans(first, second)
    if as_json:
        show(difference_json(difference))
    else:
        name = first.name if first.name == second.name else f"{first.name} → {second.name}"
        for line in difference_lines(difference, name, len(first.problem.slices)):
            typer.echo(one_line(line))
    if not difference.is_empty:
        raise typer.Exit(1)
