"""What `schedc explain` shows: a page of at most 100 columns, the most important first; or one object with all of it."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from schedc.ir import Op, Plan, token
from schedc.spelling import ranges
from schedc.study.explain.changes import ChangeKind
from schedc.view.document import Block, Column, Line, Table, duration, number, picked, plain, right
from schedc.view.terminal.gantt import counts_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.analysis.attribution.idle import Idle
    from schedc.analysis.attribution.waits import Segment
    from schedc.analysis.simulation.timeline import Timeline
    from schedc.study.explain.explain import Explanation, Gain

_time, _percent = partial(duration, decimals=2), partial(number, pattern=".1%")
WIDTH = 100
MOST_RANKS = 8
"""Rows of ranks."""
MOST_LINKS = 6
"""Rows of links, and of neighbours."""
MOST_CAUSES = 3
"""Of one rank."""


def shown_explanation(plan: Plan, explanation: Explanation) -> Iterator[Block]:
    """All of it, to be shown in at most `WIDTH` columns."""
    problem = plan.problem
    makespan = f"makespan {_time(explanation.timeline.makespan_ns)}{_better(explanation)}"
    yield Line(f"{plan.name}: {counts_of(problem)}, by {plan.made_by.method}; {makespan}", "bold")
    yield Line("\nThe critical path", "bold")
    yield _path_table(explanation)
    more = f": the {MOST_RANKS} ranks with most of it (--json has all)" if problem.ranks > MOST_RANKS else ""
    yield Line(f"\nIdle time of the ranks, in shares of the step{more}", "bold")
    yield _idle_table(explanation)
    searched = any(gain.searched for gain in explanation.gains)
    limit = _time(round(explanation.time_limit_s * 1e9))
    again = f": {_time(explanation.base_ns)} now, each change solved again, all within {limit}" if searched else ""
    yield Line(f"\nWhat would help{again}", "bold")
    if searched:
        several = any(gain.microbatches_after != gain.microbatches_before for gain in explanation.gains)
        numbers = right(explanation.objective, "saves" + " per microbatch" * several, "lower bound", wrap="never")
        gains = []
        for gain in filter(lambda each: each.searched, explanation.gains):
            bound = "optimal" if gain.is_proven else _time(gain.lower_bound_ns)
            gains.append((gain.change.text, _time(gain.after_ns), number(gain.share), bound))
        yield Table(columns=(Column("change", wrap="cut"), *numbers), rows=gains)
    yield from _gain_lines(explanation)
    if explanation.delays:
        allowed = _percent(explanation.allowed)
        yield Line(f"\nLatency that can be added to one link, the step no longer or ≤ {allowed} longer", "bold")
        delays = []
        for delay in explanation.delays[:MOST_LINKS]:
            resolved = delay.resolved
            solved_ns = (None, None) if resolved is None else (resolved.tolerated_ns, resolved.impossible_ns)
            times_ns = (delay.slack_ns, delay.free_ns, delay.allowed_ns, *solved_ns)
            delays.append((f"{delay.source}>{delay.destination}", *map(_time, times_ns)))
        numbers = right("message slack", "no longer", f"≤ {allowed} longer", "solved again", "proven too much", wrap="never")
        yield Table(columns=(Column("link", wrap="never"), *numbers), rows=delays)
        if len(explanation.delays) > MOST_LINKS:
            yield f"and {len(explanation.delays) - MOST_LINKS} more links, which tolerate more; --json has all"
        if not explanation.delays_are_exact:
            yield "links share trunks, where other latencies change who goes first: more may be tolerated"
    if explanation.pairs:
        yield Line("\nDelay of messages between neighbours, both ways, that does not cascade", "bold")
        nearest = sorted(explanation.pairs, key=lambda pair: pair.rule.tolerated_ns - pair.rule.delay_ns)[:MOST_LINKS]
        pairs = []
        for rule, exact_ns in sorted(((pair.rule, pair.exact_ns) for pair in nearest), key=lambda pair: pair[0].source):
            by_rule = "none" if rule.tolerated_ns < 0 else _time(rule.tolerated_ns)
            exact = "any" if exact_ns is None else _time(exact_ns)
            pairs.append((f"{rule.source}–{rule.destination}", str(rule.slackness), _time(rule.delay_ns), by_rule, exact))
        numbers = right("slackness", "now", "PipeMorph's Eq. 1", "simulated", wrap="never")
        yield Table(columns=(Column("ranks", wrap="never"), *numbers), rows=pairs)
    if explanation.interrupted:
        yield "interrupted: not all was solved again"


def explanation_json(plan: Plan, explanation: Explanation) -> dict[str, Any]:
    """The object of `explain --json`."""
    timeline = explanation.timeline
    ranks = [
        {
            "rank": rank,
            "busy_ns": busy_ns,
            "idle_ns": timeline.makespan_ns - busy_ns,
            "idle": [{**plain(idle), "cause": idle.cause.text} for idle in causes],
        }
        for rank, (busy_ns, causes) in enumerate(zip(timeline.busy_ns, explanation.idle, strict=True))
    ]
    return {
        "plan": plan.name,
        "makespan_ns": timeline.makespan_ns,
        "critical_path": [_segment_json(timeline, segment) for segment in explanation.path],
        "ranks": ranks,
        "links": explanation.delays,
        "links_exact": explanation.delays_are_exact,
        "neighbours": [{**plain(pair.rule), "exact_ns": pair.exact_ns} for pair in explanation.pairs],
        "best_known_ns": explanation.base_ns,
        "lower_bound_ns": explanation.base_bound_ns,
        "changes": [_gain_json(gain) for gain in explanation.gains],
        **picked(explanation, "allowed objective planned_ns not_tried time_limit_s interrupted"),
    }


def _segment_json(timeline: Timeline, segment: Segment) -> dict[str, Any]:
    name = None
    if segment.op is not None:
        name = token(Op(*timeline.ops[segment.op].tolist()))
    elif segment.collective is not None:
        name = timeline.collectives[segment.collective].collective.token
    return {"what": name, **picked(segment, "kind rank destination start_ns end_ns")}


def _gain_json(gain: Gain) -> dict[str, Any]:
    change = gain.change
    return {
        "change": change.kind,
        "text": change.text,
        "rank": change.source,
        "destination": change.destination,
        "microbatches": gain.microbatches_after,
        "gain": gain.share,
        "proven": gain.is_proven,
        **picked(gain, "before_ns after_ns lower_bound_ns searched"),
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
    total_ns = max(1, explanation.timeline.makespan_ns)
    places: dict[str, Counter[str]] = {}
    for segment in explanation.path:
        where = f"rank {segment.rank}" if segment.destination is None else f"link {segment.rank}>{segment.destination}"
        places.setdefault(segment.kind.value, Counter())[where] += segment.length_ns
    rows = []
    for kind, spent_ns in sorted(places.items(), key=lambda each: -each[1].total()):
        most = ", ".join(f"{where} {_percent(ns / total_ns)}" for where, ns in spent_ns.most_common(4))
        rows.append((kind, _time(spent_ns.total()), _percent(spent_ns.total() / total_ns), most))
    numbers = (_number("time", 9), _number("share", 6))
    return Table(columns=(Column("", wrap="never", least=14), *numbers, Column("most of it", wrap="cut")), rows=rows)


def _idle_table(explanation: Explanation) -> Table:
    """The ranks with most idle time, by rank, each with what it waits for: links together, the small causes as one."""
    total_ns = max(1, explanation.timeline.makespan_ns)
    idle_ns = [explanation.timeline.makespan_ns - busy_ns for busy_ns in explanation.timeline.busy_ns]
    rows = []
    for rank in sorted(sorted(range(len(idle_ns)), key=lambda rank: -idle_ns[rank])[:MOST_RANKS]):
        named = Counter[str]()
        for idle in explanation.idle[rank]:
            named[_cause(rank, idle)] += idle.idle_ns
        kept = [(name, time_ns) for name, time_ns in named.most_common(MOST_CAUSES) if time_ns * 1000 >= total_ns]
        rest_ns = named.total() - sum(time_ns for _, time_ns in kept)
        kept += [("others", rest_ns)] if rest_ns * 1000 >= total_ns else []
        said = ", ".join(f"{name} {_percent(time_ns / total_ns)}" for name, time_ns in kept)
        rows.append((str(rank), _percent(idle_ns[rank] / total_ns), said or "–"))
    return Table(columns=(_number("rank", 4), _number("idle", 6), Column("waiting for", wrap="cut")), rows=rows)


def _number(header: str, least: int) -> Column:
    return Column(header, right=True, wrap="never", least=least)


def _cause(rank: int, idle: Idle) -> str:
    if idle.destination is not None:
        return f"link {idle.rank}>{idle.destination}"
    if idle.cause.text == "compute":
        return f"compute of {idle.rank}"
    return idle.cause.text if idle.rank == rank else f"{idle.cause.text} of {idle.rank}"


def _gain_lines(explanation: Explanation) -> Iterator[str]:
    """What gains nothing, and what was not tried."""
    nothing = [gain.change for gain in explanation.gains if not gain.searched]
    links = sorted((change.source or 0, change.destination or 0) for change in nothing if change.kind is ChangeKind.LINK)
    ranks = sorted(change.source or 0 for change in nothing if change.kind is ChangeKind.MEMORY)
    said = []
    if links:
        named = f"faster link{'s' * (len(links) > 1)} {', '.join(f'{source}>{destination}' for source, destination in links)}"
        said.append(named if len(links) <= MOST_LINKS else f"{len(links)} other links faster")
    if ranks:
        said.append(f"more memory on rank{'s' * (len(ranks) > 1)} {', '.join(ranges(ranks))}")
    if said:
        yield f"saves nothing, by the lower bounds: {'; '.join(said)}"
    reasons: dict[str, list[str]] = {}
    for what, _, reason in (each.partition(": ") for each in explanation.not_tried):
        reasons.setdefault(reason, []).append(what)
    yield from (f"not tried: {', '.join(what)}: {reason}" for reason, what in reasons.items())
