"""The job file's keys, those in `cost_keys` and `replica_keys` apart: the type of each, what it means, the rules that several keep.

`schedc.io.conform` makes a `JobFile` of the parsed TOML; quantities are integers then, and their names carry the unit (`latency_ns`
is the key `latency`). The JSON Schema, the tables of docs/job-file.md and what `schedc init` writes are generated from the fields.
Whether the keys agree with the layers and the links that they are about is checked where they are put to use, by this package's
other modules.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from schedc.formats.graph_entries import LayerEdge, ModuleEntry, TiedEntry
from schedc.formats.layouts import LAYOUT_PATTERN, partition_of
from schedc.frontend.cost_keys import DevicesSection, LengthsSection, MemorySection, ProfileSection, SlicesSection, Text
from schedc.frontend.replica_keys import DataParallelSection
from schedc.frontend.topology_keys import TopologySection
from schedc.io.conform import (
    Count,
    Duration,
    Durations,
    Rules,
    Section,
    key,
    schema_of,
)
from schedc.io.location import show
from schedc.ir import Objective, Semantics, Versions
from schedc.spelling import counted

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

Index: TypeAlias = Annotated[int, Meta(ge=0, le=2**20)]


class PipelineSection(Section, frozen=True, kw_only=True):
    """Ranks, microbatches, and which rank holds which stages."""

    ranks: Annotated[Count, key("Pipeline ranks, one process each; at most 16,384 stages on all of them.")]
    microbatches: Annotated[
        Count,
        key(
            "Microbatches of one training step; at most 1,000,000 compute ops in all: `F`, `B` and `W` of each stage that a"
            " microbatch visits.",
            note="of one training step, on each replica of the pipeline",
        ),
    ]
    placement: Annotated[
        Literal["unidirectional", "loop", "wave", "bidirectional", "auto"] | tuple[Index, ...],
        key(
            "Which rank each stage is on: a name, or the rank of each stage in the order of the forward, as in `[0, 1, 2, 3, 0]`;"
            " every rank needs a stage. auto: [chosen](layouts.md#layouts-that-schedc-chooses).",
            example='"wave"',
            note="with chunks: several parts of the model on each rank; or loop, bidirectional, auto",
        ),
    ] = "unidirectional"
    chunks: Annotated[
        Count | None,
        key(
            "Model chunks per rank: 2 or more for `loop` and `wave`, 1 for the other names. With a list: omitted, or what each rank"
            " has. With placement auto: at most this many stages on a rank. Default: 1; 4 with placement auto.",
            example="2",
        ),
    ] = None
    split_backward: Annotated[bool, key("`B` and `W` may run apart; false: always one fused `BW`.")] = True
    semantics: Annotated[
        Semantics,
        key(
            "The runtime that executes the plan: this project's or [torch's](torch.md#pipeline-semantics--torch). `B` and `W` cost"
            " differently in torch: its first stage does not split (B takes no time, W is the whole backward), activations are held"
            " until W, and blocks are not cut."
        ),
    ] = Semantics.SCHEDC
    partition: Annotated[
        PartitionText | tuple[Count, ...] | None,
        key(
            "Layers of each piece of the model: a list, or [a layout of Megatron-LM](megatron.md), where `Ett|(tt|)*2tL` is"
            " `[3, 2, 2, 2]`. Its sum is the number of layers in `profile.json`; without a profile file it only numbers the plan's"
            " layers. auto: [chosen](layouts.md#layouts-that-schedc-chooses), for a profile file alone. Default for a profile file:"
            " the [balanced partition](cost-model.md#the-balanced-partition).",
            example='"auto"',
            note="which layers each stage has is chosen with the schedule; else: balanced work",
        ),
    ] = None
    head: Annotated[
        Literal["whole", "split", "auto"],
        key(
            "split: each rank has a part of the last layer of the profile.json, [the head](graphs.md#a-split-head), as a stage of"
            " its own; `placement` and `partition` are for the other layers. auto:"
            " [chosen](layouts.md#layouts-that-schedc-chooses)."
        ),
    ] = "whole"
    recompute: Annotated[
        Literal["none", "full", "auto"] | tuple[bool, ...],
        key(
            "Which stages [recompute](cost-model.md#recomputation): they keep only their input from `F`, and `B` or `BW` runs the"
            " forward again first. auto: [chosen](layouts.md#layouts-that-schedc-chooses). Refused with semantics torch.",
            example='"full"',
            note="stages keep only their input and run the forward again; auto: some stages",
        ),
    ] = "none"
    microbatch_order: Annotated[
        Literal["given", "auto"],
        key(
            "given: microbatches enter the pipeline (`F` on the first stage of their path) in the order of their numbers. auto:"
            " schedc chooses the order in which [microbatches that differ](layouts.md#microbatches-that-differ) enter."
        ),
    ] = "given"
    mode: Annotated[
        Literal["synchronous", "asynchronous"],
        key(
            "asynchronous: [steps overlap](asynchronous.md), and the period from one to the next is sought. Refused with a layout"
            " to be chosen, two paths, data_parallel, and semantics torch.",
            example='"asynchronous"',
            note="steps overlap: the pipeline never drains, and gradients are made with older weights",
        ),
    ] = "synchronous"
    versions: Annotated[
        Versions | None,
        key(
            "Which weights ops read where steps overlap. stash: `F` the newest, the backwards what their `F` read. 2bw: step k"
            " those of step k - 2. bounded: each op the newest. Required with mode asynchronous, else refused.",
            example='"2bw"',
        ),
    ] = None
    most_delay: Annotated[
        Annotated[int, Meta(ge=0, le=2**20)] | None,
        key("With versions bounded, and required there: at most this many updates of a stage between an `F` and its backwards."),
    ] = None
    update_ns: Annotated[
        Durations | None,
        key(
            "`U`, the update of a stage's weights after each step where steps overlap, with what goes before it: one value, or one"
            " per stage. Default: 0."
        ),
    ] = None

    @property
    def is_open(self) -> bool:
        """Whether something of the layout is to be chosen."""
        return AUTO in (self.placement, self.partition, self.recompute, self.head)

    def is_for_chains(self) -> tuple[str, str] | None:
        """With what neither graphs nor slices are planned, and what is expected instead; None: they are."""
        if self.mode == "asynchronous" or self.semantics is Semantics.TORCH or self.placement == "bidirectional":
            where = 'with mode "asynchronous", semantics "torch" or placement "bidirectional" in [pipeline]'
            return where, "none, as these are for chains of whole microbatches"
        return None

    def rules(self) -> Rules:
        """What cannot be chosen, what steps that overlap need and cannot have, and what torch cannot execute."""
        overlap = 'pipeline.mode = "asynchronous"'
        if self.mode == "synchronous":
            for name, value in (("versions", self.versions), ("most_delay", self.most_delay), ("update", self.update_ns)):
                if value is not None:
                    yield name, f"a value without {overlap}", "both, or neither of them"
        else:
            if self.versions is None:
                yield "versions", "nothing", f"{' or '.join(map(show, Versions))}, as the mode is asynchronous"
            elif (self.most_delay is not None) != (self.versions is Versions.BOUNDED):
                found = "nothing" if self.most_delay is None else f'a value where pipeline.versions is "{self.versions}"'
                yield "most_delay", found, 'a number with versions "bounded", and none with others'
            if self.is_open:
                name = next(name for name in ("placement", "partition", "recompute") if getattr(self, name) == AUTO)
                yield name, f'"auto" with {overlap}', "a given one, as layouts are chosen for steps that end before the next begins"
            if self.placement == "bidirectional":
                yield "placement", f'"bidirectional" with {overlap}', "one with one path, as its replicas share their weights"
            if self.semantics is Semantics.TORCH:
                yield "semantics", f'"torch" with {overlap}', '"schedc", as torch ends each step before the next begins'
        if self.head == AUTO and isinstance(self.partition, tuple):
            yield "partition", 'a list where pipeline.head is "auto"', '"auto" or no such key, as layers differ with the head'
        if self.placement == "bidirectional" and self.is_open:
            name = "partition" if self.partition == AUTO else "recompute"
            instead = "no such key for the balanced partition" if name == "partition" else '"none", "full" or a list'
            found = '"auto" where pipeline.placement is "bidirectional"'
            yield name, found, f"{instead}, or a placement with one path"
        if self.semantics is not Semantics.TORCH:
            return
        if self.placement == "bidirectional":
            found = f'"torch" where pipeline.placement is {show(self.placement)}'
            yield "semantics", found, "a placement with one path, as torch's stages form one chain"
        recomputes = any(self.recompute) if isinstance(self.recompute, tuple) else self.recompute != "none"
        if recomputes:
            found = f'{show(self.recompute)} where pipeline.semantics is "torch"'
            instead = "as torch recomputes inside of layers only; such layers have longer durations in the profile"
            yield "recompute", found, f'"none", {instead}'


class ObjectiveSection(Section, frozen=True, kw_only=True):
    """What is sought."""

    minimize: Annotated[
        Objective,
        key("The end of the last op, or the longest time from first start to last end on one rank."),
    ] = Objective.MAKESPAN


class SolverSection(Section, frozen=True, kw_only=True):
    """How it is sought; the command line wins over it."""

    method: Annotated[Text, key("`auto`, or a method's name, options in braces: `greedy{n_sub=2}`. As `--method`.")] = "auto"
    time_limit_ns: Annotated[Duration | None, key("As `--time-limit`. Default: the command's.", example='"60 s"')] = None
    gap: Annotated[
        float,
        Meta(ge=0, lt=1),
        key(
            "The search stops when the relative gap is at most this. As `--gap`.",
            example="0.01",
            note="good enough: proven to be within this of the optimum",
        ),
    ] = 0.0
    seed: Annotated[int, Meta(ge=0, lt=2**31), key("Of random numbers. As `--seed`.")] = 0


class JobFile(Section, frozen=True, kw_only=True):
    """A job of the schedc compiler: a model's costs, a cluster's topology, a memory limit."""

    name: Annotated[Text | None, key("Default: the job's directory, or the file's name if it is not job.toml.")] = None
    pipeline: PipelineSection
    profile: ProfileSection
    lengths: LengthsSection | None = None
    slices: SlicesSection | None = None
    module: Annotated[
        tuple[ModuleEntry, ...],
        key("Parts of the model whose layers are a chain, in the order of the forward. Default: all layers."),
    ] = ()
    edge: Annotated[tuple[LayerEdge, ...], key("What layers take from each other besides.")] = ()
    tied: Annotated[tuple[TiedEntry, ...], key("Weights that two layers hold.")] = ()
    memory: MemorySection | None = None
    devices: DevicesSection = DevicesSection()
    topology: TopologySection = TopologySection()
    data_parallel: DataParallelSection | None = None
    objective: ObjectiveSection = ObjectiveSection()
    solver: SolverSection = SolverSection()

    @property
    def units(self) -> int:
        """How many microbatches of their own number there are: all, or the slices of all."""
        return self.pipeline.microbatches * (1 if self.slices is None else len(self.slices.cut) or 1)

    def rules(self) -> Rules:
        """What sections say of each other: costs by stage, which cannot be divided or placed elsewhere; values per rank."""
        if self.name is not None and not self.name.isprintable():
            yield "name", show(self.name), "printable text on one line"
        pipeline, profile, ranks = self.pipeline, self.profile, self.pipeline.ranks
        split = pipeline.head != "whole"
        if split and profile.path is None:
            yield (
                "pipeline.head",
                f'"{pipeline.head}" for costs by stage',
                "a profile.json in profile.path, whose last layer is the head",
            )
        graphs = (("slices", self.slices), ("module", self.module), ("edge", self.edge), ("pipeline.head", split))
        for section, given in graphs:
            if given and (why := pipeline.is_for_chains()):
                yield section, f"a section {why[0]}", why[1]
        if self.slices is not None and self.lengths is not None:
            yield "slices", "a section beside [lengths]", "one of the two"
        if self.slices is not None and self.slices.state_gradient_bytes is not None and profile.path is not None:
            yield "slices.state_gradient", "a value beside profile.path", "`state_gradient` of layers in the profile.json"
        tied = (
            (pipeline.mode == "asynchronous", 'with mode "asynchronous" in [pipeline]', "`update` has what goes before an update"),
            (pipeline.placement == "bidirectional", 'with placement "bidirectional" in [pipeline]', "each path has both layers"),
            (split, "with the head split over ranks", "no rank has all of the head's weight"),
            (
                self.data_parallel is not None and self.data_parallel.trunk is not None,
                "with data_parallel.trunk",
                "sums take links",
            ),
        )
        for refused, where, why_not in tied if self.tied else ():
            if refused:
                yield "tied", f"a section {where}", f"none, as {why_not}"
        if self.data_parallel is not None and self.data_parallel.zero_stage == 3:
            for refused, where in (
                (pipeline.is_open or AUTO in (pipeline.placement, pipeline.head), "where the layout is to be chosen"),
                (self.slices is not None and self.slices.is_open, "where slices are to be chosen"),
                (bool(self.module or self.edge), "where layers are a graph"),
                (self.memory is not None and self.memory.in_flight is not None, "with memory.in_flight, which counts activations"),
                (self.data_parallel.trunk is not None, "with a trunk"),
            ):
                if refused:
                    yield "data_parallel.zero_stage", f"3 {where}", "0 or 1 there"
        if pipeline.mode == "asynchronous":
            overlap = 'a value with pipeline.mode = "asynchronous"'
            if self.data_parallel is not None:
                yield "data_parallel", overlap, "none; what it takes before an update belongs to pipeline.update"
            if self.objective.minimize is not Objective.MAKESPAN:
                yield (
                    "objective.minimize",
                    show(str(self.objective.minimize)),
                    '"makespan", which is the period where steps overlap',
                )
        elif self.memory is not None and (self.memory.version_bytes, self.memory.bytes_per_version_parameter) != (None, None):
            name = "version" if self.memory.version_bytes is not None else "bytes_per_version_parameter"
            yield f"memory.{name}", 'a value without pipeline.mode = "asynchronous"', "both, or neither of them"
        if profile.path is None:
            by_stage, layers = '"auto" for costs by stage', "or a profile.json in profile.path, whose layers can be divided"
            if pipeline.placement == AUTO:
                yield "pipeline.placement", by_stage, f"a name or a list, {layers}"
            if pipeline.partition == AUTO:
                yield "pipeline.partition", by_stage, f"a list, {layers}"
            fused = profile.backward_ns is not None and not pipeline.split_backward
            for name in ("forward",) if fused else ("forward", "backward_input", "backward_weight"):
                if profile.given[name] is None:
                    durations = 'a duration such as "38 ms" or a list of them'
                    yield f"profile.{name}", "nothing", f"{durations}, or profile.path instead"
        memory = {} if self.memory is None else {f"memory.{name}": value for name, value in self.memory.ways.items()}
        reserve = None if self.memory is None else self.memory.reserve_bytes
        for name, values in {**memory, "memory.reserve": reserve, "devices.speed": self.devices.speed}.items():
            if isinstance(values, tuple) and len(values) != ranks:
                yield name, counted(len(values), "value"), f"{ranks}, one per rank"


NAMING_FILES = (("profile", "path"), ("topology", "path"), ("lengths", "path"), ("lengths", "fit"))
"""The keys that name files, by their section."""


def job_schema() -> dict[str, Any]:
    """The schema of job.toml, as JSON Schema 2020-12; every key has its description."""
    return schema_of(JobFile, "schedc job")
