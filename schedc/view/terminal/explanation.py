"""What `schedc explain` prints: a page of at most 100 columns, the most important first; or one JSON object with all of it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from rich.text import Text

from schedc.ir.ops import Op, token
from schedc.spelling import counted
from schedc.study.explain.changes import ChangeKind
from schedc.units import format_duration_ns
from schedc.view.terminal.results import console, plain_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.table import Table

    from schedc.analysis.attribution.critical_path import Segment
    from schedc.analysis.attribution.idle import Idle
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.ir.plan import Plan
    from schedc.study.explain.delays import LinkDelay
    from schedc.study.explain.explain import Explanation, Gain

WIDTH = 100
MOST_RANKS = 8
"""Rows of ranks."""
MOST_LINKS = 6
"""Rows of links, and of neighbours."""
MOST_CAUSES = 3
"""Of one rank."""


def print_explanation(plan: Plan, explanation: Explanation) -> None:
    """Print it, no wider than 100 columns."""
    out = console(piped_width=WIDTH)
    out.width = min(out.width, WIDTH)
    problem = plan.problem
    worth = _better(explanation)
    out.print(
        f"{plan.name}: {counted(problem.ranks, 'rank')}, {counted(problem.microbatches, 'microbatch')}, by {plan.made_by.method};"
        f" makespan {_time(explanation.timeline.makespan_ns)}{worth}",
        style="bold",
    )
    out.print("\nThe critical path", style="bold")
    out.print(_path_table(explanation))
    more = f": the {MOST_RANKS} ranks with most of it (--json has all)" if problem.ranks > MOST_RANKS else ""
    out.print(f"\nIdle time of the ranks, in shares of the step{more}", style="bold")
    out.print(_idle_table(explanation))
    searched = any(gain.searched for gain in explanation.gains)
    limit = _time(round(explanation.time_limit_s * 1e9))
    again = f": {_time(explanation.base_ns)} now, each change solved again, all within {limit}" if searched else ""
    out.print(f"\nWhat would help{again}", style="bold")
    if searched:
        out.print(_gain_table(explanation))
    for line in _gain_lines(explanation):
        out.print(line)
    if explanation.delays:
        allowed = _percent(explanation.allowed)
        out.print(f"\nLatency that can be added to one link, the step no longer or ≤ {allowed} longer", style="bold")
        out.print(_delay_table(explanation))
        if len(explanation.delays) > MOST_LINKS:
            out.print(f"and {len(explanation.delays) - MOST_LINKS} more links, which tolerate more; --json has all")
        if not explanation.delays_are_exact:
            out.print("links share trunks, where other latencies change who goes first: more may be tolerated")
    if explanation.pairs:
        out.print("\nDelay of messages between neighbours, both ways, that does not cascade", style="bold")
        out.print(_pair_table(explanation))
    if explanation.interrupted:
        out.print("interrupted: not all was solved again")


def explanation_json(plan: Plan, explanation: Explanation) -> dict[str, Any]:
    """The object of `explain --json`."""
    timeline = explanation.timeline
    return {
        "plan": plan.name,
        "makespan_ns": timeline.makespan_ns,
        "critical_path": [_segment_json(timeline, segment) for segment in explanation.path],
        "ranks": [
            {
                "rank": rank,
                "busy_ns": busy_ns,
                "idle_ns": explanation.timeline.makespan_ns - busy_ns,
                "idle": [{**asdict(idle), "cause": idle.cause.text} for idle in causes],
            }
            for rank, (busy_ns, causes) in enumerate(zip(timeline.busy_ns, explanation.idle, strict=True))
        ],
        "allowed": explanation.allowed,
        "links": [asdict(delay) for delay in explanation.delays],
        "links_exact": explanation.delays_are_exact,
        "neighbours": [{**asdict(pair.rule), "exact_ns": pair.exact_ns} for pair in explanation.pairs],
        "objective": explanation.objective.value,
        "planned_ns": explanation.planned_ns,
        "best_known_ns": explanation.base_ns,
        "lower_bound_ns": explanation.base_bound_ns,
        "changes": [_gain_json(gain) for gain in explanation.gains],
        "not_tried": list(explanation.not_tried),
        "time_limit_s": explanation.time_limit_s,
        "interrupted": explanation.interrupted,
    }


def _segment_json(timeline: Timeline, segment: Segment) -> dict[str, Any]:
    name = None
    if segment.op is not None:
        name = token(Op(*timeline.ops[segment.op].tolist()))
    elif segment.collective is not None:
        name = timeline.collectives[segment.collective].collective.token
    return {
        "kind": segment.kind.value,
        "what": name,
        "rank": segment.rank,
        "destination": segment.destination,
        "start_ns": segment.start_ns,
        "end_ns": segment.end_ns,
    }


def _gain_json(gain: Gain) -> dict[str, Any]:
    return {
        "change": gain.change.kind.value,
        "text": gain.change.text,
        "rank": gain.change.source,
        "destination": gain.change.destination,
        "before_ns": gain.before_ns,
        "after_ns": gain.after_ns,
        "lower_bound_ns": gain.lower_bound_ns,
        "microbatches": gain.microbatches_after,
        "gain": gain.share,
        "searched": gain.searched,
        "proven": gain.is_proven,
    }


def _better(explanation: Explanation) -> str:
    """What is known of the plan's own problem."""
    planned_ns, base_ns, bound_ns = explanation.planned_ns, explanation.base_ns, explanation.base_bound_ns
    name = "" if explanation.objective.value == "makespan" else f", {explanation.objective.value} {_time(planned_ns)}"
    if base_ns < planned_ns:
        return f"{name}; solved again {_time(base_ns)}"
    if base_ns == bound_ns:
        return f"{name}, proven optimal"
    return f"{name}, no schedule is more than {1 - bound_ns / planned_ns:.2%} shorter" if planned_ns else name


