"""[profile] made into the problem's stages, from values for each stage or from a profile.json with measured layers.

Takes the sections [pipeline] and [profile] and the placement; gives one `Stage` for each stage of it. Where the layers of a stage
are not known, the two replicas of a bidirectional placement still get equal numbers, so that they are recognized as such.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.files.conform import conform
from schedc.files.input_file import read_bytes
from schedc.files.location import Location, show
from schedc.files.tables import parse_json
from schedc.frontend.profile_file import Layer, ProfileFile
from schedc.ir.problem import Stage
from schedc.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from schedc.frontend.job_file import PipelineSection, ProfileSection
    from schedc.frontend.placement import Placed

__all__ = ["build_stages", "per_stage"]

_MOST_LAYERS = 2**16


def build_stages(
    pipeline: PipelineSection, profile: ProfileSection, placed: Placed, directory: Path, root: Location
) -> tuple[Stage, ...]:
    """The stages, with their costs.

    Args:
        pipeline: for `partition` and `split_backward`.
        profile: the costs, or the path of a file that has them.
        placed: ranks and model pieces of the stages.
        directory: what a path in the job is relative to.
        root: the job file, for errors.

    Raises:
        InvalidInput: keys missing or in each other's way, lists of a wrong length, or a profile.json that cannot be used.
    """
    if profile.path is None:
        return _from_values(pipeline, profile, placed, root)
    given = [key for key, value in _by_key(profile).items() if value is not None]
    if given:
        raise (root / "profile" / given[0]).refuse("a value beside profile.path", "the costs here or in the file, not in both")
    path = directory / profile.path
    try:
        content = read_bytes(path)
    except InvalidInput as error:
        raise (root / "profile" / "path").error(f"found {show(profile.path)}; {error}") from error
    file = conform(parse_json(content, str(path)), ProfileFile, Location(str(path)))
    return _from_layers(pipeline, file, placed, Location(str(path)), root)


def per_stage(values: int | tuple[int, ...], placed: Placed, location: Location) -> tuple[int, ...]:
    """The value of each stage, from one for all, one per stage, or one per piece of a model that the ranks hold twice.

    Raises:
        InvalidInput: a list of another length.
    """
    stages = len(placed.rank_of_stage)
    if isinstance(values, int):
        return (values,) * stages
    if len(values) == stages:
        return values
    if len(values) == placed.pieces:
        return tuple(values[piece] for piece in placed.piece_of_stage)
    pieces = f", or {placed.pieces}, one per piece of the model" if placed.pieces != stages else ""
    raise location.refuse(_values(len(values)), f"{stages}, one per stage{pieces}")


def _from_values(pipeline: PipelineSection, profile: ProfileSection, placed: Placed, root: Location) -> tuple[Stage, ...]:
    at = root / "profile"
    fused_only = profile.backward_ns is not None and not pipeline.split_backward
    given = _by_key(profile)
    for key in ("forward",) if fused_only else ("forward", "backward_input", "backward_weight"):
        if given[key] is None:
            raise (at / key).refuse("nothing", 'a duration such as "38 ms" or a list of them, or profile.path instead')

    def values(key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        value = given[key]
        return default if value is None else per_stage(value, placed, at / key)

    nothing = (0,) * len(placed.rank_of_stage)
    weight = values("backward_weight", nothing)
    # Without W apart, a job may know the fused time alone; its input part is then what the weight part leaves of it.
    backward_input = values(
        "backward_input", tuple(max(0, b - w) for b, w in zip(values("backward", nothing), weight, strict=True))
    )
    backward = values("backward", tuple(b + w for b, w in zip(backward_input, weight, strict=True)))
    activation, after = values("activation", nothing), values("activation_after_input", nothing)
    for stage, (whole, rest) in enumerate(zip(activation, after, strict=True)):
        place = at / "activation_after_input"
        _check_held(whole, rest, place / stage if isinstance(profile.activation_after_input_bytes, tuple) else place)
    message = values("message", nothing)
    forward, gradient = values("forward", nothing), values("gradient_message", message)
    layers = _layers_of_pieces(pipeline, placed, None, root)
    return tuple(
        Stage(
            rank=rank,
            forward_ns=(forward[stage],),
            backward_input_ns=(backward_input[stage],),
            backward_weight_ns=(weight[stage],),
            backward_ns=(backward[stage],),
            activation_bytes=activation[stage],
            activation_after_input_bytes=after[stage],
            message_bytes=message[stage],
            gradient_message_bytes=gradient[stage],
            layers=layers[placed.piece_of_stage[stage]],
        )
        for stage, rank in enumerate(placed.rank_of_stage)
    )


def _by_key(profile: ProfileSection) -> dict[str, int | tuple[int, ...] | None]:
    """What the section gives directly, by the keys of the file."""
    return {
        "forward": profile.forward_ns,
        "backward_input": profile.backward_input_ns,
        "backward_weight": profile.backward_weight_ns,
        "backward": profile.backward_ns,
        "activation": profile.activation_bytes,
        "activation_after_input": profile.activation_after_input_bytes,
        "message": profile.message_bytes,
        "gradient_message": profile.gradient_message_bytes,
    }


def _from_layers(
    pipeline: PipelineSection, profile: ProfileFile, placed: Placed, file: Location, root: Location
) -> tuple[Stage, ...]:
    total = sum(layer.repeat for layer in profile.layers)
    if total > _MOST_LAYERS:
        raise (file / "layers").refuse(f"{total} layers", f"at most {_MOST_LAYERS}")
    for index, layer in enumerate(profile.layers):
        place = file / "layers" / index / "activation_after_input"
        _check_held(layer.activation_bytes or 0, layer.activation_after_input_bytes or 0, place)
    if total < placed.pieces:
        raise (file / "layers").refuse(_layers(total), f"{placed.pieces} or more, one for each piece of the model")
    layers = [layer for layer in profile.layers for _ in range(layer.repeat)]
    ranges = _layers_of_pieces(pipeline, placed, total, root)
    pieces = [layers[slice(*bounds)] for bounds in ranges if bounds]
    return tuple(
        _stage(rank, pieces[piece], ranges[piece]) for rank, piece in zip(placed.rank_of_stage, placed.piece_of_stage, strict=True)
    )


def _stage(rank: int, layers: Sequence[Layer], bounds: tuple[int, int] | None) -> Stage:
    fused = (
        layer.backward_input_ns + layer.backward_weight_ns if layer.backward_ns is None else layer.backward_ns for layer in layers
    )
    message, gradient = layers[-1].message_bytes or 0, layers[-1].gradient_message_bytes
    return Stage(
        rank=rank,
        forward_ns=(sum(layer.forward_ns for layer in layers),),
        backward_input_ns=(sum(layer.backward_input_ns for layer in layers),),
        backward_weight_ns=(sum(layer.backward_weight_ns for layer in layers),),
        backward_ns=(sum(fused),),
        activation_bytes=sum(layer.activation_bytes or 0 for layer in layers),
        activation_after_input_bytes=sum(layer.activation_after_input_bytes or 0 for layer in layers),
        message_bytes=message,
        gradient_message_bytes=message if gradient is None else gradient,
        layers=bounds,
    )


def _layers_of_pieces(
    pipeline: PipelineSection, placed: Placed, total: int | None, root: Location
) -> tuple[tuple[int, int] | None, ...]:
    """The layers [first, last) of each model piece; `total` is how many the profile has, None if it says nothing of layers."""
    pieces, counts = placed.pieces, pipeline.partition
    if counts is not None:
        at = root / "pipeline" / "partition"
        if len(counts) != pieces:
            raise at.refuse(_values(len(counts)), f"{pieces}, one for each piece of the model")
        if total is not None and sum(counts) != total:
            raise at.refuse(f"{_layers(sum(counts))} in all", f"the {total} of the profile")
    elif total is not None:
        counts = tuple(total // pieces + (piece < total % pieces) for piece in range(pieces))
    elif len(placed.paths) > 1:
        counts = (1,) * pieces
    else:
        return (None,) * pieces
    return tuple(pairwise((0, *accumulate(counts))))


def _check_held(activation: int, after_input: int, location: Location) -> None:
    if after_input > activation:
        found, most = (f"{format_bytes(size)} ({size} B)" for size in (after_input, activation))
        raise location.refuse(found, f"at most the activation, {most}")


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"


def _layers(count: int) -> str:
    return "1 layer" if count == 1 else f"{count} layers"
