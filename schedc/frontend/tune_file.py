"""The keys of a tune job, their types and rules: a model, a cluster, a batch, and what is to be tried (format document, "tune").

`schedc.io.conform` makes a `TuneFile` of the parsed TOML. Whether it agrees with model, device and profiles, `request` checks.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from schedc.frontend.job_file import SolverSection
from schedc.io.conform import Bandwidth, Count, Duration, Rules, Section, Size, Sizes
from schedc.io.location import show
from schedc.ir import Semantics, Versions
from schedc.spelling import counted

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
PlacementName: TypeAlias = Literal["unidirectional", "loop", "wave"]
Gathers: TypeAlias = Literal["blocks", "plan"]
Across: TypeAlias = Literal["pipeline", "data-parallel"]
StepMicrobatches: TypeAlias = Count | Literal["all"]
SomeCounts: TypeAlias = Annotated[tuple[Count, ...], Meta(min_length=1)]


class ModelSection(Section, frozen=True, kw_only=True):
    """What is trained, and how each pipeline rank divides it among its devices."""

    name: Annotated[Text | None, Meta(description="A known model, as of schedc costs.")] = None
    config: Annotated[Text | None, Meta(description="Instead: the path of a Hugging Face config.json.")] = None
    device: Annotated[Text | None, Meta(description="A known device. Required with name or config.")] = None
    tp: Annotated[
        Count | SomeCounts | None, Meta(description="Tensor parallel size, or those to try. Default: the powers of two in a node.")
    ] = None
    cp: Annotated[
        Count | SomeCounts | None,
        Meta(description="Context parallel size, or those to try. Default: powers of two that leave a device 4,096 tokens."),
    ] = None
    ep: Annotated[
        Count | SomeCounts | None,
        Meta(
            description="Expert parallel size, within data × context × tensor parallelism, or those to try. Default: the powers"
            " of two that divide the experts."
        ),
    ] = None
    etp: Annotated[
        Count | SomeCounts | None,
        Meta(description="Devices that divide the width of an expert, or those to try. Default: tp and 1."),
    ] = None
    context_exchange: Annotated[
        Literal["ring", "all-to-all"], Meta(description="How devices of one sequence meet: keys go round, or heads are exchanged.")
    ] = "ring"
    expert_exchange: Annotated[
        Literal["all-to-all", "hierarchical"],
        Meta(description="How tokens come to their experts: a copy for each of them, or one for each node, as DeepEP sends it."),
    ] = "all-to-all"
    framework: Annotated[
        Literal["plain", "megatron-te"], Meta(description="Whose habits count in memory and time, as of schedc costs.")
    ] = "plain"
    sequence: Annotated[Count | None, Meta(description="Tokens in a sequence.")] = None
    recompute: Annotated[
        Literal["none", "selective"],
        Meta(description="selective: B computes norms and activation functions again, in all candidates."),
    ] = "none"
    efficiency: Annotated[
        Annotated[float, Meta(ge=0.001, le=1)] | None,
        Meta(description="This share of the device's peak for all FLOPs, and nothing else takes time. Default: the roofline."),
    ] = None
    table: Annotated[
        Text | None,
        Meta(description="The path of a [table measured on the device](measuring.md#a-devices-table). Default: the device's own."),
    ] = None


class TuneSection(Section, frozen=True, kw_only=True):
    """The batch, and what is tried."""

    batch: Annotated[Count | None, Meta(description="Sequences of one training step.")] = None
    batch_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)] | None, Meta(description="Instead: tokens of one training step.")
    ] = None
    profiles: Annotated[
        Any,
        Meta(
            description="Instead of a model: a table with the path of a profile.json per microbatch size, or one such table for"
            " each site."
        ),
    ] = None
    ranks: Annotated[SomeCounts | None, Meta(description="Pipeline ranks. Default: all that divide.")] = None
    microbatch_sizes: Annotated[
        SomeCounts | None, Meta(description="Sequences in a microbatch. Default: 1, 2, 4 and 8, or the profiles'.")
    ] = None
    placements: Annotated[tuple[PlacementName, ...], Meta(min_length=1, description="Which rank each stage is on.")] = (
        "unidirectional",
        "loop",
        "wave",
    )
    chunks: Annotated[tuple[Count, ...], Meta(min_length=1, description="Stages on a rank, for loop and wave.")] = (2,)
    zero_stages: Annotated[
        tuple[Literal[0, 1, 2, 3], ...],
        Meta(
            min_length=1,
            description="0: all-reduce. 1: the replicas divide the optimizer state. 2: gradients, too, reduced after each backward."
            " 3: weights, too, gathered for each block (FSDP with resharding).",
        ),
    ] = (1, 2, 3)
    gathers: Annotated[
        tuple[Gathers, ...],
        Meta(
            min_length=1,
            description="With zero_stage 3, when weights are gathered. blocks: layer by layer, beside each block. plan: stage by"
            " stage, where the plan says, which releases them for room; of ranks with several stages.",
        ),
    ] = ("blocks", "plan")
    recompute: Annotated[
        Annotated[tuple[Literal["none", "selective", "full"], ...], Meta(min_length=1)] | None,
        Meta(
            description="selective: B computes norms and activation functions again. full: all stages run their forward again."
            " Default: all three; without full where torch runs the plan, without selective for profiles."
        ),
    ] = None
    across_sites: Annotated[tuple[Across, ...], Meta(min_length=1, description="What crosses from site to site.")] = (
        "pipeline",
        "data-parallel",
    )
    split_backward: Annotated[bool, Meta(description="B and W may run apart; false: one fused BW.")] = True
    semantics: Annotated[
        Semantics, Meta(description="The runtime that executes the plan, as of [pipeline]. torch: also for torchtitan.")
    ] = Semantics.SCHEDC
    modes: Annotated[
        Annotated[tuple[Literal["synchronous", "asynchronous"], ...], Meta(min_length=1)] | None,
        Meta(description="asynchronous: steps overlap. Default: both with [loss], else synchronous, and so where torch runs it."),
    ] = None
    versions: Annotated[
        Annotated[tuple[Versions, ...], Meta(min_length=1)] | None,
        Meta(description="Which weights ops read where steps overlap, as of [pipeline]. Default: stash and 2bw."),
    ] = None
    most_delays: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=0, le=2**20)], ...], Meta(min_length=1)] | None,
        Meta(description="Where versions are bounded, each most_delay to try. Default: 1."),
    ] = None
    step_microbatches: Annotated[
        Annotated[tuple[StepMicrobatches, ...], Meta(min_length=1)] | None,
        Meta(
            description="Microbatches of each pipeline in a step, where steps overlap: one update. all: those of the batch."
            " Default: 1 and all; all alone by the theory."
        ),
    ] = None

    def rules(self) -> Rules:
        """One batch; what torch cannot do; profiles by size."""
        if (self.batch is None) == (self.batch_tokens is None):
            found = "neither batch nor batch_tokens" if self.batch is None else "both batch and batch_tokens"
            yield "", found, "one of them: the sequences, or the tokens, of a training step"
        if self.semantics is Semantics.TORCH and "asynchronous" in (self.modes or ()):
            yield "modes", '"asynchronous" where tune.semantics is "torch"', '["synchronous"], as torch\'s steps end'
        if self.most_delays is not None and Versions.BOUNDED not in (self.versions or ()):
            yield "most_delays", 'values where tune.versions has no "bounded"', "both, or no such key"
        if self.semantics is Semantics.TORCH and "full" in (self.recompute or ()):
            expected = '["none"], as torch recomputes inside of layers only: see model.recompute'
            yield "recompute", '"full" where tune.semantics is "torch"', expected
        if self.profiles is not None and "selective" in (self.recompute or ()):
            yield "recompute", '"selective" with tune.profiles', "none or full, as the profiles say what a layer computes again"
        tables = self.profiles if isinstance(self.profiles, list) else [self.profiles]
        if self.profiles is not None and not (tables and all(isinstance(each, dict) and each for each in tables)):
            yield "profiles", show(self.profiles), 'a table such as { 1 = "profile-1.json", 2 = "profile-2.json" }'


class TuneLink(Section, frozen=True, kw_only=True):
    """What it costs to send from one device to another."""

    latency_ns: Annotated[Duration, Meta(description="Default: 0.")] = 0
    bytes_per_second: Annotated[
        Bandwidth | None,
        Meta(description="Default: within a site, the device's links where each site is one node, else its network."),
    ] = None


class TuneTopology(Section, frozen=True, kw_only=True):
    """Sites with their devices."""

    sites: Annotated[tuple[Count, ...], Meta(min_length=1, description="Devices in each site.")]
    devices: Annotated[
        tuple[Text, ...] | None, Meta(description="Where sites differ, the known device of each. Default: model.device.")
    ] = None
    nodes: Annotated[
        tuple[Count, ...] | None,
        Meta(description="Of each site: devices in a node, which fast links connect. Default: as the device's maker has it."),
    ] = None
    within: Annotated[TuneLink, Meta(description="Each device's link to the others of its site.")] = TuneLink()
    between: Annotated[
        TuneLink | None, Meta(description="Any two sites; the bandwidth is that of all their devices together, in each direction.")
    ] = None

    def rules(self) -> Rules:
        """A bandwidth between sites; a device and a node's size for each."""
        for name, values in (("devices", self.devices), ("nodes", self.nodes)):
            if values is not None and len(values) != len(self.sites):
                yield name, counted(len(values), "value"), f"{len(self.sites)}, one for each site"
        if len(self.sites) > 1 and (self.between is None or self.between.bytes_per_second is None):
            yield "between", "no bandwidth", "latency and bandwidth between sites, as there are several"


