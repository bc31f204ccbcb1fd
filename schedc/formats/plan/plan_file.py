"""The plan file, JSON that the compiler writes, people review and training jobs execute (formats, "The plan").

What a single field must be is checked by the decoder (`plan_structs`), what a plan must be by `schedc.verify.plan.checks`; here
only what keeps a file from being a Plan at all. The same plan gives the same bytes.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
from msgspec import UNSET, structs

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_structs import (
    FORMAT,
    VERSIONS,
    CostEntry,
    CostsEntry,
    EdgeEntry,
    FileHeader,
    LinkEntry,
    OpTokens,
    OriginEntry,
    PartsEntry,
    Pipeline,
    PlanFile,
    RankEntry,
    UpdatesEntry,
    lines_of,
    parse_collective,
    parse_index,
    parse_plan_op,
    read_tokens,
)
from schedc.io.input_file import MOST_BYTES, read_bytes, without_mark
from schedc.io.location import Location, show
from schedc.io.tables import decode, pretty_json
from schedc.ir import (
    BLOCKS,
    DURATIONS,
    Certificate,
    Channel,
    DataParallel,
    Edge,
    Kind,
    Link,
    MadeBy,
    MessageCost,
    Network,
    Op,
    Origin,
    Parts,
    Plan,
    Problem,
    RankPlan,
    Scope,
    SiteLink,
    Stage,
    Updates,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


T = TypeVar("T")

STAGE_SIZES = tuple(field.name for field in fields(Stage) if field.name.endswith("_bytes") or field.name == "update_ns")
"""The fields of a stage that are one number; the file has a list of each under the same name."""
LEFT_OUT = {"recomputed_bytes": 0, "static_bytes": None, "update_ns": 0, "version_bytes": 0, "state_gradient_bytes": 0}
"""Those whose list is empty where all stages have this."""


def read_plan(path: Path | str) -> Plan:
    """The plan in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    return parse_plan(read_bytes(path, MOST_BYTES), str(path))


