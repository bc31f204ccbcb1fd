"""What crosses from stage to stage: a tuple of tensors, as a stage gives and takes them, and what they are in all microbatches.

Forward, a tensor that requires grad is one whose gradient comes back; the others (integers, masks, floats without a graph) have
none. Backward, there is a gradient for each tensor that requires one, and None for the others. `()` is nothing at all: what an op
works on that starts from the batch or the loss.

What a boundary's tensors are depends on the *shape* of the microbatch: a number for the shapes and types of its inputs, which ranks
with inputs say as a step begins. It is learnt from the first microbatch of a shape: a header goes before its output and says it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from schedc.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from torch import nn

    from schedc.runtime.common.program import Message

Value: TypeAlias = tuple[torch.Tensor | None, ...]


def tensors_of(value: object, what: str = "what a stage gives") -> tuple[torch.Tensor, ...]:
    """One tensor or a tuple (or list) of them, as a tuple.

    Raises:
        InvalidInput: it is something else.
    """
    if isinstance(value, torch.Tensor):
        return (value,)
    found = type(value).__name__
    if isinstance(value, (tuple, list)):
        wrong = [type(tensor).__name__ for tensor in value if not isinstance(tensor, torch.Tensor)]
        if not wrong:
            return tuple(value)
        found = f"{found} with {wrong[0]}"
    raise InvalidInput(f"{what} must be a tensor or a tuple of tensors; found {found}")


def handed_over(tensors: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The tensors without their graph; they require grad as before, so that the next stage knows whose gradient is wanted."""
    return tuple([tensor.detach().requires_grad_() if tensor.requires_grad else tensor.detach() for tensor in tensors])


MAX_TENSORS = 1024
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
    layout: tuple[int, ...] = ()
    """Of a DTensor, of which `shape` is this process's part, how it lies on its mesh (`spread`)."""

    @classmethod
    def of(cls, tensor: torch.Tensor) -> TensorMeta:
        """The tensor's kind."""
        return cls(tensor.dtype, tuple(tensor.shape), tensor.requires_grad)

    def __str__(self) -> str:
        """`float32[4, 128]`."""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}"


HEADER = TensorMeta(torch.int64, (64,))
"""What a header itself is: how many numbers it has, and the first 63 of them. What is left is a message of its own."""


def encode(kinds: Sequence[TensorMeta]) -> tuple[torch.Tensor, torch.Tensor]:
    """The header, and what has no place in it: of each tensor its dtype, whether it has a gradient, its shape, and its layout.

    Raises:
        Unsupported: a type, or the number of tensors or dimensions, has no place in a header.
    """
    if len(kinds) > MAX_TENSORS:
        raise Unsupported(f"a stage gives {len(kinds)} tensors; stages can exchange up to {MAX_TENSORS}")
    numbers: list[int] = []
    for kind in kinds:
        if kind.dtype not in DTYPES or len(kind.shape) > MAX_DIMS:
            raise Unsupported(f"a stage gives {kind}; stages can exchange plain number types and up to {MAX_DIMS} dimensions")
        numbers += [DTYPES.index(kind.dtype), int(kind.gradient), len(kind.shape), len(kind.layout), *kind.shape, *kind.layout]
    found = torch.tensor([len(numbers), *numbers], dtype=HEADER.dtype, device="cpu")
    size = HEADER.shape[0]
    return torch.nn.functional.pad(found[:size], (0, max(0, size - len(found)))), found[size:]


def left_of(header: torch.Tensor) -> TensorMeta | None:
    """What comes behind a header, as it has no place in it; None: nothing."""
    left = int(header[0]) + 1 - HEADER.shape[0]
    return TensorMeta(HEADER.dtype, (left,)) if left > 0 else None


def decode(header: torch.Tensor, left: torch.Tensor | None = None) -> tuple[TensorMeta, ...]:
    """The kinds that a header says, with what came behind it."""
    count, *numbers = (header if left is None else torch.cat([header, left])).tolist()
    kinds, at = [], 0
    while at < count:
        dtype, gradient, dims, laid = numbers[at : at + 4]
        shape, layout = numbers[at + 4 : at + 4 + dims], numbers[at + 4 + dims : at + 4 + dims + laid]
        kinds.append(TensorMeta(DTYPES[dtype], tuple(shape), bool(gradient), tuple(layout)))
        at += 4 + dims + laid
    return tuple(kinds)


Key: TypeAlias = tuple[int, int]
"""What the tensors of a message depend on: its boundary, and the shape of its microbatch."""


