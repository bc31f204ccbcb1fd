"""The job file's keys and their types (format document, "The job"), from which its JSON Schema is generated.

`schedc.io.conform` makes a `JobFile` of the parsed TOML; quantities are integers then, and their names carry the unit (`latency_ns`
is the key `latency`). Whether the keys agree with each other is checked where they are put to use, in the other modules of this
package.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from schedc.formats.layouts import LAYOUT_PATTERN, partition_of
from schedc.io.conform import (
    Bandwidth,
    BlockDurations,
    Count,
    Counts,
    Duration,
    Durations,
    Pair,
    Section,
    Size,
    Sizes,
    schema_of,
)
from schedc.ir import Objective, Semantics

AUTO = "auto"
"""In [pipeline]: schedc chooses it."""

_LAYOUT = 'a layout of Megatron-LM such as "Ett|(tt|)*2tL"'


def _partition(text: str) -> str | tuple[int, ...]:
    if text == AUTO:
        return AUTO
    if not text.startswith("E"):
        raise ValueError(f'expected "auto", {_LAYOUT}, or a list')
    return partition_of(text)


PartitionText: TypeAlias = Annotated[
    str,
    Meta(
        extra={"parse": _partition, "expected": f'"auto", {_LAYOUT}'},
        extra_json_schema={"pattern": LAYOUT_PATTERN, "examples": ["auto", "Ett|(tt|)*2tL"]},
    ),
]
"""How many layers each piece of the model has, in a layout of Megatron-LM; or "auto"."""

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
Index: TypeAlias = Annotated[int, Meta(ge=0, le=2**20)]


class PipelineSection(Section, frozen=True, kw_only=True):
    """Ranks, microbatches, and which rank holds which stages."""

    ranks: Annotated[Count, Meta(description="Pipeline ranks, one process each.")]
    microbatches: Annotated[Count, Meta(description="Microbatches of one training step.")]
    placement: Annotated[
        Literal["unidirectional", "loop", "wave", "bidirectional", "auto"] | tuple[Index, ...],
        Meta(
            description="Which rank each stage is on: a name, or the rank of each stage in the order of the forward. auto: chosen."
        ),
    ] = "unidirectional"
    chunks: Annotated[
        Count | None,
        Meta(description="Model chunks per rank: 1, or 2 and more for loop and wave; with placement auto at most this many, or 4."),
    ] = None
    split_backward: Annotated[bool, Meta(description="B and W may run apart; false: one fused BW.")] = True
    semantics: Annotated[
        Semantics,
        Meta(
            description="The runtime that executes the plan. torch: its first stage does not split (B takes no time, W is the whole"
            " backward), activations are held until W, and blocks are not cut."
        ),
    ] = Semantics.SCHEDC
    partition: Annotated[
        PartitionText | tuple[Count, ...] | None,
        Meta(description="Layers of each piece of the model, or a layout. auto: chosen. Default for a profile.json: balanced."),
    ] = None
    recompute: Annotated[
        Literal["none", "full", "auto"] | tuple[bool, ...],
        Meta(description="Which stages keep only their input from F, and run it again before their backward. auto: chosen."),
    ] = "none"
    microbatch_order: Annotated[
        Literal["given", "auto"], Meta(description="In which order microbatches that differ enter the pipeline.")
    ] = "given"


class ProfileSection(Section, frozen=True, kw_only=True):
    """What a stage's blocks cost: one value for all stages or one per stage, in the order of the forward.

    Instead of a stage's duration there may be a list of them, one for each microbatch.
    """

    path: Annotated[Text | None, Meta(description="A profile.json with measured layers, instead of the other keys.")] = None
    forward_ns: Annotated[BlockDurations | None, Meta(description="F of one microbatch.")] = None
    backward_input_ns: Annotated[BlockDurations | None, Meta(description="B, the backward of the input.")] = None
    backward_weight_ns: Annotated[BlockDurations | None, Meta(description="W, the backward of the weights.")] = None
    backward_ns: Annotated[
        BlockDurations | None,
        Meta(description="BW, both fused, where measured. Default: B + W. With split_backward = false it replaces the two."),
    ] = None
    activation_bytes: Annotated[Sizes | None, Meta(description="Held from F's start. Default: nothing.")] = None
    activation_after_input_bytes: Annotated[
        Sizes | None, Meta(description="The part of it that W still needs. Default: nothing.")
    ] = None
    message_bytes: Annotated[Sizes | None, Meta(description="What a stage sends to the next one. Default: nothing.")] = None
    gradient_message_bytes: Annotated[
        Sizes | None, Meta(description="What comes back to the stage for its message. Default: the same size.")
    ] = None


class LengthsSection(Section, frozen=True, kw_only=True):
    """Sequences of different lengths: what the blocks of each microbatch take follows from them."""

    path: Annotated[Text, Meta(description="A CSV with the header length, or microbatch,length: the tokens of each sequence.")]
    profile_length: Annotated[Count, Meta(description="The length of the one sequence for which the profile's durations are.")]
    quadratic: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        Meta(description="The share of a duration at that length that grows with the square of the length. Default: 0."),
    ] = None
    fit: Annotated[
        Text | None, Meta(description="Instead: a CSV with the header length,duration; the share is fitted to these times.")
    ] = None


class MemorySection(Section, frozen=True, kw_only=True):
    """How much of the activations a rank can hold: by one of limit, in_flight, or capacity with what is static."""

    limit_bytes: Annotated[Sizes | None, Meta(description="Activations per rank; one value, or one per rank.")] = None
    in_flight: Annotated[Counts | None, Meta(description="The same in whole microbatches of that rank's activations.")] = None
    capacity_bytes: Annotated[Sizes | None, Meta(description="The device's memory; one value, or one per rank.")] = None
    static_bytes: Annotated[
        Sizes | None,
        Meta(description="What a stage holds all the time: weights, gradients, optimizer state. With capacity."),
    ] = None
    bytes_per_parameter: Annotated[
        Annotated[float, Meta(ge=0, le=2**20)] | None,
        Meta(description="Instead of static: a stage holds this for each parameter of its layers, all the time."),
    ] = None
    bytes_per_expert_parameter: Annotated[
        Annotated[float, Meta(ge=0, le=2**20)] | None,
        Meta(description="For those of routed experts, which have fewer replicas. Default: bytes_per_parameter."),
    ] = None
    reserve_bytes: Annotated[
        Size | None, Meta(description="The part of capacity that no plan uses: context, buffers, fragmentation. Default: nothing.")
    ] = None


class DevicesSection(Section, frozen=True, kw_only=True):
    """What differs between the ranks' devices."""

    speed: Annotated[
        tuple[Annotated[float, Meta(ge=0.001, le=1000)], ...] | None,
        Meta(description="Per rank: the durations of its blocks are divided by it. Default: 1."),
    ] = None


