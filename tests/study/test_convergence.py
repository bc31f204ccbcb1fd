"""How many updates delays need: the bound on runs with delays, equation 3 by hand, and constants from measured steps."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from benches.dynpipe import published_staleness

from schedc.errors import InvalidInput
from schedc.formats.convergence_file import MeasuredConvergence, MeasuredUpdate, read_convergence, write_convergence
from schedc.study.loss.convergence import ConvergenceConstants, estimated_constants, staleness, updates_needed

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

CONSTANTS = ConvergenceConstants(initial_loss=4.0, smoothness=2.0, second_moment=1.0)
RATE = 0.125
BLOCK = 3
"""Weights of a stage."""


def delayed_run(
    curvature: NDArray[np.float64], delays: tuple[int, ...], rate: float, updates: int
) -> tuple[float, float, NDArray[np.float64]]:
    """Gradient descent on ½ wᵀ A w where each stage's weights in the gradient are old.

    Returns:
        The mean of ‖∇f(w)‖², f(w(0)) − f(w(T)), and of each stage the largest squared norm of its part of a gradient.
    """
    rng = np.random.default_rng(len(delays))
    weights = [rng.normal(size=len(curvature))]
    squared, moments = [], np.zeros(len(delays))
    for update in range(updates):
        stale = np.concatenate([weights[max(0, update - delay)][BLOCK * stage :][:BLOCK] for stage, delay in enumerate(delays)])
        gradient = curvature @ stale
        squared.append(float(np.sum((curvature @ weights[-1]) ** 2)))
        moments = np.maximum(moments, np.sum(gradient.reshape(-1, BLOCK) ** 2, axis=1))
        weights.append(weights[-1] - rate * gradient)
    losses = [float(each @ curvature @ each) / 2 for each in (weights[0], weights[-1])]
    return float(np.mean(squared)), losses[0] - losses[1], moments


def random_curvature(size: int, seed: int) -> NDArray[np.float64]:
    """Symmetric, of which the largest eigenvalue is 1."""
    rotation, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(size, size)))
    values = np.linspace(0.05, 1.0, size)
    made: NDArray[np.float64] = rotation @ np.diag(values) @ rotation.T
    return made


@pytest.mark.parametrize("delays", [(0, 0), (1, 0), (1, 1), (3, 2, 1, 0), (3, 3, 3, 3), (0, 5, 0), (7, 0, 2, 4)], ids=str)
@pytest.mark.parametrize("rate", [0.05, 0.4, 1.0])
@pytest.mark.parametrize("seed", range(5))
def test_the_bound_holds_for_any_delays(delays: tuple[int, ...], rate: float, seed: int) -> None:
    """Also where the run diverges: L is 1 here, and η L at most 1."""
    updates = 40
    mean, fallen, moments = delayed_run(random_curvature(BLOCK * len(delays), seed), delays, rate, updates)
    moment = float(moments.sum())
    for shares in (tuple(moments / moment), None):
        bound = 2 * fallen / (updates * rate) + rate**2 * moment * staleness(delays, shares)
        assert mean <= bound * (1 + 1e-9)


@pytest.mark.parametrize("delays", [(0, 0), (1, 1, 1), (3, 2, 1, 0)], ids=str)
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_the_bound_holds_in_the_mean_of_noisy_runs(delays: tuple[int, ...], rate: float) -> None:
    """Expectations are means over 500 runs; the variance σ² of a gradient adds σ² (theorem 1: 2σ²)."""
    runs, updates, noise = 500, 30, 0.3
    curvature = random_curvature(BLOCK * len(delays), 1)
    rng = np.random.default_rng(0)
    weights = [np.tile(rng.normal(size=len(curvature)), (runs, 1))]
    squared, moments = [], np.zeros(len(delays))
    for update in range(updates):
        parts = [weights[max(0, update - delay)][:, BLOCK * stage :][:, :BLOCK] for stage, delay in enumerate(delays)]
        gradient = np.hstack(parts) @ curvature + noise * rng.normal(size=weights[0].shape)
        squared.append(np.mean(np.sum((weights[-1] @ curvature) ** 2, axis=1)))
        moments = np.maximum(moments, np.mean(np.sum(gradient.reshape(runs, -1, BLOCK) ** 2, axis=2), axis=0))
        weights.append(weights[-1] - rate * gradient)
    first, last = (np.mean(np.sum(each @ curvature * each, axis=1)) / 2 for each in (weights[0], weights[-1]))
    moment, variance = float(moments.sum()), noise**2 * len(curvature)
    stale = rate**2 * moment * staleness(delays, tuple(moments / moment))
    assert np.mean(squared) <= 2 * (first - last) / (updates * rate) + stale + variance


def test_the_bound_needs_its_staleness() -> None:
    """A run whose squared gradients are above what the bound is without that term."""
    mean, fallen, _ = delayed_run(random_curvature(12, 0), (3, 3, 3, 3), 1.0, 40)
    assert mean > 2 * fallen / (40 * 1.0)


@pytest.mark.parametrize("stages", range(1, 40))
def test_the_paper_s_staleness_is_an_upper_bound(stages: int) -> None:
    """2 S³ is at least what delays S − 1..0 give, even where each stage had the whole second moment."""
    delays = tuple(range(stages - 1, -1, -1))
    apart = sum(delay**2 for delay in delays)
    assert apart == (stages - 1) * stages * (2 * stages - 1) // 6
    assert staleness(delays, [1 / stages] * stages) == pytest.approx(apart / stages)
    assert staleness(delays) == (stages - 1) ** 2 <= max(1, apart) <= published_staleness(stages)


def test_staleness_of_the_modes() -> None:
    assert staleness((0, 0, 0)) == 0
    assert staleness((1, 1, 1)) == staleness((1, 1, 1), (0.2, 0.3, 0.5)) == 1
    assert staleness((2, 1, 0), (0.5, 0.25, 0.25)) == 2.25
    for shares in ((1.0,), (0.5, 0.6, 0.1), (1.5, -0.5, 0.0)):
        with pytest.raises(InvalidInput, match=r"^shares: found \[.*\], expected 3 numbers of at least 0 that sum to 1$"):
            staleness((2, 1, 0), shares)
    with pytest.raises(InvalidInput, match=r"^delays: found \[-1\], expected one delay for each stage"):
        staleness((-1,))


def test_equation_3_by_hand() -> None:
    """(2/8)² × 9 of an error of 1 are the delays'; 2 × 4 / (1/8 × 7/16) = 146.3, and without delay 64."""
    made = updates_needed(CONSTANTS, learning_rate=RATE, error=1.0, staleness_factor=9)
    assert (made.updates, made.staleness_error, made.why_not, made.warning) == (147, 9 / 16, "", "")
    assert updates_needed(CONSTANTS, learning_rate=RATE, error=1.0, staleness_factor=0).updates == 64
    paper = updates_needed(CONSTANTS, learning_rate=RATE, error=1.0, staleness_factor=published_staleness(1))
    assert paper.updates == 74  # 8 / (1/8 × (1 − 2/16)) = 73.1, though nothing is delayed


