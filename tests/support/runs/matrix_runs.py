"""What the rank processes of the runtime's matrix run, and the same model without a pipeline."""

from __future__ import annotations

import random
import warnings
from contextlib import nullcontext
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.func import functional_call

import schedc.runtime
from runs.harness import Descent, piece_of
from runs.matrix_stages import (
    OWN_SAMPLES,
    SLICED,
    WIDTH,
    Grid,
    Loss,
    as_precise,
    dtype_of,
    four_of,
    grid_of,
    make_stage,
    spread,
    whole_of,
)
from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runs.matrix import Cell
    from schedc.ir.plan import Plan

SAMPLES, STEPS, NORM = 2, 3, 0.05


def train(rank: int, cell: Cell, plans: tuple[Plan, Plan], folder: str) -> dict[str, Any]:
    """Three steps of the optimizer: of each the gradients and weights by name, the losses; what was drawn; or the refusal."""
    try:
        with warnings.catch_warnings():
            if cell.compiled:
                warnings.simplefilter("ignore")  # torch.compile's own
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view")
            return _train(rank, cell, plans, folder)
    except (InvalidInput, CheckFailed, Unsupported) as error:
        return {"refused": str(error)}


@cache
def _mesh(grid: Grid) -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", grid, mesh_dim_names=("copies", "data", "ranks", "peers"))


def _groups(cell: Cell, mesh: Any) -> dict[str, Any]:
    """What a job of the cell gives `load`."""
    groups: dict[str, Any] = {"pipeline_group": mesh.get_group("ranks")}
    if cell.replicas != "one pipeline":
        in_replicas = cell.spread == "FSDP2 in replicas"
        groups["data_parallel_group"] = four_of().get_group("replicas") if in_replicas else mesh.get_group("data")
    if cell.spread in OWN_SAMPLES:
        groups["swap_group"] = mesh.get_group("data")
    if mesh["peers"].size() > 1:
        groups["swap_group"] = mesh.get_group("peers")
    return groups


def _precise(cell: Cell) -> Any:
    """Around steps, and around what they are compared with."""
    return torch.autocast("cpu", torch.bfloat16, cache_enabled=False) if cell.precision == "autocast" else nullcontext()


