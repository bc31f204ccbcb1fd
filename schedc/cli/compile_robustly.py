"""`schedc compile --robust`: one plan for links that change."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from schedc.errors import InvalidInput
from schedc.io.location import one_line

if TYPE_CHECKING:
    from schedc.frontend.job import Job
    from schedc.solvers.common.search_settings import SearchSettings

SAMPLES = 64
"""How many states of the links are looked at, where the user does not say."""


def compile_robustly(
    job: Job,
    output: Path,
    links: str,
    settings: SearchSettings,
    *,
    percentile: float | None,
    samples: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Make the plan, write it, print what it is worth.

    Args:
        job: whose plan it is.
        output: where the plan goes.
        links: a link trace or a distribution.
        settings: the method of the searches for single conditions, the limits of all of it, and what listens to signals.
        percentile: what is minimized; None: the mean.
        samples: how many states of the links.
        as_json: print one JSON object.
        quiet: print nothing.

    Raises:
        SchedcError: the job or the links cannot be used, or no plan was found.
    """
    from schedc.cli.defect import defects_kept
    from schedc.formats.plan.plan_file import plan_json
    from schedc.io.outputs import check_outputs, write_output
    from schedc.study.robust.requests import is_drawn, states_named
    from schedc.study.robust.robust import compile_robust
    from schedc.study.robust.scenarios import Criterion
    from schedc.view.terminal import results
    from schedc.view.terminal.progress import live
    from schedc.view.terminal.robust import print_robust, robust_json

    problem = job.problem
    if not is_drawn(links):
        check_outputs({"-o": output}, (Path(links),), standard=True, as_json=as_json)
    states = states_named(links, problem, samples=samples, seed=settings.limits.seed, option="--robust")
    with defects_kept(job, output), live(job, settings, hidden=quiet or as_json) as shown:
        robust = compile_robust(
            problem,
            states,
            Criterion(percentile),
            shown.told(settings),
            job_sha256=job.sha256,
        )
    write_output(output, plan_json(robust.compiled.plan))
    for failure in robust.compiled.failures:
        typer.echo(
            f"schedc: a defect of schedc, please report it: {failure}; the plan was written and does not rest on it", err=True
        )
    if as_json:
        results.print_json(results.compiled_json(robust.compiled) | {"robust": robust_json(robust)})
    elif not quiet:
        print_robust(robust, output)
    if settings.interruption.requested and (quiet or as_json):
        sys.stdout.flush()
        typer.echo(f"schedc: the best plan so far is written to {one_line(str(output))}: interrupted", err=True)


def check_robust(robust: str | None, percentile: float | None, samples: int | None) -> None:
    """Refuse options that are for `--robust` alone.

    Raises:
        InvalidInput: one is given without it, or the percentile is 0.
    """
    for option, value in (("--robust-percentile", percentile), ("--robust-samples", samples)):
        if robust is None and value is not None:
            raise InvalidInput(f"{option}: found {value:g} without --robust LINKTRACE|DISTRIBUTION, expected both or neither")
    if percentile == 0:
        raise InvalidInput("--robust-percentile: found 0, expected a number above 0 and at most 100")