def test_no_number_of_updates_is_an_answer() -> None:
    made = updates_needed(CONSTANTS, learning_rate=RATE, error=1.0, staleness_factor=published_staleness(2))
    assert (made.updates, made.staleness_error) == (None, 1.0)
    assert made.why_not == "the delays alone cause an error of 1, which is not below 1; a lower learning rate causes less"
    assert updates_needed(CONSTANTS, learning_rate=1e-300, error=1e-300, staleness_factor=0).updates is None
    assert updates_needed(CONSTANTS, learning_rate=1e200, error=1.0, staleness_factor=1).updates is None
    steep = ConvergenceConstants(initial_loss=1.0, smoothness=1e200, second_moment=1.0)
    assert updates_needed(steep, learning_rate=0.5, error=1.0, staleness_factor=0).updates == 4


def test_what_the_theory_assumes_is_said() -> None:
    made = updates_needed(CONSTANTS, learning_rate=0.6, error=100.0, staleness_factor=1)
    assert made.updates == 1 and made.warning == "the theory holds for η L of at most 1, and it is 1.2"


@pytest.mark.parametrize("name", ["learning_rate", "error"])
@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_values_that_are_none_are_refused(name: str, value: float) -> None:
    values: dict[str, Any] = {"learning_rate": 0.1, "error": 1.0, name: value}
    with pytest.raises(InvalidInput, match=rf"^{name}: found .*, expected a number above 0$"):
        updates_needed(CONSTANTS, staleness_factor=1, **values)
    with pytest.raises(InvalidInput, match=r"^smoothness: found"):
        ConvergenceConstants(initial_loss=1.0, smoothness=value, second_moment=1.0)


