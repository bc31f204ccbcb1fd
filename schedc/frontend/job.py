"""The front end: a job file, with the files that it names, made into a Workload and a Layout, and the Problem that these are.

Takes the path of a job.toml; gives all three, the solver's settings and the file's hash. Whatever is wrong with the file is said in
one line that names the file, the key, what was found and what is expected.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from schedc.errors import Defect
from schedc.files.conform import conform
from schedc.files.input_file import read_bytes
from schedc.files.location import Location, one_line, show
from schedc.files.tables import parse_toml
from schedc.frontend.checks import check_messages, check_ops, check_semantics, check_size
from schedc.frontend.data_parallel import read_data_parallel
from schedc.frontend.job_file import JobFile
from schedc.frontend.lengths import layers_of_lengths
from schedc.frontend.memory import check_room, read_memory, read_speeds
from schedc.frontend.pipeline import read_placement, read_recomputed
from schedc.frontend.profile import read_layers
from schedc.frontend.topology import check_connected, read_network, read_topology
from schedc.ir.layout import Layout
from schedc.ir.workload import Workload
from schedc.lower.problem import problem_of
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from os import PathLike

    from schedc.frontend.job_file import SolverSection
    from schedc.ir.problem import Problem

__all__ = ["Job", "load_job"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job file that was read, and what it states."""

    path: Path
    sha256: str
    """Of the job file's bytes; files that it names are not in it."""
    file: JobFile
    """What the file says, quantities as integers."""
    workload: Workload
    layout: Layout
    problem: Problem
    """The workload in this layout."""

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the job was read from: itself, and those that it names."""
        named = [self.file.profile.path, self.file.topology.path]
        if self.file.lengths is not None:
            named += [self.file.lengths.path, self.file.lengths.fit]
        return (self.path, *(self.path.parent / name for name in named if name is not None))

    @property
    def solver(self) -> SolverSection:
        """The settings that the command line wins over: `method`, `time_limit_ns` (or None), `gap`, `seed`."""
        return self.file.solver


def load_job(path: str | PathLike[str]) -> Job:
    """The job in the file at `path`.

    Raises:
        InvalidInput: the file, or one that it names, cannot be read or used.
    """
    path = Path(path)
    content = read_bytes(path)
    file = conform(parse_toml(content, str(path)), JobFile, Location(str(path)))
    workload, layout = _workload_and_layout(file, path)
    problem = problem_of(workload, layout)
    if file.memory is not None:
        check_room(problem, workload.devices, file.memory, Location(str(path)) / "memory")
    for violation in (*verify_workload(workload), *verify_layout(workload, layout)):
        raise Defect(f"{path}: what the front end made of it breaks a rule: {violation}")
    check_messages(problem, file.profile, Location(str(path)) / "profile")
    check_size(problem, Location(str(path)) / "profile")
    return Job(path=path, sha256=hashlib.sha256(content).hexdigest(), file=file, workload=workload, layout=layout, problem=problem)


def _workload_and_layout(job: JobFile, path: Path) -> tuple[Workload, Layout]:
    root, pipeline = Location(str(path)), job.pipeline
    placed = read_placement(pipeline, root / "pipeline")
    check_ops(pipeline, placed, root / "pipeline")
    topology, at = read_topology(job.topology, path.parent, root)
    layers, layers_of_stage = read_layers(pipeline, job.profile, placed, path.parent, root)
    layers = layers_of_lengths(
        job.lengths,
        layers,
        pipeline.microbatches,
        path.parent,
        limited=job.memory is not None,
        location=root / "lengths",
    )
    check_semantics(pipeline, placed, root / "pipeline" / "semantics")
    network = read_network(topology, pipeline.ranks, at)
    crossed = placed.crossed()
    check_connected(network, crossed, at)
    memory = read_memory(job.memory, layers, placed, pipeline.ranks, root / "memory")
    trunks = {link.trunk for pair in crossed if (link := network.link(*pair))} if job.data_parallel else set()
    workload = Workload(
        name=_name(job, path, root),
        microbatches=pipeline.microbatches,
        layers=layers,
        devices=read_speeds(job.devices, memory.devices, root / "devices"),
        network=network,
        static_bytes=memory.static_bytes,
        static_bytes_per_parameter=memory.bytes_per_parameter,
        data_parallel=read_data_parallel(job.data_parallel, placed, trunks, root / "data_parallel"),
        split_backward=pipeline.split_backward,
        semantics=pipeline.semantics,
        objective=job.objective.minimize,
    )
    recomputed = read_recomputed(pipeline, placed, root / "pipeline")
    if layers_of_stage is None:
        from schedc.lower.partition import balanced_partition

        layers_of_stage = balanced_partition(workload, placed, recomputed)
    layout = Layout(
        layers_of_stage=layers_of_stage,
        rank_of_stage=placed.rank_of_stage,
        paths=placed.paths,
        recomputed=recomputed,
        placement=pipeline.placement if isinstance(pipeline.placement, str) else "explicit",
    )
    return workload, layout


def _name(job: JobFile, path: Path, root: Location) -> str:
    """The job's own name, or that of its directory if the file is a job.toml as in every directory, or the file's."""
    if job.name is None:
        parent = path.resolve().parent.name
        return one_line(parent if path.name == "job.toml" and parent else path.stem)
    if not job.name.isprintable():
        raise (root / "name").refuse(show(job.name), "printable text on one line")
    return job.name