def _train(rank: int, cell: Cell, plans: tuple[Plan, Plan], folder: str) -> dict[str, Any]:
    grid = grid_of(cell)
    mesh = _mesh(grid)
    _, number, own, _ = mesh.get_coordinate()
    seed = grid.ranks * number + own  # the same in all copies, and for peers
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    plan = plans[0]
    stages = {stage: make_stage(cell, piece_of(plan, stage)) for stage in plan.problem.stages_on(own)}
    for stage in stages.values():
        spread(cell, stage, mesh)
    is_last = plan.problem.paths[0][-1] in stages
    loss = as_precise(cell, Loss(cell.kind))
    sums_alone = cell.spread.startswith("FSDP2") and (cell.replicas == "one pipeline" or cell.spread == "FSDP2 in replicas")
    zero_one = cell.replicas == "ZeRO 1"
    steps: list[dict[str, Any]] = []
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss,
        timeout_s=60,
        grad_dtype=torch.float32 if dtype_of(cell) is torch.bfloat16 else None,
        recompute=cell.recomputes,
        kind=ChoosingPipe if cell.chooses else Pipe,
        **_groups(cell, mesh),
    ) as pipe:
        modules: dict[str, nn.Module] = {str(stage): module for stage, module in stages.items()}
        if is_last and loss.head is not None:
            modules["loss"] = loss
        if cell.kind == "unfrozen":
            for module in modules.values():
                module.requires_grad_(True)
        named = {f"{name}.{key}": w for name, module in modules.items() for key, w in module.named_parameters()}
        scaler = GradScaler(pipe, init_scale=1024.0, growth_interval=100) if "scaling" in cell.after else None
        for step in range(STEPS):
            mine = [shard.weight for shard in pipe.shards()] if zero_one else list(named.values())
            optimizer: Any = Descent(mine)
            for weight in (*mine, *named.values()):
                weight.grad = None
            losses = []
            for part in range(1 + cell.accumulates):
                batches = batches_of(cell, step, part)[number]
                scale = 1.0 if scaler is None else scaler.get_scale()
                with _precise(cell):
                    losses.append(pipe.step(batches["inputs"], batches["targets"], scale=scale).item())
            if scaler is not None:
                scaler.unscale_(optimizer)
            found: dict[str, Any] = {} if sums_alone else {"loss": np.array(losses)}  # its replicas are not the pipe's
            if "clipping" in cell.after:
                by_hand = SLICED if cell.spread == "TP by hand" else ("apart.",)
                local = [weight for name, weight in named.items() if any(one in name for one in by_hand)]
                found["grad"] = _array(clip_grad_norm_(pipe, inf, inf, local=local))
                clip_grad_norm_(pipe, NORM, local=local)
            if zero_one:
                for shard in pipe.shards():
                    name = shard.name.removeprefix("loss_fn.")
                    place = "loss" if name != shard.name else str(shard.stage)
                    if hasattr(shard.whole, "device_mesh") or (cell.spread == "TP by hand" and name in SLICED):
                        continue  # a share of a slice; the weight tells whether it was right
                    found[f"grad {place}.{name}[{shard.start}:{shard.stop}]"] = _array(shard.weight.grad)
            else:
                found |= {f"grad {name}": _whole(stages, name, weight.grad) for name, weight in named.items()}
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if zero_one:
                pipe.gather()
            found |= {f"weight {name}": _whole(stages, name, weight.detach()) for name, weight in named.items()}
            steps.append(found)
            if step == 0 and cell.checkpoint:
                model = nn.ModuleDict({f"module{name}": module for name, module in modules.items()})
                save_checkpoint(pipe, f"{folder}/saved", model=model)
                with torch.no_grad():
                    for weight in mine:
                        weight.add_(1)
                load_checkpoint(pipe, f"{folder}/saved", model=model)
            if step == 0 and cell.swaps:
                pipe.swap(plans[1])
    drawn = {piece_of(plan, index): stage.drawn for index, stage in stages.items()}
    return {"steps": steps, "drawn": drawn}


def _whole(stages: Mapping[int, Any], name: str, own: torch.Tensor | None) -> np.ndarray[Any, Any] | None:
    """What a weight of this name, or its gradient, is over all processes."""
    place, _, weight = name.partition(".")
    return _array(own if place == "loss" else whole_of(stages[int(place)], weight, own))


def _array(value: torch.Tensor | None) -> np.ndarray[Any, Any] | None:
    if value is None:
        return None
    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
    whole = whole.detach().resolve_conj()
    return np.array((whole.float() if whole.dtype == torch.bfloat16 else whole).numpy())


def batches_of(cell: Cell, step: int, part: int) -> list[dict[str, Any]]:
    """The microbatches of all pipelines that have others."""
    generator = torch.Generator().manual_seed(2 * step + part)
    found: list[dict[str, Any]] = []
    for pipeline in range(grid_of(cell).data):
        inputs, targets = [], []
        for microbatch in range(4):
            samples = SAMPLES + {"same": 0, "by step": step % 2, "by microbatch": microbatch % 3}[cell.shapes]
            x, y = (torch.randn(samples, WIDTH, generator=generator, dtype=torch.float64).to(dtype_of(cell)) for _ in range(2))
            inputs.append((x, torch.full((samples,), 200 * step + 100 * part + 10 * pipeline + microbatch)))
            targets.append(y)
        found.append({"inputs": inputs, "targets": targets})
    return found


