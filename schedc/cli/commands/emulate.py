"""`schedc emulate`: runs a plan as real processes with delayed links and shows predicted against measured."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

from typer import Option

from schedc.cli.options import JsonOption, PlanArgument, read_run
from schedc.errors import InvalidInput
from schedc.io.outputs import check_outputs

FileOption = Path | None
QUEUES = (1, 4)
RUNS, ADAPTING_RUNS = 5, 60


def emulate_command(
    plan: PlanArgument,
    scale: Annotated[float, Option(metavar="X", help="Multiplies all times: 2 is half as fast as the plan.")] = 1.0,
    runs: Annotated[int | None, Option(metavar="N", min=1, help="Runs to measure: 5, with --adapt 60.")] = None,
    queues: Annotated[int, Option(metavar="4|1", help="1: all transfers of a rank in one queue.")] = 4,
    links: Annotated[FileOption, Option(metavar="LINKTRACE", help="How links change while it runs (CSV).")] = None,
    choose: Annotated[bool, Option("--choose", help="Each rank chooses its next op by what has come.")] = False,
    adapt: Annotated[bool, Option("--adapt", help="The ranks measure, and move to other plans while links change.")] = False,
    warm_up: Annotated[int | None, Option(metavar="N", min=1, help="With --adapt: runs before, links as planned: 40.")] = None,
    trace: Annotated[FileOption, Option(metavar="FILE", help="Write the runs as a trace, for `schedc compare`.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a plan on this machine: a process per rank, real channels with the links' delays, waiting instead of compute."""
    from schedc.analysis.comparison.compare import compare
    from schedc.compile.plans import time_plan
    from schedc.formats.links import read_link_trace
    from schedc.formats.trace_file import write_trace_file
    from schedc.view.terminal import emulated as view
    from schedc.view.terminal.progress import working
    from schedc.view.terminal.show import show

    if queues not in QUEUES:
        raise InvalidInput(f"--queues: found {queues}, expected 4 (as the plan has them) or 1 (all transfers of a rank in one)")
    if not 0 < scale < math.inf:
        raise InvalidInput(f"--scale: found {scale:g}, expected a number above 0")
    check_outputs({"--trace": trace}, (plan,) if links is None else (plan, links))
    read = read_run(plan)
    changes = None if links is None else read_link_trace(links, read.problem)
    if warm_up is not None and not adapt:
        raise InvalidInput("--warm-up: is for --adapt; add that, or leave it out")
    if (adapt or choose) and (queues == 1 or trace is not None):
        raise InvalidInput(f"{'--adapt' if adapt else '--choose'}: cannot be combined with --queues 1 or --trace; leave them out")
    runs = runs or (ADAPTING_RUNS if adapt else RUNS)
    from schedc.runtime.emulation.emulate import WARM_UP, emulate, emulate_adapting  # this loads torch, which takes a while

    timeline = None if adapt or choose else time_plan(read)  # which refuses what cannot run
    run_s = read.certificate.makespan_ns * scale / 1e9
    with working(f"starting; each run takes about {run_s:.2g} s", logs=False) as progress:

        def report(ended: int) -> None:
            progress(f"run {ended} of {runs} has ended" if ended else "the warm-up has ended", ended)

        if adapt:
            found = emulate_adapting(
                read, scale=scale, runs=runs, warm_up=warm_up or WARM_UP, choose=choose, links=changes, report=report
            )
        else:
            emulation = emulate(read, scale=scale, runs=runs, queues=queues, choose=choose, links=changes, report=report)
    if adapt:
        times = view.replay_times(read, changes, found, choose=choose)
        as_object = view.replay_json(found, times, scale=scale)
        document = view.shown_replay(changes, found, times, scale=scale, choose=choose)
    elif choose:
        simulated = view.choosing_times(read, changes, emulation)
        as_object = view.choosing_json(emulation, simulated, scale=scale)
        document = view.shown_choosing(emulation, simulated, scale=scale)
    else:
        assert timeline is not None
        comparison = compare(read, timeline, emulation.trace)
        written = []
        if trace is not None:
            write_trace_file(emulation.trace, trace)
            written.append(("the runs", trace))
        as_object = view.emulation_json(read, emulation, comparison, queues=queues, traced=links is not None)
        document = view.shown_emulation(read, emulation, comparison, queues=queues, traced=links is not None, written=written)
    show(as_object if as_json else document)