def parse_plan(content: bytes, name: str) -> Plan:
    """The plan that the bytes of a plan file hold; `name` is what messages call the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    location, content = Location(name), without_mark(content)
    try:
        file = decode(content, PlanFile, location)
    except InvalidInput:
        _check_header(content, location)
        raise
    ranks = _ranks(file.ranks, location / "ranks")
    return Plan(
        problem=_problem(file, sum(len(rank.compute) for rank in ranks), location),
        ranks=ranks,
        parts=tuple(_parts(entry, place) for place, entry in _placed(file.costs.parts, location / "costs" / "parts")),
        certificate=Certificate(**{name: value for name, value in structs.asdict(file.certificate).items() if value is not UNSET}),
        made_by=MadeBy(**structs.asdict(file.made_by)),
    )


def _check_header(content: bytes, location: Location) -> None:
    """Refuse what is no plan of this version: jobs, other formats and other versions."""
    try:
        header = decode(content, FileHeader, location)
    except InvalidInput as error:
        import tomllib

        with suppress(ValueError, RecursionError):
            if "pipeline" in tomllib.loads(content.decode()):
                raise location.refuse("a job (TOML)", "a plan (JSON), which `schedc compile` makes of a job") from error
        raise
    if header.format != FORMAT:
        raise (location / "format").refuse(show(header.format), show(FORMAT))
    if type(header.version) is not int or header.version not in VERSIONS:
        known = " or ".join(map(str, VERSIONS))
        raise (location / "version").refuse(show(header.version), f"{known}, the versions that this schedc reads")


def _placed(values: Sequence[T], location: Location) -> Iterator[tuple[Location, T]]:
    """The values of a list, each after its place."""
    return ((location / at, value) for at, value in enumerate(values))


def _ranks(entries: Sequence[RankEntry], location: Location) -> tuple[RankPlan, ...]:
    """The queues of all ranks; each token is parsed once."""
    parse, index = cache(parse_plan_op), cache(parse_index)
    return tuple(
        RankPlan(
            rank=entry.rank,
            compute=read_tokens(parse, entry.compute, rank / "compute"),
            channels=tuple(
                Channel(
                    name=channel.name,
                    peer=channel.peer,
                    transfers=read_tokens(parse, channel.transfers, place / "transfers"),
                    post_before=read_tokens(index, channel.post_before or (), place / "post_before"),
                )
                for place, channel in _placed(entry.channels, rank / "channels")
            ),
            collectives=read_tokens(parse_collective, entry.collectives, rank / "collectives"),
        )
        for rank, entry in _placed(entries, location)
    )


def _parts(entry: PartsEntry, location: Location) -> Parts:
    if len(entry.shares) < 2:
        raise (location / "shares").refuse(show(entry.shares), "the shares of two or more parts")
    return Parts(kind=Kind[entry.kind], stage=entry.stage, shares=entry.shares)


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
        "stages": _stages(file, location / "costs"),
        "path_of": path_of,
        "links": tuple(_link(entry, place) for place, entry in _placed(costs.links, location / "costs" / "links")),
        "data_parallel": DataParallel(**structs.asdict(costs.data_parallel)) if costs.data_parallel else None,
        "updates": _updates(pipeline.updates, location / "pipeline" / "updates"),
        "edges": tuple(_edge(entry, place) for place, entry in _placed(pipeline.edges, location / "pipeline" / "edges")),
    }
    same = structs.asdict(costs) | structs.asdict(pipeline)
    problem = Problem(**own, **{name: same[name] for field in fields(Problem) if (name := field.name) in same.keys() - own.keys()})
    if file.version == 1:
        if file.origin is not UNSET:
            raise (location / "origin").refuse("a key that version 1 does not have", "no such key")
        from schedc.formats.plan.version_1 import origin_of

        return replace(problem, origin=origin_of(problem))
    return problem if file.origin is UNSET else replace(problem, origin=_origin(file.origin, location / "origin"))


def _origin(entry: OriginEntry, location: Location) -> Origin:
    network, places = entry.network, location / "network" / "links"
    return Origin(
        layers_of_stage=entry.layers_of_stage,
        network=Network(
            site_of_rank=network.site_of_rank,
            within=_cost(network.within),
            between=None if network.between is None else _cost(network.between),
            site_links=tuple(
                SiteLink(source=each.source, destination=each.destination, cost=_cost(each.cost)) for each in network.site_links
            ),
            links=tuple(_link(each, place) for place, each in _placed(network.links, places)),
            inbound=network.inbound,
        ),
    )


def _cost(entry: CostEntry) -> MessageCost:
    return MessageCost(**structs.asdict(entry))


def _updates(entry: UpdatesEntry | None, location: Location) -> Updates | None:
    if entry is None:
        return None
    try:
        return Updates(**structs.asdict(entry))
    except ValueError as error:
        raise location.error(str(error)) from error


def _edge(entry: EdgeEntry, location: Location) -> Edge:
    if entry.source == entry.destination:
        raise location.refuse(f"an edge from stage {entry.source} to itself", "two stages")
    return Edge(**structs.asdict(entry))


def _link(entry: LinkEntry, location: Location) -> Link:
    if entry.source == entry.destination:
        raise location.refuse(f"a link from rank {entry.source} to itself", "two ranks")
    return Link(**structs.asdict(entry))


def _stages(file: PlanFile, location: Location) -> tuple[Stage, ...]:
    entries, costs = file.pipeline.stages, file.costs
    columns = {DURATIONS[kind]: (location / "durations_ns" / kind.name, getattr(costs.durations_ns, kind.name)) for kind in BLOCKS}
    columns |= {name: (location / name, getattr(costs, name)) for name in STAGE_SIZES}
    for index, entry in enumerate(entries):
        if entry.expert_parameters > entry.parameters:
            place = Location(location.file) / "pipeline" / "stages" / index / "expert_parameters"
            raise place.refuse(str(entry.expert_parameters), f"at most the stage's parameters, {entry.parameters}")
    for name in LEFT_OUT:
        if not getattr(costs, name):
            del columns[name]
    for place, values in columns.values():
        if len(values) != len(entries):
            raise place.refuse(f"{len(values)} values", f"{len(entries)}, one for each of pipeline.stages")
    for index, (after_input, whole) in enumerate(zip(costs.activation_after_input_bytes, costs.activation_bytes, strict=True)):
        again = costs.recomputed_bytes[index] if costs.recomputed_bytes else 0
        if again and not entries[index].recompute:
            raise (location / "recomputed_bytes" / index).refuse(str(again), "0, as the stage does not recompute")
        if after_input > whole + again:
            place = location / "activation_after_input_bytes" / index
            raise place.refuse(str(after_input), f"at most what the stage holds in all, {whole + again}")
    for name in DURATIONS.values():
        place, values = columns[name]
        columns[name] = place, [_all(value, here) for here, value in _placed(values, place)]
    return tuple(
        Stage(**structs.asdict(entry), **{name: values[index] for name, (_, values) in columns.items()})
        for index, entry in enumerate(entries)
    )


def _all(values: int | tuple[int, ...], location: Location) -> tuple[int, ...]:
    """The durations of one kind of block of a stage, from one number for all microbatches or a list."""
    if isinstance(values, int):
        return (values,)
    if not values:
        raise location.refuse("an empty list", "one duration, or one for each microbatch")
    return values


def plan_json(plan: Plan, version: int = VERSIONS[-1]) -> bytes:
    """The plan file's bytes, laid out for review; they end with a newline. In version 1 they do not say the origin."""
    return pretty_json(_table(plan, version)).encode()


