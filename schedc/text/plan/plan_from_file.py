"""From the shape of the plan file to the Plan: the inverse of `plan_to_file`.

What a single field must be is checked by the decoder (`plan_structs`), what a plan must be by `verify_plan`; here only what
keeps the file from being a Plan at all.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, structs

from schedc.files.location import show
from schedc.ir.ops import Kind
from schedc.ir.plan import Certificate, Channel, MadeBy, Plan, RankPlan
from schedc.ir.problem import DataParallel, Link, Problem, Stage
from schedc.ir.schedule import Parts
from schedc.text.plan.tokens import TokenReader, parse_collective, parse_index, parse_plan_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.files.location import Location
    from schedc.ir.plan import Collective
    from schedc.text.plan.plan_structs import ChannelEntry, Costs, LinkEntry, PlanFile, RankEntry, StageEntry

__all__ = ["STAGE_SIZES", "plan_of_file"]

STAGE_SIZES = tuple(field.name for field in fields(Stage) if field.name.endswith("_bytes"))
"""The fields of a stage that are sizes; the file has a list of each under the same name."""


def plan_of_file(file: PlanFile, location: Location) -> Plan:
    """The plan that the file holds; `location` is the file's.

    Raises:
        InvalidInput: names the place in the file, what was found and what was expected.
    """
    reader = _RankReader()
    ranks = tuple(reader.rank(entry, location / "ranks" / number) for number, entry in enumerate(file.ranks))
    parts = []
    for at, entry in enumerate(file.costs.parts):
        if len(entry.shares) < 2:
            raise (location / "costs" / "parts" / at / "shares").refuse(show(entry.shares), "the shares of two or more parts")
        parts.append(Parts(kind=Kind[entry.kind], stage=entry.stage, shares=entry.shares))
    return Plan(
        problem=_problem(file, sum(len(rank.compute) for rank in ranks), location),
        ranks=ranks,
        parts=tuple(parts),
        certificate=Certificate(**{name: value for name, value in structs.asdict(file.certificate).items() if value is not UNSET}),
        made_by=MadeBy(**structs.asdict(file.made_by)),
    )


class _RankReader:
    """Reads the queues of all ranks, each token once."""

    def __init__(self) -> None:
        self._ops = TokenReader(parse_plan_op)
        self._indices = TokenReader(parse_index)
        self._collectives: TokenReader[Collective] = TokenReader(parse_collective)

    def rank(self, entry: RankEntry, location: Location) -> RankPlan:
        return RankPlan(
            rank=entry.rank,
            compute=self._ops.read(entry.compute, location / "compute"),
            channels=tuple(self._channel(channel, location / "channels" / at) for at, channel in enumerate(entry.channels)),
            collectives=self._collectives.read(entry.collectives, location / "collectives"),
        )

    def _channel(self, entry: ChannelEntry, location: Location) -> Channel:
        return Channel(
            name=entry.name,
            peer=entry.peer,
            transfers=self._ops.read(entry.transfers, location / "transfers"),
            post_before=self._indices.read(entry.post_before or (), location / "post_before"),
        )


def _problem(file: PlanFile, num_ops: int, location: Location) -> Problem:
    pipeline, costs = file.pipeline, file.costs
    if pipeline.ranks > len(pipeline.stages):  # as below, a wrong digit would have the verifier count indefinitely
        found = f"{pipeline.ranks}, but {len(pipeline.stages)} in pipeline.stages"
        raise (location / "pipeline" / "ranks").refuse(found, "one stage or more for each rank")
    path_of = pipeline.path_of
    if len(path_of) == 1:
        if pipeline.microbatches > max(num_ops, 1):  # else a wrong digit would ask for all the memory there is
            found = f"{pipeline.microbatches}, but the compute queues hold {num_ops} ops in all"
            raise (location / "pipeline" / "microbatches").refuse(found, "one op or more for each microbatch")
        path_of *= pipeline.microbatches
    own: dict[str, Any] = {
        "name": file.name,
        "stages": _stages(pipeline.stages, costs, location / "costs"),
        "path_of": path_of,
        "links": tuple(_link(entry, location / "costs" / "links" / at) for at, entry in enumerate(costs.links)),
        "data_parallel": DataParallel(**structs.asdict(costs.data_parallel)) if costs.data_parallel else None,
    }
    same = structs.asdict(costs) | structs.asdict(pipeline)
    return Problem(**own, **{field.name: same[field.name] for field in fields(Problem) if field.name not in own})


def _link(entry: LinkEntry, location: Location) -> Link:
    if entry.source == entry.destination:
        raise location.refuse(f"a link from rank {entry.source} to itself", "two ranks")
    return Link(**structs.asdict(entry))


def _stages(entries: Sequence[StageEntry], costs: Costs, location: Location) -> tuple[Stage, ...]:
    durations_ns = {kind: getattr(costs.durations_ns, kind.name) for kind in Kind}
    sizes = {name: getattr(costs, name) for name in STAGE_SIZES}
    columns = {location / "durations_ns" / kind.name: values for kind, values in durations_ns.items()}
    columns |= {location / name: values for name, values in sizes.items()}
    for place, values in columns.items():
        if len(values) != len(entries):
            raise place.refuse(f"{len(values)} values", f"{len(entries)}, one for each of pipeline.stages")
    for index, (after_input, whole) in enumerate(zip(costs.activation_after_input_bytes, costs.activation_bytes, strict=True)):
        if after_input > whole:
            place = location / "activation_after_input_bytes" / index
            raise place.refuse(str(after_input), f"at most the stage's activation_bytes, {whole}")

    def durations_of(kind: Kind, index: int) -> tuple[int, ...]:
        return _all(durations_ns[kind][index], location / "durations_ns" / kind.name / index)

    return tuple(
        Stage(
            rank=entry.rank,
            layers=entry.layers,
            recompute=entry.recompute,
            forward_ns=durations_of(Kind.F, index),
            backward_input_ns=durations_of(Kind.B, index),
            backward_weight_ns=durations_of(Kind.W, index),
            backward_ns=durations_of(Kind.BW, index),
            **{name: values[index] for name, values in sizes.items()},
        )
        for index, entry in enumerate(entries)
    )


def _all(values: int | tuple[int, ...], location: Location) -> tuple[int, ...]:
    """The durations of one kind of block of a stage, from one number for all microbatches or a list."""
    if isinstance(values, int):
        return (values,)
    if not values:
        raise location.refuse("an empty list", "one duration, or one for each microbatch")
    return values
