"""What `schedc compare` shows: the verdict, planned and measured lanes, tables of ranks, blocks and links."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from schedc.analysis.comparison.words import cause_words, first_words, late_words, signed_time
from schedc.io.location import one_line
from schedc.ir.ops import token
from schedc.spelling import counted, ranges
from schedc.units import format_duration_ns
from schedc.view.document import Block, Line, Picture, Table, left, right
from schedc.view.terminal.gantt import Window, cropped, legend, rank_row, ruler, spread_ranks
from schedc.view.terminal.show import picked, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from schedc.analysis.comparison.causes import Delay
    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.comparison.spread import Spread
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.trace import Trace

MOST_CAUSES = 5


def shown_comparison(plan: Plan, trace: Trace, comparison: Comparison, written: Iterable[tuple[str, Path]]) -> Iterator[Block]:
    """All of it.

    Args:
        plan: the plan.
        trace: the recording.
        comparison: of the two.
        written: what has been written, and where.
    """
    yield from _verdict(plan, trace, comparison)
    yield ""
    yield Picture(partial(_lanes, plan.problem, comparison))
    yield ""
    yield _rank_table(comparison)
    yield from _delays(comparison)
    yield ""
    yield _block_table(comparison)
    if comparison.links:
        yield ""
        yield _link_table(comparison)
    for what, path in written:
        yield f"wrote {what} to {one_line(str(path))}"


def comparison_json(plan: Plan, trace: Trace, comparison: Comparison) -> dict[str, Any]:
    """The object of `compare --json`."""
    return {
        "plan": plan.name,
        "scale": trace.scale,
        "clock_error_ns": max(rank.clock_error_ns for rank in trace.ranks),
        "measured_ns": comparison.measured.median_ns,
        "difference": _relative(comparison.measured.median_ns, comparison.predicted_ns),
        "runs_ns": [iteration_ns for _, iteration_ns in comparison.steps],
        "steps": [step for step, _ in comparison.steps],
        **picked(comparison, "predicted_ns whole_step recosted_ns shown_step shown_ns blocks links"),
        "worst_op": _delay_json(comparison.worst),
        "last_op": _delay_json(comparison.end),
        "ranks": [
            {
                "rank": number,
                **{
                    name: {**plain(account), "waiting_ns": account.waiting_ns}
                    for name, account in (("planned", rank.planned), ("measured", rank.measured))
                },
                "worst_op": _delay_json(rank.worst),
            }
            for number, rank in enumerate(comparison.ranks)
        ],
    }


def _delay_json(delay: Delay) -> dict[str, Any]:
    return {**picked(delay, "op rank late_ns causes"), "first_cause": delay.first}


def _verdict(plan: Plan, trace: Trace, comparison: Comparison) -> Iterator[Block]:
    measured, steps = comparison.measured, [step for step, _ in comparison.steps]
    recorded = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    head = f"{plan.name}: {counted(len(plan.ranks), 'rank')}, {counted(plan.problem.microbatches, 'microbatch')},"
    yield Line(f"{head} by {plan.made_by.method}; recorded {recorded}", "bold")
    predicted, median, low, high, whole, recosted = map(
        format_duration_ns,
        (
            comparison.predicted_ns,
            measured.median_ns,
            measured.low_ns,
            measured.high_ns,
            comparison.whole_step.median_ns,
            comparison.recosted_ns,
        ),
    )
    off = _percent(measured.median_ns, comparison.predicted_ns)
    yield f"iteration: predicted {predicted}, measured {median} ({off}), {low} to {high} over {counted(measured.count, 'step')}"
    yield f"the whole step, with losses and collectives: {whole}"
    off = _percent(measured.median_ns, comparison.recosted_ns)
    yield (
        f"with the measured costs the plan takes {recosted}; the iteration is {off} against that: overhead between ops and variance"
    )
    error_ns = max(rank.clock_error_ns for rank in trace.ranks)
    if error_ns:
        yield f"the ranks' clocks agree within {_time(error_ns)}"
    if trace.scale != 1:
        how = f"{trace.scale:g} times slower" if trace.scale > 1 else f"{1 / trace.scale:g} times faster"
        yield f"the run was {how} than the plan's costs; that is taken out of all times"


def _lanes(problem: Problem, comparison: Comparison, width: int) -> Iterator[Text]:
    """Planned lanes, each with the measured one below it, on one scale: of many ranks some, and those of the named ops."""
    ranks = sorted({*spread_ranks(problem.ranks), comparison.end.rank, comparison.worst.rank})
    last_ns = max(comparison.planned_timeline.makespan_ns, comparison.shown_ns, 1)
    labels = [f"rank {rank}" for rank in ranks]
    label_width = max(map(len, labels)) + len(" measured ")
    window = Window(0, last_ns, max(20, width - label_width))
    why = "the median of the iteration times" if len(comparison.steps) > 1 else "the only one"
    shown = f"step {comparison.shown_step}"
    median = comparison.shown_ns == sorted(ns for _, ns in comparison.steps)[(len(comparison.steps) - 1) // 2]
    yield Text(f"{shown}, {why}" if median else shown, "bold").append(f": {_time(comparison.shown_ns)}", "not bold")
    yield legend(problem, (comparison.planned_timeline,))
    yield cropped(Text(" " * label_width), ruler(window, f" 0 to {_time(last_ns)} "))
    for rank, of_rank in zip(ranks, labels, strict=True):
        for name, timeline in ((f"{of_rank} planned", comparison.planned_timeline), ("measured", comparison.measured_timeline)):
            label = Text(name.rjust(label_width - 1) + " ", "bold" if name != "measured" else "")
            yield cropped(label, rank_row(window, problem, timeline, rank))
    if len(ranks) < problem.ranks:
        yield Text(f"not shown: {problem.ranks - len(ranks)} of {problem.ranks} ranks; --perfetto FILE writes all", "dim")


def _rank_table(comparison: Comparison) -> Table:
    rows = []
    for number, rank in enumerate(comparison.ranks):
        for name, account in (("planned", rank.planned), ("measured", rank.measured)):
            parts = (account.compute_ns, account.late_ns, account.transfer_ns, account.other_ns, account.idle_ns)
            rows.append((str(number) if name == "planned" else "", name, *map(_time, parts)))
    times = right("compute", "producer late", "transfer", "other wait", "idle after")
    return Table(title="where the time went", columns=[*right("rank"), *left(""), *times], rows=rows)


def _delays(comparison: Comparison) -> Iterator[Block]:
    """What was late and why, the step's end first."""
    end, worst = comparison.end, comparison.worst
    yield Line(f"the last op, {token(end.op)} on rank {end.rank}, ended {late_words(end.late_ns)}", "bold")
    yield from (f"  {signed_time(cause.added_ns)} {cause_words(cause)}" for cause in end.causes[:MOST_CAUSES])
    rest_ns = sum(cause.added_ns for cause in end.causes[MOST_CAUSES:])
    if rest_ns:
        yield f"  {signed_time(rest_ns)} all else on its critical chain, slack of the plan that was used up included"
    yield Line(f"the worst-placed op, {token(worst.op)} on rank {worst.rank}, ended {late_words(worst.late_ns)}", "bold")
    yield f"  first cause: {first_words(worst)}"
    by_cause: dict[str, list[Delay]] = {}
    for rank in comparison.ranks:
        if rank.worst.rank != worst.rank:
            by_cause.setdefault(first_words(rank.worst), []).append(rank.worst)
    for first, delays in sorted(by_cause.items(), key=lambda entry: entry[0] != first_words(worst)):
        yield Line(f"  {_ended(delays)}; first cause: {'the same' if first == first_words(worst) else first}", "dim")


