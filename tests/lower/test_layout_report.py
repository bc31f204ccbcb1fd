"""What is said of a layout: rows that add up, a note where the layers are far from balanced, and one where they are there twice."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, strategies as st
from inputs.workloads import random_workload

from schedc.ir.layout import Layout
from schedc.ir.network import Network
from schedc.ir.workload import Device, Layer, Workload
from schedc.lower.layout_report import layout_report
from schedc.lower.placement import place
from schedc.lower.problem import problem_of, static_bytes

LAYER = Layer(
    forward_ns=(100,), backward_input_ns=(100,), backward_weight_ns=(100,), backward_ns=(150,), activation_bytes=8, static_bytes=48
)
WORKLOAD = Workload(
    name="ten layers",
    microbatches=4,
    layers=tuple(replace(LAYER, position=(index, index + 1)) for index in range(10)),
    devices=(Device(),) * 2,
    network=Network(site_of_rank=(0, 0)),
)


def layout_of(name: str, first: int) -> Layout:
    placed = place(name, 2)
    bounds = list(pairwise((0, first, 10)))
    layers_of_stage = tuple(bounds[piece] for piece in placed.piece_of_stage)
    return Layout(layers_of_stage=layers_of_stage, rank_of_stage=placed.rank_of_stage, paths=placed.paths, placement=name)


@pytest.mark.parametrize(("first", "more"), [(5, None), (4, "20.0%"), (6, "20.0%"), (1, "80.0%")])
def test_a_partition_far_from_balanced(first: int, more: str | None) -> None:
    layout = layout_of("unidirectional", first)
    report = layout_report(WORKLOAD, layout, problem_of(WORKLOAD, layout))
    assert [row.work_ns for row in report.stages] == [first * 1000, (10 - first) * 1000]  # 4 times 100 + 150
    assert [row.static_bytes for row in report.stages] == [48 * first, 48 * (10 - first)]
    assert [row.activation_bytes for row in report.stages] == [8 * first, 8 * (10 - first)]
    assert report.balanced == (None if more is None else (5, 5))
    assert len(report.notes) == (more is not None)
    for note in report.notes:
        assert f"has {more} more work" in note and f"[5, 5] instead of [{first}, {10 - first}] layers" in note


def test_little_is_not_worth_a_note() -> None:
    """The head takes 2 % more than the others; nothing is said of the 2 %."""
    head = replace(WORKLOAD.layers[-1], forward_ns=(125,))
    workload, layout = replace(WORKLOAD, layers=(*WORKLOAD.layers[:-1], head)), layout_of("unidirectional", 5)
    assert layout_report(workload, layout, problem_of(workload, layout)).notes == ()


def test_two_paths_double_the_weights() -> None:
    """One rank has both pieces, so every partition is balanced."""
    layout = layout_of("bidirectional", 2)
    report = layout_report(WORKLOAD, layout, problem_of(WORKLOAD, layout))
    assert [note.split(":")[0] for note in report.notes] == ["two paths"]
    assert sum(row.static_bytes for row in report.stages) == 2 * 10 * 48


def test_costs_by_stage_have_no_other_partition() -> None:
    workload = replace(WORKLOAD, layers=(replace(LAYER, forward_ns=(900,)), LAYER))
    layout = replace(layout_of("unidirectional", 1), layers_of_stage=((0, 1), (1, 2)))
    assert layout_report(workload, layout, problem_of(workload, layout)).notes == ()


@given(seed=st.integers(0, 2**32))
def test_any_layout(seed: int) -> None:
    workload, layout = random_workload(Random(seed))
    problem = problem_of(workload, layout)
    report = layout_report(workload, layout, problem)
    held = [0] * workload.ranks
    for row in report.stages:
        held[row.rank] += row.static_bytes
    assert tuple(held) == static_bytes(workload, layout)
    assert [(row.rank, row.layers, row.activation_bytes) for row in report.stages] == [
        (stage.rank, stage.layers, stage.activation_bytes) for stage in problem.stages
    ]
    assert len(report.notes) == (report.balanced is not None) + (len(layout.paths) > 1)
