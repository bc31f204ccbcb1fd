"""The options of the methods that have some: a frozen dataclass for each, whose types say what is allowed, read once from text.

`parse_options` takes the text between the braces of `greedy{n_sub=2,in_flight=memory}`; it gives an instance of the method's class.
No method is loaded for it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from msgspec import Meta

from schedc.io.conform import conform

if TYPE_CHECKING:
    from schedc.io.location import Location

Options = TypeVar("Options")

Parts = Annotated[int, Meta(ge=1, le=256)]
"""Into how many equal parts a W may be cut; 1: blocks stay whole."""
Share = Annotated[float, Meta(ge=0, le=1_000)]
Ops = Annotated[int, Meta(ge=0, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoOptions:
    """Of a method that has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GreedyOptions:
    """Of `greedy`. What is "auto" is chosen: a few values are tried."""

    n_sub: Parts = 4
    in_flight: Annotated[int, Meta(ge=0, le=2**20)] | Literal["auto", "memory"] = "auto"
    """Cap on each stage's activations in flight: this many above what the stage's round trip needs; "memory": no cap."""
    alternate: bool | Literal["auto"] = "auto"
    """Whether a rank runs F before B after a B."""
    weight_lag: Share | Literal["auto"] = "auto"
    """How many W stages leave waiting (`GreedyRule.weight_lag`); ZB-H1 is 1, W as soon as possible 0."""
    look_ahead: Share | Literal["auto"] = "auto"
    """How long a rank may wait for an op of higher priority, in units of the longest F."""
    fused: Literal["none", "first", "steady", "all", "slack"] = "none"
    """Which backwards are fused, where the problem splits them (`GreedyRule.fused`); "slack": those that the times of the schedule
    give reason for, with the rest made anew around them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadOptions:
    """Of `spread`."""

    n_sub: Parts = 4


class Policy(StrEnum):
    """Whose warm-up counts PipeMorph takes."""

    ADAPTED = "adapted"
    """To the links (algorithm 2)."""
    INITIAL = "initial"
    """For unknown links (algorithm 1): from the first rank's memory limit or, without one, slackness 2 everywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeMorphOptions:
    """Of `pipemorph`."""

    policy: Policy = Policy.ADAPTED
    warm_up: tuple[Annotated[int, Meta(ge=0, le=2**20)], ...] | None = None
    """The warm-up counts along the path instead of a policy's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleTableOptions:
    """Of `rule-table`."""

    climb_ops: Ops = 30_000
    """About how many ops the climbs may place together; 0: no climbs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalOptions:
    """Of the local searches, `local`, `polish` and `fused-ranges`."""

    rounds: Annotated[int, Meta(ge=1, le=10**6)] = 40
    """Rounds of climbing at most."""
    evaluations: Ops = 0
    """For each climb and round; 0: as many as suit the problem's size."""


def parse_options(text: str, options: type[Options], location: Location) -> Options:
    """The options in the text, `n_sub=2,in_flight=memory`; what it does not name has its default.

    Raises:
        InvalidInput: an option is unknown or given twice, or its value is of the wrong type or out of range.
    """
    table: dict[str, Any] = {}
    for option in filter(None, map(str.strip, re.split(r",(?=\s*\w+=)", text))):  # a value may be a list with commas
        name, equals, value = option.partition("=")
        if not equals:
            raise location.refuse(f"the option {option!r}", "name=value")
        if name in table:
            raise (location / name).refuse("the option twice", "it once")
        table[name] = _value(value)
    return conform(table, options, location)


def _value(text: str) -> object:
    """A number, a truth value or a list of them where the text reads as one, else the text."""
    if "," in text:
        return [_value(entry) for entry in text.split(",")]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return {"true": True, "false": False}.get(text.strip().lower(), text)
