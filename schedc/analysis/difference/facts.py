"""A plan without its queues as single facts, each under the key that the plan's file has for it, and how those of two plans differ.

All fields of the representations are walked, so that a field that is added later is compared, too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from schedc.ir.costs import DURATIONS
from schedc.ir.ops import KIND_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem

At: TypeAlias = int | str | None
ProblemArrays: TypeAlias = "dict[tuple[str, At], Any]"

LINK = "costs.links[]"
_DURATION_KEYS = {name: f"costs.durations_ns.{KIND_NAMES[kind]}[]" for kind, name in DURATIONS.items()}
_STAGE_KEYS = {name: f"pipeline.stages[].{name}" for name in ("rank", "layers", "recompute", "parameters", "expert_parameters")}
_PIPELINE = ("ranks", "microbatches", "placement", "split_backward", "cut_blocks", "in_order", "paths", "path_of")
_COLLECTIVES = "costs.data_parallel"
OF_STAGES = (
    *("costs.durations_ns.", "costs.activation", "costs.recomputed_bytes", "costs.static_bytes", "costs.message_bytes"),
    *("costs.gradient_message_bytes", "pipeline.stages[].parameters", "pipeline.stages[].expert_parameters"),
    f"{_COLLECTIVES}.",
)
"""How the keys of facts begin that a stage's layers decide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FactChange:
    """One fact that two plans have otherwise."""

    key: str
    """As in the plan's file; `[]` is where `at` goes: `costs.durations_ns.F[]`."""
    at: At = None
    """The stage or the rank; of a link `3>4`, of parts `W3`; None: the fact is the whole plan's."""
    before: Any
    """The value in the first plan; None also where it has no such value."""
    after: Any

    @property
    def place(self) -> str:
        """The key with its place, `costs.links[3>4].latency_ns`."""
        return self.key if self.at is None else self.key.replace("[]", f"[{self.at}]")


def facts_of(plan: Plan) -> ProblemArrays:
    """Every fact of the plan but its queues, by key and place. How many entries a list has is a fact, too."""
    facts: ProblemArrays = dict(_facts_of_problem(plan.problem))
    for section, values in (("certificate", plan.certificate), ("made_by", plan.made_by)):
        for field in fields(values):
            value = getattr(values, field.name)
            facts |= _each(f"{section}.{field.name}", value, listed=field.name == "peak_activation_bytes")
    facts["costs.parts", None] = tuple(f"{KIND_NAMES[parts.kind]}{parts.stage}" for parts in plan.parts)
    facts |= {("costs.parts[]", f"{KIND_NAMES[parts.kind]}{parts.stage}"): parts.shares for parts in plan.parts}
    facts["ranks", None] = tuple(rank.rank for rank in plan.ranks)
    return facts


def changes_of(before: ProblemArrays, after: ProblemArrays) -> tuple[FactChange, ...]:
    """The facts that differ, by key, then by place."""
    differing = [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]
    return tuple(
        FactChange(key=key, at=at, before=before.get((key, at)), after=after.get((key, at)))
        for key, at in sorted(differing, key=lambda key: (key[0], _in_order(key[1])))
    )


def _in_order(at: At) -> tuple[int | str, ...]:
    """So that stage 10 comes after stage 9, link 10>9 after link 9>10, and block W10 after W2."""
    if isinstance(at, str):
        kind = at.rstrip("0123456789")
        return tuple(map(int, at.split(">"))) if ">" in at else (kind, int(at.removeprefix(kind)))
    return (-1 if at is None else at,)


def _facts_of_problem(problem: Problem) -> Iterator[tuple[tuple[str, At], Any]]:
    for field in fields(problem):
        value = getattr(problem, field.name)
        if field.name == "stages":
            yield ("pipeline.stages", None), len(value)
            for index, stage in enumerate(value):
                for entry in fields(stage):
                    yield (_key_of_stage(entry.name), index), getattr(stage, entry.name)
        elif field.name == "links":
            yield ("costs.links", None), tuple(f"{link.source}>{link.destination}" for link in value)
            for link in value:
                for entry in fields(link):
                    if entry.name not in ("source", "destination"):
                        yield (f"{LINK}.{entry.name}", f"{link.source}>{link.destination}"), getattr(link, entry.name)
        elif field.name == "data_parallel":
            yield (_COLLECTIVES, None), value is not None
            for entry in fields(value) if value is not None else ():
                yield from _each(f"{_COLLECTIVES}.{entry.name}", getattr(value, entry.name), listed=True).items()
        elif field.name == "name":
            yield ("name", None), value
        else:
            section = "pipeline" if field.name in _PIPELINE else "costs"
            yield from _each(f"{section}.{field.name}", value, listed=field.name == "memory_limit_bytes").items()


def _key_of_stage(name: str) -> str:
    return _STAGE_KEYS.get(name) or _DURATION_KEYS.get(name) or f"costs.{name}[]"


def _each(key: str, value: Any, *, listed: bool) -> ProblemArrays:
    """The value as one fact; where it is a list with one entry for each rank or stage, as one fact for each."""
    if not listed or not isinstance(value, tuple):
        return {(key, None): value}
    return {(key, None): len(value)} | {(f"{key}[]", index): entry for index, entry in enumerate(value)}
