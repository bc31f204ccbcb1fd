"""What `schedc compare` prints: the verdict, planned and measured lanes, tables of ranks, blocks and links; or JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text

from schedc.analysis.comparison.words import cause_words, first_words, late_words, signed_time
from schedc.io.location import one_line
from schedc.ir.ops import token
from schedc.spelling import counted
from schedc.units import format_duration_ns
from schedc.view.terminal.gantt import Window, legend, rank_row, ruler, spread_ranks
from schedc.view.terminal.results import console, plain_table, print_fitting

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from rich.console import Console
    from rich.table import Table

    from schedc.analysis.comparison.account import Account
    from schedc.analysis.comparison.causes import Cause, Delay
    from schedc.analysis.comparison.compare import Comparison
    from schedc.analysis.comparison.measured_costs import LinkTransfers
    from schedc.analysis.comparison.spread import Spread
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.ir.trace import Trace

MOST_CAUSES = 5


def print_comparison(plan: Plan, trace: Trace, comparison: Comparison, written: Iterable[tuple[str, Path]]) -> None:
    """Print everything, fitted to the terminal's width.

    Args:
        plan: the plan.
        trace: the recording.
        comparison: of the two.
        written: what has been written, and where.
    """
    out = console()
    for line in _verdict(plan, trace, comparison):
        out.print(line)
    out.print()
    _print_lanes(out, plan.problem, comparison)
    out.print()
    out.print(_rank_table(comparison))
    for line in _delays(comparison):
        out.print(line)
    out.print()
    print_fitting(out, _block_table(comparison), ("samples",))
    if comparison.links:
        out.print()
        print_fitting(out, _link_table(comparison.links), ("samples", "others at most"))
    for what, path in written:
        out.print(f"wrote {what} to {one_line(str(path))}")


def comparison_table(plan: Plan, trace: Trace, comparison: Comparison) -> dict[str, Any]:
    """The object of `compare --json`."""
    return {
        "plan": plan.name,
        "scale": trace.scale,
        "clock_error_ns": max(rank.clock_error_ns for rank in trace.ranks),
        "predicted_ns": comparison.predicted_ns,
        "measured_ns": comparison.measured.median_ns,
        "difference": _relative(comparison.measured.median_ns, comparison.predicted_ns),
        "runs_ns": [iteration_ns for _, iteration_ns in comparison.steps],
        "steps": [step for step, _ in comparison.steps],
        "whole_step": asdict(comparison.whole_step),
        "recosted_ns": comparison.recosted_ns,
        "shown_step": comparison.shown_step,
        "shown_ns": comparison.shown_ns,
        "worst_op": _delay_table(comparison.worst),
        "last_op": _delay_table(comparison.end),
        "ranks": [
            {
                "rank": number,
                "planned": _account_table(rank.planned),
                "measured": _account_table(rank.measured),
                "worst_op": _delay_table(rank.worst),
            }
            for number, rank in enumerate(comparison.ranks)
        ],
        "blocks": [{**asdict(block), "kind": block.kind.name} for block in comparison.blocks],
        "links": [asdict(link) for link in comparison.links],
    }


def _account_table(account: Account) -> dict[str, int]:
    return {**asdict(account), "waiting_ns": account.waiting_ns}


def _delay_table(delay: Delay) -> dict[str, Any]:
    return {
        "op": token(delay.op),
        "rank": delay.rank,
        "late_ns": delay.late_ns,
        "first_cause": None if delay.first is None else _cause_table(delay.first),
        "causes": [_cause_table(cause) for cause in delay.causes],
    }


def _cause_table(cause: Cause) -> dict[str, Any]:
    return {**asdict(cause), "op": None if cause.op is None else token(cause.op)}


def _verdict(plan: Plan, trace: Trace, comparison: Comparison) -> list[Text]:
    measured, whole = comparison.measured, comparison.whole_step
    steps = [step for step, _ in comparison.steps]
    recorded = f"steps {steps[0]} to {steps[-1]}" if len(steps) > 1 else f"step {steps[0]}"
    head = f"{plan.name}: {counted(len(plan.ranks), 'rank')}, {counted(plan.problem.microbatches, 'microbatch')},"
    head += f" by {plan.made_by.method};"
    lines = [
        Text(f"{head} recorded {recorded}", "bold"),
        Text(
            f"iteration: predicted {_exact(comparison.predicted_ns)}, measured {_exact(measured.median_ns)}"
            f" ({_percent(measured.median_ns, comparison.predicted_ns)}), {_exact(measured.low_ns)} to {_exact(measured.high_ns)}"
            f" over {_count(measured.count, 'step')}"
        ),
        Text(f"the whole step, with losses and collectives: {_exact(whole.median_ns)}"),
        Text(
            f"with the measured costs the plan takes {_exact(comparison.recosted_ns)}; the iteration is"
            f" {_percent(measured.median_ns, comparison.recosted_ns)} against that: overhead between ops and variance"
        ),
    ]
    error_ns = max(rank.clock_error_ns for rank in trace.ranks)
    if error_ns:
        lines.append(Text(f"the ranks' clocks agree within {_time(error_ns)}"))
    if trace.scale != 1:
        how = f"{trace.scale:g} times slower" if trace.scale > 1 else f"{1 / trace.scale:g} times faster"
        lines.append(Text(f"the run was {how} than the plan's costs; that is taken out of all times"))
    return lines


def _print_lanes(out: Console, problem: Problem, comparison: Comparison) -> None:
    """Planned lanes, each with the measured one below it, on one scale: of many ranks some, and those of the named ops."""
    ranks = sorted({*spread_ranks(problem.ranks), comparison.end.rank, comparison.worst.rank})
    last_ns = max(comparison.planned_timeline.makespan_ns, comparison.shown_ns, 1)
    labels = [f"rank {rank}" for rank in ranks]
    label_width = max(map(len, labels)) + len(" measured ")
    window = Window(0, last_ns, max(20, out.width - label_width))
    why = "the median of the iteration times" if len(comparison.steps) > 1 else "the only one"
    shown = f"step {comparison.shown_step}"
    median = comparison.shown_ns == sorted(ns for _, ns in comparison.steps)[(len(comparison.steps) - 1) // 2]
    out.print(Text(f"{shown}, {why}" if median else shown, "bold").append(f": {_time(comparison.shown_ns)}", "not bold"))
    out.print(legend(problem, (comparison.planned_timeline,)))
    out.print(Text(" " * label_width).append_text(ruler(window, f" 0 to {_time(last_ns)} ")), no_wrap=True, overflow="crop")
    for rank, label in zip(ranks, labels, strict=True):
        for name, timeline in ((f"{label} planned", comparison.planned_timeline), ("measured", comparison.measured_timeline)):
            line = Text(name.rjust(label_width - 1) + " ", "bold" if name != "measured" else "")
            out.print(line.append_text(rank_row(window, problem, timeline, rank)), no_wrap=True, overflow="crop")
    if len(ranks) < problem.ranks:
        left_out = f"not shown: {problem.ranks - len(ranks)} of {problem.ranks} ranks; --perfetto FILE writes all"
        out.print(Text(left_out, "dim"))


def _rank_table(comparison: Comparison) -> Table:
    table = plain_table("where the time went")
    for header in ("rank", "", "compute", "producer late", "transfer", "other wait", "idle after"):
        table.add_column(header, justify="left" if header == "" else "right")
    for number, rank in enumerate(comparison.ranks):
        for name, account in (("planned", rank.planned), ("measured", rank.measured)):
            parts = (account.compute_ns, account.late_ns, account.transfer_ns, account.other_ns, account.idle_ns)
            table.add_row(str(number) if name == "planned" else "", name, *map(_time, parts))
    return table


def _delays(comparison: Comparison) -> list[Text]:
    """What was late and why, the step's end first."""
    end, worst = comparison.end, comparison.worst
    lines = [Text(f"the last op, {token(end.op)} on rank {end.rank}, ended {late_words(end.late_ns)}", "bold")]
    lines += [Text(f"  {signed_time(cause.added_ns)} {cause_words(cause)}") for cause in end.causes[:MOST_CAUSES]]
    rest_ns = sum(cause.added_ns for cause in end.causes[MOST_CAUSES:])
    if rest_ns:
        lines.append(Text(f"  {signed_time(rest_ns)} all else on its critical chain, slack of the plan that was used up included"))
    lines.append(Text(f"the worst-placed op, {token(worst.op)} on rank {worst.rank}, ended {late_words(worst.late_ns)}", "bold"))
    lines.append(Text(f"  first cause: {first_words(worst)}"))
    by_cause: dict[str, list[Delay]] = {}
    for rank in comparison.ranks:
        if rank.worst.rank != worst.rank:
            by_cause.setdefault(first_words(rank.worst), []).append(rank.worst)
    for first, delays in sorted(by_cause.items(), key=lambda entry: entry[0] != first_words(worst)):
        cause = "the same" if first == first_words(worst) else first
        lines.append(Text(f"  {_ended(delays)}; first cause: {cause}", "dim"))
    return lines


