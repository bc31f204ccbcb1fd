"""torchtitan's trainer with what a test needs in place of files: tokens, a tokenizer, weights that do not depend on the layout."""

from __future__ import annotations

import hashlib
import inspect
import time
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torchtitan.trainer
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.attention.flex_attention import AuxOutput, create_mask
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss
from torchtitan.components.metrics import MetricsProcessor
from torchtitan.components.tokenizer import BaseTokenizer
from torchtitan.components.validate import Validator
from torchtitan.config import CompileConfig, ConfigManager, ParallelismConfig, TrainingConfig
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC
from torchtitan.distributed.parallel_dims import ParallelDims
from torchtitan.models.common import attention
from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention
from torchtitan.models.llama3.config_registry import llama3_debugmodel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn.attention.flex_attention import BlockMask
    from torchtitan.trainer import Trainer

    from runs.torchtitan_runs import Found, Run

VOCABULARY = 2048
SEQUENCE = 16
"""Tokens of a sample."""


class Tokens(BaseDataLoader):  # type: ignore[misc]  # torchtitan is not where mypy runs
    """Random tokens, the same in every run."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):  # type: ignore[misc]
        infinite: bool = True

    def __init__(self, config: Config, *, dp_world_size: int, dp_rank: int, local_batch_size: int, seq_len: int, **_: Any) -> None:
        self._world, self._rank, self._samples, self._length = dp_world_size, dp_rank, local_batch_size, seq_len
        self._next = 0

    def __iter__(self) -> Iterator[tuple[dict[str, torch.Tensor], torch.Tensor]]:
        while True:
            generator = torch.Generator().manual_seed(self._next * self._world + self._rank)
            self._next += 1
            tokens = torch.randint(VOCABULARY, (self._samples, self._length + 1), generator=generator)
            tokens[:, 1::2] = tokens[:, :-1:2]  # something to learn
            labels = tokens[:, 1:].clone()
            labels[:, : int(tokens[0, 0]) % 4] = -100  # microbatches have different numbers of tokens that count
            positions = torch.arange(self._length).expand(self._samples, -1).clone()
            yield {"input": tokens[:, :-1].contiguous(), "positions": positions}, labels

    def state_dict(self) -> dict[str, Any]:
        return {"next": self._next}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._next = state["next"]


class Tokenizer(BaseTokenizer):  # type: ignore[misc]
    """None is needed."""

    @dataclass(kw_only=True, slots=True)
    class Config(BaseTokenizer.Config):  # type: ignore[misc]
        pass

    def __init__(self, config: Config, **_: Any) -> None:
        super().__init__()

    def encode(self, *_: Any, **__: Any) -> list[int]:
        raise NotImplementedError

    def decode(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def get_vocab_size(self) -> int:
        return VOCABULARY


def configuration(run: Run) -> Trainer.Config:
    """What a user would write in a function of a configuration registry."""
    config = llama3_debugmodel()
    spec = import_module(f"torchtitan.models.{run.model}").model_registry("debugmodel")
    for layer in spec.model.layers:
        if "parallelism.context_parallel_degree" not in run.options:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        if getattr(layer, "moe", None) is not None:
            # torch's schedule begins with a forward on memory as it lies, to see shapes, whose tokens would be counted.
            layer.moe.load_balance_coeff = None
    if run.plan is not None:
        from schedc.runtime.frameworks.torchtitan import pipelining_fn_from

        spec.pipelining_fn = pipelining_fn_from(run.plan)
    config.model_spec = spec
    config.tokenizer = Tokenizer.Config()
    config.dataloader = Tokens.Config()
    config.loss = CrossEntropyLoss.Config(global_vocab_size=VOCABULARY)
    config.training = TrainingConfig(
        local_batch_size=run.microbatches,
        seq_len=SEQUENCE,
        steps=run.steps,
        mixed_precision_param="float32",
        disable_cuda_graphs=True,
    )
    config.parallelism = ParallelismConfig(
        pipeline_parallel_degree=torch.distributed.get_world_size(), pipeline_parallel_schedule=run.schedule
    )
    config.metrics = MetricsProcessor.Config(log_freq=1)
    config.checkpoint = CheckpointManager.Config(enable=False)
    config.activation_checkpoint = None
    config.validator = Validator.Config(enable=False, dataloader=Tokens.Config())
    config.dump_folder = run.folder
    if run.chunked_loss:
        config.loss = ChunkedLossWrapper.Config(loss_fn=config.loss)
    if run.recompute is not None:
        config.activation_checkpoint = {"full": FullAC, "selective": SelectiveAC}[run.recompute].Config()
    config.compile = CompileConfig(enable=run.compiled, components=["model"], backend="aot_eager")
    if run.arguments:
        given = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_debugmodel", *run.arguments])
        config.parallelism = given.parallelism
        config.training.local_batch_size = given.training.local_batch_size
        config.training.disable_cuda_graphs = given.training.disable_cuda_graphs
    for path, value in run.options.items():
        *parents, name = path.split(".")
        part = config
        for parent in parents:
            part = getattr(part, parent)
        setattr(part, name, value)
    config.__post_init__()
    return config


def build(run: Run, found: Found) -> Trainer:
    """The trainer, which notes what it sees."""
    trainer = configuration(run).build()
    with torch.no_grad():
        for part in trainer.model_parts:
            for module in part.modules():
                if isinstance(module, FSDPModule):
                    module.set_force_sum_reduction_for_comms(True)  # gloo has no sum with a factor
            for name, weight in part.named_parameters():
                _fill(name, weight)

    def log(step: int, average: float, most: float, norm: float, extra_metrics: Any = None) -> None:
        if trainer.pp_has_last_stage:
            found.losses.append(average)
        found.norms.append(norm)

    trainer.metrics_processor.log = log
    trainer.metrics_processor.log_validation = lambda loss, step: found.validated.append(loss)
    return trainer


def digests(parts: Any) -> dict[str, str]:
    """What the weights are."""
    return {
        name: hashlib.sha256(weight.detach().full_tensor().numpy().tobytes()).hexdigest()[:16]
        for part in parts
        for name, weight in part.named_parameters()
    }


def _fill(name: str, weight: torch.Tensor) -> None:
    """Weights by their names, the same wherever they are: torchtitan's own depend on the rank."""
    if "norm" in name:
        return
    generator = torch.Generator().manual_seed(int(hashlib.sha256(name.encode()).hexdigest()[:8], 16))
    full = torch.randn(weight.shape, generator=generator) * (1.0 if "tok_embeddings" in name else 0.04)
    assert isinstance(weight, DTensor)
    weight.copy_(distribute_tensor(full, weight.device_mesh, weight.placements))


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, block_mask: BlockMask, scale: float | None, enable_gqa: bool, **_: Any
) -> tuple[torch.Tensor, AuxOutput]:
    """Flex attention without its kernel, which has no backward on CPUs; the arguments are the kernel's."""
    mask = create_mask(block_mask.mask_mod, 1, 1, q.shape[2], k.shape[2], device="cpu")
    given = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)
    return given, AuxOutput()