def _together(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """As one pipeline's, with the samples of all in each microbatch."""
    inputs = [tuple(map(torch.cat, zip(*each, strict=True))) for each in zip(*(one["inputs"] for one in batches), strict=True)]
    return [{"inputs": inputs, "targets": [*map(torch.cat, zip(*(one["targets"] for one in batches), strict=True))]}]


def expected(cell: Cell, plan: Plan, drawn: dict[int, dict[int, Any]]) -> list[dict[str, Any]]:
    """The same by one model without a pipeline, microbatch by microbatch; buffers are each pipeline's own."""
    path = plan.problem.paths[0]
    replicas = 1 if cell.spread == "context" else grid_of(cell).data
    models = []
    for _ in range(replicas):
        pieces: dict[str, nn.Module] = {
            str(stage): make_stage(cell, piece, drawn.get(piece, {})) for piece, stage in enumerate(path)
        }
        loss = as_precise(cell, Loss(cell.kind))
        if loss.head is not None:
            pieces["loss"] = loss
        if cell.kind == "unfrozen":
            for piece in pieces.values():
                piece.requires_grad_(True)
        if _has_masters(cell):
            nn.ModuleDict(pieces).float()
        elif dtype_of(cell) is torch.bfloat16:
            for weight in nn.ModuleDict(pieces).parameters():
                weight.grad_dtype = torch.float32
        models.append((pieces, loss))
    named = [{f"{name}.{key}": w for name, piece in pieces.items() for key, w in piece.named_parameters()} for pieces, _ in models]
    steps = []
    for step in range(STEPS):
        for weights in named:
            for weight in weights.values():
                weight.grad = None
        losses = []
        for part in range(1 + cell.accumulates):
            total = 0.0
            _share_buffers([pieces for pieces, _ in models])
            batches = batches_of(cell, step, part)
            for (pieces, loss), batch in zip(models, batches if replicas == len(batches) else _together(batches), strict=True):
                for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
                    values = inputs
                    with _precise(cell):
                        for stage in path:
                            values = _forward(cell, pieces[str(stage)], values)
                        each = _forward(cell, loss, (values, targets)) / (len(batch["inputs"]) * replicas)
                    each.backward()
                    total += each.item()
            losses.append(total)
        for name, weight in named[0].items():
            given = [grad for weights in named if (grad := weights[name].grad) is not None]
            if given:
                weight.grad = torch.stack(given).sum(0)
        found: dict[str, Any] = {"loss": np.array(losses)}
        if "clipping" in cell.after:
            found["grad"] = _array(torch.nn.utils.clip_grad_norm_(list(named[0].values()), inf, inf))
            torch.nn.utils.clip_grad_norm_(list(named[0].values()), NORM)
        found |= {f"grad {name}": _array(weight.grad) for name, weight in named[0].items()}
        Descent(named[0].values()).step()
        with torch.no_grad():
            for name, weight in named[0].items():
                for other in named[1:]:
                    other[name].copy_(weight)
        found |= {f"weight {name}": _array(weight.detach()) for name, weight in named[0].items()}
        steps.append(found)
    return steps


def _has_masters(cell: Cell) -> bool:
    """Whether what the optimizer has is in float32, and the stages compute with copies of it in bf16."""
    return cell.precision == "bf16" and (cell.spread.startswith("FSDP2") or cell.replicas == "ZeRO 1")


def _forward(cell: Cell, piece: nn.Module, values: Any) -> Any:
    """What a piece gives; where it has masters, with weights, and from values, in bf16."""
    if not _has_masters(cell) or (isinstance(piece, Loss) and cell.replicas != "ZeRO 1"):  # FSDP is around stages
        return piece(*values)
    low = {name: weight.to(torch.bfloat16) for name, weight in piece.named_parameters()}
    if isinstance(piece, Loss):
        return functional_call(piece, low, values)
    return functional_call(piece, low, tuple(one.to(torch.bfloat16) if one.is_floating_point() else one for one in values))


def _share_buffers(replicas: list[dict[str, nn.Module]]) -> None:
    """Before each step all have those of the first, as with DDP."""
    for pieces in replicas[1:]:
        for name, piece in pieces.items():
            for own, first in zip(piece.buffers(), replicas[0][name].buffers(), strict=True):
                own.copy_(first)
