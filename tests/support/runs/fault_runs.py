"""What the rank processes of the fault tests run: steps in which something goes wrong, and what each rank says to it and when.

Times are on `time.monotonic`, which all processes of a host share.
"""

from __future__ import annotations

import os
import time
from functools import partial
from itertools import count
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

import schedc.runtime
from runs.harness import SAMPLES, Run, gradients_of, living_tensors, load, loss_fn, make_batch, make_stages, on_forward, said
from runs.pipeline_runs import ENDS
from runs.processes import gave_up, until_others_give_up
from schedc.ir.ops import token
from schedc.runtime.common.hooks import Observer, OpTimes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from schedc.ir.ops import Op
    from schedc.ir.plan import Plan


class Said(NamedTuple):
    """What a rank has said to a fault."""

    error: str | None
    """`Type: message`; None: the steps went well."""
    at_s: float
    """When."""


def said_to(error: BaseException) -> Said:
    """The error and its notes, now."""
    return Said(" / ".join([said(error), *getattr(error, "__notes__", ())]), time.monotonic())


class Death(NamedTuple):
    """How and when a process ends itself."""

    rank: int
    after: int
    """The number of the op after which its last moments begin, over all steps; 0: before the first."""
    fraction: float
    """How far into the next op, in units of the time that an op has taken so far on average."""
    way: str
    """`kill` or `exit`."""
    diary: str
    """The file that gets its last words: when, and in which op."""


class Dying(Observer):
    """Ends the process at an arbitrary moment: a second thread does it, wherever the first then is."""

    def __init__(self, plan: Plan, death: Death) -> None:
        self._ops = plan.ranks[death.rank].compute
        self._death = death
        self._ran = 0
        self._begun_s = 0.0

    def begin_step(self, step: int, now_ns: int) -> None:
        if self._ran == 0:
            self._begun_s = time.monotonic()
            self._watch()

    def op(self, times: OpTimes) -> None:
        self._ran += 1
        self._watch()

    def _watch(self) -> None:
        if self._ran == self._death.after:
            spent_s = time.monotonic() - self._begun_s
            delay_s = self._death.fraction * (spent_s / self._ran if self._ran else 0.002)
            Thread(target=self._end, args=(delay_s, self._ops[self._ran % len(self._ops)]), daemon=True).start()

    def _end(self, delay_s: float, op: Op) -> None:
        time.sleep(delay_s)
        Path(self._death.diary).write_text(f"{time.monotonic()} {token(op)}", encoding="utf-8")
        ENDS[self._death.way]()


def die(rank: int, plan: Plan, death: Death, timeout_s: float) -> Said:
    """Train until one rank ends itself."""
    observe = Dying(plan, death) if rank == death.rank else None
    pipe = load(plan, make_stages(plan, rank), timeout_s=timeout_s, observe=observe)
    try:
        for step in range(10_000):
            pipe.step(*make_batch(plan, step))
    except schedc.runtime.TransferFailed as error:
        return said_to(error)
    return Said(None, time.monotonic())


def be_late(rank: int, plan: Plan, culprit: int, seconds: float | None, timeout_s: float) -> tuple[Said, list[float]]:
    """Three steps with a rank that sleeps once, in its third forward; None: until another rank has given up.

    The error if any, and the losses of the steps.
    """
    stages = make_stages(plan, rank)
    if rank == culprit:
        on_forward(stages, 3, lambda: until_others_give_up() if seconds is None else time.sleep(seconds))
    losses: list[float] = []
    try:
        with load(plan, stages, timeout_s=timeout_s) as pipe:
            for step in range(3):
                losses.append(pipe.step(*make_batch(plan, step)).item())
    except Exception as error:
        gave_up()
        return said_to(error), losses
    return Said(None, time.monotonic()), losses


def lose_numbers(
    rank: int, plan: Plan, wrong: dict[int, float], check_loss: bool
) -> list[tuple[Said, float | None, list[float], bool]]:
    """Three steps; in the second, the losses of the microbatches `wrong` become what it says.

    Returns:
        Of each step the error, the loss, the microbatches' losses, and whether all gradients are finite.
    """
    run, results = Run(plan), list[tuple[Said, float | None, list[float], bool]]()
    microbatches = plan.problem.microbatches

    def loss_of(logits: torch.Tensor, numbered: torch.Tensor) -> torch.Tensor:
        number, targets = int(numbered[0, 0]), numbered[:, 1:]
        loss = loss_fn(logits, targets)
        return loss * wrong[number] if len(results) == 1 and number in wrong else loss

    with run.load(loss_fn=loss_of, check_loss=check_loss) as pipe:
        for step in range(3):
            run.clear()
            inputs, targets = run.batch(step)
            numbers = torch.arange(microbatches).repeat_interleave(SAMPLES)[:, None]
            heard, total = Said(None, time.monotonic()), None
            try:
                total = pipe.step(inputs, torch.cat([numbers, targets], 1)).item()
            except schedc.runtime.NonFiniteLoss as error:
                heard = said_to(error)
            finite = all(bool(gradient.isfinite().all()) for gradient in gradients_of(run.stages))
            results.append((heard, total, pipe.losses.tolist(), finite))
    return results


def twice_as_wide(calls: Iterator[int], after: int, module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    """What a stage gives, with another width than the next one takes from this forward on."""
    return torch.cat([output, output], -1) if next(calls) >= after else output


def misfit(rank: int, plans: list[Plan], culprit: int | None, after: int, timeout_s: float) -> Said:
    """Load plan `plans[rank]` and run two steps; the culprit's stages change their outputs' width after `after` forwards."""
    plan = plans[rank]
    try:
        stages = make_stages(plan, rank) if rank < plan.problem.ranks else {}
        if rank == culprit:
            for stage in stages.values():
                stage.register_forward_hook(partial(twice_as_wide, count(), after))
        with load(plan, stages, timeout_s=timeout_s) as pipe:
            for step in range(2):
                pipe.step(*make_batch(plan, step))
    except Exception as error:
        return said_to(error)
    return Said(None, time.monotonic())


def grow(rank: int, plan: Plan, steps: int, every: int) -> list[tuple[int, int]]:
    """Train; after each `every` steps, the process's resident bytes and the number of living tensors."""
    found = []
    with load(plan, make_stages(plan, rank)) as pipe:
        for step in range(steps):
            pipe.step(*make_batch(plan, step % 8))
            if (step + 1) % every == 0:
                living = living_tensors()
                pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1])
                found.append((pages * os.sysconf("SC_PAGE_SIZE"), living))
    return found
