"""Jobs that leave their layout open, by the command line: every combination of keys, the other commands, and what is refused."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from inputs.few_layouts import seek_few_layouts
from inputs.jobs import write_job
from suite.command_line import schedc

from schedc.compile.driver import compile_job
from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import read_plan, write_plan
from schedc.frontend.chosen_layout import job_in_layout, job_text_in_layout
from schedc.frontend.job import load_job
from schedc.ir.plan import Scope
from schedc.solvers.common.base import Limits, SearchSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLE = Path(__file__).parents[2] / "examples" / "open-layout"
LAYER = {"forward": "2 ms", "backward_input": "3 ms", "backward_weight": "2 ms", "activation": "8 MiB", "message": "1 MiB"}
LAYERS: list[dict[str, Any]] = [
    {**LAYER, "repeat": 3},
    {**LAYER, "forward": "5 ms", "backward_weight": "4 ms"},
    {**LAYER, "repeat": 2},
]
REST = '[profile]\npath = "profile.json"\n[memory]\nlimit = "64 MiB"\n[topology.within]\nlatency = "1 ms"\n'


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(monkeypatch)


def job_of(directory: Path, pipeline: str, rest: str = REST, layers: list[dict[str, Any]] = LAYERS) -> Path:
    profile = {"format": "schedc.profile", "version": 1, "layers": layers}
    (directory / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    return write_job(directory, f"[pipeline]\nranks = 2\nmicrobatches = 3\n{pipeline}\n{rest}")


def combinations() -> Iterator[str]:
    partitions = ["", 'partition = "auto"', "partition = [1, 5]", "partition = [2, 3, 1]"]
    placements = ["", 'placement = "auto"', 'placement = "wave"\nchunks = 2', "placement = [1, 0, 1]"]
    for partition, placement, recompute in product(partitions, placements, ["", 'recompute = "auto"', 'recompute = "full"']):
        stages = {"": 2, 'placement = "wave"\nchunks = 2': 4, "placement = [1, 0, 1]": 3}.get(placement)
        given = partition.count(",") + 1 if "[" in partition else stages
        text = f"{partition}\n{placement}\n{recompute}"
        if '"auto"' in text and given == (stages or given):
            yield text


@pytest.mark.parametrize("pipeline", list(combinations()))
def test_every_combination_of_open_keys(tmp_path: Path, pipeline: str) -> None:
    job, path = job_of(tmp_path, pipeline), tmp_path / "plan.json"
    fixed = tmp_path / "fixed.toml"
    done = schedc("compile", job, "-o", path, "--method", "greedy{n_sub=1}", "--json", "--write-job", fixed)
    assert done.returncode == 0, done.stderr
    assert load_job(fixed).problem == read_plan(path).problem
    found, plan = json.loads(done.stdout), read_plan(path)
    assert found["scope"] == plan.certificate.scope == "layout"
    assert found["layouts"] > 1
    assert found["lower_bound_ns"] <= found["objective_ns"]
    verified = schedc("verify", path, "--job", job)
    assert verified.returncode == 0, verified.stdout
    assert "in any layout that the job leaves open" in " ".join(verified.stdout.split())
    stages = plan.problem.stages
    assert found["layout"]["recompute"] == [stage.recompute for stage in stages]
    bounds = [stage.layers for stage in stages if stage.layers is not None]
    assert found["layout"]["partition"] == [last - first for first, last in bounds]
    if 'recompute = "full"' in pipeline:
        assert all(stage.recompute for stage in stages)
    if 'recompute = "auto"' not in pipeline and 'recompute = "full"' not in pipeline:
        assert not any(stage.recompute for stage in stages)
    given = re.search(r"partition = (\[.*\])", pipeline)
    assert given is None or json.loads(given[1]) == found["layout"]["partition"]
    if "placement = [1, 0, 1]" in pipeline:
        assert [stage.rank for stage in stages] == [1, 0, 1]


def given_placements() -> Iterator[tuple[str, str]]:
    """Every way to give a placement of two ranks, and of one, with every way to leave the rest open; and how it is called."""
    named = [("unidirectional", 1), *product(("loop", "wave"), (2, 3))]
    lists = [[0, 1], [1, 0], [0, 1, 0, 1], [0, 1, 1, 0], [1, 0, 1]]  # some of them are those of a name
    given = [(f'placement = "{name}"\nchunks = {chunks}', name, chunks) for name, chunks in named]
    given += [(f"placement = {ranks}", "explicit", len(ranks)) for ranks in lists]
    given += [(f"ranks = 1\n{text}", name, chunks) for text, name, chunks in given if name != "explicit"]
    for text, name, stages in given:
        for keys in ('partition = "auto"', 'recompute = "auto"', 'partition = "auto"\nrecompute = "auto"'):
            yield f"{text}\n{keys}", name
        if name == "explicit":
            yield f'{text}\npartition = {[1] * (stages - 1) + [7 - stages]}\nrecompute = "auto"', name


@pytest.mark.parametrize(
    ("pipeline", "name", "method"),
    [
        pytest.param(*given, method, marks=[] if at == 0 else [pytest.mark.slow])
        for number, given in enumerate(given_placements())
        for at, method in enumerate(("greedy{n_sub=1}", "adaptis", "auto"))
        if at == 0 or number % 2 == at - 1  # either search from half of what is given
    ],
)
def test_a_placement_that_is_given_keeps_its_name(tmp_path: Path, pipeline: str, name: str, method: str) -> None:
    """Whichever search finds the layout: so a job with the layout written into it states the plan's problem."""
    job = job_of(tmp_path, "")
    text = job.read_text().replace("ranks = 2", pipeline if "ranks" in pipeline else f"ranks = 2\n{pipeline}")
    job.write_text(text)
    settings = SearchSettings(method=method, limits=Limits(deterministic=0.05, workers=1))
    plan = compile_job(load_job(job), settings).plan
    assert plan.problem.placement == name
    written = tmp_path / "fixed.toml"
    written.write_bytes(job_text_in_layout(load_job(job).source, plan, written))
    assert load_job(written).problem == plan.problem
    assert job_in_layout(load_job(job).source, plan, "--layout").problem == plan.problem


