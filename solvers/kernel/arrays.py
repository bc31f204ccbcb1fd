"""A Board as arrays for the compiled kernels, and back."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from schedc.solvers.kernel.tables import COLUMNS, ROW, Board

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["as_arrays", "example_board", "read_back", "refresh"]


def as_arrays(board: Board) -> Board:
    """The same for the compiled kernel."""
    return Board(**{name: _array(name, rows) for name, rows in board._asdict().items()})


def refresh(arrays: Board, board: Board) -> Board:
    """Write what a rule changes of the board into its arrays, and return them."""
    for name in ("lanes", "settings"):
        getattr(arrays, name)[:] = _array(name, getattr(board, name))
    arrays.blocks["fused"] = [block.fused for block in board.blocks]
    return arrays


def _rows_of(name: str, array: NDArray[Any]) -> list[Any]:
    """The rows of a table that is an array."""
    return [ROW[name](*row) for row in array.tolist()]


def _array(name: str, rows: list[Any]) -> NDArray[Any]:
    if name not in COLUMNS:
        return np.array(rows, np.int64)
    values = list(map(attrgetter(*COLUMNS[name]), rows))
    return np.array(values, np.int64).view(_type_of(name)).reshape(len(rows))


def read_back(board: Board, arrays: Board) -> Board:
    """The board with what a run on its arrays has written for others."""
    ranks, settings = (_rows_of(name, getattr(arrays, name)) for name in ("ranks", "settings"))
    return board._replace(ranks=ranks, settings=settings, order=arrays.order.tolist())


def example_board() -> Board:
    """A board of nothing, of the types that kernels are compiled for."""
    return Board(*(np.zeros((2, 2) if name == "held" else 2, _type_of(name)) for name in Board._fields))


def _type_of(table: str) -> np.dtype[Any]:
    """The type of the elements of a compiled kernel's table."""
    return np.dtype([(column, np.int64) for column in COLUMNS[table]] if table in COLUMNS else np.int64)
