"""What NeMo Automodel 0.5 makes of a recipe's pipeline: an oracle for the export, written from its source.

`PipelineConfig` (components/distributed/pipelining/config.py) takes these keys and no other. `split_model_into_stages` of
functional.py beside it puts stages on ranks by the schedule's name, and cuts each out of a copy of the model: a named module stays
whole, one that holds named ones is looked into, layers are kept by their numbers, all else becomes None.
"""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any, NamedTuple

from torch import nn
from torch.distributed.pipelining.schedules import PipelineScheduleMulti, ScheduleZBVZeroBubble, get_schedule_class

PIPELINE_KEYS = {
    *(
        "pp_schedule",
        "pp_schedule_csv",
        "pp_microbatch_size",
        "pp_batch_size",
        "layers_per_stage",
        "pp_seq_len",
        "loss_fn",
        "dtype",
    ),
    *("round_virtual_stages_to_pp_multiple", "module_fqns_per_model_part", "patch_inner_model", "patch_causal_lm_model"),
    *("patch_stage_backward_maybe_with_nosync", "scale_grads_in_schedule"),
}


class Recipe(NamedTuple):
    """What it makes of the YAML."""

    stages_of_rank: list[tuple[int, ...]]
    microbatches: int
    csv: str
    modules: list[list[str]]


def read_recipe(text: str) -> Recipe:
    """As the training recipe and `split_model_into_stages` read it, with their assertions."""
    read: dict[str, Any] = import_module("yaml").safe_load(text)
    assert set(read) == {"step_scheduler", "distributed"}
    ranks, pipeline = read["distributed"]["pp_size"], read["distributed"]["pipeline"]
    assert ranks > 1 and set(pipeline) <= PIPELINE_KEYS
    batch, size = read["step_scheduler"]["local_batch_size"], pipeline["pp_microbatch_size"]
    assert batch % size == 0 and batch // size >= ranks
    schedule, modules = get_schedule_class(pipeline["pp_schedule"]), pipeline["module_fqns_per_model_part"]
    count = len(modules)
    assert count % ranks == 0
    if schedule is ScheduleZBVZeroBubble:
        assert count == 2 * ranks and issubclass(schedule, PipelineScheduleMulti)
        on: list[tuple[int, ...]] = list(zip(range(ranks), range(count - 1, ranks - 1, -1), strict=True))
    else:
        on = [tuple(range(rank, count, ranks)) for rank in range(ranks)]
    return Recipe(on, batch // size, pipeline["pp_schedule_csv"], modules)


def stage_of(model: nn.Module, names: list[str]) -> nn.Module:
    """What is left of a copy of the model."""
    stage = copy.deepcopy(model)
    _cut(stage, "", set(names))
    return stage


def _cut(parent: nn.Module, above: str, kept: set[str]) -> None:
    for name, module in list(parent.named_children()):
        full = f"{above}.{name}" if above else name
        if full in kept:
            continue
        if isinstance(module, nn.ModuleList):
            numbers = {each.split(".")[-1] for each in kept if each.startswith(f"{full}.")}
            setattr(parent, name, nn.ModuleDict({str(at): layer for at, layer in enumerate(module) if str(at) in numbers}))
        elif any(each.startswith(f"{full}.") for each in kept):
            _cut(module, full, kept)
        else:
            setattr(parent, name, None)
