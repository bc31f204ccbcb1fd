"""A plan's layout put into the job that leaves it open: as values that are set, or as a copy of the job's file.

Only what is "auto" in [pipeline] and [slices] is replaced (and the partition, where the placement is), so the job stays what it is
otherwise.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from schedc.errors import Defect, InvalidInput
from schedc.frontend.job import Job, checked_job
from schedc.frontend.job_file import AUTO, NAMING_FILES
from schedc.frontend.job_source import JobSource, Override, source_of_table, with_set
from schedc.ir import Plan, Problem
from schedc.ir.layout import SPLIT_HEAD

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def job_in_layout(source: JobSource, plan: Plan, said: str) -> Job:
    """The job in the plan's layout.

    `said` names the plan, for errors: `--layout plan.json`.

    Raises:
        InvalidInput: the job cannot be used, or the plan's layout is none that it leaves open.
    """
    table = source.document.get("pipeline")
    if not isinstance(table, dict):
        return checked_job(source)  # which says what is wrong
    unlike = InvalidInput(f"{said}: found a layout that {source.place.file} does not leave open, expected a plan of this job")
    if table.get("ranks") != plan.problem.ranks:
        raise unlike
    source = with_set(source, Override(("pipeline",), _chosen(table, plan), said))
    if _are_open(source.document):
        slices = _chosen_slices(source.document["slices"], plan)
        if slices:
            source = with_set(source, Override(("slices",), slices, said))
        else:
            source = replace(source, document={key: value for key, value in source.document.items() if key != "slices"})
    job = checked_job(source)
    if job.given_problem is None or _layout_of(job.problem) != _layout_of(plan.problem):
        raise unlike
    return job


def check_job_can_be_written(source: JobSource) -> None:
    """Of the job alone, before it is compiled.

    Raises:
        InvalidInput: a value is set in another file that the job names.
    """
    for section, overrides in source.in_files.items():
        raise InvalidInput(
            f"--write-job: found {overrides[0].source}, which sets a value of the file in {section}.path;"
            " expected it in that file, or not set"
        )


def job_text_in_layout(source: JobSource, plan: Plan, path: Path) -> bytes:
    """The job's file with the plan's layout, comments kept, for this path.

    Raises:
        InvalidInput: a value is set in another file that the job names.
        Defect: the text does not state the plan's problem.
    """
    import tomlkit

    check_job_can_be_written(source)
    document: Any = tomlkit.parse(source.content.decode("utf-8-sig"))
    for override in source.overrides:
        _set(document, override)
    for section, key in NAMING_FILES:
        name = document.get(section, {}).get(key)
        if name is not None and not os.path.isabs(name):
            rebased = os.path.relpath(source.directory / name, path.parent)
            if os.path.normpath(name) != rebased:
                document[section][key] = rebased
    pipeline = document["pipeline"]
    chosen = _chosen(pipeline.unwrap(), plan)
    for key in [key for key in pipeline if key not in chosen]:
        del pipeline[key]
    for key, value in chosen.items():
        if pipeline.get(key) != value:
            pipeline[key] = value
    if _are_open(document):
        slices = _chosen_slices(document["slices"].unwrap(), plan)
        for key in [key for key in document["slices"] if key not in slices]:
            del document["slices"][key]
        if slices:
            document["slices"]["lengths"] = slices["lengths"]
        else:
            del document["slices"]
    if "name" not in document:
        document["name"] = plan.name
    text = tomlkit.dumps(document)
    again = checked_job(source_of_table(tomllib.loads(text), directory=path.parent, name=plan.name))
    if again.given_problem != plan.problem:
        raise Defect(f"{plan.name}: the job with the layout written into it is not the one that was planned")
    return text.encode()


def _chosen(pipeline: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The table [pipeline] with the plan's layout where it has "auto"."""
    problem, made = plan.problem, dict(pipeline)
    stages = problem.body
    placement_is_open = pipeline.get("placement") == AUTO
    if pipeline.get("head") == AUTO:
        made["head"] = "split" if problem.has_split_head else "whole"
    if placement_is_open:
        ranks, chunks = [stage.rank for stage in stages], len(stages) // problem.ranks
        name = problem.placement.removesuffix(SPLIT_HEAD)
        named = name != "explicit"
        made["placement"] = name if named else ranks
        made.pop("chunks", None)
        if named and chunks > 1:
            made["chunks"] = chunks
    layers = [stage.layers for stage in stages]
    # Where recomputation or the head is open, stages are balanced as if none did; they would be others with what is written.
    is_open = AUTO in (pipeline.get("recompute"), pipeline.get("head"))
    implied = placement_is_open or (is_open and None not in layers)
    if pipeline.get("partition", AUTO if implied else None) == AUTO:
        made["partition"] = [bounds[1] - bounds[0] for bounds in layers if bounds is not None]
    if pipeline.get("recompute") == AUTO:
        again = [stage.recompute for stage in stages]
        made["recompute"] = again if any(again) and not all(again) else "full" if all(again) else "none"
    return made


def _are_open(document: Mapping[str, Any]) -> bool:
    """Whether the job leaves cuts into slices open."""
    slices = document.get("slices")
    return isinstance(slices, dict) and AUTO in (slices.get("count"), slices.get("lengths"))


def _chosen_slices(slices: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """The table [slices] with the plan's; empty: its microbatches are whole."""
    if not plan.problem.slices:
        return {}
    kept = {key: value for key, value in slices.items() if key not in ("count", "tokens", "granularity", "most")}
    return {**kept, "lengths": list(plan.problem.slices)}


def _layout_of(problem: Problem) -> object:
    return problem.slices, problem.paths, [(stage.rank, stage.layers, stage.recompute) for stage in problem.stages]


def _set(document: Any, override: Override) -> None:
    """Set a value in the text's document; `checked_job` has accepted it in the table."""
    inner = document
    for key in override.keys[:-1]:
        inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
    last = override.keys[-1]
    inner[int(last) if isinstance(inner, list) else last] = override.value
