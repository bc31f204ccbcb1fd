"""A plan beside a recording of it: what `schedc compare` shows, as an object too, and the panels of a report."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from schedc.analysis.comparison.line import cause_in_words
from schedc.io.location import one_line
from schedc.ir import Plan, Problem, Trace
from schedc.spelling import counted, ranges
from schedc.view.document import (
    Bar,
    Block,
    Column,
    Facts,
    Fold,
    Keys,
    Line,
    Panel,
    Picture,
    Strip,
    Table,
    duration,
    left,
    picked,
    plain,
    right,
)
from schedc.view.terminal.gantt import Window, counts_of, legend, rank_spans, row_of, ruler, spread_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schedc.analysis.comparison.causes import Delay
    from schedc.analysis.comparison.compare import Account, Comparison
    from schedc.analysis.comparison.times import Spread

MOST_CAUSES = 5
PARTS = (
    ("compute_ns", "compute", "computes", "--f0", "computes"),
    ("late_ns", "producer late", "producer late", "--idle-compute", "waits for a producer that has not sent"),
    ("transfer_ns", "transfer", "transfer", "--idle-latency", "waits for a transfer under way"),
    ("other_ns", "other wait", "other", "--idle-queue", "other waiting, between ops"),
    ("idle_ns", "idle after", "idle after", "--idle-cool", "idle after its last op"),
)
"""Of an Account: field, headers in the terminal and on a page, colour, words."""


def shown_comparison(plan: Plan, trace: Trace, comparison: Comparison, written: Iterable[tuple[str, Path]]) -> Iterator[Block]:
    """All of it, in the terminal; `written` says what has been written, and where."""
    yield from _verdict(plan, trace, comparison)
    yield ""
    yield Picture(partial(_lanes, plan.problem, comparison))
    yield ""
    yield Table(
        title="where the time went",
        columns=[*right("rank"), *left(""), *right(*(header for _, header, *_ in PARTS))],
        rows=[("" if name == "measured" else str(rank), name, *_times(account)) for rank, name, account in _accounts(comparison)],
    )
    yield from _delays(plan.problem, comparison)
    yield ""
    blocks, links = comparison.blocks, comparison.links
    stages = [str(block.stage) if at == 0 or block.stage != blocks[at - 1].stage else "" for at, block in enumerate(blocks)]
    yield Table(
        title="blocks, over all recorded steps",
        columns=right("stage", "block", "planned", "measured", "difference", "most between", "samples"),
        rows=[
            (at, block.kind.name + (f" :{block.slice}" if plan.problem.slices else ""), *_cells(block.planned_ns, block.measured))
            for at, block in zip(stages, blocks, strict=True)
        ],
        may_go=("samples",),
    )
    if links:
        yield ""
        yield Table(
            title="transfers that an op waited for, over all recorded steps",
            columns=right("link", "planned", "measured", "difference", "most between", "samples", "others at most"),
            rows=[
                (f"{link.source} → {link.destination}", *_cells(link.planned_ns, link.measured), duration(link.at_most_ns, 2))
                for link in links
            ],
            may_go=("samples", "others at most"),
        )
    for what, path in written:
        yield f"wrote {what} to {one_line(str(path))}"


def comparison_json(plan: Plan, trace: Trace, comparison: Comparison) -> dict[str, Any]:
    """The object of `compare --json`."""

    def delay_json(delay: Delay) -> dict[str, Any]:
        return {**picked(delay, "op rank late_ns causes"), "first_cause": delay.first}

    def account_json(account: Account) -> dict[str, Any]:
        return {**plain(account), "waiting_ns": account.waiting_ns}

    measured_ns, predicted_ns = comparison.measured.median_ns, comparison.predicted_ns
    return {
        "plan": plan.name,
        "scale": trace.scale,
        "clock_error_ns": max(rank.clock_error_ns for rank in trace.ranks),
        "measured_ns": measured_ns,
        "difference": measured_ns / predicted_ns - 1 if predicted_ns else None,
        "runs_ns": [iteration_ns for _, iteration_ns in comparison.steps],
        "steps": [step for step, _ in comparison.steps],
        **picked(comparison, "predicted_ns whole_step recosted_ns shown_step shown_ns blocks links"),
        "worst_op": delay_json(comparison.worst),
        "last_op": delay_json(comparison.end),
        "ranks": [
            {
                "rank": number,
                "planned": account_json(rank.planned),
                "measured": account_json(rank.measured),
                "worst_op": delay_json(rank.worst),
            }
            for number, rank in enumerate(comparison.ranks)
        ],
    }


def _verdict(plan: Plan, trace: Trace, comparison: Comparison) -> Iterator[Block]:
    measured, steps = comparison.measured, [step for step, _ in comparison.steps]
    recorded = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    yield Line(f"{plan.name}: {counts_of(plan.problem)}, by {plan.made_by.method}; recorded {recorded}", "bold")
    found = f"measured {duration(measured.median_ns)} ({_off(measured.median_ns, comparison.predicted_ns)})"
    over = f"{duration(measured.low_ns)} to {duration(measured.high_ns)} over {counted(measured.count, 'step')}"
    yield f"iteration: predicted {duration(comparison.predicted_ns)}, {found}, {over}"
    yield f"the whole step, with losses and collectives: {duration(comparison.whole_step.median_ns)}"
    off = f"{_off(measured.median_ns, comparison.recosted_ns)} against that: overhead between ops and variance"
    yield f"with the measured costs the plan takes {duration(comparison.recosted_ns)}; the iteration is {off}"
    error_ns = max(rank.clock_error_ns for rank in trace.ranks)
    if error_ns:
        yield f"the ranks' clocks agree within {duration(error_ns, 2)}"
    if trace.scale != 1:
        how = f"{trace.scale:g} times slower" if trace.scale > 1 else f"{1 / trace.scale:g} times faster"
        yield f"the run was {how} than the plan's costs; that is taken out of all times"


def _lanes(problem: Problem, comparison: Comparison, width: int) -> Iterator[Strip]:
    """Planned lanes, each with the measured one below it, on one scale: of many ranks some, and those of the named ops."""
    planned, measured = comparison.planned_step.timeline, comparison.measured_step.timeline
    ranks = sorted({*spread_ranks(problem.ranks), comparison.end.rank, comparison.worst.rank})
    last_ns = max(planned.makespan_ns, comparison.shown_ns, 1)
    label_width = max(len(f"rank {rank} planned ") for rank in ranks) + 1
    window = Window(0, last_ns, max(20, width - label_width))
    why = "the median of the iteration times" if len(comparison.steps) > 1 else "the only one"
    shown = f"step {comparison.shown_step}"
    median = comparison.shown_ns == sorted(ns for _, ns in comparison.steps)[(len(comparison.steps) - 1) // 2]
    yield Strip([(f"{shown}, {why}" if median else shown, "bold"), (f": {duration(comparison.shown_ns, 2)}", "")])
    yield legend(problem, (planned,))
    yield Strip([(" " * label_width, ""), *ruler(window, f" 0 to {duration(last_ns, 2)} ")], cropped=True)
    for rank in ranks:
        for name, style, timeline in ((f"rank {rank} planned", "bold", planned), ("measured", "", measured)):
            row = row_of(window, rank_spans(problem, timeline, rank))
            yield Strip([(name.rjust(label_width - 1) + " ", style), *row], cropped=True)
    if len(ranks) < problem.ranks:
        yield Strip([(f"not shown: {problem.ranks - len(ranks)} of {problem.ranks} ranks; --perfetto FILE writes all", "dim")])


def _delays(problem: Problem, comparison: Comparison) -> Iterator[Block]:
    """What was late and why, the step's end first."""
    end, worst = comparison.end, comparison.worst
    yield Line(f"the last op, {_ended(problem, end)}", "bold")
    yield from (f"  {_signed(cause.added_ns)} {cause_in_words(problem, cause)}" for cause in end.causes[:MOST_CAUSES])
    rest_ns = sum(cause.added_ns for cause in end.causes[MOST_CAUSES:])
    if rest_ns:
        yield f"  {_signed(rest_ns)} all else on its critical chain, slack of the plan that was used up included"
    yield Line(f"the worst-placed op, {_ended(problem, worst)}", "bold")
    yield f"  first cause: {_first(problem, worst)}"
    by_cause: dict[str, list[Delay]] = {}
    for rank in comparison.ranks:
        if rank.worst.rank != worst.rank:
            by_cause.setdefault(_first(problem, rank.worst), []).append(rank.worst)
    for first, delays in sorted(by_cause.items(), key=lambda entry: entry[0] != _first(problem, worst)):
        yield Line(
            f"  {_all_ended(problem, delays)}; first cause: {'the same' if first == _first(problem, worst) else first}", "dim"
        )


