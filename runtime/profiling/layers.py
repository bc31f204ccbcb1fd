"""Measuring a model layer by layer: each of F, B, W and BW as a stage of that layer alone runs it, and what it holds.

Takes a `Model`; gives a `MeasuredLayer` for each of its layers. Per layer, on the device: some warm-up, one run with the memory
counted, then the timed repeats, each B and W apart and fused in turn. Gradients are accumulated over the repeats, as they are over
the microbatches of a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

import torch
from torch import nn

from schedc.analysis.comparison.times import SampledTimes
from schedc.errors import InvalidInput, SchedcError
from schedc.formats.graph_entries import OUTPUT
from schedc.runtime.common.boundary import tensors_of
from schedc.runtime.profiling.flow import Boundary, LayerFlow, by_name
from schedc.runtime.profiling.meters import Watch, meter_for
from schedc.runtime.profiling.model import MeasuredLayer, Model, raised
from schedc.runtime.stage.block import StageBlock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """One layer, ready to run."""

    work: Callable[..., object]
    inputs: Boundary
    gradients: Boundary
    """Of the outputs."""

    def block(self, *, split: bool) -> StageBlock:
        """F, without its outputs."""
        block = block_of(self.work, self.inputs, split=split)
        block.take()
        return block


def profile_model(
    model: Model,
    *,
    device: torch.device,
    repeats: int = 20,
    warmup: int = 5,
    dtype: torch.dtype | None = None,
    autocast: torch.dtype | None = None,
    on_layer: Callable[[str], None] | None = None,
) -> tuple[MeasuredLayer, ...]:
    """Measure the layers of a model for one microbatch.

    Args:
        model: layers and a microbatch.
        device: where they run. A layer that is elsewhere is moved there and back.
        repeats: how many times each phase is timed.
        warmup: how many runs go before.
        dtype: what floating parameters, buffers and inputs are cast to; None: they stay as they are. The cast stays.
        autocast: the type of a `torch.autocast` around each layer's runs, which therefore share its casts of the weights, as the
            microbatches of a step do within one region; None: none.
        on_layer: called with each layer's name before it is measured.

    Raises:
        InvalidInput: there are no layers, or one of them is no layer, fails, or does not give tensors of numbers; names it.
    """
    measured: list[MeasuredLayer] = []
    flow = LayerFlow(model, lambda tensors, what: _moved(tensors, device, dtype, what))
    for number, (entry, following) in enumerate(pairwise(chain(_named(model.layers), [None]))):
        assert entry is not None
        name, layer = entry
        inputs, first = flow.taken(number)
        if on_layer is not None:
            on_layer(name)
        names = flow.names(number, last=following is None)
        loss_fn, targets = (None, None) if names else flow.loss(number)
        if loss_fn is not None and isinstance(targets, torch.Tensor):
            targets = targets.to(device)
        try:
            casting = nullcontext() if autocast is None else torch.autocast(device.type, autocast)
            with _on_device(layer, device, dtype), casting:
                run, values = _prepare(layer, inputs, names or [OUTPUT], loss_fn, targets)
                held_bytes, held_after_input_bytes = _hold(run, device, warmup, first=first)
                times = _time(run, Watch(device), repeats)
                flow.give(number, values if names else {})
        except SchedcError as error:
            raise InvalidInput(f"layer {name!r}: {error}") from error
        except Exception as error:
            raise InvalidInput(f"layer {name!r} fails: {raised(error)}") from error
        sizes = {
            key: (_num_bytes(each), _num_bytes([tensor for tensor in each if tensor.requires_grad])) for key, each in values.items()
        }
        sent = None if loss_fn is not None else sizes.get(OUTPUT, (0, 0))
        measured.append(
            MeasuredLayer(
                name=name,
                **times,
                held_bytes=held_bytes,
                held_after_input_bytes=held_after_input_bytes,
                message_bytes=None if sent is None else sent[0],
                gradient_message_bytes=None if sent is None else sent[1],
                values=sizes if loss_fn is None else {},
                parameters=sum(parameter.numel() for parameter in layer.parameters()),
                structure=_structure(layer, run.inputs, first=first, with_loss=loss_fn is not None),
            )
        )
    if not measured:
        raise InvalidInput("the model has no layers")
    flow.check(len(measured))
    return tuple(measured)


def _named(layers: object) -> Iterator[tuple[str, nn.Module]]:
    """The layers with their names.

    Raises:
        InvalidInput: there is something else among them.
    """
    if not isinstance(layers, Iterable):
        raise InvalidInput(f"layers of the model: found {type(layers).__name__}, expected pairs of a name and an nn.Module")
    try:
        for number, entry in enumerate(layers):
            match entry:
                case (str(), nn.Module()):
                    yield entry[0], entry[1]
                case _:
                    parts = [type(part).__name__ for part in entry] if isinstance(entry, tuple) else []
                    found = f"({', '.join(parts)})" if parts else type(entry).__name__
                    expected = "a pair of a name and an nn.Module"
                    raise InvalidInput(f"layers[{number}] of the model: found {found}, expected {expected}")
    except SchedcError:
        raise
    except Exception as error:  # of what makes them one by one
        raise InvalidInput(f"layers of the model: {raised(error)}") from error


def _prepare(
    layer: nn.Module, inputs: Boundary, names: Sequence[str], loss_fn: Callable[..., torch.Tensor] | None, targets: object
) -> tuple[_Run, dict[str, Boundary]]:
    """The layer's run, and its values by name; found by running it once."""
    parts: list[tuple[str, int]] = []

    def work(*values: torch.Tensor) -> object:
        found = layer(*values)
        if loss_fn is None:
            named = by_name(found, names)
            parts[:] = [(name, len(each)) for name, each in named.items()]
            return tuple(tensor for each in named.values() for tensor in each)
        loss = loss_fn(found, targets)
        if not isinstance(loss, torch.Tensor) or loss.dim():
            kind = f"a tensor of shape {list(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
            raise InvalidInput(f"loss_fn gives {kind}, expected a scalar tensor")
        return loss

    outputs = tuple(tensor for tensor in block_of(work, inputs, split=True).take() if tensor is not None)
    wrong = next((tensor for tensor in outputs if tensor.is_floating_point() and bool(tensor.isnan().any())), None)
    if wrong is not None:
        raise InvalidInput(f"it gives NaN, in a tensor of shape {list(wrong.shape)}; expected inputs and weights as in training")
    run = _Run(work=work, inputs=inputs, gradients=_gradients_for(outputs, loss=loss_fn is not None))
    found = iter(outputs)
    return run, {name: tuple(islice(found, count)) for name, count in parts}


