"""What a verifier returns, an entry for everything that breaks a rule, with its place; and `Checks`, which are run in their order.

A check is a generator of places and messages. It is named after its rule: `check_memory_limit` finds violations of `memory-limit`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic, NamedTuple, ParamSpec, TypeAlias


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


def negative(name: str, values: Sequence[int]) -> Found:
    """Those of the values that are below 0."""
    return ((f"{name}[{index}]", f"expected at least 0, found {value}") for index, value in enumerate(values) if value < 0)
