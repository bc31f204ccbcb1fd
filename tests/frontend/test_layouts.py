"""What a job says of layouts and devices: recomputation, speeds, bytes for each parameter, microbatches that differ."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import M70, write_job

from schedc.compile.driver import compile_problem
from schedc.errors import Infeasible, InvalidInput
from schedc.frontend.job import load_job
from schedc.ir.ops import Kind
from schedc.solvers.common.base import SearchSettings

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job

MS, MIB, GIB = 10**6, 2**20, 2**30
LAYER = {
    "kind": "block",
    "repeat": 4,
    "parameters": 10,
    "forward": "2 ms",
    "forward_again": "1 ms",
    "backward_input": "3 ms",
    "backward_weight": "2 ms",
    "backward": "4 ms",
    "activation": "8 MiB",
    "activation_after_input": "4 MiB",
    "message": "1 MiB",
}


def of_layers(directory: Path, pipeline: str = "", rest: str = "", **changes: Any) -> Job:
    profile = {"format": "schedc.profile", "version": 1, "layers": [{**LAYER, **changes}]}
    (directory / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    text = f'[pipeline]\nranks = 2\nmicrobatches = 4\n{pipeline}\n[profile]\npath = "profile.json"\n{rest}'
    return load_job(write_job(directory, text))


def m70(directory: Path, old: str, new: str) -> Job:
    assert old in M70
    return load_job(write_job(directory, M70.replace(old, new, 1)))


def test_bytes_for_each_parameter(tmp_path: Path) -> None:
    memory = '[memory]\ncapacity = "1 GiB"\nbytes_per_parameter = 2.1'
    job = of_layers(tmp_path, "partition = [1, 3]", memory)
    assert [layer.parameters for layer in job.workload.layers] == [10] * 4
    assert [layer.static_bytes for layer in job.workload.layers] == [21] * 4  # of 2.1 itself, not the float nearest to it
    assert job.problem.memory_limit_bytes == (GIB - 21, GIB - 63)


def test_experts_have_bytes_of_their_own_and_a_reserve_stays_free(tmp_path: Path) -> None:
    memory = '[memory]\ncapacity = "1 GiB"\nreserve = "1 KiB"\nbytes_per_parameter = 2.25\nbytes_per_expert_parameter = 16'
    job = of_layers(tmp_path, "partition = [1, 3]", memory, expert_parameters=7)
    assert {layer.expert_parameters for layer in job.workload.layers} == {7}
    each = 7 + 7 * 16  # 2.25 bytes for each of the other 3, rounded up
    assert job.problem.memory_limit_bytes == (GIB - 1024 - each, GIB - 1024 - 3 * each)
    with pytest.raises(InvalidInput, match=r"layers\[0\].expert_parameters: found 11, expected at most the layer's parameters, 10"):
        of_layers(tmp_path, expert_parameters=11)
    with pytest.raises(InvalidInput, match="bytes_per_expert_parameter: found a value for layers without experts"):
        of_layers(tmp_path, rest=memory)


def test_speed(tmp_path: Path) -> None:
    job = of_layers(tmp_path, rest="[devices]\nspeed = [1, 0.7]")
    assert [device.speed for device in job.workload.devices] == [1, Fraction(7, 10)]
    one, other = job.problem.stages
    assert one.forward_ns == (4 * MS,) and other.forward_ns == (5_714_286,)  # 4 / 0.7 = 5.7142857…
    assert other.backward_input_ns == (8_571_429,)


def test_half_a_nanosecond_goes_to_the_even_one(tmp_path: Path) -> None:
    job = of_layers(tmp_path, rest="[devices]\nspeed = [2, 2]", repeat=2, forward="5 ns", backward_input="7 ns")
    assert [stage.forward_ns for stage in job.problem.stages] == [(2,), (2,)]
    assert [stage.backward_input_ns for stage in job.problem.stages] == [(4,), (4,)]


def test_microbatches_that_differ(tmp_path: Path) -> None:
    """A list inside the list for some stages, one value for others; what is made of several keys is so for each microbatch."""
    text = """
[pipeline]
ranks = 2
microbatches = 3
[profile]
forward = [["1 ms", "2 ms", "3 ms"], "4 ms"]
backward_input = ["5 ms", ["6 ms", "7 ms", "8 ms"]]
backward_weight = [["1 ms", "1 ms", "2 ms"], ["1 ms", "2 ms", "3 ms"]]
backward = [["9 ms", "9 ms", "9 ms"], ["7 ms", "9 ms", "11 ms"]]
"""
    problem = load_job(write_job(tmp_path, text)).problem
    assert [stage.forward_ns for stage in problem.stages] == [(MS, 2 * MS, 3 * MS), (4 * MS,)]
    assert [stage.backward_input_ns for stage in problem.stages] == [(5 * MS,), (6 * MS, 7 * MS, 8 * MS)]
    assert [stage.backward_ns for stage in problem.stages] == [(9 * MS,), (7 * MS, 9 * MS, 11 * MS)]  # one for all that are alike
    apart = load_job(write_job(tmp_path, text[: text.index("backward = ")])).problem
    assert [stage.backward_ns for stage in apart.stages] == [(6 * MS, 6 * MS, 7 * MS), (7 * MS, 9 * MS, 11 * MS)]
    assert problem.duration_ns(Kind.F, 0, 2) == 3 * MS


def test_fused_microbatches_that_differ(tmp_path: Path) -> None:
    """Without W apart, what the fused backward has above W counts as B."""
    text = """
