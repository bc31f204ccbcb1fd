"""Layouts as Megatron's own parser reads them: those that are published, and those that schedc writes."""

from __future__ import annotations

import ast
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from inputs.plans import plan_of
from inputs.problems import make_problem
from suite.optional_packages import importing

from schedc.formats.layouts import ModelLayer, format_layout, megatron_options, parse_layout
from schedc.solvers.driver.registry import constructive

with importing("megatron"):
    from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout

if TYPE_CHECKING:
    from collections.abc import Sequence

NAMES = {"E": "embedding", "t": "decoder", "m": "mtp", "L": "loss"}
# NVIDIA-NeMo/Megatron-Bridge 067f987d (2026-08-22), src/megatron/bridge/perf_recipes; the last one is of Megatron-LM's docs.
PUBLISHED = (
    "Et*4|(tttt|)*14tmL",
    "Et*4|(t*4|)*14tmL",
    "Et|(tt|)*30mL",
    "Et|t||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|tttt|tttt||tttt|tttt|ttttmL",
    "Et|(tt|)*30L",
    "Et*2|(t*2|)*34,t*3|(t*2|)*3,tL",
    "Et*4|(t*7|)*5t*8|tmL",
    "Et*3|(tt|)*29,m|L",
)


def names_of(stages: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[NAMES[layer] for layer in stage] for stage in stages]


def read_by_megatron(text: str) -> list[list[str]]:
    return [[layer.name for layer in stage] for stage in PipelineParallelLayerLayout.parse_str_to_list(text)]


@pytest.mark.parametrize("text", PUBLISHED)
def test_published_layouts(text: str) -> None:
    assert names_of(parse_layout(text)) == read_by_megatron(text)
    assert names_of(parse_layout(text)) == read_by_megatron(format_layout(parse_layout(text)))


def test_what_is_read_is_what_megatron_reads() -> None:
    """Texts of all that a layout is made of, most of which are none."""
    random, read = Random(0), 0
    for _ in range(20_000):
        text = "E" + "".join(random.choices(["t", "|", "m", "tt", "*2", "*3", "(", ")", ")*2", ")*0", ","], k=random.randrange(8)))
        text += random.choice(["L", "L", "|L", ""])
        try:
            stages = parse_layout(text)
        except ValueError:
            continue
        read += 1
        assert names_of(stages) == read_by_megatron(text), text
    assert read > 500


def test_plans_are_layouts_of_megatron() -> None:
    random = Random(0)
    for _ in range(100):
        ranks, chunks = random.randint(1, 6), random.randint(1, 3)
        placement: dict[str, Any] = {"placement": "loop", "chunks": chunks} if chunks > 1 else {}
        problem = make_problem(ranks, 2, **placement)
        count = ranks * chunks
        further = random.randint(0, 2)
        layers = [ModelLayer.EMBEDDING, *[ModelLayer.BLOCK] * random.randint(count, 4 * count)]
        layers += [*[ModelLayer.FURTHER_TOKEN] * further, ModelLayer.HEAD]
        # Those for further tokens in one stage, as Megatron wants them.
        most = len(layers) - 1 - further if further else len(layers) - 1
        cuts = [0, *sorted(random.sample(range(1, most + 1), count - 1)), len(layers)]
        stages = tuple(replace(stage, layers=bounds) for stage, bounds in zip(problem.stages, pairwise(cuts), strict=True))
        problem = replace(problem, stages=stages)
        plan = plan_of(problem, constructive("greedy{n_sub=1}")(problem))
        size, option, listed = megatron_options(plan, layers).splitlines()
        text = option.partition("'")[2].removesuffix("'")
        expected = names_of([layers[first:last] for first, last in pairwise(cuts)])
        assert read_by_megatron(text) == expected
        as_list = ast.literal_eval(listed.partition(" = ")[2])
        assert as_list == expected
        assert size == f"--pipeline-model-parallel-size {ranks}"
        for given in (text, as_list):
            layout = PipelineParallelLayerLayout(given, ranks)
            layout.validate_layer_layout(layers.count(ModelLayer.BLOCK), further)
            assert layout.virtual_pipeline_model_parallel_size == chunks
            for stage, names in zip(problem.stages, expected, strict=True):
                chunk = problem.stages_on(stage.rank).index(problem.stages.index(stage))
                assert [layer.name for layer in layout.layout[stage.rank][chunk]] == names
