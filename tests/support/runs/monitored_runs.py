"""What the rank processes of the monitor's tests run: training steps with a monitor, over links that change at given steps."""

from __future__ import annotations

from functools import partial
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, Literal

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_stages
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.emulation.injected import Injection

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan
    from schedc.ir.problem import Problem
    from schedc.runtime.common.groups import Groups
    from schedc.runtime.execution.wiring import Wrap


def train(
    rank: int,
    plan: Plan,
    steps: int,
    trace: LinkTrace | None = None,
    at_steps: Mapping[int, int] | None = None,
    monitored: bool = True,
    channels: Literal["gloo", "delegate"] = "gloo",
    least_gap_s: float = 0.0,
) -> dict[str, Any]:
    """Train.

    Args:
        rank: this one.
        plan: what is run.
        steps: how many.
        trace: of links that are injected; None: none are.
        at_steps: by step, to which nanosecond the trace's clock is set before it.
        monitored: whether with a monitor.
        channels: what carries the tensors.
        least_gap_s: as of `Monitor`.

    Returns:
        By step, what has changed by then; every how many steps one is measured; the gradients; of each link to here, alarms,
        confirmed, rejected and unanswered.
    """
    monitor, injections = Monitor(least_gap_s=least_gap_s), []

    def inject(problem: Problem, groups: Groups, device: torch.device) -> Wrap:
        injections.append(Injection(problem, groups, device=device, trace=trace))
        return injections[0].wrap

    wrap = None if not monitored else monitor.wrap if trace is None else partial(monitor.wrap, around=inject)
    stages = make_stages(plan, rank)
    found = []
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss_fn,
        timeout_s=60,
        observe=monitor if monitored else None,
        wrap=wrap,
        channels=channels,
    ) as pipe:
        for step in range(steps):
            if step in (at_steps or {}):
                injections[0].clock.start(perf_counter_ns() - (at_steps or {})[step])
            pipe.step(*make_batch(plan, step))
            found.append(monitor.conditions())
    monitor.close()
    return {
        "found": found,
        "every": monitor.every,
        "gradients": [
            parameter.grad.tolist() for stage in stages.values() for parameter in stage.parameters() if parameter.grad is not None
        ],
        "watches": {
            peer: (watch.alarms, watch.confirmed, watch.rejected, watch.unanswered) for peer, watch in monitor.links.items()
        },
    }


def move(rank: int, plans: Sequence[Plan], steps: int) -> list[Any]:
    """Train with one plan after the other, and evaluate between them; then load anew, and close the monitor while training.

    Returns:
        The gradients of the last plan, which links have been watched, whether the last plan ran; and after the second load what the
        monitor said at first, which links it has watched, and whether a step after its end gave the same loss as before.
    """
    monitor, stages = Monitor(), make_stages(plans[0], rank)

    def load() -> schedc.runtime.Pipe:
        return schedc.runtime.load(plans[0], stages=stages, loss_fn=loss_fn, timeout_s=60, observe=monitor, wrap=monitor.wrap)

    with load() as pipe:
        for number, plan in enumerate(plans):
            if number:
                pipe.evaluate(*make_batch(plan, 0))
                pipe.swap(plan)
            for step in range(steps):
                for module in stages.values():
                    module.zero_grad()
                pipe.step(*make_batch(plan, step))
        ran = pipe.plan.ranks == plans[-1].ranks
        pipe.evaluate(*make_batch(plans[-1], 0))  # as the next step, this has no stamps where steps are short
    gradients = [
        parameter.grad.tolist() for stage in stages.values() for parameter in stage.parameters() if parameter.grad is not None
    ]
    watched = sorted(monitor.links)
    with load() as pipe:
        first = monitor.conditions()
        losses = [pipe.step(*make_batch(plans[0], 0)).item() for _ in range(steps)]
        again = sorted(monitor.links)
        if rank == 0:
            monitor.close()
        losses += [pipe.step(*make_batch(plans[0], 0)).item() for _ in range(steps)]
    monitor.close()
    return [gradients, watched, ran, first, again, len(set(losses)) == 1]
