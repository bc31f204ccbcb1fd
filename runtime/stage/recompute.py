"""Running a stage's forward twice: once for its output, keeping nothing but its input, and again when its backward is due.

The first run builds a graph like any other, so that a stage takes the same way through its code both times (some modules look
whether grad is enabled), but what it saves is dropped at once. The second run draws the same random numbers and finds the same
buffers. Whatever else may differ shows in what it gives, which is compared by a sum and a norm of each tensor: its gradients would
be those of another function than the first run's.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

import torch

from schedc.errors import Unsupported
from schedc.runtime.common.random_states import RandomStates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from schedc.runtime.stage.buffers import Buffers, KeptBuffer


def saving_nothing() -> torch.autograd.graph.saved_tensors_hooks:
    """A context for a forward whose graph is not going to be used."""
    return torch.autograd.graph.saved_tensors_hooks(_drop, _unused)


def _drop(_tensor: torch.Tensor) -> None:
    return None


def _unused(_nothing: None) -> NoReturn:
    raise RuntimeError("a graph whose forward is to run again was used; a stage that is recomputed must not differentiate itself")


class ForwardAgain:
    """What a second run of a forward needs, to be like the first."""

    def __init__(self, work: Callable[..., object], inputs: Sequence[torch.Tensor], buffers: Buffers) -> None:
        """Take note, right before the first run.

        Args:
            work: the forward.
            inputs: what it takes.
            buffers: what it may change.
        """
        self.work = work
        self._buffers = buffers
        self._kept: Sequence[KeptBuffer] = buffers.before()
        self._versions = [tensor._version for tensor in inputs]
        self._random = RandomStates.now(buffers.devices)
        self._digests: Sequence[torch.Tensor] = ()

    def ran(self, outputs: Sequence[torch.Tensor]) -> None:
        """Take note of what it has given, right after the first run."""
        self._kept = self._buffers.after(self._kept)
        self._digests = [*map(_digest, outputs)]

    def ran_again(self, outputs: Sequence[torch.Tensor]) -> None:
        """Compare what the second run has given, on an accelerator without waiting for it: `check_alike` does.

        Raises:
            Unsupported: it is something else than what the first has given.
        """
        unlike = [_unlike(first, _digest(tensor), tensor.dtype) for first, tensor in zip(self._digests, outputs, strict=False)]
        unlike.append(torch.tensor(len(outputs) != len(self._digests), device="cpu"))
        self._buffers.unlike += [one for one in unlike if one.device.type != "cpu"]
        _refuse(one for one in unlike if one.device.type == "cpu")

    @contextmanager
    def as_before(self, inputs: Sequence[torch.Tensor]) -> Iterator[None]:
        """A context for the second run; after it all is as if it had not run.

        Raises:
            RuntimeError: the inputs are not what they were.
        """
        if [tensor._version for tensor in inputs] != self._versions:
            raise RuntimeError("the input of a stage that is recomputed has been changed in place since its forward")
        now = RandomStates.now(self._buffers.devices)
        self._random.restore()
        try:
            with self._buffers.as_before(self._kept):
                yield
        finally:
            now.restore()


def check_alike(stages: Iterable[Buffers]) -> None:
    """After a step: look at what second runs on an accelerator have given.

    Raises:
        Unsupported: one has given something else than the first run.
    """
    for buffers in stages:
        unlike, buffers.unlike = buffers.unlike, []
        _refuse([torch.stack(unlike).any()] if unlike else [])


def _digest(tensor: torch.Tensor) -> torch.Tensor:
    """The sum and the norm of a tensor's numbers."""
    value = tensor.detach()
    if hasattr(value, "to_local"):  # a DTensor
        value = value.to_local()
    if value.is_complex():
        value = torch.view_as_real(value.resolve_conj())
    if not value.is_floating_point():
        value = value.double()
    kind = torch.promote_types(value.dtype, torch.float32)
    return torch.stack([value.sum(dtype=kind), torch.linalg.vector_norm(value, dtype=kind)])


def _unlike(first: torch.Tensor, second: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Whether two digests are of different numbers, by more than kernels that add in any order make them; NaN is like all."""
    eps = torch.finfo(dtype if dtype.is_floating_point or dtype.is_complex else torch.float64).eps
    return ((first - second).abs() > math.sqrt(eps) * torch.maximum(first[1], second[1])).any()


def _refuse(unlike: Iterable[torch.Tensor]) -> None:
    if any(unlike):
        raise Unsupported(
            "a stage that is recomputed has given something else in its second forward, so its gradients would be wrong; it may"
            " draw random numbers only from torch's, Python's or NumPy's global generators; change it, or do not recompute it"
        )
