"""profile.json: the costs of a model's layers, as `schedc profile` measures them or a person writes them.

```json
{"format": "schedc.profile", "version": 1,
 "layers": [
   {"name": "embedding", "forward": "0.4 ms", "backward_input": "0 ms", "backward_weight": "0.5 ms", "message": "64 MiB"},
   {"name": "block", "repeat": 32, "forward": "4.1 ms", "backward_input": "4.3 ms", "backward_weight": "3.6 ms",
    "backward": "7.2 ms", "activation": "544 MiB", "activation_after_input": "272 MiB", "message": "64 MiB",
    "spread": {"forward": 0.01, "backward": 0.02}}]}
```
The layers are in the order of the forward; the keys and units are those of the job's [profile], for one microbatch. A stage costs
what its layers cost together, and sends what its last layer does. `spread` says how far to trust a measured duration. A layer of
which only whole backwards were measured has `backward` alone; jobs that take it have `split_backward = false`.
"""

from __future__ import annotations

from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from msgspec import Meta
from msgspec.structs import asdict, fields

from schedc.formats.graph_entries import LayerEdge, ModuleEntry
from schedc.io.conform import Count, Duration, Rules, Section, Size
from schedc.io.tables import JsonValue, pretty_json
from schedc.ir import BLOCKS, Kind, Problem, Stage
from schedc.units import MAX_QUANTITY, format_bytes, format_duration_ns, parse_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence


DIGITS = 4
"""What is kept of a measured duration. Few are good to more, and fewer digits read better in a review."""


Share: TypeAlias = Annotated[float, Meta(ge=0.0)]


class SpreadEntry(Section, frozen=True, kw_only=True):
    """Of measured durations, the middle half of the samples, from first to third quartile, relative to the median."""

    forward: Share | None = None
    backward_input: Share | None = None
    backward_weight: Share | None = None
    backward: Share | None = None


class QuadraticEntry(Section, frozen=True, kw_only=True):
    """The shares of a layer's durations that grow with the square of the sequence (attention); of `W` nothing does."""

    forward: Annotated[float, Meta(ge=0, le=1)] = 0.0
    backward_input: Annotated[float, Meta(ge=0, le=1)] = 0.0


def more_after_input(after_input_bytes: int, whole_bytes: int) -> tuple[str, str]:
    """What is found and expected where W needs more of the activation than there is."""
    found, most = (f"{format_bytes(size)} ({size} B)" for size in (after_input_bytes, whole_bytes))
    return found, f"at most the activation, {most}"


class LayerEntry(Section, frozen=True, kw_only=True):
    """One layer, or several equal ones in a row."""

    name: Annotated[str, Meta(description="For people.")] = ""
    kind: Annotated[str, Meta(description="What it is, for people.")] = ""
    repeat: Annotated[Count, Meta(description="This many equal layers in a row.")] = 1
    parameters: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_QUANTITY)] | None, Meta(description="How many weights each of the layers has. Default: 0.")
    ] = None
    expert_parameters: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_QUANTITY)] | None,
        Meta(description="Those of them that are of routed experts, of which data parallelism holds fewer replicas. Default: 0."),
    ] = None
    forward_ns: Duration
    backward_input_ns: Annotated[
        Duration | None, Meta(description="Left out, as the next, where only fused backwards were measured. Else required.")
    ] = None
    backward_weight_ns: Duration | None = None
    backward_ns: Annotated[
        Duration | None, Meta(description="Fused, where measured. Required without the two. Default: the two together.")
    ] = None
    forward_again_ns: Annotated[
        Duration | None, Meta(description="The forward that runs again where the stage recomputes. Default: the forward.")
    ] = None
    activation_bytes: Annotated[Size | None, Meta(description="Held from the layer's forward. Default: nothing.")] = None
    activation_after_input_bytes: Annotated[
        Size | None, Meta(description="The part of it that W still needs. Default: nothing.")
    ] = None
    message_bytes: Annotated[Size | None, Meta(description="The layer's output, if a stage ends here. Default: nothing.")] = None
    gradient_message_bytes: Annotated[Size | None, Meta(description="The output's gradient. Default: the message's size.")] = None
    state_gradient_bytes: Annotated[
        Size | None, Meta(description="The gradients of its keys and values, where microbatches are in slices. Default: nothing.")
    ] = None
    split_message_bytes: Annotated[
        Size | None, Meta(description="Of the head, what a part of it sends the join where it is split over ranks.")
    ] = None
    quadratic: Annotated[
        QuadraticEntry | None,
        Meta(description="The shares of its durations that are quadratic. Default: those of [slices]."),
    ] = None
    spread: Annotated[SpreadEntry | None, Meta(description="How far the samples of each duration spread, where measured.")] = None

    def rules(self) -> Rules:
        """B and W, or both fused; no part larger than the whole."""
        for name, value in (("backward_input", self.backward_input_ns), ("backward_weight", self.backward_weight_ns)):
            if value is None and (self.backward_ns is None or not self.is_fused):
                yield name, "nothing", 'a duration such as "38 ms"'
        after_input, whole = self.activation_after_input_bytes or 0, self.activation_bytes or 0
        if after_input > whole:
            yield "activation_after_input", *more_after_input(after_input, whole)
        if (self.expert_parameters or 0) > (self.parameters or 0):
            yield "expert_parameters", f"{self.expert_parameters}", f"at most the layer's parameters, {self.parameters or 0}"

    @property
    def is_fused(self) -> bool:
        """Whether nothing is known of B and W apart, neither their times nor what is held between them."""
        return self.backward_input_ns is None and self.backward_weight_ns is None

    @property
    def parts_ns(self) -> tuple[int, int]:
        """B and W, W nothing where only both together are known."""
        if self.is_fused:
            return self.backward_ns or 0, 0
        return self.backward_input_ns or 0, self.backward_weight_ns or 0

    @property
    def whole_ns(self) -> int:
        """BW."""
        return sum(self.parts_ns) if self.backward_ns is None else self.backward_ns


