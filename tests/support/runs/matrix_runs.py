"""What the rank processes of the runtime's matrix run, and the same model without a pipeline."""

from __future__ import annotations

import random
import warnings
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import schedc.runtime
from runs.harness import Descent, piece_of
from runs.matrix_stages import OVER_PROCESSES, WIDTH, Loss, make_stage, spread
from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.runtime.session.online import ChoosingPipe
from schedc.runtime.session.pipe import Pipe
from schedc.runtime.training.checkpoint import load_checkpoint, save_checkpoint
from schedc.runtime.training.clipping import clip_grad_norm_
from schedc.runtime.training.scaling import GradScaler

if TYPE_CHECKING:
    from runs.matrix import Cell
    from schedc.ir.plan import Plan

SAMPLES, STEPS, NORM = 2, 3, 0.05


def train(rank: int, cell: Cell, plans: tuple[Plan, Plan], folder: str) -> dict[str, Any]:
    """Three steps of the optimizer: of each the gradients and weights by name, the losses; what was drawn; or the refusal."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a leaf")  # torch.compile's own
            return _train(rank, cell, plans, folder)
    except (InvalidInput, CheckFailed, Unsupported) as error:
        return {"refused": str(error)}


@cache
def _mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "pipeline"))


def _train(rank: int, cell: Cell, plans: tuple[Plan, Plan], folder: str) -> dict[str, Any]:
    mesh, (number, own) = _mesh(), divmod(rank, 2)
    outer = mesh.get_group("outer")
    seed = own if cell.replicas == "one pipeline" else rank  # both pipelines are then the same model on the same batches
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    plan = plans[0]
    stages = {stage: make_stage(cell.kind, piece_of(plan, stage)) for stage in plan.problem.stages_on(own)}
    for stage in stages.values():
        spread(stage, mesh["outer"], outer)
    is_last = plan.problem.paths[0][-1] in stages
    loss = Loss(cell.kind).double()
    groups: dict[str, Any] = {"pipeline_group": mesh.get_group("pipeline")}
    if cell.replicas != "one pipeline":
        groups["data_parallel_group"] = outer
    elif cell.kind in OVER_PROCESSES:
        groups["swap_group"] = outer
    zero_one = cell.replicas == "ZeRO 1"
    steps: list[dict[str, Any]] = []
    with schedc.runtime.load(
        plan,
        stages=stages,
        loss_fn=loss,
        timeout_s=20,
        recompute=cell.recomputes,
        kind=ChoosingPipe if cell.chooses else Pipe,
        **groups,
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
                batches = batches_of(cell, 2 * step + part)[number]
                scale = 1.0 if scaler is None else scaler.get_scale()
                losses.append(pipe.step(batches["inputs"], batches["targets"], scale=scale).item())
            if scaler is not None:
                scaler.unscale_(optimizer)
            if "clipping" in cell.after:
                own_experts = [weight for name, weight in named.items() if cell.kind == "experts apart" and ".experts." in name]
                clip_grad_norm_(pipe, NORM, local=own_experts)
            found: dict[str, Any] = {} if cell.kind == "FSDP2" else {"loss": np.array(losses)}  # its replicas are not the pipe's
            if zero_one:
                for shard in pipe.shards():
                    name = shard.name.removeprefix("loss_fn.")
                    place = "loss" if name != shard.name else str(shard.stage)
                    found[f"grad {place}.{name}[{shard.start}:{shard.stop}]"] = _array(shard.weight.grad)
            else:
                found |= {f"grad {name}": _array(weight.grad) for name, weight in named.items()}
            if scaler is None:
                optimizer.step()
            else:
                scaler.step(optimizer)
                scaler.update()
            if zero_one:
                pipe.gather()
            found |= {f"weight {name}": _array(weight.detach()) for name, weight in named.items()}
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


def _array(value: torch.Tensor | None) -> np.ndarray[Any, Any] | None:
    if value is None:
        return None
    whole = value.full_tensor() if hasattr(value, "full_tensor") else value
    return np.array(whole.detach().resolve_conj().numpy())


def batches_of(cell: Cell, step: int) -> list[dict[str, Any]]:
    """The microbatches of both pipelines: the same ones where they are one model."""
    generator = torch.Generator().manual_seed(step)
    found: list[dict[str, Any]] = []
    for pipeline in range(2):
        if pipeline and cell.replicas == "one pipeline" and cell.kind != "FSDP2":
            return found * 2
        inputs, targets = [], []
        for microbatch in range(4):
            x, y = (torch.randn(SAMPLES, WIDTH, generator=generator, dtype=torch.float64) for _ in range(2))
            inputs.append((x, torch.full((SAMPLES,), 100 * step + 10 * pipeline + microbatch)))
            targets.append(y)
        found.append({"inputs": inputs, "targets": targets})
    return found


def expected(cell: Cell, plan: Plan, drawn: dict[int, dict[int, Any]]) -> list[dict[str, Any]]:
    """The same by one model without a pipeline, microbatch by microbatch; buffers are each pipeline's own."""
    path = plan.problem.paths[0]
    replicas = 2 if cell.replicas != "one pipeline" or cell.kind == "FSDP2" else 1
    models = []
    for _ in range(replicas):
        pieces: dict[str, nn.Module] = {
            str(stage): make_stage(cell.kind, piece, drawn.get(piece, {})) for piece, stage in enumerate(path)
        }
        loss = Loss(cell.kind).double()
        if loss.head is not None:
            pieces["loss"] = loss
        if cell.kind == "unfrozen":
            for piece in pieces.values():
                piece.requires_grad_(True)
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
            for (pieces, loss), batch in zip(models, batches_of(cell, 2 * step + part), strict=False):
                for inputs, targets in zip(batch["inputs"], batch["targets"], strict=True):
                    values = inputs
                    for stage in path:
                        values = pieces[str(stage)](*values)
                    each = loss(values, targets) / (len(batch["inputs"]) * replicas)
                    each.backward()
                    total += each.item()
            losses.append(total)
        for name, weight in named[0].items():
            given = [grad for weights in named if (grad := weights[name].grad) is not None]
            if given:
                weight.grad = torch.stack(given).sum(0)
        if "clipping" in cell.after:
            torch.nn.utils.clip_grad_norm_(list(named[0].values()), NORM)
        found: dict[str, Any] = {"loss": np.array(losses)}
        found |= {f"grad {name}": _array(weight.grad) for name, weight in named[0].items()}
        Descent(named[0].values()).step()
        with torch.no_grad():
            for name, weight in named[0].items():
                for other in named[1:]:
                    other[name].copy_(weight)
        found |= {f"weight {name}": _array(weight.detach()) for name, weight in named[0].items()}
        steps.append(found)
    return steps


def _share_buffers(replicas: list[dict[str, nn.Module]]) -> None:
    """Before each step all have those of the first, as with DDP."""
    for pieces in replicas[1:]:
        for name, piece in pieces.items():
            for own, first in zip(piece.buffers(), replicas[0][name].buffers(), strict=True):
                own.copy_(first)
