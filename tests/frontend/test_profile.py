from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import read_problem, write_job

from schedc.errors import InvalidInput
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir.problem import Problem

MS = 1_000_000
BLOCK = {
    "name": "block",
    "repeat": 4,
    "forward": "1 ms",
    "backward_input": "2 ms",
    "backward_weight": "3 ms",
    "activation": "8 B",
    "activation_after_input": "5 B",
    "message": "64 B",
}
EMBEDDING = {
    "forward": "0.5 ms",
    "backward_input": "0 ms",
    "backward_weight": "0.25 ms",
    "message": "32 B",
    "gradient_message": "16 B",
}
HEAD = {"forward": "7 ms", "backward_input": "7 ms", "backward_weight": "7 ms", "backward": "13 ms", "activation": "100 B"}
PROFILE: dict[str, Any] = {"format": "schedc.profile", "version": 1, "layers": [EMBEDDING, BLOCK, HEAD]}


def job(pipeline: str = "", ranks: int = 3) -> str:
    return f'[pipeline]\nranks = {ranks}\nmicrobatches = 4\n{pipeline}\n[profile]\npath = "profile.json"\n'


def read(directory: Path, text: str, profile: dict[str, Any] | str = PROFILE) -> Problem:
    (directory / "profile.json").write_text(profile if isinstance(profile, str) else json.dumps(profile), encoding="utf-8")
    problem = read_problem(write_job(directory, text))
    assert verify_problem(problem) == ()
    return problem


def test_stages_cost_what_their_layers_do(tmp_path: Path) -> None:
    problem = read(tmp_path, job("partition = [1, 3, 2]"))
    first, second, third = problem.stages
    assert [stage.layers for stage in problem.stages] == [(0, 1), (1, 4), (4, 6)]
    assert (first.forward_ns, first.backward_ns, first.activation_bytes) == ((MS // 2,), (MS // 4,), 0)
    assert (first.message_bytes, first.gradient_message_bytes) == (32, 16)
    assert (second.forward_ns, second.backward_input_ns, second.backward_weight_ns, second.backward_ns) == (
        (3 * MS,),
        (6 * MS,),
        (9 * MS,),
        (15 * MS,),
    )
    assert (second.activation_bytes, second.activation_after_input_bytes) == (24, 15)
    assert (second.message_bytes, second.gradient_message_bytes) == (64, 64)
    assert (third.forward_ns, third.backward_ns, third.activation_bytes, third.message_bytes) == ((8 * MS,), (18 * MS,), 108, 0)


def test_a_backward_measured_fused_alone_is_for_jobs_that_split_none(tmp_path: Path) -> None:
    """Else its W would take no time and hold nothing."""
    fused = {key: value for key, value in HEAD.items() if key not in ("backward_input", "backward_weight")}
    profile = {**PROFILE, "layers": [EMBEDDING, BLOCK, fused]}
    stage = read(tmp_path, job("split_backward = false"), profile).stages[-1]
    assert stage.backward_ns[0] % (10 * MS) == 13 * MS % (10 * MS)
    for pipeline, layer, says in (
        (
            "",
            fused,
            r"layers\[2\].backward_input: found a backward measured fused alone, expected .*split_backward = false$",
        ),
        ("split_backward = false", {"forward": "7 ms"}, r"layers\[2\].backward_input: found nothing, expected a duration"),
        ("", {**fused, "backward_input": "7 ms"}, r"layers\[2\].backward_weight: found nothing, expected a duration"),
    ):
        with pytest.raises(InvalidInput, match=says):
            read(tmp_path, job(pipeline), {**PROFILE, "layers": [EMBEDDING, BLOCK, layer]})


@pytest.mark.parametrize(
    ("ranks", "layers"), [(2, [(0, 5), (5, 6)]), (4, [(0, 2), (2, 4), (4, 5), (5, 6)]), (6, [(n, n + 1) for n in range(6)])]
)
def test_balanced_partition(tmp_path: Path, ranks: int, layers: list[tuple[int, int]]) -> None:
    assert [stage.layers for stage in read(tmp_path, job(ranks=ranks)).stages] == layers


def test_placements(tmp_path: Path) -> None:
    wave = read(tmp_path, job('placement = "wave"\nchunks = 2'))
    assert [(stage.rank, stage.layers) for stage in wave.stages] == list(
        zip([0, 1, 2, 2, 1, 0], [(n, n + 1) for n in range(6)], strict=True)
    )
    both = read(tmp_path, job('placement = "bidirectional"\npartition = [1, 3, 2]'))
    assert [(stage.rank, stage.layers) for stage in both.stages] == list(
        zip([0, 1, 2, 2, 1, 0], [(0, 1), (1, 4), (4, 6)] * 2, strict=True)
    )
    assert both.stages[1].forward_ns == both.stages[4].forward_ns == (3 * MS,)


def changed(layer: int, **keys: Any) -> dict[str, Any]:
    layers = [dict(entry) for entry in PROFILE["layers"]]
    layers[layer] |= keys
    return PROFILE | {"layers": layers}


@pytest.mark.parametrize(
    ("profile", "says"),
    [
        (changed(1, forward=1.5), "layers[1].forward: found 1.5, expected a duration"),
        (changed(1, forward=None), "layers[1].forward: found null, expected a duration"),
        (changed(1, activation=None), "layers[1].activation: found null, expected a size"),
        (changed(1, foward="1 ms"), "layers[1].foward: found an unknown key"),
        (
            changed(1, activation_after_input="9 B"),
            "layers[1].activation_after_input: found 9 B (9 B), expected at most the activation",
        ),
        (changed(1, repeat=0), "layers[1].repeat: found 0, expected a whole number from 1"),
        (changed(1, repeat=100_000), "layers: found 100002 layers, expected at most 65536"),
        (PROFILE | {"version": 2}, "version: found 2, expected 1"),
        (PROFILE | {"format": "schedc.plan"}, 'format: found "schedc.plan", expected "schedc.profile"'),
        (PROFILE | {"layers": []}, "layers: found [], expected a list of at least 1"),
        (PROFILE | {"layers": [HEAD]}, "layers: found 1 layer, expected 3 or more, one for each piece of the model"),
        (PROFILE | {"layers": [3]}, "layers[0]: found 3, expected a table"),
        ("[]", "found a list, expected a JSON object"),
        ('{"format": NaN}', "format: found nan"),
        ('{"a": 1, "a": 1}', 'found the key "a" twice in one object'),
        ('{\n  "a": 1,\n}', "line 3, column 1: found text that is not JSON"),
        ("[" * 100_000, "found values nested too deeply"),
        ("1" * 5000, "found text that is not JSON (a number of too many digits)"),
    ],
)
def test_bad_profile(tmp_path: Path, profile: dict[str, Any] | str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, job(), profile)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'profile.json'}: {says}"), message
    assert message.isprintable()


def test_partition_of_other_layers(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"job\.toml: pipeline\.partition: found 5 layers in all, expected the 6 of the profile"):
        read(tmp_path, job("partition = [1, 3, 1]"))


def test_no_profile(tmp_path: Path) -> None:
    path = write_job(tmp_path, job())
    with pytest.raises(
        InvalidInput, match=r'job\.toml: profile\.path: found "profile\.json"; .*profile\.json: found no readable file'
    ):
        read_problem(path)


def test_layers_without_message_on_a_link_with_bandwidth(tmp_path: Path) -> None:
    text = job() + '[topology.within]\nbandwidth = "1 GB/s"\n'
    profile = changed(1, message="0 B")
    with pytest.raises(InvalidInput, match=r"profile\.path: found no message size of stage 0"):
        read(tmp_path, text, profile)
