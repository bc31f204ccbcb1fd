"""What the rank processes of the adapting tests run: training with a scripted monitor, beside the same model without a pipeline."""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

import torch.distributed as dist
from inputs.plans import plan_of
from inputs.problems import make_problem

import schedc.runtime.adapt.adapting
from runs.harness import Run, load, make_stages, noting
from schedc.errors import InvalidInput
from schedc.runtime.adapt.adapting import Adaptation, adapting
from schedc.runtime.adapt.leading import Hysteresis, PlanStore
from schedc.runtime.adapt.proposer import Proposer
from schedc.runtime.execution.online import earliest_ns
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.ir.conditions import Conditions
    from schedc.ir.plan import Plan

EAGER = Hysteresis(cost_s=0.0, expected_steps=1, least_gain=0.0, rest_steps=2)
"""Any gain pays: the plans of tests take nanoseconds."""
MOST_S = 200.0
STEP_S = 0.005


class Fault(NamedTuple):
    """What goes wrong, on the leader unless it says otherwise."""

    way: str = "none"
    """`kill` or `stop` the proposer, `garble` or `drop` a piece of the plan, `refuse` all plans; `die`: rank 1 ends once it has
    offered a plan, `fall`: rank `after`, `after_s` from the begin."""
    after: int = 0
    """How many swaps are settled when it does; the first."""
    after_s: float = 0.0
    """How long after that."""


NO_FAULT = Fault()


class Scripted:
    """A monitor that says what it is to, by how many swaps have been settled."""

    def __init__(self, script: Sequence[Conditions | None]) -> None:
        self.adaptation: Adaptation | None = None
        self._script = script

    def conditions(self) -> Conditions | None:
        swaps = [] if self.adaptation is None else self.adaptation.swaps
        settled = sum(swap.state != "pending" for swap in swaps)
        return self._script[min(settled, len(self._script) - 1)]


class Signalling(Scripted):
    """One that may be asked at any time."""

    def __init__(self, script: Sequence[Conditions | None]) -> None:
        super().__init__(script)
        self.changed = threading.Event()


class Garbled(PlanStore):
    """Spoils the first plan that it publishes."""

    def __init__(self, way: str, *given: Any) -> None:
        super().__init__(*given)
        self.way = way

    def wake(self, rank: int, number: int) -> None:
        if number == 1 and self._rank == 0 and self._store.check(["plan/1/0"]):
            if self.way == "drop":
                self._store.delete_key("plan/1/0")
            else:
                self._store.set("plan/1/0", "{}")
        super().wake(rank, number)


