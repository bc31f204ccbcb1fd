"""`import schedc`: what is public, that it loads nothing before it is used, its types, and the program of its page."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from inputs.jobs import M70, write_job
from repository.doc_outputs import PROGRAMS, ROOT, programs_of, with_outputs

import schedc
from schedc import api
from schedc.frontend.job import load_job
from schedc.ir.ops import Kind

LOADED = """
import sys
import schedc
{statement}
heavy = {{"numpy", "ortools", "numba", "torch", "msgspec", "highspy", "pulp", "typer", "rich"}}
print(*sorted(heavy & set(sys.modules)), *sorted(name for name in sys.modules if name.startswith("schedc.")))
"""
TABLE: dict[str, Any] = {
    "pipeline": {"ranks": 2, "microbatches": 3},
    "profile": {"forward": "1 ms", "backward_input": "1 ms", "backward_weight": ("1 ms", "2 ms"), "message": "1 MiB"},
    "topology": {"within": {"latency": "1 ms"}},
}


def loaded(statement: str) -> set[str]:
    """What a fresh process has imported after the statement."""
    done = subprocess.run([sys.executable, "-c", LOADED.format(statement=statement)], capture_output=True, check=True, timeout=250)
    return set(done.stdout.decode().split())


def test_the_import_loads_nothing_and_names_load_what_they_need() -> None:
    assert loaded("") == set()
    assert loaded("schedc.InvalidInput; schedc.compile_job") == {"schedc.api", "schedc.errors"}
    read = loaded("schedc.make_job(dict(pipeline=dict(ranks=1, microbatches=1), profile=dict(forward='1 ms', "
                  "backward_input='1 ms', backward_weight='1 ms')))")  # fmt: skip
    assert "schedc.frontend.job" in read
    assert not read & {"numpy", "ortools", "numba", "torch", "highspy", "pulp", "typer", "rich"}
    assert "schedc.api" not in loaded("from schedc import errors; assert not hasattr(schedc, 'nothing')")


def test_what_is_public_is_the_same_in_all_its_places() -> None:
    """The module, the functions, the types for checkers and editors, and the page."""
    assert schedc.__all__ == api.__all__
    assert "from schedc.api import *" in (ROOT / "schedc" / "__init__.pyi").read_text(encoding="utf-8")
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+)", " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE)))
    assert {name for name in listed if hasattr(schedc, name)} == set(schedc.__all__)
    for name in schedc.__all__:
        assert getattr(schedc, name) is getattr(api, name)
        assert getattr(schedc, name).__doc__
    for name in ("DEFAULT_TIME_S", "nothing", "_private"):
        with pytest.raises(AttributeError, match=name):
            getattr(schedc, name)


def adapted(folder: Path) -> dict[str, Any]:
    """What says how a job adapts: to a slow link between the replicas of rank 0, and to a slow rank."""
    plan = schedc.compile_job(schedc.make_job(TABLE), method="1f1b").plan
    links = folder / "links.toml"
    links.write_text('within = { latency = "1 us" }\nlink = [{ ranks = [0, 2], latency = "9 ms" }]\n')
    with pytest.raises(schedc.InvalidInput, match=r"^replicas: found nothing, and plan 'job' has no data_parallel; expected"):
        schedc.assign_plan(plan, links, gradient_bytes=8)
    with pytest.raises(schedc.InvalidInput, match=r"^order: found 'megatron', expected one of pipelines, ranks$"):
        schedc.assign_plan(plan, links, gradient_bytes=8, replicas=2, order="megatron")
    assignment = schedc.assign_plan(plan, links, gradient_bytes=8, replicas=2, keep_orders=True)
    assert assignment.after.step_ns < assignment.before.step_ns and len(assignment.moved) == 2
    assert schedc.verify_plan(assignment.plan()) == ()
    job = schedc.read_job(ROOT / "examples" / "llama-3b" / "job.toml")
    runs = schedc.compile_job(job, method="1f1b").plan
    slow = schedc.Conditions(slowdown={(2, Kind.F): 1.3, (2, Kind.B): 1.3, (2, Kind.W): 1.3})
    repartition = schedc.repartition_plan(runs, job, slow)
    assert repartition == schedc.repartition_plan(runs, job, slow={2: 1.3})
    assert 17 in repartition.moved and repartition.objective_ns < repartition.stay_ns <= repartition.running_ns
    with pytest.raises(schedc.InvalidInput, match=r"^slow: found 4: 1.3, expected numbers above 0 for ranks from 0 to 3$"):
        schedc.repartition_plan(runs, job, slow={4: 1.3})
    return {"Assignment": assignment, "Repartition": repartition, "Conditions": slow}


def test_documented_attributes_exist(tmp_path: Path) -> None:
    """Of every type, on what the functions return."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    job = schedc.make_job(TABLE)
    steps: list[schedc.Improvement] = []
    compiled = schedc.compile_job(job, method="greedy", time_limit_s=5, on_improvement=steps.append)
    timeline = schedc.simulate_plan(compiled.plan)
    wrong = schedc.verify_plan(compiled.plan, schedc.make_job(TABLE, set={"pipeline.microbatches": 4}))
    way = schedc.LossCandidate(name="now", period_ns=100, delays=(0, 0))
    constants = schedc.ConvergenceConstants(initial_loss=1.0, smoothness=1.0, second_moment=1.0)
    times = schedc.time_to_loss([way], convergence=constants, learning_rate=0.1, error=0.1)
    made = {
        "Job": job, "Compiled": compiled, "Improvement": steps[0], "Plan": compiled.plan, "Timeline": timeline,
        "LossCandidate": way, "ConvergenceConstants": constants, "TimeToLoss": times,
        "Bound": schedc.lower_bounds(job)[0], "Violation": wrong[0], **adapted(tmp_path),
    }  # fmt: skip
    for name, value in made.items():
        assert isinstance(value, getattr(schedc, name))
        (row,) = re.findall(rf"^\| `{name}` \| ([^|]*) \|$", page, re.MULTILINE)
        for attribute in re.findall(r"`([a-z_0-9]+)(?:\(rank\))?`", re.sub(r" \([^()]*\)|, each with [^;]*|; `ranks`.*", "", row)):
            assert hasattr(value, attribute), f"{name}.{attribute}"
    assert len(timeline.start_ns(1)) == len(timeline.end_ns(1)) == len(compiled.plan.ranks[1].compute)
    assert steps[-1].objective_ns == compiled.plan.certificate.makespan_ns == timeline.makespan_ns