def _path_table(explanation: Explanation) -> Table:
    """The critical path by kind, with where most of each kind is."""
    table = plain_table()
    table.add_column("", no_wrap=True, min_width=14)
    for header, width in (("time", 9), ("share", 6)):
        table.add_column(header, justify="right", no_wrap=True, min_width=width)
    table.add_column("most of it", overflow="ellipsis")
    total_ns = max(1, explanation.timeline.makespan_ns)
    times_ns, places = Counter[str](), dict[str, Counter[str]]()
    for segment in explanation.path:
        where = f"rank {segment.rank}" if segment.destination is None else f"link {segment.rank}>{segment.destination}"
        times_ns[segment.kind.value] += segment.length_ns
        places.setdefault(segment.kind.value, Counter())[where] += segment.length_ns
    for kind, time_ns in times_ns.most_common():
        most = ", ".join(f"{where} {_percent(spent_ns / total_ns)}" for where, spent_ns in places[kind].most_common(4))
        table.add_row(kind, _time(time_ns), _percent(time_ns / total_ns), _cut(most))
    return table


def _idle_table(explanation: Explanation) -> Table:
    """The ranks with most idle time, by rank, each with what it waits for."""
    total_ns = max(1, explanation.timeline.makespan_ns)
    idle_ns = [explanation.timeline.makespan_ns - busy_ns for busy_ns in explanation.timeline.busy_ns]
    shown = sorted(sorted(range(len(idle_ns)), key=lambda rank: -idle_ns[rank])[:MOST_RANKS])
    table = plain_table()
    for header, width in (("rank", 4), ("idle", 6)):
        table.add_column(header, justify="right", no_wrap=True, min_width=width)
    table.add_column("waiting for", overflow="ellipsis")
    for rank in shown:
        causes = ", ".join(
            f"{name} {_percent(time_ns / total_ns)}" for name, time_ns in _causes(rank, explanation.idle[rank], total_ns)
        )
        table.add_row(str(rank), _percent(idle_ns[rank] / total_ns), _cut(causes or "–"))
    return table


def _causes(rank: int, causes: Iterable[Idle], total_ns: int) -> list[tuple[str, int]]:
    """The causes of a rank in words, those of one link together, the largest first, the small ones as one."""
    named = Counter[str]()
    for idle in causes:
        named[_cause(rank, idle)] += idle.idle_ns
    found = named.most_common()
    kept = [(name, time_ns) for name, time_ns in found[:MOST_CAUSES] if time_ns * 1000 >= total_ns]
    rest_ns = sum(named.values()) - sum(time_ns for _, time_ns in kept)
    return [*kept, *([("others", rest_ns)] if rest_ns * 1000 >= total_ns else [])]


def _cause(rank: int, idle: Idle) -> str:
    if idle.destination is not None:
        return f"link {idle.rank}>{idle.destination}"
    if idle.cause.text == "compute":
        return f"compute of {idle.rank}"
    return idle.cause.text if idle.rank == rank else f"{idle.cause.text} of {idle.rank}"


