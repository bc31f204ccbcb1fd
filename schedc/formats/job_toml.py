"""A first job file for people to go on with: what is known is filled in, what may be wanted next is there as a comment."""

from __future__ import annotations

import json
from dataclasses import dataclass

_COMMENT_AT = 36
"""The column of comments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstLink:
    """What a message costs, as text with units."""

    latency: str | None
    bandwidth: str | None
    note: str = ""
    """About the bandwidth, or where there is none about the latency; on one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstJob:
    """What the file says; quantities are text with units, or as TOML has them."""

    title: str
    """Of the model and where it runs; on one line."""
    name: str
    profile_path: str
    profile_note: str
    microbatches: int
    is_fused: bool
    """Whether B and W of a layer are not known apart."""
    capacity: str | None
    """Of a device; None: it does not count."""
    unlimited: str
    """Why it does not."""
    reserve: str
    """Of it, what no plan uses."""
    bytes_per_parameter: str
    bytes_per_expert_parameter: str | None
    """None: the layers have no experts."""
    limit: str | None
    """Of activations, instead of the capacity."""
    sites: tuple[int, ...]
    """Ranks of each site."""
    within: FirstLink
    between: FirstLink | None
    """None: there is one site."""


def job_toml(job: FirstJob) -> str:
    """The text of the file; it ends with a newline."""
    lines = [
        f"# {job.title}",
        "# `schedc compile` makes a plan of this job, `schedc bounds` says what no plan can beat. docs/job-file.md has all keys.",
        "",
        f"name = {_text(job.name)}",
        "",
        "[pipeline]",
        f"ranks = {sum(job.sites)}",
        _with(f"microbatches = {job.microbatches}", "of one training step, on each replica of the pipeline"),
        *([_with("split_backward = false", "the profile does not know B and W apart")] if job.is_fused else []),
        _with('# partition = "auto"', "which layers each stage has is chosen with the schedule; else: balanced work"),
        _with('# placement = "wave"', "with chunks: several parts of the model on each rank; or loop, bidirectional, auto"),
        "# chunks = 2",
        _with('# recompute = "full"', "stages keep only their input and run the forward again; auto: some stages"),
        "",
        "[profile]",
        _with(f"path = {_text(job.profile_path)}", job.profile_note),
        "",
        *_memory(job),
        "",
        "[topology]",
        _with(f"sites = [{', '.join(map(str, job.sites))}]", "ranks in each site"),
        "",
        "[topology.within]",
        *_link(job.within),
    ]
    if job.between is not None:
        lines += ["", "[topology.between]", *_link(job.between)]
    lines += [
        "",
        _with("# [data_parallel]", "collectives of the replicas beside the pipeline"),
        "# size = 4",
        "# zero_stage = 1",
        _with('# reduce_scatter = "60 ms"', "of a stage's gradients; or a list, one for each stage"),
        _with('# all_gather = "30 ms"', "of its parameters"),
        "",
        "# [solver]",
        '# time_limit = "60 s"',
        _with("# gap = 0.01", "good enough: proven to be within this of the optimum"),
    ]
    return "\n".join(lines) + "\n"


def _memory(job: FirstJob) -> list[str]:
    if job.limit is not None:
        return ["[memory]", _with(f"limit = {_text(job.limit)}", "of activations, on each rank")]
    if job.capacity is None:
        return [
            _with("# [memory]", f"{job.unlimited}, so memory does not count"),
            _with('# limit = "20 GiB"', "of activations, on each rank"),
        ]
    note, each = "of experts: ZeRO divides their optimizer by data ÷ expert parallel", job.bytes_per_expert_parameter
    return [
        "[memory]",
        _with(f"capacity = {_text(job.capacity)}", "of the device"),
        _with(f"reserve = {_text(job.reserve)}", "of it, for the CUDA context, NCCL's buffers and fragmentation"),
        _with(f"bytes_per_parameter = {job.bytes_per_parameter}", "weights, gradients, optimizer; 16: Adam in mixed precision"),
        *([] if each is None else [_with(f"bytes_per_expert_parameter = {each}", note)]),
        _with('# limit = "20 GiB"', "instead of all of these: of activations alone"),
    ]


def _link(link: FirstLink) -> list[str]:
    given = [(key, value) for key, value in (("latency", link.latency), ("bandwidth", link.bandwidth)) if value is not None]
    lines = [f"{key} = {_text(value)}" for key, value in given]
    return [*lines[:-1], _with(lines[-1], link.note)]


def _with(line: str, note: str) -> str:
    """The line with a comment."""
    return f"{line:<{_COMMENT_AT}}# {note}" if note else line


def _text(value: str) -> str:
    """Text as TOML."""
    return json.dumps(value, ensure_ascii=False)
