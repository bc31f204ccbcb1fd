"""`schedc init`: the job that it writes compiles as it is, says what was asked for, and replaces nothing unasked."""

from __future__ import annotations

import io
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from suite.command_line import schedc

from schedc.cli.app import main
from schedc.frontend.job import load_job
from schedc.frontend.job_file import JobFile
from schedc.frontend.job_source import source_of_file
from schedc.io.conform import conform
from schedc.io.location import Location
from schedc.study.tune.candidates import candidates
from schedc.study.tune.request import read_request

LAYER: dict[str, Any] = {"forward": "2 ms", "backward_input": "3 ms", "backward_weight": "2 ms"}
SIZES: dict[str, Any] = {"activation": "8 MiB", "message": "1 MiB", "parameters": 1000}


@pytest.fixture(autouse=True)
def _inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_profile(*layers: dict[str, Any], name: str = "mine.json") -> str:
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text(json.dumps({"format": "schedc.profile", "version": 1, "layers": layers}), encoding="utf-8")
    return name


def refused(*arguments: object) -> str:
    """The one line that says why; nothing is left behind."""
    before = sorted(Path().iterdir())
    done = schedc("init", *arguments)
    assert done.returncode in (2, 3) and done.stdout == ""
    assert done.stderr.startswith("schedc: ") and done.stderr.count("\n") == 1
    assert sorted(Path().iterdir()) == before
    return done.stderr


@pytest.mark.parametrize(
    "options",
    [
        "--model llama3-8b --device h100 --ranks 8",
        "--model llama3-8b --ranks 8 --sites 2 --latency 10ms --bandwidth 10GB/s",
        "--model gemma2-9b --ranks 7 --sites 3 --latency 10ms --microbatches 9 --sequence 2048 --microbatch 2",
        "--model llama3-405b --device b200 --ranks 16 --tp 8 --microbatches 8",
        "--model deepseek-v2-lite-16b --device a100 --ranks 4 --tp 4 --bandwidth 5Gb/s --sites 4",
        "--model mixtral-8x7b --ranks 8 --ep 8 --cp 2 --microbatches 8 --bytes-per-parameter 5.5 --bytes-per-expert-parameter 9",
        "--model nemotron-h-8b --device mi300x --ranks 4 --memory-limit 20GiB",
    ],
)
def test_the_job_of_a_model_compiles_as_it_is(options: str) -> None:
    done = schedc("init", *options.split(), "-o", "job.toml")
    assert done.returncode == 0, done.stderr
    first, *notes = done.stdout.splitlines()
    assert first == "wrote job.toml and job.profile.json; schedc compile job.toml -o plan.json makes a plan"
    assert all(note.startswith("note: ") for note in notes)
    assert sorted(map(str, Path().iterdir())) == ["job.profile.json", "job.toml"]
    compiled = schedc("compile", "job.toml", "-o", "plan.json", "--method", "greedy", "--quiet")
    assert compiled.returncode == 0, compiled.stderr
    assert schedc("verify", "plan.json", "--job", "job.toml").returncode == 0
    asked = dict(zip(options.split()[::2], options.split()[1::2], strict=True))
    job = load_job("job.toml")
    ranks, sites = int(asked["--ranks"]), int(asked.get("--sites", 1))
    assert (job.name, job.problem.ranks) == (asked["--model"], ranks)
    assert job.problem.microbatches == int(asked.get("--microbatches", 4 * ranks))
    assert job.file.topology.sites is not None and len(job.file.topology.sites) == sites
    assert max(job.file.topology.sites) - min(job.file.topology.sites) <= 1
    assert job.file.memory is not None and (job.file.memory.limit_bytes is not None) == ("--memory-limit" in asked)


def test_the_profile_is_that_of_schedc_model() -> None:
    options = ("--device", "a100", "--tp", "2", "--sequence", "1024", "--microbatch", "2")
    assert schedc("init", "--model", "llama3-8b", "--ranks", "4", *options, "-o", "a.toml").returncode == 0
    assert schedc("costs", "llama3-8b", *options, "-o", "same.json").returncode == 0
    assert Path("a.profile.json").read_bytes() == Path("same.json").read_bytes()


def test_links_and_memory_are_the_device_s() -> None:
    """Ranks of one node are linked by what its devices are linked by, others by the network."""
    for ranks, tp, rate in ((8, 1, "450 GB/s"), (16, 1, "50 GB/s"), (4, 2, "450 GB/s"), (8, 2, "50 GB/s")):
        done = schedc("init", "--model", "llama3-8b", "--ranks", ranks, "--tp", tp, "-o", "job.toml", "--force")
        assert done.returncode == 0, done.stderr
        table = tomllib.loads(Path("job.toml").read_text())
        assert table["topology"]["within"] == {"latency": "10 us", "bandwidth": rate}
        assert table["memory"] == {"capacity": "81559 MiB", "reserve": "4894 MiB", "bytes_per_parameter": 18}


