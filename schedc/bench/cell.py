"""One cell of a bench in a process of its own: `python -m schedc.bench.cell TETHER`, started by `schedc.bench.run`.

Standard input: the pickled `Request`. Standard output: one JSON object, the fields of an `Answer`; whatever a solver prints goes to
standard error. A process of its own makes the peak memory the cell's, and a crash no more than the cell's. The tether is the
descriptor of a pipe that closes when the runner ends, however it ends; the cell then ends with it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pickle
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, SchedcError

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Limits

__all__ = ["Answer", "Request", "answer_to"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to compile."""

    problem: Problem
    method: str
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of it: either the fields of a certificate, or why there is none."""

    won_by: str = ""
    """The method that made the schedule; of `auto`, the candidate chosen."""
    makespan_ns: int | None = None
    objective_ns: int | None = None
    bound_ns: int | None = None
    bound: str = ""
    """Where the bound comes from."""
    gap: float | None = None
    seconds: float | None = None
    """Of the compile alone, without the start of the process."""
    peak_memory_bytes: int | None = None
    """Of the process, its interpreter and libraries included; of the largest, where it started others."""
    why_not: str = ""
    """Why there is no plan; where there is one, which methods failed beside the one that made it: defects of schedc."""
    usage_error: bool = False
    """Whether the request itself was wrong, so that asking for other instances is no use."""


def answer_to(request: Request) -> Answer:
    """Compile the problem in this process."""
    from schedc.compile import compile_problem

    try:
        compiled = compile_problem(request.problem, method=request.method, limits=request.limits)
    except SchedcError as error:
        why_not = str(error).removeprefix(f"{request.problem.name}: ")  # the row names the instance already
        return Answer(peak_memory_bytes=peak_memory_bytes(), why_not=why_not, usage_error=isinstance(error, InvalidInput))
    certificate = compiled.plan.certificate
    return Answer(
        won_by=compiled.plan.made_by.method,
        makespan_ns=certificate.makespan_ns,
        objective_ns=certificate.objective_ns,
        bound_ns=certificate.lower_bound_ns,
        bound=certificate.bound,
        gap=certificate.gap,
        seconds=compiled.seconds,
        peak_memory_bytes=peak_memory_bytes(),
        why_not="; ".join(map(str, compiled.failures)),
    )


def peak_memory_bytes() -> int:
    """The most memory that this process, or one it started and waited for, has had resident."""
    unit = 1 if sys.platform == "darwin" else 1024
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    status = Path("/proc/self/status")
    if status.exists():  # Linux passes ru_maxrss on through exec, so there it may be that of the process that started this one
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        own = int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else own
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit)


def end_with(tether: int) -> None:
    """Kill this process and those it started once nobody holds the other end of the pipe."""
    os.read(tether, 1)
    os.killpg(os.getpgrp(), signal.SIGKILL)


def main() -> None:
    """Answer the request on standard input."""
    threading.Thread(target=end_with, args=(int(sys.argv[1]),), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # solvers' libraries write to descriptor 1 behind Python's back
    request = pickle.load(sys.stdin.buffer)
    json.dump(dataclasses.asdict(answer_to(request)), answers)
    answers.close()


if __name__ == "__main__":
    main()
