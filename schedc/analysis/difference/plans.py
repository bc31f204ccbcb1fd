"""The difference of two plans, as small as it can be said: what follows from a difference that is in it is left out.

A plan without its queues is taken as single facts, each under the key that the plan's file has for it; all fields of the
representations are walked, so that a field that is added later is compared, too. A stage whose layers or recomputation changed
costs something else, so its costs are not compared. Plans of different shape (ranks, microbatches, stages, where these are, or the
paths) have no orders that could be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias

from schedc.analysis.difference.orders import RankOrder, compare_queues
from schedc.ir import DURATIONS, KIND_NAMES, Plan

if TYPE_CHECKING:
    from collections.abc import Sequence


At: TypeAlias = int | str | None
PlanFacts: TypeAlias = "dict[tuple[str, At], Any]"
"""By key and place. How many entries a list has is a fact, too."""

_LINK, _COLLECTIVES, _PARTS = "costs.links[]", "costs.data_parallel", "costs.parts"
_PEAK, _LIMIT = "certificate.peak_activation_bytes", "costs.memory_limit_bytes"
_EDGES = "pipeline.edges"
_LISTS = ("costs.links", _PARTS)
"""Facts about which entries a list has, and in which order."""
_KEYS_OF_STAGE = {
    **{name: f"pipeline.stages[].{name}" for name in ("rank", "layers", "recompute", "parameters", "expert_parameters")},
    **{name: f"costs.durations_ns.{KIND_NAMES[kind]}[]" for kind, name in DURATIONS.items()},
}
_PIPELINE = (
    *("ranks", "microbatches", "placement", "split_backward", "cut_blocks", "in_order", "paths", "path_of"),
    "slices",
)
_OF_STAGES = (
    *("costs.durations_ns.", "costs.activation", "costs.recomputed_bytes", "costs.static_bytes", "costs.message_bytes"),
    *("costs.update_ns", "costs.version_bytes", "costs.state_gradient_bytes"),
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
    """The stage or the rank; of a link or an edge `3>4`, of parts `W3`; None: the fact is the whole plan's."""
    before: Any
    """The value in the first plan; None also where it has no such value."""
    after: Any

    @property
    def place(self) -> str:
        """The key with its place, `costs.links[3>4].latency_ns`."""
        return self.key if self.at is None else self.key.replace("[]", f"[{self.at}]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanDifference:
    """What is different between two plans. Times are nanoseconds, sizes bytes."""

    layout: tuple[FactChange, ...] = ()
    """Ranks, microbatches, stages with ranks, layers and recomputation, paths; all of the plan's `pipeline`."""
    orders: tuple[RankOrder, ...] = ()
    """The ranks whose queues differ, ascending."""
    not_compared: str = ""
    """Why the orders are not compared; empty: they are."""
    cuts: tuple[FactChange, ...] = ()
    """Into which parts the blocks of a kind and stage are cut; compared where the orders are."""
    certificate: tuple[FactChange, ...] = ()
    memory: tuple[FactChange, ...] = ()
    """Peaks and limits of activations per rank. Where the numbers of ranks differ, only the highest peak."""
    costs: tuple[FactChange, ...] = ()
    """Durations, sizes, links, collectives, objective: what the plans were made for."""
    made_by: tuple[FactChange, ...] = ()
    """The job's name and digest, method, seed, version."""

    @property
    def is_empty(self) -> bool:
        """Whether the plans are equal."""
        return not any(getattr(self, field.name) for field in fields(self))


def diff_plans(before: Plan, after: Plan) -> PlanDifference:
    """What is different between two plans; empty where they are equal, and only there.

    The other way around, each change has its values swapped, and ops moved the other way.
    """
    changes = _stated(before, after, changes_of(facts_of(before), facts_of(after)))
    not_compared = _why_not(before, after)
    pairs = [] if not_compared else list(zip(before.ranks, after.ranks, strict=True))
    return PlanDifference(
        layout=tuple(change for change in changes if change.key.startswith("pipeline.")),
        orders=tuple(order for order in (compare_queues(*pair) for pair in pairs) if order is not None),
        not_compared=not_compared,
        certificate=tuple(c for c in changes if c.key.startswith("certificate.") and not c.key.startswith(_PEAK)),
        memory=tuple(change for change in changes if change.key.startswith((_PEAK, _LIMIT))),
        cuts=() if not_compared else tuple(change for change in changes if change.key.startswith(_PARTS)),
        costs=tuple(c for c in changes if c.key.startswith("costs.") and not c.key.startswith((_LIMIT, _PARTS))),
        made_by=tuple(change for change in changes if change.key == "name" or change.key.startswith("made_by.")),
    )


def facts_of(plan: Plan) -> PlanFacts:
    """Every fact of the plan but its queues."""
    problem, parallel = plan.problem, plan.problem.data_parallel
    links, edges = ([(f"{each.source}>{each.destination}", each) for each in many] for many in (problem.links, problem.edges))
    parts = [(f"{KIND_NAMES[parts.kind]}{parts.stage}", parts.shares) for parts in plan.parts]
    facts: PlanFacts = {
        ("pipeline.stages", None): len(problem.stages),
        ("costs.links", None): tuple(place for place, _ in links),
        (_EDGES, None): tuple(place for place, _ in edges),
        (_COLLECTIVES, None): parallel is not None,
        (_PARTS, None): tuple(place for place, _ in parts),
        ("ranks", None): tuple(rank.rank for rank in plan.ranks),
        **{(f"{_PARTS}[]", place): shares for place, shares in parts},
    }
    for index, stage in enumerate(problem.stages):
        facts |= {(_KEYS_OF_STAGE.get(name, f"costs.{name}[]"), index): value for name, value in _fields(stage)}
    for key, entries in ((_LINK, links), (f"{_EDGES}[]", edges)):
        for place, entry in entries:
            facts |= {(f"{key}.{name}", place): value for name, value in _fields(entry, "source", "destination")}
    single = [(f"{'pipeline' if name in _PIPELINE else 'costs'}.{name}", value) for name, value in _fields(problem, "name")]
    sections = ((_COLLECTIVES, parallel), ("certificate", plan.certificate), ("made_by", plan.made_by))
    for section, values in (*sections, ("pipeline.updates", problem.updates)):
        single += [(f"{section}.{name}", value) for name, value in _fields(values)]
    for key, value in [("name", problem.name), *single]:
        if isinstance(value, tuple) and key.startswith((_PEAK, _LIMIT, f"{_COLLECTIVES}.")):  # one entry for each rank or stage
            facts[key, None] = len(value)
            facts |= {(f"{key}[]", index): entry for index, entry in enumerate(value)}
        else:
            facts[key, None] = value
    return facts


def _fields(thing: Any, *others: str) -> list[tuple[str, Any]]:
    """The fields of a dataclass with their values, but for the origin, lists of others and those that are named; of None, none."""
    left_out = ("stages", "links", "edges", "data_parallel", "updates", "origin", *others)
    return [] if thing is None else [(each.name, getattr(thing, each.name)) for each in fields(thing) if each.name not in left_out]


def changes_of(before: PlanFacts, after: PlanFacts) -> tuple[FactChange, ...]:
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


def _why_not(before: Plan, after: Plan) -> str:
    """Why the orders of two plans cannot be compared, or nothing."""
    ours, theirs = before.problem, after.problem
    for noun, pair in (
        ("ranks", (ours.ranks, theirs.ranks)),
        ("ranks' queues", (len(before.ranks), len(after.ranks))),
        ("microbatches", (ours.microbatches, theirs.microbatches)),
        ("stages", (len(ours.stages), len(theirs.stages))),
    ):
        if pair[0] != pair[1]:
            return f"the numbers of {noun} differ"
    if [stage.rank for stage in ours.stages] != [stage.rank for stage in theirs.stages]:
        return "stages are on other ranks"
    if [rank.rank for rank in before.ranks] != [rank.rank for rank in after.ranks]:
        return "the ranks have other numbers"
    if len(ours.slices) != len(theirs.slices):
        return "microbatches have other numbers of slices"
    return "microbatches take other paths" if (ours.paths, ours.path_of) != (theirs.paths, theirs.path_of) else ""


def _stated(before: Plan, after: Plan, changes: Sequence[FactChange]) -> list[FactChange]:
    """The changes without those that follow from another one."""
    same_ranks = before.problem.ranks == after.problem.ranks
    of_stages, of_links = _stages_alike(before, after), _links_compared(before, after)
    ours, theirs = ({(edge.source, edge.destination) for edge in plan.problem.edges} for plan in (before, after))
    same_stages = len(before.problem.stages) == len(after.problem.stages)
    of_edges = {f"{source}>{to}" for source, to in ours & theirs} if same_stages else set()
    stated = []
    for change in changes:
        key, at = change.key, change.at
        follows = (
            (key.startswith(_OF_STAGES) and at is not None and at not in of_stages)
            or (key.startswith("pipeline.stages[]") and len(before.problem.stages) != len(after.problem.stages))
            or (key == "pipeline.paths" and len(before.problem.stages) != len(after.problem.stages))
            or (key == "pipeline.path_of" and before.problem.microbatches != after.problem.microbatches)
            or (key in _LISTS and set(change.before) != set(change.after))  # the entries themselves differ
            or (key.startswith(_LINK) and at not in of_links)
            or (key.startswith(f"{_EDGES}[]") and at not in of_edges)
            or (key == _EDGES and len(before.problem.stages) != len(after.problem.stages))
            or (key.startswith((_PEAK, _LIMIT)) and not same_ranks)
        )
        if not follows:
            stated.append(change)
    peaks = [max(plan.certificate.peak_activation_bytes, default=0) for plan in (before, after)]
    if not same_ranks and peaks[0] != peaks[1]:
        stated.append(FactChange(key=_PEAK, before=peaks[0], after=peaks[1]))
    return stated


def _stages_alike(before: Plan, after: Plan) -> frozenset[int]:
    """The stages that have the same layers in both plans, and recompute in both or in neither."""
    ours, theirs = before.problem.stages, after.problem.stages
    if len(ours) != len(theirs):
        return frozenset()
    pairs = enumerate(zip(ours, theirs, strict=True))
    return frozenset(index for index, (a, b) in pairs if (a.layers, a.recompute) == (b.layers, b.recompute))


def _links_compared(before: Plan, after: Plan) -> set[str]:
    """The links that both plans have; where both have the same stages on their ranks, all links; of other ranks none."""
    if before.problem.ranks != after.problem.ranks:
        return set()
    ours, theirs = ({f"{link.source}>{link.destination}" for link in plan.problem.links} for plan in (before, after))
    placed = ([stage.rank for stage in plan.problem.stages] for plan in (before, after))
    return ours | theirs if next(placed) == next(placed) else ours & theirs
