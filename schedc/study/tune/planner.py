"""Plans of candidates: made here, or ahead in other processes, or kept in a folder from a search that ended before it was done.

A plan's file is named by a digest of all that the plan depends on: schedc's version, the problem, and how it is sought. What is
read there is verified, and compared with the problem; what is not valid is made again.
"""

from __future__ import annotations

import hashlib
import shutil
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from schedc import __version__
from schedc.compile.driver import compile_problem
from schedc.errors import Defect, InvalidInput, NoPlanFound
from schedc.formats.plan.plan_file import plan_json, read_plan
from schedc.io.outputs import write_atomically
from schedc.solvers.common.base import SearchSettings
from schedc.solvers.common.incumbent import Failure
from schedc.study.executors import LocalExecutor, dask_executor, run_tasks
from schedc.study.task import GRACE_S, CompileTask, ProblemSource, Status
from schedc.study.tune.first_plans import baseline_of
from schedc.verify.plan.checks import verify_plan

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from schedc.ir import Plan, Problem
    from schedc.study.executors import DaskExecutor

KEPT = "kept"
"""The folder of plans in that of `tune`, while its search is not done."""


class Planner:
    """Makes plans; as a context manager, its processes and what it does not keep are gone at the end of the block."""

    def __init__(self, kept: Path | None = None, *, processes: int = 1, cluster: str | None = None) -> None:
        """Make them so.

        Args:
            kept: the folder of plans, made with the first; None: none are kept.
            processes: how many are made at the same time on this machine; 1: here.
            cluster: the address of Dask's scheduler, whose workers make `processes` at the same time; None: this machine.
        """
        self.at_once, self._kept, self._cluster, self._stack = processes, kept, cluster, ExitStack()
        self._apart = processes > 1 or cluster is not None
        self._without: dict[Path, str] = {}
        self._executor: LocalExecutor | DaskExecutor | None = None
        if kept is None and self._apart:
            self._kept = Path(self._stack.enter_context(TemporaryDirectory(prefix="schedc-tune-")))

    def __enter__(self) -> Planner:
        """The planner itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End what runs elsewhere."""
        self._stack.close()

    def plan(self, problem: Problem, settings: SearchSettings, failures: list[Failure], *, baseline: bool) -> Plan:
        """The plan of a step that ends: of the known schedules and one list scheduler (`baseline`), or of the settings' method.

        Raises:
            NoPlanFound: there is no schedule.
            Unsupported: the method is not for the problem.
            Defect: a schedule breaks a rule.
        """
        path = self._path(problem, settings, baseline)
        if path is not None and path in self._without:
            raise NoPlanFound(self._without[path])
        known = None if path is None else _read(path, problem)
        if known is not None:
            return known
        if baseline:
            plan = baseline_of(problem, settings, failures)
        else:
            compiled = compile_problem(problem, settings)
            plan = compiled.plan
            failures += compiled.failures
        if path is not None and not settings.interruption.requested:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, plan_json(plan))
        return plan

    def ahead(self, asked: Sequence[tuple[Problem, SearchSettings, bool]], failures: list[Failure]) -> None:
        """Make these plans in other processes, if there are any, until all are there or somebody interrupts."""
        if not self._apart or not asked:
            return
        tasks: dict[str, CompileTask] = {}
        paths: dict[str, Path] = {}
        for problem, settings, baseline in asked:
            path = self._path(problem, settings, baseline)
            assert path is not None
            if not path.exists():
                source = ProblemSource(problem=problem, settings=SearchSettings(method=settings.method, limits=settings.limits))
                kill_s = None if settings.limits.time_s is None else 2 * settings.limits.time_s + GRACE_S
                path.parent.mkdir(parents=True, exist_ok=True)
                tasks[path.stem] = CompileTask(
                    source=source,
                    workers=settings.limits.workers,
                    kill_after_s=kill_s,
                    plan_path=str(path.resolve()),
                    maker=baseline_of if baseline else None,
                )
                paths[path.stem] = path
        if self._executor is None:
            self._executor = self._started()
        with closing(run_tasks(tasks, self._executor, keep=True)) as results:
            for rows in results:
                for key, row in rows:
                    if row.status in (Status.NO_PLAN, Status.INFEASIBLE, Status.REFUSED):
                        self._without[paths[key]] = row.error
                    elif row.status is Status.PLANNED and row.error:
                        defect = Defect(row.error)
                        failures.append(
                            Failure(method=row.won_by, error="Defect", message=row.error, place="another process", exception=defect)
                        )
                if asked[0][1].interruption.requested:
                    break

    def forget(self) -> None:
        """Nothing is kept any more: the search is done."""
        if self._kept is not None and self._kept.exists():
            shutil.rmtree(self._kept)

    def _started(self) -> LocalExecutor | DaskExecutor:
        if self._cluster is not None:
            return self._stack.enter_context(dask_executor(self._cluster))
        executor = LocalExecutor(self.at_once)
        self._stack.callback(executor.cancel, ())
        return executor

    def _path(self, problem: Problem, settings: SearchSettings, baseline: bool) -> Path | None:
        if self._kept is None:
            return None
        said = (__version__, problem, "baseline" if baseline else (settings.method, settings.limits))
        return self._kept / f"{hashlib.sha256(repr(said).encode()).hexdigest()}.json"


def _read(path: Path, problem: Problem) -> Plan | None:
    """The plan in a file, if there is one of this problem that is valid."""
    if not path.exists():
        return None
    try:
        plan = read_plan(path)
    except InvalidInput:  # an end of the process tore it, or somebody else wrote there
        return None
    return plan if plan.problem == problem and not verify_plan(plan) else None
