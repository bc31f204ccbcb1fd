"""One cell of a bench in a process of its own: `python -m schedc.study.bench.cell SOCKET`, started by `schedc.study.bench.run`.

The question is a pickled `CellRequest`, the answer a JSON object, the fields of a `CellAnswer`. A process of its own makes the peak
memory the cell's, and a crash no more than the cell's.
"""

from __future__ import annotations

import dataclasses
import json
import pickle
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, SchedcError
from schedc.io.process_memory import peak_memory_bytes
from schedc.io.serve import serve

if TYPE_CHECKING:
    from schedc.ir.problem import Problem
    from schedc.solvers.common.base import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CellRequest:
    """What to compile."""

    problem: Problem
    method: str
    limits: Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAnswer:
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


def answer_to(request: CellRequest) -> CellAnswer:
    """Compile the problem in this process."""
    from schedc.compile.fixed_layout import compile_problem

    try:
        compiled = compile_problem(request.problem, method=request.method, limits=request.limits)
    except SchedcError as error:
        why_not = str(error).removeprefix(f"{request.problem.name}: ")  # the row names the instance already
        return CellAnswer(peak_memory_bytes=peak_memory_bytes(), why_not=why_not, usage_error=isinstance(error, InvalidInput))
    certificate = compiled.plan.certificate
    return CellAnswer(
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


def main() -> None:
    """Answer the runner."""
    serve(int(sys.argv[1]), lambda question: json.dumps(dataclasses.asdict(answer_to(pickle.loads(question)))).encode())


if __name__ == "__main__":
    main()
