"""Which modules of a torchtitan model are in which stage of a plan, by their names (FQNs)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import nn

    from schedc.ir.plan import Plan

_EMBEDDING, _BLOCKS, _HEAD = ("tok_embeddings",), "layers", ("norm", "lm_head")


def modules_of_stages(plan: Plan, model: nn.Module, chosen: Sequence[Sequence[str]] | None) -> list[list[str]]:
    """The names of the modules of each stage, in the order of the forward.

    Args:
        plan: one whose stages are one path.
        model: a decoder of torchtitan: `tok_embeddings`, `layers`, `norm`, `lm_head`.
        chosen: what the job says in `parallelism.module_fqns_per_model_part`; None: the plan's layers count. These are the
            embedding, the blocks, and the norm with the head as one layer; or the blocks alone.

    Raises:
        InvalidInput: the plan does not say which layers its stages have, or is for another model; or a module would be in no stage,
            or in two.
    """
    stages = plan.problem.stages
    blocks = [f"{_BLOCKS}.{name}" for name, _ in getattr(model, _BLOCKS).named_children()]
    if chosen is not None:
        if len(chosen) != len(stages):
            raise InvalidInput(
                f"parallelism.module_fqns_per_model_part: found {len(chosen)} lists, expected {len(stages)}, one for each stage of"
                f" plan {plan.name!r}; without it the plan's layers count"
            )
        modules = [list(names) for names in chosen]
    else:
        modules = _from_layers(plan, blocks)
    named = [name for names in modules for name in names]
    twice = next((name for at, name in enumerate(named) if name in named[:at]), None)
    if twice is not None:
        raise InvalidInput(f"parallelism.module_fqns_per_model_part: found {twice!r} in two stages, expected it in one")
    present = [name for name, _ in model.named_children() if name != _BLOCKS]
    missing = next((name for name in (*present, *blocks) if name not in named), None)
    if missing is not None:
        raise InvalidInput(
            f"plan {plan.name!r}: the model's module {missing!r} is in no stage; name each stage's modules in"
            " parallelism.module_fqns_per_model_part"
        )
    return modules


def _from_layers(plan: Plan, blocks: Sequence[str]) -> list[list[str]]:
    """The modules of the layers that the plan's stages have."""
    bounds = [stage.layers for stage in plan.problem.stages]
    known = [each for each in bounds if each is not None]
    if len(known) < len(bounds):
        raise InvalidInput(
            f"plan {plan.name!r} does not say which layers its stages have; compile it with a profile.json or pipeline.partition,"
            " or name each stage's modules in parallelism.module_fqns_per_model_part"
        )
    count = max(last for _, last in known)
    layers: list[Sequence[str]] = [(name,) for name in blocks]
    if count == len(blocks) + 2:
        layers = [_EMBEDDING, *layers, _HEAD]
    elif count == len(blocks):
        layers[0] = (*_EMBEDDING, *layers[0])
        layers[-1] = (*layers[-1], *_HEAD)
    else:
        raise InvalidInput(
            f"plan {plan.name!r} is for {count} layers, the model has {len(blocks)} blocks; expected {len(blocks) + 2} layers"
            f" (with the embedding and the head) or {len(blocks)}"
        )
    return [[name for layer in layers[first:last] for name in layer] for first, last in known]
