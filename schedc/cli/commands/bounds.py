"""`schedc bounds`: the lower bounds of a job."""

from __future__ import annotations

from schedc.cli.jobs import JobArgument, JsonOption, SetOption, read_job


def bounds_command(job: JobArgument, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the lower bounds of a job: no schedule is faster than any of them."""
    from schedc.api import lower_bounds
    from schedc.view.terminal import results

    loaded = read_job(job, values)
    found = lower_bounds(loaded)
    if as_json:
        results.print_json({bound.name: {"value_ns": bound.value_ns, "where": bound.detail} for bound in found})
    else:
        results.print_bounds(loaded.workload.name, found)
