"""The front end: a job, with the files that it names, made into a Workload and a Layout, and the Problem that these are.

Takes a job's source, or the path of a job.toml; gives all three, the solver's settings and the source's hash. Where something of
the layout is to be chosen, there is an `OpenLayout` instead of Layout and Problem. Whatever is wrong with the job is said in one
line that names the file, the key, what was found and what is expected.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

from schedc.errors import Defect, InvalidInput
from schedc.frontend.checks import (
    check_joined,
    check_messages,
    check_open,
    check_placement,
    check_size,
    check_stages,
)
from schedc.frontend.job_file import AUTO, NAMING_FILES, JobFile, SolverSection
from schedc.frontend.job_source import JobSource, source_of_file
from schedc.frontend.lengths import layers_of_lengths
from schedc.frontend.profile import quadratic_of, read_edges, read_layers, read_ties
from schedc.frontend.sections import (
    check_room,
    read_data_parallel,
    read_memory,
    read_placement,
    read_recomputed,
    read_speeds,
    read_updates,
)
from schedc.frontend.slices import layers_for_slices, open_slices
from schedc.frontend.topology import check_connected, read_network, read_topology
from schedc.io.conform import conform
from schedc.ir import Layout, OpenLayout, Problem, Workload
from schedc.lower.problem import crossed_by, edges_between, problem_of, tied_apart
from schedc.lower.slices import in_slices
from schedc.lower.split_head import without_head
from schedc.verify.layout import verify_layout
from schedc.verify.workload import verify_workload

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike

    from schedc.frontend.job_source import Override


_DEFAULT_CHUNKS = 4
"""The most stages on a rank where the placement is open and `chunks` says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job that was read and checked, and what it states."""

    source: JobSource
    """Where it was read."""
    file: JobFile
    """What it says, quantities as integers."""
    workload: Workload
    open_layout: OpenLayout | None
    """What of the layout is to be chosen; None: nothing is."""
    given_layout: Layout | None
    """None: something of it is to be chosen."""
    given_problem: Problem | None
    """The workload in the given layout, if there is one."""

    @property
    def name(self) -> str:
        """Its own, or that of its file."""
        return self.workload.name

    @property
    def layout(self) -> Layout:
        """The layout, of which nothing is to be chosen.

        Raises:
            InvalidInput: something is.
        """
        if self.given_layout is None:
            raise self._is_open()
        return self.given_layout

    @property
    def problem(self) -> Problem:
        """The workload in the layout, of which nothing is to be chosen.

        Raises:
            InvalidInput: something is.
        """
        if self.given_problem is None:
            raise self._is_open()
        return self.given_problem

    def _is_open(self) -> InvalidInput:
        keys = [key for key in ("placement", "partition", "recompute", "head") if getattr(self.file.pipeline, key) == AUTO]
        section = "pipeline" if keys else "slices"
        if self.file.slices is not None:
            keys += [key for key in ("count", "lengths") if getattr(self.file.slices, key) == AUTO]
        return (self.source.place / section / keys[0]).refuse(
            '"auto"',
            "a given one, as this command chooses no layout: take a plan's with --layout PLAN, or have it written into a job with"
            " schedc compile --write-job FILE",
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that the job was read from: its own, if it has one, and those that it names."""
        named = [getattr(getattr(self.file, section), key, None) for section, key in NAMING_FILES]
        own = () if self.source.path is None else (self.source.path,)
        return (*own, *(self.source.directory / name for name in named if name is not None))

    @property
    def sha256(self) -> str:
        """Of the job's text, and of the values that are set; files that it names are not in it."""
        return self.source.sha256

    @property
    def solver(self) -> SolverSection:
        """The settings that the command line wins over: `method`, `time_limit_ns` (or None), `gap`, `seed`."""
        return self.file.solver


def load_job(path: str | PathLike[str], overrides: Sequence[Override] = ()) -> Job:
    """The job in the file at `path`, with the values that are set.

    Raises:
        InvalidInput: the file, or one that it names, cannot be read or used, or a value cannot be set.
    """
    return checked_job(source_of_file(Path(path), overrides))


