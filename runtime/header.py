"""The shape and type of a boundary's tensors, as a message of fixed size that goes before the first tensor of the boundary."""

from __future__ import annotations

from typing import NamedTuple

import torch

from schedc.errors import Unsupported

__all__ = ["HEADER", "TensorKind", "decode", "encode"]

MAX_DIMS = 14
DTYPES = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.complex128,
    torch.complex64,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
)


class TensorKind(NamedTuple):
    """What all tensors of one boundary have in common."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorKind:
        """The tensor's kind."""
        return cls(tensor.dtype, tuple(tensor.shape))

    def __str__(self) -> str:
        """`float32[4, 128]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


HEADER = TensorKind(torch.int64, (2 + MAX_DIMS,))
"""What a header itself is."""


def encode(kind: TensorKind) -> torch.Tensor:
    """The header: dtype, number of dimensions, dimensions.

    Raises:
        Unsupported: the type or the number of dimensions has no place in a header.
    """
    if kind.dtype not in DTYPES or len(kind.shape) > MAX_DIMS:
        raise Unsupported(f"a stage gives {kind}; stages can exchange plain number types and up to {MAX_DIMS} dimensions")
    header = torch.zeros(HEADER.shape, dtype=HEADER.dtype)
    header[: 2 + len(kind.shape)] = torch.tensor([DTYPES.index(kind.dtype), len(kind.shape), *kind.shape])
    return header


def decode(header: torch.Tensor) -> TensorKind:
    """The kind that the header says."""
    dtype, dims, *shape = header.tolist()
    return TensorKind(DTYPES[dtype], tuple(shape[:dims]))
