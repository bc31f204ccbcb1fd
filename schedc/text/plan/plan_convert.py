"""Between the Plan and the shape of its file: `file_of_plan` and `plan_of_file` are each other's inverse.

What a single field must be is checked by the decoder (`plan_structs`), what a plan must be by `verify_plan`; here only what
keeps the file from being a Plan at all.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from msgspec import structs

from schedc.errors import InvalidInput
from schedc.ir.ops import Kind
from schedc.ir.plan import Certificate, Channel, MadeBy, Plan, RankPlan
from schedc.ir.problem import DataParallel, Link, Problem, Stage
from schedc.ir.schedule import Parts
from schedc.text.plan.plan_structs import (
    FORMAT,
    VERSION,
    CertificateEntry,
    ChannelEntry,
    Costs,
    DataParallelEntry,
    Durations,
    LinkEntry,
    MadeByEntry,
    PartsEntry,
    Pipeline,
    PlanFile,
    RankEntry,
    StageEntry,
)
from schedc.text.plan.tokens import OpWriter, TokenReader, lines_of, parse_collective, parse_index, parse_plan_op

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.plan import Collective

__all__ = ["file_of_plan", "plan_of_file"]


def file_of_plan(plan: Plan) -> PlanFile:
    """The plan as its file has it."""
    writer = OpWriter()
    return PlanFile(
        format=FORMAT,
        version=VERSION,
        name=plan.name,
        made_by=MadeByEntry(**asdict(plan.made_by)),
        certificate=CertificateEntry(**_given(asdict(plan.certificate), "solver_log_sha256")),
        pipeline=_pipeline(plan.problem),
        costs=_costs(plan),
        ranks=tuple(_rank_entry(rank, writer) for rank in plan.ranks),
    )


def _given(values: dict[str, Any], optional: str) -> dict[str, Any]:
    """The values, without the optional text if it is empty or unset."""
    return values if values[optional] else {key: value for key, value in values.items() if key != optional}


def _pipeline(problem: Problem) -> Pipeline:
    one_path = len(set(problem.path_of)) == 1
    return Pipeline(
        ranks=problem.ranks,
        microbatches=problem.microbatches,
        placement=problem.placement,
        split_backward=problem.split_backward,
        cut_blocks=problem.cut_blocks,
        stages=tuple(StageEntry(rank=stage.rank, layers=stage.layers) for stage in problem.stages),
        paths=problem.paths,
        path_of=problem.path_of[:1] if one_path else problem.path_of,
    )


def _costs(plan: Plan) -> Costs:
    stages, parallel = plan.problem.stages, plan.problem.data_parallel
    durations_ns = {kind.name: tuple(_one_or_all(stage.durations_ns(kind)) for stage in stages) for kind in Kind}
    return Costs(
        objective=plan.problem.objective,
        durations_ns=Durations(**durations_ns),
        activation_bytes=tuple(stage.activation_bytes for stage in stages),
        activation_after_input_bytes=tuple(stage.activation_after_input_bytes for stage in stages),
        message_bytes=tuple(stage.message_bytes for stage in stages),
        gradient_message_bytes=tuple(stage.gradient_message_bytes for stage in stages),
        memory_limit_bytes=plan.problem.memory_limit_bytes,
        links=tuple(LinkEntry(**asdict(link)) for link in plan.problem.links),
        parts=tuple(PartsEntry(kind=parts.kind.name, stage=parts.stage, shares=parts.shares) for parts in plan.parts),
        data_parallel=DataParallelEntry(**asdict(parallel)) if parallel else None,
    )


def _one_or_all(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values


def _rank_entry(rank: RankPlan, writer: OpWriter) -> RankEntry:
    return RankEntry(
        rank=rank.rank,
        compute=writer.lines(rank.compute),
        channels=tuple(
            ChannelEntry(
                name=channel.name,
                peer=channel.peer,
                transfers=writer.lines(channel.transfers),
                post_before=lines_of(list(map(str, channel.post_before))) if channel.receives or channel.post_before else None,
            )
            for channel in rank.channels
        ),
        collectives=lines_of([collective.token for collective in rank.collectives]),
    )


def plan_of_file(file: PlanFile) -> Plan:
    """The plan that the file holds.

    Raises:
        InvalidInput: names the place in the file, what was found and what was expected.
    """
    reader = _RankReader()
    ranks = tuple(reader.rank(entry, f"$.ranks[{number}]") for number, entry in enumerate(file.ranks))
    parts = []
    for at, entry in enumerate(file.costs.parts):
        if len(entry.shares) < 2:
            raise InvalidInput(f"$.costs.parts[{at}].shares: found {list(entry.shares)}, expected the shares of two or more parts")
        parts.append(Parts(kind=Kind[entry.kind], stage=entry.stage, shares=entry.shares))
    return Plan(
        problem=_problem(file, sum(len(rank.compute) for rank in ranks)),
        ranks=ranks,
        parts=tuple(parts),
        certificate=Certificate(**_given(structs.asdict(file.certificate), "solver_log_sha256")),
        made_by=MadeBy(**structs.asdict(file.made_by)),
    )


class _RankReader:
    """Reads the queues of all ranks, each token once."""

    def __init__(self) -> None:
        self._ops = TokenReader(parse_plan_op)
        self._indices = TokenReader(parse_index)
        self._collectives: TokenReader[Collective] = TokenReader(parse_collective)

    def rank(self, entry: RankEntry, path: str) -> RankPlan:
        return RankPlan(
            rank=entry.rank,
            compute=self._ops.read(entry.compute, f"{path}.compute"),
            channels=tuple(self._channel(channel, f"{path}.channels[{at}]") for at, channel in enumerate(entry.channels)),
            collectives=self._collectives.read(entry.collectives, f"{path}.collectives"),
        )

    def _channel(self, entry: ChannelEntry, path: str) -> Channel:
        return Channel(
            name=entry.name,
            peer=entry.peer,
            transfers=self._ops.read(entry.transfers, f"{path}.transfers"),
            post_before=self._indices.read(entry.post_before or (), f"{path}.post_before"),
        )


def _problem(file: PlanFile, num_ops: int) -> Problem:
    pipeline, costs = file.pipeline, file.costs
    if pipeline.ranks > len(pipeline.stages):  # as below, a wrong digit would have the verifier count indefinitely
        found = f"found {pipeline.ranks}, but {len(pipeline.stages)} in $.pipeline.stages"
        raise InvalidInput(f"$.pipeline.ranks: {found}; expected one stage or more for each rank")
    path_of = pipeline.path_of
    if len(path_of) == 1:
        if pipeline.microbatches > max(num_ops, 1):  # else a wrong digit would ask for all the memory there is
            found = f"found {pipeline.microbatches}, but the compute queues hold {num_ops} ops in all"
            raise InvalidInput(f"$.pipeline.microbatches: {found}; expected one op or more for each microbatch")
        path_of *= pipeline.microbatches
    return Problem(
        name=file.name,
        ranks=pipeline.ranks,
        microbatches=pipeline.microbatches,
        stages=_stages(pipeline.stages, costs),
        paths=pipeline.paths,
        path_of=path_of,
        links=tuple(_link(entry, f"$.costs.links[{at}]") for at, entry in enumerate(costs.links)),
        memory_limit_bytes=costs.memory_limit_bytes,
        split_backward=pipeline.split_backward,
        cut_blocks=pipeline.cut_blocks,
        placement=pipeline.placement,
        data_parallel=DataParallel(**structs.asdict(costs.data_parallel)) if costs.data_parallel else None,
        objective=costs.objective,
    )


def _link(entry: LinkEntry, path: str) -> Link:
    if entry.source == entry.destination:
        raise InvalidInput(f"{path}: found a link from rank {entry.source} to itself, expected two ranks")
    return Link(**structs.asdict(entry))


def _stages(entries: Sequence[StageEntry], costs: Costs) -> tuple[Stage, ...]:
    durations_ns = {kind: getattr(costs.durations_ns, kind.name) for kind in Kind}
    columns = {f"durations_ns.{kind.name}": values for kind, values in durations_ns.items()}
    for name in ("activation_bytes", "activation_after_input_bytes", "message_bytes", "gradient_message_bytes"):
        columns[name] = getattr(costs, name)
    for name, values in columns.items():
        if len(values) != len(entries):
            expected = f"expected {len(entries)}, one for each of $.pipeline.stages"
            raise InvalidInput(f"$.costs.{name}: found {len(values)} values, {expected}")
    for index, values in enumerate(zip(costs.activation_after_input_bytes, costs.activation_bytes, strict=True)):
        if values[0] > values[1]:
            expected = f"expected at most the stage's activation_bytes, {values[1]}"
            raise InvalidInput(f"$.costs.activation_after_input_bytes[{index}]: found {values[0]}, {expected}")
    return tuple(
        Stage(
            rank=entry.rank,
            forward_ns=_all(durations_ns[Kind.F][index], f"$.costs.durations_ns.F[{index}]"),
            backward_input_ns=_all(durations_ns[Kind.B][index], f"$.costs.durations_ns.B[{index}]"),
            backward_weight_ns=_all(durations_ns[Kind.W][index], f"$.costs.durations_ns.W[{index}]"),
            backward_ns=_all(durations_ns[Kind.BW][index], f"$.costs.durations_ns.BW[{index}]"),
            activation_bytes=costs.activation_bytes[index],
            activation_after_input_bytes=costs.activation_after_input_bytes[index],
            message_bytes=costs.message_bytes[index],
            gradient_message_bytes=costs.gradient_message_bytes[index],
            layers=entry.layers,
        )
        for index, entry in enumerate(entries)
    )


def _all(values: int | tuple[int, ...], path: str) -> tuple[int, ...]:
    """The durations of one kind of block of a stage, from one number for all microbatches or a list."""
    if isinstance(values, int):
        return (values,)
    if not values:
        raise InvalidInput(f"{path}: found an empty list, expected one duration, or one for each microbatch")
    return values
