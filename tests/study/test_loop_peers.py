"""The peers' values for loops are what PyTorch's own generators take, wherever one of these is the best peer."""

from __future__ import annotations

import pytest
from oracles.pytorch_orders import bare, by_rank
from torch.distributed.pipelining import schedules

from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.ir.schedule import Schedule
from schedc.study.bench.instances import Instance, instances

GROUPED_IS_BEST = "m70-loop-link-0.25-2-p"
"""Where the best peer is zero-bubble's; in all other cells of a loop it is one of PyTorch's."""


@pytest.mark.parametrize("instance", instances("m70-loop"), ids=lambda instance: instance.name)
def test_the_best_peer_of_a_loop_is_what_pytorchs_generators_take(instance: Instance) -> None:
    problem = instance.problem
    found_ns = []
    for generator in (schedules.ScheduleInterleaved1F1B, schedules.ScheduleInterleavedZeroBubble):
        schedule = Schedule(orders=by_rank(bare(generator, problem.ranks, problem.microbatches, 2)))
        held = zip(peak_bytes(problem, schedule), problem.memory_limit_bytes, strict=True)
        if all(limit is None or peak <= limit for peak, limit in held):
            found_ns.append(simulate(problem, schedule).makespan_ns)
    if instance.name == GROUPED_IS_BEST:
        assert instance.published_ns("best peer") < min(found_ns)
    else:
        assert instance.published_ns("best peer") == min(found_ns)
