"""What `schedc profile` measures: the layers of a model with one microbatch for them; what its options name; what it finds.

A factory is any function without arguments in a module that can be imported from the current directory, named `module:function`.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from schedc.analysis.comparison.times import LARGE_SPREAD, SampledTimes
from schedc.errors import InvalidInput
from schedc.formats.profile_file import LayerEntry, SpreadEntry
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from types import ModuleType

    from torch import nn

    from schedc.formats.graph_entries import LayerEdge, ModuleEntry

SMALL_SHARE = 0.05
"""Times below this share of their layer's sum are too short for their spread to matter."""
PHASES = ("forward", "backward_input", "backward_weight", "backward")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as the layers between which a pipeline may be cut, in the order of the forward, and one microbatch for it."""

    layers: Iterable[tuple[str, nn.Module]]
    """Name and module of each layer; each takes what the one before gives, a tensor or the tensors of a tuple. They are asked for
    one by one, and at most two are held at a time: if a generator makes them, the model may be larger than the device."""
    inputs: Any
    """One microbatch: what the first layer takes, a tensor or a tuple of them. Of a graph a dict, with what each module takes that
    begins with the batch, by its name."""
    targets: object = None
    """What `loss_fn` compares the last layer's output with; of several losses by the names of their modules."""
    loss_fn: Any = None
    """`loss_fn(output, targets)`, a scalar; measured with the last layer. None: the last layer is measured without a loss. Of
    several losses a dict by the names of their modules, or one for all."""
    modules: Sequence[ModuleEntry] = ()
    """Where the layers are a graph, the chains that it has: as a job's `[[module]]`. None: all layers are one chain."""
    edges: Sequence[LayerEdge] = ()
    """What layers take besides: as a job's `[[edge]]`, without sizes, which are measured."""
    name: str = ""
    """For people."""


def load_model(spec: str) -> Model:
    """The model that a factory gives.

    Args:
        spec: `module:function`; the current directory is searched first.

    Raises:
        InvalidInput: there is no such module or function, it fails, or it gives something else.
    """
    name, _, attribute = spec.partition(":")
    if not name or not attribute:
        raise InvalidInput(f"--model: found {spec!r}, expected module:function, as in profile_gpt:model")
    module = _import(name)
    factory = getattr(module, attribute, None)
    if factory is None:
        raise InvalidInput(
            f"--model: {name} has no {attribute!r}{nearest(attribute, [key for key in vars(module) if key[0] != '_'])}"
        )
    if not callable(factory):
        raise InvalidInput(f"--model: {spec} is {_type(factory)}, expected a function without arguments that gives a Model")
    try:
        model = factory()
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"--model: {spec} fails: {raised(error)}") from error
    if not isinstance(model, Model):
        raise InvalidInput(f"--model: {spec} gives {_type(model)}, expected a schedc.runtime.profiling.Model")
    return model


def raised(error: BaseException) -> str:
    """An exception of somebody's code in one line: its type, what it says, and where it was raised."""
    said = " ".join(str(error).split())
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {said}{where}"


def _import(name: str) -> ModuleType:
    directory = str(Path.cwd())
    if directory not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise InvalidInput(f"--model: found no module {name!r} in {directory} or among those installed") from error
        raise InvalidInput(f"--model: importing {name} fails: {raised(error)}") from error
    except (Exception, SystemExit) as error:
        raise InvalidInput(f"--model: importing {name} fails: {raised(error)}") from error


