"""The panels of a trace: planned against measured, where the time of each rank went, and what was late and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.comparison.words import cause_words, first_words, late_words, signed_time
from schedc.ir.ops import token
from schedc.units import format_duration_ns
from schedc.view.document import Bar, Block, Column, Facts, Fold, Keys, Panel, Table, left, right

if TYPE_CHECKING:
    from schedc.analysis.comparison.step_times import Account
    from schedc.view.report.figures import Measured

PARTS = (
    ("compute_ns", "--f0", "computes"),
    ("late_ns", "--idle-compute", "waits for a producer that has not sent"),
    ("transfer_ns", "--idle-latency", "waits for a transfer under way"),
    ("other_ns", "--idle-queue", "other waiting, between ops"),
    ("idle_ns", "--idle-cool", "idle after its last op"),
)
"""Of an Account: field, colour, words."""


def iteration_panel(measured: Measured) -> Panel:
    """Planned against measured."""
    comparison, trace = measured.comparison, measured.trace
    found, whole = comparison.measured, comparison.whole_step
    error_ns = max(rank.clock_error_ns for rank in trace.ranks)
    rows = [
        ("planned", format_duration_ns(comparison.predicted_ns)),
        ("measured", f"{format_duration_ns(found.median_ns)}, {_change(found.median_ns, comparison.predicted_ns)}"),
        ("over the steps", f"{format_duration_ns(found.low_ns)} to {format_duration_ns(found.high_ns)}, {found.count} recorded"),
        ("shown here", f"step {comparison.shown_step}, {format_duration_ns(comparison.shown_ns)}"),
        ("whole step", f"{format_duration_ns(whole.median_ns)}, with losses and collectives"),
        (
            "with the measured costs",
            f"the plan takes {format_duration_ns(comparison.recosted_ns)}; the measured iteration is"
            f" {_change(found.median_ns, comparison.recosted_ns)} against that: overhead between ops and variance",
        ),
    ]
    if error_ns:
        rows.append(("clocks of the ranks", f"agree within {format_duration_ns(error_ns)}"))
    if trace.scale != 1:
        rows.append(("slowed down", f"{trace.scale:g} times against the plan's costs, taken out of all times"))
    return Panel("Planned against measured", [Facts(rows)])


def delays_panel(measured: Measured) -> Panel:
    """What was late and why: the last op, and of each rank the op that ended latest against the plan."""
    comparison = measured.comparison
    end, worst = comparison.end, comparison.worst
    causes = [(cause_words(cause), signed_time(cause.added_ns)) for cause in end.causes]
    delays = [rank.worst for rank in comparison.ranks]
    rows = [(f"rank {delay.rank}", token(delay.op), signed_time(delay.late_ns), first_words(delay)) for delay in delays]
    columns = [*left("rank", "op"), *right("late"), Column("first cause", kind="text")]
    blocks: list[Block] = [
        f"The last op, {token(end.op)} on rank {end.rank}, ended {late_words(end.late_ns)}.",
        Table(title="What its critical chain, as measured, added", columns=[*left("where"), *right("added")], rows=causes),
        f"The worst-placed op of all, {token(worst.op)} on rank {worst.rank}, ended {late_words(worst.late_ns)};"
        f" first cause: {first_words(worst)}.",
        Fold("The worst-placed op of each rank", [Table(title="Per rank", columns=columns, rows=rows)]),
    ]
    return Panel("What was late and why", blocks)


def accounts_panel(measured: Measured) -> Panel:
    """Where the time of each rank went, planned and measured one above the other."""
    comparison = measured.comparison
    whole_ns = max(comparison.predicted_ns, comparison.shown_ns)
    rows = [
        (f"rank {number}, {name}", *_account(account, whole_ns))
        for number, rank in enumerate(comparison.ranks)
        for name, account in (("planned", rank.planned), ("measured", rank.measured))
    ]
    times = right("computes", "producer late", "transfer", "other", "idle after")
    table = Table(title="Per rank", columns=[*left("rank"), Column("time", kind="wide"), *times], rows=rows)
    keys = Keys([(colour, words) for _, colour, words in PARTS])
    return Panel("Where the time went, planned and measured", [keys, table], long=True)


def _account(account: Account, whole_ns: int) -> list[str | Bar]:
    """A bar of the parts, and each of them."""
    lengths_ns: list[int] = [getattr(account, field) for field, _, _ in PARTS]
    parts = [
        (colour, length_ns, f"{words}: {format_duration_ns(length_ns)}")
        for (_, colour, words), length_ns in zip(PARTS, lengths_ns, strict=True)
    ]
    return [Bar(tuple(parts), whole_ns), *(format_duration_ns(length_ns, 2) for length_ns in lengths_ns)]


def _change(found_ns: int, planned_ns: int) -> str:
    return f"{(found_ns / planned_ns - 1) * 100:+.1f} %" if planned_ns else "–"
