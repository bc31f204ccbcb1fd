"""Memory by rank on the CPU beside the plan's: what a `MemoryMeter` counts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from inputs.few_plans import PLANS, made_by
from runs import memory_runs
from runs.memory_runs import UNIT
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from schedc.runtime.measure.memory import MemoryMeter, storages_of
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from runs.processes import Ranks

    from schedc.ir.plan import Plan
    from schedc.runtime.common.boundary import Value
    from schedc.runtime.common.program import Instruction


def plan_of_kind(name: str, *, split: bool) -> Plan:
    """A plan with what the stages of `memory_runs` hold."""
    method, options = PLANS[name]
    held = memory_runs.HELD, memory_runs.HELD_AFTER_INPUT
    return made_by(method, activation=held, split_backward=split, **options)


@pytest.mark.parametrize(
    ("name", "split", "units"),
    [("1f1b", False, (6, 3)), ("interleaved", False, (15, 9)), ("zb-v", True, (12, 12)), ("parts", True, (9, 7))],
)
def test_ranks_hold_what_the_plan_says(two: Ranks, name: str, units: tuple[int, int], *, split: bool) -> None:
    """Not in it are weights and their gradients, and what an op lets go of before it ends: each is more than the difference."""
    plan = plan_of_kind(name, split=split)
    assert plan.certificate.peak_activation_bytes == tuple(unit * UNIT for unit in units)
    found, lines = zip(*two.run(memory_runs.measured, plan, 0), strict=True)
    assert found == pytest.approx([unit * UNIT for unit in units], rel=0.002)
    said = {f"rank {rank} {format_bytes(found[rank])}, planned {format_bytes(unit * UNIT)}" for rank, unit in enumerate(units)}
    assert {frozenset(line.rpartition("; memory: ")[2].split("; ")) for line in lines} == {frozenset(said)}


def test_a_rank_that_holds_more_is_said_first(two: Ranks) -> None:
    """Two wide tensors more in each of the rank's stages, of one microbatch at a time."""
    runs = two.run(memory_runs.measured, plan_of_kind("1f1b", split=False), 2)
    assert [found for found, _ in runs] == pytest.approx([6 * UNIT, 5 * UNIT], rel=0.002)
    assert all("; memory: rank 1 1.25" in line and ", planned 768 KiB; rank 0 1.5" in line for _, line in runs)


def test_nothing_is_counted_where_nobody_asks(two: Ranks) -> None:
    for found, line in two.run(memory_runs.measured, plan_of_kind("1f1b", split=False), 0, asked=False):
        assert found is None and "memory" not in line


def test_what_is_in_the_count() -> None:
    """What came from another rank, and what is made of it; not gradients, what is gone or older, or the first of several steps."""
    layer, meter, held = nn.Linear(8, 4), MemoryMeter(), list[torch.Tensor]()

    def op(_: object, values: Sequence[Value]) -> Sequence[Value]:
        for value in values:
            held.append(layer(*value))
            torch.autograd.backward((held[-1] * 2).sum(), retain_graph=True)
        return []

    def run(*values: torch.Tensor) -> int | None:
        meter.run(cast("Instruction", None), [(value,) for value in values])
        return meter.peak_bytes

    meter.use(op, [layer])
    assert meter.peak_bytes is None
    meter.begin_step(0, 0)
    came = torch.ones(16, 8)
    whole = came.nbytes + 16 * 4 * 4
    assert run(came) == whole
    assert layer.weight.grad is not None and run(came) == whole + 16 * 4 * 4
    meter.begin_step(1, 0)
    assert run() == 0
    assert run(came.clone()) == whole  # the graph has the copy
    held.clear()
    meter.begin_step(2, 0)
    assert run() == whole


def test_a_tensor_around_others_is_where_they_are() -> None:
    one, other = torch.ones(3), torch.ones(3)
    around: Any = TwoTensor  # PyTorch has no types for it
    assert storages_of([around(one, other)]) == storages_of({"one": one[:1], "other": other})
