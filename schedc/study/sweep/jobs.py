"""A sweep file made into its jobs: every combination of base job, case, values of the grid and options of compile.

Each job has a key: a digest of all that its plan depends on, with schedc's version and the contents of the job's files. What a
journal knows of a job is found by its key.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from msgspec import Meta

from schedc import __version__
from schedc.compile.settings import DEFAULT_TIME_S
from schedc.errors import InvalidInput
from schedc.frontend.job_file import NAMING_FILES, JobFile
from schedc.frontend.job_source import JobSource, Override, python_override, source_of_file, with_overrides
from schedc.io.conform import Counts, Durations, Section, UnknownKey, conform
from schedc.io.input_file import read_bytes
from schedc.io.location import Location, show
from schedc.io.tables import parse_toml
from schedc.solvers.driver.registry import check_method
from schedc.study.task import GRACE_S, CompileTask, JobFiles, JobOptions, digest_of_files
from schedc.units import format_duration_ns, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

MOST_JOBS = 1_000_000
Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Gap: TypeAlias = Annotated[float, Meta(ge=0, lt=1)]
Seed: TypeAlias = Annotated[int, Meta(ge=0, lt=2**31)]
Work: TypeAlias = Annotated[float, Meta(ge=0)]


class CompileSection(Section, frozen=True, kw_only=True):
    """The options of `schedc compile`; a list stands for each of its values in turn."""

    method: Text | tuple[Text, ...] | None = None
    time_limit_ns: Durations | None = None
    gap: Gap | tuple[Gap, ...] | None = None
    seed: Seed | tuple[Seed, ...] | None = None
    workers: Counts | None = None
    deterministic_limit: Work | tuple[Work, ...] | None = None


class CaseSection(Section, frozen=True, kw_only=True):
    """A named set of settings."""

    name: Text
    set: Any = None


class SweepFile(Section, frozen=True, kw_only=True):
    """A sweep: jobs × cases × grid × options of compile."""

    job: Text | tuple[Text, ...]
    compile: CompileSection = CompileSection()
    set: Any = None
    cases: tuple[CaseSection, ...] = ()
    grid: Any = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """One job of a sweep, which becomes one row of the table."""

    columns: Mapping[str, object]
    """What the sweep says of it: `job`, `case`, each key that is set, `compile.` and each option."""
    key: str
    task: CompileTask


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """A sweep file that was read."""

    jobs: tuple[SweepJob, ...]
    columns: tuple[str, ...]
    """The names of the columns that say what each job is; a job may lack some of those that cases set."""
    files: tuple[Path, ...]
    """The sweep file and its base jobs."""


def read_sweep(path: Path) -> Sweep:
    """The sweep in the file.

    Raises:
        InvalidInput: the file, or a base job, cannot be read, is no TOML or has a wrong key; or two jobs are the same.
    """
    place = Location(str(path))
    file = conform(parse_toml(read_bytes(path), str(path)), SweepFile, place)
    fixed, grid = _settings(file.set, place / "set"), _grid(file.grid, place / "grid")
    _check_once([case.name for case in file.cases], place / "cases")
    cases: list[tuple[str | None, dict[str, Override]]] = [
        (case.name, _settings(case.set, place / "cases" / index / "set")) for index, case in enumerate(file.cases)
    ] or [(None, {})]
    options = _options(file, place)
    _check_apart(fixed, grid, cases, place)
    names = (file.job,) if isinstance(file.job, str) else file.job
    _check_once(names, place / "job")
    bases = {}
    for name in names:
        of_job = path.parent / name
        if of_job.exists() and not of_job.is_file():
            raise (place / "job").refuse(f"{show(name)}, no regular file", "a job file, as each of the jobs reads it")
        bases[name] = source_of_file(of_job)
    count = len(bases) * len(cases) * prod(map(len, grid.values())) * len(options)
    if count > MOST_JOBS:
        raise place.error(f"found {count} jobs, expected at most {MOST_JOBS}: each combination is one")
    _check_keys(bases.values(), [{**fixed, **of_case, **next(_combinations(grid))} for _, of_case in cases])
    made: dict[str, SweepJob] = {}
    digest = cache(digest_of_files)  # each set of files is read once
    for (name, base), (case, of_case), of_grid, (chosen, of_options) in product(bases.items(), cases, _combinations(grid), options):
        values = {**fixed, **of_case, **of_grid}
        said = {
            "job": name,
            **({} if case is None else {"case": case}),
            **{key: override.value for key, override in values.items()},
            **of_options,
        }
        job = _job(name, base, tuple(values.values()), chosen, said, digest)
        if job.key in made:
            twin = made[job.key].columns.get("case")
            raise place.error(f"found the same job twice, in the cases {show(twin)} and {show(case)}; expected each once")
        made[job.key] = job
    keys = (*fixed, *(key for _, settings in cases for key in settings), *grid)
    columns = ("job", *(("case",) if file.cases else ()), *dict.fromkeys(keys), *options[0][1])
    files = (path, *(base.path for base in bases.values() if base.path is not None))
    return Sweep(jobs=tuple(made.values()), columns=columns, files=files)


def _settings(table: Any, place: Location) -> dict[str, Override]:
    """The values that a table sets, by key; nested tables are the same as keys with dots."""
    return {key: _override(key, value, at) for key, value, at in _leaves(table, place)}


def _grid(table: Any, place: Location) -> dict[str, tuple[Override, ...]]:
    """The values of each key."""
    grid = {}
    for key, values, at in _leaves(table, place):
        if not isinstance(values, list) or not values:
            raise at.refuse(show(values), "a list of the values that the key takes in turn")
        _check_once(values, at)
        grid[key] = tuple(_override(key, value, at) for value in values)
    return grid


def _override(key: str, value: object, at: Location) -> Override:
    return replace(python_override(key, value), source=f"{at.file}: {at.path} = {show(value)}")


def _leaves(table: Any, place: Location, before: str = "", known: set[str] | None = None) -> Iterator[tuple[str, Any, Location]]:
    """Key, value and place of everything in nested tables that is no table; each key once.

    Within, `before` is the key of the table, and `known` has the keys that came.
    """
    known = set() if known is None else known
    if not isinstance(table, dict | None):
        raise place.refuse(show(table), "a table of keys of the job")
    for name, value in (table or {}).items():
        key, at = f"{before}{name}", place / name
        if isinstance(value, dict) and value:
            yield from _leaves(value, at, f"{key}.", known)
            continue
        if key in known:
            raise at.refuse(f"the key {key} twice", "it once, quoted or not")
        known.add(key)
        yield key, value, at


def _options(file: SweepFile, place: Location) -> list[tuple[JobOptions, dict[str, object]]]:
    """Every combination of the options' values, and what the table says of it."""
    lists: dict[str, tuple[Any, ...]] = {}
    for field in fields(JobOptions):
        given = getattr(file.compile, field.name)
        if given is not None:
            lists[field.name] = given if isinstance(given, tuple) else (given,)
            _check_once(lists[field.name], place / "compile" / _option_name(field.name))
    for method in lists.get("method", ()):
        try:
            check_method(method, is_open=True)
        except InvalidInput as error:
            raise (place / "compile" / "method").error(str(error)) from error
    chosen = []
    for values in product(*lists.values()):
        options = JobOptions(**dict(zip(lists, values, strict=True)))
        columns: dict[str, object] = {f"compile.{_option_name(name)}": getattr(options, name) for name in lists}
        if options.time_limit_ns is not None:
            columns["compile.time_limit"] = format_duration_ns(options.time_limit_ns, 9)
        chosen.append((options, columns))
    return chosen


