"""The keys of [profile], [lengths], [memory] and [devices]: their types, meanings and rules."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, structs

from schedc.io.conform import BlockDurations, Count, Counts, Rules, Section, Sizes, key
from schedc.units import format_bytes

Text: TypeAlias = Annotated[str, Meta(min_length=1)]


class ProfileSection(Section, frozen=True, kw_only=True):
    """What a stage's blocks cost: one value for all stages or one per stage, in the order of the forward.

    Instead of a stage's duration there may be a list of them, one for each microbatch.
    """

    path: Annotated[
        Text | None,
        key("A `profile.json` with measured layers, instead of all other keys; relative to the job's directory."),
    ] = None
    forward_ns: Annotated[BlockDurations | None, key("`F`; the forward that runs again, too. Required without `path`.")] = None
    backward_input_ns: Annotated[BlockDurations | None, key("`B`, the backward of the input. Required without `path`.")] = None
    backward_weight_ns: Annotated[BlockDurations | None, key("`W`, the backward of the weights. Required without `path`.")] = None
    backward_ns: Annotated[
        BlockDurations | None,
        key(
            "`BW`, both fused, where measured. With `split_backward = false` it replaces the two: `forward` and `backward` are"
            " enough. Default: `backward_input` + `backward_weight`."
        ),
    ] = None
    activation_bytes: Annotated[Sizes | None, key("Held from the start of `F`. Default: nothing.")] = None
    activation_after_input_bytes: Annotated[
        Sizes | None,
        key("The part of it that `W` still needs after `B`; at most `activation`. Default: nothing."),
    ] = None
    message_bytes: Annotated[
        Sizes | None,
        key("What the stage sends to the next one. Required where its link has a bandwidth. Default: nothing."),
    ] = None
    gradient_message_bytes: Annotated[
        Sizes | None,
        key("The gradient that comes back to this stage for its message. Default: `message`."),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """What the section says by stage, by the keys of the file; of the others None."""
        return {field.encode_name: getattr(self, field.name) for field in structs.fields(self) if field.name != "path"}

    def rules(self) -> Rules:
        """Here or in a file."""
        for name, value in self.given.items():
            if self.path is not None and value is not None:
                yield name, "a value beside profile.path", "the costs here or in the file, not in both"


class LengthsSection(Section, frozen=True, kw_only=True):
    """Sequences of different lengths: what the blocks of each microbatch take follows from them."""

    path: Annotated[
        Text,
        key(
            "A CSV with the tokens of each sequence, relative to the job's directory. Header `length`: one row for each microbatch,"
            " in order. Header `microbatch,length`: one row for each sequence; a microbatch may have several."
        ),
    ]
    profile_length: Annotated[Count, key("L below: the length of the one sequence for which the profile's durations are.")]
    quadratic: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        key(
            "q: the share of a duration at length L that grows with the square of a sequence's length (attention); the rest grows"
            " with its tokens. Default: 0."
        ),
    ] = None
    fit: Annotated[
        Text | None,
        key(
            "Instead of `quadratic`: a CSV with the header `length,duration`, as in `4096,12.5 ms`. q is the quadratic share at L"
            " of a·n + b·n² with a, b ≥ 0, fitted to these times by least squares."
        ),
    ] = None

    def rules(self) -> Rules:
        """One share."""
        if self.quadratic is not None and self.fit is not None:
            yield "fit", "a value beside lengths.quadratic", "one of the two"


class SlicesSection(Section, frozen=True, kw_only=True):
    """Microbatches cut along their sequence: how many slices, and what each of them takes of a whole microbatch's durations."""

    count: Annotated[
        Count | Literal["auto"] | None,
        key("This many slices, of equal length unless `lengths` says otherwise. auto: [chosen](#slices-that-schedc-chooses)."),
    ] = None
    lengths: Annotated[
        tuple[Count, ...] | Literal["auto"] | None,
        key("Instead of `count`: the length of each slice, in tokens. auto: chosen, for `count` slices."),
    ] = None
    tokens: Annotated[Count | None, key("The tokens of a microbatch's sequence. Required with auto, else refused.")] = None
    granularity: Annotated[
        Count | None, key("With auto: lengths are multiples of this many tokens, but for the last one's. Default: 128.")
    ] = None
    most: Annotated[Count | None, key('With `count = "auto"`: at most this many slices. Default: 32.')] = None
    quadratic: Annotated[
        Annotated[float, Meta(ge=0, le=1)] | None,
        key(
            "q: the share of the `forward`, and of the `backward_input`, of a whole microbatch that grows with the square of its"
            " length (attention), for layers of which the profile does not say it. Default: 0."
        ),
    ] = None
    fixed: Annotated[
        float,
        Meta(ge=0, lt=1),
        key("c: the share of a whole microbatch's duration that each slice takes, however short it is (launches). Default: 0."),
    ] = 0.0
    state_gradient_bytes: Annotated[
        Sizes | None,
        key("The gradients of a whole microbatch's keys and values in a stage: one value, or one per stage. Default: nothing."),
    ] = None

    def rules(self) -> Rules:
        """One way to cut, into two slices or more; what leaves cuts open; shares of one whole."""
        count, lengths = self.count, self.lengths
        if (count is None) == (lengths is None) and lengths != "auto":
            yield "count", "a value beside slices.lengths" if count else "nothing", "one of slices.count and slices.lengths"
        if count == 1 or (isinstance(lengths, tuple) and len(lengths) < 2):
            yield "count" if count else "lengths", "one slice", "two or more, or no [slices]"
        if self.fixed + (self.quadratic or 0) > 1:
            yield "fixed", f"{self.fixed} beside quadratic = {self.quadratic}", "shares that add up to at most 1"
        has_auto, counts_auto = 'slices.count or lengths = "auto"', 'slices.count = "auto"'
        for name, value, may, what in (
            ("tokens", self.tokens, self.is_open, has_auto),
            ("granularity", self.granularity, self.is_open, has_auto),
            ("most", self.most, self.is_open and not isinstance(count, int), counts_auto),
        ):
            if value is not None and not may:
                yield name, f"a value without {what}", "both, or neither of them"
        if self.is_open and self.tokens is None:
            yield "tokens", "nothing", "how many a microbatch's sequence has, as slices are chosen"
        elif self.is_open and self.counts[0] > self.counts[1]:
            fit = -(-(self.tokens or 0) // self.multiple)
            yield "count", f"{count}", f"at most {fit}, as a slice has {self.multiple} of {self.tokens} tokens or more"

    @property
    def is_open(self) -> bool:
        """Whether cuts are to be chosen."""
        return "auto" in (self.count, self.lengths)

    @property
    def multiple(self) -> int:
        """Of how many tokens lengths are multiples, where cuts are chosen."""
        return self.granularity or 128

    @property
    def counts(self) -> tuple[int, int]:
        """The fewest and the most slices that may be chosen."""
        fit = -(-(self.tokens or 0) // self.multiple)
        return (self.count, min(self.count, fit)) if isinstance(self.count, int) else (1, min(self.most or 32, fit))

    @property
    def cut(self) -> tuple[int, ...]:
        """The lengths that are given; equal ones are 1 each. None: they are chosen."""
        if self.is_open:
            return ()
        return self.lengths if isinstance(self.lengths, tuple) else (1,) * int(self.count or 1)


class MemorySection(Section, frozen=True, kw_only=True):
    """How much of the activations a rank can hold: by one of limit, in_flight, or capacity with what is static."""

    limit_bytes: Annotated[
        Sizes | None,
        key(
            "Activations that a rank may hold: one value, or one per rank.",
            example='"20 GiB"',
            note="of activations alone, on each rank, instead of all others",
        ),
    ] = None
    in_flight: Annotated[
        Counts | None,
        key("The same as a number of microbatches (or one per rank): each counts with all of the rank's stages of one path."),
    ] = None
    capacity_bytes: Annotated[
        Sizes | None,
        key("The device's memory, one value or one per rank; needs `static` or `bytes_per_parameter`.", note="of the device"),
    ] = None
    static_bytes: Annotated[
        Sizes | None,
        key("What a stage holds all the time: weights, gradients, optimizer state; one value, or one per stage."),
    ] = None
    bytes_per_parameter: Annotated[
        Annotated[float, Meta(ge=0, le=2**20)] | None,
        key(
            "Instead of `static`: a stage holds this for each parameter of its layers in `profile.json`, all the time; a layer's"
            " are rounded up to a whole byte. 18 for Adam in mixed precision, 16 where gradients are summed in 16 bits.",
            note="weights, gradients, optimizer; 18: Adam in mixed precision",
        ),
    ] = None
    bytes_per_expert_parameter: Annotated[
        Annotated[float, Meta(ge=0, le=2**20)] | None,
        key(
            "For the parameters of routed experts (`expert_parameters` in `profile.json`). With expert parallelism an expert has"
            " data-parallel ÷ expert-parallel replicas, so ZeRO divides its optimizer state by fewer. Default:"
            " `bytes_per_parameter`.",
            note="of experts: ZeRO divides their optimizer by data ÷ expert parallel",
        ),
    ] = None
    version_bytes: Annotated[
        Sizes | None,
        key(
            "What one more version of a stage's weights takes where [steps overlap](asynchronous.md), of `limit` or `capacity`; one"
            " value, or one per stage. Default: nothing."
        ),
    ] = None
    bytes_per_version_parameter: Annotated[
        Annotated[float, Meta(ge=0, le=2**20)] | None,
        key("Instead of `version`: for each parameter of its layers in `profile.json`. 2 for weights in bf16."),
    ] = None
    reserve_bytes: Annotated[
        Sizes | None,
        key(
            "The part of `capacity` that no plan uses, one value or one per rank: the CUDA context, buffers of NCCL and of"
            " messages, fragmentation. Default: nothing; [`init`](command-line.md#init) and [`tune`](tune-file.md), which know the"
            " device, keep 6 % of it.",
            note="of that, for the CUDA context, NCCL's buffers and fragmentation",
        ),
    ] = None

    @property
    def ways(self) -> dict[str, Any]:
        """By which of its keys it says what ranks can hold: one of them."""
        ways = {"limit": self.limit_bytes, "in_flight": self.in_flight, "capacity": self.capacity_bytes}
        return {name: value for name, value in ways.items() if value is not None}

    def rules(self) -> Rules:
        """One way, and with a capacity one way to say what is static."""
        ways, capacity = self.ways, self.capacity_bytes
        if len(ways) != 1:
            yield (
                "",
                " and ".join(ways) or "none of the keys",
                "one of limit, in_flight or capacity with static or bytes_per_parameter",
            )
        needing = {"static": self.static_bytes, "bytes_per_parameter": self.bytes_per_parameter, "reserve": self.reserve_bytes}
        for name, value in needing.items():
            if value is not None and capacity is None:
                yield name, "a value without memory.capacity", "both, or neither of them"
        versions = {"version": self.version_bytes, "bytes_per_version_parameter": self.bytes_per_version_parameter}
        said = [name for name, value in versions.items() if value is not None]
        if len(said) > 1:
            yield said[1], "a value beside memory.version", "one of the two"
        elif said and self.in_flight is not None:
            yield said[0], "a value beside memory.in_flight", "memory.limit or memory.capacity, of which versions take their part"
        if self.bytes_per_expert_parameter is not None and self.bytes_per_parameter is None:
            found = "a value without memory.bytes_per_parameter"
            yield "bytes_per_expert_parameter", found, "both, or the other alone"
        if capacity is None:
            return
        if self.static_bytes is None and self.bytes_per_parameter is None:
            sizes = 'a size such as "512 MiB" or a list of them'
            yield "static", "nothing", f"{sizes}, or bytes_per_parameter instead, as memory.capacity is given"
        if self.static_bytes is not None and self.bytes_per_parameter is not None:
            yield "bytes_per_parameter", "a value beside memory.static", "one of the two"
        reserve = self.reserve_bytes or 0
        both = isinstance(capacity, tuple) and isinstance(reserve, tuple)
        values = [each if isinstance(each, tuple) else (each,) for each in (reserve, capacity)]
        too_large = [pair for pair in (zip(*values, strict=False) if both else product(*values)) if pair[0] > pair[1]]
        for kept, each in too_large[:1]:
            yield "reserve", format_bytes(kept), f"at most the capacity, {format_bytes(each)}"


class DevicesSection(Section, frozen=True, kw_only=True):
    """What differs between the ranks' devices."""

    speed: Annotated[
        tuple[Annotated[float, Meta(ge=0.001, le=1000)], ...] | None,
        key(
            "One per rank: the durations of its blocks are divided by it, each to the nearest nanosecond, ties to even. Default: 1"
            " for all."
        ),
    ] = None
