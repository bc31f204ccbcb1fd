"""[profile] and the partition: the workload's layers, and which of them each stage has.

Takes values for each stage, or a profile.json with measured layers. What a job gives by stage is a layer that no layout cuts. Where
the model's layers are not known, the two replicas of a bidirectional placement still get a position, by which they are recognized.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from schedc.errors import Defect
from schedc.formats.graph_entries import edges_of_entries, ties_of_entries
from schedc.formats.profile_file import LayerEntry, ProfileFile, more_after_input
from schedc.frontend.job_source import read_named
from schedc.io.location import Location
from schedc.io.tables import parse_json
from schedc.ir import Edge, Layer, Placement, TiedWeight
from schedc.lower.problem import together_ns
from schedc.lower.slices import alike_or_each
from schedc.spelling import counted
from schedc.units import MAX_QUANTITY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import JobFile, PipelineSection
    from schedc.frontend.job_source import JobSource
    from schedc.io.conform import BlockDurations

T = TypeVar("T")

Partition = tuple[tuple[int, int], ...]
"""Per stage, its layers [first, last) of the workload."""

_MOST_LAYERS = 2**16


def read_layers(
    job: JobFile, source: JobSource, placed: Placement | None
) -> tuple[tuple[Layer, ...], Partition | None, ProfileFile | None]:
    """The layers with their costs, those of each stage (None where these are to be balanced, or are open), and the profile.json.

    `placed` is None where the placement is open; there is such a file then.

    Raises:
        InvalidInput: lists of a wrong length, or a profile.json that cannot be used.
    """
    pipeline, profile, root = job.pipeline, job.profile, source.place
    if profile.path is None:
        if placed is None:
            raise Defect("costs by stage without a placement")
        return *_from_values(job, placed, root), None
    file, place = read_named(source, "profile", profile.path, ProfileFile, parse_json)
    return *_from_layers(pipeline, file, placed, place, root), file


def read_edges(job: JobFile, profile: ProfileFile | None, layers: Sequence[Layer], source: JobSource) -> tuple[Edge, ...]:
    """The graph of the layers, from the job or the profile.json; none: they are a chain.

    Raises:
        InvalidInput: both have one, or what they say cannot be.
    """
    place = source.place
    if profile is None or not (profile.modules or profile.edges):
        return edges_of_entries(job.module, job.edge, layers, (place / "module", place / "edge"))
    if job.module or job.edge:
        raise (place / ("module" if job.module else "edge")).refuse(
            "a section beside a profile.json with modules or edges", "them in one of the two"
        )
    file = Location(str(source.directory / (job.profile.path or "")))
    if why := job.pipeline.is_for_chains():
        raise (file / ("modules" if profile.modules else "edges")).refuse(f"layers that are a graph {why[0]}", why[1])
    return edges_of_entries(profile.modules, profile.edges, layers, (file / "modules", file / "edges"))


def read_ties(job: JobFile, profile: ProfileFile | None, layers: int, root: Location) -> tuple[TiedWeight, ...]:
    """The weights that two layers hold; in what names layers, modules are those of the job or of the profile.json.

    Raises:
        InvalidInput: layers that do not exist.
    """
    modules = job.module if profile is None or not profile.modules else profile.modules
    return ties_of_entries(modules, job.tied, layers, root / "tied")


def quadratic_of(profile: ProfileFile | None, layers: int) -> list[tuple[float, float] | None]:
    """Per layer, the shares of forward and backward_input that are quadratic; None: the profile does not say."""
    if profile is None:
        return [None] * layers
    each = ((entry.repeat, entry.quadratic) for entry in profile.layers)
    return [None if of is None else (of.forward, of.backward_input) for repeat, of in each for _ in range(repeat)]


def layers_of_entries(entries: Sequence[LayerEntry], file: Location, *, split_backward: bool) -> tuple[Layer, ...]:
    """The workload's layers, each entry of a profile.json as often as it repeats.

    Raises:
        InvalidInput: too many of them, or one whose B and W are not known apart, as they must be.
    """
    total = sum(layer.repeat for layer in entries)
    if total > _MOST_LAYERS:
        raise (file / "layers").refuse(f"{total} layers", f"at most {_MOST_LAYERS}")
    for index, layer in enumerate(entries):
        if layer.is_fused and split_backward:  # its W would cost neither time nor memory
            expected = "the times of B and W, as they may run apart"
            instead = "profile with B and W apart, or set pipeline.split_backward = false"
            place = file / "layers" / index / "backward_input"
            raise place.refuse("a backward measured fused alone", f"{expected}; {instead}")
    parameters = sum(layer.repeat * (layer.parameters or 0) for layer in entries)
    if parameters > MAX_QUANTITY:
        raise (file / "layers").refuse(f"{parameters} parameters in all", f"at most {MAX_QUANTITY}")
    repeated = (entry for entry in entries for _ in range(entry.repeat))
    return tuple(_layer(entry, position) for position, entry in enumerate(repeated))


def per_stage(values: T | tuple[T, ...], placed: Placement | None, location: Location) -> tuple[T, ...]:
    """The value of each stage, from one for all, one per stage, or one per piece of a model that the ranks hold twice.

    Where the placement is open (None), one value stays one for all, and a list may have any length.

    Raises:
        InvalidInput: a list of another length.
    """
    if placed is None:
        return values if isinstance(values, tuple) else (values,)
    if not isinstance(values, tuple):
        return (values,) * len(placed.rank_of_stage)
    return _of_stages(values, placed, location)


def _of_stages(values: tuple[T, ...], placed: Placement, location: Location) -> tuple[T, ...]:
    stages = len(placed.rank_of_stage)
    if len(values) == stages:
        return values
    if len(values) == placed.pieces:
        return tuple(values[piece] for piece in placed.piece_of_stage)
    pieces = f", or {placed.pieces}, one per piece of the model" if placed.pieces != stages else ""
    raise location.refuse(counted(len(values), "value"), f"{stages}, one per stage{pieces}")


def _from_values(job: JobFile, placed: Placement, root: Location) -> tuple[tuple[Layer, ...], Partition]:
    pipeline, profile, at = job.pipeline, job.profile, root / "profile"
    counts = sorted({job.units, job.units // pipeline.microbatches}) if job.slices else [pipeline.microbatches]
    given = profile.given

    def sizes(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return default if given[key] is None else per_stage(given[key], placed, at / key)

    def durations(key: str, default: Sequence[tuple[int, ...]]) -> Sequence[tuple[int, ...]]:
        value: BlockDurations | None = given[key]
        if value is None:
            return default
        if isinstance(value, int):
            return [(value,)] * len(placed.rank_of_stage)
        of_each = tuple((each,) if isinstance(each, int) else alike_or_each(each) for each in value)
        for index, each in enumerate(value):
            if isinstance(each, tuple) and len(each) not in counts:
                expected = f"{counts[0]}, one per slice" if job.slices else f"{pipeline.microbatches}, one per microbatch"
                raise (at / key / index).refuse(counted(len(each), "value"), expected)
        return _of_stages(of_each, placed, at / key)

    nothing, no_time = (0,) * len(placed.rank_of_stage), [(0,)] * len(placed.rank_of_stage)
    weight = durations("backward_weight", no_time)
    # Without W apart, a job may know the fused time alone; its input part is then what the weight part leaves of it.
    fused = durations("backward", no_time)
    without_weight = [
        tuple(max(0, each) for each in together_ns([whole, [-each for each in part]]))
        for whole, part in zip(fused, weight, strict=True)
    ]
    backward_input = durations("backward_input", without_weight)
    parts = [together_ns(each) for each in zip(backward_input, weight, strict=True)]
    activation, after = sizes("activation", nothing), sizes("activation_after_input", nothing)
    for stage, (whole, rest) in enumerate(zip(activation, after, strict=True)):
        place = at / "activation_after_input"
        if rest > whole:
            at_stage = place / stage if isinstance(profile.activation_after_input_bytes, tuple) else place
            raise at_stage.refuse(*more_after_input(rest, whole))
    message = sizes("message", nothing)
    costs: dict[str, Sequence[Any]] = {
        "forward_ns": durations("forward", no_time),
        "backward_input_ns": backward_input,
        "backward_weight_ns": weight,
        "backward_ns": durations("backward", parts),
        "activation_bytes": activation,
        "activation_after_input_bytes": after,
        "message_bytes": message,
        "gradient_message_bytes": sizes("gradient_message", message),
    }
    if job.slices is not None and job.slices.state_gradient_bytes is not None:
        place = root / "slices" / "state_gradient"
        costs["state_gradient_bytes"] = per_stage(job.slices.state_gradient_bytes, placed, place)
    positions, pieces = _layers_of_pieces(pipeline, placed, None, root), placed.piece_of_stage
    layers = tuple(
        Layer(**{name: values[stage] for name, values in costs.items()}, position=positions[piece])
        for stage, piece in enumerate(pieces)
    )
    first_path = layers[: placed.pieces]
    if first_path * len(placed.paths) == layers:  # replicas that cost the same have the same layer
        return first_path, tuple((piece, piece + 1) for piece in pieces)
    return layers, tuple((stage, stage + 1) for stage in range(len(layers)))


def _from_layers(
    pipeline: PipelineSection, profile: ProfileFile, placed: Placement | None, file: Location, root: Location
) -> tuple[tuple[Layer, ...], Partition | None]:
    layers = layers_of_entries(profile.layers, file, split_backward=pipeline.split_backward)
    total = len(layers) - (pipeline.head != "whole")  # which may have stages of its own
    least, each = (pipeline.ranks, "rank") if placed is None else (placed.pieces, "piece of the model")
    if total < least:
        raise (file / "layers").refuse(counted(total, "layer"), f"{least} or more, one for each {each}")
    if pipeline.partition is None or isinstance(pipeline.partition, str):
        return layers, None
    if placed is None:
        _check_counts(pipeline.partition, len(pipeline.partition), total, root / "pipeline" / "partition")
        return layers, tuple(pairwise((0, *accumulate(pipeline.partition))))
    of_piece = _layers_of_pieces(pipeline, placed, total, root)
    return layers, tuple(bounds for piece in placed.piece_of_stage if (bounds := of_piece[piece]))


def _layer(entry: LayerEntry, position: int) -> Layer:
    message, gradient = entry.message_bytes or 0, entry.gradient_message_bytes
    input_ns, weight_ns = entry.parts_ns
    return Layer(
        forward_ns=(entry.forward_ns,),
        backward_input_ns=(input_ns,),
        backward_weight_ns=(weight_ns,),
        backward_ns=(entry.whole_ns,),
        activation_bytes=entry.activation_bytes or 0,
        activation_after_input_bytes=entry.activation_after_input_bytes or 0,
        message_bytes=message,
        gradient_message_bytes=message if gradient is None else gradient,
        forward_again_ns=None if entry.forward_again_ns is None else (entry.forward_again_ns,),
        parameters=entry.parameters or 0,
        expert_parameters=entry.expert_parameters or 0,
        state_gradient_bytes=entry.state_gradient_bytes or 0,
        split_message_bytes=entry.split_message_bytes or 0,
        position=(position, position + 1),
    )


def _layers_of_pieces(
    pipeline: PipelineSection, placed: Placement, total: int | None, root: Location
) -> tuple[tuple[int, int] | None, ...]:
    """The layers [first, last) of each model piece; `total` is how many the profile has, None if it says nothing of layers."""
    pieces, counts = placed.pieces, pipeline.partition
    at = root / "pipeline" / "partition"
    assert not isinstance(counts, str), "an open partition is for a profile.json"
    if counts is not None:
        _check_counts(counts, pieces, total, at)
    elif len(placed.paths) > 1:
        counts = (1,) * pieces
    else:
        return (None,) * pieces
    return tuple(pairwise((0, *accumulate(counts))))


def _check_counts(counts: Sequence[int], pieces: int, total: int | None, location: Location) -> None:
    if len(counts) != pieces:
        raise location.refuse(counted(len(counts), "value"), f"{pieces}, one for each piece of the model")
    if total is not None and sum(counts) != total:
        raise location.refuse(f"{counted(sum(counts), 'layer')} in all", f"the {total} of the profile")