[pipeline]
ranks = 1
microbatches = 2
split_backward = false
[profile]
forward = "1 ms"
backward_weight = "2 ms"
backward = [["3 ms", "1 ms"]]
"""
    (stage,) = load_job(write_job(tmp_path, text)).problem.stages
    assert (stage.backward_ns, stage.backward_input_ns) == ((3 * MS, MS), (MS, 0))


@pytest.mark.parametrize("recompute", ['"full"', "[true, true]"])
def test_recomputation_of_all_stages(tmp_path: Path, recompute: str) -> None:
    """Between F and B the input; the first stage's input is nobody's message."""
    job = of_layers(tmp_path, f"partition = [2, 2]\nrecompute = {recompute}", '[memory]\nlimit = "20 MiB"')
    assert job.layout.recomputed == {0, 1}
    for stage, of_input in zip(job.problem.stages, (0, 1), strict=True):
        assert stage.recompute
        assert (stage.forward_ns, stage.backward_input_ns, stage.backward_weight_ns) == ((4 * MS,), (8 * MS,), (4 * MS,))
        assert stage.backward_ns == (10 * MS,)  # 2 · 4 ms, and 2 · 1 ms for the forward again
        sizes = stage.activation_bytes, stage.recomputed_bytes, stage.activation_after_input_bytes
        assert sizes == (of_input * MIB, 16 * MIB, 8 * MIB)
        assert job.problem.memory_limit_bytes[stage.rank] == 20 * MIB


def test_recomputation_with_fused_backwards(tmp_path: Path) -> None:
    job = of_layers(tmp_path, "partition = [2, 2]\nsplit_backward = false\nrecompute = [false, true]", '[memory]\nlimit = "20 MiB"')
    first, second = job.problem.stages
    assert (first.recompute, first.activation_bytes, second.recompute, second.activation_bytes) == (False, 16 * MIB, True, MIB)
    assert second.recomputed_bytes == 16 * MIB
    assert job.problem.memory_limit_bytes == (20 * MIB, 20 * MIB)


def test_the_forward_again_is_the_forward_where_nothing_else_is_said(tmp_path: Path) -> None:
    job = m70(tmp_path, "batches = 16", 'batches = 16\nrecompute = "full"')
    assert {stage.backward_input_ns for stage in job.problem.stages} == {((38_000 + 46_500) * 1000,)}


def test_replicas_recompute_alike(tmp_path: Path) -> None:
    pipeline = 'placement = "bidirectional"\nrecompute = [true, false]'
    assert of_layers(tmp_path, pipeline).layout.recomputed == {0, 2}


def test_an_input_of_no_size_in_limited_memory(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"profile\.path: found no message size of stage 0, expected one, as stage 1 recomputes"):
        of_layers(tmp_path, 'recompute = "full"', '[memory]\nlimit = "20 MiB"', message="0 B")


@pytest.mark.parametrize(
    ("memory", "has"), [('limit = "15 MiB"', "15 MiB"), ('capacity = ["99 MiB", "17 MiB"]\nstatic = "2 MiB"', "15 MiB")]
)
def test_a_recomputation_without_room(tmp_path: Path, memory: str, has: str) -> None:
    job = of_layers(tmp_path, "partition = [2, 2]\nrecompute = [false, true]", f"[memory]\n{memory}")
    says = f"rank 1 may hold {has} of activations, but one microbatch alone needs 17 MiB there with its recomputation"
    with pytest.raises(Infeasible, match=says):
        compile_problem(
            replace(job.problem, memory_limit_bytes=(None, job.problem.memory_limit_bytes[1])), SearchSettings(method="1f1b")
        )


def test_the_partition_is_balanced_where_none_is_given(tmp_path: Path) -> None:
    assert of_layers(tmp_path).layout.layers_of_stage == ((0, 2), (2, 4))
    slow = of_layers(tmp_path, rest="[devices]\nspeed = [1, 0.3]")
    assert slow.layout.layers_of_stage == ((0, 3), (3, 4))
    small = of_layers(tmp_path, rest='[memory]\ncapacity = ["1 GiB", "10 MiB"]\nbytes_per_parameter = 16')
    assert small.layout.layers_of_stage == ((0, 3), (3, 4))  # two layers hold 16 MiB for one microbatch


def test_costs_by_stage_cannot_be_divided(tmp_path: Path) -> None:
    with pytest.raises(
        InvalidInput, match=r'pipeline\.partition: found "auto" for costs by stage, expected a list, or a profile.json'
    ):
        m70(tmp_path, "ranks = 8", 'ranks = 8\npartition = "auto"')