def _type(value: Any) -> str:
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def device_named(name: str | None) -> torch.device:
    """The device `cpu` or `cuda`; for None a GPU where there is one.

    Raises:
        InvalidInput: there is no GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("--device cuda: torch finds no GPU here; expected one, or --device cpu")
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def dtype_named(name: str | None) -> torch.dtype | None:
    """The type `bfloat16`, or `bf16` for short."""
    if name is None:
        return None
    found = getattr(torch, _SHORT.get(name, name))
    assert isinstance(found, torch.dtype)
    return found


def described(device: torch.device) -> str:
    """What the device is, for people."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the CPU, threads: {torch.get_num_threads()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredLayer:
    """One layer, or several equal ones in a row, for one microbatch."""

    name: str
    repeat: int = 1
    forward: SampledTimes
    backward_input: SampledTimes
    backward_weight: SampledTimes
    backward: SampledTimes
    """Fused: not the sum of the two."""
    held_bytes: int
    """After F, in a stage of this layer alone."""
    held_after_input_bytes: int
    """After B, until W: what W reads of the activations, and the gradients that it starts from."""
    message_bytes: int | None
    """The outputs; None for a last layer, whose output is the loss."""
    gradient_message_bytes: int | None
    """The gradients of those outputs that have one."""
    values: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """By the name of what others take of it, the bytes and those of the gradients that come back."""
    parameters: int
    """This many numbers, in each of the equal layers."""
    structure: str
    """Equal for layers that are alike: module, types and shapes."""

    @property
    def activation_bytes(self) -> int:
        """What the cost model takes to be held from F: never less than what is held after B."""
        return max(self.held_bytes, self.held_after_input_bytes)

    def phases(self) -> dict[str, SampledTimes]:
        """The times by name."""
        return {phase: getattr(self, phase) for phase in PHASES}

    def largest_spread(self) -> tuple[str, float]:
        """The phase whose times spread most, and how much, among those that make a difference."""
        least_ns = SMALL_SHARE * (self.forward.median_ns + self.backward.median_ns)
        spreads = {name: times.spread for name, times in self.phases().items() if times.median_ns >= least_ns}
        name = max(spreads, key=spreads.__getitem__)
        return name, spreads[name]


def profile_layer(layer: MeasuredLayer) -> LayerEntry:
    """What of it a profile.json has."""
    return LayerEntry(
        name=layer.name,
        repeat=layer.repeat,
        parameters=layer.parameters,
        forward_ns=layer.forward.median_ns,
        backward_input_ns=layer.backward_input.median_ns,
        backward_weight_ns=layer.backward_weight.median_ns,
        backward_ns=layer.backward.median_ns,
        activation_bytes=layer.activation_bytes,
        activation_after_input_bytes=layer.held_after_input_bytes,
        message_bytes=layer.message_bytes,
        gradient_message_bytes=None if layer.gradient_message_bytes == layer.message_bytes else layer.gradient_message_bytes,
        spread=SpreadEntry(**{phase: times.spread for phase, times in layer.phases().items()}),
    )


def merged(layers: Iterable[MeasuredLayer]) -> tuple[MeasuredLayer, ...]:
    """Layers in a row that are alike, as one that repeats, its medians over the samples of all.

    Alike are layers of the same structure that hold and send the same number of bytes. The name is the first one's and the last
    one's, `block.0 … block.31`.
    """
    found = []
    for _, alike in groupby(layers, key=lambda one: (one.structure, one.held_bytes, one.held_after_input_bytes, one.values)):
        first, *others = group = tuple(alike)
        if others:
            together: dict[str, Any] = {
                phase: SampledTimes(tuple(sample for one in group for sample in one.phases()[phase].samples_ns)) for phase in PHASES
            }
            name, repeat = f"{first.name} … {group[-1].name}", sum(one.repeat for one in group)
            first = replace(first, name=name, repeat=repeat, **together)
        found.append(first)
    return tuple(found)


def warnings(layers: Sequence[MeasuredLayer], together: Sequence[MeasuredLayer]) -> tuple[str, ...]:
    """What a reader of the numbers should know.

    Args:
        layers: as measured.
        together: as written: the same, or `merged(layers)`.
    """
    said = []
    for layer in together:
        phase, spread = layer.largest_spread()
        if spread > LARGE_SPREAD:
            said.append(f"{layer.name}: {phase} spreads by {spread:.0%} of its median; is the machine busy? Try more --repeats")
    apart = iter(layers)
    for group in together:
        for layer in [next(apart) for _ in range(group.repeat)]:
            own, common = (one.forward.median_ns + one.backward.median_ns for one in (layer, group))
            spread = max(layer.largest_spread()[1], group.largest_spread()[1], LARGE_SPREAD)
            if abs(own - common) > 2 * spread * common:
                said.append(f"{layer.name}: takes {own / common:.0%} of what {group.name} take; use --no-merge to see each")
    grown = [layer.name for layer in together if layer.held_after_input_bytes > layer.held_bytes]
    if grown:
        said.append(
            f"{', '.join(grown)}: more is held after B than after F, because W starts from gradients; activation is set as high as"
            " activation_after_input"
        )
    return tuple(said)