@pytest.mark.parametrize("method", ["greedy", pytest.param("auto", marks=pytest.mark.slow)])
def test_the_example(tmp_path: Path, method: str) -> None:
    """What is printed: the layout, the baselines, the certificate in words."""
    job, path = EXAMPLE / "job.toml", tmp_path / "plan.json"
    done = schedc("compile", job, "-o", path, "--deterministic-limit", "0.5", "--method", method)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    for expected in ("mist-like (balanced unidirectional 1f1b)", "even loop 2 interleaved", "balanced wave 2 zb-v", "◀"):
        assert expected in said
    assert re.search(r"gap \d+\.\d\d% in any layout that the job leaves open \(lower bound .* by layouts\)", said)
    assert f"open-layout: layout open, method {method}, limit 0.5 units of work" in done.stderr
    assert schedc("verify", path, "--job", job).returncode == 0


@pytest.mark.parametrize("pipeline", ["", 'placement = "auto"'])
def test_the_candidate_that_the_plan_is_of_is_marked(tmp_path: Path, pipeline: str) -> None:
    """It alone: where the layout is given, the one of the plan's method; else the one of its layout."""
    job, path = job_of(tmp_path, pipeline), tmp_path / "plan.json"
    done = schedc("compile", job, "-o", path, "--method", "auto", "--deterministic-limit", "0.05")
    assert done.returncode == 0, done.stderr
    (marked,) = (line for line in done.stdout.splitlines() if "◀" in line)
    made_by = json.loads(path.read_text())["made_by"]["method"]
    if not pipeline:
        assert marked.split("  ")[0].strip() == made_by