def share_meshes() -> None:
    """Let the trainers of a process share meshes of the same degrees: a job has one trainer, whose groups end with it.

    Groups of a mesh cannot be destroyed before, as torch keeps what it has found for a mesh for all that are equal to it.
    """
    made: dict[str, ParallelDims] = {}
    from_config = ParallelDims.from_config

    def shared(parallelism: ParallelismConfig, world_size: int) -> ParallelDims:
        new = from_config(parallelism, world_size)
        return made.setdefault(str(new), new)

    ParallelDims.from_config = shared


def run_on_torch_2_13() -> None:
    """Give torch 2.13 the two things of newer ones that torchtitan 0.3 uses in a pipeline: `arg_mbs` of schedules, `set_timeout`.

    The lists of microbatches go where torch's own `step` sends what it has split.
    """
    if not hasattr(torch.distributed, "set_timeout"):
        setattr(torch.distributed, "set_timeout", lambda *_args, **_kwargs: None)  # noqa: B010
    from torch.distributed.pipelining.schedules import PipelineScheduleMulti, PipelineScheduleSingle

    def step(
        self: Any,
        *,
        arg_mbs: Any = None,
        kwarg_mbs: Any = None,
        target_mbs: Any = None,
        losses: Any = None,
        return_outputs: bool = True,
        loss_kwargs: Any = None,
        target: None = None,
    ) -> None:
        for stage in getattr(self, "_stages", None) or [self._stage]:
            stage.has_backward = self._has_backward
            stage.clear_runtime_states()
        self._step_microbatches(arg_mbs, kwarg_mbs, target_mbs, losses, return_outputs, loss_kwargs=loss_kwargs)

    for kind in (PipelineScheduleSingle, PipelineScheduleMulti):
        if "arg_mbs" not in inspect.signature(kind.step).parameters:
            setattr(kind, "step", step)  # noqa: B010


run_on_torch_2_13()
share_meshes()
FlexAttention.compiled_flex_attn = staticmethod(attend)
attention._compiled_create_block_mask = attention.create_block_mask
torchtitan.trainer.time = SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _s: None)  # it sleeps after each training
