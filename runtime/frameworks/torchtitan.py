"""torchtitan: a plan in place of its pipeline schedules, as the `pipelining_fn` of a `ModelSpec`.

    spec = model_registry("8B")
    spec.pipelining_fn = pipelining_fn_from("plan.json")

torchtitan's trainer calls it as it calls its own `pipeline_llm`: it gives this rank the model parts that the plan puts on it, each
wrapped by the model's own `parallelize_fn`, and a schedule whose `step` runs the plan. Before any weight is made, what has not been
tested, or would train wrong, is refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtitan.distributed.pipeline_parallel import _split_module

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan
from schedc.runtime.frameworks.torchtitan_schedule import PlanSchedule
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.building import bounds_of_stages

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from torch import nn

    from schedc.runtime.common.hooks import Observer

_EMBEDDING, _BLOCKS, _HEAD = ("tok_embeddings",), "layers", ("norm", "lm_head")


def pipelining_fn_from(
    plan: Path | str | Plan, *, timeout_s: float = 300.0, observe: Observer | None = None
) -> Callable[..., tuple[PlanSchedule, list[nn.Module], bool, bool]]:
    """A `pipelining_fn` that runs a plan.

    Args:
        plan: the plan file, or the plan. It is read when the trainer is made.
        timeout_s: how long an op waits for another rank before the step fails; above the longest wait of the first step, in which
            torch prepares much.
        observe: as for `schedc.runtime.load`; a `Recorder` is one.

    Returns:
        What `ModelSpec.pipelining_fn` is to be. It raises `SchedcError`, in one line, where the plan is not for this job or the job
        has something with which it would not train right.
    """

    def pipeline(
        model: nn.Module,
        *,
        device: Any,
        model_config: Any,
        parallelize_fn: Callable[..., nn.Module],
        loss_fn: Callable[..., Any],
        dump_folder: str,
        **job: Any,  # parallel_dims, training, parallelism, compile_config and ac_config
    ) -> tuple[PlanSchedule, list[nn.Module], bool, bool]:
        checked = read(plan, verify=False)  # `load` verifies it, once for all ranks
        check_job(checked, **job)
        modules = modules_of_stages(checked, model, job["parallelism"].module_fqns_per_model_part)
        check_blocks(checked, modules, **job)
        group = job["parallel_dims"].get_mesh("pp").get_group()
        parts: dict[int, nn.Module] = {}
        for stage in checked.problem.stages_on(group.rank()):
            parts[stage] = parallelize_fn(_split_module(model, list(modules[stage])), **job, dump_folder=dump_folder)
        if not parts:
            raise InvalidInput(
                f"plan {checked.name!r} puts no stage on rank {group.rank()}, and torchtitan cannot train on a rank without one;"
                " compile with a stage on every rank"
            )
        schedule = PlanSchedule(checked, parts, loss_fn, group, timeout_s=timeout_s, observe=observe)
        return schedule, list(parts.values()), 0 in parts, len(modules) - 1 in parts

    return pipeline


def check_job(plan: Plan, *, parallel_dims: Any, training: Any, parallelism: Any, **_: Any) -> None:
    """Refuse a plan that is not for a job of torchtitan.

    `parallel_dims` is torchtitan's `ParallelDims`; the others are the sections of its configuration.

    Raises:
        SchedcError: says why.
    """
    problem, name = plan.problem, plan.name
    if problem.edges or problem.slices:
        raise Unsupported(
            f"plan {name!r}: its stages are a graph, or its microbatches in slices, and torchtitan has a chain of whole ones;"
            " compile without modules, edges, a split head and slices"
        )
    if problem.paths != (tuple(range(len(problem.stages))),):
        raise Unsupported(
            f"plan {name!r}: torchtitan's stages are one path in their order; compile without bidirectional placement"
        )
    if problem.data_parallel is not None and problem.data_parallel.size > 1:  # 1: the optimizer's step alone
        raise Unsupported(
            f"plan {name!r} has collectives of its own, and torchtitan's FSDP has them already; compile without [data_parallel]"
        )
    if parallel_dims.pp != problem.ranks:
        raise InvalidInput(
            f"plan {name!r} is for {problem.ranks} ranks; found parallelism.pipeline_parallel_degree = {parallel_dims.pp}, expected"
            f" {problem.ranks}"
        )
    size, batch = parallelism.pipeline_parallel_microbatch_size, training.local_batch_size
    if batch != size * problem.microbatches:
        raise InvalidInput(
            f"plan {name!r} is for {problem.microbatches} microbatches; found training.local_batch_size = {batch} with"
            f" parallelism.pipeline_parallel_microbatch_size = {size}, expected {size * problem.microbatches}"
        )
    if parallelism.pipeline_parallel_schedule_csv:
        raise InvalidInput(
            "parallelism.pipeline_parallel_schedule_csv: found a CSV beside a plan, expected one of them; leave it empty"
        )
    if parallelism.spmd_backend == "full_dtensor" and parallel_dims.cp > 1:
        raise Unsupported(
            f"plan {name!r}: under context parallelism what crosses stages is on a mesh that no weight is on; set spmd_backend to"
            " spmd_types or partial_dtensor"
        )
    if training.enable_cpu_offload:
        raise Unsupported(
            f"plan {name!r}: a stage is where its parameters are, and these would be on the CPU; unset training.enable_cpu_offload"
        )
    recomputed = [index for index, stage in enumerate(problem.stages) if stage.recompute]
    if recomputed:
        raise Unsupported(
            f"plan {name!r} recomputes stage {recomputed[0]} as a whole; in torchtitan set activation_checkpoint, and compile"
            " without recompute from a profile that was measured with it"
        )


def check_blocks(plan: Plan, modules: Sequence[Sequence[str]], *, parallel_dims: Any, parallelism: Any, **_: Any) -> None:
    """Refuse stages without a block where torchtitan's `parallelize_fn` would end in a traceback, on their ranks alone.

    `modules` are those of each stage, as `modules_of_stages` gives them; the others as of `check_job`.

    Raises:
        Unsupported: names the first.
    """
    without = next((stage for stage, own in enumerate(modules) if not any(name.startswith(f"{_BLOCKS}.") for name in own)), None)
    if without is not None and parallel_dims.cp > 1 and parallelism.spmd_backend == "partial_dtensor":
        raise Unsupported(
            f"plan {plan.name!r}: stage {without} has no block, and torchtitan's context parallelism with partial_dtensor wants one"
            " in each; compile with another pipeline.partition"
        )


def modules_of_stages(plan: Plan, model: nn.Module, chosen: Sequence[Sequence[str]] | None) -> list[list[str]]:
    """The names of the modules of each stage, in the order of the forward.

    Args:
        plan: one whose stages are one path.
        model: a decoder of torchtitan: `tok_embeddings`, `layers`, `norm`, `lm_head`.
        chosen: what the job says in `parallelism.module_fqns_per_model_part`; None: the plan's layers count. These are the
            embedding, the blocks, and the norm with the head as one layer; or the blocks alone.

    Raises:
        InvalidInput: the plan does not say which layers its stages have, or is for another model; or a module would be in no stage,
            or in two.
    """
    stages = plan.problem.stages
    blocks = [f"{_BLOCKS}.{name}" for name, _ in getattr(model, _BLOCKS).named_children()]
    if chosen is not None:
        if len(chosen) != len(stages):
            raise InvalidInput(
                f"parallelism.module_fqns_per_model_part: found {len(chosen)} lists, expected {len(stages)}, one for each stage of"
                f" plan {plan.name!r}; without it the plan's layers count"
            )
        modules = [list(names) for names in chosen]
    else:
        modules = _from_layers(plan, blocks)
    named = [name for names in modules for name in names]
    twice = next((name for at, name in enumerate(named) if name in named[:at]), None)
    if twice is not None:
        raise InvalidInput(f"parallelism.module_fqns_per_model_part: found {twice!r} in two stages, expected it in one")
    present = [name for name, _ in model.named_children() if name != _BLOCKS]
    missing = next((name for name in (*present, *blocks) if name not in named), None)
    if missing is not None:
        raise InvalidInput(
            f"plan {plan.name!r}: the model's module {missing!r} is in no stage; name each stage's modules in"
            " parallelism.module_fqns_per_model_part"
        )
    return modules


def _from_layers(plan: Plan, blocks: Sequence[str]) -> list[list[str]]:
    """The modules of the layers that the plan's stages have."""
    known = bounds_of_stages(
        plan,
        "compile it with a profile.json or pipeline.partition, or name each stage's modules in"
        " parallelism.module_fqns_per_model_part",
    )
    count = max(last for _, last in known)
    layers: list[Sequence[str]] = [(name,) for name in blocks]
    if count == len(blocks) + 2:
        layers = [_EMBEDDING, *layers, _HEAD]
    elif count == len(blocks):
        layers[0] = (*_EMBEDDING, *layers[0])
        layers[-1] = (*layers[-1], *_HEAD)
    else:
        raise InvalidInput(
            f"plan {plan.name!r} is for {count} layers, the model has {len(blocks)} blocks; expected {len(blocks) + 2} layers"
            f" (with the embedding and the head) or {len(blocks)}"
        )
    return [[name for layer in layers[first:last] for name in layer] for first, last in known]
