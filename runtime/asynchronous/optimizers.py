"""What a job gives for runs of steps that overlap: optimizers for each stage, and how gradients are treated before its step.

Here also: whether they fit a plan and this rank's stages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING

from torch.nn.parameter import is_lazy

from schedc.errors import InvalidInput, Unsupported
from schedc.ir import Plan, Versions
from schedc.runtime.common.program import replicas_of
from schedc.runtime.stage.apart import sharded

if TYPE_CHECKING:
    import torch
    from torch import nn

    from schedc.runtime.asynchronous.cache import VersionCache
    from schedc.runtime.asynchronous.corrections import Correction


class StageOptimizers:
    """A rank's optimizers by stage, for `load(optimizers=…)`."""

    def __init__(
        self,
        by_stage: Mapping[int, torch.optim.Optimizer | Sequence[torch.optim.Optimizer]],
        *,
        max_norm: float = math.inf,
        per_stage: bool = False,
        skip_nonfinite: bool = False,
        loss_scale: float = 1.0,
        corrections: Sequence[Correction] = (),
        device_bytes: float | None = None,
    ) -> None:
        """Take them.

        Args:
            by_stage: of each stage of this rank that has weights that require grad, an optimizer of all of these, and of the loss
                function's with a last stage; or several, each of some of them. In a run each of their parameter groups has `delay`,
                the stage's in updates.
            max_norm: to which the gradients of a step are clipped before an update, as `torch.nn.utils.clip_grad_norm_` does: those
                of the whole model, under `2bw`, where a norm has a step's time to come; infinite: they are not clipped.
            per_stage: `max_norm` and `skip_nonfinite` are of each stage by itself, as they must be under `stash` and `bounded`.
            skip_nonfinite: whether a step whose gradients are infinite or NaN makes no update; else it makes one of what there is.
            loss_scale: by which gradients are multiplied before they go backwards, and divided before an update (float16).
            corrections: of the delay; each is called with what the one before gives.
            device_bytes: the most bytes of weights on this rank's device, all versions and the newest; others are in the host's
                memory until they are read again. What an op needs is there in any case: a version, and for an update two. Infinite:
                `cache.limit_bytes` may be made less later. None: all are on the device.

        Raises:
            InvalidInput: a number is out of range, or the optimizers are not given by stage.
        """
        if not isinstance(by_stage, Mapping):
            raise InvalidInput(
                f"found a {type(by_stage).__name__} for the optimizers, expected one for each stage: {{stage: optimizer}}"
            )
        if not max_norm > 0 or not 0 < loss_scale < math.inf:
            raise InvalidInput(f"found max_norm={max_norm} and loss_scale={loss_scale}, expected numbers above 0")
        if device_bytes is not None and not device_bytes >= 0:
            raise InvalidInput(f"found device_bytes={device_bytes}, expected a number of bytes, at least 0")
        self.by_stage = dict(by_stage)
        self.max_norm = max_norm
        self.per_stage = per_stage
        self.skip_nonfinite = skip_nonfinite
        self.loss_scale = loss_scale
        self.corrections = tuple(corrections)
        self.cache: VersionCache | None = None
        """Which versions are on the device, where `device_bytes` was given."""
        if device_bytes is not None:
            from schedc.runtime.asynchronous.cache import VersionCache

            self.cache = VersionCache(device_bytes)
        self.updates = 0
        """How many updates each stage has made, over all runs that are whole: one that has failed counts none of its own.
        `load_checkpoint` sets it."""

    def of(self, stage: int) -> tuple[torch.optim.Optimizer, ...]:
        """Those of a stage; none where nothing of it is trained."""
        given = self.by_stage.get(stage, ())
        return tuple(given) if isinstance(given, Sequence) else (given,)

    def weights_of(self, stage: int) -> list[nn.Parameter]:
        """Those that a stage's optimizers have, frozen ones too."""
        return [weight for one in self.of(stage) for group in one.param_groups for weight in group["params"]]

    @property
    def all(self) -> list[torch.optim.Optimizer]:
        """Those of all stages, for `save_checkpoint` and `load_checkpoint`."""
        return [optimizer for stage in self.by_stage for optimizer in self.of(stage)]

    @property
    def looks_at_norms(self) -> bool:
        """Whether the norm of a step's gradients decides about its update."""
        return self.skip_nonfinite or math.isfinite(self.max_norm)

    def __str__(self) -> str:
        """What is to be the same on all ranks."""
        names = ",".join(type(each).__name__ for each in self.corrections)
        return (
            f"[max_norm={self.max_norm:g} per_stage={self.per_stage} skip_nonfinite={self.skip_nonfinite}"
            f" loss_scale={self.loss_scale:g} corrections={names} updates={self.updates}]"
        )


