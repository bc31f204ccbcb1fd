"""The emitter for PyTorch: a plan as the CSV that `torch.distributed.pipelining` loads, with a stage map beside it.

Takes a plan that its verifier accepts; gives the text that `_PipelineScheduleRuntime._load_csv` of torch 2.13 reads. Row r is rank
r. `compute_comms` is what torch executes, action by action: compute, sends, receives, REDUCE_GRAD, UNSHARD, RESHARD.
`compute_only` leaves all but the compute to torch's own lowering.

- Compute: F is `F`, B (of the input) `I`, W `W`, BW `B`, in the plan's order; microbatches by torch's numbers (`stage_map`).
- Stages of one rank hand over to each other without actions; torch fails if it finds any there.
- A send is directly after the op that made the message, its receive where the plan's times have it (`common_order`): torch tags
  nothing, so both ranks of a pair list what passes between them, in either direction, in the same order.
- REDUCE_GRAD after a stage's last W or B and what these send: it scales the gradients by 1 / microbatches, and FSDP reduces there.
  The rank computes nothing meanwhile, which the plan may do; a note of the stage map says so.
- UNSHARD of each stage once at the start, in the order of first use, RESHARD after its REDUCE_GRAD: parameters are gathered once
  a step, as the cost model has it; where the plan shards weights, at the places that it gives to gathers. Modules that are not
  FSDP's take no notice of either.
"""

from __future__ import annotations

import csv
import io
from graphlib import TopologicalSorter
from heapq import heappop, heappush
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, TypeAlias

from schedc.analysis.simulation.simulate import simulate
from schedc.errors import Unsupported
from schedc.formats.torch_csv.stage_map import plan_microbatches, stage_map
from schedc.io.outputs import write_atomically
from schedc.io.tables import pretty_json
from schedc.ir import WHOLE, Kind, Op, Plan, RankPlan, token

if TYPE_CHECKING:
    from collections.abc import Container, Mapping
    from pathlib import Path

    from schedc.analysis.simulation.timeline import Transfer

CsvFormat: TypeAlias = Literal["compute_comms", "compute_only"]

_NAMES = {Kind.F: "F", Kind.B: "I", Kind.W: "W", Kind.BW: "B"}


def write_torch_csv(plan: Plan, path: Path, layout: CsvFormat = "compute_comms") -> Path:
    """Write the CSV, and the stage map beside it; returns the map's path.

    The plan verifier accepts the plan; `layout` is what torch calls `format`.

    Raises:
        Unsupported: torch cannot express the plan.
        InvalidInput: a file cannot be written.
    """
    text = torch_csv(plan, layout)
    beside = stage_map_path(path)
    write_atomically(beside, pretty_json(stage_map(plan, path.name, layout)).encode())
    write_atomically(path, text.encode())
    return beside


def stage_map_path(path: Path) -> Path:
    """Where the stage map of a CSV goes: `plan.csv` has `plan.stages.json`."""
    return path.parent / f"{path.stem if path.suffix == '.csv' else path.name}.stages.json"


def torch_csv(plan: Plan, layout: CsvFormat = "compute_comms") -> str:
    """The CSV's text, one line for each rank.

    Raises:
        Unsupported: torch cannot express the plan; says why.
    """
    check_expressible(plan)
    number = {microbatch: k for k, microbatch in enumerate(plan_microbatches(plan))}
    if layout == "compute_comms":
        rows = _compute_comms(plan, number)
    else:
        rows = [[_action(op, number) for op in rank.compute] for rank in plan.ranks]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def check_expressible(plan: Plan) -> None:
    """Refuse a plan that torch's runtime cannot execute as planned.

    Raises:
        Unsupported: names what it is and what to do.
    """
    problem = plan.problem
    if problem.edges or problem.slices:
        what = "its stages are a graph" if problem.edges else "its microbatches are in slices"
        raise _refusal(plan, f"{what}, and torch's stages are a chain that whole microbatches pass")
    if len(set(problem.path_of)) > 1 or len(problem.paths) > 1:
        raise _refusal(plan, "it has two paths (a bidirectional placement), and torch's stages form one chain")
    (path,) = problem.paths
    if path != tuple(range(len(problem.stages))):
        raise _refusal(plan, f"its path visits the stages in the order {list(path)}, and torch's goes from stage s to s + 1 only")
    for index, stage in enumerate(problem.stages):
        if stage.recompute:
            raise _refusal(plan, f"stage {index} recomputes, and torch's stages do not; give the job a profile of layers that do")
    for rank in plan.ranks:
        for op in rank.compute:
            if op.part != WHOLE:
                reason = f"{token(op)} is a part of a block, and torch runs blocks whole"
                raise _refusal(plan, f'{reason}; set semantics = "torch" in [pipeline], or in [tune] for schedc tune')


def _refusal(plan: Plan, reason: str) -> Unsupported:
    return Unsupported(f"{plan.name}: torch cannot run this plan: {reason}")


def _action(op: Op, number: Mapping[int, int], name: str = "") -> str:
    return f"{op.stage}{name or _NAMES[op.kind]}{number[op.microbatch]}"


