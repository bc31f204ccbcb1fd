"""The methods by name: what `--method` and a job's `[solver] method` take, with options in braces, `greedy{n_sub=2}`.

A name and the text of its options go in; a constructive method, or a search, bound to its options comes out. Modules load when they
are used.
"""

from __future__ import annotations

import re
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

from schedc.errors import InvalidInput
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.solvers.common.base import Construct, Search

__all__ = ["METHODS", "RANGES", "SEARCHES", "TEMPLATE_NAMES", "check_method", "constructive", "is_auto", "search_of"]

TEMPLATE_NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "hanayo", "chimera", "dualpipe-v")

METHODS: dict[str, str] = {
    **dict.fromkeys(TEMPLATE_NAMES, "schedc.solvers.templates:TEMPLATES"),
    "greedy": "schedc.solvers.heuristics.greedy:greedy",
    "spread": "schedc.solvers.search.spread:spread",
    "pipemorph": "schedc.solvers.heuristics.pipemorph:pipemorph",
    "rule-table": "schedc.solvers.heuristics.rule_table:rule_table",
}
"""Each constructive method's module and function; for templates, the module's table."""

SEARCHES: dict[str, str] = {
    name: f"schedc.solvers.driver.searches:{name}" for name in ("local", "polish", "periodic", "cpsat", "refute", "milp")
}
"""Each search's module and function."""

RANGES = {"n_sub": (1, 256), "climb_ops": (0, 10**9), "rounds": (1, 10**6), "evaluations": (0, 10**9)}
"""The least and the largest value of each option that is a whole number, of whatever method."""


def is_auto(text: str) -> bool:
    """Whether `text` asks for all methods that help.

    Raises:
        InvalidInput: it gives `auto` options, of which there are none.
    """
    name, brace, _ = text.partition("{")
    if name == "auto" and brace:
        raise InvalidInput(f"method {text!r}: auto has no options; give them to one of the methods that it tries")
    return name == "auto"


def check_method(text: str) -> None:
    """Refuse a method that `solve` would refuse, before there is a problem.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    if not is_auto(text):
        (search_of if text.partition("{")[0] in SEARCHES else constructive)(text)


def constructive(text: str) -> Construct:
    """The constructive method that `text` names, with its options.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    name, brace, rest = text.partition("{")
    if name not in METHODS:
        known = ("auto", *METHODS, *SEARCHES)
        raise InvalidInput(f"method {name!r} is unknown{nearest(name, known)}; expected {', '.join(known)}")
    found = _load(METHODS[name])
    method: Construct = found[name].construct if name in TEMPLATE_NAMES else found
    return partial(method, **_options(text, rest, method)) if brace else method


def search_of(text: str) -> Search:
    """The search that `text` names, with its options; the name is one of `SEARCHES`.

    Raises:
        InvalidInput: the options cannot be read.
    """
    name, brace, rest = text.partition("{")
    search: Search = _load(SEARCHES[name])
    return partial(search, **_options(text, rest, search)) if brace else search


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)


def _options(text: str, braced: str, method: Callable[..., object]) -> dict[str, Any]:
    """The options between the braces, each of the type of the method's default for it."""
    if not braced.endswith("}"):
        raise InvalidInput(f"method {text!r}: expected options in braces, as in greedy{{n_sub=2}}")
    known = {
        name: parameter.default
        for name, parameter in signature(method).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options: dict[str, Any] = {}
    for option in filter(None, map(str.strip, re.split(r",(?=\s*\w+=)", braced[:-1]))):  # a value may be a list with commas
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidInput(f"method {text!r}: found the option {option!r}, expected name=value")
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "it has none"
            raise InvalidInput(f"method {text!r}: the option {name!r} is unknown{nearest(name, known)}; {expected}")
        if name in options:
            raise InvalidInput(f"method {text!r}: the option {name!r} is given twice")
        options[name] = _value(value, known[name])
        if type(known[name]) is int:
            least, most = RANGES[name]
            if type(options[name]) is not int or not least <= options[name] <= most:
                raise InvalidInput(
                    f"method {text!r}: the option {name!r} is {value!r}, expected a whole number from {least} to {most}"
                )
        elif isinstance(options[name], str) and not isinstance(known[name], str):
            raise InvalidInput(f"method {text!r}: the option {name!r} is {value!r}, expected a number")
    return options


def _value(text: str, default: object) -> object:
    """The option's value: a number or a list of numbers where it reads as one, else a truth value or a word."""
    if "," in text:
        return tuple(_value(entry, default) for entry in text.split(","))
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text, text) if isinstance(default, (bool, str)) else text
