"""torchtitan: a plan in place of its pipeline schedules, as the `pipelining_fn` of a `ModelSpec`.

    spec = model_registry("8B")
    spec.pipelining_fn = pipelining_fn_from("plan.json")

torchtitan's trainer calls it as it calls its own `pipeline_llm`: it gives this rank the model parts that the plan puts on it, each
wrapped by the model's own `parallelize_fn`, and a schedule whose `step` runs the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torchtitan.distributed.pipeline_parallel import _split_module

from schedc.errors import InvalidInput
from schedc.runtime.frameworks.torchtitan_modules import modules_of_stages
from schedc.runtime.frameworks.torchtitan_refusals import check_job
from schedc.runtime.frameworks.torchtitan_schedule import PlanSchedule
from schedc.runtime.session.acceptance import read

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from schedc.ir.plan import Plan
    from schedc.runtime.common.hooks import Observer


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
        parallel_dims: Any,
        training: Any,
        parallelism: Any,
        compile_config: Any,
        ac_config: Any,
        dump_folder: str,
        device: Any,
        model_config: Any,
        parallelize_fn: Callable[..., nn.Module],
        loss_fn: Callable[..., Any],
    ) -> tuple[PlanSchedule, list[nn.Module], bool, bool]:
        checked = read(plan, verify=False)  # `load` verifies it, once for all ranks
        check_job(
            checked,
            parallel_dims=parallel_dims,
            training=training,
            parallelism=parallelism,
            compile_config=compile_config,
            ac_config=ac_config,
        )
        modules = modules_of_stages(checked, model, parallelism.module_fqns_per_model_part)
        group = parallel_dims.get_mesh("pp").get_group()
        parts: dict[int, nn.Module] = {}
        for stage in checked.problem.stages_on(group.rank()):
            parts[stage] = parallelize_fn(
                _split_module(model, list(modules[stage])),
                parallel_dims=parallel_dims,
                training=training,
                parallelism=parallelism,
                compile_config=compile_config,
                ac_config=ac_config,
                dump_folder=dump_folder,
            )
        if not parts:
            raise InvalidInput(
                f"plan {checked.name!r} puts no stage on rank {group.rank()}, and torchtitan cannot train on a rank without one;"
                " compile with a stage on every rank"
            )
        schedule = PlanSchedule(checked, parts, loss_fn, group, device, timeout_s=timeout_s, observe=observe)
        return schedule, list(parts.values()), 0 in parts, len(modules) - 1 in parts

    return pipeline
