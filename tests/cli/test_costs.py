"""`schedc costs`: the profile it writes, and what it refuses."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import read_problem

from schedc.cli.app import main
from schedc.formats.profile_file import ProfileFile
from schedc.io.conform import conform
from schedc.io.location import Location

if TYPE_CHECKING:
    from pathlib import Path


def run(*arguments: str) -> int:
    """The exit status of `schedc ARGUMENTS`."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_a_name_becomes_a_profile_that_a_job_can_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "profile.json"
    assert run("costs", "llama3-8b", "--device", "a100", "--tp", "2", "-o", str(output)) == 0
    printed = capsys.readouterr().out
    assert "llama3-8b on NVIDIA A100 SXM4 80 GB, tp 2, 1 × 4096 tokens" in printed
    assert "blocks 0 to 31" in printed
    profile = conform(json.loads(output.read_text()), ProfileFile, Location("profile.json"))
    assert [layer.repeat for layer in profile.layers] == [1, 32, 1]
    job = tmp_path / "job.toml"
    job.write_text(
        'name = "from a name"\npipeline = { ranks = 4, microbatches = 8 }\nprofile = { path = "profile.json" }\n'
        'memory = { capacity = "80 GB", bytes_per_parameter = 16 }\n'
    )
    problem = read_problem(job)
    assert len(problem.stages) == 4
    forward_ns = sum(stage.forward_ns[0] for stage in problem.stages)
    assert forward_ns == sum(layer.repeat * layer.forward_ns for layer in profile.layers)
    assert {stage.message_bytes for stage in problem.stages[:-1]} == {4096 * 4096}


@pytest.mark.parametrize(
    ("sequence", "rows"),
    [
        ("4096", ["embedding 1", "block 0 to block 41 42", "head 1"]),
        ("8192", ["embedding 1", "block 0 to block 40, every second 21", "block 1 to block 41, every second 21", "head 1"]),
    ],
)
def test_rows_that_repeat_are_printed_once(
    sequence: str, rows: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every second layer of gemma2 looks at 4096 tokens only: which are all, or half of them."""
    assert run("costs", "gemma2-9b", "--sequence", sequence, "-o", str(tmp_path / "p.json")) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    found = [line for line in lines if line.startswith(("embedding", "block", "head"))]
    assert [line.startswith(row) for line, row in zip(found, rows, strict=True)] == [True] * len(rows)


def test_json_has_the_exact_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("costs", "qwen3-30b-a3b", "--ep", "8", "--sequence", "2048", "--json", "-o", str(tmp_path / "p.json")) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["parameters"] == 30_532_122_624
    assert printed["device"] == "h100"
    assert [layer["kind"] for layer in printed["layers"]] == ["embedding", "attention + experts", "head"]
    assert printed["layers"][1]["message_bytes"] == 2048 * 2048 * 2


def test_one_share_of_the_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """CrossPipe's 109 ms for 8 blocks, at 500 of 989.4 TFLOPS."""
    options = ["--tp", "8", "--sequence", "8192", "--efficiency", "0.50536", "--json"]
    assert run("costs", "llama3-405b", *options, "-o", str(tmp_path / "p.json")) == 0
    block = json.loads(capsys.readouterr().out)["layers"][1]
    assert 8 * block["forward_ns"] == pytest.approx(109e6, rel=0.002)


def test_what_is_kept_with_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def kept(*options: str) -> list[int]:
        assert run("costs", "gpt3-175b", *options, "--json", "-o", str(tmp_path / "p.json")) == 0
        printed = json.loads(capsys.readouterr().out)
        return [printed["layers"][1].get(f"activation{after}_bytes", 0) for after in ("", "_after_input")]

    unit = 2048 * 12288 * 2  # the model has 2,048 position embeddings, fewer than the default of 4,096 tokens
    scores = 4 * 2048 * 96
    assert kept() == [16 * unit + scores, 16 * unit]
    assert kept("--no-split-backward") == [16 * unit + scores, 0]
    assert kept("--no-split-backward", "--recompute", "selective") == [10 * unit + scores, 0]
    assert kept("--recompute", "selective") == [16 * unit, 16 * unit]


def test_operators_add_up_to_their_layer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("costs", "gemma3-12b", "--tp", "2", "--json", "-o", str(tmp_path / "p.json")) == 0
    layers = json.loads(capsys.readouterr().out)["layers"]
    for layer in layers:
        operators = layer["operators"]
        for phase in ("forward", "backward_input", "backward_weight"):
            total_ns = sum(operator[phase]["duration_ns"] for operator in operators)
            assert total_ns == pytest.approx(layer.get(f"{phase}_ns", 0), abs=len(operators))
        assert sum(operator["parameters"] for operator in operators) == layer["parameters"]
        for_weight = sum(operator["kept_for_weight_bytes"] for operator in operators)
        after = for_weight + sum(operator["gradient_bytes"] for operator in operators)
        kept = for_weight + sum(operator["kept_for_input_bytes"] for operator in operators)
        assert (layer["activation_bytes"], layer["activation_after_input_bytes"]) == (max(kept, after), after)


def test_a_table_of_operators(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One for each kind of layer: windowed and full attention, and both ends."""
    assert run("costs", "gemma3-12b", "--operators", "-o", str(tmp_path / "p.json")) == 0
    printed = capsys.readouterr().out
    titles = ("embedding: embedding", "blocks 0 to 4: windowed attention + feed-forward", "block 5: attention + feed-forward")
    assert [printed.count(title) for title in (*titles, "head: head")] == [1] * 4
    assert printed.count("head norms") == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["lama3-8b"], "found the model name \"lama3-8b\", expected one of llama3-8b, .*; did you mean 'llama3-8b'?"),
        (["llama3-8b", "--device", "H100"], "found the device \"H100\", expected one of .*; did you mean 'h100'?"),
        (["llama3-8b", "--device", "h1000"], "found the device \"h1000\", expected one of .*; did you mean 'h100'?"),
        (["missing.json"], "missing.json: found no readable file"),
        (["llama3-8b", "--tp", "64"], "tensor parallel size 64 does not divide 32 heads"),
        (["llama3-8b", "--bias", "1"], "found --bias without --measured, expected both, or neither of them"),
        (["llama3-8b", "--other-device"], "found --other-device without --measured, expected both, or neither of them"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    arguments: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "profile.json"
    assert run("costs", *arguments, "-o", str(output)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(expected.replace("?", r"\?"), line)
    assert not output.exists()


def test_experts_are_counted_apart_and_a_model_may_have_a_short_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """DeepSeek-V3 has 58 layers with 256 experts of three matrices, and one more in its module for further tokens."""
    of_layer = 256 * 3 * 7168 * 2048
    assert run("costs", "deepseek-v3", "--ep", "8", "-o", str(tmp_path / "p.json"), "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert (printed["model"], printed["expert_parameters"]) == ("deepseek-v3-671b", 59 * of_layer)
    found = [layer for layer in printed["layers"] if "expert_parameters" in layer]
    assert {layer["expert_parameters"] for layer in found} == {of_layer // 8}
    assert sum(layer["repeat"] for layer in found) == 59
    assert run("costs", "mixtral-8x7b", "-o", str(tmp_path / "p.json")) == 0
    assert "45,097,156,608 are of routed experts" in capsys.readouterr().out.replace("\n", " ")
    assert run("costs", "deepseek-v4", "-o", str(tmp_path / "p.json")) == 2
    assert "did you mean" in capsys.readouterr().err