def _hold(run: _Run, device: torch.device, warmup: int, *, first: bool) -> tuple[int, int]:
    """The bytes held after F and after B; first the warm-up, so that gradients and what is made once exist already."""
    for _ in range(max(1, warmup)):
        block = run.block(split=True)
        block.backward_input(run.gradients)
        block.backward_weight()
        run.block(split=False).backward(run.gradients)
    meter = meter_for(device)
    with meter:
        # Inputs and gradients come anew, as from the neighbours, for who still holds them counts; first inputs are the batch's.
        inputs = run.inputs if first else _copied(run.inputs)
        block = block_of(run.work, inputs, split=True)
        block.take()
        del inputs
        after_forward = meter.held_bytes()
        gradients = _copied(run.gradients)
        block.backward_input(gradients)
        block.take()
        del gradients
        after_input = meter.held_bytes()
        block.backward_weight()
    return after_forward, after_input


def _copied(tensors: Boundary) -> Boundary:
    """The same in memory of their own."""
    return tuple(tensor.detach().clone().requires_grad_(tensor.requires_grad) for tensor in tensors)


def _time(run: _Run, watch: Watch, repeats: int) -> dict[str, Any]:
    """The `SampledTimes` of each phase."""
    for _ in range(repeats):
        watch.start()
        block = run.block(split=True)
        watch.stop("forward")
        watch.start()
        block.backward_input(run.gradients)
        block.take()
        watch.stop("backward_input")
        watch.start()
        block.backward_weight()
        watch.stop("backward_weight")
        block = run.block(split=False)
        watch.start()
        block.backward(run.gradients)
        block.take()
        watch.stop("backward")
    return {phase: SampledTimes(tuple(samples)) for phase, samples in watch.times().items()}


@contextmanager
def _on_device(layer: nn.Module, device: torch.device, dtype: torch.dtype | None) -> Iterator[None]:
    """A layer on a device for a while; its gradients are dropped after it."""
    home = next((tensor.device for tensor in layer.parameters()), device)
    layer.to(device, dtype)
    try:
        yield
    finally:
        layer.zero_grad(set_to_none=True)
        if home != device:
            layer.to(home)


def _structure(layer: nn.Module, inputs: Boundary, *, first: bool, with_loss: bool) -> str:
    """What decides which work a layer does, as far as can be seen from outside."""
    tensors = [*layer.named_parameters(), *layer.named_buffers()]
    shapes = [(name, str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad) for name, tensor in tensors]
    kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
    taken = [(str(tensor.dtype), tuple(tensor.shape), tensor.requires_grad) for tensor in inputs]
    return repr((kind, repr(layer), shapes, taken, first, with_loss, layer.training))


def block_of(work: Callable[..., object], inputs: Boundary, *, split: bool) -> StageBlock:
    """Run F of one layer.

    The tensors of `inputs` stay the caller's, their memory is shared; `split`: whether B and W will run apart.
    """
    return StageBlock(work, [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs], split=split)


def _gradients_for(outputs: Boundary, *, loss: bool) -> Boundary:
    """Gradients as they might come for these outputs: 1 for a loss, else any numbers. Outputs without a graph do not use theirs."""
    if loss:
        return tuple(map(torch.ones_like, outputs))
    return tuple(torch.randn_like(tensor) if tensor.requires_grad else torch.zeros_like(tensor) for tensor in outputs)


def _num_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """What a transfer of them carries."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _moved(tensors: object, device: torch.device, dtype: torch.dtype | None, what: str) -> Boundary:
    """One tensor or several on the device, cast if they are of a floating type and a type is given.

    Raises:
        InvalidInput: there is something else among them, or they are on the meta device.
    """
    if any(tensor.is_meta for tensor in tensors_of(tensors, what)):
        raise InvalidInput(f"{what}: found a tensor on the meta device, expected one with values")
    return tuple(
        tensor.detach().to(device, dtype if dtype is not None and tensor.is_floating_point() else None)
        for tensor in tensors_of(tensors, what)
    )
