"""The keys of a tune job, their types and rules: a model, a cluster, a batch, and what is to be tried (format document, "tune").

`schedc.io.conform` makes a `TuneFile` of the parsed TOML. Whether it agrees with model, device and profiles, `request` checks.
"""

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from schedc.frontend.job_file import SolverSection
from schedc.io.conform import Bandwidth, Count, Duration, Rules, Section, Size
from schedc.io.location import show
from schedc.ir import Semantics

Text: TypeAlias = Annotated[str, Meta(min_length=1)]
PlacementName: TypeAlias = Literal["unidirectional", "loop", "wave"]
Across: TypeAlias = Literal["pipeline", "data-parallel"]


SomeCounts: TypeAlias = Annotated[tuple[Count, ...], Meta(min_length=1)]


class ModelSection(Section, frozen=True, kw_only=True):
    """What is trained, and how each pipeline rank divides it among its devices."""

    name: Annotated[Text | None, Meta(description="A known model, as of schedc costs.")] = None
    config: Annotated[Text | None, Meta(description="Instead: the path of a Hugging Face config.json.")] = None
    device: Annotated[Text | None, Meta(description="A known device. Required with name or config.")] = None
    tp: Annotated[Count, Meta(description="Tensor parallel size.")] = 1
    cp: Annotated[Count, Meta(description="Context parallel size.")] = 1
    ep: Annotated[Count, Meta(description="Expert parallel size, within data parallelism.")] = 1
    sequence: Annotated[Count | None, Meta(description="Tokens in a sequence.")] = None
    recompute: Annotated[
        Literal["none", "selective"], Meta(description="selective: B computes norms and activation functions again.")
    ] = "none"
    efficiency: Annotated[
        Annotated[float, Meta(ge=0.001, le=1)] | None,
        Meta(description="This share of the device's peak for all FLOPs, and nothing else takes time. Default: the roofline."),
    ] = None


class TuneSection(Section, frozen=True, kw_only=True):
    """The batch, and what is tried."""

    batch: Annotated[Count | None, Meta(description="Sequences of one training step.")] = None
    batch_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=2**40)] | None, Meta(description="Instead: tokens of one training step.")
    ] = None
    profiles: Annotated[
        Any, Meta(description="Instead of a model: a table with the path of a profile.json per microbatch size.")
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
        tuple[Literal[0, 1], ...],
        Meta(min_length=1, description="0: all-reduce. 1: the replicas divide the optimizer state."),
    ] = (1,)
    recompute: Annotated[
        Annotated[tuple[Literal["none", "full"], ...], Meta(min_length=1)] | None,
        Meta(description="full: all stages run their forward again. Default: both; none alone where torch runs the plan."),
    ] = None
    across_sites: Annotated[tuple[Across, ...], Meta(min_length=1, description="What crosses from site to site.")] = (
        "pipeline",
        "data-parallel",
    )
    split_backward: Annotated[bool, Meta(description="B and W may run apart; false: one fused BW.")] = True
    semantics: Annotated[
        Semantics, Meta(description="The runtime that executes the plan, as of [pipeline]. torch: also for torchtitan.")
    ] = Semantics.SCHEDC

    def rules(self) -> Rules:
        """One batch; what torch cannot do; profiles by size."""
        if (self.batch is None) == (self.batch_tokens is None):
            found = "neither batch nor batch_tokens" if self.batch is None else "both batch and batch_tokens"
            yield "", found, "one of them: the sequences, or the tokens, of a training step"
        if self.semantics is Semantics.TORCH and "full" in (self.recompute or ()):
            expected = '["none"], as torch recomputes inside of layers only: see model.recompute'
            yield "recompute", '"full" where tune.semantics is "torch"', expected
        if self.profiles is not None and (not isinstance(self.profiles, dict) or not self.profiles):
            yield "profiles", show(self.profiles), 'a table such as { 1 = "profile-1.json", 2 = "profile-2.json" }'


class TuneLink(Section, frozen=True, kw_only=True):
    """What it costs to send from one device to another."""

    latency_ns: Annotated[Duration, Meta(description="Default: 0.")] = 0
    bytes_per_second: Annotated[Bandwidth | None, Meta(description="Default: within a site, the device's network.")] = None


class TuneTopology(Section, frozen=True, kw_only=True):
    """Sites with their devices."""

    sites: Annotated[tuple[Count, ...], Meta(min_length=1, description="Devices in each site.")]
    within: Annotated[TuneLink, Meta(description="Each device's link to the others of its site.")] = TuneLink()
    between: Annotated[
        TuneLink | None, Meta(description="Any two sites; the bandwidth is that of all their devices together, in each direction.")
    ] = None

    def rules(self) -> Rules:
        """A bandwidth between sites."""
        if len(self.sites) > 1 and (self.between is None or self.between.bytes_per_second is None):
            yield "between", "no bandwidth", "latency and bandwidth between sites, as there are several"


class StateSection(Section, frozen=True, kw_only=True):
    """What a device can hold, and what it holds for each parameter all the time."""

    capacity_bytes: Annotated[Size | None, Meta(description="Default: the device's memory.")] = None
    reserve_bytes: Annotated[
        Size | None,
        Meta(description="The part of capacity that no plan uses: context, buffers, fragmentation. Default: 6 % of it."),
    ] = None
    weight_bytes: Annotated[Size, Meta(description="For each parameter: the weight that is computed with.")] = 2
    gradient_bytes: Annotated[Size, Meta(description="For each parameter: its gradient, which is reduced in this size.")] = 4
    optimizer_bytes: Annotated[
        Size, Meta(description="For each parameter: optimizer state, which ZeRO 1 divides by the replicas.")
    ] = 12


class TuneFile(Section, frozen=True, kw_only=True):
    """A tune job: here are my model and my cluster, what should I run?"""

    name: Annotated[Text | None, Meta(description="Default: the job's directory, or the file's name if it is not job.toml.")] = None
    model: ModelSection = ModelSection()
    tune: TuneSection
    topology: TuneTopology
    memory: StateSection = StateSection()
    solver: SolverSection = SolverSection()

    def rules(self) -> Rules:
        """A model on a device, or profiles."""
        model, profiles = self.model, self.tune.profiles
        if profiles is not None:
            if model.name is not None or model.config is not None:
                yield "tune.profiles", "profiles beside a model", "model.name, model.config or tune.profiles, one of them"
        elif (model.name is None) == (model.config is None):
            found = "neither name nor config" if model.name is None else "both name and config"
            yield "model", found, "one of them, or tune.profiles instead"
        elif model.device is None:
            yield "model.device", "nothing", 'a known device such as "h100"'
