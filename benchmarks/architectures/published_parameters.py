"""The number of parameters of each known model beside the published one: the table of docs/model-costs.md.

Run it as `python benchmarks/architectures/published_parameters.py`. Exit status 1: one is more than 1 % from a number that is
published to 1 % or better.
"""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from schedc.costs.architecture import parameters
from schedc.costs.layers import architecture_named, known_models


def main() -> int:
    """Print the table."""
    out = Console(width=180, highlight=False, markup=False, emoji=False)
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    for header in ("layers", "parameters", "published", "difference"):
        table.add_column(header, justify="right")
    table.add_column("published in", overflow="fold")
    wrong = 0
    for name, said in known_models().items():
        architecture = architecture_named(name)
        count = parameters(architecture)
        difference = count / said["published"] - 1
        wrong += abs(difference) > 0.01 and "published_to" not in said
        layers = len(architecture.blocks) + len(architecture.further_tokens)
        numbers = (f"{layers}", f"{count:,}", f"{said['published'] / 1e9:.6g} B", f"{difference:+.2%}")
        table.add_row(name, *numbers, said["published_source"])
    out.print(table)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
