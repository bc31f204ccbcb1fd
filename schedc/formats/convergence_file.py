"""convergence.json: what some steps of a real run say of how it converges, as `schedc.runtime.measure.convergence` measures them.

{"format": "schedc.convergence", "version": 1, "name": "gpt", "learning_rate": 0.01,
 "steps": [{"step": 0, "loss": 4.2, "gradient_sq": 1.5},
           {"step": 1, "loss": 4.1, "gradient_sq": 1.4, "gradient_change_sq": 0.02, "weight_change_sq": 0.00015}]}

All are sums over the whole model: squared Euclidean norms of the gradient, of its change since the step before, and of the weights'
change since then. `schedc.study.loss.convergence` makes the constants of a theory of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import Meta

from schedc.formats.plan.plan_structs import Count, FileEntry, Text
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import Location
from schedc.io.outputs import write_atomically
from schedc.io.tables import decode, pretty_json

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = "schedc.convergence"
VERSION: Final = 1

SquaredNorm = Annotated[float, Meta(ge=0, le=1e300)]
"""A mean of them is a number."""


class MeasuredUpdate(FileEntry, frozen=True, omit_defaults=True):
    """One step, before its update."""

    step: Count
    loss: float
    gradient_sq: SquaredNorm
    gradient_change_sq: SquaredNorm | None = None
    """None: the step before was not measured. So `weight_change_sq`."""
    weight_change_sq: SquaredNorm | None = None


class MeasuredConvergence(FileEntry, frozen=True):
    """The whole file."""

    format: Literal["schedc.convergence"]
    version: Literal[1]
    name: Text
    learning_rate: Annotated[float, Meta(gt=0)] | None
    """None: nobody said."""
    steps: Annotated[tuple[MeasuredUpdate, ...], Meta(min_length=1)]


def write_convergence(name: str, learning_rate: float | None, steps: tuple[MeasuredUpdate, ...], path: Path | str) -> None:
    """Write the file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    file = MeasuredConvergence(format=FORMAT, version=VERSION, name=name, learning_rate=learning_rate, steps=steps)
    write_atomically(path, pretty_json(msgspec.to_builtins(file)).encode())


def read_convergence(path: Path | str) -> MeasuredConvergence:
    """The measured steps in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    location = Location(str(path))
    file = decode(without_mark(read_bytes(path)), MeasuredConvergence, location)
    numbers = [each.step for each in file.steps]
    if numbers != sorted(set(numbers)):
        raise (location / "steps").refuse(str(numbers), "ascending numbers of steps")
    return file