def _option_name(field: str) -> str:
    return field.removesuffix("_ns")


def _job(
    name: str,
    base: JobSource,
    values: Sequence[Override],
    options: JobOptions,
    columns: Mapping[str, object],
    digest: Callable[[tuple[Path, ...]], str],
) -> SweepJob:
    naming = [value for value in values if len(value.keys) == 1 or value.keys[:2] in NAMING_FILES]
    document, _ = with_overrides(base.document, naming, base.place)
    named = [document[section].get(key) for section, key in NAMING_FILES if isinstance(document.get(section), dict)]
    assert base.path is not None
    # The job file, and those that it names with the values set.
    paths = (base.path, *(base.directory / each for each in named if isinstance(each, str)))
    keys = {value.keys for value in values}
    overlap = any(key[:length] in keys for key in keys for length in range(1, len(key)))
    # Alike however the file orders them; as they are where one sets a part of what another sets.
    in_order = values if overlap else sorted(values, key=lambda value: value.keys)
    content_sha256 = digest(paths)
    said = [
        __version__,
        name,
        content_sha256,
        [value.canonical for value in in_order],
        [(field.name, getattr(options, field.name)) for field in fields(JobOptions)],
    ]
    names = tuple(map(str, paths))
    files = JobFiles(path=str(base.path), overrides=tuple(values), options=options, names=names, content_sha256=content_sha256)
    task = CompileTask(source=files, workers=options.workers or 1, kill_after_s=_kill_after_s(base, values, options))
    return SweepJob(columns=columns, key=hashlib.sha256(json.dumps(said).encode()).hexdigest(), task=task)


def _kill_after_s(base: JobSource, values: Iterable[Override], options: JobOptions) -> float:
    """How long a job may take before its process is killed: generous, as it is for one that hangs."""
    limit_ns = options.time_limit_ns
    if limit_ns is None:
        document, _ = with_overrides(base.document, [value for value in values if value.keys[0] == "solver"], base.place)
        solver = document.get("solver")
        text = solver.get("time_limit") if isinstance(solver, dict) else None
        with suppress(ValueError):  # one for which the job will be refused
            limit_ns = parse_duration_ns(text) if isinstance(text, str) else None
    limit_s = DEFAULT_TIME_S if limit_ns is None else limit_ns / 1e9
    return 2 * limit_s + GRACE_S * (1 + (options.deterministic_limit or 0))


def _combinations(grid: Mapping[str, Sequence[Override]]) -> Iterator[dict[str, Override]]:
    for values in product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _check_once(values: Sequence[object], place: Location) -> None:
    texts = [json.dumps(value, sort_keys=True, default=str) for value in values]
    twice = next((value for index, value in enumerate(values) if texts[index] in texts[:index]), None)
    if twice is not None:
        raise place.refuse(f"{show(twice)} twice", "it once")


def _check_keys(bases: Iterable[JobSource], settings: Sequence[Mapping[str, Override]]) -> None:
    """Refuse a key that no job has: it would be the end of all jobs. Other mistakes are of one job, whose row says them."""
    for base, values in product(bases, settings):
        assert base.path is not None
        source = source_of_file(base.path, tuple(values.values()))
        try:
            conform(source.document, JobFile, source.place)
        except UnknownKey:
            raise
        except InvalidInput:
            continue


def _check_apart(
    fixed: Mapping[str, Override],
    grid: Mapping[str, Sequence[Override]],
    cases: Iterable[tuple[str | None, Mapping[str, Override]]],
    place: Location,
) -> None:
    """No key of the grid is set elsewhere; a case may set what is set for all jobs."""
    of_grid = {values[0].keys for values in grid.values()}
    for where, others in (("set", fixed), *(("cases", settings) for _, settings in cases)):
        for key, override in others.items():
            if override.keys in of_grid:
                raise (place / "grid").refuse(f"the key {key}, which [{where}] sets, too", "it in one of the two")
