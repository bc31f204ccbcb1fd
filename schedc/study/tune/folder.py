"""The folder that `schedc tune` leaves: the table, and the best candidate as a job with its profile and its plan.

All files are made and checked before the first is written, and each is written whole or not at all.
"""

from __future__ import annotations

import dataclasses
import os
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from schedc.errors import Defect, InvalidInput
from schedc.formats.plan.plan_file import plan_json
from schedc.frontend.job import load_job
from schedc.io.outputs import check_outputs, write_atomically
from schedc.ir import MessageCost, Semantics
from schedc.lower.problem import stage_static_bytes
from schedc.solvers.common.method import Constructive
from schedc.solvers.driver.registry import method_named
from schedc.study.tune.candidates import rows_csv
from schedc.study.tune.layer_costs import PROFILE
from schedc.study.tune.problems import capacities
from schedc.study.tune.replicas import bytes_per_parameter
from schedc.units import format_duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.study.tune.candidates import TuneCandidate
    from schedc.study.tune.problems import CandidateProblem
    from schedc.study.tune.request import TuneRequest
    from schedc.study.tune.tuned import Tuned

JOB, PLAN, TABLE = "job.toml", "plan.json", "table.csv"


@contextmanager
def prepared_folder(folder: Path, inputs: Sequence[Path]) -> Iterator[None]:
    """Make the folder if there is none, and try its files; a folder that was made is removed where the work inside fails.

    Raises:
        InvalidInput: it cannot be made or written to, or one of its files is an input.
    """
    made = not os.path.lexists(folder)
    try:
        if made:
            folder.mkdir()
        elif not folder.is_dir():
            raise InvalidInput(f"-o: found {folder}, which is no folder; expected a folder, or a name for a new one")
    except OSError as error:
        raise InvalidInput(f"{folder}: cannot be made: {error.strerror}") from error
    try:
        check_outputs({name: folder / name for name in (PROFILE, JOB, PLAN, TABLE)}, inputs)
        yield
    except BaseException:
        if made:
            with suppress(OSError):  # but for plans that were kept, nothing was written yet
                folder.rmdir()
        raise


def write_folder(folder: Path, request: TuneRequest, tuned: Tuned) -> None:
    """Write the four files. Where a constructive method made the plan, the job names it, so `compile` gives the same plan.

    Raises:
        InvalidInput: a file cannot be written.
        Defect: the job that would be written is not the one that was planned.
    """
    import tomlkit

    profile = tuned.problem.costs.profile.encode()
    each, table = tuned.best.candidate, job_table(request, tuned.best.candidate, tuned.problem)
    method, order = tuned.plan.made_by.method, ", ".join(map(str, each.site_order))
    if issubclass(method_named(method) or object, Constructive):
        table["solver"] = {"method": method}  # one that makes the same plan again
    document = tomlkit.document()
    for line in (
        f"The best of {len(tuned.rows)} candidates of schedc tune: {each.ranks} ranks on each of",
        f"{each.data_parallel} data-parallel pipelines, microbatches of {each.microbatch_size}, ZeRO {each.zero_stage}.",
        *((f"A pipeline crosses the sites in the order {order}; topology.sites has them so.",) if order else ()),
        *(("A step is one update; what its replicas' collectives take is in pipeline.update.",) if each.versions else ()),
    ):
        document.add(tomlkit.comment(line))
    document.update(table)
    job = tomlkit.dumps(document).encode()
    with TemporaryDirectory(prefix="schedc-tune-") as name:
        trial = Path(name)
        (trial / PROFILE).write_bytes(profile)
        (trial / JOB).write_bytes(job)
        again = load_job(trial / JOB)
    if again.problem != tuned.plan.problem:
        raise Defect(f"{request.name}: the job of the best candidate is not the one that was planned")
    plan = dataclasses.replace(tuned.plan, made_by=dataclasses.replace(tuned.plan.made_by, job_sha256=again.sha256))
    contents = {PROFILE: profile, JOB: job, PLAN: plan_json(plan), TABLE: rows_csv(tuned.rows, by_loss=tuned.times is not None)}
    for file, content in contents.items():
        write_atomically(folder / file, content)


