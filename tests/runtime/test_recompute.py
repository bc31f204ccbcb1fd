"""Forwards that run again before their backward: the same gradients bit by bit, and nothing held between but the input."""

from __future__ import annotations

import gc
import random
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy
import pytest
import torch
from inputs.few_plans import W_IN_PARTS, made_by
from inputs.plans import plan_of
from inputs.problems import make_problem
from runs import feature_runs, replicated_runs
from runs.stage_blocks import WAYS, WIDTH, Residual, Watching, gradients, run_all
from torch import nn

from schedc.errors import Unsupported
from schedc.runtime.common.program import program_of
from schedc.runtime.stage.batches import Microbatches
from schedc.runtime.stage.block import StageBlock
from schedc.runtime.stage.recompute import Buffers
from schedc.runtime.stage.training import Training
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from collections.abc import Callable

    from runs.processes import Ranks


PLANS: dict[str, tuple[str, dict[str, Any]]] = {
    "1f1b": ("1f1b", {}),
    "zb-h1": ("zb-h1", {}),
    "zb-v": ("zb-v", {"placement": "wave", "chunks": 2}),
    "greedy with W in parts": W_IN_PARTS,
}


@pytest.mark.slow
@pytest.mark.parametrize("recompute", [True, {1}], ids=["all", "stage 1"])
@pytest.mark.parametrize("name", PLANS)
def test_the_same_bit_by_bit(two: Ranks, name: str, recompute: Any) -> None:
    """With dropout: the second forward draws the same numbers, and what comes after is as if it had drawn none."""
    method, options = PLANS[name]
    assert two.run(feature_runs.recomputed, made_by(method, **options), recompute) == [True, True]


def test_the_same_bit_by_bit_under_autocast(two: Ranks) -> None:
    assert two.run(feature_runs.recomputed, made_by("zb-h1"), True, autocast=True) == [True, True]


def test_an_unknown_stage(two: Ranks) -> None:
    for said in two.run(feature_runs.recomputed, made_by("1f1b"), {0, 7}):
        assert said == "InvalidInput: recompute: plan 'test' has no stage 7; its stages are 0 to 1"


@pytest.mark.parametrize(("of_plan", "asked", "runs"), [(False, False, 1), (True, False, 2), (False, True, 2), (True, {0}, 2)])
def test_a_stage_that_the_plan_recomputes(of_plan: bool, asked: Any, runs: int) -> None:
    problem = make_problem(1, 3, costs_ns=(10, 12, 9))
    problem = replace(problem, stages=tuple(replace(stage, recompute=of_plan) for stage in problem.stages))
    plan = plan_of(problem, constructive("zb-h1")(problem))
    program, stage, calls = program_of(plan, 0), nn.Linear(WIDTH, WIDTH), []
    stage.register_forward_hook(lambda *_: calls.append(1))
    training = Training(plan, program, {0: stage}, lambda output, target: (output * target).sum(), recompute=asked)
    losses: Any = SimpleNamespace(add=lambda microbatch, loss: None)
    training.begin(Microbatches(torch.randn(3, WIDTH).chunk(3), torch.randn(3, WIDTH).chunk(3)), losses)
    for instruction in program.instructions:
        training.run(instruction, ())
    training.finish()
    assert len(calls) == 3 * runs


@pytest.mark.parametrize("split", [False, True])
def test_only_the_input_is_held(split: bool) -> None:
    """Without the garbage collector."""
    gc.disable()
    try:
        stage = Watching([nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Sigmoid()])
        held = StageBlock(stage, [torch.randn(2, WIDTH).requires_grad_()], split=split)
        held.take()
        assert stage.live() == [0, 1, 3, 5]
        block = StageBlock(stage, [torch.randn(2, WIDTH).requires_grad_()], split=split, recompute=Buffers(stage))
        assert stage.live() == [0, 5]
        block.take()
        assert stage.live() == [0]
        if split:
            block.backward_input((torch.ones(2, WIDTH),))
            block.take()
            assert stage.live() == [1, 3]  # what W reads, of the second run
            block.backward_weight()
        else:
            block.backward((torch.ones(2, WIDTH),))
            block.take()
        assert stage.live() == []
    finally:
        gc.enable()


GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("way", WAYS)
def test_a_stage_with_dropout(way: str, device: str) -> None:
    where = torch.device(device)
    stage = nn.Sequential(Residual(), nn.Dropout(0.5), Residual(), nn.Dropout(0.3)).to(where)
    value, gradient = torch.randn(2, 5, WIDTH, device=where), torch.randn(2, 5, WIDTH, device=where)
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        stage.zero_grad()
        own = value.detach().requires_grad_()
        with torch.autocast(device, torch.bfloat16):
            block = StageBlock(stage, [own], split=way != "BW", recompute=Buffers(stage) if recompute else None)
            (output,) = block.take()
            assert output is not None
            after = torch.rand(3, device=where)  # another microbatch, between
            given = run_all(block, way, (gradient.to(output.dtype),))
        found.append([output, after, *given, *gradients(stage), torch.rand(3, device=where), torch.rand(3)])
    for one, other in zip(*found, strict=True):
        assert one is not None and other is not None
        assert torch.equal(one, other)


