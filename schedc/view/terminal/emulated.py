"""What `schedc emulate` shows: measured beside simulated, with plans that change (`--adapt`), or ranks that choose (`--choose`)."""

from __future__ import annotations

from functools import partial
from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any

from schedc.analysis.simulation.engines import Transfers
from schedc.compile.plans import moved_ops, simulated_runs, time_plan
from schedc.ir import Conditions, LinkTrace, Plan
from schedc.view.document import Block, Table, duration, picked, right
from schedc.view.terminal.comparison import comparison_json, shown_comparison

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from schedc.analysis.comparison.compare import Comparison
    from schedc.runtime.emulation.emulate import AdaptingRuns, Emulation

MOST_LINKS = 3
"""More are counted, not named."""
_time = partial(duration, decimals=2)
LOADED = "the system did not let the ranks run before other processes, so the machine's load shows in the times"


def emulation_json(plan: Plan, emulation: Emulation, comparison: Comparison, *, queues: int, traced: bool) -> dict[str, Any]:
    """The object of `emulate --json`; with when each run began if the links changed by a trace."""
    planned_ns, measured_ns = zip(*_idle(comparison), strict=True)
    return {
        **comparison_json(plan, emulation.trace, comparison),
        "queues": queues,
        "before_others": emulation.before_others,
        "predicted_idle_ns": planned_ns,
        "measured_idle_ns": measured_ns,
        **({"runs_begin_ns": emulation.begun_ns} if traced else {}),
    }


def shown_emulation(
    plan: Plan, emulation: Emulation, comparison: Comparison, *, queues: int, traced: bool, written: Iterable[tuple[str, Path]]
) -> Iterator[Block]:
    """The runs, what the ranks are idle, and the comparison with the plan."""
    how = "all transfers of a rank in one queue" if queues == 1 else "every channel a queue of its own"
    yield f"emulated on this machine at scale {emulation.trace.scale:g}, {how}; all times below are the plan's, the scale taken out"
    if queues == 1:
        queued_ns, measured_ns = time_plan(plan, transfers=Transfers.ONE_QUEUE).makespan_ns, comparison.measured.median_ns
        off = f"{measured_ns / max(1, queued_ns) - 1:+.2%}"
        yield f"simulated with one queue {duration(queued_ns)}, measured {duration(measured_ns)}, {off}"
    if traced:
        makespan_ns = max(1, plan.certificate.makespan_ns)
        rows = [
            (str(run), _time(begin_ns), _time(taken_ns), f"{taken_ns / makespan_ns - 1:+.1%}")
            for run, (begin_ns, (_, taken_ns)) in enumerate(zip(emulation.begun_ns, comparison.steps, strict=True), start=1)
        ]
        yield Table(title="runs while the links change", columns=right("run", "begins at", "takes", "against the plan"), rows=rows)
        yield ""
    if not emulation.before_others:
        yield LOADED
    idle = [(str(rank), *map(_time, both_ns)) for rank, both_ns in enumerate(_idle(comparison))]
    yield Table(title="time without compute", columns=right("rank", "predicted", "measured"), rows=idle)
    yield ""
    yield from shown_comparison(plan, emulation.trace, comparison, written)


def _idle(comparison: Comparison) -> Iterator[tuple[int, int]]:
    """By rank, the time without compute: as planned, and in the run that is looked at."""
    for rank in comparison.ranks:
        yield rank.planned.waiting_ns + rank.planned.idle_ns, rank.measured.waiting_ns + rank.measured.idle_ns


Times = dict[str, list[int]]
"""By name, a number for each run."""


def choosing_times(plan: Plan, links: LinkTrace | None, emulated: Emulation) -> Times:
    """What the simulator says of ranks that choose, and of the plan's orders; how many ops ran at another place.

    Runs are simulated under the links that there were; None: they did not change.
    """
    numbers = [0] * len(emulated.runs_ns)
    return {
        "simulated_ns": simulated_runs((plan,), numbers, emulated.begun_ns, links, choose=True),
        "as_planned_ns": simulated_runs((plan,), numbers, emulated.begun_ns, links, choose=False),
        "moved_ops": [moved_ops(plan.schedule().orders, orders) for orders in emulated.orders],
    }


def choosing_json(emulated: Emulation, times: Times, *, scale: float) -> dict[str, Any]:
    """The object of `emulate --choose --json`."""
    return {**picked(emulated, "runs_ns before_others"), "runs_begin_ns": emulated.begun_ns, **times, "scale": scale}


def shown_choosing(emulated: Emulation, times: Times, *, scale: float) -> Iterator[Block]:
    """Each run beside what the simulator says of it, choosing and in the plan's order."""
    how = "ranks choose by what has come; all times are the plan's, the scale taken out"
    yield f"emulated on this machine at scale {scale:g}, {how}"
    if not emulated.before_others:
        yield LOADED
    rows = []
    runs = enumerate(zip(emulated.begun_ns, emulated.runs_ns, *times.values(), strict=True), start=1)
    for run, (begin_ns, taken_ns, simulated_ns, planned_ns, moved) in runs:
        off = f"{taken_ns / max(1, simulated_ns) - 1:+.2%}"
        rows.append((str(run), *map(_time, (begin_ns, taken_ns, simulated_ns)), off, _time(planned_ns), str(moved)))
    yield Table(columns=right("run", "begins at", "takes", "simulated", "off", "in the plan's order", "ops moved"), rows=rows)


