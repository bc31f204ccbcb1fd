"""A method that ends with an exception of its own: a defect of schedc, which costs what that method does and no more.

What other methods found stays, the failure is recorded beside it, and the driver tells it. Errors that say something of the problem
or of what was asked for (`Unsupported`, `InvalidInput`) are no failures and go their way.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass, field


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

    @classmethod
    def of(cls, method: str, exception: Exception) -> Failure:
        """What the method's exception says."""
        place = "an unknown place"
        for frame, line in traceback.walk_tb(exception.__traceback__):
            module = frame.f_globals.get("__name__", "")
            if module.startswith("schedc."):
                place = f"{module}:{line}"
        return cls(method=method, error=type(exception).__name__, message=str(exception), place=place, exception=exception)
