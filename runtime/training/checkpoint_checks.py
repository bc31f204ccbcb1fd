"""What a checkpoint must have in its folder, and in common with what is saved or loaded; otherwise one line says what it lacks."""

from __future__ import annotations

import hashlib
import pickle
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

ALIKE = 1e-2
"""By how much weights that processes train alike may differ, relative to their norm: kernels add in any order, step after step.
Weights that are meant to differ, as those of experts do, differ by about their norm."""

METADATA = ".metadata"
"""The file that torch writes last."""


def saved_in(path: Path) -> dict[str, Any]:
    """What the folder's metadata say that it has, all of which is there.

    Raises:
        InvalidInput: the metadata cannot be read, or a file is missing or too short.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        metadata = FileSystemReader(str(path)).read_metadata()
    except (pickle.UnpicklingError, EOFError, OSError, AttributeError, ImportError, LookupError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{path / METADATA}: found no metadata of a checkpoint, as of a copy that was cut short: {error}"
        ) from error
    ends: dict[str, int] = {}
    for part in (metadata.storage_data or {}).values():
        ends[part.relative_path] = max(ends.get(part.relative_path, 0), part.offset + part.length)
    for name, end in sorted(ends.items()):
        file = path / name
        found = file.stat().st_size if file.is_file() else None
        if found is None or found < end:
            raise InvalidInput(f"{file}: found {'no file' if found is None else f'{found} bytes'}, expected {end} bytes or more")
    return metadata.state_dict_metadata


def digest_of(path: Path) -> str:
    """Of a folder's metadata, which torch gives an identity of their own whenever it saves; empty: they cannot be read."""
    try:
        return hashlib.sha256((path / METADATA).read_bytes()).hexdigest()
    except OSError:
        return ""


def weight_of(key: str) -> str:
    """The weight of `state.3.up.weight.exp_avg`: `3.up.weight`."""
    return key.split(".", 1)[1].rsplit(".", 1)[0]


def take_new(path: Path | str, state: dict[str, dict[str, Any]], saved: dict[str, Any]) -> dict[str, Any]:
    """Take out of the state, and give, that of weights that had none when it was saved, as no step had given them a gradient.

    They are in the checkpoint's settings, by which they differ from those of another kind of optimizer.

    Raises:
        InvalidInput: the other way round: the optimizer has no state of a weight that the checkpoint has.
    """
    optim = state.get("optim", {})
    own = {key.rsplit(".", 1)[0] for key in optim}
    there = {key.removeprefix("optim.").rsplit(".", 1)[0] for key in saved if key.startswith("optim.")}
    for weight in sorted({weight_of(key) for key in optim}):
        if f"state.{weight}" in there and f"state.{weight}" not in own:
            raise InvalidInput(f"{path}: found a state of {weight}, of which the optimizer has none; load into a new optimizer")
    new = {weight for weight in map(weight_of, optim) if f"param_groups.{weight}" in there and f"state.{weight}" not in there}
    return {key: optim.pop(key) for key in [*optim] if key.startswith("state.") and weight_of(key) in new}


def check_optimizers(path: Path | str, without: Sequence[bool]) -> None:
    """Refuse where some processes give optimizers and others none, whose state would be missing; `without`: of each."""
    if len({*without}) > 1:
        raise InvalidInput(
            f"{path}: some processes were given no optimizer (None), others one; give all theirs, or [] where a rank trains nothing"
        )


def fingerprints(tensors: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Of each tensor the sum and the norm; but for DTensors, of which torch knows what each process has."""
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not hasattr(tensor, "device_mesh"):
            value = torch.view_as_real(tensor) if tensor.is_complex() else tensor
            exact = value if value.is_floating_point() else value.double()
            found[name] = float(exact.sum(dtype=torch.float64)), float(torch.linalg.vector_norm(exact, dtype=torch.float64))
    return found


def check_alike(path: Path | str, given: Sequence[Mapping[str, tuple[float, float]]]) -> None:
    """Refuse to save one for several that have the same name and are not the same, as experts of different processes may have."""
    for name in dict.fromkeys(name for found in given for name in found):
        (total, norm), *others = [found[name] for found in given if name in found]
        if any(abs(total - other) + abs(norm - more) > ALIKE * norm for other, more in others):
            raise InvalidInput(
                f"{path}: {name} is not the same in all processes of the swap_group, and would be saved once; give model=, with a"
                " name of its own for each"
            )


def check_names(path: Path | str, own: dict[str, Any], saved: dict[str, Any]) -> None:
    """Refuse a checkpoint without something of this rank's, or with something of another shape or a type that would be rounded."""
    for name, value in own.items():
        if name not in saved:
            raise InvalidInput(f"{path}: found no {name}; expected a checkpoint of the same model, optimizer and job")
        size = getattr(saved[name], "size", None)
        if hasattr(value, "shape") and size is not None and tuple(size) != tuple(value.shape):
            raise InvalidInput(f"{path}: {name}: found the shape {list(size)}, expected {list(value.shape)}")
        kind = getattr(getattr(saved[name], "properties", None), "dtype", None)
        if hasattr(value, "shape") and kind is not None and torch.promote_types(kind, value.dtype) != value.dtype:
            raise InvalidInput(f"{path}: {name}: found {kind}, expected {value.dtype}, or what it holds without rounding")