def job_table(request: TuneRequest, candidate: TuneCandidate, made: CandidateProblem) -> dict[str, Any]:
    """The job of a candidate, for which `schedc compile` makes the same problem; `profile.path` is `PROFILE`.

    The partition is said, so that the durations of the collectives, one for each stage, belong to it.
    """
    tune, layout, network = request.file.tune, made.layout, made.workload.network
    pipeline: dict[str, Any] = {
        "ranks": candidate.ranks,
        "microbatches": candidate.microbatches,
        "placement": candidate.placement,
    }
    if candidate.chunks > 1:
        pipeline["chunks"] = candidate.chunks
    if candidate.backward == "fused":
        pipeline["split_backward"] = False
    if tune.semantics is not Semantics.SCHEDC:
        pipeline["semantics"] = str(tune.semantics)
    if candidate.recompute == "full":
        pipeline["recompute"] = "full"
    if candidate.versions is not None:
        pipeline |= {"mode": "asynchronous", "versions": str(candidate.versions)}
        pipeline |= {} if candidate.most_delay is None else {"most_delay": candidate.most_delay}
        pipeline["update"] = [format_duration_ns(stage.update_ns, 9) for stage in made.problem.stages]
    pipeline["partition"] = [last - first for first, last in (layout.layers_of_stage[stage] for stage in layout.paths[0])]
    table: dict[str, Any] = {
        "name": request.name,
        "pipeline": pipeline,
        "profile": {"path": PROFILE},
        "memory": {
            name.removesuffix("_bytes"): [f"{size} B" for size in sizes] if isinstance(sizes, tuple) else f"{sizes} B"
            for name, sizes in capacities(request, candidate).items()
        },
        "topology": {"sites": list(candidate.ranks_of_site), "within": _link(network.within)},
    }
    if any(device.speed != 1 for device in made.workload.devices):
        table["devices"] = {"speed": [float(device.speed) for device in made.workload.devices]}
    if network.links:
        own = (link for link in network.links if link.source < link.destination)
        table["topology"]["link"] = [{"ranks": [link.source, link.destination], **_link(link)} for link in own]
    if candidate.versions is not None:
        table["memory"]["bytes_per_version_parameter"] = float(request.file.memory.weight_bytes)
    if made.besides:
        table["memory"] |= {"static": [f"{size} B" for size in stage_static_bytes(made.workload, layout)]}
    else:
        each, of_expert = bytes_per_parameter(request, candidate)
        table["memory"]["bytes_per_parameter"] = each
        if any(layer.expert_parameters for layer in made.workload.layers):
            table["memory"]["bytes_per_expert_parameter"] = of_expert
    if network.between is not None:
        table["topology"]["between"] = _link(network.between)
    if made.workload.ties:
        table["tied"] = [
            {"first": tie.layers[0], "last": tie.layers[1], "gradient": f"{tie.gradient_bytes} B"} for tie in made.workload.ties
        ]
    parallel = made.workload.data_parallel  # the problem's has what tied weights take in it
    if parallel is not None:
        durations = {"reduce_scatter": parallel.reduce_scatter_ns, "all_gather": parallel.all_gather_ns}
        sizes = {"gathered": parallel.gathered_bytes, "gradients": parallel.gradient_bytes}
        table["data_parallel"] = {
            "size": parallel.size,
            "zero_stage": parallel.zero_stage,
            **{key: [format_duration_ns(each, 9) for each in values] for key, values in durations.items() if values},
            **{key: [f"{each} B" for each in values] for key, values in sizes.items() if values},
        }
    return table


def _link(cost: MessageCost) -> dict[str, Any]:
    link = {"latency": format_duration_ns(cost.latency_ns, 9)}
    return link if cost.bytes_per_second is None else link | {"bandwidth": f"{cost.bytes_per_second} B/s"}
