"""A SchedulerState as arrays for the compiled kernels, and back."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.solvers.kernel.tables import COLUMNS, ROW, SchedulerState

if TYPE_CHECKING:
    from numpy.typing import NDArray


def as_arrays(scheduler: SchedulerState) -> SchedulerState:
    """The same for the compiled kernel."""
    return SchedulerState(**{name: _array(name, rows) for name, rows in scheduler._asdict().items()})


def refresh(arrays: SchedulerState, scheduler: SchedulerState) -> SchedulerState:
    """Write what a rule changes of the scheduler into its arrays, and return them."""
    for name in ("lanes", "settings"):
        getattr(arrays, name)[:] = _array(name, getattr(scheduler, name))
    arrays.blocks["fused"] = [block.fused for block in scheduler.blocks]
    return arrays


def _rows_of(name: str, array: NDArray[Any]) -> list[Any]:
    """The rows of a table that is an array."""
    return [ROW[name](*row) for row in array.tolist()]


def _array(name: str, rows: list[Any]) -> NDArray[Any]:
    if name not in COLUMNS:
        return np.array(rows, np.int64)
    values = list(map(attrgetter(*COLUMNS[name]), rows))
    return np.array(values, np.int64).view(_type_of(name)).reshape(len(rows))


def read_back(scheduler: SchedulerState, arrays: SchedulerState) -> SchedulerState:
    """The scheduler with what a run on its arrays has written for others."""
    ranks, settings = (_rows_of(name, getattr(arrays, name)) for name in ("ranks", "settings"))
    return scheduler._replace(ranks=ranks, settings=settings, order=arrays.order.tolist())


def example_scheduler() -> SchedulerState:
    """A scheduler of nothing, of the types that kernels are compiled for."""
    return SchedulerState(*(np.zeros((2, 2) if name == "held" else 2, _type_of(name)) for name in SchedulerState._fields))


def _type_of(table: str) -> np.dtype[Any]:
    """The type of the elements of a compiled kernel's table."""
    return np.dtype([(column, np.int64) for column in COLUMNS[table]] if table in COLUMNS else np.int64)
