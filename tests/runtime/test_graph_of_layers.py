"""A model of several modules, from its profile.json to gradients: those of one process, in float64, in any layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
from inputs.jobs import write_job
from inputs.plans import plan_of
from runs import vision_runs
from runs.harness import assert_exact

import schedc.runtime
from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.solvers.driver.registry import constructive

if TYPE_CHECKING:
    from pathlib import Path

    from runs.processes import Ranks

    from schedc.ir.plan import Plan

pytestmark = pytest.mark.slow

JOB = """
[pipeline]
ranks = {ranks}
microbatches = {microbatches}
placement = {placement}
partition = {partition}
split_backward = {split}
head = "{head}"
[profile]
path = "profile.json"
[topology.within]
bandwidth = "1 GB/s"
"""


def plan_of_job(directory: Path, method: str, **keys: Any) -> Plan:
    """The plan of the vision-language model, from a job and a profile.json."""
    layer = {"forward": "2 us", "backward_input": "2 us", "backward_weight": "1 us", "message": "1 KB", "split_message": "9 B"}
    profile = {"format": "schedc.profile", "version": 1, "layers": [{**layer, "repeat": 9}]}
    (directory / "profile.json").write_text(json.dumps({**profile, "modules": vision_runs.MODULES, "edges": vision_runs.EDGES}))
    problem = load_job(write_job(directory, JOB.format(**{"head": "whole", **keys}))).problem
    return plan_of(problem, constructive(method)(problem))


@pytest.mark.parametrize(
    ("placement", "partition"),
    [
        ([0, 1, 0, 1, 0, 1], [1, 1, 1, 3, 1, 2]),
        ([1, 0, 1, 0], [2, 2, 3, 2]),
        ([0, 1], [4, 5]),  # a chain of stages, two values go together, the second stage has both losses
        ([1, 0], [2, 7]),  # so has this one, which begins with a batch, too
    ],
)
@pytest.mark.parametrize("split", ["false", "true"])
def test_a_model_of_modules(two: Ranks, tmp_path: Path, placement: list[int], partition: list[int], split: str) -> None:
    """Its stages are made of layers, whose graph a profile.json says; weights of several layers are tied."""
    keys = {"ranks": 2, "placement": placement, "partition": partition, "split": split}
    plans = [plan_of_job(tmp_path, "greedy", microbatches=4, **keys), plan_of_job(tmp_path, "gpipe", microbatches=6, **keys)]
    assert_exact(two.run(vision_runs.vision_errors, plans, recompute=[0] if split == "true" else ()))


def test_a_model_of_modules_on_four_ranks(four: Ranks, tmp_path: Path) -> None:
    keys = {"ranks": 4, "placement": [0, 1, 2, 3, 0, 1], "partition": [2, 1, 1, 2, 1, 2], "split": "true"}
    assert_exact(four.run(vision_runs.vision_errors, [plan_of_job(tmp_path, "greedy", microbatches=4, **keys)]))


def test_a_split_head(two: Ranks, tmp_path: Path) -> None:
    """Of the model's last module; its parts take the targets of that module."""
    keys = {"ranks": 2, "placement": [0, 1, 0], "partition": [2, 2, 4], "split": "true", "head": "split"}
    assert_exact(two.run(vision_runs.split_errors, plan_of_job(tmp_path, "greedy", microbatches=4, **keys)))


def test_checkpoints_and_clipping(two: Ranks, tmp_path: Path) -> None:
    """A checkpoint goes from a layout to another, whose stages have other edges."""
    keys = {"ranks": 2, "microbatches": 4, "split": "true"}
    first = plan_of_job(tmp_path, "greedy", placement=[0, 1, 0, 1, 0, 1], partition=[1, 1, 1, 3, 1, 2], **keys)
    second = plan_of_job(tmp_path, "greedy", placement=[1, 0, 1], partition=[3, 2, 4], **keys)
    assert_exact(two.run(vision_runs.resharded, [first, second], tmp_path))


def test_other_modules_than_the_plans_are_refused(tmp_path: Path) -> None:
    plan = plan_of_job(tmp_path, "greedy", microbatches=4, ranks=2, placement=[0, 1, 0], partition=[2, 2, 5], split="true")
    layers = vision_runs.vision_layers()
    says = (
        "its stages take of each other 0→1, 1→2, by the modules and edges given they do so 0→1, 0→2, 1→2; give build_stages those"
    )
    inputs = [{**module, "inputs": ["text", "vision"]} if module["name"] == "near" else module for module in vision_runs.MODULES]
    with pytest.raises(InvalidInput, match=says):
        schedc.runtime.build_stages(layers, plan, 0, modules=inputs)
    with pytest.raises(InvalidInput, match=r"^modules of the model: found 3 layers in all, expected 9"):
        schedc.runtime.build_stages(layers, plan, 0, modules=[{"name": "vision", "layers": 3}])
    with pytest.raises(InvalidInput, match=r"^edges of the model: \[0\]\.source: found \"word\", expected one of .* did you mean"):
        schedc.runtime.build_stages(layers, plan, 0, modules=vision_runs.MODULES, edges=[{"source": "word", "destination": "near"}])
    stages = schedc.runtime.build_stages(layers, plan, 1, modules=vision_runs.MODULES, edges=vision_runs.EDGES)
    ids, images = {"words": (torch.zeros(1, 3, dtype=torch.long),)}, (torch.zeros(1, 2, 6, dtype=torch.float64),)
    assert [len(tensors) for tensors in stages[1](images, inputs=ids).values()] == [2]
    stages[1][0].register_forward_hook(lambda _module, _inputs, given: {**given, "ids": (given["ids"], given["ids"])})
    with pytest.raises(InvalidInput, match="value 'ids' of layer 2 is 2 tensors; expected one, as these go to a stage together:"):
        stages[1](images, inputs=ids)
    stages[1][0].register_forward_hook(lambda _module, _inputs, given: given["output"])
    with pytest.raises(
        InvalidInput, match=r"layer 2 gives a Tensor, expected a dict with \['output', 'ids'\], the values of its edges"
    ):
        stages[1](images, inputs=ids)