def _ended(delays: Sequence[Delay]) -> str:
    """What the worst-placed ops of some ranks, one each, have in common."""
    if len(delays) == 1:
        (delay,) = delays
        return f"rank {delay.rank}: {token(delay.op)} ended {late_words(delay.late_ns)}"
    least_ns, most_ns = min(delay.late_ns for delay in delays), max(delay.late_ns for delay in delays)
    ranks = _ranges([delay.rank for delay in delays])
    if least_ns == most_ns or most_ns <= 0:
        return f"ranks {ranks}: the worst-placed op of each ended {late_words(most_ns)}{' or better' * (least_ns != most_ns)}"
    return f"ranks {ranks}: the worst-placed op of each ended up to {late_words(most_ns)}"


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in few words: `0, 2-4`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _block_table(comparison: Comparison) -> Table:
    headers = ("stage", "block", "planned", "measured", "difference", "most between", "samples")
    table = plain_table("blocks, over all recorded steps", right=headers)
    stage = -1
    for block in comparison.blocks:
        measured = block.measured
        table.add_row(
            str(block.stage) if block.stage != stage else "",
            block.kind.name,
            _time(block.planned_ns),
            _time(measured.median_ns),
            _percent(measured.median_ns, block.planned_ns),
            _range(measured),
            str(measured.count),
        )
        stage = block.stage
    return table


def _link_table(links: Sequence[LinkTransfers]) -> Table:
    headers = ("link", "planned", "measured", "difference", "most between", "samples", "others at most")
    table = plain_table("transfers that an op waited for, over all recorded steps", right=headers)
    for link in links:
        measured = link.measured
        known = (
            ("–",) * 4
            if measured is None
            else (
                _time(measured.median_ns),
                _percent(measured.median_ns, link.planned_ns),
                _range(measured),
                str(measured.count),
            )
        )
        at_most = "–" if link.at_most_ns is None else _time(link.at_most_ns)
        table.add_row(f"{link.source} → {link.destination}", _time(link.planned_ns), *known, at_most)
    return table


def _time(duration_ns: int) -> str:
    return format_duration_ns(duration_ns, 2)


def _exact(duration_ns: int) -> str:
    return format_duration_ns(duration_ns)


def _range(spread: Spread) -> str:
    return f"{_time(spread.low_ns)} to {_time(spread.high_ns)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _relative(found_ns: int, planned_ns: int) -> float | None:
    return found_ns / planned_ns - 1 if planned_ns else None


def _percent(found_ns: int, planned_ns: int) -> str:
    relative = _relative(found_ns, planned_ns)
    return "–" if relative is None else f"{relative:+.1%}"
