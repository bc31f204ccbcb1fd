"""Running a stage's forward twice: once for its output, keeping nothing but its input, and again when its backward is due.

The first run builds a graph like any other, so that a stage takes the same way through its code both times (some modules look
whether grad is enabled), but what it saves is dropped at once. The second run draws the same random numbers and finds the same
buffers, and leaves no trace in them. Whatever else may differ shows in what it gives, which is compared by a sum and a norm of each
tensor: its gradients would be those of another function than the first run's.

Buffers (batch norm's statistics, spectral norm's vectors, counters): most never change (tables, masks); which ones do is looked at
once, in the first forward, so that only these are copied in each. Random numbers: torch's, Python's and NumPy's global generators;
one that a job has made for itself is not among them.
"""

from __future__ import annotations

import math
import random
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from torch import nn


class RandomStates(NamedTuple):
    """The states at one moment."""

    cpu: torch.Tensor
    accelerators: dict[torch.device, torch.Tensor]
    python: Any
    numpy: Any
    """None where nobody has imported NumPy."""

    @classmethod
    def now(cls, devices: Iterable[torch.device]) -> RandomStates:
        """The states now; of these devices, besides the CPU."""
        accelerators = {one: torch.get_device_module(one).get_rng_state(one) for one in devices if one.type != "cpu"}
        numpy = sys.modules.get("numpy")
        return cls(torch.get_rng_state(), accelerators, random.getstate(), None if numpy is None else numpy.random.get_state())

    def restore(self) -> None:
        """Make them the states again."""
        torch.set_rng_state(self.cpu)
        for device, state in self.accelerators.items():
            torch.get_device_module(device).set_rng_state(state, device)
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)


@dataclass(frozen=True, slots=True, eq=False)
class KeptBuffer:
    """A buffer before a forward."""

    owner: nn.Module
    name: str
    tensor: torch.Tensor
    version: int
    copy: torch.Tensor | None
    """Its values; None where it does not change."""

    def written(self) -> bool:
        """Whether it has been changed since, as far as torch counts."""
        return self.owner._buffers[self.name] is not self.tensor or self.tensor._version != self.version


class Buffers:
    """The buffers of one stage."""

    def __init__(self, module: nn.Module) -> None:
        """Take the stage."""
        self._module = module
        devices = {tensor.device for tensor in (*module.parameters(), *module.buffers())}
        self.devices = [device for device in devices if device.type != "cpu"]
        """The accelerators that the stage is on, whose random numbers its second run draws again."""
        self.unlike: list[torch.Tensor] = []
        """On accelerators: of each second run since the last `check_alike`, whether it has given something else than the first."""
        self.compares = True
        """Whether what the second run gives is compared; not where its weights are others than the first's."""
        self._changing: set[tuple[nn.Module, str]] | None = None
        self._training: list[bool] = []

    def before(self) -> list[KeptBuffer]:
        """What there is before a forward; copies of those that may change."""
        training = [module.training for module in self._module.modules()]
        if training != self._training:
            self._training, self._changing = training, None
        return kept_buffers(self._module.modules(), self._changing)

    def after(self, before: Sequence[KeptBuffer]) -> list[KeptBuffer]:
        """Of what there was before a forward that has now run, what its second run needs.

        Raises:
            RuntimeError: a buffer has been changed that did not change in the first forward.
        """
        if self._changing is None:
            changed = [one for one in before if one.written() or not same(one.tensor, one.copy)]
            self._changing = {(one.owner, one.name) for one in changed}
            return changed
        for one in before:
            if one.copy is None and one.written():
                raise RuntimeError(
                    f"the buffer {one.name!r} of a {type(one.owner).__name__} changes in some forwards only;"
                    " do not recompute its stage"
                )
        return [one for one in before if one.copy is not None]

    def check_alike(self) -> None:
        """After a step: look at what second runs on an accelerator have given.

        Raises:
            Unsupported: one has given something else than the first run.
        """
        unlike, self.unlike = self.unlike, []
        _refuse([torch.stack(unlike).any()] if unlike else [])

    @contextmanager
    def as_before(self, kept: Sequence[KeptBuffer]) -> Iterator[None]:
        """A context, once for each forward, in which these buffers are what they were; after it they are what they are now.

        Others take their place, which nobody changes afterwards: a graph may have saved them.
        """
        now = [(one, one.owner._buffers[one.name]) for one in kept]
        for one in kept:
            one.owner._buffers[one.name] = one.copy
        try:
            yield
        finally:
            for one, tensor in now:
                one.owner._buffers[one.name] = tensor


def kept_buffers(modules: Iterable[nn.Module], changing: Collection[tuple[nn.Module, str]] | None) -> list[KeptBuffer]:
    """The own buffers of these modules; with copies of those that may change, None: of all."""
    found = []
    copies: dict[torch.Tensor, torch.Tensor] = {}  # a buffer of several modules is one
    for owner in modules:
        for name, tensor in owner._buffers.items():
            if tensor is None:
                continue
            if (changing is None or (owner, name) in changing) and tensor not in copies:
                copies[tensor] = tensor.detach().clone()
            found.append(KeptBuffer(owner, name, tensor, tensor._version, copies.get(tensor)))
    return found


def same(one: torch.Tensor, other: torch.Tensor | None) -> bool:
    """Whether two tensors of one shape and type are equal bit by bit; NaN is not, which is on the safe side."""
    return other is not None and torch.equal(one, other)


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
        """Take note, right before the first run of the forward, of its inputs and the buffers that it may change."""
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
        if not self._buffers.compares:
            return
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
