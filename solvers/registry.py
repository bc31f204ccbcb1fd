"""The methods by name: what `--method` and a job's `[solver] method` take, with options in braces, `greedy{n_sub=2}`.

A name and the text of its options go in; a constructive method bound to its options comes out. Modules load when they are used.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.spelling import nearest

if TYPE_CHECKING:
    from schedc.solvers.base import Construct

__all__ = ["METHODS", "TEMPLATE_NAMES", "constructive"]

TEMPLATE_NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "hanayo", "chimera", "dualpipe-v")

METHODS: dict[str, str] = {
    **dict.fromkeys(TEMPLATE_NAMES, "schedc.solvers.templates:TEMPLATES"),
    "greedy": "schedc.solvers.greedy:greedy",
    "pipemorph": "schedc.solvers.pipemorph:pipemorph",
}
"""Each method's module and function; for templates, the module's table."""


def constructive(text: str) -> Construct:
    """The method that `text` names, with its options.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    name, _, rest = text.partition("{")
    if name not in METHODS:
        raise InvalidInput(f"method {name!r} is unknown{nearest(name, METHODS)}; expected auto, {', '.join(METHODS)}")
    module, _, attribute = METHODS[name].partition(":")
    found = getattr(import_module(module), attribute)
    method: Construct = found[name].construct if name in TEMPLATE_NAMES else found
    return partial(method, **_options(text, rest, method)) if rest else method


def _options(text: str, braced: str, method: Construct) -> dict[str, object]:
    """The options between the braces, each of the type of the method's default for it."""
    if not braced.endswith("}"):
        raise InvalidInput(f"method {text!r}: expected options in braces, as in greedy{{n_sub=2}}")
    known = {
        name: parameter.default
        for name, parameter in signature(method).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    options: dict[str, object] = {}
    for option in filter(None, map(str.strip, braced[:-1].split(","))):
        name, equals, value = option.partition("=")
        if not equals:
            raise InvalidInput(f"method {text!r}: found the option {option!r}, expected name=value")
        if name not in known:
            expected = f"expected {', '.join(known)}" if known else "it has none"
            raise InvalidInput(f"method {text!r}: the option {name!r} is unknown{nearest(name, known)}; {expected}")
        wanted = type(known[name])
        try:
            options[name] = wanted(value) if wanted in (int, float, str) else int(value)
        except ValueError:
            raise InvalidInput(f"method {text!r}: the option {name!r} is {value!r}, expected a number") from None
    return options