def test_a_tiny_one_is_proven_over_all_layouts(tmp_path: Path) -> None:
    job, path = job_of(tmp_path, 'partition = "auto"\nplacement = "auto"\nchunks = 2'), tmp_path / "plan.json"
    done = schedc("compile", job, "-o", path, "--deterministic-limit", "20")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "proven optimal among schedules of whole blocks in any layout that the job leaves open" in said
    assert said.endswith("proven optimal")
    verified = " ".join(schedc("verify", path, "--job", job).stdout.split())
    assert "the bound is a result of cpsat, not checked here" in verified


def test_other_commands(tmp_path: Path) -> None:
    job, path = job_of(tmp_path, 'placement = "auto"\nrecompute = "auto"'), tmp_path / "plan.json"
    assert schedc("compile", job, "-o", path, "--method", "greedy{n_sub=1}", "--quiet").returncode == 0
    bound = json.loads(schedc("bounds", job, "--json").stdout)
    assert bound["layouts"]["value_ns"] == read_plan(path).certificate.lower_bound_ns
    assert "layouts" in schedc("bounds", job).stdout
    assert json.loads(schedc("simulate", path, "--job", job, "--json").stdout) == json.loads(
        schedc("simulate", path, "--json").stdout
    )
    assert "in any layout" in " ".join(schedc("show", path).stdout.split())
    page = tmp_path / "plan.html"
    assert schedc("report", path, "-o", page).returncode == 0
    for said in (schedc("show", path).stdout, page.read_text(encoding="utf-8")):
        assert "in this layout alone" in said and "recomputes" in said
    assert "of this layout is" in page.read_text(encoding="utf-8")
    refused = schedc("templates", job)
    assert refused.returncode == 2
    assert refused.stderr == (
        f'schedc: {job}: pipeline.placement: found "auto", expected a given one, as this command chooses no layout: take a plan\'s'
        " with --layout PLAN, or have it written into a job with schedc compile --write-job FILE\n"
    )


@pytest.mark.parametrize("pipeline", ['placement = "auto"', 'placement = "loop"\nchunks = 2\npartition = "auto"'])
def test_commands_that_choose_no_layout_take_a_plan_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipeline: str) -> None:
    monkeypatch.chdir(tmp_path)
    job = job_of(tmp_path, pipeline)
    assert schedc("compile", job, "-o", "plan.json", "--method", "greedy{n_sub=1}", "--quiet").returncode == 0
    chosen = read_plan(tmp_path / "plan.json")
    with_plan, greedy = (job, "--layout", "plan.json"), ("--method", "greedy{n_sub=1}", "--quiet")
    for options in ((), ("--robust", "normal(1 ms, 1 ms)", "--robust-samples", "2")):
        again = schedc("compile", *with_plan, "-o", "again.json", *greedy, *options)
        assert again.returncode == 0, again.stderr
        plan = read_plan(tmp_path / "again.json")
        assert plan.problem.stages == chosen.problem.stages and plan.certificate.scope is Scope.SCHEDULE
    assert "1f1b" in schedc("templates", *with_plan).stdout
    assert schedc("family", *with_plan, "-o", "family", "--links", "0-1=9ms", *greedy).returncode == 0
    assert schedc("export", "torch", "again.json", "-o", "again.csv").returncode == 0
    assert "sound" in schedc("lint", "again.csv", "--job", *with_plan).stdout
    # What is set counts; a plan of another layout, or a plan without a job, does not.
    slow = ("--set", "topology.within.latency=9 ms", *greedy)
    slower = schedc("compile", *with_plan, "-o", "slower.json", *slow)
    assert slower.returncode == 0
    assert {link.latency_ns for link in read_plan(tmp_path / "slower.json").problem.links} == {9_000_000}
    compiled = ("compile", *with_plan, "-o", "x.json", "--set")
    refusals: list[tuple[tuple[object, ...], str]] = [
        ((*compiled, "pipeline.recompute=full"), "does not leave open, expected a plan of this job"),
        ((*compiled, "pipeline.ranks=9"), "does not leave open"),
        (("templates", "--layout", "plan.json"), "--layout: found plan.json without a job, expected JOB, too"),
    ]
    for arguments, told in refusals:
        refused = schedc(*arguments)
        assert refused.returncode == 2 and told in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    assert not (tmp_path / "x.json").exists()