def test_a_table_is_the_same_job_as_the_file(tmp_path: Path) -> None:
    text = """
        [pipeline]
        ranks = 2
        microbatches = 3
        [profile]
        forward = "1 ms"
        backward_input = "1 ms"
        backward_weight = ["1 ms", "2 ms"]
        message = "1 MiB"
        [topology.within]
        latency = "1 ms"
        """
    (tmp_path / "links.toml").write_text('within = { latency = "1 ms" }\n')
    expected = load_job(write_job(tmp_path, text, "made.toml")).problem
    assert schedc.make_job(TABLE, name="made").problem == expected
    in_file = {**TABLE, "topology": {"path": "links.toml"}}
    job = schedc.make_job(in_file, name="made", directory=tmp_path)
    assert job.problem == expected and job.files == (tmp_path / "links.toml",)
    plan = schedc.compile_job(job, method="1f1b").plan
    assert plan.made_by.job_sha256 == job.sha256 != schedc.make_job(TABLE).sha256
    assert schedc.verify_plan(plan, job) == ()


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({}, "the job: pipeline: found nothing, expected a table"),
        ({**TABLE, "pipeline": {"ranks": 2, "microbatches": "3"}}, 'the job: pipeline.microbatches: found "3", expected a whole'),
        ({**TABLE, "memroy": {}}, "the job: memroy: found an unknown key"),
        ({**TABLE, "name": Path("x")}, "the job: name: found x, expected text"),
        ({**TABLE, "name": "a\nb"}, "the job: name: found "),
        ({**TABLE, "pipeline": {2: 2}}, "the job: pipeline.2: found an unknown key"),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(table: dict[str, Any], says: str) -> None:
    with pytest.raises(schedc.InvalidInput) as caught:
        schedc.make_job(table)
    assert str(caught.value).startswith(says) and str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"method": "nix"}, "method: method 'nix' is unknown"),
        ({"gap": 1.0}, "gap: found 1.0, expected a number of at least 0 and below 1"),
        ({"seed": -1}, "seed: found -1, expected"),
        ({"workers": 0}, "workers: found 0, expected a whole number of at least 1"),
        ({"workers": 1.5}, "workers: found 1.5, expected a whole number of at least 1"),
        ({"seed": "1"}, 'seed: found "1", expected a whole number'),
        ({"time_limit_s": "5 s"}, 'time_limit_s: found "5 s", expected a number of at least 0'),
        ({"time_limit_s": float("nan")}, "time_limit_s: found nan, expected"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(schedc.InvalidInput) as caught:
        schedc.compile_job(schedc.make_job(TABLE), **options)
    assert str(caught.value).startswith(says)


@pytest.mark.parametrize("sizes", [{"tp": 0}, {"cp": -1}, {"ep": -8}, {"microbatch": 0}, {"sequence": 0}, {"sequence": 4096.0}])
def test_sizes_that_no_model_can_be_run_with_write_no_profile(sizes: dict[str, Any], tmp_path: Path) -> None:
    ((name, _),) = sizes.items()
    with pytest.raises(schedc.InvalidInput, match=f"^{name}: found .*, expected a whole number of at least 1$"):
        schedc.write_profile("mixtral-8x7b", tmp_path / "profile.json", **sizes)
    assert not any(tmp_path.iterdir())


def test_what_a_callback_raises_is_the_caller_s(tmp_path: Path) -> None:
    """It is no failure of the method that found the improvement, and no search goes on after it."""
    seen: list[schedc.Improvement] = []

    def refuse(improvement: schedc.Improvement) -> None:
        seen.append(improvement)
        raise ValueError("mine")

    job = schedc.read_job(write_job(tmp_path, M70))
    for method in ("greedy", "auto"):
        with pytest.raises(ValueError, match=r"^mine$"):
            schedc.compile_job(job, method=method, time_limit_s=300, on_improvement=refuse)
    assert len(seen) == 2


def test_an_interruption_is_raised_also_where_there_is_a_schedule(tmp_path: Path) -> None:
    def interrupt(_: schedc.Improvement) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        schedc.compile_job(schedc.read_job(write_job(tmp_path, M70)), time_limit_s=300, on_improvement=interrupt)


def test_public_names_are_completed() -> None:
    assert set(schedc.__all__) <= set(dir(schedc))


def test_values_that_are_set(tmp_path: Path) -> None:
    path = write_job(tmp_path, M70)
    job = schedc.read_job(path, set={"pipeline.microbatches": np.int64(8), "topology.sites": (2, 6)})
    assert job.problem == load_job(write_job(tmp_path, M70.replace("= 16", "= 8").replace("[4, 4]", "[2, 6]"))).problem
    with pytest.raises(schedc.InvalidInput, match=r"^set pipeline.ranks to 0: found 0, expected a whole number"):
        schedc.read_job(path, set={"pipeline.ranks": 0})
    with pytest.raises(schedc.InvalidInput, match=r"^set pipeline.ranks to false: found false, expected a whole number"):
        schedc.make_job(TABLE, set={"pipeline.ranks": False})


def test_a_plan_knows_its_layers_where_the_job_counts_them_otherwise_than_the_model() -> None:
    """Costs by stage are two layers of the job, though eight of the model."""
    job = schedc.make_job(
        {
            "pipeline": {"ranks": 2, "microbatches": 4, "partition": [3, 5], "recompute": "auto"},
            "profile": {"forward": ["1 ms", "2 ms"], "backward_input": "1 ms", "backward_weight": "1 ms"},
        }
    )
    plan = schedc.compile_job(job, method="1f1b").plan
    assert [stage.layers for stage in plan.problem.stages] == [(0, 3), (3, 8)]
    assert plan.problem.layout is not None and plan.problem.layout.layers_of_stage == ((0, 1), (1, 2))
    assert schedc.verify_plan(plan, job) == ()


def test_a_plan_of_another_pipeline_cannot_be_timed() -> None:
    plan = schedc.compile_job(schedc.make_job(TABLE), method="1f1b").plan
    other = schedc.make_job(TABLE, set={"pipeline.microbatches": 4})
    with pytest.raises(schedc.CheckFailed, match="microbatches"):
        schedc.simulate_plan(plan, other)


def test_a_plan_is_timed_on_engines_whose_transfers_hold_up_compute() -> None:
    job = schedc.make_job(TABLE)
    plan = schedc.compile_job(job, method="1f1b").plan
    usual, queued = (schedc.simulate_plan(plan, transfers=name).makespan_ns for name in ("decoupled", "one-queue"))
    assert schedc.simulate_plan(plan).makespan_ns == usual <= queued
    with pytest.raises(schedc.InvalidInput, match=r"^transfers: found 'queue', expected one of decoupled, one-queue, blocking$"):
        schedc.simulate_plan(plan, job, transfers="queue")


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_program_of_a_page_prints_what_the_page_shows(name: str, tmp_path: Path) -> None:
    """If this fails, look at the difference and run `python tests/support/repository/doc_outputs.py`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    assert len(programs_of(text)) > 3
    assert with_outputs(text, tmp_path) == text


def test_another_output_of_a_page_is_noticed(tmp_path: Path) -> None:
    text = "before\n```python\nx = 1\n```\nand\n```python\nprint(x)\n```\n\n```text\n2\n```\nafter\n"
    assert with_outputs(text, tmp_path) == text.replace("2", "1")


def test_time_to_a_loss(tmp_path: Path) -> None:
    ways = [
        schedc.LossCandidate(name="now", period_ns=100, delays=(0, 0)),
        schedc.LossCandidate(name="late", period_ns=90, delays=(1, 0)),
    ]
    constants = schedc.ConvergenceConstants(initial_loss=1.0, smoothness=1.0, second_moment=1.0)
    by_theory = schedc.time_to_loss(iter(ways), convergence=constants, learning_rate=0.25, error=0.5)
    assert isinstance(by_theory, schedc.TimeToLoss)
    assert [(row.candidate.name, row.updates) for row in by_theory.rows] == [("now", 16), ("late", 19)]
    path = tmp_path / "convergence.json"
    first = '{"step": 0, "loss": 1, "gradient_sq": 1}'
    steps = first + ', {"step": 1, "loss": 1, "gradient_sq": 1, "gradient_change_sq": 4, "weight_change_sq": 4}'
    text = f'{{"format": "schedc.convergence", "version": 1, "name": "x", "learning_rate": 0.25, "steps": [{steps}]}}'
    path.write_text(text, encoding="utf-8")
    from_file = schedc.time_to_loss(ways, convergence=path, error=0.5)
    assert from_file.rows == by_theory.rows
    assert from_file.source == (
        "theory (DynPipe, equation 3) at a learning rate of 0.25; f(w₀) 1, L 1 (1 samples: 1 to 1, median 1),"
        " ξ² 1 (2 samples: 1 to 1, median 1)"
    )
    assert schedc.time_to_loss(ways, convergence=path, learning_rate=0.125, error=0.5).rows[0].updates != 16
    assert schedc.time_to_loss(ways, optimizer="muon", tokens=100).rows[0].updates == 107  # 1 + 0.33 / 5, interpolated
    path.write_text(text.replace("0.25", "null"), encoding="utf-8")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "time_to_loss: found neither of convergence and optimizer, expected one: the theory, or the table"),
        ({"convergence": path, "optimizer": "muon"}, "time_to_loss: found both of convergence and optimizer"),
        ({"convergence": path}, "error: found nothing, expected the mean squared gradient"),
        ({"convergence": path, "error": 1.0}, "learning_rate: found nothing, expected"),
        ({"convergence": path, "error": 1.0, "tokens": 5}, "tokens: found 5, expected none with convergence"),
        ({"optimizer": "muon"}, "tokens: found nothing, expected how many"),
        ({"optimizer": "muon", "tokens": 1, "error": 0.5}, "error: found 0.5, expected none with optimizer"),
    ]
    for options, says in wrong:
        with pytest.raises(schedc.InvalidInput) as caught:
            schedc.time_to_loss(ways, **options)
        assert str(caught.value).startswith(says)
