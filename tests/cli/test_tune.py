"""`schedc tune`: the folder that it leaves, what it prints, and what it refuses."""

from __future__ import annotations

import csv
import io
import json
import re
import tomllib
from typing import TYPE_CHECKING

import pytest
from inputs.tune_jobs import TINY, write_tiny
from repository.doc_outputs import ROOT

from schedc.cli.app import main
from schedc.formats.plan.plan_file import read_plan
from schedc.study.tune.candidates import OF_LOSS

if TYPE_CHECKING:
    from pathlib import Path

FAST = ("--method", "greedy{n_sub=1}", "--set", "tune.ranks=[2, 4]", "--set", 'tune.recompute=["none"]')


def run(*arguments: str) -> int:
    """The exit status of `schedc ARGUMENTS`."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    return int(ended.value.code or 0)


def test_the_best_is_a_job_with_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "tuned"
    assert run("tune", str(write_tiny(tmp_path)), "-o", str(folder), *FAST) == 0
    printed = capsys.readouterr().out
    assert "tokens/s" in printed and "candidates: 1 best" in printed
    assert sorted(path.name for path in folder.iterdir()) == ["job.toml", "plan.json", "profile.json", "table.csv"]
    plan = read_plan(folder / "plan.json")
    # The job is one of the compiler's, and gives the same plan.
    again = tmp_path / "again.json"
    assert run("compile", str(folder / "job.toml"), "-o", str(again), "--quiet") == 0
    assert read_plan(again) == plan
    assert run("verify", str(folder / "plan.json"), "--job", str(folder / "job.toml")) == 0
    with (folder / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["state"] == "best"
    assert int(rows[0]["step_ns"]) == plan.certificate.makespan_ns
    assert len({tuple(list(row.values())[:10]) for row in rows}) == len(rows) > 6
    assert float(rows[0]["tokens_per_s"]) == pytest.approx(8 * 1024 / (int(rows[0]["step_ns"]) / 1e9))
    assert not set(OF_LOSS) & rows[0].keys()  # nobody asked for a loss


def test_the_best_for_torch_is_exported_to_torchtitan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "tuned", tmp_path / "titan.txt"
    torch = ("--set", "tune.semantics=torch", "--set", 'tune.placements=["loop"]', "--set", "tune.ranks=[2]")
    assert run("tune", str(write_tiny(tmp_path)), "-o", str(folder), "--quiet", "--method", "greedy", *torch) == 0
    plan = read_plan(folder / "plan.json")
    assert plan.problem.data_parallel is not None and not plan.problem.cut_blocks
    command = ("export", "torchtitan", str(folder / "plan.json"), "--profile", str(folder / "profile.json"), "-o", str(out))
    assert run(*command) == 0
    assert "pipeline_parallel_schedule=PipelineScheduleMulti\n" in out.read_text()
    assert "computes beside the reduce-scatter of stage" in capsys.readouterr().err
    refused = ("--set", "tune.semantics=torch", "--set", 'tune.recompute=["full"]')
    assert run("tune", str(tmp_path / "tune.toml"), "-o", str(folder), *refused) == 2
    assert 'found "full" where tune.semantics is "torch"' in capsys.readouterr().err


def test_json_and_values_set_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)

    class Standard:
        buffer = io.BytesIO(job.read_bytes())

    monkeypatch.setattr("sys.stdin", Standard)
    assert run("tune", "-", "-o", "out", "--json", *FAST, "--set", "tune.batch=4", "--set", "model.sequence=512") == 0
    printed = json.loads(capsys.readouterr().out)
    best = printed["best"]
    assert best["ranks"] * best["data_parallel"] == 4
    assert best["microbatch_size"] * best["microbatches"] * best["data_parallel"] == 4
    assert best["tokens_per_s"] == pytest.approx(4 * 512 / (best["step_ns"] / 1e9))
    assert printed["lower_bound_ns"] <= best["step_ns"]
    assert [row["state"] for row in printed["candidates"]].count("best") == 1
    assert not set(OF_LOSS) & best.keys()


def test_measured_profiles_by_microbatch_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for size in (1, 2):
        layer = {"name": "block", "repeat": 8, "parameters": 1000, "activation": f"{size} MiB", "message": f"{size} MiB"}
        times = {f"{key}": f"{size} ms" for key in ("forward", "backward_input", "backward_weight")}
        profile = {"format": "schedc.profile", "version": 1, "layers": [layer | times]}
        (tmp_path / f"p{size}.json").write_text(json.dumps(profile))
    job = tmp_path / "tune.toml"
    job.write_text(
        '[tune]\nbatch = 8\nprofiles = { 1 = "p1.json", 2 = "p2.json" }\n[topology]\nsites = [4]\n'
        'within = { bandwidth = "1 GB/s" }\n'
        '[memory]\ncapacity = "1 GB"\n'
    )
    assert run("tune", str(job), "-o", str(tmp_path / "out"), "--json", *FAST, "--set", "tune.zero_stages=[1]") == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["tokens_per_s"] is None
    chosen = tmp_path / f"p{best['microbatch_size']}.json"
    assert (tmp_path / "out" / "profile.json").read_bytes() == chosen.read_bytes()
    # A step has at least the work of eight layers for eight sequences on four devices.
    assert best["step_ns"] >= 8 * 8 * 3_000_000 // 4


def test_a_measured_profile_without_what_tuning_needs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = tmp_path / "tune.toml"
    text = '[tune]\nbatch = 8\nprofiles = { 1 = "p1.json" }\n[topology]\nsites = [4]\n[memory]\ncapacity = "1 GB"\n'
    job.write_text(text)
    layer = {"repeat": 8, "forward": "1 ms", "backward_input": "1 ms", "backward_weight": "1 ms"}
    for more, expected in (
        ({}, r"layers: found no parameters"),
        ({"parameters": 10}, r"layers: found no activation"),
        (
            {"parameters": 10, "activation": "1 MiB", "backward": "2 ms"},
            r"layers\[0\].backward_input: found a backward measured fused alone, .* set tune.split_backward = false",
        ),
        ({"parameters": 10, "activation": "1 MiB"}, r"layers\[0\].message: found nothing, expected a size"),
        (
            {"parameters": 10, "activation": "1 MiB", "message": "1 MiB", "activation_after_input": "2 MiB"},
            r"layers\[0\].activation_after_input: found 2 MiB \(2097152 B\), expected at most the activation",
        ),
        ({"parameters": 10, "activation": "1 MiB", "message": "1 MiB"}, r"topology.within.bandwidth: found nothing, expected"),
    ):
        made = {key: value for key, value in (layer | more).items() if "backward" not in more or "backward_" not in key}
        profile = {"format": "schedc.profile", "version": 1, "layers": [made]}
        (tmp_path / "p1.json").write_text(json.dumps(profile))
        assert run("tune", str(job), "-o", str(tmp_path / "out"), "--quiet") == 2
        assert re.search(expected, capsys.readouterr().err)


def test_the_schema_has_every_key_described_and_the_formats_have_it_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("schema", "tune") == 0
    schema = json.loads(capsys.readouterr().out)
    page = (ROOT / "docs" / "tune-file.md").read_text(encoding="utf-8")
    sections = {
        name: schema["$defs"][name]["properties"]
        for name in ("ModelSection", "TuneSection", "TuneTopology", "StateSection", "LossSection")
    }
    assert {key for section in sections.values() for key in section} >= {"name", "batch", "sites", "capacity"}
    for section in sections.values():
        for key, value in section.items():
            assert "description" in value or "$ref" in value, key
            assert re.search(rf"`(\w+\.)?{key}`", page), key
    example = tomllib.loads((ROOT / "examples" / "tune-8b" / "tune.toml").read_text(encoding="utf-8"))
    assert example["model"].keys() <= sections["ModelSection"].keys()
    assert example["tune"].keys() <= sections["TuneSection"].keys()


BAD = [
    (TINY.replace('config = "config.json"', ""), "model: found neither name nor config, expected one of them, or tune.profiles"),
    (TINY.replace("config.json", "none.json"), 'model.config: found "none.json"; .*no readable file'),
    (TINY.replace('"h100"', '"h101"'), "model.device: found the device \"h101\", .*did you mean 'h100'"),
    (TINY.replace("batch = 8", ""), "tune: found neither batch nor batch_tokens"),
    (TINY.replace("batch = 8", "batch_tokens = 1000"), "tune.batch_tokens: found 1000 tokens, expected a multiple of the 1024"),
    (TINY.replace("[4]", "[4, 4]"), "topology.between: found no bandwidth, expected latency and bandwidth"),
    (
        TINY.replace("tp = 1", "tp = 3"),
        "topology.sites\\[0\\]: found 4 devices, expected a multiple of 3",
    ),
    (TINY.replace("tp = 1", "tp = 2").replace("[4]", "[1]"), "topology.sites\\[0\\]: found 1 device, expected a multiple of 2"),
    (
        TINY.replace("microbatch_sizes = [1, 2]", 'placements = ["wav"]'),
        "tune.placements\\[0\\]: found \"wav\", .*did you mean 'wave'",
    ),
    (TINY + '[solver]\nmethod = "greed"\n', "solver.method: .*greed' is unknown"),
    *(
        (TINY + "[loss]\n" + keys, f"loss{expected}")
        for keys, expected in (
            ("tokens = 1\n", ": found neither optimizer nor convergence, expected one of them: a table"),
            ('optimizer = "muon"\n', ".tokens: found nothing, expected the tokens that a run without delay needs"),
            ('optimizer = "muon"\ntokens = 0\n', ".tokens: found 0, expected a whole number from 1 to"),
            ('optimizer = "moun"\ntokens = 9\n', ".optimizer: found \"moun\", expected one of .*did you mean 'muon'"),
            ('optimizer = "muon"\ntokens = 9\nerror = 0.1\n', ".error: found 0.1, expected no such key with optimizer"),
            ('convergence = "c.json"\n', ".error: found nothing, expected the mean squared gradient to reach"),
            ('convergence = "c.json"\nerror = 1\ntokens = 9\n', ".tokens: found 9, expected no such key with convergence"),
            ('optimizer = "muon"\ntokens = 9\nupdate = 4\n', '.update: found 4, expected a duration such as "38 ms"'),
        )
    ),
    (TINY + '[loss]\noptimizer = "muon"\ntokens = 9\ndelay_table = "none.toml"\n', "none.toml: found no readable file"),
    (TINY + '[loss]\nconvergence = "none.json"\nerror = 0.1\n', "none.json: found no readable file"),
    *(
        (TINY.replace("batch = 8", f"batch = 8\n{keys}") + loss, f"tune.{expected}")
        for keys, loss, expected in (
            ('modes = ["asynchronous"]', "", 'modes: found "asynchronous" without .loss., expected .loss.'),
            ('versions = ["stash"]', "", "versions: found a value where no steps overlap"),
            ('modes = ["asynchronous"]\nsemantics = "torch"', "", 'modes: found "asynchronous" where tune.semantics is'),
            ("most_delays = [1]", "", 'most_delays: found values where tune.versions has no "bounded"'),
            ('modes = ["async"]', "", 'modes.0.: found "async", expected'),
            ("step_microbatches = [0]", "", "step_microbatches.0.: found 0, expected"),
            (
                "step_microbatches = [1]",
                '[loss]\nconvergence = "c.json"\nerror = 0.1\n',
                'step_microbatches: found .*, expected ."all". with loss.convergence',
            ),
        )
    ),
    (TINY.replace("microbatch_sizes = [1, 2]", "ranks = [3]"), "tune: found no way to divide the devices and the batch"),
]


@pytest.mark.parametrize(("text", "expected"), BAD)
def test_a_mistake_is_one_line_and_leaves_nothing(
    text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = write_tiny(tmp_path, text)
    assert run("tune", str(job), "-o", str(tmp_path / "out"), "--quiet") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert re.search(expected, lines[0]), lines[0]
    assert not (tmp_path / "out").exists()


def test_the_job_itself_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = write_tiny(tmp_path).rename(tmp_path / "job.toml")
    before = job.read_bytes()
    assert run("tune", str(job), "-o", str(tmp_path), *FAST) == 2
    assert "cannot be written: this command reads it" in capsys.readouterr().err
    assert job.read_bytes() == before
    assert run("tune", str(job), "-o", str(job), *FAST) == 2
    assert "is no folder" in capsys.readouterr().err
    assert run("tune", str(job), "-o", str(tmp_path / "a" / "b"), *FAST) == 2
    assert "cannot be made" in capsys.readouterr().err


def test_the_best_whose_steps_overlap_is_a_job_with_its_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "delays.toml").write_text('[[measured]]\noptimizer = "sgd"\ndelays = 1\ntokens = 1.001\n')
    loss = '[loss]\noptimizer = "sgd"\ntokens = 1_000_000\ndelay_table = "delays.toml"\n'
    job = write_tiny(tmp_path, TINY.replace("batch = 8", 'batch = 8\nplacements = ["unidirectional"]\nversions = ["2bw"]') + loss)
    folder, again = tmp_path / "tuned", tmp_path / "again.json"
    assert run("tune", str(job), "-o", str(folder), *FAST, "--set", "tune.ranks=[2]") == 0
    printed = capsys.readouterr().out
    assert "time to loss" in printed and "the best synchronous one, 2 ranks" in printed and "updates: a table; sgd" in printed
    plan = read_plan(folder / "plan.json")
    assert plan.is_period and plan.certificate.delays == (1, 1)
    with (folder / "table.csv").open(newline="") as file:
        first = next(csv.DictReader(file))
    assert (first["versions"], first["delays"], first["factor"]) == ("2bw", "1 1", "1.0")
    assert run("compile", str(folder / "job.toml"), "-o", str(again), "--quiet") == 0
    assert read_plan(again) == plan
    assert run("verify", str(folder / "plan.json"), "--job", str(folder / "job.toml")) == 0
    capsys.readouterr()
    assert run("tune", str(job), "-o", str(folder), *FAST, "--set", "tune.ranks=[2]", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    best = found["best"]
    assert set(OF_LOSS) <= best.keys() & first.keys()
    assert best["versions"] == "2bw" and best["delays"] == [1, 1] and found["verdict"] in printed
    assert found["lower_bound_ns"] <= best["time_to_loss_ns"] == best["updates"] * best["step_ns"]


def test_the_command_line_alone_is_a_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tiny(tmp_path)
    monkeypatch.chdir(tmp_path)
    words = "--model config.json --devices 4 --batch 8 --sequence 1024 --set model.tp=1 --set tune.zero_stages=[1]"
    small = ("--set", "tune.microbatch_sizes=[1, 2]")
    assert run("tune", *words.split(), *small, "-o", "a", "--json", *FAST) == 0
    of_options = json.loads(capsys.readouterr().out)
    assert run("tune", "tune.toml", "-o", "b", "--json", *FAST) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert of_options["best"] | {"seconds": 0} == of_file["best"] | {"seconds": 0}
    assert of_options["pipelines"] == of_file["pipelines"]
    assert run("tune", "--model", "config.json", "-o", "c") == 2
    assert "expected JOB, or --model, --devices and --batch" in capsys.readouterr().err
    for beside in (("--model", "config.json"), ("--device", "h200"), ("--batch", "9"), ("--sites", "2"), ("--latency", "1 ms")):
        assert run("tune", "tune.toml", "-o", "c", *beside) == 2
        assert f"found {beside[0]} beside JOB" in capsys.readouterr().err
    assert run("tune", "tune.toml", "-o", "b", *FAST, "--why", "ranks=2") == 0
    printed = capsys.readouterr().out
    assert re.search("the best beside 2 ranks × 2 pipelines.*\ncause +best +other +more\n", printed)
    assert not (tmp_path / "b" / "kept").exists()
    auto = ("--set", "tune.ranks=[1, 2]", "--set", "tune.placements=['wave']", "--set", "tune.microbatch_sizes=[2]")
    assert run("tune", "tune.toml", "-o", "c", "--time-limit", "0 s", *auto) == 0
    assert "the same command goes on from kept" in capsys.readouterr().out and (tmp_path / "c" / "kept").is_dir()
    assert run("tune", "tune.toml", "-o", "c", "--candidate-time", "0 s", *auto) == 0
    assert "goes on" not in capsys.readouterr().out and not (tmp_path / "c" / "kept").exists()
    assert run("tune", "tune.toml", "-o", "b", *FAST, "--why", "ranks") == 2
    assert "--why: found 'ranks', expected columns of the table and their values" in capsys.readouterr().err
