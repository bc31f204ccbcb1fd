"""The methods by name: what `--method` and a job's `[solver] method` take, with options in braces, `greedy{n_sub=2}`.

A name and the text of its options go in; a constructive method, or a search, bound to its options comes out. After a constructive
method's name, ` + mixed` is its schedule with backwards fused and split where that pays, and ` + fused` the one that it makes where
every backward must fuse. Modules load when they are used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from schedc.errors import InvalidInput
from schedc.io.location import Location
from schedc.solvers.common.options import NoOptions, parse_options
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.solvers.common.base import Construct, Limits
    from schedc.solvers.common.incumbent import Incumbent
    from schedc.solvers.layout.layout_arrays import ScheduledLayout

    Search: TypeAlias = Callable[[Incumbent, Limits], None]
    """Improves what is known about a problem: offers schedules and bounds until the gap, the limit, or a proof."""
    LayoutMethod: TypeAlias = Callable[..., ScheduledLayout]
    """Chooses a layout with its schedule, within memory; takes and raises what `schedc.solvers.layout.adaptis.adaptis` does."""

TEMPLATE_NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "hanayo", "chimera", "dualpipe-v")
MIXED, FUSED = " + mixed", " + fused"
"""After a constructive method's name."""

METHODS = {
    **dict.fromkeys(TEMPLATE_NAMES, "schedc.solvers.templates:TEMPLATES"),
    "greedy": "schedc.solvers.heuristics.greedy:greedy",
    "spread": "schedc.solvers.search.spread:spread",
    "pipemorph": "schedc.solvers.heuristics.pipemorph:pipemorph",
    "sorted": "schedc.solvers.heuristics.sorted_microbatches:sorted_microbatches",
    "rule-table": "schedc.solvers.heuristics.rule_table:rule_table",
    "sequential": "schedc.solvers.heuristics.sequential:sequential",
}
"""The constructive methods: module and function; of a template, the module's table. Options are the class of its `options`."""

SEARCHES = {
    "local": "schedc.solvers.driver.searches:local",
    "fused-ranges": "schedc.solvers.driver.searches:fused_ranges",
    "polish": "schedc.solvers.driver.searches:polish",
    "microbatch-order": "schedc.solvers.driver.searches:microbatch_order",
    "periodic": "schedc.solvers.driver.searches:periodic",
    "cpsat": "schedc.solvers.driver.searches:cpsat",
    "refute": "schedc.solvers.driver.searches:refute",
    "milp": "schedc.solvers.driver.searches:milp",
}
"""The searches, likewise."""

LAYOUT_METHODS = {"adaptis": "schedc.solvers.layout.adaptis:adaptis"}
"""The methods that choose a layout with its schedule, where the job leaves it open; they have no options."""


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
    return not is_auto(text) and text.partition("{")[0] not in SEARCHES


def check_method(text: str, *, is_open: bool = False) -> None:
    """Refuse a method that `solve` would refuse, or `solve_layouts` where the layout is open, before there is a problem.

    Raises:
        InvalidInput: the name is unknown, the options cannot be read, or it chooses a layout where that is given.
    """
    if text in LAYOUT_METHODS:
        if not is_open:
            raise InvalidInput(f'method {text!r} chooses a layout, and the job gives it; set one of its keys to "auto"')
    elif text.endswith((MIXED, FUSED)):
        constructive(text)
    elif not is_auto(text):
        _method(text)


def constructive(text: str) -> Construct:
    """The constructive method that `text` names, with its options.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    if text.endswith(MIXED):
        return partial(_mixed, constructive(text.removesuffix(MIXED)))
    if text.endswith(FUSED):
        return partial(_fused, constructive(text.removesuffix(FUSED)))
    name, made = (text, None) if is_auto(text) or text in LAYOUT_METHODS else _method(text)
    if name not in METHODS:
        raise InvalidInput(f"method {name!r} makes no schedule by itself; expected one of {', '.join(METHODS)}")
    return cast("Construct", made)


def _mixed(construct: Construct, problem: Problem) -> Schedule:
    from schedc.solvers.common.fuse_backwards import fuse_backwards

    return fuse_backwards(problem, construct(problem))


def _fused(construct: Construct, problem: Problem) -> Schedule:
    return construct(replace(problem, split_backward=False))


def layout_method(text: str) -> LayoutMethod:
    """The method over layouts of this name, one of `LAYOUT_METHODS`."""
    return cast("LayoutMethod", _load(LAYOUT_METHODS[text]))


def search_of(text: str) -> Search:
    """The search that `text` names, with its options; the name is one of `SEARCHES`.

    Raises:
        InvalidInput: the options cannot be read.
    """
    return cast("Search", _method(text)[1])


def options_of(name: str) -> type:
    """The class of the options of a method or search: that of the default of its parameter `options`."""
    parameter = signature(_loaded(name)).parameters.get("options")
    return NoOptions if parameter is None else type(parameter.default)


def _method(text: str) -> tuple[str, Any]:
    """A method's name, and the method with its options."""
    name, brace, rest = text.partition("{")
    if name not in METHODS and name not in SEARCHES:
        known = ("auto", *METHODS, *SEARCHES, *LAYOUT_METHODS)
        raise InvalidInput(f"method {name!r} is unknown{nearest(name, known)}; expected {', '.join(known)}")
    location = Location(f"method {text!r}")
    if brace and not rest.endswith("}"):
        raise location.error("expected options in braces, as in greedy{n_sub=2}")
    if not brace:
        return name, _loaded(name)
    options: object = parse_options(rest[:-1], options_of(name), location)
    return name, _loaded(name) if isinstance(options, NoOptions) else partial(_loaded(name), options=options)


def _loaded(name: str) -> Any:
    """The method or search of this name."""
    found = _load(METHODS.get(name) or SEARCHES[name])
    return found[name].construct if name in TEMPLATE_NAMES else found


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(import_module(module), attribute)
