"""The stage map beside an exported CSV: what the CSV does not say and a training job must know to build torch's stages.

Takes a plan and what the CSV is called; gives a table for JSON: ranks, stages with rank and layers, microbatches, the lines of
Python that load the CSV, the options of torchtitan where it can load it, and what is different in torch from what was planned.
"""

from __future__ import annotations

from typing import Any

from schedc.ir import Kind, Plan
from schedc.units import format_duration_ns


def stage_map(plan: Plan, csv_name: str, layout: str) -> dict[str, Any]:
    """The map of a plan that torch can express; `csv_name` is for the lines that load it, `layout` is torch's `format`."""
    problem = plan.problem
    stages_of_rank = [list(problem.stages_on(rank)) for rank in range(problem.ranks)]
    return {
        "format": "schedc.torch_stages",
        "version": 1,
        "plan": plan.name,
        "csv": csv_name,
        "csv_format": layout,
        "ranks": problem.ranks,
        "microbatches": problem.microbatches,
        **({} if _in_order(plan) else {"microbatch_order": list(plan_microbatches(plan))}),
        "num_stages": len(problem.stages),
        "stages": [
            {"stage": index, "rank": stage.rank, "layers": None if stage.layers is None else list(stage.layers)}
            for index, stage in enumerate(problem.stages)
        ],
        "stages_of_rank": stages_of_rank,
        "load": [
            "from torch.distributed.pipelining import PipelineStage",
            "from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime",
            f"stages_of_rank = {stages_of_rank}",
            "stages = [",
            f"    PipelineStage(build_stage(index), index, {len(problem.stages)}, device, group=pp_group)",
            "    for index in stages_of_rank[pp_rank]",
            "]",
            f"schedule = _PipelineScheduleRuntime(stages, n_microbatches={problem.microbatches}, loss_fn=loss_fn)",
            f'schedule._load_csv({csv_name!r}, format="{layout}")',
        ],
        "torchtitan": torchtitan_options(plan, csv_name, layout),
        "notes": list(notes(plan, layout)),
    }


def notes(plan: Plan, layout: str = "") -> tuple[str, ...]:
    """What is different in torch from what the plan's costs say; `layout` is the CSV's."""
    said = []
    if plan.problem.is_sharded and layout == "compute_only":
        said.append(
            "torch gathers and releases weights by a rule of its own, up to three stages of a rank at once, not as the plan does;"
            " load compute_comms for the plan's memory"
        )
    split = {op.stage for rank in plan.ranks for op in rank.compute if op.kind is Kind.B}
    if 0 in split and any(plan.problem.stages[0].backward_input_ns):
        said.append(
            "stage 0 splits its backward, which torch's first stage does not: its I does nothing and its W is the whole backward;"
            ' compile with semantics = "torch" in [pipeline] for times that hold there'
        )
    freed = [
        stage
        for stage in sorted(split)
        if plan.problem.stages[stage].activation_after_input_bytes < plan.problem.stages[stage].activation_bytes
    ]
    if freed:
        said.append(
            f"the plan lets I release activations (of {'stage' if len(freed) == 1 else 'stages'} {', '.join(map(str, freed))}), and"
            ' torch holds them until W; compile with semantics = "torch" in [pipeline] for a memory limit that holds there'
        )
    late, parallel = _reduced_first(plan), plan.problem.data_parallel
    if late and parallel is not None:
        most = format_duration_ns(sum(parallel.reduce_scatter_ns[stage] for stage in late))
        said.append(
            f"the plan computes beside the reduce-scatter of {'stage' if len(late) == 1 else 'stages'} {', '.join(map(str, late))},"
            " and torch's rank waits until its REDUCE_GRAD has ended: a step takes longer than planned"
            f"{'' if parallel.trunk else f', by at most {most}'}"
        )
    if not _in_order(plan):
        said.append(
            "torch numbers microbatches in the order of the last stage's forwards, which is not the plan's: its microbatch k is the"
            " plan's microbatch_order[k] of the stage map, so a batch whose samples differ must be split in that order"
        )
    return tuple(said)


def _in_order(plan: Plan) -> bool:
    """Whether torch's numbers of microbatches are the plan's."""
    order = plan_microbatches(plan)
    return order == tuple(sorted(order))


def _reduced_first(plan: Plan) -> list[int]:
    """The stages whose rank computes after their last W, of a plan with collectives."""
    found = []
    for rank in plan.ranks if plan.problem.data_parallel is not None else ():
        last = {op.stage: at for at, op in enumerate(rank.compute) if op.kind in (Kind.W, Kind.BW)}
        found += [stage for stage, at in last.items() if at + 1 < len(rank.compute)]
    return sorted(found)


def placing_schedule(plan: Plan) -> str | None:
    """The name of torch's by which torchtitan and Automodel place the stages as the plan has them; None: no name does."""
    ranks, chunks = plan.problem.ranks, len(plan.problem.stages) // plan.problem.ranks
    on = [stage.rank for stage in plan.problem.stages]
    if on == [index % ranks for index in range(ranks * chunks)]:
        return "PipelineScheduleSingle" if chunks == 1 else "PipelineScheduleMulti"
    return "ZBVZeroBubble" if on == [*range(ranks), *reversed(range(ranks))] else None


def torchtitan_options(plan: Plan, csv_name: str, layout: str) -> dict[str, Any]:
    """The options with which torchtitan places the stages and loads the CSV; `options` is None where it cannot, with `why_not`."""
    problem, schedule = plan.problem, placing_schedule(plan)
    if layout != "compute_only":
        return {"options": None, "why_not": "torchtitan loads compute_only alone; export with --format compute_only"}
    if schedule is None:
        return {"options": None, "why_not": "torchtitan places stages in a loop, or two for each rank in a V, and no other way"}
    return {
        "options": [
            f"--parallelism.pipeline_parallel_degree={problem.ranks}",
            f"--parallelism.pipeline_parallel_schedule={schedule}",
            f"--parallelism.pipeline_parallel_schedule_csv={csv_name}",
        ],
        "stages": f"module_fqns_per_model_part must have {len(problem.stages)} lists, one for each stage in order",
        "microbatches": f"its batch and microbatch size must give {problem.microbatches} microbatches",
    }


def plan_microbatches(plan: Plan) -> tuple[int, ...]:
    """Per microbatch of torch's, the plan's microbatch. The plan has one path, and no forward is in parts.

    Torch numbers them in the order of the forwards of the last stage: it keeps the losses in a list to which each of these appends,
    and looks them up by microbatch. So where a plan runs these forwards in another order, torch's microbatch k is the k-th of them,
    and the training job must split its batch so.
    """
    last = plan.problem.paths[0][-1]
    on_rank = plan.ranks[plan.problem.stages[last].rank].compute
    return tuple(op.microbatch for op in on_rank if op.kind is Kind.F and op.stage == last)
