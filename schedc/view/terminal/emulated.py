"""What `schedc emulate` shows: measured beside simulated, with plans that change (`--adapt`), or ranks that choose (`--choose`)."""

from __future__ import annotations

from itertools import groupby
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.analysis.simulation.engines import Transfers
from schedc.analysis.simulation.online import not_before, simulate_online
from schedc.compile.plans import time_plan
from schedc.lower.problem import problem_under
from schedc.units import format_duration_ns
from schedc.view.document import Block, Table, right
from schedc.view.terminal.comparison import comparison_json, shown_comparison
from schedc.view.terminal.show import picked

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schedc.analysis.comparison.compare import Comparison
    from schedc.ir.conditions import Conditions, LinkState, LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.schedule import Schedule
    from schedc.runtime.emulation.emulate import AdaptingRuns, Emulation

MOST_LINKS = 3
"""More are counted, not named."""
LOADED = "the system did not let the ranks run before other processes, so the machine's load shows in the times"


def emulation_json(plan: Plan, emulation: Emulation, comparison: Comparison, *, queues: int, traced: bool) -> dict[str, Any]:
    """The object of `emulate --json`; with when each run began if the links changed by a trace."""
    began = {"runs_begin_ns": emulation.begun_ns} if traced else {}
    more = {"queues": queues, "before_others": emulation.before_others, **_idle_lists(comparison), **began}
    return {**comparison_json(plan, emulation.trace, comparison), **more}


def shown_emulation(
    plan: Plan, emulation: Emulation, comparison: Comparison, *, queues: int, traced: bool, written: Iterable[tuple[str, Path]]
) -> Iterator[Block]:
    """The runs, what the ranks are idle, and the comparison with the plan."""
    how = "all transfers of a rank in one queue" if queues == 1 else "every channel a queue of its own"
    yield f"emulated on this machine at scale {emulation.trace.scale:g}, {how}; all times below are the plan's, the scale taken out"
    if queues == 1:
        queued_ns, measured_ns = time_plan(plan, transfers=Transfers.ONE_QUEUE).makespan_ns, comparison.measured.median_ns
        simulated, measured = format_duration_ns(queued_ns), format_duration_ns(measured_ns)
        yield f"simulated with one queue {simulated}, measured {measured}, {measured_ns / max(1, queued_ns) - 1:+.2%}"
    if traced:
        makespan_ns = plan.certificate.makespan_ns
        rows = [
            (str(run), _time(begin_ns), _time(taken_ns), f"{taken_ns / max(1, makespan_ns) - 1:+.1%}")
            for run, (begin_ns, (_, taken_ns)) in enumerate(zip(emulation.begun_ns, comparison.steps, strict=True), start=1)
        ]
        yield Table(title="runs while the links change", columns=right("run", "begins at", "takes", "against the plan"), rows=rows)
        yield ""
    if not emulation.before_others:
        yield LOADED
    idle = enumerate(zip(*_idle_lists(comparison).values(), strict=True))
    rows_of_ranks = [(str(rank), *map(_time, both_ns)) for rank, both_ns in idle]
    yield Table(title="time without compute", columns=right("rank", "predicted", "measured"), rows=rows_of_ranks)
    yield ""
    yield from shown_comparison(plan, emulation.trace, comparison, written)


def _idle_lists(comparison: Comparison) -> dict[str, list[int]]:
    """By rank, the time without compute: as planned, and in the run that is looked at."""
    return {
        name: [account.waiting_ns + account.idle_ns for account in accounts]
        for name, accounts in (
            ("predicted_idle_ns", [rank.planned for rank in comparison.ranks]),
            ("measured_idle_ns", [rank.measured for rank in comparison.ranks]),
        )
    }


class ChoosingTimes(NamedTuple):
    """By run, what the simulator says of ranks that choose, and of the plan's orders; how many ops ran at another place."""

    simulated_ns: list[int]
    as_planned_ns: list[int]
    moved_ops: list[int]


def choosing_times(plan: Plan, links: LinkTrace | None, emulated: Emulation) -> ChoosingTimes:
    """Simulate the runs under the links that there were; None: they did not change."""
    runs = len(emulated.runs_ns)
    simulated_ns, planned_ns = (
        simulated_runs((plan,), [0] * runs, emulated.begun_ns, links, choose=choose) for choose in (True, False)
    )
    return ChoosingTimes(simulated_ns, planned_ns, [moved_ops(plan.schedule().orders, orders) for orders in emulated.orders])


def moved_ops(planned: Sequence[Sequence[Any]], ran: Sequence[Sequence[Any]]) -> int:
    """How many ops run at another place of their rank's order."""
    pairs = zip(planned, ran, strict=True)
    return sum(before != after for before_after in pairs for before, after in zip(*before_after, strict=True))


def choosing_json(emulated: Emulation, times: ChoosingTimes, *, scale: float) -> dict[str, Any]:
    """The object of `emulate --choose --json`."""
    runs = {"runs_begin_ns": emulated.begun_ns, **times._asdict()}
    return {**picked(emulated, "runs_ns before_others"), **runs, "scale": scale}


