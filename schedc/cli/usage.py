"""A command line that cannot be read, said in one line: what was found, what was expected.

typer words these errors in its own way, and after two lines of usage. Takes one of them; gives the line. What it cannot word itself
it leaves as typer says it.
"""

from __future__ import annotations

import re
from typing import Any

import typer

from schedc.errors import InvalidInput
from schedc.io.location import one_line, show
from schedc.spelling import nearest

UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of these errors, which typer does not export."""

_LIMITS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
_NEW_NAMES = {"model": "costs", "relayout": "repartition"}
"""Of commands that had another name before."""
_NUMBERS = {"valid number": "a number", "valid integer": "a whole number"}


def refused(error: Any) -> InvalidInput:
    """The error as this program says such things."""
    return InvalidInput(_unknown(error) or _wrong(error) or one_line(error.format_message()).rstrip("."))


def _unknown(error: Any) -> str | None:
    """Names that there are not, and what is missing or too many."""
    message, context = error.message or "", error.ctx
    listed = f"{context.command_path} -h lists them" if context is not None else ""
    if type(error).__name__ == "NoSuchOption":
        near = nearest(error.option_name, [option for param in context.command.params for option in param.opts])
        return f"found an unknown option {show(error.option_name)}{near or f'; {listed}'}"
    if "requires an argument" in message:
        return f"{error.option_name}: found nothing, expected a value"
    if type(error).__name__ == "MissingParameter":
        return f"expected {_name(error.param)}, found none; {listed}"
    match = re.fullmatch(r"No such command '(.*?)'\..*", message, re.DOTALL)
    if match:
        new = _NEW_NAMES.get(match[1]) if context.parent is None else None
        near = f"; it is now `{context.command_path} {new}`" if new else nearest(match[1], context.command.commands)
        return f"found an unknown command {show(match[1])}{near or f'; {listed}'}"
    match = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL)
    return f"found {show(match[1])}, expected no more arguments" if match else None


def _wrong(error: Any) -> str | None:
    """A value that an option does not take."""
    details = getattr(error.__cause__, "errors", None)
    if getattr(error, "param", None) is None or details is None:
        return None
    detail = details()[0]
    message, found = str(detail["msg"]), show(detail["input"])
    choice = re.fullmatch(r"Value error, .* is not one of (.*?)\.", message, re.DOTALL)
    limit = re.fullmatch(r"Input should be (.*) (\S+)", message)
    number = next((kind for text, kind in _NUMBERS.items() if text in message), None)
    if choice:
        *first, last = re.findall(r"'(.*?)'", choice[1])
        expected = f"{', '.join(first)} or {last}" if first else last
    elif number is not None:
        expected = number
    elif limit and limit[1] in _LIMITS:
        expected = f"{_LIMITS[limit[1]]} {limit[2]}"
    else:
        expected = one_line(message)
    return f"{_name(error.param)}: found {found}, expected {expected}"


def _name(param: Any) -> str:
    """What errors of the commands themselves call it: `-o`, `--gap`, `PLAN`."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str("-o" if "-o" in param.opts else max(param.opts, key=len))
