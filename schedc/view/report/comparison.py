"""The panel of a trace: planned against measured, where the time of each rank went, and what was late and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.analysis.comparison.words import cause_words, first_words, late_words, signed_time
from schedc.ir.ops import token
from schedc.units import format_duration_ns
from schedc.view.report.markup import Cell, Markup, element, table
from schedc.view.report.panels import bar, facts, keys_of_bars, panel

if TYPE_CHECKING:
    from schedc.analysis.comparison.account import Account
    from schedc.view.report.figures import Measured

PARTS = (
    ("compute_ns", "--f0", "computes"),
    ("late_ns", "--idle-compute", "waits for a producer that has not sent"),
    ("transfer_ns", "--idle-latency", "waits for a transfer under way"),
    ("other_ns", "--idle-queue", "other waiting, between ops"),
    ("idle_ns", "--idle-cool", "idle after its last op"),
)
"""Of an Account: field, colour, words."""


def comparison_panels(measured: Measured) -> list[Markup]:
    """What `schedc compare` says, as panels."""
    return [element("div", _iteration(measured), _delays(measured), class_="columns"), _ranks(measured)]


def _iteration(measured: Measured) -> Markup:
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
    return panel("Planned against measured", facts(rows))


def _delays(measured: Measured) -> Markup:
    """What was late and why: the last op, and of each rank the op that ended latest against the plan."""
    comparison = measured.comparison
    end, worst = comparison.end, comparison.worst
    causes = [[Cell(cause_words(cause)), Cell(signed_time(cause.added_ns), "number")] for cause in end.causes]
    rows = [
        [
            Cell(f"rank {delay.rank}"),
            Cell(token(delay.op)),
            Cell(signed_time(delay.late_ns), "number"),
            Cell(first_words(delay), "text"),
        ]
        for delay in (rank.worst for rank in comparison.ranks)
    ]
    headers = [Cell("rank"), Cell("op"), Cell("late", "number"), Cell("first cause")]
    return panel(
        "What was late and why",
        element("p", f"The last op, {token(end.op)} on rank {end.rank}, ended {late_words(end.late_ns)}."),
        table("What its critical chain, as measured, added", [Cell("where"), Cell("added", "number")], causes),
        element(
            "p",
            f"The worst-placed op of all, {token(worst.op)} on rank {worst.rank}, ended {late_words(worst.late_ns)};"
            f" first cause: {first_words(worst)}.",
        ),
        element("details", element("summary", "The worst-placed op of each rank"), table("Per rank", headers, rows)),
    )


def _ranks(measured: Measured) -> Markup:
    """Where the time of each rank went, planned and measured one above the other."""
    comparison = measured.comparison
    whole_ns = max(comparison.predicted_ns, comparison.shown_ns)
    rows = []
    for number, rank in enumerate(comparison.ranks):
        for name, account in (("planned", rank.planned), ("measured", rank.measured)):
            rows.append(
                [
                    Cell(f"rank {number}, {name}"),
                    Cell(_account_bar(account, whole_ns)),
                    *(Cell(format_duration_ns(getattr(account, field), 2), "number") for field, _, _ in PARTS),
                ]
            )
    headers = [Cell("rank"), Cell("time", "wide")]
    headers += [Cell(words, "number") for words in ("computes", "producer late", "transfer", "other", "idle after")]
    return panel(
        "Where the time went, planned and measured",
        keys_of_bars((colour, words) for _, colour, words in PARTS),
        table("Per rank", headers, rows),
        long=True,
    )


def _account_bar(account: Account, whole_ns: int) -> Markup:
    parts = []
    for field, colour, words in PARTS:
        length_ns: int = getattr(account, field)
        parts.append((colour, length_ns, f"{words}: {format_duration_ns(length_ns)}"))
    return bar(parts, whole_ns)


def _change(found_ns: int, planned_ns: int) -> str:
    return f"{(found_ns / planned_ns - 1) * 100:+.1f} %" if planned_ns else "–"
