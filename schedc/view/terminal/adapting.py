"""What `emulate --adapt` prints: steps of several plans while links change, and when and why the plan changed."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import Conditions, LinkState, LinkTrace
    from schedc.ir.plan import Plan
    from schedc.runtime.emulation.adapting import AdaptingRuns

MOST_LINKS = 3
"""More are counted, not named."""


class _Run(NamedTuple):
    """What is known of one run."""

    number: int
    plan: int
    links: str
    """At its begin."""
    changes: bool
    """Whether links change within it."""
    begin_ns: int
    takes_ns: int
    simulated_ns: int
    first_ns: int
    """Simulated for the first plan in its order."""


def print_replay(plan: Plan, links: LinkTrace | None, found: AdaptingRuns, *, scale: float, choose: bool, as_json: bool) -> None:
    """Print what came of it.

    Args:
        plan: the first plan.
        links: how the links changed; None: they did not.
        found: the runs.
        scale: theirs.
        choose: whether ranks chose inside the step.
        as_json: whether to print one JSON object.
    """
    from schedc.view.terminal.results import console, plain_table, print_json

    simulated_ns = simulated_runs(found.plans, found.plan_of_run, found.begun_ns, links, choose=choose)
    first_ns = simulated_runs((plan,), [0] * len(found.runs_ns), found.begun_ns, links, choose=False)
    if as_json:
        print_json(_json(found, simulated_ns, first_ns, scale=scale))
        return
    out = console()
    how = ", ranks choose by what has come" if choose else ""
    out.print(f"emulated on this machine at scale {scale:g}{how}; all times are the plan's, the scale taken out", highlight=False)
    if not found.before_others:
        out.print("the system did not let the ranks run before other processes, so the machine's load shows in the times")
    for line in _moves(found):
        out.print(line, highlight=False, markup=False)
    headers = ("runs", "begin at", "links", "plan", "take", "simulated", "plan 0 in order")
    table = plain_table(right=headers)
    for (plan_number, shown, _), stretch in groupby(_runs(found, links, simulated_ns, first_ns), key=_alike):
        runs = list(stretch)
        last = "" if len(runs) == 1 else f"–{runs[-1].number}"
        medians_ns = (
            median(run.takes_ns for run in runs),
            median(run.simulated_ns for run in runs),
            median(run.first_ns for run in runs),
        )
        table.add_row(
            f"{runs[0].number}{last}",
            format_duration_ns(runs[0].begin_ns, 2),
            shown,
            str(plan_number),
            *(format_duration_ns(round(ns), 2) for ns in medians_ns),
        )
    out.print(table)
    left = 0 if links is None else sum(time_ns > found.begun_ns[-1] + found.runs_ns[-1] for time_ns, _ in links.entries)
    if left:
        out.print(f"{left} changes of the link trace come after the last run; --runs N runs more", highlight=False)


def simulated_runs(
    plans: Sequence[Plan], plan_of_run: Sequence[int], begun_ns: Sequence[int], links: LinkTrace | None, *, choose: bool
) -> list[int]:
    """What the simulator says of each run, under the costs of the first plan with the links that there were.

    Args:
        plans: the first is the one whose costs count.
        plan_of_run: of each run, the place of its plan.
        begun_ns: when each run began on the clock of the link trace.
        links: how they changed; None: they did not.
        choose: whether ranks choose.
    """
    from schedc.analysis.simulation.online import not_before, simulate_online
    from schedc.lower.conditions import problem_under

    problem = plans[0].problem
    planned = [not_before(plan.problem, plan.schedule()) if choose else None for plan in plans]
    unchanged: dict[tuple[int, str], int] = {}
    """By plan and conditions, what a run takes in which they do not change."""

    def takes_ns(number: int, entries: tuple[tuple[int, Conditions], ...]) -> int:
        later = [(time_ns, problem_under(problem, conditions)) for time_ns, conditions in entries]
        schedule = plans[number].schedule()
        return simulate_online(problem, schedule, later, choose=choose, planned=planned[number]).timeline.makespan_ns

    found = []
    for number, begin_ns in zip(plan_of_run, begun_ns, strict=True):
        entries = () if links is None else links.since(begin_ns).entries
        key = number, repr(entries[:1])
        if key not in unchanged:
            unchanged[key] = takes_ns(number, entries[:1])
        constant = len(entries) < 2 or entries[1][0] >= unchanged[key]
        found.append(unchanged[key] if constant else takes_ns(number, entries))
    return found


def _runs(found: AdaptingRuns, links: LinkTrace | None, simulated_ns: list[int], first_ns: list[int]) -> list[_Run]:
    runs = []
    for at, (begin_ns, takes_ns) in enumerate(zip(found.begun_ns, found.runs_ns, strict=True)):
        changes = links is not None and any(begin_ns < time_ns < begin_ns + takes_ns for time_ns, _ in links.entries)
        shown = "as planned" if links is None else _links(links.at(begin_ns))
        runs.append(_Run(at + 1, found.plan_of_run[at], shown, changes, begin_ns, takes_ns, simulated_ns[at], first_ns[at]))
    return runs


def _alike(run: _Run) -> tuple[int, str, int]:
    """What neighbouring runs have in common that are shown as one row."""
    return run.plan, f"{run.links}, then others" if run.changes else run.links, run.number if run.changes else 0


def _moves(found: AdaptingRuns) -> list[str]:
    """A line for each plan that was published, and what ended adapting."""
    lines = []
    for move in found.moves:
        what = f"plan {move.plan}" if move.plan else "back to plan 0"
        if move.run is not None:
            when = f"from run {move.run + 1} on" if move.run < len(found.runs_ns) else "after the last run"
        else:
            when = "not taken up before the end" if move.refusal is None else f"refused: {move.refusal}"
        before, after = (format_duration_ns(ns, 2) for ns in (move.before_ns, move.after_ns))
        lines.append(f"{what}, {when}: measured {_measured(move.conditions)}, with which a step takes {after}, before {before}")
    if not found.moves:
        lines.append("no other plan was published: none was worth a move, or what the ranks had measured was not enough yet")
    if found.ended is not None:
        lines.append(f"the ranks adapt no more: {found.ended}")
    return lines


def _measured(conditions: Conditions) -> str:
    """In words."""
    slow = [f"rank {rank}'s {kind.name} {factor - 1:+.0%}" for (rank, kind), factor in sorted(conditions.slowdown.items())]
    links = [] if slow and not conditions.links else [f"links {_links(conditions)}"]
    return ", ".join([*links, *slow])


def _links(conditions: Conditions) -> str:
    """In words, both ways of a pair as one where they are alike."""
    if not conditions.links:
        return "as planned"
    names = []
    for (source, destination), state in sorted(conditions.links.items()):
        both = conditions.links.get((destination, source)) == state
        if not both or source < destination:
            names.append(f"{source}{'-' if both else '>'}{destination} {_state(state)}")
    return ", ".join(names) if len(names) <= MOST_LINKS else f"{len(names)} links differ"


def _state(state: LinkState) -> str:
    latency = [] if state.latency_ns is None else [format_duration_ns(state.latency_ns, 1)]
    bandwidth = [] if state.bytes_per_second is None else [f"{state.bytes_per_second / 1e9:.3g} GB/s"]
    return " and ".join([*latency, *bandwidth])


def _json(found: AdaptingRuns, simulated_ns: list[int], first_ns: list[int], *, scale: float) -> dict[str, object]:
    return {
        "runs_ns": list(found.runs_ns),
        "runs_begin_ns": list(found.begun_ns),
        "plan_of_run": list(found.plan_of_run),
        "simulated_ns": simulated_ns,
        "first_plan_ns": first_ns,
        "plans": [
            {"sha256": sha256, "made_by": plan.made_by.method} for sha256, plan in zip(found.sha256, found.plans, strict=True)
        ],
        "moves": [
            {
                "plan": move.plan,
                "run": None if move.run is None else move.run + 1,
                "refusal": move.refusal,
                "before_ns": move.before_ns,
                "after_ns": move.after_ns,
                "links": [
                    {
                        "source": source,
                        "destination": destination,
                        "latency_ns": state.latency_ns,
                        "bytes_per_second": state.bytes_per_second,
                    }
                    for (source, destination), state in sorted(move.conditions.links.items())
                ],
                "slowdown": [
                    {"rank": rank, "kind": kind.name, "factor": factor}
                    for (rank, kind), factor in sorted(move.conditions.slowdown.items())
                ],
            }
            for move in found.moves
        ],
        "ended": found.ended,
        "before_others": found.before_others,
        "scale": scale,
    }