def test_the_layout_chosen_is_written_into_a_copy_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keys = 'placement = "auto"  # which rank\nrecompute = "auto"   # which stages\nchunks = 2 # at most'
    job = job_of(tmp_path, keys)
    job.write_text("# mine\n" + job.read_text())
    (tmp_path / "sub").mkdir()
    compiled = ("compile", job, "-o", "plan.json", "--method", "greedy{n_sub=1}", "--quiet", "--write-job")
    done = schedc(*compiled, "sub/chosen.toml", "--set", "topology.within.latency=3 ms")
    assert done.returncode == 0, done.stderr
    text, plan = (tmp_path / "sub" / "chosen.toml").read_text(), read_plan(tmp_path / "plan.json")
    assert load_job(tmp_path / "sub" / "chosen.toml").problem == plan.problem
    assert {link.latency_ns for link in plan.problem.links} == {3_000_000}
    assert '"auto"' not in text and "# mine\n" in text and "# which rank\n" in text and "# which stages\n" in text
    assert 'path = "../profile.json"' in text
    for options, told in (
        ((str(job),), "cannot be written: this command reads it"),
        (("-",), "--write-job: found -, expected a file"),
        (("x.toml", "--robust", "normal(1 ms, 1 ms)"), "--write-job: found --robust, expected a file"),
        (("x.toml", "--set", "profile.layers[0].forward=3 ms"), "which sets a value of the file in profile.path"),
    ):
        refused = schedc(*compiled, *options)
        assert refused.returncode == 2 and told in refused.stderr and refused.stderr.count("\n") == 1, refused.stderr
    assert not (tmp_path / "x.toml").exists()


def test_a_plan_of_another_layout_or_bound_is_refused(tmp_path: Path) -> None:
    job, path, closed = job_of(tmp_path, 'partition = "auto"'), tmp_path / "plan.json", tmp_path / "closed.toml"
    assert schedc("compile", job, "-o", path, "--method", "1f1b", "--quiet", "--write-job", closed).returncode == 0
    text = path.read_text(encoding="utf-8")
    certificate = read_plan(path).certificate
    bound_ns, objective_ns = certificate.lower_bound_ns, certificate.objective_ns
    more = text.replace(f'"lower_bound_ns": {bound_ns}', f'"lower_bound_ns": {bound_ns + 1}')
    more = re.sub(r'"gap": [\d.e-]+', f'"gap": {1 - (bound_ns + 1) / objective_ns}', more)
    path.write_text(more, encoding="utf-8")
    assert schedc("verify", path).returncode == 0  # without the job there is nothing to compute it from
    done = schedc("verify", path, "--job", job)
    assert done.returncode == 1
    assert f"claims {bound_ns + 1} ns, but the bound over layouts is {bound_ns} ns" in " ".join(done.stdout.split())
    path.write_text(text.replace('"bound": "layouts"', '"bound": "work"'), encoding="utf-8")
    assert "the bound work does not have the scope layout" in " ".join(schedc("verify", path).stdout.split())
    path.write_text(text.replace('    "scope": "layout",\n', "").replace(',\n    "scope": "layout"', ""), encoding="utf-8")
    assert "the bound layouts does not have the scope schedule" in " ".join(schedc("verify", path).stdout.split())
    path.write_text(text, encoding="utf-8")
    other = job_of(tmp_path, 'placement = [1, 0]\npartition = "auto"')
    assert "the job gives [1, 0]" in " ".join(schedc("verify", path, "--job", other).stdout.split())
    assert schedc("simulate", path, "--job", other).returncode == 1
    verified = schedc("verify", path, "--job", closed)
    assert verified.returncode == 0, verified.stdout
    assert "not checked here: --job with the job that leaves the layout open does it" in " ".join(verified.stdout.split())