class LinkCost(Section, frozen=True, kw_only=True):
    """What a message costs: it arrives `latency` after it has left the link, which it occupies for bytes / bandwidth."""

    latency_ns: Annotated[Duration | None, Meta(description="Default: 0.")] = None
    bytes_per_second: Annotated[Bandwidth | None, Meta(description="Default: a message occupies the link for no time.")] = None
    transfer_ns: Annotated[Duration | None, Meta(description="The occupancy of one message of any size, instead of bandwidth.")] = (
        None
    )


class SiteLinkOverride(LinkCost, frozen=True, kw_only=True):
    """The trunk of two sites; what it does not say holds as in `between`."""

    sites: Annotated[Pair, Meta(description="Two sites, counted from 0.")]
    directed: Annotated[bool, Meta(description="Only from the first to the second; false: both ways.")] = False


class LinkOverride(LinkCost, frozen=True, kw_only=True):
    """The link of two ranks; what it does not say (latency, or bandwidth and transfer) holds as for its sites."""

    ranks: Annotated[Pair, Meta(description="Two ranks, counted from 0.")]
    directed: Annotated[bool, Meta(description="Only from the first to the second; false: both ways.")] = False
    trunk: Annotated[bool, Meta(description="Between sites: share the sites' trunk; false: a line of its own.")] = True