def _compute_comms(plan: Plan, number: Mapping[int, int]) -> list[list[str]]:
    rows: list[list[str]] = [[] for _ in plan.ranks]
    of_stages = [_of_stages(rank, sharded=plan.problem.is_sharded) for rank in plan.ranks]
    at = [0] * len(rows)
    for entry in common_order(plan):
        if isinstance(entry, Op):
            rank = plan.problem.rank_of(entry)
            rows[rank] += of_stages[rank].get(at[rank], ())
            rows[rank].append(_action(entry, number))
            at[rank] += 1
            continue
        forward = entry.op.kind is Kind.F
        to = entry.op._replace(stage=entry.op.stage + (1 if forward else -1))
        rows[entry.source].append(_action(entry.op, number, "SEND_F" if forward else "SEND_B"))
        rows[entry.destination].append(_action(to, number, "RECV_F" if forward else "RECV_B"))
    for rank, row in enumerate(rows):
        row += of_stages[rank].get(at[rank], ())
    return [of_rank[-1] + row for of_rank, row in zip(of_stages, rows, strict=True)]


def _of_stages(rank: RankPlan, *, sharded: bool) -> dict[int, list[str]]:
    """Per index of the rank's compute queue, what stands before that op, but for sends of the one before; at -1, before all.

    Of one place first what gives room: reductions, each with its release, then releases, then gathers.
    """
    last = {op.stage: at + 1 for at, op in enumerate(rank.compute) if op.kind in (Kind.W, Kind.BW)}
    found: dict[int, list[str]] = {-1: []}
    for stage, at in sorted(last.items(), key=lambda each: each[1]):
        found.setdefault(at, []).extend((f"{stage}REDUCE_GRAD", f"{stage}RESHARD"))
    gathers = [entry for entry in rank.collectives if entry.kind == "AG"]
    for entry in gathers if sharded else ():
        if entry.until < last[entry.stage]:  # else its reduction releases it
            found.setdefault(entry.until, []).append(f"{entry.stage}RESHARD")
    first = dict.fromkeys([*(entry.stage for entry in gathers), *(op.stage for op in rank.compute)])
    for stage, before in ((entry.stage, entry.before or -1) for entry in gathers) if sharded else ((stage, -1) for stage in first):
        found.setdefault(before, []).append(f"{stage}UNSHARD")
    return found


def common_order(plan: Plan) -> list[Op | Transfer]:
    """All compute ops and all transfers of the plan, each after everything that it waits for, else by time.

    PyTorch's runtime walks one list of actions on each rank, and c10d puts what it sends and receives into queues: one for each
    pair of ranks, or a single one where the group was made with a `device_id`. If every rank's list is what one common order holds
    of that rank, with each transfer a single event of that order on both of its ranks, then no list and no queue can wait in a
    cycle, however c10d queues: whatever comes first in the common order can always proceed.

    The common order is that of the plan's own simulated times. A transfer is at the moment at which its message is ready, not at
    the later one at which a busy link takes it (`post_before` knows of that): behind a busy link the messages queue in this order
    in torch, too, and a sender that held its message back to let the link become free would hold back everything after it in its
    list. The plan is of whole blocks, and its verifier accepts it.
    """
    timeline = simulate(plan.problem, plan.schedule())
    key_of: dict[Op | Transfer, tuple[int, ...]] = {}
    sorter: TopologicalSorter[Op | Transfer] = TopologicalSorter()
    for rank in plan.ranks:
        times = zip(rank.compute, timeline.start_ns(rank.rank), timeline.end_ns(rank.rank), strict=True)
        # At one moment first the ops that end, then the transfers that these make ready, then the ops that take no time.
        key_of |= {op: (end_ns, 0 if start_ns < end_ns else 2, rank.rank, at) for at, (op, start_ns, end_ns) in enumerate(times)}
        sorter.add(rank.compute[0])
        for before, after in pairwise(rank.compute):
            sorter.add(after, before)
    for transfer in timeline.transfers:
        key_of[transfer] = (transfer.ready_ns, 1, transfer.source, transfer.op.stage, transfer.op.microbatch)
        sorter.add(transfer, transfer.op)
        sorter.add(_consumer(plan, transfer.op, key_of), transfer)

    order: list[Op | Transfer] = []
    ready: list[tuple[tuple[int, ...], Op | Transfer]] = []
    sorter.prepare()
    while sorter.is_active():
        for node in sorter.get_ready():
            heappush(ready, (key_of[node], node))
        _, node = heappop(ready)
        order.append(node)
        sorter.done(node)
    return order


def _consumer(plan: Plan, producer: Op, known: Container[Op | Transfer]) -> Op:
    """The op that needs what `producer` sends."""
    path = plan.problem.path(producer.microbatch)
    at = path.index(producer.stage)
    if producer.kind is Kind.F:
        return Op(Kind.F, path[at + 1], producer.microbatch)
    split = Op(Kind.B, path[at - 1], producer.microbatch)
    return split if split in known else split._replace(kind=Kind.BW)
