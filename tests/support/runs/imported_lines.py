"""What a training job imports of schedc, seen by a rank that runs one step and nothing else.

A module of its own, which imports nothing of schedc before the rank does: what it counts must be the job's.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any


def lines_of_a_step(rank: int, plan_path: str, adapts: bool = False) -> dict[str, int]:
    """Load a plan and run a step, then the optimizer's; the lines of every module of schedc that this process has imported.

    No links are injected, nothing is recorded, no other plan is moved to, and there is one pipeline. The lines are those of the
    modules' files, comments and empty lines included. A job that adapts has a monitor, and asks for other plans.
    """
    import torch

    import schedc.runtime
    from schedc.formats.plan.plan_file import read_plan

    plan = read_plan(plan_path)
    stages = {stage: torch.nn.Linear(4, 4) for stage in plan.problem.stages_on(rank)}
    optimizer = torch.optim.SGD([weight for module in stages.values() for weight in module.parameters()], lr=0.1)
    batch = torch.ones(plan.problem.microbatches, 4)
    options: dict[str, Any] = {}
    if adapts:
        from schedc.runtime.adapt.adapting import adapting
        from schedc.runtime.adapt.monitor import Monitor

        monitor = Monitor()
        options = {"observe": monitor, "wrap": monitor.wrap}
    with schedc.runtime.load(plan, stages=stages, loss_fn=torch.nn.functional.mse_loss, **options) as pipe, ExitStack() as stack:
        adaptation = stack.enter_context(adapting(pipe, monitor)) if adapts else None
        pipe.step(batch, batch)
        optimizer.step()
        if adaptation is not None:
            adaptation.between_steps()
    files = {name: module.__file__ for name, module in sys.modules.items() if name.partition(".")[0] == "schedc"}
    return {name: len(Path(file).read_text("utf-8").splitlines()) for name, file in sorted(files.items()) if file}
