"""What of Megatron a plan does not run is refused in one line, on all ranks, before anything is computed."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs.processes import rank_processes
from suite.optional_packages import MODULES, importing
from torch import nn

from schedc.errors import InvalidInput, SchedcError
from schedc.ir.schedule import Schedule
from schedc.solvers.driver.registry import constructive

with importing("megatron"):
    from runs import megatron_runs

    from schedc.runtime.frameworks.megatron import forward_backward_func_from
    from schedc.runtime.frameworks.megatron_checks import check_call, check_model

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.plan import Plan


def plan(method: str = "1f1b", **options: Any) -> Plan:
    problem = make_problem(2, 4, costs_ns=(10, 12, 9), **options)
    return plan_of(problem, constructive(method)(problem))


def chunk(*, first: bool, last: bool, **more: Any) -> nn.Module:
    module = nn.Linear(1, 1)
    for name, value in {"pre_process": first, "post_process": last, **more}.items():
        setattr(module, name, value)
    return module


def refusal(made: Plan, *chunks: nn.Module, rank: int = 0, **config: Any) -> str:
    with pytest.raises(SchedcError) as caught:
        check_model(made, chunks, SimpleNamespace(**config), rank)
    text = str(caught.value)
    assert "\n" not in text
    return text


FIRST, LAST = {"first": True, "last": False}, {"first": False, "last": True}


@pytest.mark.parametrize(
    "option", ["overlap_moe_expert_parallel_comm", "defer_embedding_wgrad_compute", "hybrid_context_parallel", "cpu_offloading"]
)
def test_options_that_need_megatrons_order(option: str) -> None:
    assert f"{option} = True" in refusal(plan(), chunk(**FIRST), **{option: True})
    check_model(plan(), [chunk(**FIRST)], SimpleNamespace(**{option: False}), 0)


def test_graphs() -> None:
    assert "cuda_graph_impl = 'local'" in refusal(plan(), chunk(**FIRST), cuda_graph_impl="local")


def test_other_chunks_than_the_plan_has() -> None:
    assert "rank 0 has 2 model chunks, plan 'test' puts 1 stages there" in refusal(plan(), chunk(**FIRST), chunk(**LAST))
    assert "has pre_process = True, expected False" in refusal(plan(), chunk(first=True, last=True), rank=1)
    assert "has post_process = True, expected False" in refusal(plan(), chunk(first=True, last=True))
    wave = plan("hanayo", placement="wave", chunks=2)
    swapped = [chunk(**FIRST, vp_stage=1), chunk(**LAST, vp_stage=0)]
    assert "has vp_stage = 1, expected 0" in refusal(wave, *swapped)


def test_shared_embeddings_of_one_rank() -> None:
    wave = plan("hanayo", placement="wave", chunks=2)
    tied = {"share_embeddings_and_output_weights": True}
    assert "sums the gradients of shared embeddings between the first and the last rank" in refusal(
        wave, chunk(**FIRST, **tied), chunk(**LAST, **tied)
    )
    turned = plan("greedy", placement=(1, 0, 1))
    inner = chunk(first=False, last=False, **tied)
    assert "has its first stage on rank 1 and its last on rank 1" in refusal(turned, inner)
    check_model(wave, [chunk(**FIRST), chunk(**LAST)], SimpleNamespace(), 0)


def test_weights_that_are_sharded() -> None:
    class FullyShardedDataParallel(nn.Module):
        pass

    sharded = FullyShardedDataParallel()
    sharded.module = chunk(**FIRST)
    assert "FSDP" in refusal(plan(), sharded)


def test_delayed_gradients_that_would_be_lost() -> None:
    def part(**more: Any) -> nn.Module:
        return chunk(**FIRST, wgrad_store=SimpleNamespace(delay_wgrad_compute=lambda: True), **more)

    assert "its configuration has delay_wgrad_compute = False" in refusal(plan(), part(), delay_wgrad_compute=False)
    off, on = (part(ddp_config=SimpleNamespace(delay_wgrad_compute=delays)) for delays in (False, True))
    assert "its DistributedDataParallelConfig has delay_wgrad_compute = False" in refusal(plan(), off, delay_wgrad_compute=True)
    check_model(plan(), [on], SimpleNamespace(delay_wgrad_compute=True), 0)


def test_plans_that_no_model_runs() -> None:
    both = plan("chimera", placement="bidirectional")
    assert "two paths" in refusal(both, chunk(**FIRST), chunk(**LAST))
    made = plan()
    stages = tuple(replace(stage, recompute=True) for stage in made.problem.stages)
    recomputing = replace(made, problem=replace(made.problem, stages=stages))
    assert "recomputes stage 0" in refusal(recomputing, chunk(**FIRST))
    problem = made.problem
    one_after_the_other = Schedule(
        orders=tuple(tuple(op._replace(microbatch=3 - op.microbatch) for op in rank.compute) for rank in made.ranks)
    )
    assert "runs microbatch 3 of stage 0 before 2" in refusal(plan_of(problem, one_after_the_other), chunk(**FIRST))


def test_calls_that_do_not_fit() -> None:
    iterator = iter(())
    for chunks, iterators, microbatches, expected in [
        (1, [iterator], 3, "num_microbatches: found 3, plan 'test' has 4"),
        (2, [iterator], 4, "data_iterator: found 1 for 2 model chunks"),
        (2, [iterator, iterator], 4, "data_iterator: found the same iterator for two chunks"),
    ]:
        with pytest.raises(InvalidInput, match=expected):
            check_call(plan(), chunks, iterators, microbatches)
    check_call(plan(), 2, [None, None], 4)
    with pytest.raises(InvalidInput, match="found recompute, expected one of channels, observe"):
        forward_backward_func_from(plan(), recompute=True)


def test_all_ranks_refuse_what_one_refuses(tmp_path: Path) -> None:
    with rank_processes(2, tmp_path, *MODULES) as ranks:
        first, second = ranks.run(megatron_runs.refused, plan())
    assert first.startswith("CheckFailed: rank 1 has refused the plan: the model has hybrid_context_parallel = True")
    assert second.startswith("Unsupported: the model has hybrid_context_parallel = True")
