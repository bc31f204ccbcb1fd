"""A method that ends with an exception of its own: a defect of schedc, which costs what that method does and no more.

What other methods found stays, the failure is recorded beside it, and the driver tells it. Errors that say something of the problem
or of what was asked for (`Unsupported`, `InvalidInput`) are no failures and go their way.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from schedc.errors import CheckFailed, SchedcError

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.incumbent import Incumbent


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """How a method failed."""

    method: str
    error: str
    """The exception's type."""
    message: str
    place: str
    """Module and line that raised it, the innermost of schedc's own: `schedc.models.cpsat.model:57`."""
    exception: Exception = field(repr=False, compare=False)

    def __str__(self) -> str:
        """One line for people."""
        message = " ".join(self.message.split())
        return f"method {self.method} failed with {self.error} at {self.place}" + (f": {message}" if message else "")


def failure_of(method: str, incumbent: Incumbent, work: Callable[[], None]) -> Failure | None:
    """Let the method work on the incumbent; what it failed with, or None.

    After a failure no bound is trusted but the analytic one, and the run does not count as reproducible.

    Raises:
        SchedcError: the method is not for this problem, or what was asked for is wrong.
    """
    try:
        work()
    except SchedcError as error:
        if not isinstance(error, CheckFailed):
            raise
        failure = _failure(method, error)
    except Exception as error:
        failure = _failure(method, error)
    else:
        return None
    incumbent.drop_solver_bound()
    incumbent.cut_short = True
    return failure


def _failure(method: str, exception: Exception) -> Failure:
    place = "an unknown place"
    for frame, line in traceback.walk_tb(exception.__traceback__):
        module = frame.f_globals.get("__name__", "")
        if module.startswith("schedc."):
            place = f"{module}:{line}"
    return Failure(method=method, error=type(exception).__name__, message=str(exception), place=place, exception=exception)
