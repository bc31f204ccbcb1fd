"""torchtitan's own trainer on CPUs: what the ranks of a test run, its debug models on synthetic tokens, with a schedule or a plan.

torchtitan expects an accelerator; here it takes the CPU for one. Its attention kernels need a GPU or a compiler, so the models have
its `ScaledDotProductAttention` instead, as torchtitan's own tests on other backends do. Context parallelism wants flex attention:
it has torchtitan's, with torch's dense kernel in place of the compiled one.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import warnings
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from runs.processes import Ranks


@dataclass(frozen=True)
class Run:
    """What a trainer is to do."""

    model: str = "llama3"
    """Or `deepseek_v3`, with latent attention, and experts in all blocks but the first."""
    plan: str | None = None
    """The plan file; None: torchtitan's own schedule."""
    schedule: str = "1F1B"
    steps: int = 20
    microbatches: int = 4
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of the configuration, by path: `training.max_norm`."""
    arguments: tuple[str, ...] = ()
    """Of the command line, which torchtitan reads itself."""
    chunked_loss: bool = False
    """Whether the loss computes the head in chunks."""
    recompute: str | None = None
    """`full` or `selective`: torchtitan's activation checkpointing."""
    compiled: bool = False
    """Whether blocks are compiled, without a compiler of kernels."""
    folder: str = ""
    """Where it writes checkpoints."""


@dataclass
class Found:
    """What a rank has seen of a run."""

    losses: list[float]
    """Of each step, over all pipelines; empty without a last stage."""
    norms: list[float]
    weights: dict[str, str]
    """A digest of each weight at the end."""
    validated: list[float] = field(default_factory=list)


def train(rank: int, run: Run) -> Found:
    """Train; what this rank has seen."""
    gc.collect()  # the trainer before, whose pipe closes with it
    titan = _torchtitan()
    if run.compiled and run.plan is not None:  # torchtitan's own run of the same job comes after, and runs what is compiled here
        titan.torch.compiler.reset()  # it compiles some models in a process, and no more
    found = Found([], [], {})
    trainer = titan.build(run, found)
    try:
        trainer.train()
    finally:
        trainer.close()
    found.weights = titan.digests(trainer.model_parts)
    return found


Trained = tuple[list[float], list[float], dict[str, str]]


def trained(ranks: Ranks, run: Run) -> Trained:
    """Losses (of training, then of validation), norms and digests of the weights of a run, which all processes agree on."""
    found = ranks.run(train, run, limit_s=250)
    assert all(isinstance(one, Found) for one in found), found
    losses, *others = [one.losses for one in found if one.losses]
    assert all(one == losses for one in others)
    assert all(one.norms == found[0].norms for one in found)
    weights: dict[str, str] = {}
    for one in found:
        assert all(weights.setdefault(name, digest) == digest for name, digest in one.weights.items())
    validated = [one.validated for one in found if one.losses]
    assert all(one == validated[0] for one in validated)
    return [*losses, *validated[0]], found[0].norms, weights


def _torchtitan() -> Any:
    """The module beside this one that imports torchtitan, once the CPU is the accelerator of this process."""
    warnings.simplefilter("default")
    logging.disable(logging.WARNING)
    os.environ.setdefault("LOCAL_RANK", "0")
    import torch
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    memory = SimpleNamespace(total_memory=1, name="CPU")
    for name, value in {
        "current_device": lambda: 0,
        "get_device_name": lambda _device=None: "CPU",
        "get_device_properties": lambda _device=None: memory,
        "memory_stats": lambda _device=None: {},
        "reset_peak_memory_stats": lambda _device=None: None,
        "empty_cache": lambda: None,
    }.items():
        setattr(torch.cpu, name, value)
    torch.autograd.set_multithreading_enabled(False)  # as torchtitan does where it makes the process group itself
    for module in [one for name, one in sys.modules.items() if name.startswith("torchtitan.")]:  # imported before the fork
        for name, found in (("device_type", "cpu"), ("device_module", torch.cpu)):
            if hasattr(module, name):
                setattr(module, name, found)
    from runs import torchtitan_trainer

    return torchtitan_trainer