def _gain_table(explanation: Explanation) -> Table:
    """What would help, the most first."""
    several = any(gain.microbatches_after != gain.microbatches_before for gain in explanation.gains)
    table = plain_table()
    table.add_column("change", no_wrap=True, overflow="ellipsis")
    table.add_column(explanation.objective.value, justify="right", no_wrap=True)
    table.add_column("saves" + " per microbatch" * several, justify="right", no_wrap=True)
    table.add_column("lower bound", justify="right", no_wrap=True)
    for gain in explanation.gains:
        if gain.searched:
            bound = "optimal" if gain.is_proven else _time(gain.lower_bound_ns)
            table.add_row(gain.change.text, _time(gain.after_ns), f"{gain.share:.2%}", bound)
    return table


def _gain_lines(explanation: Explanation) -> list[str]:
    """What gains nothing, and what was not tried."""
    nothing = [gain for gain in explanation.gains if not gain.searched]
    links = sorted(
        (gain.change.source or 0, gain.change.destination or 0) for gain in nothing if gain.change.kind is ChangeKind.LINK
    )
    ranks = sorted(gain.change.source or 0 for gain in nothing if gain.change.kind is ChangeKind.MEMORY)
    said = []
    if links:
        shown = [f"{source}>{destination}" for source, destination in links]
        said.append(
            f"faster link{'s' * (len(shown) > 1)} {', '.join(shown)}"
            if len(shown) <= MOST_LINKS
            else f"{len(links)} other links faster"
        )
    if ranks:
        said.append(f"more memory on rank{'s' * (len(ranks) > 1)} {_ranges(ranks)}")
    lines = [f"saves nothing, by the lower bounds: {'; '.join(said)}"] if said else []
    reasons: dict[str, list[str]] = {}
    for what, _, reason in (each.partition(": ") for each in explanation.not_tried):
        reasons.setdefault(reason, []).append(what)
    return [*lines, *(f"not tried: {', '.join(what)}: {reason}" for reason, what in reasons.items())]


def _delay_table(explanation: Explanation) -> Table:
    """The links that tolerate least."""
    allowed = _percent(explanation.allowed)
    table = plain_table()
    for header in ("link", "message slack", "no longer", f"≤ {allowed} longer", "solved again", "proven too much"):
        table.add_column(header, justify="left" if header == "link" else "right", no_wrap=True)
    for delay in explanation.delays[:MOST_LINKS]:
        table.add_row(f"{delay.source}>{delay.destination}", *_delay_cells(delay))
    return table


def _delay_cells(delay: LinkDelay) -> list[str]:
    found = delay.resolved
    again = ["–", "–"] if found is None else [_time(found.tolerated_ns), _time(found.impossible_ns)]
    return [_time(delay.slack_ns), _time(delay.free_ns), _time(delay.allowed_ns), *again]


def _pair_table(explanation: Explanation) -> Table:
    """The neighbours whose delay is nearest to what PipeMorph's rule tolerates."""
    table = plain_table()
    for header in ("ranks", "slackness", "now", "PipeMorph's Eq. 1", "simulated"):
        table.add_column(header, justify="left" if header == "ranks" else "right", no_wrap=True)
    pairs = sorted(explanation.pairs, key=lambda pair: pair.rule.tolerated_ns - pair.rule.delay_ns)[:MOST_LINKS]
    for pair in sorted(pairs, key=lambda pair: pair.rule.source):
        rule = pair.rule
        by_rule = "none" if rule.tolerated_ns < 0 else _time(rule.tolerated_ns)
        exact = "any" if pair.exact_ns is None else _time(pair.exact_ns)
        table.add_row(f"{rule.source}–{rule.destination}", str(rule.slackness), _time(rule.delay_ns), by_rule, exact)
    return table


def _cut(content: str) -> Text:
    """A cell of one line, which ends with … where the table is too narrow for it."""
    return Text(content, overflow="ellipsis", no_wrap=True)


def _ranges(numbers: Sequence[int]) -> str:
    """`0-3, 5`."""
    texts = []
    for _, run in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0]):
        ends = [number for _, number in run]
        texts.append(str(ends[0]) if len(ends) == 1 else f"{ends[0]}-{ends[-1]}")
    return ", ".join(texts)


def _time(time_ns: int) -> str:
    return format_duration_ns(time_ns, 2)


def _percent(share: float) -> str:
    return f"{share:.1%}"
