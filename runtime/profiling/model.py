"""What `schedc profile` measures: the layers of a model with one microbatch for them; what its options name.

A factory is any function without arguments in a module that can be imported from the current directory, named `module:function`.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType

    from torch import nn

_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model as the layers between which a pipeline may be cut, in the order of the forward, and one microbatch for it."""

    layers: Iterable[tuple[str, nn.Module]]
    """Name and module of each layer; each takes what the one before gives, a tensor or the tensors of a tuple. They are asked for
    one by one, and at most two are held at a time: if a generator makes them, the model may be larger than the device."""
    inputs: torch.Tensor | tuple[torch.Tensor, ...]
    """One microbatch: what the first layer takes."""
    targets: object = None
    """What `loss_fn` compares the last layer's output with."""
    loss_fn: Callable[..., torch.Tensor] | None = None
    """`loss_fn(output, targets)`, a scalar; measured with the last layer. None: the last layer is measured without a loss."""
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
