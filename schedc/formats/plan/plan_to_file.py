"""Writing the plan file: the inverse of `plan_file`. The same plan gives the same bytes."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import msgspec

from schedc.formats.plan.plan_file import STAGE_SIZES
from schedc.formats.plan.plan_structs import FORMAT, VERSION, CostsEntry, Pipeline, PlanFile
from schedc.formats.plan.token_lines import OpWriter, lines_of
from schedc.io.atomic_write import write_atomically
from schedc.io.pretty_json import pretty_json
from schedc.ir.ops import Kind
from schedc.ir.plan import Scope

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Certificate, Plan, RankPlan
    from schedc.ir.problem import Problem


def plan_json(plan: Plan) -> bytes:
    """The plan file's bytes, laid out for review; they end with a newline."""
    return pretty_json(_table(plan)).encode()


def plan_sha256(plan: Plan) -> str:
    """The digest of the plan file's bytes, by which traces know the plan."""
    return hashlib.sha256(plan_json(plan)).hexdigest()


def write_plan(plan: Plan, path: Path | str) -> None:
    """Write the plan file, whole or not at all.

    Raises:
        InvalidInput: the directory does not exist, or the file cannot be written.
    """
    write_atomically(path, plan_json(plan))


def _table(plan: Plan) -> dict[str, Any]:
    """What `PlanFile` describes, in its order and without what is as by default."""
    writer = OpWriter()
    whole = {
        "format": FORMAT,
        "version": VERSION,
        "name": plan.name,
        "made_by": plan.made_by,
        "certificate": _certificate(plan.certificate),
        "pipeline": _pipeline(plan.problem),
        "costs": _costs(plan),
        "ranks": [_rank(rank, writer) for rank in plan.ranks],
    }
    table: dict[str, Any] = msgspec.to_builtins(msgspec.convert(whole, PlanFile, from_attributes=True))
    return table


def _certificate(certificate: Certificate) -> dict[str, Any]:
    left_out = {"solver_log_sha256": "", "scope": Scope.SCHEDULE}
    return {name: value for name, value in asdict(certificate).items() if name not in left_out or value != left_out[name]}


def _pipeline(problem: Problem) -> dict[str, Any]:
    one_path = len(set(problem.path_of)) == 1
    own = {"path_of": problem.path_of[:1] if one_path else problem.path_of}
    return {name: getattr(problem, name) for name in Pipeline.__struct_fields__} | own


def _costs(plan: Plan) -> dict[str, Any]:
    problem = plan.problem
    own = {
        "durations_ns": {kind.name: [_one_or_all(stage.durations_ns(kind)) for stage in problem.stages] for kind in Kind},
        "parts": [{"kind": parts.kind.name, "stage": parts.stage, "shares": parts.shares} for parts in plan.parts],
        **{name: [getattr(stage, name) for stage in problem.stages] for name in STAGE_SIZES},
    }
    if not any(own["recomputed_bytes"]):
        own["recomputed_bytes"] = []
    if all(size is None for size in own["static_bytes"]):
        own["static_bytes"] = []
    return own | {name: getattr(problem, name) for name in CostsEntry.__struct_fields__ if name not in own}


def _one_or_all(values: tuple[int, ...]) -> int | tuple[int, ...]:
    return values[0] if len(values) == 1 else values


def _rank(rank: RankPlan, writer: OpWriter) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "compute": writer.lines(rank.compute),
        "channels": [
            {
                "name": channel.name,
                "peer": channel.peer,
                "transfers": writer.lines(channel.transfers),
                "post_before": lines_of(list(map(str, channel.post_before))) if channel.receives or channel.post_before else None,
            }
            for channel in rank.channels
        ],
        "collectives": lines_of([collective.token for collective in rank.collectives]),
    }