class StateSection(Section, frozen=True, kw_only=True):
    """What a device can hold, and what it holds for each parameter all the time."""

    capacity_bytes: Annotated[Sizes | None, Meta(description="One value, or one for each site. Default: the device's memory.")] = (
        None
    )
    reserve_bytes: Annotated[
        Sizes | None,
        Meta(
            description="The part of capacity that no plan uses, as capacity: context, buffers, fragmentation. Default: 6 % of it."
        ),
    ] = None
    weight_bytes: Annotated[Size, Meta(description="For each parameter: the weight that is computed with.")] = 2
    gradient_bytes: Annotated[Size, Meta(description="For each parameter: its gradient, which is reduced in this size.")] = 4
    optimizer_bytes: Annotated[
        Size, Meta(description="For each parameter: optimizer state, which ZeRO 1 divides by the replicas.")
    ] = 12


class LossSection(Section, frozen=True, kw_only=True):
    """What is to be reached soonest, and what delays cost: by a table of measurements, or by the theory."""

    optimizer: Annotated[Text | None, Meta(description="By its name in the table of delays.")] = None
    tokens: Annotated[
        Annotated[int, Meta(ge=1, le=10**18)] | None, Meta(description="That a run without delay needs until the loss.")
    ] = None
    delay_table: Annotated[
        Text | None, Meta(description="The path of a table of delays. Default: public measurements, of one model and one seed.")
    ] = None
    convergence: Annotated[
        Text | None, Meta(description="Instead of optimizer: the path of a convergence.json, for DynPipe's theory.")
    ] = None
    learning_rate: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="With convergence. Default: as its file says.")
    ] = None
    error: Annotated[
        Annotated[float, Meta(gt=0)] | None, Meta(description="With convergence: the mean squared gradient to reach.")
    ] = None
    update_ns: Annotated[
        Duration | None,
        Meta(
            description="The optimizer's step of all parameters on one device; stages and ZeRO 1 divide it. Default: what moving"
            " gradients, states and weights through the device's memory takes; 0 without a device, or with model.efficiency."
        ),
    ] = None

    def rules(self) -> Rules:
        """The table, or the theory."""
        if (self.optimizer is None) == (self.convergence is None):
            found = "neither optimizer nor convergence" if self.optimizer is None else "both optimizer and convergence"
            yield "", found, "one of them: a table of what delays cost, or the theory"
            return
        table = {"tokens": self.tokens, "delay_table": self.delay_table}
        theory = {"error": self.error, "learning_rate": self.learning_rate}
        of, needed, others = ("optimizer", "tokens", theory) if self.convergence is None else ("convergence", "error", table)
        for name, value in others.items():
            if value is not None:
                yield name, show(value), f"no such key with {of}"
        if {**table, **theory}[needed] is None:
            of_tokens = "the tokens that a run without delay needs until the loss"
            yield needed, "nothing", of_tokens if needed == "tokens" else "the mean squared gradient to reach"


