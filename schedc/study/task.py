"""One task of a study, compiled in this process: a `CompileTask` in, a `CompileRow` out, both plain data."""

from __future__ import annotations

import hashlib
import resource
import time
from dataclasses import dataclass, replace
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.compile.driver import Compiled, compile_job, compile_problem
from schedc.compile.settings import search_settings
from schedc.errors import Infeasible, InvalidInput, NoPlanFound, SchedcError, Unsupported
from schedc.formats.plan.plan_file import plan_json
from schedc.io.child import forget_peak_memory, own_peak_memory_bytes, peak_memory_bytes
from schedc.io.outputs import write_atomically
from schedc.ir import Plan, Problem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from schedc.frontend.job_source import Override
    from schedc.solvers.common.base import SearchSettings
    from schedc.solvers.common.incumbent import Failure

GRACE_S = 60.0
"""How long a task may take beyond twice its time limit: methods look at the clock between their steps only."""


class Status(StrEnum):
    """What came of a task."""

    PLANNED = "planned"
    REFUSED = "refused"
    """The job, a setting or an option cannot be used."""
    INFEASIBLE = "infeasible"
    NO_PLAN = "no-plan"
    """No method found a plan within the limits."""
    DEFECT = "defect"
    """schedc refused its own result."""
    UNLIKE = "unlike"
    """Its files, or schedc's version, are others where it was to run."""
    CRASHED = "crashed"
    """Its process died at each attempt."""
    TIMED_OUT = "timed-out"
    """It took far longer than its time limit, and was killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of `schedc compile`; None: what the job says, or else the default."""

    method: str | None = None
    time_limit_ns: int | None = None
    gap: float | None = None
    seed: int | None = None
    workers: int | None = None
    deterministic_limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFiles:
    """A job in a file, which whoever compiles it reads, with options."""

    path: str
    """Of the job file."""
    overrides: tuple[Override, ...]
    """The values that are set in it."""
    options: JobOptions
    names: tuple[str, ...]
    """The job file, and those that it names."""
    content_sha256: str
    """Of the files as the study read them; see `digest_of_files`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemSource:
    """A problem, with a method and its limits."""

    problem: Problem
    settings: SearchSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileTask:
    """What to compile, and how."""

    source: JobFiles | ProblemSource
    workers: int
    """Search threads."""
    kill_after_s: float | None
    """How long it may take before its process is killed; None: as long as it likes."""
    plan_path: str | None = None
    """Where the plan is written, of a problem; None: nowhere, its row is all that is asked for."""
    maker: Callable[[Problem, SearchSettings, list[Failure]], Plan] | None = None
    """Of a problem: what makes the plan, and adds the failures of methods; None: the compiler."""
    version: str = __version__
    """Of schedc."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRow:
    """What came of it: the certificate of a plan, or why there is none. The fields are columns of a sweep's table."""

    status: Status
    won_by: str = ""
    """The method that made the schedule; of `auto`, the candidate chosen."""
    makespan_ns: int | None = None
    objective: str = ""
    objective_ns: int | None = None
    bound_ns: int | None = None
    bound: str = ""
    """Where the bound comes from."""
    scope: str = ""
    """What the bound ranges over: schedules of one layout, or layouts."""
    gap: float | None = None
    reproducible: bool | None = None
    ended: str = ""
    """Why the work ended."""
    seconds: float | None = None
    """From the reading of the job to its verified plan."""
    processor_seconds: float | None = None
    """Of all threads and processes that worked on it."""
    peak_memory_bytes: int | None = None
    """The most that its process had resident meanwhile, interpreter and libraries included. Of a problem, which has its process
    alone: of the largest, where that started others."""
    attempts: int = 1
    """How many processes began it; those before the last died."""
    error: str = ""
    """Why there is no plan; where there is one, which methods failed: defects of schedc."""


def row_of(task: CompileTask) -> CompileRow:
    """Compile in this process."""
    if isinstance(task.source, JobFiles):  # the compiler is loaded before the clock starts
        for name in ("schedc.frontend.job", "schedc.solvers.layout.exact"):
            import_module(name)
    forget_peak_memory()
    begun_s, begun_processor_s = time.perf_counter(), _processor_s()
    try:
        row = _unlike(task) or _row_of(task)
    except SchedcError as error:
        row = CompileRow(status=_status_of(error), error=str(error))
    return replace(
        row,
        seconds=time.perf_counter() - begun_s,
        processor_seconds=_processor_s() - begun_processor_s,
        peak_memory_bytes=peak_memory_bytes() if isinstance(task.source, ProblemSource) else own_peak_memory_bytes(),
    )


def digest_of_files(paths: Iterable[Path]) -> str:
    """The sha256 of the contents of files, in their order; a file that cannot be read counts as none."""
    total = hashlib.sha256()
    for path in paths:
        try:
            total.update(hashlib.sha256(path.read_bytes()).digest())
        except OSError:
            total.update(b"-")
    return total.hexdigest()


def _unlike(task: CompileTask) -> CompileRow | None:
    """The row where schedc or the job's files are others here than where the study was read."""
    source, error = task.source, ""
    if task.version != __version__:
        error = f"this process runs schedc {__version__}, and the sweep {task.version}; install the same everywhere"
    elif isinstance(source, JobFiles) and digest_of_files(map(Path, source.names)) != source.content_sha256:
        error = f"{source.path}: it, or a file that it names, is another one here than the sweep read; run the sweep again"
    return CompileRow(status=Status.UNLIKE, error=error) if error else None


def _row_of(task: CompileTask) -> CompileRow:
    failures: list[Failure] = []
    if task.maker is not None:
        assert isinstance(task.source, ProblemSource)
        plan, ended = task.maker(task.source.problem, task.source.settings, failures), ""
    else:
        compiled = _compiled(task)
        plan, ended = compiled.plan, str(compiled.ended)
        failures += compiled.failures
    if task.plan_path is not None:
        write_atomically(Path(task.plan_path), plan_json(plan))
    return _planned(plan, ended, failures)


def _compiled(task: CompileTask) -> Compiled:
    source = task.source
    if isinstance(source, ProblemSource):
        return compile_problem(source.problem, source.settings)
    from schedc.frontend.job import load_job

    job = load_job(source.path, source.overrides)
    options = source.options
    settings = search_settings(
        job,
        method=options.method,
        time_limit_s=None if options.time_limit_ns is None else options.time_limit_ns / 1e9,
        gap=options.gap,
        seed=options.seed,
        workers=task.workers,
        deterministic_limit=options.deterministic_limit,
    )
    return compile_job(job, settings)


def _planned(plan: Plan, ended: str, failures: Iterable[Failure]) -> CompileRow:
    certificate, made_by = plan.certificate, plan.made_by
    return CompileRow(
        status=Status.PLANNED,
        won_by=made_by.method,
        makespan_ns=certificate.makespan_ns,
        objective=certificate.objective,
        objective_ns=certificate.objective_ns,
        bound_ns=certificate.lower_bound_ns,
        bound=certificate.bound,
        scope=certificate.scope,
        gap=certificate.gap,
        reproducible=made_by.reproducible,
        ended=ended,
        error="; ".join(map(str, failures)),
    )


def _status_of(error: SchedcError) -> Status:
    if isinstance(error, Infeasible):
        return Status.INFEASIBLE
    if isinstance(error, NoPlanFound):
        return Status.NO_PLAN
    return Status.REFUSED if isinstance(error, InvalidInput | Unsupported) else Status.DEFECT


def _processor_s() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime
