"""What the rank processes of the tests of choosing inside a step run."""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import nn

from runs.harness import Orders, Run, cannot_go_on, gradients_of, load, make_batch, make_stages, on_forward
from runs.processes import gave_up, until_others_give_up
from schedc.runtime.emulation.injected import inject_links
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import LinkTrace
    from schedc.ir.plan import Plan


def train(
    rank: int, plan: Plan, choosing: Sequence[bool], trace: LinkTrace | None, swap_to: Plan | None = None, **options: Any
) -> dict[str, Any]:
    """Three steps and an evaluation in float32 with dropout: the gradients of each as bytes, the losses, the orders, the warnings.

    Args:
        rank: of the process.
        plan: what is run, by all processes or by several pipelines.
        choosing: by process, whether it chooses.
        trace: the links' delays; None: none.
        swap_to: to swap to after the first step.
        options: of `load`.
    """
    run, orders = Run(plan), Orders()
    first = {path[0] for path in plan.problem.paths}
    for stage, module in run.stages.items():
        before = nn.Identity() if stage in first else nn.Dropout(0.2)
        run.stages[stage] = nn.Sequential(before, module.float(), nn.Dropout(0.1))
    wrap = None if trace is None else partial(inject_links, trace=trace)
    kind = ChoosingPipe if choosing[rank] else Pipe
    gradients, losses = [], []
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with run.load(observe=orders, wrap=wrap, kind=kind, **options) as pipe:
            for step in range(3 if swap_to is None else 4):
                run.clear()
                losses.append(pipe.step(*make_batch(plan, run.pipelines * step + run.pipeline)).item())
                gradients.append([gradient.numpy().tobytes() for gradient in gradients_of(run.stages)])
                if step == 0 and swap_to is not None:
                    pipe.swap(swap_to)
                if step == 1:
                    losses.append(pipe.evaluate(*make_batch(plan, 9)).item())
    heard = [str(each.message) for each in warned if issubclass(each.category, RuntimeWarning)]
    return {"gradients": gradients, "losses": losses, "orders": orders.steps, "warned": heard}


def fail(rank: int, plan: Plan, who: int, how: str) -> str:
    """Two steps, in the second of which one rank fails: it raises, or is stuck for long, before it or in an op."""
    stages = make_stages(plan, rank)
    try:
        with load(plan, stages, timeout_s=60 if how == "raises" else 5, kind=ChoosingPipe) as pipe:
            pipe.step(*make_batch(plan, 0))
            if rank == who and how == "raises":
                on_forward(stages, 2, cannot_go_on)
            if rank == who and how == "hangs":
                until_others_give_up()
            if rank == who and how == "hangs in an op":
                on_forward(stages, 1, until_others_give_up)
            pipe.step(*make_batch(plan, 1))
    finally:
        gave_up()
    return "nothing"