def adapt_while_training(
    rank: int,
    plan: Plan,
    scripts: Sequence[Sequence[Conditions | None]],
    settled: int,
    fault: Fault = NO_FAULT,
    more_steps: int = 5,
    most_s: float = MOST_S,
    known: str | None = None,
    choosing: int | None = None,
    kind: type[Scripted] = Scripted,
) -> dict[str, Any]:
    """Train until this many swaps are settled, or for so long, and then a few steps more.

    Args:
        rank: this one.
        plan: the job's.
        scripts: of each rank, what its monitor says after how many settled swaps.
        settled: how many swaps to wait for; 0: `more_steps` alone.
        fault: what goes wrong.
        more_steps: after them.
        most_s: how long to wait for them.
        known: the folder of a family, which the leader alone is given.
        choosing: the rank that chooses inside the step; None: none.
        kind: of the monitors.

    Returns:
        The largest relative error of a gradient, the digests of the plans that ran, each swap's state, step and reason, warnings,
        the longest call of `between_steps`, how many steps there were, and which threads have simulated plans of ranks that choose.
    """
    run, monitor = Run(plan), kind(scripts[rank])
    worst, longest_s, threads = 0.0, 0.0, list[str]()
    names = [plan.made_by.method]

    def simulated(plan: Plan, rank: int) -> list[int]:
        threads.append(threading.current_thread().name)
        return earliest_ns(plan, rank)

    store = partial(Garbled, fault.way) if fault.way in ("garble", "drop") else PlanStore
    with (
        patch.object(schedc.runtime.adapt.adapting, "PlanStore", store),
        warnings.catch_warnings(record=True) as heard,
        patch("schedc.runtime.execution.online.earliest_ns", simulated),
        run.load(timeout_s=20, kind=ChoosingPipe if rank == choosing else Pipe) as pipe,
        adapting(
            pipe,
            monitor,
            known=known if rank == 0 else None,
            hysteresis=EAGER,
            look_s=0.01,
            patience_s=5.0 if fault.way == "stop" else 60.0,
        ) as adaptation,
    ):
        warnings.simplefilter("always")
        monitor.adaptation = adaptation
        if fault.way == "refuse":
            pipe.hooks.check_swap = _refuse  # type: ignore[method-assign]
        pid = None if adaptation.proposer is None else adaptation.proposer.pid
        signals = [signal.SIGKILL if fault.way == "kill" else signal.SIGSTOP] if fault.way in ("kill", "stop") else []
        if fault.way == "fall" and rank == fault.after:
            threading.Timer(fault.after_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
        begun_s, left = time.monotonic(), more_steps
        step = 0
        while left:
            worst = max(worst, train_on(run, step, names))
            at_s = time.perf_counter()
            adaptation.between_steps()
            longest_s = max(longest_s, time.perf_counter() - at_s)
            if fault.way == "die" and rank == 1 and adaptation.swaps:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(STEP_S)
            step += 1
            done = sum(swap.state != "pending" for swap in adaptation.swaps)
            if pid is not None and signals and done >= fault.after:
                threading.Timer(fault.after_s, os.kill, (pid, signals.pop())).start()
            late = time.monotonic() - begun_s > most_s or (
                fault.way in ("kill", "stop", "refuse") and any("no more" in str(each.message) for each in heard)
            )
            # `done` is the same everywhere after the same step; the rest is not, so only the first rank looks at it
            left -= done >= settled or bool(pipe.groups.exchange(late)[0])
    return {
        "error": worst,
        "plans": names,
        "swaps": [(swap.state, swap.step, swap.reason) for swap in adaptation.swaps],
        "warnings": [f"{warning.category.__name__}: {warning.message}" for warning in heard],
        "longest_s": longest_s,
        "steps": step,
        "same": pipe.plan == plan,
        "pid": pid,
        "threads": threads,
    }


def _refuse(running: Plan, other: Plan) -> None:
    raise InvalidInput("this rank refuses all plans")


def train_on(run: Run, step: int, names: list[str]) -> float:
    """A step beside the whole model: the largest error of a gradient. `names` are the methods of the plans that have run."""
    run.clear()
    run.step(step)
    if run.pipe.plan.made_by.method != names[-1]:
        names.append(run.pipe.plan.made_by.method)
    return max(run.gradient_errors())


_STAYS: list[Any] = []


def start_and_stay(rank: int) -> int:
    """The process number of a proposer that is not closed."""
    problem = make_problem(1, 2)
    _STAYS.append(Proposer(plan_of(problem, constructive("gpipe")(problem)), 60.0))
    pid: int = _STAYS[-1].pid
    return pid


def adapt_wrongly(rank: int, plan: Plan, known: str) -> list[str]:
    """What `adapting` says to a leader that there is not, to a pipe with a swap_group, and, on the leader, to another job's family.

    Nothing is started then.
    """
    lines = list[str]()
    alone = [dist.new_group([other]) for other in range(2)][rank]
    for swap_group in (None, alone):
        with load(plan, make_stages(plan, rank), timeout_s=20, swap_group=swap_group) as pipe:
            for options in ({"leader": 2}, {"known": known}) if swap_group is None else ({},):
                with noting(lines):
                    adapting(pipe, None, **options).close()
    return lines
