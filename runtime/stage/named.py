"""Keyword arguments of stages and of loss functions, by microbatch.

Takes what a job gives `step` on a rank: for all stages of the rank that take the name, or a dict of such by stage. A tensor is cut
as the inputs are, of a list each microbatch has its own, and anything else goes to all. No gradient comes back for them.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from schedc.errors import InvalidInput
from schedc.runtime.stage.batches import check_dict, cut

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Named = Mapping[str, Any]
"""Keyword arguments, of all microbatches or of one."""
OF_RUNTIME = "inputs", "targets", "state"
"""What stages get from the runtime under these names."""

_NAMES: WeakKeyDictionary[Callable[..., Any], tuple[list[str], set[str] | None]] = WeakKeyDictionary()
"""Of a forward, the names that it takes, those by position in order and all; None: any. Layers ask in each microbatch, and a
signature takes longer than they may."""


def takes(module: nn.Module, name: str, inputs: int = 1) -> bool:
    """Whether a stage or layer takes this name besides this many inputs; of layers of `build_stages`, whether one does."""
    if isinstance(module, nn.Sequential):
        return type(module).forward is not nn.Sequential.forward and any(takes(layer, name) for layer in module)
    forward = getattr(module.forward, "__func__", module.forward)
    if forward not in _NAMES:
        parameters = inspect.signature(module.forward).parameters.values()
        anything = any(one.kind is one.VAR_KEYWORD for one in parameters)
        by_position = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
        named = {*by_position, *(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)}
        _NAMES[forward] = by_position, None if anything else named
    by_position, names = _NAMES[forward]
    return name not in by_position[:inputs] and (names is None or name in names)


def taken_by(layer: nn.Module, named: Named) -> dict[str, Any]:
    """Those of the arguments of a stage that one of its layers takes."""
    return {name: value for name, value in named.items() if takes(layer, name)} if named else {}


def by_stage(
    given: Named | Mapping[int, Named] | None,
    stages: Mapping[int, nn.Module],
    stage_count: int,
    rank: int,
    inputs: Mapping[int, int],
    cut: Callable[[Named, str, int], Sequence[Named]],
) -> dict[int, Sequence[Named]]:
    """Of each stage of a rank that gets some, the arguments by microbatch, as `cut` makes them.

    Those by stage may have stages of other ranks, too, of the `stage_count` of the plan: these are for others to look at. `inputs`
    are how many tensors stages get by position, where that is known; others get one at least.

    Raises:
        InvalidInput: no stage takes one, or there is no such stage.
    """
    found: dict[int, dict[str, Any]] = {}
    for key, value in (given or {}).items():
        named: Mapping[Any, Any] = {key: value}
        among = [*stages]
        if isinstance(key, int):
            if key not in range(stage_count):
                raise InvalidInput(f"rank {rank}: kwargs: found stage {key}, expected stages 0 to {stage_count - 1}, or names")
            check_dict(value, f"kwargs of stage {key} are", rank)
            named, among = (value or {}) if key in stages else {}, [key]
        for name, one in named.items():
            takers = [stage for stage in among if isinstance(name, str) and takes(stages[stage], name, inputs.get(stage, 1))]
            if name in OF_RUNTIME or not takers:
                expected = "a name that its forward has and no input fills"
                raise InvalidInput(f"rank {rank}: kwargs: no stage of {among} takes {name!r}; expected {expected}")
            for stage in takers:
                found.setdefault(stage, {})[name] = one
    return {stage: cut(named, f"kwargs of stage {stage}", rank) for stage, named in found.items()}


def check_loss_kwargs(given: Named, loss_fns: Sequence[Callable[..., Any]], rank: int) -> None:
    """Look whether loss functions can be called with these arguments, besides the output and the targets.

    Raises:
        InvalidInput: one cannot.
    """
    for loss_fn in loss_fns:
        function = loss_fn.forward if isinstance(loss_fn, nn.Module) else loss_fn
        try:
            signature = inspect.signature(function)
        except ValueError:  # functions written in C may have none
            continue
        try:
            signature.bind(None, None, **given)
        except TypeError as error:
            name = getattr(function, "__qualname__", type(function).__name__)
            expected = "what it takes besides output and targets"
            raise InvalidInput(f"rank {rank}: loss_kwargs: {name}: {error}; expected {expected}") from error


def by_microbatch(
    given: Named, what: str, rank: int, *, microbatches: int, samples: Sequence[int] | None, even: bool
) -> list[Named]:
    """Arguments for each microbatch; `what` they are, for messages, and the rest is as for `cut`.

    Raises:
        InvalidInput: a tensor cannot be cut, or a list has another length.
    """
    found: list[dict[str, Any]] = [{} for _ in range(microbatches)]
    for name, value in given.items():
        if not isinstance(name, str):
            raise InvalidInput(f"rank {rank}: {what} have the key {name!r}, expected names")
        parts: Sequence[Any] = [value] * microbatches
        if isinstance(value, (torch.Tensor, list)):
            parts = cut(value, microbatches, f"{what}, {name!r}", rank, samples, even=even)
        for one, part in zip(found, parts, strict=True):
            one[name] = part.detach() if isinstance(part, torch.Tensor) else part
    return [*found]