def test_devices_of_a_rank_share_the_bandwidth_between_sites() -> None:
    """A message in the job is that of one device; all of a rank's devices send theirs at once."""
    for options, bandwidth in (((), "100 Gb/s"), (("--tp", "2"), "6.25 GB/s"), (("--tp", "4", "--cp", "2"), "1.5625 GB/s")):
        done = schedc("init", "--model", "llama3-8b", "--ranks", 4, "--sites", 2, "--bandwidth", "100 Gb/s", *options,
                      "-o", "job.toml", "--force")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert tomllib.loads(Path("job.toml").read_text())["topology"]["between"] == {"bandwidth": bandwidth}


@pytest.mark.parametrize(
    ("layers", "has"),
    [
        ([{**LAYER, **SIZES, "repeat": 4}], {"memory", "bandwidth"}),
        ([{**LAYER, **SIZES, "repeat": 3}, {**LAYER, "activation": "1 MiB"}], {"memory", "bandwidth"}),
        ([{**LAYER, **SIZES, "repeat": 4, "parameters": 0}], {"bandwidth"}),
        ([{**LAYER, "message": "1 MiB", "parameters": 9, "repeat": 4}], {"bandwidth"}),
        ([{**LAYER, "repeat": 4}], set()),
        ([{"forward": "2 ms", "backward": "5 ms", **SIZES, "repeat": 4}], {"memory", "bandwidth"}),
    ],
)
def test_a_profile_that_the_user_has(layers: list[dict[str, Any]], has: set[str]) -> None:
    """What it does not say is left out, so that the job compiles. It is found from another folder, too."""
    profile = write_profile(*layers, name="measured/mine.json")
    Path("jobs").mkdir()
    done = schedc("init", "--profile", profile, "--ranks", 4, "--sites", 2, "--latency", "9 ms", "--bandwidth", "1 GB/s",
                  "--device", "h100", "-o", "jobs/job.toml")  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = tomllib.loads(Path("jobs/job.toml").read_text())
    assert table["profile"] == {"path": "../measured/mine.json"} and table["name"] == "mine"
    assert table["pipeline"].get("split_backward", True) == ("backward_input" in layers[0])
    assert {"memory"} & set(table) | {"bandwidth"} & set(table["topology"]["between"]) == has
    assert list(Path("jobs").iterdir()) == [Path("jobs/job.toml")]
    assert schedc("compile", "jobs/job.toml", "-o", "plan.json", "--method", "greedy", "--quiet").returncode == 0


def test_nothing_of_a_device_is_assumed_for_a_profile() -> None:
    """It may have been measured anywhere."""
    profile = write_profile({**LAYER, **SIZES, "repeat": 4})
    assert schedc("init", "--profile", profile, "--ranks", 2, "-o", "job.toml").returncode == 0
    text = Path("job.toml").read_text()
    table = tomllib.loads(text)
    assert "H100" not in text and "memory" not in table and table["topology"]["within"] == {"latency": "10 us"}
    assert "# [memory]                          # no --device was given, so memory does not count\n" in text
    assert "python -m schedc.runtime.links measures it" in text