def replay_times(plan: Plan, links: LinkTrace | None, found: AdaptingRuns, *, choose: bool) -> Times:
    """What the simulator says of the plan that ran, and of the first plan in its order, under the links that there were."""
    return {
        "simulated_ns": simulated_runs(found.plans, found.plan_of_run, found.begun_ns, links, choose=choose),
        "first_plan_ns": simulated_runs((plan,), [0] * len(found.runs_ns), found.begun_ns, links, choose=False),
    }


def shown_replay(links: LinkTrace | None, found: AdaptingRuns, times: Times, *, scale: float, choose: bool) -> Iterator[Block]:
    """Steps of several plans while links change, and when and why the plan changed; neighbours that are alike are one row."""
    how = ", ranks choose by what has come" if choose else ""
    yield f"emulated on this machine at scale {scale:g}{how}; all times are the plan's, the scale taken out"
    if not found.before_others:
        yield LOADED
    yield from _moves(found)
    changed_ns = [] if links is None else [time_ns for time_ns, _ in links.entries]
    under = ["as planned" if links is None else _links(links.at(begin_ns)) for begin_ns in found.begun_ns]

    def alike(run: int) -> tuple[int, str, int]:
        begin_ns = found.begun_ns[run]
        changes = any(begin_ns < time_ns < begin_ns + found.runs_ns[run] for time_ns in changed_ns)
        return found.plan_of_run[run], under[run] + ", then others" * changes, run if changes else -1

    rows = []
    for (number, shown, _), stretch in groupby(range(len(found.runs_ns)), key=alike):
        first, *others = stretch
        end = first + len(others) + 1
        medians_ns = [round(median(each[first:end])) for each in (found.runs_ns, *times.values())]
        numbers = f"{first + 1}–{end}" if others else str(end)
        rows.append((numbers, _time(found.begun_ns[first]), shown, str(number), *map(_time, medians_ns)))
    yield Table(columns=right("runs", "begin at", "links", "plan", "take", "simulated", "plan 0 in order"), rows=rows)
    left = sum(time_ns > found.begun_ns[-1] + found.runs_ns[-1] for time_ns in changed_ns)
    if left:
        yield f"{left} changes of the link trace come after the last run; --runs N runs more"


def _moves(found: AdaptingRuns) -> Iterator[str]:
    """A line for each plan that was published, and what ended adapting."""
    for move in found.moves:
        what = f"plan {move.plan}" if move.plan else "back to plan 0"
        if move.run is not None:
            when = f"from run {move.run + 1} on" if move.run < len(found.runs_ns) else "after the last run"
        else:
            when = "not taken up before the end" if move.refusal is None else f"refused: {move.refusal}"
        after, before = _time(move.after_ns), _time(move.before_ns)
        yield f"{what}, {when}: measured {_measured(move.conditions)}, with which a step takes {after}, before {before}"
    if not found.moves:
        yield "no other plan was published: none was worth a move, or what the ranks had measured was not enough yet"
    if found.ended is not None:
        yield f"the ranks adapt no more: {found.ended}"


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
            latency = [] if state.latency_ns is None else [duration(state.latency_ns, 1)]
            bandwidth = [] if state.bytes_per_second is None else [f"{state.bytes_per_second / 1e9:.3g} GB/s"]
            names.append(f"{source}{'-' if both else '>'}{destination} {' and '.join([*latency, *bandwidth])}")
    return ", ".join(names) if len(names) <= MOST_LINKS else f"{len(names)} links differ"


def replay_json(found: AdaptingRuns, times: Times, *, scale: float) -> dict[str, Any]:
    """The object of `emulate --adapt --json`."""
    moves = []
    for move in found.moves:
        links, slow = sorted(move.conditions.links.items()), sorted(move.conditions.slowdown.items())
        moves.append(
            {
                **picked(move, "plan refusal before_ns after_ns"),
                "run": None if move.run is None else move.run + 1,
                "links": [
                    {"source": source, "destination": destination, **picked(state, "latency_ns bytes_per_second")}
                    for (source, destination), state in links
                ],
                "slowdown": [{"rank": rank, "kind": kind, "factor": factor} for (rank, kind), factor in slow],
            }
        )
    return {
        **picked(found, "runs_ns plan_of_run ended before_others"),
        "runs_begin_ns": found.begun_ns,
        **times,
        "plans": [
            {"sha256": sha256, "made_by": plan.made_by.method} for sha256, plan in zip(found.sha256, found.plans, strict=True)
        ],
        "moves": moves,
        "scale": scale,
    }
