"""The methods by name: what `--method` and a job's `[solver] method` take, with options in braces, `greedy{n_sub=2}`.

A name and the text of its options go in; a constructive method, or a search, with its options comes out. After a constructive
method's name, ` + fused` is the schedule that it makes where every backward must fuse. A method is a class in a module of one of
the `FOLDERS`, imported when it is looked for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from schedc.errors import InvalidInput
from schedc.io.location import Location
from schedc.ir import Problem, Schedule
from schedc.solvers.common.method import FUSED, METHODS, Constructive, Method, Search, methods_in
from schedc.solvers.layout.method import LayoutMethod
from schedc.spelling import nearest

if TYPE_CHECKING:
    from schedc.solvers.common.base import Construct

Kind = TypeVar("Kind", bound=Method)

FOLDERS = ("templates", "heuristics", "search", "exact", "layout")
"""Of `schedc.solvers`."""
GONE = {"periodic": "greedy or in-turn"}
"""Methods that were taken out, and what to use instead."""


def methods(kind: type[Kind]) -> dict[str, type[Kind]]:
    """All methods of a kind by name, in their places."""
    found = [each for folder in FOLDERS for each in methods_in(folder) if issubclass(each, kind)]
    return {each.name: each for each in sorted(found, key=lambda each: each.place)}


def method_named(text: str) -> type[Method] | None:
    """The class of the method that `text` names, whatever follows its name; None: there is none."""
    name = text.removesuffix(FUSED).partition("{")[0]
    every = (each for folder in FOLDERS for each in methods_in(folder))
    return METHODS.get(name) or next((each for each in every if each.name == name), None)


def is_auto(text: str) -> bool:
    """Whether `text` asks for all methods that help.

    Raises:
        InvalidInput: it gives `auto` options, of which there are none.
    """
    name, brace, _ = text.partition("{")
    if name == "auto" and brace:
        raise InvalidInput(f"method {text!r}: auto has no options; give them to one of the methods that it tries")
    return name == "auto"


def is_constructive(text: str) -> bool:
    """Whether the method is neither `auto` nor a search: it makes a schedule at once, if there is such a method."""
    return not is_auto(text) and not issubclass(method_named(text) or Constructive, Search)


def chooses_layout(text: str) -> bool:
    """Whether the method chooses a layout with its schedule, where the job leaves it open."""
    return not is_auto(text) and issubclass(method_named(text) or Method, LayoutMethod)


def check_method(text: str, *, is_open: bool = False) -> None:
    """Refuse a method that `solve` would refuse, or `solve_layouts` where the layout is open, before there is a problem.

    Raises:
        InvalidInput: the name is unknown, the options cannot be read, or it chooses a layout where that is given.
    """
    is_followed = text.endswith(FUSED)
    if not is_open and not is_followed and chooses_layout(text):
        raise InvalidInput(f'method {text!r} chooses a layout, and the job gives it; set one of its keys to "auto"')
    if is_followed:
        constructive(text)
    elif not is_auto(text):
        _method(text)


def constructive(text: str) -> Construct:
    """The constructive method that `text` names, with its options.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    if text.endswith(FUSED):
        return partial(_fused, constructive(text.removesuffix(FUSED)))
    made = None if is_auto(text) else _method(text)
    if not isinstance(made, Constructive):
        name = text if made is None else made.name
        raise InvalidInput(f"method {name!r} makes no schedule by itself; expected one of {', '.join(methods(Constructive))}")
    return made


def _fused(construct: Construct, problem: Problem) -> Schedule:
    return construct(replace(problem, split_backward=False))


def layout_method(text: str) -> LayoutMethod:
    """The method over layouts that `text` names, with its options; it is one.

    Raises:
        InvalidInput: the options cannot be read.
    """
    return cast("LayoutMethod", _method(text))


def search_of(text: str) -> Search:
    """The search that `text` names, with its options; it is one.

    Raises:
        InvalidInput: the options cannot be read.
    """
    return cast("Search", _method(text))


def _method(text: str) -> Method:
    """The method with its options."""
    name, brace, rest = text.partition("{")
    found = method_named(name)
    if found is None:
        if (instead := GONE.get(name)) is not None:
            raise InvalidInput(f"method {name!r} is no longer there; use {instead}, which found better schedules")
        known = ("auto", *methods(Method))
        raise InvalidInput(f"method {name!r} is unknown{nearest(name, known)}; expected {', '.join(known)}")
    location = Location(f"method {text!r}")
    if brace and not rest.endswith("}"):
        raise location.error("expected options in braces, as in greedy{n_sub=2}")
    return found.parse(rest[:-1], location)