class ProfileFile(Section, frozen=True, kw_only=True):
    """Measured layers of a model."""

    format: Literal["schedc.profile"]
    version: Literal[1]
    model: Annotated[str, Meta(description="For people.")] = ""
    device: Annotated[str, Meta(description="What it was measured on, or predicted for. Default: not known.")] = ""
    layers: Annotated[tuple[LayerEntry, ...], Meta(min_length=1, description="In the order of the forward.")]
    modules: Annotated[tuple[ModuleEntry, ...], Meta(description="Parts of the model that are chains. Default: all is one.")] = ()
    edges: Annotated[tuple[LayerEdge, ...], Meta(description="What layers take from each other besides.")] = ()


def profile_json(
    layers: Sequence[LayerEntry],
    *,
    modules: Sequence[ModuleEntry] = (),
    edges: Sequence[LayerEdge] = (),
    model: str = "",
    device: str = "",
    exact: bool = False,
) -> str:
    """The text of the file.

    Args:
        layers: in the order of the forward, at least one. What is not known of them is left out.
        modules: that have them, where the model is a graph.
        edges: besides those within and between modules.
        model: a name for people.
        device: what they were measured on, or predicted for.
        exact: every nanosecond and every byte; else as many digits as people read.
    """
    file: dict[str, JsonValue] = {"format": "schedc.profile", "version": 1}
    if model:
        file["model"] = model
    if device:
        file["device"] = device
    for name, entries in (("layers", layers), ("modules", modules), ("edges", edges)):
        if entries:
            file[name] = [_entry(each, exact) for each in entries]
    return pretty_json(file)


def _entry(of: LayerEntry | ModuleEntry | LayerEdge, exact: bool) -> dict[str, JsonValue]:
    entry: dict[str, JsonValue] = {}
    for field in fields(of):
        value = getattr(of, field.name)
        if value == field.default:
            continue
        if field.name.endswith("_ns"):
            value = format_duration_ns(value, 9) if exact else _duration(value)
        elif field.name.endswith("_bytes"):
            text = format_bytes(value)
            value = text if not exact or parse_bytes(text) == value else f"{value} B"
        elif isinstance(value, SpreadEntry | QuadraticEntry):
            value = {name: round(share, 3) for name, share in asdict(value).items() if share is not None}
        elif isinstance(value, tuple):
            value = [*value]
        entry[field.encode_name] = value
    return entry


def _duration(duration_ns: int) -> str:
    """`4.123 ms`, to `DIGITS` digits."""
    factor = 10 ** max(0, len(str(duration_ns)) - DIGITS)
    return format_duration_ns(round(duration_ns / factor) * factor)


