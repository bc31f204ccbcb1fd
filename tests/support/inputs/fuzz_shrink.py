"""A job on which something fails made smaller as long as the same thing fails: keys dropped, stages removed, numbers lowered.

`shrink` takes a job of `fuzz_jobs` and the question whether a job fails in the same way; it gives the smallest job found. It knows
little of what makes a job valid: a job that the front end refuses fails in another way, and is not taken.
"""

from __future__ import annotations

import copy
import re
from typing import TYPE_CHECKING, Any

from schedc.lower.placement import place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from inputs.fuzz_jobs import Job

PER_RANK = (("memory", "limit"), ("memory", "capacity"), ("memory", "reserve"), ("memory", "in_flight"))


def shrink(job: Job, fails: Callable[[Job], bool], *, most_tries: int = 600) -> Job:
    """The smallest job found that still fails; `fails` is asked at most so often."""
    tries, progress = 0, True
    while progress:
        progress = False
        for smaller in _smaller(job):
            tries += 1
            if tries > most_tries:
                return job
            if fails(smaller):
                job, progress = smaller, True
                break
    return job


def _smaller(job: Job) -> Iterator[Job]:
    """Jobs that are a little smaller, the boldest first."""
    for path in _paths(job):
        if len(path) == 1 and path[0] not in ("pipeline", "profile"):
            yield _without(job, path)
    yield from _fewer_microbatches(job)
    if isinstance(job["pipeline"].get("placement"), list):
        for stage in range(len(job["pipeline"]["placement"])):
            yield from _fewer_stages(job, stage)
    elif job["pipeline"].get("placement") not in ("bidirectional", "auto"):
        pipeline = job["pipeline"]
        placed = place(pipeline.get("placement", "unidirectional"), pipeline["ranks"], pipeline.get("chunks", 1))
        explicit = copy.deepcopy(job)
        explicit["pipeline"]["placement"] = list(placed.rank_of_stage)
        explicit["pipeline"].pop("chunks", None)
        for stage in range(len(placed.rank_of_stage)):
            yield from _fewer_stages(explicit, stage)
    for path in _paths(job):
        if len(path) > 1:
            yield _without(job, path)
    for path in _paths(job):
        for simpler in _simpler(_at(job, path)):
            changed = copy.deepcopy(job)
            _at(changed, path[:-1])[path[-1]] = simpler
            yield changed


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where everything below the value is, from outside in."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, entry in entries:
        yield (*path, key)
        yield from _paths(entry, (*path, key))


def _at(job: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        job = job[key]
    return job


def _without(job: Job, path: tuple[Any, ...]) -> Job:
    changed = copy.deepcopy(job)
    del _at(changed, path[:-1])[path[-1]]
    return changed


def _fewer_microbatches(job: Job) -> Iterator[Job]:
    count = job["pipeline"]["microbatches"]
    for fewer in sorted({1, count // 2, count - 1} - {0, count}):
        changed = copy.deepcopy(job)
        changed["pipeline"]["microbatches"] = fewer
        for of_stages in changed["profile"].values():
            for own in of_stages if isinstance(of_stages, list) else ():
                if isinstance(own, list):
                    del own[fewer:]
        del changed.get("extra", {}).get("lengths", [])[fewer:]
        yield changed


def _fewer_stages(job: Job, stage: int) -> Iterator[Job]:
    """The job with an explicit placement less one stage; less the stage's rank, too, if it was its only one."""
    changed = copy.deepcopy(job)
    placement = changed["pipeline"]["placement"]
    stages, rank = len(placement), placement.pop(stage)
    if not placement:
        return
    for section in ("profile", "data_parallel", "memory", "pipeline"):
        for key, values in changed.get(section, {}).items():
            per_rank = (section, key) in PER_RANK
            if isinstance(values, list) and len(values) == stages and not per_rank and key != "placement":
                del values[stage]
    if rank not in placement:
        _drop_rank(changed, rank)
    _drop_layer(changed, stage)
    yield changed


def _drop_layer(job: Job, layer: int) -> None:
    """Take a layer that is a stage out of the graph; what it joined may fall apart."""
    begin = 0
    for module in list(job.get("module", ())):
        end = begin + module["layers"]
        if begin <= layer < end:
            module["layers"] -= 1
            if not module["layers"]:
                job["module"].remove(module)
                for other in job["module"]:
                    if module["name"] in other.get("inputs", ()):
                        other["inputs"].remove(module["name"])
        begin = end
    edges = [edge for edge in job.get("edge", ()) if layer not in (edge["source"], edge["destination"])]
    for edge in edges:
        edge |= {end: edge[end] - (edge[end] > layer) for end in ("source", "destination")}
    if "edge" in job:
        job["edge"] = edges


def _drop_rank(job: Job, rank: int) -> None:
    """Take out a rank that has no stage."""
    pipeline, topology = job["pipeline"], job.get("topology", {})
    pipeline["placement"] = [other - (other > rank) for other in pipeline["placement"]]
    for section, key in PER_RANK:
        values = job.get(section, {}).get(key)
        if isinstance(values, list) and len(values) == pipeline["ranks"]:
            del values[rank]
    pipeline["ranks"] -= 1
    if "sites" in topology:
        site = next(index for index in range(len(topology["sites"])) if sum(topology["sites"][: index + 1]) > rank)
        topology["sites"][site] -= 1
        if not topology["sites"][site]:
            del topology["sites"][site]
    links = [link for link in topology.get("link", ()) if rank not in link["ranks"]]
    for link in links:
        link["ranks"] = [other - (other > rank) for other in link["ranks"]]
    if "link" in topology:
        topology["link"] = links


def _simpler(value: Any) -> Iterator[Any]:
    """Simpler values of the same kind."""
    if isinstance(value, str):
        quantity = re.fullmatch(r"(\d+)( ?)(\w+)", value)
        if quantity:
            number, unit = int(quantity[1]), quantity[3]
            for smaller in sorted(each for each in {0, 1, number // 10**6, number // 2, number - 1} if 0 <= each < number):
                yield f"{smaller} {unit}"
            if unit in ("us", "ms", "s"):
                yield f"{number} ns"
        elif not re.match(r"\d", value) and value not in ("unidirectional", "greedy", "schedc", "makespan"):
            yield from ("x", "unidirectional", "makespan")
    elif isinstance(value, list) and value and all(isinstance(entry, str) for entry in value):
        yield from dict.fromkeys(value)
    elif isinstance(value, int) and not isinstance(value, bool) and value > 0:
        yield from sorted({0, 1, value // 2, value - 1} - {value})