def test_only_a_bound_over_layouts_says_for_what_it_holds(tmp_path: Path) -> None:
    job, path = job_of(tmp_path, 'partition = "auto"'), tmp_path / "plan.json"
    schedc("compile", job, "-o", path, "--method", "1f1b", "--quiet")
    plan = read_plan(path)
    assert plan.certificate.scope is Scope.LAYOUT
    first = path.read_bytes()
    write_plan(plan, path)
    assert path.read_bytes() == first
    schedc("compile", job_of(tmp_path, ""), "-o", path, "--method", "1f1b", "--quiet")
    assert b'"scope"' not in path.read_bytes()


SILENT = [{key: value for key, value in LAYER.items() if key != "message"}]
WIDE = REST.replace('latency = "1 ms"', 'bandwidth = "1 GB/s"')
SITES = REST.replace("[topology.within]", "[topology]\nsites = [1, 1]\n[topology.within]")
WEIGHTY = REST.replace('limit = "64 MiB"', 'capacity = "1 GiB"\nstatic = "2 GiB"')


@pytest.mark.parametrize(
    ("pipeline", "rest", "layers", "says"),
    [
        ('placement = "auto"', REST, LAYERS[1:2], "profile.json: layers: found 1 layer, expected 2 or more, one for each rank"),
        ('placement = "auto"\npartition = [2, 2]', REST, LAYERS, "pipeline.partition: found 4 layers in all, expected the 6"),
        ('placement = "auto"\npartition = [6]', REST, LAYERS, "pipeline.partition: found 1 value, expected 2 to 6, one per stage"),
        (
            'placement = "auto"\npartition = [2, 2, 2]\nrecompute = [true, false]', REST, LAYERS,
            "pipeline.recompute: found 2 values, expected 3, one per stage, as many as pipeline.partition has",
        ),
        ('placement = "auto"\nchunks = 0', REST, LAYERS, "pipeline.chunks: found 0"),
        ('placement = "bidirectional"\npartition = "auto"', REST, LAYERS, "pipeline.partition: found \"auto\" where"),
        ('placement = "auto"\nsemantics = "torch"\nrecompute = "auto"', REST, LAYERS, "pipeline.recompute: found \"auto\" where"),
        ('placement = "auto"', SITES, LAYERS, "topology.between: found nothing, expected a table, or links"),
        ('partition = "auto"', WIDE, SILENT * 4, "profile.path: found no message size of layer 0, which may be the last one of a"),
        ('recompute = "auto"', REST, SILENT * 4, "expected one, as a stage that recomputes keeps the message in limited memory"),
        ('placement = "auto"', WEIGHTY, LAYERS, "memory.capacity: found 2 GiB on all ranks together, expected at least the 4 GiB"),
        ('partition = "auto"', REST.replace("64 MiB", "7 MiB"), LAYERS, "no layout has room for its stages on its ranks"),
        (
            'placement = "auto"', REST + "[data_parallel]\nsize = 2\nzero_stage = 0\nreduce_scatter = [\"1 ms\"]", LAYERS,
            "data_parallel.reduce_scatter: found 1 value, expected 2 to 6",
        ),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, pipeline: str, rest: str, layers: list[dict[str, Any]], says: str) -> None:
    job = job_of(tmp_path, pipeline, rest, layers)
    done = schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "1f1b")
    assert done.returncode in (2, 3)
    assert done.stderr.startswith("schedc: ") and done.stderr.count("\n") == 1
    assert says in done.stderr
    assert not (tmp_path / "plan.json").exists()


