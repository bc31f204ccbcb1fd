"""The methods by name: what `--method` and a job's `[solver] method` take, with options in braces, `greedy{n_sub=2}`.

A name and the text of its options go in; a constructive method, or a search, bound to its options comes out. After a constructive
method's name, ` + mixed` is its schedule with backwards fused and split where that pays, and ` + fused` the one that it makes where
every backward must fuse. Modules load when they are used.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from schedc.errors import InvalidInput
from schedc.io.location import Location
from schedc.solvers.common.options import (
    GreedyOptions,
    LocalOptions,
    NoOptions,
    PipeMorphOptions,
    RuleTableOptions,
    SpreadOptions,
    parse_options,
)
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.layout import OpenLayout
    from schedc.ir.problem import Problem
    from schedc.ir.schedule import Schedule
    from schedc.ir.workload import Workload
    from schedc.solvers.common.base import Construct, Limits
    from schedc.solvers.common.incumbent import Incumbent
    from schedc.solvers.layout.scheduled_layout import ScheduledLayout

TEMPLATE_NAMES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "hanayo", "chimera", "dualpipe-v")
MIXED, FUSED = " + mixed", " + fused"
"""After a constructive method's name."""


class Entry(NamedTuple):
    """Where a method is, and what its options are."""

    target: str
    """Module and function; for a template, the module's table."""
    options: type = NoOptions


class LayoutMethod(Protocol):
    """A method that chooses a layout with its schedule."""

    def __call__(
        self,
        workload: Workload,
        open_layout: OpenLayout,
        /,
        *,
        stop: Callable[[], bool],
        report: Callable[[int, int], None],
        plain: bool | None,
    ) -> ScheduledLayout:
        """The best layout that it finds, with a schedule within memory.

        Args:
            workload: what `schedc.verify.workload` accepts.
            open_layout: what may be chosen.
            stop: is called often; the best so far is the result once it returns True.
            report: is called with how many layouts were evaluated, and the best objective.
            plain: whether kernels run in Python; None: where their compiled code is not at hand.

        Raises:
            Unsupported: the method does not exist for the workload's numbers.
            NoPlanFound: no layout with a schedule within memory was found.
        """
        ...


class Search(Protocol):
    """A method that improves what is known about a problem, within limits."""

    def __call__(self, incumbent: Incumbent, limits: Limits, /) -> None:
        """Offer schedules and bounds to the incumbent until the gap, the limit, or a proof."""
        ...


METHODS = {
    **dict.fromkeys(TEMPLATE_NAMES, Entry("schedc.solvers.templates:TEMPLATES")),
    "greedy": Entry("schedc.solvers.heuristics.greedy:greedy", GreedyOptions),
    "spread": Entry("schedc.solvers.search.spread:spread", SpreadOptions),
    "pipemorph": Entry("schedc.solvers.heuristics.pipemorph:pipemorph", PipeMorphOptions),
    "sorted": Entry("schedc.solvers.heuristics.sorted_microbatches:sorted_microbatches"),
    "rule-table": Entry("schedc.solvers.heuristics.rule_table:rule_table", RuleTableOptions),
    "sequential": Entry("schedc.solvers.heuristics.sequential:sequential"),
}
"""The constructive methods."""

SEARCHES = {
    "local": Entry("schedc.solvers.driver.searches:local", LocalOptions),
    "fused-ranges": Entry("schedc.solvers.driver.searches:fused_ranges", LocalOptions),
    "polish": Entry("schedc.solvers.driver.searches:polish", LocalOptions),
    "microbatch-order": Entry("schedc.solvers.driver.searches:microbatch_order", LocalOptions),
    **{name: Entry(f"schedc.solvers.driver.searches:{name}") for name in ("periodic", "cpsat", "refute", "milp")},
}
"""The searches."""

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
        _parsed(text)


def constructive(text: str) -> Construct:
    """The constructive method that `text` names, with its options.

    Raises:
        InvalidInput: the name is unknown, or the options cannot be read.
    """
    if text.endswith(MIXED):
        return partial(_mixed, constructive(text.removesuffix(MIXED)))
    if text.endswith(FUSED):
        return partial(_fused, constructive(text.removesuffix(FUSED)))
    name, options = (text, NoOptions()) if is_auto(text) or text in LAYOUT_METHODS else _parsed(text)
    if name not in METHODS:
        raise InvalidInput(f"method {name!r} makes no schedule by itself; expected one of {', '.join(METHODS)}")
    method: Any = _load(METHODS[name])
    if name in TEMPLATE_NAMES:
        method = method[name].construct
    made: Construct = method if isinstance(options, NoOptions) or "{" not in text else partial(method, options=options)
    return made


def _mixed(construct: Construct, problem: Problem) -> Schedule:
    from schedc.solvers.common.fuse_backwards import fuse_backwards

    return fuse_backwards(problem, construct(problem))


def _fused(construct: Construct, problem: Problem) -> Schedule:
    return construct(replace(problem, split_backward=False))


def layout_method(text: str) -> LayoutMethod:
    """The method over layouts of this name, one of `LAYOUT_METHODS`."""
    module, _, attribute = LAYOUT_METHODS[text].partition(":")
    method: LayoutMethod = getattr(import_module(module), attribute)
    return method


def search_of(text: str) -> Search:
    """The search that `text` names, with its options; the name is one of `SEARCHES`.

    Raises:
        InvalidInput: the options cannot be read.
    """
    name, options = _parsed(text)
    search: Any = _load(SEARCHES[name])
    made: Search = search if isinstance(options, NoOptions) or "{" not in text else partial(search, options=options)
    return made


def _parsed(text: str) -> tuple[str, Any]:
    """The method's name, and its options."""
    name, brace, rest = text.partition("{")
    entry = METHODS.get(name) or SEARCHES.get(name)
    if entry is None:
        known = ("auto", *METHODS, *SEARCHES, *LAYOUT_METHODS)
        raise InvalidInput(f"method {name!r} is unknown{nearest(name, known)}; expected {', '.join(known)}")
    location = Location(f"method {text!r}")
    if brace and not rest.endswith("}"):
        raise location.error("expected options in braces, as in greedy{n_sub=2}")
    return name, parse_options(rest[:-1], entry.options, location)


def _load(entry: Entry) -> Any:
    module, _, attribute = entry.target.partition(":")
    return getattr(import_module(module), attribute)