def plan_sha256(plan: Plan, version: int = VERSIONS[-1]) -> str:
    """The digest of the plan file's bytes, by which traces know the plan."""
    return hashlib.sha256(plan_json(plan, version)).hexdigest()


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    from schedc.io.outputs import write_atomically  # a training job reads plans and writes none

    write_atomically(path, plan_json(plan))


def _table(plan: Plan, version: int) -> dict[str, Any]:
    """What `PlanFile` describes, in its order and without what is as by default."""
    op_token, claims = OpTokens().__getitem__, asdict(plan.certificate)
    left_out = {"solver_log_sha256": "", "scope": Scope.SCHEDULE, "delays": (), "versions": ()}
    whole = {
        "format": FORMAT,
        "version": version,
        "name": plan.name,
        "made_by": plan.made_by,
        "certificate": {name: value for name, value in claims.items() if name not in left_out or value != left_out[name]},
        "pipeline": _pipeline(plan.problem),
        "costs": _costs(plan),
        "ranks": [_rank(rank, op_token) for rank in plan.ranks],
    }
    if plan.problem.origin is not None and version > 1:
        whole["origin"] = plan.problem.origin
    table: dict[str, Any] = msgspec.to_builtins(msgspec.convert(whole, PlanFile, from_attributes=True))
    return table


def _pipeline(problem: Problem) -> dict[str, Any]:
    one_path = len(set(problem.path_of)) == 1
    own = {"path_of": problem.path_of[:1] if one_path else problem.path_of}
    return {name: getattr(problem, name) for name in Pipeline.__struct_fields__} | own


def _costs(plan: Plan) -> dict[str, Any]:
    problem = plan.problem
    durations_ns = {kind.name: [stage.durations_ns(kind) for stage in problem.stages] for kind in BLOCKS}
    own: dict[str, Any] = {
        "durations_ns": {
            name: [all_ns[0] if len(all_ns) == 1 else all_ns for all_ns in each] for name, each in durations_ns.items()
        },
        "parts": [{"kind": parts.kind.name, "stage": parts.stage, "shares": parts.shares} for parts in plan.parts],
        **{name: [getattr(stage, name) for stage in problem.stages] for name in STAGE_SIZES},
    }
    for name, nothing in LEFT_OUT.items():
        if all(value == nothing for value in own[name]):
            own[name] = []
    return own | {name: getattr(problem, name) for name in CostsEntry.__struct_fields__ if name not in own}


def _rank(rank: RankPlan, op_token: Callable[[Op], str]) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "compute": lines_of(op_token, rank.compute),
        "channels": [
            {
                "name": channel.name,
                "peer": channel.peer,
                "transfers": lines_of(op_token, channel.transfers),
                "post_before": lines_of(str, channel.post_before) if channel.receives or channel.post_before else None,
            }
            for channel in rank.channels
        ],
        "collectives": lines_of(lambda collective: collective.token, rank.collectives),
    }
