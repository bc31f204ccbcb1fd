"""`schedc bounds`: the lower bounds of a job."""

from __future__ import annotations

from schedc.api import lower_bounds
from schedc.cli.options import JobArgument, JsonOption, SetOption, read_job


def bounds_command(job: JobArgument, values: SetOption = None, as_json: JsonOption = False) -> None:
    """Print the lower bounds of a job: no schedule is faster than any of them."""
    from schedc.view.terminal.results import shown_bounds
    from schedc.view.terminal.show import show

    loaded = read_job(job, values)
    found = lower_bounds(loaded)
    by_name = {str(bound.name): {"value_ns": bound.value_ns, "where": bound.detail} for bound in found}
    show(by_name if as_json else [shown_bounds(loaded.workload.name, found)])