def test_the_second_run_takes_the_same_way_through_the_code() -> None:
    """Modules that look whether grad is enabled, as torch's transformer layer does, find it so both times."""
    seen = []

    def stage(x: torch.Tensor) -> torch.Tensor:
        seen.append(torch.is_grad_enabled())
        return x * 2

    block = StageBlock(stage, [torch.ones(2).requires_grad_()], split=False, recompute=Buffers(nn.Module()))
    with torch.no_grad():
        block.backward((torch.ones(2),))
    assert seen == [True, True]


@pytest.mark.parametrize("way", WAYS)
def test_random_numbers_of_python_and_numpy(way: str) -> None:
    """A layer left out by either, as stochastic depth does it: the second forward leaves out the same ones."""
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        random.seed(3)
        numpy.random.seed(3)
        stage = nn.Sequential(*(Skipped(draw) for draw in (random.random, numpy.random.rand) * 2))
        blocks = [
            StageBlock(
                stage, [torch.randn(2, WIDTH).requires_grad_()], split=way != "BW", recompute=Buffers(stage) if recompute else None
            )
            for _ in range(3)
        ]
        given = [one for block in blocks for one in (*block.take(), *run_all(block, way, (torch.ones(2, WIDTH),)))]
        found.append([*given, *gradients(stage), torch.tensor([random.random(), numpy.random.rand()])])
    for one, other in zip(*found, strict=True):
        assert (one is None) == (other is None)
        assert one is None or other is None or torch.equal(one, other)


class Skipped(nn.Module):
    """A layer that is left out where a number drawn is below 1/2."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.draw = draw

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x if self.draw() < 0.5 else torch.tanh(self.layer(x))
        return result


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_second_forward_that_is_another_is_refused(way: str, dtype: torch.dtype) -> None:
    """Whose random numbers come from a generator of the job's own, say."""
    generator = random.Random(0)
    stage = nn.Sequential(Skipped(generator.random), Skipped(generator.random), Skipped(generator.random)).to(dtype)
    value, said = torch.ones(2, WIDTH, dtype=dtype), []
    for _ in range(8):
        block = StageBlock(stage, [value.clone().requires_grad_()], split=way != "BW", recompute=Buffers(stage))
        block.take()
        try:
            run_all(block, way, (value,))
        except Unsupported as error:
            said.append(str(error))
    assert said
    assert all(one.startswith("a stage that is recomputed has given something else in its second forward") for one in said)


@pytest.mark.parametrize("method", ["zb-h1", "1f1b"])
def test_a_loss_of_few_digits_does_not_hide_another_forward(method: str) -> None:
    """Dropout that is small, from a generator of the job's own: the mean over many numbers changes by less than bfloat16 rounds."""
    generator = torch.Generator().manual_seed(0)

    def dropout(_: nn.Module, __: object, output: torch.Tensor) -> torch.Tensor:
        return output * (torch.rand(output.shape, generator=generator) > 0.1)

    problem = make_problem(1, 3, split_backward=method != "1f1b")
    plan = plan_of(problem, constructive(method)(problem))
    stage = nn.Linear(WIDTH, 64 * WIDTH).bfloat16()
    stage.register_forward_hook(dropout)
    training = Training(plan, program_of(plan, 0), {0: stage}, lambda output, _: output.square().mean(), recompute=True)
    losses: Any = SimpleNamespace(add=lambda microbatch, loss: None)
    batch = torch.randn(96, WIDTH).bfloat16().chunk(3)
    training.begin(Microbatches(batch, batch), losses)
    with pytest.raises(Unsupported, match="something else in its second forward"):
        for instruction in training.program.instructions:
            training.run(instruction, ())


