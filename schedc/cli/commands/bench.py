"""`schedc bench`: methods side by side on known instances."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from schedc.cli.options import option_seconds
from schedc.io.outputs import check_outputs


def bench_command(
    instances: Annotated[str, Argument(metavar="SET", help="A named set of instances; an unknown name lists them.")],
    methods: Annotated[str, Option(metavar="A,B", help="The methods, separated by commas.")] = "greedy,auto",
    time_limit: Annotated[str, Option(metavar="TIME", help="Stop each search after this long.")] = "60s",
    csv: Annotated[Path | None, Option(metavar="FILE", help="Write the rows as CSV, too.")] = None,
    fused_backward: Annotated[
        float | None, Option(metavar="X", help="Let each fused backward take X times B plus W; otherwise 1.")
    ] = None,
) -> None:
    """Run methods side by side on known instances: makespan, bound, gap, time, memory, published results."""
    from schedc.solvers.common.base import Limits
    from schedc.solvers.driver.registry import check_method
    from schedc.study.bench.instances import instances as instances_of
    from schedc.study.bench.run import run, split_methods, write_rows
    from schedc.view.terminal import studies as view
    from schedc.view.terminal.progress import working
    from schedc.view.terminal.show import console, show

    chosen, names = instances_of(instances, fused_backward), split_methods(methods)
    limits = Limits(time_s=option_seconds("--time-limit", time_limit))
    check_outputs({"--csv": csv}, ())
    for name in names:
        check_method(name)
    rows, cells = [], len(chosen) * len(names)
    try:
        with working("the first cell", logs=False, total=cells) as progress:
            for row in run(chosen, names, limits=limits):
                rows.append(row)
                progress(f"{len(rows)} of {cells} cells, last {row.instance.name} by {row.method}", len(rows))
                if csv is not None:  # after every row, so that a stop loses nothing
                    write_rows(csv, rows)
    finally:  # an interrupt shows what is known so far
        if rows:
            show(view.shown_bench(instances, rows), console(piped_width=view.PIPED_WIDTH))
