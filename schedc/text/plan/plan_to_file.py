"""From the Plan to the shape of its file: the inverse of `plan_from_file`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from schedc.ir.ops import Kind
from schedc.text.plan.plan_from_file import STAGE_SIZES
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
from schedc.text.plan.token_lines import OpWriter, lines_of

if TYPE_CHECKING:
    from schedc.ir.plan import Plan, RankPlan
    from schedc.ir.problem import Problem

__all__ = ["file_of_plan"]


def file_of_plan(plan: Plan) -> PlanFile:
    """The plan as its file has it."""
    writer = OpWriter()
    return PlanFile(
        format=FORMAT,
        version=VERSION,
        name=plan.name,
        made_by=MadeByEntry(**asdict(plan.made_by)),
        certificate=CertificateEntry(**_certificate(plan)),
        pipeline=_pipeline(plan.problem),
        costs=_costs(plan),
        ranks=tuple(_rank_entry(rank, writer) for rank in plan.ranks),
    )


def _certificate(plan: Plan) -> dict[str, Any]:
    """The fields, without the digest of a solver's log if there is none."""
    values = asdict(plan.certificate)
    if not values["solver_log_sha256"]:
        del values["solver_log_sha256"]
    return values


def _pipeline(problem: Problem) -> Pipeline:
    one_path = len(set(problem.path_of)) == 1
    own: dict[str, Any] = {
        "stages": tuple(StageEntry(rank=stage.rank, layers=stage.layers, recompute=stage.recompute) for stage in problem.stages),
        "path_of": problem.path_of[:1] if one_path else problem.path_of,
    }
    return Pipeline(**own, **{name: getattr(problem, name) for name in Pipeline.__struct_fields__ if name not in own})


def _costs(plan: Plan) -> Costs:
    problem, parallel = plan.problem, plan.problem.data_parallel
    durations_ns = {kind.name: tuple(_one_or_all(stage.durations_ns(kind)) for stage in problem.stages) for kind in Kind}
    own: dict[str, Any] = {
        "durations_ns": Durations(**durations_ns),
        "links": tuple(LinkEntry(**asdict(link)) for link in problem.links),
        "parts": tuple(PartsEntry(kind=parts.kind.name, stage=parts.stage, shares=parts.shares) for parts in plan.parts),
        "data_parallel": DataParallelEntry(**asdict(parallel)) if parallel else None,
        **{name: tuple(getattr(stage, name) for stage in problem.stages) for name in STAGE_SIZES},
    }
    return Costs(**own, **{name: getattr(problem, name) for name in Costs.__struct_fields__ if name not in own})


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
