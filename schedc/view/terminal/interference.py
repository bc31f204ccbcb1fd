"""What `schedc interference` shows: how well a forest tells interference, beside a linear model and the last value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.io.location import one_line
from schedc.spelling import counted
from schedc.view.document import Block, Line, Table, duration, right

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from schedc.runtime.interference.fitting import Fitted
    from schedc.runtime.interference.making import MadeInterference

MOST_NAMED = 5
"""Features that are named, at most."""


def shown_interference(made: MadeInterference, fitted: Fitted, output: Path) -> Iterator[Block]:
    """The errors of each, which features count most, and where the forest is."""
    ratios = sorted(sample.ratio for sample in made.samples)
    slowest, middle = ratios[-1], ratios[len(ratios) // 2]
    runs = counted(len({sample.run for sample in made.samples}), "run")
    alone = f"an iteration takes {duration(round(made.alone_ns))} alone, and {middle:.2f} times as long in the median window"
    yield Line(f"{counted(len(ratios), 'window')} of {runs}; {alone}, {slowest:.2f} times at most", "bold", soft=True)
    rows = [(entry.name, *(f"{value:.3f}" for value in entry[1:])) for entry in fitted.errors]
    yield Table(
        title="error of the predicted ratio, on runs held out",
        columns=right("by", "mean", "worst", "mean after a change"),
        rows=rows,
    )
    named = ", ".join(f"{name} {share:.0%}" for name, share in fitted.importances[:MOST_NAMED])
    trees = f"{counted(len(fitted.file.trees), 'tree')} of {counted(len(fitted.file.features), 'feature')}"
    yield Line(f"{trees}; most: {named}", soft=True)
    yield f"wrote {one_line(str(output))}"


def interference_json(made: MadeInterference, fitted: Fitted) -> dict[str, Any]:
    """The object of `interference --json`."""
    return {
        "alone_ns": round(made.alone_ns),
        "samples": [{"run": sample.run, "ratio": sample.ratio, "seen": dict(sample.seen)} for sample in made.samples],
        "errors": {entry.name: dict(zip(("mean", "worst", "after_change"), entry[1:], strict=True)) for entry in fitted.errors},
        "importances": dict(fitted.importances),
    }