class BoundaryMeta(dict[Key, tuple[TensorMeta, ...]]):
    """What a boundary's tensors are, for each shape that a microbatch has had."""

    shapes: Sequence[int] = ()
    """Of the step's microbatches, the same on all ranks; another sequence where they may be others than in the step before. Empty:
    all have shape 0."""
    spread = False
    """Whether any are DTensors."""
    modules: Collection[nn.Module] = ()
    """This rank's stages, of whose weights some are on the meshes of DTensors that cross."""

    def keys_of(self, messages: Sequence[Message]) -> list[Key]:
        """Of each message, what its tensors depend on."""
        shapes = self.shapes
        return [(message.boundary, shapes[message.microbatch] if shapes else 0) for message in messages]

    def learn(self, value: Value, message: Message, key: Key) -> tuple[Value, tuple[TensorMeta, ...]]:
        """Take note of a boundary's tensors, the outputs or their gradients.

        Returns:
            What is to be sent: of DTensors this process's part. And what the outputs are.

        Raises:
            InvalidInput: they are not like the first of this key.
            Unsupported: one is made of other tensors and is no DTensor.
        """
        known = self.get(key)
        layouts: list[tuple[int, ...]] = []
        if [tensor for tensor in value if type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__")]:
            from schedc.runtime.common.spread import own_parts

            laid = None if known is None else [kind.layout for kind in known]
            value, layouts = own_parts(value, laid, _named(message), gradient=message.gradient)
        if known is None:
            own = [TensorMeta.of(tensor) for tensor in value if tensor is not None]
            known = tuple(kind._replace(layout=layout) for kind, layout in zip(own, layouts or [()] * len(own), strict=True))
            self.note(key, known)
        elif not _alike(value, known, message.gradient) or (layouts and [one.layout for one in known] != layouts):
            raise InvalidInput(_difference(value, known, message))
        return value, known

    def note(self, key: Key, kinds: tuple[TensorMeta, ...]) -> None:
        """Take note of what the outputs of a boundary are."""
        self.setdefault(key, kinds)
        self.spread = self.spread or any(kind.layout for kind in kinds)

    def taken(self, come: Sequence[torch.Tensor], kinds: Sequence[TensorMeta], message: Message) -> list[torch.Tensor]:
        """What has come of tensors of these kinds, as the stage is to get it: DTensors again where they were.

        Raises:
            Unsupported: no weight of this rank is on such a mesh.
        """
        from schedc.runtime.common.spread import made_whole

        what, gradient = _named(message), message.gradient
        return [
            made_whole(tensor, kind.layout, self.modules, what, gradient=gradient) if kind.layout else tensor
            for tensor, kind in zip(come, kinds, strict=True)
        ]


def _alike(value: Value, kinds: tuple[TensorMeta, ...], gradient: bool) -> bool:
    """Whether these are tensors of these kinds, or their gradients."""
    if len(value) != len(kinds):
        return False
    for tensor, kind in zip(value, kinds, strict=True):
        if gradient and not kind.gradient:
            continue
        if tensor is None or tensor.dtype != kind.dtype or tensor.shape != kind.shape:
            return False
        if not gradient and tensor.requires_grad != kind.gradient:
            return False
    return True


def _difference(value: Value, kinds: tuple[TensorMeta, ...], message: Message) -> str:
    """What is wrong with tensors that are not alike."""
    found = ["nothing" if tensor is None else str(TensorMeta.of(tensor)) for tensor in value]
    expected = list(map(str, kinds))
    way = "shape"
    if len(found) != len(expected):
        way = "number of tensors"
    elif found == expected:
        way = "graph"
        found = [
            f"{kind} that {'requires' if tensor.requires_grad else 'does not require'} grad"
            for kind, tensor in zip(found, value, strict=True)
            if tensor is not None
        ]
        expected = [f"{kind} that {'requires' if kind.gradient else 'does not require'} grad" for kind in kinds]
    remedy = f"give microbatches whose inputs are alike the same {way}"
    if not message.gradient:
        remedy += ", or give load varying=True"
    return f"{_named(message)} is {_listed(found)}, expected {_listed(expected)} as before; {remedy}"


def _named(message: Message) -> str:
    return f"microbatch {message.microbatch}: {'the gradient of ' if message.gradient else ''}stage {message.source}'s output"


def _listed(kinds: Sequence[str]) -> str:
    return kinds[0] if len(kinds) == 1 else f"({', '.join(kinds)})"