def _ended(delays: Sequence[Delay]) -> str:
    """What the worst-placed ops of some ranks, one each, have in common."""
    if len(delays) == 1:
        (delay,) = delays
        return f"rank {delay.rank}: {token(delay.op)} ended {late_words(delay.late_ns)}"
    least_ns, most_ns = min(delay.late_ns for delay in delays), max(delay.late_ns for delay in delays)
    ranks = ", ".join(ranges(delay.rank for delay in delays))
    if least_ns == most_ns or most_ns <= 0:
        return f"ranks {ranks}: the worst-placed op of each ended {late_words(most_ns)}{' or better' * (least_ns != most_ns)}"
    return f"ranks {ranks}: the worst-placed op of each ended up to {late_words(most_ns)}"


def _block_table(comparison: Comparison) -> Table:
    rows, stage = [], -1
    for block in comparison.blocks:
        planned, name = _time(block.planned_ns), str(block.stage) if block.stage != stage else ""
        rows.append((name, block.kind.name, planned, *_cells(block.measured, block.planned_ns)))
        stage = block.stage
    return Table(
        title="blocks, over all recorded steps",
        columns=right("stage", "block", "planned", "measured", "difference", "most between", "samples"),
        rows=rows,
        may_go=("samples",),
    )


def _link_table(comparison: Comparison) -> Table:
    rows = []
    for link in comparison.links:
        known = ("–",) * 4 if link.measured is None else _cells(link.measured, link.planned_ns)
        at_most = "–" if link.at_most_ns is None else _time(link.at_most_ns)
        rows.append((f"{link.source} → {link.destination}", _time(link.planned_ns), *known, at_most))
    return Table(
        title="transfers that an op waited for, over all recorded steps",
        columns=right("link", "planned", "measured", "difference", "most between", "samples", "others at most"),
        rows=rows,
        may_go=("samples", "others at most"),
    )


def _cells(measured: Spread, planned_ns: int) -> tuple[str, ...]:
    between = f"{_time(measured.low_ns)} to {_time(measured.high_ns)}"
    return _time(measured.median_ns), _percent(measured.median_ns, planned_ns), between, str(measured.count)


def _time(duration_ns: int) -> str:
    return format_duration_ns(duration_ns, 2)


def _relative(found_ns: int, planned_ns: int) -> float | None:
    return found_ns / planned_ns - 1 if planned_ns else None


def _percent(found_ns: int, planned_ns: int) -> str:
    relative = _relative(found_ns, planned_ns)
    return "–" if relative is None else f"{relative:+.1%}"