class TopologyFile(Section, frozen=True, kw_only=True):
    """Sites and links: the table [topology], or a file of its own."""

    sites: Annotated[tuple[Count, ...] | None, Meta(description="Ranks per datacenter, in order. Default: one site.")] = None
    within: Annotated[LinkCost | None, Meta(description="Any two ranks of one site.")] = None
    between: Annotated[
        LinkCost | None, Meta(description="Any two ranks of different sites; two sites' trunk is shared, one for each direction.")
    ] = None
    site_link: Annotated[tuple[SiteLinkOverride, ...], Meta(description="Pairs of sites that differ from `between`.")] = ()
    link: Annotated[tuple[LinkOverride, ...], Meta(description="Pairs of ranks that differ; overrides all the above.")] = ()


class TopologySection(TopologyFile, frozen=True, kw_only=True):
    """Sites and links."""

    path: Annotated[Text | None, Meta(description="A topology.toml with the other keys, instead of them.")] = None


class DataParallelSection(Section, frozen=True, kw_only=True):
    """The data-parallel collectives beside the pipeline."""

    size: Annotated[Count, Meta(description="Replicas of the pipeline.")]
    zero_stage: Annotated[Literal[0, 1], Meta(description="0: all-reduce after the last W. 1: reduce-scatter, and all-gather.")]
    reduce_scatter_ns: Annotated[Durations, Meta(description="For ZeRO 0 the all-reduce.")]
    all_gather_ns: Annotated[Durations | None, Meta(description="ZeRO 1 only: before a stage's first F.")] = None
    trunk: Annotated[
        Pair | None,
        Meta(description="Sites [from, to] on whose trunk the collectives queue. Default: beside the pipeline's transfers."),
    ] = None


class ObjectiveSection(Section, frozen=True, kw_only=True):
    """What is sought."""

    minimize: Annotated[
        Objective,
        Meta(description="The end of the last op, or the longest time from first start to last end on one rank."),
    ] = Objective.MAKESPAN


class SolverSection(Section, frozen=True, kw_only=True):
    """How it is sought; the command line wins over it."""

    method: Annotated[Text, Meta(description="`auto`, or a method's name, options in braces: `greedy{n_sub=2}`.")] = "auto"
    time_limit_ns: Annotated[Duration | None, Meta(description="Default: the command's.")] = None
    gap: Annotated[float, Meta(ge=0, lt=1, description="The search stops when the relative gap is at most this.")] = 0.0
    seed: Annotated[int, Meta(ge=0, lt=2**31)] = 0


class JobFile(Section, frozen=True, kw_only=True):
    """A job of the schedc compiler: a model's costs, a cluster's topology, a memory limit."""

    name: Annotated[Text | None, Meta(description="Default: the job's directory, or the file's name if it is not job.toml.")] = None
    pipeline: PipelineSection
    profile: ProfileSection
    lengths: LengthsSection | None = None
    memory: MemorySection | None = None
    devices: DevicesSection = DevicesSection()
    topology: TopologySection = TopologySection()
    data_parallel: DataParallelSection | None = None
    objective: ObjectiveSection = ObjectiveSection()
    solver: SolverSection = SolverSection()


NAMING_FILES = (("profile", "path"), ("topology", "path"), ("lengths", "path"), ("lengths", "fit"))
"""The keys that name files, by their section."""


def job_schema() -> dict[str, Any]:
    """The schema of job.toml, as JSON Schema 2020-12; every key has its description."""
    return schema_of(JobFile, "schedc job")
