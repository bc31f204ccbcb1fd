"""What the rank processes of `benchmarks/adapting/kills.py` run: jobs in which a process is killed while something is under way."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import schedc.runtime
from runs.adapt_runs import EAGER, STEP_S, train_on
from runs.exchange_runs import exchanging
from runs.harness import Run, noting
from schedc.runtime.adapt.adapting import Adaptation, adapting
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.adapt.monitoring.link_state import LinkWatch
from schedc.runtime.adapt.places import Places
from schedc.runtime.adapt.state_transfer.exchange import carried, move
from schedc.runtime.adapt.state_transfer.pieces import restore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from schedc.ir.conditions import Conditions
    from schedc.ir.plan import Plan
    from schedc.runtime.adapt.proposer import Proposer, ProposerAnswer

MOST_S = 60.0
LOOK_S = 0.0002


class Kill(NamedTuple):
    """Who is killed, and when."""

    victim: int | None
    """A rank; None: the proposer."""
    phase: str
    """`monitor`, `proposal`, `swap` or `exchange`: it is waited for."""
    after_s: float
    """From the begin of training: then it is waited for the phase."""
    delay_s: float
    """From then on."""
    diary: str
    """The file that says what was under way when the signal was sent, and when that was."""


def watch(kill: Kill, pid: int, under_way: Callable[[], set[str]]) -> None:
    """Send the signal from a thread of its own."""

    def run() -> None:
        time.sleep(kill.after_s)
        while kill.phase not in under_way():
            time.sleep(LOOK_S)
        time.sleep(kill.delay_s)
        found = sorted(under_way())
        Path(kill.diary).write_text(json.dumps({"under_way": found, "at_s": time.time()}), encoding="utf-8")
        os.kill(pid, signal.SIGKILL)

    threading.Thread(target=run, daemon=True).start()


class Asked:
    """Whether the leader waits for its proposer."""

    def __init__(self, proposer: Proposer) -> None:
        self.waits = False
        self._ask, self._answer = proposer.ask, proposer.answer
        proposer.ask, proposer.answer = self.ask, self.answer  # type: ignore[method-assign]

    def ask(self, running_sha256: str, conditions: Conditions) -> None:
        """As `Proposer.ask`."""
        self.waits = True
        self._ask(running_sha256, conditions)

    def answer(self) -> ProposerAnswer | None:
        """As `Proposer.answer`."""
        answer = self._answer()
        self.waits = self.waits and answer is None
        return answer


class Pinging(Monitor):
    """A monitor that measures, and asks for pings all the time; what it says is written down before."""

    def __init__(self, script: Sequence[Conditions | None]) -> None:
        super().__init__(least_gap_s=0.0)
        self.adaptation: Adaptation | None = None
        self._script = script

    def conditions(self) -> Conditions | None:
        """What it is to say, by how many swaps have been settled."""
        assert self.adaptation is not None
        settled = sum(swap.state != "pending" for swap in self.adaptation.swaps)
        return self._script[settled % len(self._script)]

    @property
    def awaits_pings(self) -> bool:
        """Whether pings have been asked for that have not all come."""
        return any(links.awaits_pings for links in list(self._peers.values()))


def adapt_until_killed(rank: int, plan: Plan, script: Sequence[Conditions | None], kill: Kill, timeout_s: float) -> dict[str, Any]:
    """Train, ping, propose and swap without a pause, until a rank is killed, or a few steps longer than the proposer lives.

    Returns:
        The largest relative error of a gradient, the line that it ended with (None: it did not), when, warnings, and the methods of
        the plans that ran.
    """
    LinkWatch.wants_ping = property(lambda _: True, lambda _, __: None)  # type: ignore[assignment]
    run, monitor = Run(plan), Pinging(script)
    worst, lines, names = 0.0, list[str](), [plan.made_by.method]
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        with (
            noting(lines),
            run.load(timeout_s=timeout_s, observe=monitor, wrap=monitor.wrap) as pipe,
            adapting(pipe, monitor, hysteresis=EAGER, look_s=0.01) as adaptation,
        ):
            monitor.adaptation = adaptation
            pids = pipe.groups.exchange(os.getpid())
            if rank == 0:
                assert adaptation.proposer is not None
                pid = adaptation.proposer.pid if kill.victim is None else pids[kill.victim]
                asked = Asked(adaptation.proposer)
                watch(kill, pid, lambda: _under_way(monitor, adaptation, asked))
            begun_s, left, step = time.monotonic(), 5, 0
            while left:
                worst = max(worst, train_on(run, step, names))
                adaptation.between_steps()
                time.sleep(STEP_S)
                step += 1
                ending = adaptation.ended is not None or time.monotonic() - begun_s > MOST_S
                left -= bool(pipe.groups.exchange(ending)[0])
        monitor.close()
    line = lines[0] if lines else None
    return {"worst": worst, "line": line, "at_s": time.time(), "warnings": [str(each.message) for each in heard], "plans": names}


def _under_way(monitor: Pinging, adaptation: Adaptation, asked: Asked) -> set[str]:
    """What the leader sees: pings that have been asked for, a plan that is made, published or taken, one that is offered."""
    found = {"monitor"} if monitor.awaits_pings else set()
    if adaptation.swaps and adaptation.swaps[-1].state == "pending":
        found.add("swap")
    elif asked.waits or len(adaptation.published) > len(adaptation.swaps):
        found.add("proposal")
    return found


def exchange_until_killed(rank: int, plan: Plan, steps: int, timeout_s: float, kill: Kill) -> tuple[list[float], str, float]:
    """Train, with an exchange of all places after each step; the losses, the line that it ended with, and when."""
    if rank == kill.victim:
        main = threading.main_thread().ident
        assert main is not None
        watch(kill, os.getpid(), lambda: _called(main))
    losses, line = exchanging(rank, plan, steps, timeout_s)
    return losses, line, time.time()


def _called(thread: int) -> set[str]:
    """What the thread is in: an exchange, and which part of it; the load after it; a step."""
    names = {
        move.__code__: "exchange",
        Places.groups.__code__: "(connects)",
        carried.__code__: "(carries)",
        restore.__code__: "(restores)",
        schedc.runtime.load.__code__: "load",
        schedc.runtime.Pipe.step.__code__: "step",
    }
    found: set[str] = set()
    frame = sys._current_frames().get(thread)
    while frame is not None:
        found |= {names[frame.f_code]} if frame.f_code in names else set()
        frame = frame.f_back
    return found
