"""`schedc compare`: a plan beside a trace of it; writes what was measured as a profile and a topology for the next compile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from schedc.cli.options import JsonOption, PlanArgument, read_step
from schedc.errors import InvalidInput
from schedc.io.outputs import check_outputs, write_atomically

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.ir.trace import Trace

FileOption = Path | None


def compare_command(
    plan: PlanArgument,
    trace: Annotated[
        list[Path],
        Argument(metavar="TRACE...", help="A trace file, recorded from this plan; or torch.profiler's traces, one of each rank."),
    ],
    step: Annotated[str, Option(metavar="N|median", help="The recorded step to look at in detail.")] = "median",
    profile: Annotated[
        FileOption, Option(metavar="FILE", help="Write the measured costs as a profile (JSON), one layer for each stage.")
    ] = None,
    topology: Annotated[FileOption, Option(metavar="FILE", help="Write the measured links as a topology (TOML).")] = None,
    perfetto: Annotated[
        FileOption, Option(metavar="FILE", help="Write planned and measured lanes for ui.perfetto.dev (JSON).")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Compare a plan with a recorded run: where the time went, what was late and why, what blocks and transfers cost."""
    from schedc.compile.plans import time_plan
    from schedc.formats.links import link_topology_toml
    from schedc.formats.profile_file import stage_profile_json
    from schedc.view.perfetto import perfetto_of_comparison
    from schedc.view.terminal.comparison import comparison_json, shown_comparison
    from schedc.view.terminal.show import show

    number = step_number(step)
    check_outputs({"--profile": profile, "--topology": topology, "--perfetto": perfetto}, (plan, *trace))
    read = read_step(plan)
    recorded, comparison = compared(read, time_plan(read), plan, trace, number)
    made: dict[Path, tuple[str, bytes]] = {}  # all of it before anything is written, as the topology may be refused
    if topology is not None:
        made[topology] = "the measured links", link_topology_toml(comparison.measured_problem)
    if profile is not None:
        made[profile] = "the measured costs", stage_profile_json(comparison.measured_problem)
    if perfetto is not None:
        made[perfetto] = "planned and measured lanes", perfetto_of_comparison(read, recorded, comparison)
    for path, (_, content) in made.items():
        write_atomically(path, content)
    if as_json:
        show(comparison_json(read, recorded, comparison))
    else:
        show(shown_comparison(read, recorded, comparison, [(what, path) for path, (what, _) in made.items()]))


def step_number(text: str) -> int | None:
    """The recorded step that the option names; None: the one whose time is the median.

    Raises:
        InvalidInput: it is neither a number nor `median`.
    """
    if text == "median":
        return None
    if text.isascii() and text.isdigit() and len(text) <= 18:
        return int(text)
    raise InvalidInput(f"--step: found {text!r}, expected the number of a recorded step, or median")


def compared(
    plan: Plan, timeline: Timeline, plan_path: Path, trace_paths: Sequence[Path], step: int | None
) -> tuple[Trace, Comparison]:
    """The trace in a file, or of a profiler's files, and the plan compared with it.

    Raises:
        InvalidInput: the trace is of another plan, or has no such step; names the files.
    """
    from schedc.analysis.comparison.compare import compare
    from schedc.formats.plan.plan_file import plan_sha256
    from schedc.formats.plan.plan_structs import VERSIONS
    from schedc.formats.profiler_steps import trace_of_profiles
    from schedc.formats.trace_file import trace_unless_profile

    trace_path, sha256 = trace_paths[0], plan_sha256(plan)
    recorded = trace_unless_profile(trace_path) if len(trace_paths) == 1 else None
    trace = recorded or trace_of_profiles(plan, trace_paths)
    if trace.plan_sha256 != sha256 and trace.plan_sha256 not in [plan_sha256(plan, version) for version in VERSIONS]:
        raise InvalidInput(
            f"{trace_path}: is a trace of the plan {trace.plan_name!r} with the sha256 {trace.plan_sha256[:12]}…, found {plan_path}"
            f" with {sha256[:12]}…; compare the plan that was run"
        )
    try:
        return trace, compare(plan, timeline, trace, step)
    except InvalidInput as error:
        raise InvalidInput(f"{trace_path}: {error}") from error
