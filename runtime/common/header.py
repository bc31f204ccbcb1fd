"""What the tensors of a boundary are, as a message of fixed size that goes before the boundary's first output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_TENSORS = 16
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


class TensorMeta(NamedTuple):
    """What a tensor of a boundary is in all microbatches."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    gradient: bool = False
    """Whether its gradient comes back."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """The tensor's kind."""
        return cls(tensor.dtype, tuple(tensor.shape), tensor.requires_grad)

    def __str__(self) -> str:
        """`float32[4, 128]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


HEADER = TensorMeta(torch.int64, (1 + MAX_TENSORS * (3 + MAX_DIMS),))
"""What a header itself is."""


def encode(kinds: Sequence[TensorMeta]) -> torch.Tensor:
    """The header: the number of tensors; of each its dtype, whether it has a gradient, the number of dimensions, the dimensions.

    Raises:
        Unsupported: a type, or the number of tensors or dimensions, has no place in a header.
    """
    if len(kinds) > MAX_TENSORS:
        raise Unsupported(f"a stage gives {len(kinds)} tensors; stages can exchange up to {MAX_TENSORS}")
    numbers = [len(kinds)]
    for kind in kinds:
        if kind.dtype not in DTYPES or len(kind.shape) > MAX_DIMS:
            raise Unsupported(f"a stage gives {kind}; stages can exchange plain number types and up to {MAX_DIMS} dimensions")
        numbers += [DTYPES.index(kind.dtype), int(kind.gradient), len(kind.shape), *kind.shape]
    header = torch.zeros(HEADER.shape, dtype=HEADER.dtype, device="cpu")
    header[: len(numbers)] = torch.tensor(numbers, device="cpu")
    return header


def decode(header: torch.Tensor) -> tuple[TensorMeta, ...]:
    """The kinds that the header says."""
    count, *rest = header.tolist()
    kinds = []
    for _ in range(count):
        dtype, gradient, dims, *rest = rest
        kinds.append(TensorMeta(DTYPES[dtype], tuple(rest[:dims]), bool(gradient)))
        rest = rest[dims:]
    return tuple(kinds)
