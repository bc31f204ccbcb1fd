"""The family file: JSON that says which plan was made for which conditions, and what each takes under all of them.

{"format": "schedc.family", "version": 1, "name": …, "job_sha256": …, "objective": "makespan",
 "conditions": [{"name": …, "links": {"3>4": {"latency_ns": …}}, "best": 0}],
 "plans": [{"path": "plan-0.json", "sha256": …, "objective_ns": [one for each condition]}]}
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from schedc.formats.plan.plan_structs import Count, FileEntry, Several, Text
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import Location, show
from schedc.io.tables import decode, pretty_json
from schedc.ir import Conditions, LinkState, Objective

if TYPE_CHECKING:
    from pathlib import Path

FAMILY: Final = "family.json"
"""Its name in a folder."""
FORMAT: Final = "schedc.family"
VERSION: Final = 1
_LINK = re.compile(r"([0-9]{1,9})>([0-9]{1,9})", re.ASCII)


class FamilyPlan(FileEntry, frozen=True):
    """One of the plans."""

    path: Text
    """Of its file, relative to the family's."""
    sha256: str
    """Of its file."""
    objective_ns: tuple[Count, ...]
    """Under each of the conditions, by the simulator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A plan for each of several conditions: the first of both is for the job's own costs."""

    name: str
    """The job's."""
    job_sha256: str
    objective: Objective
    conditions: tuple[tuple[str, Conditions], ...]
    """By name; what differs from the job's costs."""
    plans: tuple[FamilyPlan, ...]
    """Made for the conditions, in their order."""

    def __post_init__(self) -> None:
        """Refuse a table with holes."""
        count = len(self.conditions)
        if not count or len(self.plans) != count or any(len(plan.objective_ns) != count for plan in self.plans):
            raise ValueError(f"expected a plan for each of {count} conditions, with an objective under each")

    def best(self, condition: int) -> int:
        """The plan that takes least under this one of the conditions; of equal ones the one made for it, then the first."""
        return min(range(len(self.plans)), key=lambda plan: (self.plans[plan].objective_ns[condition], plan != condition))


class _StateEntry(FileEntry, frozen=True):
    latency_ns: Count | UnsetType = UNSET
    bytes_per_second: Several | UnsetType = UNSET


class _ConditionsEntry(FileEntry, frozen=True):
    name: Text
    links: dict[str, _StateEntry]
    best: Count


class FamilyFile(FileEntry, frozen=True):
    """The whole file."""

    format: Literal["schedc.family"]
    version: Literal[1]
    name: Text
    job_sha256: str
    objective: Objective
    conditions: Annotated[tuple[_ConditionsEntry, ...], Meta(min_length=1)]
    plans: tuple[FamilyPlan, ...]


def family_json(family: Family) -> bytes:
    """The file's bytes; they end with a newline."""
    conditions = tuple(
        _ConditionsEntry(
            name=name,
            links={
                f"{source}>{destination}": _StateEntry(
                    latency_ns=UNSET if state.latency_ns is None else state.latency_ns,
                    bytes_per_second=UNSET if state.bytes_per_second is None else state.bytes_per_second,
                )
                for (source, destination), state in sorted(each.links.items(), key=lambda entry: entry[0])
            },
            best=family.best(number),
        )
        for number, (name, each) in enumerate(family.conditions)
    )
    file = FamilyFile(
        format=FORMAT,
        version=VERSION,
        name=family.name,
        job_sha256=family.job_sha256,
        objective=family.objective,
        conditions=conditions,
        plans=family.plans,
    )
    return pretty_json(msgspec.to_builtins(file)).encode()


def read_family(path: Path | str) -> Family:
    """The family in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    return parse_family(read_bytes(path), str(path))


def parse_family(content: bytes, name: str) -> Family:
    """As `read_family`, from the file's bytes; errors name the file so."""
    location = Location(name)
    file = decode(without_mark(content), FamilyFile, location)
    count = len(file.conditions)
    if len(file.plans) != count:
        raise (location / "plans").refuse(f"{len(file.plans)} plans", f"{count}, one for each of the conditions")
    for at, plan in enumerate(file.plans):
        if len(plan.objective_ns) != count:
            place = location / "plans" / at / "objective_ns"
            raise place.refuse(f"{len(plan.objective_ns)} values", f"{count}, one for each of the conditions")
    return Family(
        name=file.name,
        job_sha256=file.job_sha256,
        objective=file.objective,
        conditions=tuple((each.name, _conditions(each, location / "conditions" / at)) for at, each in enumerate(file.conditions)),
        plans=file.plans,
    )


def _conditions(entry: _ConditionsEntry, location: Location) -> Conditions:
    links = {}
    for key, state in entry.links.items():
        match = _LINK.fullmatch(key)
        if match is None:
            raise (location / "links").refuse(show(key), 'a directed link such as "3>4"')
        links[int(match[1]), int(match[2])] = LinkState(
            latency_ns=None if state.latency_ns is UNSET else state.latency_ns,
            bytes_per_second=None if state.bytes_per_second is UNSET else state.bytes_per_second,
        )
    return Conditions(links=links)