def stage_profile_json(problem: Problem) -> bytes:
    """A problem's stages as a profile, exactly: the file's bytes; they end with a newline.

    There is one layer for each stage, in the order of the forward. A job with this profile and the same placement gets stages with
    exactly these costs.

    A stage whose microbatches differ gets the median; one that recomputes, the most that it holds between its blocks. Of a
    bidirectional placement's two stages of one piece, the one on the first path counts. Where no backward may be split and the
    problem has no W, nothing is known of B and W apart, and the file says so. A graph is there with its edges, each stage a module.
    Of microbatches in slices the durations are those of all slices together, with the share of them that is quadratic which fits
    the slices best, where these take nothing besides (`fixed` is 0).
    """
    layers = [_layer(problem, stage) for stage in problem.paths[0]]
    modules = [ModuleEntry(name=f"stage{stage}", layers=1, inputs=()) for stage in problem.paths[0] if problem.edges]
    number = {stage: place for place, stage in enumerate(problem.paths[0])}
    edges = [
        LayerEdge(
            source=number[edge.source],
            destination=number[edge.destination],
            value=f"value{edge.value}",
            message_bytes=edge.message_bytes,
            gradient=edge.has_gradient,
            gradient_message_bytes=edge.gradient_message_bytes if edge.gradient_message_bytes != edge.message_bytes else None,
        )
        for edge in problem.edges
    ]
    return profile_json(layers, modules=modules, edges=edges, model=problem.name, exact=True).encode()


def _quadratic(lengths: Sequence[int], slices_ns: Sequence[int]) -> float:
    """The share of a microbatch's duration that is quadratic, by the least squares of its slices' durations from those it gives."""
    whole, whole_ns = sum(lengths), sum(slices_ns)
    linear = [length / whole for length in lengths]
    apart = [((end / whole) ** 2 - (end / whole - x) ** 2) - x for end, x in zip(accumulate(lengths), linear, strict=True)]
    squares = sum(each * each for each in apart)
    if not squares or not whole_ns:
        return 0.0
    return min(1.0, max(0.0, sum((ns / whole_ns - x) * a for ns, x, a in zip(slices_ns, linear, apart, strict=True)) / squares))


def _layer(problem: Problem, number: int) -> LayerEntry:
    stage, split, parts = problem.stages[number], problem.split_backward, len(problem.slices) or 1
    slices_ns = {kind: [round(median(_of(problem, stage, kind, part))) for part in range(parts)] for kind in BLOCKS}
    time_ns = {kind: sum(values) for kind, values in slices_ns.items()}
    forward, backward = (_quadratic(problem.slices, slices_ns[kind]) for kind in (Kind.F, Kind.B))
    is_fused = not split and not any(stage.backward_weight_ns)
    is_sum = time_ns[Kind.BW] == time_ns[Kind.B] + time_ns[Kind.W]
    layers = "" if stage.layers is None else f", layers {stage.layers[0]} to {stage.layers[1] - 1}"
    return LayerEntry(
        name=f"stage {number}{layers}",
        parameters=stage.parameters or None,
        expert_parameters=stage.expert_parameters or None,
        forward_ns=time_ns[Kind.F],
        backward_input_ns=None if is_fused else time_ns[Kind.B],
        backward_weight_ns=None if is_fused else time_ns[Kind.W],
        backward_ns=None if is_sum and not is_fused else time_ns[Kind.BW],
        activation_bytes=max(stage.activation_bytes, stage.activation_after_input_bytes),
        activation_after_input_bytes=None if is_fused else stage.activation_after_input_bytes,
        message_bytes=stage.message_bytes,
        gradient_message_bytes=None if stage.gradient_message_bytes == stage.message_bytes else stage.gradient_message_bytes,
        state_gradient_bytes=stage.state_gradient_bytes or None,
        quadratic=QuadraticEntry(forward=forward, backward_input=backward) if problem.slices else None,
    )


def _of(problem: Problem, stage: Stage, kind: Kind, part: int) -> Sequence[int]:
    """The durations of a slice, of all microbatches."""
    values = stage.durations_ns(kind)
    return values if len(values) == 1 else values[part :: len(problem.slices) or 1]