def _all_ended(problem: Problem, delays: Sequence[Delay]) -> str:
    """What the worst-placed ops of some ranks, one each, have in common."""
    if len(delays) == 1:
        (delay,) = delays
        return f"rank {delay.rank}: {problem.token(delay.op)} ended {_late(delay.late_ns)}"
    least_ns, most_ns = min(delay.late_ns for delay in delays), max(delay.late_ns for delay in delays)
    head = f"ranks {', '.join(ranges(delay.rank for delay in delays))}: the worst-placed op of each ended"
    if least_ns == most_ns or most_ns <= 0:
        return f"{head} {_late(most_ns)}{' or better' * (least_ns != most_ns)}"
    return f"{head} up to {_late(most_ns)}"


def iteration_panel(trace: Trace, comparison: Comparison) -> Panel:
    """Planned against measured."""
    found, predicted_ns = comparison.measured, comparison.predicted_ns
    off = f"the measured iteration is {_off(found.median_ns, comparison.recosted_ns, ' ')} against that"
    rows = [
        ("planned", duration(predicted_ns)),
        ("measured", f"{duration(found.median_ns)}, {_off(found.median_ns, predicted_ns, ' ')}"),
        ("over the steps", f"{duration(found.low_ns)} to {duration(found.high_ns)}, {found.count} recorded"),
        ("shown here", f"step {comparison.shown_step}, {duration(comparison.shown_ns)}"),
        ("whole step", f"{duration(comparison.whole_step.median_ns)}, with losses and collectives"),
        ("with the measured costs", f"the plan takes {duration(comparison.recosted_ns)}; {off}: overhead between ops and variance"),
    ]
    error_ns = max(rank.clock_error_ns for rank in trace.ranks)
    if error_ns:
        rows.append(("clocks of the ranks", f"agree within {duration(error_ns)}"))
    if trace.scale != 1:
        rows.append(("slowed down", f"{trace.scale:g} times against the plan's costs, taken out of all times"))
    return Panel("Planned against measured", [Facts(rows)])


