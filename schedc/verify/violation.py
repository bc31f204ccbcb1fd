"""What a verifier returns, an entry for everything that breaks a rule, with its place; and `Checks`, which are run in their order.

A check is a generator of places and messages. It is named after its rule: `check_memory_limit` finds violations of `memory-limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, ParamSpec, TypeAlias

if TYPE_CHECKING:
    from schedc.ir import Edge


class Violation(NamedTuple):
    """One broken rule. `str()` of it is the line that a person reads."""

    rule: str
    """The rule's name in kebab-case, as in the check `check_memory_limit`: `memory-limit`."""
    place: str
    """Where: `ranks[3].compute[17]`, `stages[2].activation_bytes`."""
    message: str
    """What was found and what was expected."""

    def __str__(self) -> str:
        """`ranks[3].compute[17]: memory-limit: …`."""
        return f"{self.place}: {self.rule}: {self.message}"


Found: TypeAlias = Iterator[tuple[str, str]]
"""What a check gives: place and message of each violation."""
P = ParamSpec("P")


class Checks(Generic[P]):
    """The checks of a verifier in their order; as a decorator it takes one more."""

    def __init__(self) -> None:
        """None yet."""
        self.all: list[Callable[P, Found]] = []

    def __call__(self, check: Callable[P, Found]) -> Callable[P, Found]:
        """Take the check."""
        self.all.append(check)
        return check

    @property
    def rules(self) -> list[str]:
        """The names of their rules."""
        return [check.__name__.removeprefix("check_").replace("_", "-") for check in self.all]

    def broken(self, *args: P.args, **kwargs: P.kwargs) -> tuple[Violation, ...]:
        """Everything that they find."""
        checks = zip(self.rules, self.all, strict=True)
        return tuple(Violation(rule, *found) for rule, check in checks for found in check(*args, **kwargs))


def too_few(**counts: int) -> Found:
    """Those of the counts that are below 1."""
    return ((name, f"expected at least 1, found {count}") for name, count in counts.items() if count < 1)


def absent(what: str, count: int, numbers: Iterable[tuple[str, int]]) -> Found:
    """Those of the numbers, each behind its place, that are not from 0 to count − 1."""
    for place, number in numbers:
        if not 0 <= number < count:
            yield place, f"{what} {number} does not exist; the {what}s are 0 to {count - 1}"


def repeated(name: str, pairs: Iterable[tuple[int, int]], said: str) -> Found:
    """Those of the pairs that are given before; `said` names one, as in `the link from rank {} to rank {}`."""
    first: dict[tuple[int, int], int] = {}
    for index, pair in enumerate(pairs):
        if pair in first:
            yield f"{name}[{index}]", f"{said.format(*pair)} is already given by {name.split('.')[-1]}[{first[pair]}]"
        first.setdefault(pair, index)


def path_faults(stages: int, paths: Sequence[Sequence[int]]) -> Found:
    """Where a path visits no stage, one that does not exist, or one for the second time."""
    for index, path in enumerate(paths):
        if not path:
            yield f"paths[{index}]", "visits no stage"
        first: dict[int, int] = {}
        for position, stage in enumerate(path):
            yield from absent("stage", stages, [(f"paths[{index}][{position}]", stage)])
            if stage in first:
                yield f"paths[{index}][{position}]", f"stage {stage} is a duplicate, first at position {first[stage]}"
            first.setdefault(stage, position)


def edge_faults(what: str, edges: Sequence[Edge], order: Iterable[int]) -> Found:
    """Where an edge joins what does not exist, leads backwards, is given twice, or has another size than its value has.

    `what` they join is "stage" or "layer"; `order` has those that exist, each behind those that it takes from.
    """
    at, where = {each: place for place, each in enumerate(order)}, " on the path" if what == "stage" else ""
    sizes: dict[tuple[int, int], int] = {}
    for index, edge in enumerate(edges):
        place, missing = f"edges[{index}]", [each for each in (edge.source, edge.destination) if each not in at]
        if missing:
            yield place, f"{what} {missing[0]} {f'is not{where}' if where else 'does not exist'}"
        elif at[edge.source] >= at[edge.destination]:
            message = f"leads from {what} {edge.source} to {what} {edge.destination}, which is before it{where}"
            yield place, f"{message}; expected {what}s in an order in which each is behind those that it takes from"
        if sizes.setdefault((edge.source, edge.value), edge.message_bytes) != edge.message_bytes:
            message = f"found {edge.message_bytes}, expected {sizes[edge.source, edge.value]}"
            yield f"{place}.message_bytes", f"{message} as of the edge before with the same value of {what} {edge.source}"
    pairs = ((edge.source, edge.destination) for edge in edges)
    yield from repeated("edges", pairs, f"the edge from {what} {{}} to {what} {{}}")


def slice_faults(lengths: Sequence[int], microbatches: int) -> Found:
    """Where a slice has no length, or some of a microbatch are missing."""
    for index, length in enumerate(lengths):
        if length < 1:
            yield f"slices[{index}]", f"expected a length of at least 1, found {length}"
    if lengths and microbatches % len(lengths):
        yield "microbatches", f"expected a multiple of the {len(lengths)} slices, found {microbatches}; each slice counts"


def negative(name: str, values: Sequence[int]) -> Found:
    """Those of the values that are below 0."""
    return ((f"{name}[{index}]", f"expected at least 0, found {value}") for index, value in enumerate(values) if value < 0)
