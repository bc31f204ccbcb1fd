"""DTensors between stages: what crosses is each process's own part, and the receiver makes a DTensor of it on its own mesh.

Stages of all ranks have meshes of the same names and dimensions over processes of their own (tensor parallelism in each stage). The
header says the layout: the mesh by its names, the placement on each of its dimensions, and the shape of the whole. A gradient comes
back laid out as the output was; of what was a partial sum, whole. Only what has DTensors imports it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias
from zlib import crc32

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

Layout: TypeAlias = tuple[int, ...]
"""A digest of the mesh's names, its dimensions, a code for the placement on each of them, and the shape of the whole tensor."""
REPLICATED, SUMMED, SHARDED = range(3)
"""Codes of placements; of one that is sharded, plus the dimension of the tensor."""


def layout_of(tensor: DTensor, what: str) -> Layout:
    """How a DTensor lies on its mesh; `what` it is, for messages.

    Raises:
        Unsupported: in a way that has no code.
    """
    codes = []
    for placement in tensor.placements:
        if type(placement) is Shard:
            codes.append(SHARDED + placement.dim)
        elif type(placement) in (Replicate, Partial) and placement in (Replicate(), Partial()):
            codes.append(SUMMED if placement == Partial() else REPLICATED)
        else:
            raise Unsupported(
                f"{what} is a DTensor placed as {placement}; expected Shard, Replicate or a partial sum between stages"
            )
    return _digest(tensor.device_mesh), len(codes), *codes, *tensor.shape


def own_parts(
    value: Sequence[torch.Tensor | None], known: Sequence[Layout] | None, what: str, *, gradient: bool
) -> tuple[tuple[torch.Tensor | None, ...], list[Layout]]:
    """Of DTensors what this process has of them, and how outputs are laid out.

    `known`: how the outputs are laid out; None: they are the first.

    Raises:
        Unsupported: one is made of other tensors and is no DTensor: gloo would end the process.
    """
    found: list[torch.Tensor | None] = []
    layouts: list[Layout] = []
    for at, tensor in enumerate(value):
        part, layout = tensor, tuple[int, ...]()
        if isinstance(tensor, DTensor):
            layout = known[at] if gradient and known is not None else layout_of(tensor, what)
            part = own_part(tensor.detach(), layout if gradient else None)
        elif tensor is not None and hasattr(tensor, "__tensor_flatten__"):
            part = arrived(tensor.detach())
        if part is not None and hasattr(part, "__tensor_flatten__"):
            raise Unsupported(f"{what} is a {type(part).__name__}, which is made of other tensors; give plain ones or DTensors")
        if tensor is not None and part is not None:
            part.requires_grad_(tensor.requires_grad)
        layouts.append(layout)
        found.append(part)
    return tuple(found), layouts


def own_part(tensor: torch.Tensor, layout: Layout | None) -> torch.Tensor:
    """This process's part of a DTensor; of a gradient, in the `layout` of what it is the gradient of."""
    assert isinstance(tensor, DTensor)
    if layout is not None:
        tensor = tensor.redistribute(placements=_placements(layout, gradient=True))
    return arrived(tensor.to_local())


def arrived(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, where a collective that gives it may be under way."""
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def made_whole(part: torch.Tensor, layout: Layout, modules: Collection[nn.Module], what: str, *, gradient: bool) -> torch.Tensor:
    """The DTensor of which this process has got its part.

    `layout` is as `layout_of` the value, also of its gradient; the weights of `modules`, this rank's stages, are on the mesh.

    Raises:
        Unsupported: no weight is on such a mesh.
    """
    mesh = _mesh_of(modules, layout[0], layout[1])
    if mesh is None:
        raise Unsupported(
            f"{what} is a DTensor, and no weight of this rank's stages is on a mesh of the same names; give plain ones"
        )
    whole = torch.empty(layout[2 + layout[1] :], device="meta")
    placements = _placements(layout, gradient=gradient)
    return DTensor.from_local(part, mesh, placements, shape=whole.shape, stride=whole.stride())


def _placements(layout: Layout, *, gradient: bool) -> list[Placement]:
    codes = layout[2 : 2 + layout[1]]
    summed = Replicate() if gradient else Partial()
    return [Replicate() if code == REPLICATED else summed if code == SUMMED else Shard(code - SHARDED) for code in codes]


def _digest(mesh: DeviceMesh) -> int:
    return crc32(repr((mesh.mesh_dim_names, tuple(mesh.shape))).encode())


def _mesh_of(modules: Collection[nn.Module], digest: int, dimensions: int) -> DeviceMesh | None:
    """The mesh of these names and sizes among those of the weights, and their parts of one dimension."""
    meshes = dict.fromkeys(
        weight.device_mesh for module in modules for weight in module.parameters() if isinstance(weight, DTensor)
    )
    parts = [mesh[name] for mesh in meshes for name in mesh.mesh_dim_names or () if mesh.ndim > 1 and dimensions == 1]
    return next((mesh for mesh in (*meshes, *parts) if _digest(mesh) == digest), None)