@pytest.mark.parametrize(("more", "stages", "most"), [("", 6, 55_555), ("partition = [2, 4]\n", 2, 166_666)])
def test_more_ops_than_a_plan_may_have_in_any_layout(tmp_path: Path, more: str, stages: int, most: int) -> None:
    """As many stages count as there may be, or as are given; one microbatch less than too many has a layout."""
    job = job_of(tmp_path, f'{more}placement = "auto"')
    text = job.read_text(encoding="utf-8")
    job.write_text(text.replace("microbatches = 3", f"microbatches = {most + 1}"), encoding="utf-8")
    ops = 3 * stages * (most + 1)
    says = rf"found {most + 1}, which makes {ops} compute ops with {stages} stages, expected at most {most}, or a smaller"
    with pytest.raises(InvalidInput, match=says):
        load_job(job)
    job.write_text(text.replace("microbatches = 3", f"microbatches = {most}"), encoding="utf-8")
    assert load_job(job).open_layout is not None


def test_torch_chooses_a_partition(tmp_path: Path) -> None:
    job, path = job_of(tmp_path, 'partition = "auto"\nsemantics = "torch"'), tmp_path / "plan.json"
    assert schedc("compile", job, "-o", path, "--method", "1f1b", "--quiet").returncode == 0
    assert schedc("verify", path, "--job", job).returncode == 0


def test_a_method_over_layouts_needs_an_open_one(tmp_path: Path) -> None:
    done = schedc("compile", job_of(tmp_path, ""), "-o", tmp_path / "plan.json", "--method", "adaptis")
    assert done.returncode == 2
    assert "--method: method 'adaptis' chooses a layout, and the job gives it" in done.stderr
    job = job_of(tmp_path, 'placement = "auto"')
    found = json.loads(schedc("compile", job, "-o", tmp_path / "plan.json", "--method", "adaptis", "--json").stdout)
    assert "adaptis" in [each["method"] for each in found["candidates"]]


def test_costs_by_stage_leave_recomputation_open(tmp_path: Path) -> None:
    text = """
[pipeline]
ranks = 2
microbatches = 3
recompute = "auto"
[profile]
forward = "2 ms"
backward_input = "2 ms"
backward_weight = "1 ms"
activation = "8 MiB"
message = "1 MiB"
[memory]
limit = "8 MiB"
"""
    job, path = write_job(tmp_path, text), tmp_path / "plan.json"
    assert load_job(job).open_layout is not None
    assert schedc("compile", job, "-o", path, "--method", "greedy{n_sub=1}", "--quiet").returncode == 0
    assert schedc("verify", path, "--job", job).returncode == 0


def test_adaptis_by_the_command_line(tmp_path: Path) -> None:
    job, path = job_of(tmp_path, 'partition = "auto"\nplacement = "auto"\nchunks = 2'), tmp_path / "plan.json"
    done = schedc("compile", job, "-o", path, "--method", "adaptis", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    reached = {row["method"]: row["objective_ns"] for row in found["candidates"] if "objective_ns" in row}
    assert found["objective_ns"] == reached["adaptis"] == min(reached.values())
    assert any(method.startswith("mist-like") for method in reached)
    assert schedc("verify", path, "--job", job).returncode == 0


@pytest.mark.parametrize(
    "pipeline", ['head = "auto"', 'head = "split"', 'head = "auto"\nplacement = "auto"', 'placement = "auto"\nhead = "split"']
)
def test_a_head_that_is_open_or_split_is_written_and_verified(tmp_path: Path, pipeline: str) -> None:
    head = {**LAYER, "forward": "30 ms", "split_message": "1 KiB"}
    partition = 'partition = "auto"\n' if "placement" not in pipeline and "split" in pipeline else ""
    job = job_of(tmp_path, partition + pipeline, layers=[*LAYERS, head])
    path, fixed = tmp_path / "plan.json", tmp_path / "fixed.toml"
    done = schedc("compile", job, "-o", path, "--method", "greedy{n_sub=1}", "--json", "--write-job", fixed)
    assert done.returncode == 0, done.stderr
    plan = read_plan(path)
    assert load_job(fixed).problem == plan.problem and "auto" not in fixed.read_text(encoding="utf-8")
    verified = schedc("verify", path, "--job", job)
    assert verified.returncode == 0, verified.stdout
    assert sum(json.loads(done.stdout)["layout"]["partition"]) == 6 + (
        plan.problem.layout is None or not plan.problem.layout.split_head
    )
