"""Random valid jobs over everything that the job file can say, as nested dicts, and their text.

A job is a dict shaped like its TOML file. Its key `extra`, written as a comment, has what a job file cannot say but a plan can:
other names for trunks (two may get the same one), durations that differ from microbatch to microbatch, other links (the number of
those that `with_shared_links` draws); and the contents of the files that the job names: profile, topology, lengths and measured
times of lengths, which `write_job` writes beside it.
"""

from __future__ import annotations

import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from inputs.fuzz_sections import (
    NAMES,
    Draw,
    draw_data_parallel,
    draw_layers,
    draw_memory,
    draw_pipeline,
    draw_profile,
    draw_topology,
)
from schedc.lower.placement import place

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from schedc.ir.layout import Placement

Job = dict[str, Any]

EXTRA = "# extra: "
TRUNK_NAMES = ("east", "[red]", "ünï→", "site0>site1", "0>1", "collectives of rank 0", "")


def job_text(job: Job) -> str:
    """The job's TOML; `extra` is its first line, a comment."""
    lines = [EXTRA + json.dumps(job["extra"])] if job.get("extra") else []
    lines += [f"{key} = {_value(value)}" for key, value in job.items() if not isinstance(value, dict)]
    for name, section in job.items():
        if isinstance(section, dict) and name != "extra":
            lines += [f"[{name}]", *(f"{key} = {_value(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


def read_extra(text: str) -> dict[str, Any]:
    """What the comment of a job's text says; empty where there is none."""
    found = next((line for line in text.splitlines() if line.startswith(EXTRA)), None)
    return {} if found is None else dict(json.loads(found.removeprefix(EXTRA)))


def write_job(text: str, directory: Path) -> Path:
    """The job in this directory, with the files that it names; those of another job are overwritten or away."""
    extra = read_extra(text)
    files = {
        "fuzz.toml": text,
        "measured.json": json.dumps(extra["profile"]) if "profile" in extra else None,
        "topology.toml": job_text(extra["topology"]) if "topology" in extra else None,
        "lengths.csv": lengths_text(extra["lengths"]) if "lengths" in extra else None,
        "times.csv": "".join(["length,duration\n", *(f"{length},{time}\n" for length, time in extra.get("times", ()))]),
    }
    for name, content in files.items():
        if content is None:
            (directory / name).unlink(missing_ok=True)
        else:
            (directory / name).write_text(content, encoding="utf-8")
    return directory / "fuzz.toml"


def lengths_text(lengths: list[list[int]]) -> str:
    """The CSV of each microbatch's sequences: in the short form where each has one."""
    if all(len(own) == 1 for own in lengths):
        return "".join(["length\n", *(f"{own[0]}\n" for own in lengths)])
    rows = [f"{microbatch},{length}\n" for microbatch, own in enumerate(lengths) for length in own]
    return "".join(["microbatch,length\n", *rows])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(entry)}" for key, entry in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else str(value)


def random_job(
    random: Random,
    *,
    most_ops: int = 40,
    may_be_open: bool = False,
    may_overlap: bool = False,
    may_be_graph: bool = False,
    may_be_sharded: bool = False,
) -> Job:
    """A valid job whose step has at most `most_ops` blocks; feasible but for a few whose memory is below one microbatch.

    Where it `may_be_open`, a few leave placement, partition or recomputation to the compiler; they have no one Problem. Where it
    `may_overlap`, steps of some do. Where it `may_be_graph`, layers of some are a graph, or microbatches are in slices. Where it
    `may_be_sharded`, weights of some are.
    """
    draw = Draw(random)
    while True:
        pipeline, placed = draw_pipeline(draw)
        if 3 * pipeline["microbatches"] * max(map(len, placed.paths)) <= most_ops:
            break
    bandwidth = draw.chance(0.5)
    extra: dict[str, Any] = {}
    job: Job = {"extra": extra, "pipeline": pipeline}
    if draw.chance(0.3):
        job = {"extra": extra, "name": random.choice(NAMES), "pipeline": pipeline}
    if draw.chance(0.25 if may_be_open else 0.1) and pipeline["semantics"] != "torch":
        extra["profile"] = draw_layers(draw, pipeline, placed, bandwidth)
        job["profile"] = {"path": "measured.json"}
        held = None
    else:
        job["profile"], held = draw_profile(draw, pipeline, placed, bandwidth)
    if held is not None and any(held) and draw.chance(0.6):
        job["memory"] = draw_memory(draw, pipeline["ranks"], placed, held)
    topology, crossed = draw_topology(draw, pipeline["ranks"], placed, bandwidth)
    if topology and draw.chance(0.1):
        extra["topology"], topology = topology, {"path": "topology.toml"}
    if topology:
        job["topology"] = topology
    if draw.chance(0.3):
        job["data_parallel"] = draw_data_parallel(draw, placed, crossed)
    if draw.chance(0.7):
        job["objective"] = {"minimize": random.choice(["makespan", "stage-span", "stage-span"])}
    if draw.chance(0.1):
        job["solver"] = {"method": "greedy", "gap": 0.01, "seed": 3, "time_limit": "1 s"}
    if crossed and draw.chance(0.5):
        names = [*TRUNK_NAMES, *(f"{a}>{b}" for a, b in placed.crossed())]
        if draw.chance(0.5):
            names = [random.choice(names)]  # one for all
        extra["trunks"] = {f"site{a}>site{b}": random.choice(names) for a, b in crossed}
    if draw.chance(0.1) and pipeline["semantics"] != "torch":
        extra["vary"], extra["scale_ns"] = random.randrange(1000), draw.scale_ns
    if draw.chance(0.15):
        job["devices"] = {"speed": [random.choice([1, 1, 0.5, 0.7, 3]) for _ in range(pipeline["ranks"])]}
    if draw.chance(0.2) and "memory" not in job and pipeline["semantics"] != "torch":
        stages = len(placed.rank_of_stage)
        pipeline["recompute"] = "full" if draw.chance(0.5) else [draw.chance(0.5) for _ in range(stages)]
    _differing_microbatches(draw, job)
    if may_be_open and pipeline.get("placement") != "bidirectional" and pipeline["semantics"] != "torch":
        _left_open(draw, job, most_ops)
    if may_overlap and draw.chance(0.2):
        _overlapping(draw, job, placed, bandwidth)
    if may_be_graph and draw.chance(0.35) and _may_be_graph(job, placed):
        if draw.chance(0.7):
            _graph(draw, job, len(placed.rank_of_stage))
        if draw.chance(0.5) and "lengths" not in job:
            _slices(draw, job, len(placed.rank_of_stage), most_ops)
    if may_be_sharded and draw.chance(0.2) and _may_be_sharded(job):
        while held and any(held) and {"in_flight"} >= {*job.get("memory", ())} and not {"lengths", "recompute"} & {*job, *pipeline}:
            job["memory"] = draw_memory(draw, pipeline["ranks"], placed, held)  # in bytes
        _sharded(draw, job, len(placed.rank_of_stage))
    is_of_one_problem = "auto" not in pipeline.values() and "mode" not in pipeline and pipeline["semantics"] != "torch"
    if is_of_one_problem and draw.chance(0.15):
        extra["shared"] = random.randrange(1000)
    if pipeline["semantics"] == "schedc":
        del pipeline["semantics"]
    return {key: value for key, value in job.items() if value or key != "extra"}


def _differing_microbatches(draw: Draw, job: Job) -> None:
    """Sequences of different lengths, or durations for each microbatch; the compiler may order them, whether they differ or not."""
    random, pipeline, profile = draw.random, job["pipeline"], job["profile"]
    microbatches = pipeline["microbatches"]
    if draw.chance(0.15):
        pipeline["microbatch_order"] = "auto"
    way = random.choice(["alike"] * 7 + ["lengths", "lengths", "durations"])
    if way == "alike" or "vary" in job["extra"] or pipeline["semantics"] == "torch":
        return
    if way == "durations" and "path" not in profile:
        placed = place(pipeline.get("placement", "unidirectional"), pipeline["ranks"], pipeline.get("chunks", 1))
        for key in ("forward", "backward_input", "backward_weight", "backward"):
            if key in profile and draw.chance(0.7):
                profile[key] = [
                    [draw.duration() for _ in range(microbatches)] if draw.chance(0.8) else draw.duration()
                    for _ in placed.rank_of_stage
                ]
    elif way == "lengths":
        length = random.choice([1, 4, 100, 4096])
        most = 1 if "memory" in job or draw.chance(0.5) else 3  # sequences of a microbatch; the profile's sizes count for all
        job["extra"]["lengths"] = [[random.randint(1, length) for _ in range(random.randint(1, most))] for _ in range(microbatches)]
        job["lengths"] = {"path": "lengths.csv", "profile_length": length}
        if draw.chance(0.3):
            job["extra"]["times"] = [[n, draw.duration(1)] for n in (length, 2 * length, 3 * length)]
            job["lengths"]["fit"] = "times.csv"
        elif draw.chance(0.7):
            job["lengths"]["quadratic"] = random.choice([0, 0.25, 0.3, 0.5, 1])


def _left_open(draw: Draw, job: Job, most_ops: int) -> None:
    """Some of the layout left to the compiler: the recomputation; where there are layers, partition and placement, too."""
    random, pipeline, profile = draw.random, job["pipeline"], job["extra"].get("profile")
    if not draw.chance(0.08 if profile is None else 0.6):
        return
    keys = ["recompute"] if profile is None else ["recompute", "partition", "placement", "all"]
    opened = random.choice(keys)
    job["extra"].pop("trunks", None)  # these are of one Problem
    job["extra"].pop("vary", None)
    if opened in ("recompute", "all") and draw.chance(0.8 if opened == "all" else 1.0):
        pipeline["recompute"] = "auto"
    if opened in ("partition", "all"):
        pipeline["partition"] = "auto"
    if opened in ("placement", "all"):
        pipeline["placement"] = "auto"
        chunks = random.choice([1, 2, 2, 3])
        pipeline["chunks"] = max(1, min(chunks, most_ops // (3 * pipeline["microbatches"] * pipeline["ranks"])))
        if isinstance(pipeline.get("partition"), list):
            del pipeline["partition"]  # of as many stages as the placement had
        if isinstance(pipeline.get("recompute"), list):
            pipeline["recompute"] = "full"
    if opened != "recompute" and "data_parallel" in job:  # one value for any number of stages
        parallel = job["data_parallel"]
        for key in ("reduce_scatter", "all_gather"):
            if isinstance(parallel.get(key), list):
                parallel[key] = parallel[key][0]
        parallel.pop("trunk", None)
    if profile is not None and any("activation" in layer for layer in profile["layers"]) and draw.chance(0.7):
        held = 2 * sum(layer.get("repeat", 1) for layer in profile["layers"])
        memory: dict[str, Any] = random.choice([{"in_flight": random.randint(1, 3)}, {"limit": f"{held * random.randint(1, 3)} B"}])
        if "lengths" not in job:
            job["memory"] = memory
    recomputes = pipeline.get("recompute", "none") != "none"
    if recomputes and "memory" in job:  # a stage that recomputes holds the message, whose size must be said
        if profile is None:
            job["profile"].setdefault("message", draw.size(1, 5))
            sizes = job["profile"]["message"]
            if isinstance(sizes, list):
                job["profile"]["message"] = [size if size != "0 B" else "1 B" for size in sizes]
        else:
            for layer in profile["layers"]:
                layer.setdefault("message", draw.size(1, 5))


def _overlapping(draw: Draw, job: Job, placed: Placement, bandwidth: bool) -> None:
    """Steps that overlap, where the rest of the job lets them."""
    random, pipeline = draw.random, job["pipeline"]
    is_open = "auto" in (pipeline.get(key) for key in ("placement", "partition", "recompute"))
    if is_open or len(placed.paths) > 1 or pipeline["semantics"] == "torch":
        return
    pipeline |= {"mode": "asynchronous", "versions": random.choice(["stash", "2bw", "bounded"])}
    if pipeline["versions"] == "bounded":
        pipeline["most_delay"] = random.choice([0, 1, 1, 2, 5])
    if draw.chance(0.7):
        pipeline["update"] = draw.many(lambda: draw.duration(0), [len(placed.rank_of_stage)])
    if {"limit", "capacity"} & {*job.get("memory", ())} and draw.chance(0.8):
        job["memory"]["version"] = draw.many(lambda: f"{draw.held(0)} B", [len(placed.rank_of_stage)])
    for key in ("data_parallel", "objective"):
        job.pop(key, None)
    job["extra"].pop("trunks", None)
    given = job["extra"].get("topology") or job.get("topology")
    if given is not None:  # no period has an order of what several ranks send to several
        for key in ("sites", "between", "site_link"):
            given.pop(key, None)
        links = [given[key] for key in ("within", "between") if key in given] + given.get("link", [])
        for link in links:
            link.pop("trunk", None)
            if draw.chance(0.3):
                link["holds_latency"] = True
        if draw.chance(0.3):
            given["inbound"] = True
        if "path" not in job.get("topology", {}) and not given:
            job.pop("topology", None)


def _may_be_graph(job: Job, placed: Placement) -> bool:
    """Whether the rest of the job lets its layers be a graph, and its microbatches be in slices."""
    pipeline = job["pipeline"]
    is_open = "auto" in (pipeline.get(key) for key in ("placement", "partition", "recompute"))
    return not is_open and len(placed.paths) == 1 and pipeline["semantics"] != "torch" and "mode" not in pipeline


def _graph(draw: Draw, job: Job, stages: int) -> None:
    """Modules that are joined in any way, and edges besides; all layers are one graph."""
    random, profile = draw.random, job["extra"].get("profile")
    layers = stages if profile is None else sum(layer.get("repeat", 1) for layer in profile["layers"])
    cuts = [0, *sorted(random.sample(range(1, layers), random.randint(0, min(3, layers - 1)))), layers]
    modules: list[dict[str, Any]] = [{"name": f"m{at}", "layers": end - begin} for at, (begin, end) in enumerate(pairwise(cuts))]
    job.get("data_parallel", {}).pop("trunk", None)  # whose sites nothing may join now
    joined = {(a, a + 1) for a in range(layers - 1) if a + 1 not in cuts}
    for at, module in enumerate(modules[1:], 1):
        if draw.chance(0.6):  # else it takes from the module before it
            module["inputs"] = [f"m{each}" for each in range(at) if draw.chance(0.5)]
        inputs = module.get("inputs", [f"m{at - 1}"])
        joined |= {(cuts[int(name[1:]) + 1] - 1, cuts[at]) for name in inputs}
    edges, sizes = [], dict[tuple[int, str], str]()
    for pair in sorted((a, b) for a in range(layers) for b in range(a + 1, layers) if (a, b) not in joined and draw.chance(0.2)):
        value = random.choice(["x", "x", "y"])
        edge: dict[str, Any] = {"source": pair[0], "destination": pair[1], "value": value}
        edge["message"] = sizes.setdefault((pair[0], value), draw.size(1, 5))
        if draw.chance(0.3):
            edge["gradient"] = False
        elif draw.chance(0.3):
            edge["gradient_message"] = draw.size(0, 5)
        edges.append(edge)
        joined.add(pair)
    reached = {0}
    for _ in range(layers):
        reached |= {each for pair in joined if reached & {*pair} for each in pair}
    for apart in (end - 1 for end in cuts[1:-1] if len(reached) < layers):  # to the last module, whatever else joins them
        if (apart, layers - 1) not in joined:
            edges.append({"source": apart, "destination": layers - 1, "value": "z", "message": draw.size(1, 5)})
    random.shuffle(edges)
    if len(modules) > 1:
        job["module"] = modules
    if edges:
        job["edge"] = edges


def _slices(draw: Draw, job: Job, stages: int, most_ops: int) -> None:
    """Two or more slices of each microbatch, alike or not; what is given for each microbatch becomes so for each slice."""
    random, pipeline = draw.random, job["pipeline"]
    count = random.choice([2, 2, 3, 4])
    pipeline["microbatches"] = max(1, min(pipeline["microbatches"], most_ops // (3 * stages * count)))
    slices: dict[str, Any] = {"count": count}
    if draw.chance(0.5):
        slices = {"lengths": [random.choice([1, 2, 3, 1000, 4096]) for _ in range(count)]}
    if draw.chance(0.6):
        slices["quadratic"] = random.choice([0, 0.25, 0.3, 1])
    if draw.chance(0.3):
        slices["fixed"] = random.choice([0, 0.25, 0.3]) if slices.get("quadratic", 0) < 0.5 else 0
    if "path" not in job["profile"] and draw.chance(0.5):
        slices["state_gradient"] = draw.many(lambda: f"{draw.held(0)} B", [stages])
    job["slices"] = slices
    for key, values in job["profile"].items():
        if isinstance(values, list) and key in ("forward", "backward_input", "backward_weight", "backward"):
            units = pipeline["microbatches"] * count
            job["profile"][key] = [[draw.duration() for _ in range(units)] if isinstance(own, list) else own for own in values]


def _may_be_sharded(job: Job) -> bool:
    """Whether the rest of the job lets weights be sharded: of chains in a layout that is given, with memory in bytes."""
    pipeline = job["pipeline"]
    is_open = "auto" in (pipeline.get(key) for key in ("placement", "partition", "recompute"))
    counted = "in_flight" in job.get("memory", ()) and bool({"lengths", "recompute"} & {*job, *pipeline})
    return not (is_open or "mode" in pipeline or {"edge", "module"} & {*job} or counted)


def _sharded(draw: Draw, job: Job, stages: int) -> None:
    """Weights that are gathered and released, and gradients that are reduced; in memory for those of one stage, or of more."""
    random, memory = draw.random, job.get("memory", {})
    gathered, gradients = ([draw.held(0) for _ in range(stages)] for _ in range(2))
    section: dict[str, Any] = {"size": random.randint(2, 4), "zero_stage": 3}
    section |= {"gathered": [f"{size} B" for size in gathered], "gradients": [f"{size} B" for size in gradients]}
    if draw.chance(0.3):
        section |= {"bandwidth": random.choice(["1 GB/s", "3 GB/s", "70 GB/s"]), "latency": draw.duration(0)}
    else:
        section |= {key: draw.many(lambda: draw.duration(0), [stages]) for key in ("reduce_scatter", "all_gather")}
    job["data_parallel"] = section
    least = max(map(sum, zip(gathered, gradients, strict=True)))
    for key in {"limit", "capacity"} & memory.keys():
        limits = [memory[key]] if isinstance(memory[key], str) else memory[key]
        roomy = [int(limit.split()[0]) + random.choice([least, least, 2 * least, sum(gathered)]) for limit in limits]
        memory[key] = [f"{limit} B" for limit in roomy] if len(roomy) > 1 else f"{roomy[0]} B"
