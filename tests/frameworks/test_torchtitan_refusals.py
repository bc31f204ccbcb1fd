"""What a plan in torchtitan is refused for, each in one line before a weight is made, and which modules are in which stage."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from suite.optional_packages import importing

from schedc.errors import InvalidInput, SchedcError
from schedc.solvers.driver.registry import constructive

with importing("torchtitan"):
    from torch import nn
    from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed.activation_checkpoint import SelectiveAC

    from schedc.runtime.frameworks.torchtitan import check_blocks, check_job, modules_of_stages

if TYPE_CHECKING:
    from schedc.ir.plan import Plan


def plan(method: str = "greedy", **options: Any) -> Plan:
    """A plan of 2 ranks and 4 microbatches, its backwards split by greedy and fused by 1f1b."""
    problem = make_problem(2, 4, costs_ns=(10, 12, 9), **options)
    return plan_of(problem, constructive(method)(problem))


def layered(made: Plan, *counts: int) -> Plan:
    """The plan with this many layers in each stage."""
    ends = [sum(counts[: at + 1]) for at in range(len(counts))]
    bounds = [(end - count, end) for end, count in zip(ends, counts, strict=True)]
    stages = tuple(replace(stage, layers=layers) for stage, layers in zip(made.problem.stages, bounds, strict=True))
    return replace(made, problem=replace(made.problem, stages=stages))


def check(made: Plan, **changes: Any) -> None:
    """`check_job` on a job that fits but for the changes."""
    dims = {"pp": 2, "tp": 1, "cp": 1, "ep": 1} | changes.pop("dims", {})
    parallelism = ParallelismConfig(**changes.pop("parallelism", {}))
    training = TrainingConfig(**{"local_batch_size": 4, **changes.pop("training", {})})
    assert not changes
    check_job(
        made,
        parallel_dims=SimpleNamespace(**dims),
        training=training,
        parallelism=parallelism,
        compile_config=CompileConfig(enable=True),
        ac_config=SelectiveAC.Config(),
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "ranks": ({"dims": {"pp": 4}}, "pipeline_parallel_degree = 4, expected 2"),
    "microbatches": ({"training": {"local_batch_size": 8}}, "local_batch_size = 8 .*, expected 4"),
    "microbatch size": ({"parallelism": {"pipeline_parallel_microbatch_size": 2}}, "microbatch_size = 2, expected 8"),
    "csv": ({"parallelism": {"pipeline_parallel_schedule_csv": "x.csv"}}, "found a CSV beside a plan"),
    "context of DTensors": ({"parallelism": {"spmd_backend": "full_dtensor"}, "dims": {"cp": 2}}, "spmd_types or partial_dtensor"),
    "offload": ({"training": {"enable_cpu_offload": True}}, "enable_cpu_offload"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_in_one_line(case: str) -> None:
    changes, said = REFUSED[case]
    with pytest.raises(SchedcError, match=said) as raised:
        check(plan(), **dict(changes))
    assert "\n" not in str(raised.value)


def test_what_fits_is_not_refused() -> None:
    check(plan())
    check(plan(), dims={"tp": 2, "cp": 2, "ep": 2})
    check(plan(placement="wave", chunks=2), training={"local_batch_size": 8}, parallelism={"pipeline_parallel_microbatch_size": 2})


def test_plans_that_torchtitan_cannot_have_are_refused() -> None:
    with pytest.raises(SchedcError, match="without bidirectional"):
        check(plan(placement="bidirectional"))
    made = plan()
    stages = (replace(made.problem.stages[0], recompute=True), *made.problem.stages[1:])
    with pytest.raises(SchedcError, match=r"recomputes stage 0 .*set activation_checkpoint"):
        check(replace(made, problem=replace(made.problem, stages=stages)))


def model(blocks: int = 4, **more: nn.Module) -> nn.Module:
    """Shaped like torchtitan's decoders."""
    made = nn.Module()
    made.tok_embeddings = nn.Identity()
    made.layers = nn.ModuleDict({str(block): nn.Identity() for block in range(blocks)})
    made.norm, made.lm_head = nn.Identity(), nn.Identity()
    for name, module in more.items():
        setattr(made, name, module)
    return made


def test_layers_with_and_without_the_ends() -> None:
    expected = [["tok_embeddings", "layers.0"], ["layers.1", "layers.2", "layers.3", "norm", "lm_head"]]
    assert modules_of_stages(layered(plan(), 2, 4), model(), None) == expected
    assert modules_of_stages(layered(plan(), 1, 3), model(), None) == expected
    assert modules_of_stages(plan(), model(), expected) == expected


def test_stages_without_a_block_under_context_parallelism() -> None:
    """torchtitan's own schedules end in an IndexError there."""
    modules = modules_of_stages(layered(plan(), 1, 5), model(), None)
    for context, backend in ((1, "partial_dtensor"), (2, "spmd_types")):
        check_blocks(plan(), modules, parallel_dims=SimpleNamespace(cp=context), parallelism=SimpleNamespace(spmd_backend=backend))
    given = {"parallel_dims": SimpleNamespace(cp=2), "parallelism": SimpleNamespace(spmd_backend="partial_dtensor")}
    check_blocks(plan(), modules_of_stages(layered(plan(), 2, 4), model(), None), **given)
    with pytest.raises(SchedcError, match="stage 0 has no block"):
        check_blocks(plan(), modules, **given)


def test_modules_that_would_be_lost_or_doubled_are_refused() -> None:
    fits = layered(plan(), 2, 4)
    with pytest.raises(InvalidInput, match=r"6 layers, the model has 5 blocks; expected 7 layers .* or 5"):
        modules_of_stages(fits, model(5), None)
    with pytest.raises(InvalidInput, match="does not say which layers"):
        modules_of_stages(plan(), model(), None)
    with pytest.raises(InvalidInput, match="'vision_encoder' is in no stage"):
        modules_of_stages(fits, model(vision_encoder=nn.Identity()), None)
    with pytest.raises(InvalidInput, match="found 1 lists, expected 2"):
        modules_of_stages(fits, model(), [["norm"]])
    twice = [["tok_embeddings", "layers.0"], ["layers.0", "layers.1", "layers.2", "layers.3", "norm", "lm_head"]]
    with pytest.raises(InvalidInput, match=r"found 'layers.0' in two stages"):
        modules_of_stages(fits, model(), twice)