def delays_panel(problem: Problem, comparison: Comparison) -> Panel:
    """What was late and why: the last op, and of each rank the op that ended latest against the plan."""
    end, worst = comparison.end, comparison.worst
    causes = [(cause_in_words(problem, cause), _signed(cause.added_ns)) for cause in end.causes]
    delays = [rank.worst for rank in comparison.ranks]
    rows = [(f"rank {delay.rank}", problem.token(delay.op), _signed(delay.late_ns), _first(problem, delay)) for delay in delays]
    columns = [*left("rank", "op"), *right("late"), Column("first cause", kind="text")]
    blocks: list[Block] = [
        f"The last op, {_ended(problem, end)}.",
        Table(title="What its critical chain, as measured, added", columns=[*left("where"), *right("added")], rows=causes),
        f"The worst-placed op of all, {_ended(problem, worst)}; first cause: {_first(problem, worst)}.",
        Fold("The worst-placed op of each rank", [Table(title="Per rank", columns=columns, rows=rows)]),
    ]
    return Panel("What was late and why", blocks)


def accounts_panel(comparison: Comparison) -> Panel:
    """Where the time of each rank went, planned and measured one above the other."""
    whole_ns = max(comparison.predicted_ns, comparison.shown_ns)
    rows: list[Sequence[str | Bar]] = []
    for rank, name, account in _accounts(comparison):
        lengths_ns = {field: getattr(account, field) for field, *_ in PARTS}
        parts = [(colour, lengths_ns[field], f"{words}: {duration(lengths_ns[field])}") for field, _, _, colour, words in PARTS]
        rows.append([f"rank {rank}, {name}", Bar(tuple(parts), whole_ns), *_times(account)])
    columns = [*left("rank"), Column("time", kind="wide"), *right(*(header for _, _, header, *_ in PARTS))]
    keys = Keys([(colour, words) for *_, colour, words in PARTS])
    table = Table(title="Per rank", columns=columns, rows=rows)
    return Panel("Where the time went, planned and measured", [keys, table], long=True)


def _accounts(comparison: Comparison) -> Iterator[tuple[int, str, Account]]:
    for number, rank in enumerate(comparison.ranks):
        yield number, "planned", rank.planned
        yield number, "measured", rank.measured


def _times(account: Account) -> list[str]:
    return [duration(getattr(account, field), 2) for field, *_ in PARTS]


def _cells(planned_ns: int, measured: Spread | None) -> tuple[str, ...]:
    """What something was planned and measured to take."""
    if measured is None:
        return duration(planned_ns, 2), "–", "–", "–", "–"
    between = f"{duration(measured.low_ns, 2)} to {duration(measured.high_ns, 2)}"
    median_ns = measured.median_ns
    return duration(planned_ns, 2), duration(median_ns, 2), _off(median_ns, planned_ns), between, str(measured.count)


def _off(found_ns: int, planned_ns: int, space: str = "") -> str:
    """By how much more or less it took, in percent."""
    return f"{(found_ns / planned_ns - 1) * 100:+.1f}{space}%" if planned_ns else "–"


def _first(problem: Problem, delay: Delay) -> str:
    """Where a delay came in."""
    if delay.late_ns <= 0:
        return "none, it was in time"
    if delay.first is None:
        return "none, many that add less than a tenth each"
    return f"{cause_in_words(problem, delay.first)}, {_signed(delay.first.added_ns)}"


def _ended(problem: Problem, delay: Delay) -> str:
    return f"{problem.token(delay.op)} on rank {delay.rank}, ended {_late(delay.late_ns)}"


def _late(late_ns: int) -> str:
    """By how much something ended later or earlier."""
    return f"{duration(abs(late_ns), 2)} {'later' if late_ns > 0 else 'earlier'} than planned" if late_ns else "as planned"


def _signed(duration_ns: int) -> str:
    return ("+" if duration_ns >= 0 else "") + duration(duration_ns, 2)