@pytest.mark.parametrize("differs", [None, "number", "complex", "mask"])
def test_outputs_of_any_type_are_compared(differs: str | None) -> None:
    runs = iter([0, 1])

    def stage(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        again = next(runs)
        many = (
            x,
            x * torch.tensor(2j if again and differs == "complex" else 1j),
            x.detach() > (0.5 if again and differs == "mask" else 2),
        )
        return many[:2] if again and differs == "number" else many

    block = StageBlock(stage, [torch.ones(3).requires_grad_()], split=False, recompute=Buffers(nn.Module()))
    with pytest.raises(Unsupported, match="something else") if differs else nullcontext():
        block.backward((torch.ones(3), torch.ones(3, dtype=torch.complex64), None))


def test_rounding_is_not_another_forward() -> None:
    """Kernels that add in any order; a number that is none."""
    noise = iter([0.0, 1e-6, 0.0, 1e-6])
    for value in (1.0, float("nan")):
        block = StageBlock(lambda x: x * (1 + next(noise)), [torch.full((9,), value)], split=False, recompute=Buffers(nn.Module()))
        block.backward((torch.ones(9),))


def test_an_input_changed_in_place_is_refused() -> None:
    block = StageBlock(lambda x: x.add_(1) * 2, [torch.ones(2)], split=False, recompute=Buffers(nn.Module()))
    with pytest.raises(RuntimeError, match="input of a stage that is recomputed has been changed in place"):
        block.backward((torch.ones(2),))


@pytest.mark.slow
def test_steps_leave_nothing_behind(two: Ranks) -> None:
    for counts in two.run(replicated_runs.live_tensors, made_by("zb-v", placement="wave", chunks=2), recompute=True):
        assert counts == [counts[0]] * 4


class Counting(nn.Module):
    """A layer that depends on how often it has run; its buffers are replaced, changed in place, and left alone."""

    runs: torch.Tensor
    steps: torch.Tensor
    mean: torch.Tensor
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.reads_steps = False
        self.layer = nn.Linear(WIDTH, WIDTH)
        self.register_buffer("runs", torch.ones(()))
        self.register_buffer("steps", torch.ones(()))
        self.register_buffer("mean", torch.ones(WIDTH))
        self.register_buffer("table", torch.randn(WIDTH))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps.add_(1)  # before it is saved for the backward
        saved = self.steps if self.reads_steps else self.steps.clone()
        result: torch.Tensor = self.layer(x * self.table * self.mean.clone()) / self.runs * saved
        self.runs = self.runs + 1
        with torch.no_grad():
            self.mean += x.mean((0, 1))
        return result


def stateful() -> nn.Module:
    """Layers whose forwards change their buffers, and compute with them."""
    spectral: Any = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(Counting(), spectral(nn.Linear(WIDTH, WIDTH)), nn.BatchNorm1d(5), Counting()).double()


@pytest.mark.parametrize("way", WAYS)
def test_buffers_change_once(way: str) -> None:
    """Several microbatches under way, in training and not; gradients and buffers are those without recomputation."""
    torch.manual_seed(0)
    values, gradient = [torch.randn(2, 5, WIDTH).double() for _ in range(3)], torch.randn(2, 5, WIDTH).double()
    found = []
    for recompute in (False, True):
        torch.manual_seed(1)
        stage = stateful()
        buffers = Buffers(stage) if recompute else None
        for training in (False, True):
            stage.train(training)
            blocks = [StageBlock(stage, [value.clone().requires_grad_()], split=way != "BW", recompute=buffers) for value in values]
            given = [tensor for block in blocks for tensor in (*block.take(), *run_all(block, way, (gradient,)))]
        found.append([*given, *gradients(stage), *stage.buffers()])
    for one, other in zip(*found, strict=True):
        assert one is not None and other is not None
        assert torch.equal(one, other)


@pytest.mark.parametrize("way", WAYS)
def test_what_a_graph_has_saved_of_a_buffer_stays(way: str) -> None:
    """Without recomputation torch refuses this backward once another forward has run; a second run's buffer is its own."""
    values, gradient = [torch.randn(2, 5, WIDTH).double() for _ in range(3)], torch.randn(2, 5, WIDTH).double()
    found = []
    for recompute in (False, True):
        torch.manual_seed(1)
        stage = Counting().double()
        stage.reads_steps = recompute
        buffers = Buffers(stage) if recompute else None
        blocks = [StageBlock(stage, [value.clone().requires_grad_()], split=way != "BW", recompute=buffers) for value in values]
        given = [tensor for block in blocks for tensor in (*block.take(), *run_all(block, way, (gradient,)))]
        found.append([*given, *gradients(stage), *stage.buffers()])
    for one, other in zip(*found, strict=True):
        assert one is not None and other is not None
        assert torch.equal(one, other)


def test_only_buffers_that_change_are_copied() -> None:
    stage = stateful()
    buffers = Buffers(stage)
    first = buffers.before()
    assert all(kept.copy is not None for kept in first)
    stage(torch.randn(2, 5, WIDTH).double())
    buffers.after(first)
    names = {kept.name for kept in buffers.before() if kept.copy is not None}
    assert names == {"runs", "steps", "mean", "_u", "_v", "running_mean", "running_var", "num_batches_tracked"}


def test_a_buffer_that_some_forwards_change_is_refused() -> None:
    stage: Any = nn.BatchNorm1d(5)
    stage.register_buffer("late", torch.zeros(()))
    buffers = Buffers(stage)
    for late in (False, True):
        before = buffers.before()
        if late:
            stage.late.add_(1)
            with pytest.raises(RuntimeError, match="the buffer 'late' of a BatchNorm1d changes in some forwards only"):
                buffers.after(before)
        else:
            buffers.after(before)
