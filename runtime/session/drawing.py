"""Random numbers that depend on nothing but the step, the layer and the microbatch: whatever plan runs, dropout is the same.

Before a layer's forward torch's generators, the host's and that of the stage's GPU, get a seed of their own. So no order of ops, no
boundary of a stage and no number of pipelines changes what a layer draws. After a step they are what they were before it.
"""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import torch

from schedc.errors import InvalidInput
from schedc.runtime.session.building import layers_of_stage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import nn
    from torch.utils.hooks import RemovableHandle

    from schedc.ir import Op, Plan

COMPILER: Any = torch.compiler


class Drawing:
    """What the layers of one rank draw."""

    def __init__(self, seed: int, pipeline: int, device: torch.device) -> None:
        """Take the job's seed, the number of this pipeline among those that share a batch, and the device of the stages."""
        self._seed, self._pipeline, self._step = seed, pipeline, 0
        self._generators = [torch.default_generator]
        if device.type == "cuda":
            self._generators.append(
                torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]
            )
        self._drawn: tuple[int, int] | None = None
        """Of the forward under way the step, and the microbatch, counted over all pipelines; None: it is not for training."""
        self._of_step, self._whole = 1, dict[int, int]()
        self._hooks: list[RemovableHandle] = []

    def use(self, plan: Plan, stages: Mapping[int, nn.Module]) -> None:
        """Take the layers of a plan. A stage that is not as `build_stages` makes it, or is compiled whole, counts as its first."""
        self.close()
        self._whole.clear()
        updates = plan.problem.updates
        self._of_step = plan.problem.microbatches if updates is None else updates.microbatches
        for stage, module in stages.items():
            try:
                layers = {} if _is_compiled(module) else layers_of_stage(plan, stage, module, "")
            except InvalidInput:
                layers = {}
            if not layers:
                bounds = plan.problem.stages[stage].layers
                self._whole[stage] = stage if bounds is None else bounds[0]
            for number, layer in layers.items():
                hook: Any = partial(self._begins, number)
                if _is_compiled(layer):  # in place: its hooks would be compiled as well
                    hook = COMPILER.disable(hook)
                self._hooks.append(layer.register_forward_pre_hook(hook))

    def of(self, op: Op, work: Callable[..., Any]) -> Callable[..., Any]:
        """The work of an F, which draws the same numbers whenever it runs."""

        def drawn(*values: Any) -> Any:
            step, microbatch = divmod(op.microbatch, self._of_step)
            self._drawn = self._step + step, self._pipeline * self._of_step + microbatch
            try:
                if op.stage in self._whole:
                    self._begins(self._whole[op.stage])
                return work(*values)
            finally:
                self._drawn = None

        return drawn

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """A context for a step of the job, or a run from that step on; it leaves the generators as it has found them."""
        self._step = number
        before = [generator.get_state() for generator in self._generators]
        try:
            yield
        finally:
            for generator, state in zip(self._generators, before, strict=True):
                generator.set_state(state)

    def close(self) -> None:
        """Let go of the layers."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def _begins(self, layer: int, *_: object) -> None:
        if self._drawn is not None:
            step, microbatch = self._drawn
            seed = seed_of(self._seed, step, layer, microbatch)
            for generator in self._generators:
                generator.manual_seed(seed)


def seed_of(seed: int, step: int, layer: int, microbatch: int) -> int:
    """Of a layer's numbers for a microbatch, counted over all pipelines: the first 8 bytes of the SHA-256 of the four, as text."""
    return int.from_bytes(sha256(f"{seed} {step} {layer} {microbatch}".encode()).digest()[:8])


def _is_compiled(module: nn.Module) -> bool:
    return module._compiled_call_impl is not None