def checked_job(source: JobSource) -> Job:
    """The job that a source states.

    Raises:
        InvalidInput: it, or a file that it names, cannot be read or used.
    """
    root = source.place
    file = conform(source.document, JobFile, root)
    workload, layout, open_layout = _workload_and_layout(file, source)
    problem = None
    if layout is not None:
        problem = problem_of(workload, layout)
        if file.memory is not None:
            check_room(problem, workload.devices, file.memory, root / "memory")
    unsound = verify_workload(workload) + (() if layout is None else verify_layout(workload, layout))
    for violation in unsound:
        raise Defect(f"{root.file}: what the front end made of it breaks a rule: {violation}")
    if problem is not None:
        check_messages(problem, file.profile, root / "profile")
        check_size(problem, root / "profile")
    if open_layout is not None:
        check_open(workload, open_layout, file, root)
    return Job(
        source=source,
        file=file,
        workload=workload,
        open_layout=open_layout,
        given_layout=layout,
        given_problem=problem,
    )


def _workload_and_layout(job: JobFile, source: JobSource) -> tuple[Workload, Layout | None, OpenLayout | None]:
    """The workload, and the layout or what of it is open."""
    root, pipeline = source.place, job.pipeline
    placed = read_placement(pipeline, root / "pipeline")
    if placed is not None:
        check_placement(job, placed, root)
    topology, at = read_topology(job.topology, source)
    layers, layers_of_stage, profile = read_layers(job, source, placed)
    edges = read_edges(job, profile, layers, source)
    layers = layers_for_slices(job, layers_of_lengths(job, source, layers), quadratic_of(profile, len(layers)), root)
    network = read_network(topology, pipeline.ranks, at)
    if placed is None:
        check_joined(network, pipeline.ranks, at)
        crossed = list(permutations(range(pipeline.ranks), 2))
    else:
        end = layers_of_stage[-1][1] if layers_of_stage else 0  # a head that is split has stages of its own
        between = edges_between([edge for edge in edges if edge.destination < end], layers_of_stage or ())
        crossed = crossed_by(placed, between)
        check_connected(network, crossed, at)
    memory = read_memory(job.memory, layers, placed, pipeline.ranks, root / "memory")
    trunks = {link.trunk for pair in crossed if (link := network.link(*pair))} if job.data_parallel else set()
    workload = Workload(
        name=job.name or source.default_name,
        microbatches=pipeline.microbatches,
        layers=memory.held_by(layers),
        devices=read_speeds(job.devices, memory.devices),
        network=network,
        static_bytes=memory.static_bytes,
        data_parallel=read_data_parallel(job.data_parallel, placed, trunks, root / "data_parallel"),
        split_backward=pipeline.split_backward,
        in_order=pipeline.microbatch_order != AUTO,
        semantics=pipeline.semantics,
        objective=job.objective.minimize,
        edges=edges,
        modules=tuple(module.layers for module in job.module or (() if profile is None else profile.modules)),
        ties=read_ties(job, profile, len(layers), root),
        **read_updates(job, placed, layers, root),
    )
    whole, workload = workload, in_slices(workload, () if job.slices is None else job.slices.cut)
    slices = open_slices(job)
    recompute = read_recomputed(pipeline, placed, root / "pipeline")
    recomputed = frozenset(stage for stage, recomputes in enumerate(recompute) if recomputes)
    if layers_of_stage is None and placed is not None and pipeline.partition is None and pipeline.head != AUTO:
        from schedc.lower.partition import balanced_partition

        divided = whole if pipeline.head == "whole" else without_head(whole)  # the same for all cuts
        layers_of_stage = balanced_partition(divided, placed, recomputed, in_slices=job.slices is not None)
    if placed is None or layers_of_stage is None or pipeline.is_open or slices:
        chunks = pipeline.chunks or _DEFAULT_CHUNKS
        if placed is None:
            check_stages(job, len(layers), chunks, root)
        open_layout = OpenLayout(
            chunks=chunks,
            placement=placed,
            layers_of_stage=layers_of_stage,  # where the placement is open, so is a partition of which nothing is said
            recompute=recompute,
            recompute_is_open=pipeline.recompute == AUTO,
            heads={"whole": (False,), "split": (True,), "auto": (False, True)}[pipeline.head],
            slices=slices,
        )
        return workload, None, open_layout
    rank = placed.rank_of_stage
    tied = [(rank[one], rank[other]) for _, one, other in tied_apart(workload, layers_of_stage, rank)]
    check_connected(network, [pair for ends in tied for pair in (ends, ends[::-1])], at)
    if pipeline.head == "split":
        last = placed.rank_of_stage[-1]
        check_connected(network, [pair for r in range(pipeline.ranks) if r != last for pair in ((r, last), (last, r))], at)
    layout = Layout(
        layers_of_stage=layers_of_stage,
        rank_of_stage=placed.rank_of_stage,
        paths=placed.paths,
        recomputed=recomputed,
        placement=placed.placement,
        split_head=pipeline.head == "split",
    )
    return workload, layout, None