STEPS = (
    MeasuredUpdate(step=0, loss=4.0, gradient_sq=2.0),
    MeasuredUpdate(step=1, loss=3.5, gradient_sq=4.0, gradient_change_sq=0.09, weight_change_sq=0.01),
    MeasuredUpdate(step=2, loss=3.4, gradient_sq=6.0, gradient_change_sq=0.16, weight_change_sq=0.01),
    MeasuredUpdate(step=3, loss=3.3, gradient_sq=8.0, gradient_change_sq=0.01, weight_change_sq=0.0),
)


def test_constants_from_a_file(tmp_path: Path) -> None:
    """Ratios of 3 and 4; a step whose weights have not changed says nothing of them."""
    path = tmp_path / "convergence.json"
    write_convergence("toy", 0.05, STEPS, path)
    read = read_convergence(path)
    assert (read.steps, read.learning_rate, read.name) == (STEPS, 0.05, "toy")
    made = estimated_constants(read)
    assert (made.constants.initial_loss, made.constants.second_moment) == (4.0, 5.0)
    assert made.constants.smoothness == made.smoothness.largest == pytest.approx(4.0)
    assert made.smoothness.samples == 2 and made.smoothness.least == pytest.approx(3.0)
    assert str(made) == "f(w₀) 4, L 4 (2 samples: 3 to 4, median 3.5), ξ² 5 (4 samples: 2 to 8, median 5)"
    assert (made.second_moment.least, made.second_moment.median, made.second_moment.largest) == (2.0, 5.0, 8.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gradient_sq": 0.0}, r"^c.json: steps: found gradient_sq of 0.0, expected a number above 0$"),
        (
            {"gradient_change_sq": 1e300, "weight_change_sq": 1e-300},
            r"^c.json: steps: found gradient_change_sq / weight_change_sq of inf, expected a number above 0$",
        ),
    ],
)
def test_constants_that_are_none_name_the_file(change: dict[str, float], says: str) -> None:
    steps = tuple(msgspec.structs.replace(each, **change) for each in STEPS)
    measured = MeasuredConvergence(format="schedc.convergence", version=1, name="x", learning_rate=None, steps=steps)
    with pytest.raises(InvalidInput, match=says):
        estimated_constants(measured, "c.json")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": 2}, r"version: found 2, expected 1"),
        ({"learning_rate": 0}, r"learning_rate: found 0, expected a number above 0.0 or|learning_rate: found 0, expected"),
        ({"steps": []}, r"steps: found \[\], expected a list of at least 1"),
        (
            {"steps": [{"step": 0, "loss": 1.0, "gradient_sq": 1e308}]},
            r"steps\[0\].gradient_sq: found 1e\+308, expected a number from 0 to 1e\+300",
        ),
        (
            {"steps": [{"step": 0, "loss": 1.0, "gradient_sq": -1.0}]},
            r"steps\[0\].gradient_sq: found -1.0, expected a number from 0 to 1e\+300",
        ),
        ({"steps": [{"step": 1, "loss": 1.0, "gradient_sq": 1.0}] * 2}, r"steps: found \[1, 1\], expected ascending numbers"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    path = tmp_path / "wrong.json"
    file = {"format": "schedc.convergence", "version": 1, "name": "x", "learning_rate": None, "steps": []} | change
    path.write_text(json.dumps(file), encoding="utf-8")
    with pytest.raises(InvalidInput, match=says):
        read_convergence(path)


def test_steps_that_say_too_little_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "short.json"
    write_convergence("toy", None, STEPS[:1], path)
    with pytest.raises(InvalidInput, match=r"^short.json: steps: found no two steps in a row whose weights and gradients differ"):
        estimated_constants(read_convergence(path), "short.json")
    write_convergence("toy", None, (MeasuredUpdate(step=0, loss=0.0, gradient_sq=1.0), *STEPS[1:]), path)
    with pytest.raises(InvalidInput, match=r"^convergence.json: steps\[0\].loss: found 0.0, expected a loss above 0"):
        estimated_constants(read_convergence(path))
