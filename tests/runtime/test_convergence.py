"""What the meter of convergence measures: on losses whose curvature is known, over ranks, and what it leaves out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch
from inputs.few_plans import made_by
from runs.convergence_runs import measured_by_pipe
from runs.harness import Descent
from torch import nn

from schedc.errors import InvalidInput
from schedc.formats.convergence_file import read_convergence
from schedc.runtime.measure.convergence import ConvergenceMeter
from schedc.study.loss.convergence import estimated_constants

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

CURVATURE = torch.tensor([5.0, 2.0, 0.5], dtype=torch.float64)
RATE = 0.1
"""Of `Descent`."""


def descent(start: list[float], steps: int) -> ConvergenceMeter:
    """Gradient descent on ½ Σ c w², observed, with a weight that gets no gradient besides."""
    weights = nn.Parameter(torch.tensor(start, dtype=torch.float64))
    idle = nn.Parameter(torch.ones(2))
    optimizer = Descent([weights, idle])
    meter = ConvergenceMeter([weights, idle, weights], steps=steps, learning_rate=RATE)
    while not meter.done:
        loss = (CURVATURE * weights.square()).sum() / 2
        loss.backward()  # type: ignore[no-untyped-call]
        meter.observe(loss)
        optimizer.step()
        optimizer.zero_grad()
    meter.observe(math.nan)  # after the last it does nothing
    return meter


@pytest.mark.parametrize(("along", "curvature"), [(0, 5.0), (1, 2.0), (2, 0.5)])
def test_smoothness_is_the_curvature_along_the_path(tmp_path: Path, along: int, curvature: float) -> None:
    meter = descent([1.0 if at == along else 0.0 for at in range(3)], 6)
    meter.write(tmp_path / "convergence.json")
    made = estimated_constants(read_convergence(tmp_path / "convergence.json"))
    assert made.smoothness.least == pytest.approx(curvature) == made.constants.smoothness
    assert made.smoothness.samples == 5
    assert made.constants.initial_loss == pytest.approx(curvature / 2)
    shrunk = 1 - RATE * curvature
    moments = [(curvature * shrunk**step) ** 2 for step in range(6)]
    assert made.constants.second_moment == pytest.approx(sum(moments) / 6)
    assert (made.second_moment.largest, made.second_moment.least) == pytest.approx((moments[0], moments[-1]))


def test_smoothness_of_a_mixed_path_is_at_most_the_largest_curvature(tmp_path: Path) -> None:
    meter = descent([0.5, -1.0, 3.0], 8)
    meter.write(tmp_path / "convergence.json")
    read = read_convergence(tmp_path / "convergence.json")
    made = estimated_constants(read)
    assert read.learning_rate == RATE and [each.step for each in read.steps] == list(range(8))
    assert 0.5 < made.smoothness.least < made.constants.smoothness < 5.0


def test_a_step_that_is_not_finite_is_left_out() -> None:
    weight = nn.Parameter(torch.ones(1))
    meter = ConvergenceMeter([weight], steps=3)
    for gradient in (1.0, 2.0, math.inf, 3.0):
        weight.grad = torch.tensor([gradient])
        meter.observe(1.0)
    assert [each.step for each in meter.measured] == [0, 1, 3]
    assert [each.gradient_change_sq for each in meter.measured] == [None, 1.0, None]


def test_what_cannot_be_measured_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"^steps: found 1, expected at least 2"):
        ConvergenceMeter([], steps=1)
    with pytest.raises(InvalidInput, match=r"^learning_rate: found 0.0, expected a number above 0$"):
        ConvergenceMeter([], steps=2, learning_rate=0.0)
    with pytest.raises(InvalidInput, match=r"^there is nothing measured to write"):
        ConvergenceMeter([], steps=2).write(tmp_path / "convergence.json")


@pytest.mark.slow
def test_ranks_measure_the_whole_model(two: Ranks) -> None:
    """As one process without a pipeline does, the same on all ranks."""
    for result in two.run(measured_by_pipe, made_by("1f1b")):
        assert not isinstance(result, str), result
        found, expected = result
        assert len(found) == len(expected) == 4
        for one, other in zip(found, expected, strict=True):
            assert one == pytest.approx(other, rel=1e-4)