def shown_choosing(emulated: Emulation, times: ChoosingTimes, *, scale: float) -> Iterator[Block]:
    """Each run beside what the simulator says of it, choosing and in the plan's order."""
    how = "ranks choose by what has come; all times are the plan's, the scale taken out"
    yield f"emulated on this machine at scale {scale:g}, {how}"
    if not emulated.before_others:
        yield LOADED
    rows = []
    for run, (begin_ns, taken_ns) in enumerate(zip(emulated.begun_ns, emulated.runs_ns, strict=True)):
        simulated_ns, planned_ns, moved = (each[run] for each in times)
        off = f"{taken_ns / max(1, simulated_ns) - 1:+.2%}"
        rows.append((str(run + 1), *map(_time, (begin_ns, taken_ns, simulated_ns)), off, _time(planned_ns), str(moved)))
    headers = ("run", "begins at", "takes", "simulated", "off", "in the plan's order", "ops moved")
    yield Table(columns=right(*headers), rows=rows)


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
    problem = plans[0].problem
    planned = [not_before(plan.problem, plan.schedule()) if choose else None for plan in plans]
    unchanged: dict[tuple[int, str], int] = {}
    """By plan and conditions, what a run takes in which they do not change."""

    def takes_ns(number: int, entries: tuple[tuple[int, Conditions], ...]) -> int:
        later = [(time_ns, problem_under(problem, conditions)) for time_ns, conditions in entries]
        schedule: Schedule = plans[number].schedule()
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


class ReplayTimes(NamedTuple):
    """By run, what the simulator says of the plan that ran, and of the first plan in its order."""

    simulated_ns: list[int]
    first_plan_ns: list[int]


def replay_times(plan: Plan, links: LinkTrace | None, found: AdaptingRuns, *, choose: bool) -> ReplayTimes:
    """Simulate the runs under the links that there were; None: they did not change."""
    return ReplayTimes(
        simulated_runs(found.plans, found.plan_of_run, found.begun_ns, links, choose=choose),
        simulated_runs((plan,), [0] * len(found.runs_ns), found.begun_ns, links, choose=False),
    )


def shown_replay(
    links: LinkTrace | None, found: AdaptingRuns, times: ReplayTimes, *, scale: float, choose: bool
) -> Iterator[Block]:
    """Steps of several plans while links change, and when and why the plan changed.

    Args:
        links: how the links changed; None: they did not.
        found: the runs.
        times: what the simulator says of them.
        scale: theirs.
        choose: whether ranks chose inside the step.
    """
    how = ", ranks choose by what has come" if choose else ""
    yield f"emulated on this machine at scale {scale:g}{how}; all times are the plan's, the scale taken out"
    if not found.before_others:
        yield LOADED
    yield from _moves(found)
    rows = []
    for (plan_number, shown, _), stretch in groupby(_runs(found, links, times), key=_alike):
        runs = list(stretch)
        numbers = f"{runs[0].number}" if len(runs) == 1 else f"{runs[0].number}–{runs[-1].number}"
        medians_ns = (round(median(each)) for each in zip(*(run.times_ns for run in runs), strict=True))
        rows.append((numbers, _time(runs[0].begin_ns), shown, str(plan_number), *map(_time, medians_ns)))
    headers = ("runs", "begin at", "links", "plan", "take", "simulated", "plan 0 in order")
    yield Table(columns=right(*headers), rows=rows)
    left = 0 if links is None else sum(time_ns > found.begun_ns[-1] + found.runs_ns[-1] for time_ns, _ in links.entries)
    if left:
        yield f"{left} changes of the link trace come after the last run; --runs N runs more"


class _Run(NamedTuple):
    """What is known of one run."""

    number: int
    plan: int
    links: str
    """At its begin."""
    changes: bool
    """Whether links change within it."""
    begin_ns: int
    times_ns: tuple[int, int, int]
    """Measured, simulated, and simulated for the first plan in its order."""


def _runs(found: AdaptingRuns, links: LinkTrace | None, times: ReplayTimes) -> Iterator[_Run]:
    for at, (begin_ns, takes_ns) in enumerate(zip(found.begun_ns, found.runs_ns, strict=True)):
        changes = links is not None and any(begin_ns < time_ns < begin_ns + takes_ns for time_ns, _ in links.entries)
        shown = "as planned" if links is None else _links(links.at(begin_ns))
        times_ns = takes_ns, times.simulated_ns[at], times.first_plan_ns[at]
        yield _Run(at + 1, found.plan_of_run[at], shown, changes, begin_ns, times_ns)


def _alike(run: _Run) -> tuple[int, str, int]:
    """What neighbouring runs have in common that are shown as one row."""
    return run.plan, f"{run.links}, then others" if run.changes else run.links, run.number if run.changes else 0


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
            names.append(f"{source}{'-' if both else '>'}{destination} {_state(state)}")
    return ", ".join(names) if len(names) <= MOST_LINKS else f"{len(names)} links differ"


def _state(state: LinkState) -> str:
    latency = [] if state.latency_ns is None else [format_duration_ns(state.latency_ns, 1)]
    bandwidth = [] if state.bytes_per_second is None else [f"{state.bytes_per_second / 1e9:.3g} GB/s"]
    return " and ".join([*latency, *bandwidth])


def replay_json(found: AdaptingRuns, times: ReplayTimes, *, scale: float) -> dict[str, Any]:
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
        **times._asdict(),
        "plans": [
            {"sha256": sha256, "made_by": plan.made_by.method} for sha256, plan in zip(found.sha256, found.plans, strict=True)
        ],
        "moves": moves,
        "scale": scale,
    }


def _time(duration_ns: int) -> str:
    return format_duration_ns(duration_ns, 2)