def check_updates(plan: Plan, modules: Mapping[int, nn.Module], optimizers: StageOptimizers | None) -> None:
    """Refuse a plan whose steps overlap where this rank cannot run it; in any thread, even while a run has the optimizers.

    The plan need not be sound. What weights there are is for `check_weights`. `optimizers` is None where `load` was given none.

    Raises:
        SchedcError: says why.
    """
    updates = plan.problem.updates
    if updates is None:
        return
    if updates.is_period:
        raise InvalidInput(f"plan {plan.name!r} is one period of steps that overlap; give load steps=, how many a run has")
    if optimizers is None:
        raise InvalidInput(
            f"plan {plan.name!r} has updates, as its steps overlap, and no optimizers were given; give load optimizers=, by stage"
        )
    if replicas_of(plan.problem) or plan.problem.data_parallel is not None:
        raise Unsupported(
            f"plan {plan.name!r} has replicas and updates; steps overlap in pipelines that do not know of each other, with a"
            " data_parallel_group"
        )
    _check_norms(plan, updates.versions, optimizers)
    for stage, module in modules.items():
        ties = getattr(module, "ties_of_ranks", None) or getattr(getattr(module, "stage", None), "ties_of_ranks", None)
        if ties:
            check_ties(plan, optimizers, f"stage {stage} shares the weight {next(iter(ties))} with another rank")


def check_weights(modules: Mapping[int, nn.Module], optimizers: StageOptimizers) -> None:
    """Refuse optimizers that have not exactly the weights that are trained, and weights that a run cannot keep in versions.

    `load` does it, and each run before it begins: what a job replaces, freezes or unfreezes between two of them is not lost. An
    optimizer may have frozen weights, which it leaves as they are.

    Raises:
        SchedcError: says why.
    """
    trained = sorted(stage for stage, module in modules.items() if any(weight.requires_grad for weight in module.parameters()))
    if not {*trained} <= {*optimizers.by_stage} <= modules.keys():
        raise InvalidInput(
            f"optimizers were given for stages {sorted(optimizers.by_stage, key=str)}, expected {trained}, those of this"
            " rank with weights that require grad"
        )
    for stage in trained:
        _check_optimizers(stage, optimizers.of(stage))
    owner: dict[nn.Parameter, int] = {}
    for stage, module in modules.items():
        found = sharded(module)
        if found is not None:
            raise Unsupported(f"stage {stage} has {found}; where steps overlap, weights are kept in versions, plain tensors alone")
        if stage not in optimizers.by_stage:
            continue
        given = {weight for weight in optimizers.weights_of(stage) if weight.requires_grad}
        places: dict[int, str] = {}
        own = {weight: name for name, weight in module.named_parameters() if weight.requires_grad}
        if given != own.keys():
            missing = next((name for weight, name in own.items() if weight not in given), None)
            what = f"lacks its weight {missing!r}" if missing else "has a weight that is not of the stage"
            one = "optimizer" if len(optimizers.of(stage)) == 1 else "list of optimizers"
            raise InvalidInput(f"the {one} of stage {stage} {what}; give it all weights of the stage that require grad")
        for weight, name in own.items():
            if is_lazy(weight):
                raise InvalidInput(f"stage {stage} has the weight {name!r} without a shape yet; run its module once before load")
            same = places.setdefault(weight.data_ptr(), name) if weight.numel() and weight.device.type != "meta" else name
            if same != name:
                raise Unsupported(
                    f"stage {stage} has the weights {same!r} and {name!r} in one memory, which versions would take apart; make them"
                    " one nn.Parameter"
                )
            other = owner.setdefault(weight, stage)
            if other != stage:
                raise Unsupported(f"stages {other} and {stage} share the weight {name!r}; steps overlap without tied weights")


def check_ties(plan: Plan, optimizers: StageOptimizers, which: str) -> None:
    """Refuse weights that several ranks have where their copies would not stay the same; `which`, for the message.

    Under 2bw all stages have the same delay and the same versions, and a step's sum has as much time as a norm.
    """
    assert plan.problem.updates is not None
    versions = plan.problem.updates.versions
    if versions is not Versions.TWO_BUFFERED:
        raise Unsupported(f"{which}; under {versions} ranks have different versions of it; compile with versions = '2bw'")
    if optimizers.looks_at_norms and optimizers.per_stage:
        raise Unsupported(
            f"{which}; clipped by the norm of each stage its copies would differ; give StageOptimizers per_stage=False"
        )
    from schedc.runtime.asynchronous.norms import check_slack

    check_slack(plan, "a tied weight's sum", "let one rank have all stages that share it")


def _check_optimizers(stage: int, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    known: set[torch.Tensor] = set()
    for optimizer in optimizers:
        if not hasattr(optimizer, "param_groups"):
            raise InvalidInput(
                f"stage {stage}: found a {type(optimizer).__name__} for an optimizer, expected a torch.optim.Optimizer"
            )
        wants = [one.name for one in signature(type(optimizer).step).parameters.values() if one.default is one.empty][1:]
        if "closure" in wants:
            raise Unsupported(
                f"the optimizer of stage {stage} is {type(optimizer).__name__}, whose step runs the model again (closure); where"
                " steps overlap, give one that steps on gradients alone"
            )
        for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
            if weight in known:
                raise InvalidInput(f"two optimizers of stage {stage} have the same weight; give each weight to one of them")
            known.add(weight)


def _check_norms(plan: Plan, versions: Versions, optimizers: StageOptimizers) -> None:
    if not optimizers.looks_at_norms or optimizers.per_stage:
        return
    if versions is not Versions.TWO_BUFFERED:
        raise InvalidInput(
            f"plan {plan.name!r} has {versions} versions, where a norm of all stages would stall them, as updates are read at once;"
            " give StageOptimizers per_stage=True, or compile with versions = '2bw'"
        )
    from schedc.runtime.asynchronous.norms import check_slack

    check_slack(plan)