def test_the_job_may_go_to_standard_output(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.TextIOWrapper(io.BytesIO(), "utf-8")
    profile = write_profile({**LAYER, **SIZES, "repeat": 4})
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr("sys.stdout", out)
        main(["init", "--profile", profile, "--ranks", "2", "-o", "-"])
    assert not ended.value.code and isinstance(out.buffer, io.BytesIO)
    Path("job.toml").write_bytes(out.buffer.getvalue())
    assert load_job("job.toml").problem.ranks == 2
    assert "expected a file, as the model's profile is written beside it" in refused(
        "--model", "llama3-8b", "--ranks", 2, "-o", "-"
    )


def test_what_is_a_comment_is_right_once_it_is_none() -> None:
    """Each commented key, alone and with the line after it, is a key of the job with a value that it takes."""
    assert schedc("init", "--model", "llama3-8b", "--ranks", 4, "-o", "job.toml").returncode == 0
    lines = Path("job.toml").read_text().splitlines()
    commented = [number for number, line in enumerate(lines) if re.match(r"# (\[|\w+ = )", line)]
    assert len(commented) >= 10
    text = "\n".join(line.removeprefix("# ") if number in commented else line for number, line in enumerate(lines))
    text = re.sub(
        r"(?m)^(capacity|reserve|bytes_per_parameter|mode|versions) = .*$", "", text
    )  # the limit is instead of these; "auto" goes with no mode
    conform(tomllib.loads(text), JobFile, Location("job.toml"))


def test_nothing_is_replaced_unasked() -> None:
    arguments = ("--model", "llama3-8b", "--ranks", 4, "-o", "job.toml")
    Path("job.profile.json").write_text("mine")
    assert refused(*arguments) == (
        "schedc: job.profile.json: found a file, expected none; name another with -o, or replace it with --force\n"
    )
    Path("job.profile.json").rename("job.toml")
    assert "schedc: job.toml: found a file, expected none" in refused(*arguments)
    assert Path("job.toml").read_text() == "mine"
    assert schedc("init", *arguments, "--force").returncode == 0
    profile = write_profile({**LAYER, "repeat": 4}, name="p.toml")
    assert "this command reads it as p.toml" in refused("--profile", profile, "--ranks", 2, "-o", profile, "--force")


@pytest.mark.parametrize("name", ["a\x7f.json", "a\udc80.json", "a\n.json"])
def test_a_path_that_no_job_can_have_is_refused(name: str) -> None:
    write_profile({**LAYER, "repeat": 4}, name=name)
    assert "of a profile, expected printable text" in refused("--profile", name, "--ranks", 2, "-o", "job.toml")
    assert "of a profile, expected printable text" in refused("--model", "llama3-8b", "--ranks", 2, "-o", name, "--force")


def test_an_absolute_path_stays_one(tmp_path: Path) -> None:
    profile = tmp_path / write_profile({**LAYER, "repeat": 4}, name='µ "quoted".json')
    assert schedc("init", "--profile", profile, "--ranks", 2, "-o", "job.toml").returncode == 0
    assert load_job("job.toml").files == (Path("job.toml"), profile)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--ranks 4", "expected either --model, a name or a config.json, or --profile, a profile.json that exists"),
        ("--ranks 4 --model llama3-8b --profile p.json", "expected either --model"),
        ("--ranks 4 --model llama3-8", "did you mean 'llama3-8b'?"),
        ("--ranks 4 --model none.json", "none.json: found no readable file"),
        ("--ranks 4 --profile none.json", "none.json: found no readable file"),
        ("--ranks 4 --model llama3-8b --device h101", "did you mean 'h100'?"),
        ("--ranks 4 --model llama3-8b --tp 7", "tensor"),
        ("--ranks 99 --model llama3-8b", "--ranks: found 99, expected at most 34, as llama3-8b has as many layers"),
        ("--ranks 4 --sites 5 --latency 1ms --model llama3-8b", "--sites: found 5, expected at most the 4 of --ranks"),
        ("--ranks 4 --sites 2 --model llama3-8b", "expected --sites of 2 or more together with --latency, --bandwidth or both"),
        ("--ranks 4 --latency 1ms --model llama3-8b", "expected --sites of 2 or more together with --latency"),
        ("--ranks 4 --sites 2 --latency 1 --model llama3-8b", "--latency: found '1', expected a duration"),
        ("--ranks 4 --sites 2 --bandwidth 1GB --model llama3-8b", "--bandwidth: found '1GB', expected a bandwidth"),
        ("--ranks 4 --memory-limit 1 --model llama3-8b", "--memory-limit: found '1', expected a size"),
        ("--ranks 4 --memory-limit 1MiB --model llama3-8b", "may hold 1 MiB of activations"),
        ("--ranks 4 --model llama3-405b", "that is static on rank 0; more --ranks or --tp, less --bytes-per-parameter"),
        ("--ranks 4 --microbatches 1000000 --model llama3-8b", "pipeline.microbatches: found 1000000, which makes"),
        ("--ranks 4 --profile p.json --sequence 8", "beside --profile, which has its own; expected none"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: str, says: str) -> None:
    assert says in refused(*options.split(), "-o", "job.toml")


def test_the_job_of_tune_is_one_and_has_what_was_said() -> None:
    link = ("--sites", "2", "--latency", "5 ms", "--bandwidth", "400 Gb/s")
    options = ("--model", "llama3-8b", "--device", "b200", "--devices", "16", "--batch", "32", "--sequence", "8192", *link)
    done = schedc("init", "--tune", *options, "-o", "tune.toml")
    assert done.returncode == 0 and "schedc tune tune.toml" in done.stdout, done.stderr
    table = tomllib.loads(Path("tune.toml").read_text(encoding="utf-8"))
    assert table["model"] == {"name": "llama3-8b", "device": "b200", "sequence": 8192}
    assert table["topology"] == {"sites": [8, 8], "between": {"latency": "5 ms", "bandwidth": "400 Gb/s"}}
    request = read_request(source_of_file(Path("tune.toml")))
    assert request.choices.batch == 32 and {each.degrees.tensor for each in candidates(request.choices)} == {1, 2, 4, 8}
    assert "found a file" in refused("--tune", *options, "-o", "tune.toml")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("--tune --model llama3-8b --devices 8", "--tune: expected --model, --devices and --batch"),
        ("--tune --model llama3-8b --devices 8 --batch 8 --ranks 2", "neither --ranks nor --profile"),
        (
            "--tune --model llama3-8b --devices 9 --batch 8 --sites 2 --bandwidth 1GB/s",
            "--devices: found 9, expected a multiple of",
        ),
        ("--tune --model llama3-8b --devices 8 --batch 8 --sites 2", "--sites of 2 or more together with --bandwidth"),
        ("--tune --model llama3-9b --devices 8 --batch 8", "did you mean 'llama3-8b'"),
        ("--tune --model llama3-8b --devices 8 --batch 8 --tp 2", "expected none, as these are searched"),
        ("--model llama3-8b", "--ranks: expected it, the number of pipeline ranks; init --tune"),
        ("--model llama3-8b --ranks 4 --batch 8", "--ranks: expected it, without --devices and --batch"),
    ],
)
def test_options_of_tune_that_do_not_fit_are_refused(options: str, told: str) -> None:
    assert told in refused(*options.split(), "-o", "tune.toml")