class TuneFile(Section, frozen=True, kw_only=True):
    """A tune job: here are my model and my cluster, what should I run?"""

    name: Annotated[Text | None, Meta(description="Default: the job's directory, or the file's name if it is not job.toml.")] = None
    model: ModelSection = ModelSection()
    tune: TuneSection
    topology: TuneTopology
    memory: StateSection = StateSection()
    loss: Annotated[
        LossSection | None, Meta(description="Candidates are compared by the time to a loss. Default: by the time of a step.")
    ] = None
    solver: SolverSection = SolverSection()

    def rules(self) -> Rules:
        """A model on a device, or profiles; values for each site; a loss where steps overlap."""
        sites = self.topology.sites
        of_sites = {"memory.capacity": self.memory.capacity_bytes, "memory.reserve": self.memory.reserve_bytes}
        of_sites["tune.profiles"] = tuple(self.tune.profiles) if isinstance(self.tune.profiles, list) else None
        for key, values in of_sites.items():
            if isinstance(values, tuple) and len(values) != len(sites):
                yield key, counted(len(values), "value"), f"{len(sites)}, one for each site"
        model, profiles = self.model, self.tune.profiles
        modes, loss = self.tune.modes, self.loss
        if "asynchronous" in (modes or ()) and loss is None:
            yield "tune.modes", '"asynchronous" without [loss]', "[loss], which says what the delays cost, or synchronous alone"
        torch = self.tune.semantics is Semantics.TORCH
        for name in ("versions", "most_delays", "step_microbatches"):
            if getattr(self.tune, name) is not None and (
                loss is None or torch or "asynchronous" not in (modes or ("asynchronous",))
            ):
                yield f"tune.{name}", "a value where no steps overlap", "[loss], and tune.modes with asynchronous"
        if loss is not None and loss.convergence is not None and set(self.tune.step_microbatches or ("all",)) != {"all"}:
            expected = '["all"] with loss.convergence, as the theory does not say what a larger batch gains'
            yield "tune.step_microbatches", show(self.tune.step_microbatches), expected
        if model.table is not None and model.device is None:
            yield "model.table", "a table without model.device", "the known device that it is of"
        if profiles is not None:
            for name in ("tp", "cp", "ep", "etp"):
                if isinstance(getattr(model, name), tuple):
                    yield f"model.{name}", "several sizes with tune.profiles", "one, that which the profiles were measured with"
            if model.name is not None or model.config is not None:
                yield "tune.profiles", "profiles beside a model", "model.name, model.config or tune.profiles, one of them"
        elif (model.name is None) == (model.config is None):
            found = "neither name nor config" if model.name is None else "both name and config"
            yield "model", found, "one of them, or tune.profiles instead"
        elif model.table is not None and model.efficiency is not None:
            yield "model.table", "a table beside model.efficiency", "one of them"
        elif model.device is None and self.topology.devices is None:
            yield "model.device", "nothing", 'a known device such as "h100"'
