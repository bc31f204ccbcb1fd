"""What the rank processes of the swap tests run: training that moves to other plans, beside the same model without a pipeline."""

from __future__ import annotations

import threading
import time
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

import schedc.runtime
from runs.pipeline_runs import loss_fn, make_batch, make_piece, make_stages, piece_of, relative_error
from schedc.errors import SchedcError
from schedc.ir.ops import token
from schedc.runtime.common.hooks import Observer, OpTimes
from schedc.runtime.measure.recording import Recorder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from schedc.ir.plan import Plan
    from schedc.runtime.session.swap import Swap


class Orders(Observer):
    """The ops of each step, by their names."""

    def __init__(self) -> None:
        self.steps: list[list[str]] = []

    def begin_step(self, step: int, now_ns: int) -> None:
        assert step == len(self.steps)
        self.steps.append([])

    def op(self, times: OpTimes) -> None:
        self.steps[-1].append(token(times.op))


def swap_while_training(
    rank: int,
    plans: Sequence[Any],
    calls: Sequence[Mapping[int, int]],
    steps: int,
    sleeps: Mapping[int, float] | None = None,
    batches_of: Plan | None = None,
) -> dict[str, Any]:
    """Train from plan 0 on; before its step k this rank swaps to plan `calls[rank][k]`.

    Args:
        rank: this one.
        plans: plans, or files.
        calls: of each rank, the plan to swap to by the step before which it does so.
        steps: how many.
        sleeps: of some ranks, how many seconds they are late with each call.
        batches_of: a plan for which all batches are made; None: each for the plan of its step.

    Returns:
        Of each step the largest relative error of a gradient, the loss and the one expected, the ops, and the microbatches that
        the pipe said it would take; of each swap its state, step and reason; all warnings.
    """
    first: Plan = plans[0]
    stages = make_stages(first, rank)
    count = len(first.problem.paths[0])
    whole = nn.Sequential(*(make_piece(index, count) for index in range(count)))
    both = [*nn.ModuleList(stages.values()).parameters(), *whole.parameters()]
    orders = Orders()
    found: dict[str, Any] = {"errors": [], "losses": [], "expected": [], "microbatches": []}
    swaps: list[Swap] = []
    with (
        warnings.catch_warnings(record=True) as heard,
        schedc.runtime.load(plans[0], stages=stages, loss_fn=loss_fn, timeout_s=60, observe=orders) as pipe,
    ):
        warnings.simplefilter("always")
        for step in range(steps):
            if step in calls[rank]:
                time.sleep((sleeps or {}).get(rank, 0))
                swaps.append(pipe.swap(plans[calls[rank][step]]))
            inputs, targets = make_batch(batches_of or pipe.plan, step)
            found["microbatches"].append(pipe.plan.problem.microbatches)
            for parameter in both:
                parameter.grad = None
            found["losses"].append(pipe.step(inputs, targets).item())
            loss = loss_fn(whole(inputs), targets)
            torch.autograd.backward(loss)
            found["expected"].append(loss.item())
            found["errors"].append(
                max(
                    relative_error(own.grad, other.grad)
                    for stage, module in stages.items()
                    for own, other in zip(module.parameters(), whole[piece_of(first, stage)].parameters(), strict=True)
                )
            )
            with torch.no_grad():
                for parameter in both:
                    if parameter.grad is not None:
                        parameter.sub_(parameter.grad, alpha=0.1)
    return {
        **found,
        "orders": orders.steps,
        "swaps": [(swap.state, swap.step, swap.reason) for swap in swaps],
        "warnings": [f"{warning.category.__name__}: {warning.message}" for warning in heard],
    }


def swap_in_a_step(rank: int, plans: Sequence[Plan]) -> list[int]:
    """All ranks call `swap` in step 1, in a thread, while its last microbatch runs forward: the plans of the steps."""
    stages, ran, calls = make_stages(plans[0], rank), [], list[int]()
    with schedc.runtime.load(plans[0], stages=stages, loss_fn=loss_fn, timeout_s=60) as pipe:

        def forward(module: nn.Module, inputs: Any) -> None:
            calls.append(1)
            if len(calls) == 2 * plans[0].problem.microbatches:
                thread = threading.Thread(target=pipe.swap, args=(plans[1],))
                thread.start()
                thread.join()

        for module in stages.values():
            module.register_forward_pre_hook(forward)
        for step in range(3):
            ran.append(plans.index(pipe.plan))
            pipe.step(*make_batch(pipe.plan, step))
    return ran


def swap_wrongly(rank: int, plan: Plan) -> list[str]:
    """What a second swap says while one is pending, after which training goes on, and what a swap of a closed pipe says."""
    said = []
    pipe = schedc.runtime.load(plan, stages=make_stages(plan, rank), loss_fn=loss_fn, timeout_s=60)
    if rank == 0:
        pipe.swap(plan)
    for _ in range(2):
        pipe.step(*make_batch(plan, 0))
        try:
            if rank == 0:
                pipe.swap(plan)
        except SchedcError as error:
            said.append(f"{type(error).__name__}: {error}")
    pipe.close()
    try:
        pipe.swap(plan)
    except SchedcError as error:
        said.append(f"{type(error).__name__}: {error}")
    return said


def record_and_swap(rank: int, plans: Sequence[Plan], paths: Sequence[Path]) -> list[str | None]:
    """Write a trace before and after a swap, to one path each, and once more right after it; what is said to each."""
    said: list[str | None] = []

    def write(path: Path) -> None:
        try:
            pipe.write_trace(path)
        except SchedcError as error:
            said.append(f"{type(error).__name__}: {error}")
        else:
            said.append(None)

    recorder = Recorder(skip=0)
    with schedc.runtime.load(plans[0], stages=make_stages(plans[0], rank), loss_fn=loss_fn, timeout_s=60, observe=recorder) as pipe:
        pipe.step(*make_batch(plans[0], 0))
        write(paths[0])
        swap = pipe.swap(plans[1])
        while swap.state == "pending":
            pipe.step(*make_batch(plans[0], 0))
        write(paths[1])
        for _ in range(2):
            pipe.step(*make_batch(plans[1], 0))
        write(paths[1])
    with schedc.runtime.load(plans[0], stages=make_stages(plans[0], rank), loss_fn=loss_fn, timeout_s=60) as pipe:
        write(paths[0])
    return said
