"""Errors for a person, each a single line: what is wrong, where, what was expected, what to do. The command exits with its status.

A programming mistake keeps its traceback, unless another method has found a schedule (`schedc.solvers.common.incumbent`).
"""

from __future__ import annotations


class SchedcError(Exception):
    """A failure that is explained to a person in one line. `exit_status` is what the command returns for it."""

    exit_status = 2


class InvalidInput(SchedcError):
    """A file or an option says something that cannot be used: names the place, what was found and what was expected."""


class Unsupported(SchedcError):
    """A method cannot be used for these numbers (a template that does not exist for them, say); says why."""


class CheckFailed(SchedcError):
    """A verifier refused something; the message carries the first violation and how many there are."""

    exit_status = 1


class Defect(CheckFailed):
    """What schedc itself made is wrong: a verifier refused it, or its answers differ. `plan_json`: its plan's file, if any."""

    def __init__(self, message: str, plan_json: bytes = b"") -> None:
        """Keep the message and the plan."""
        super().__init__(message)
        self.plan_json = plan_json


class Infeasible(SchedcError):
    """No schedule exists, proven: names the limit that binds and the smallest that may suffice."""

    exit_status = 3


class NoPlanFound(SchedcError):
    """No method found a plan within the limits given; more time or another method might."""

    exit_status = 4
