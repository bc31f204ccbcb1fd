"""Some hundreds of random jobs through the whole compiler, and the jobs on which something failed once."""

from __future__ import annotations

import re
from collections import Counter
from itertools import count
from pathlib import Path
from random import Random

import pytest
from inputs.fuzz_jobs import job_text, random_job, write_job
from inputs.fuzz_shrink import shrink
from oracles.findings import Finding
from oracles.fuzz_checks import check_job

from schedc.frontend.job import load_job

CASES = sorted((Path(__file__).parent / "fuzz_cases").glob("*.toml"))

JOBS = 60
"""As many as take some ten seconds; `benchmarks/compiler/fuzz.py` runs more of them."""
COSTLY = 40
"""One job in this many is small and goes to the solvers, too, and one in twice as many to the command line."""


@pytest.mark.slow
def test_nothing_fails_on_random_jobs(tmp_path: Path) -> None:
    counts, found = Counter[str](), list[tuple[str, Finding]]()
    for number in range(JOBS):
        seed, costly = f"1:{number}", number % COSTLY == 0
        most = 24 if costly else 40
        may = dict.fromkeys(("may_be_open", "may_overlap", "may_be_graph", "may_be_sharded"), True)
        job = random_job(Random(seed), most_ops=most, **may)
        terminal = number % (2 * COSTLY) == 0
        found += [(seed, each) for each in check_job(job_text(job), seed, tmp_path, counts, costly=costly, terminal=terminal)]
    assert found == []
    assert counts["plans"] > JOBS
    overlapping = counts["feature steps that overlap"]
    assert counts["plans as text"] > 0.7 * (JOBS - overlapping)  # some have too little memory for any schedule
    assert counts["periods as plans"] > overlapping > 0.05 * JOBS
    assert min(counts[f"feature {name}"] for name in ("a graph", "slices", "sharded weights")) > 0.03 * JOBS


@pytest.mark.slow
@pytest.mark.parametrize("path", CASES, ids=[path.stem for path in CASES])
def test_what_failed_once_does_not_fail(path: Path, tmp_path: Path) -> None:
    """The first lines of a case say what failed, and what was drawn for the checks."""
    text = path.read_text(encoding="utf-8")
    said = dict(re.findall(r"^# (seed|costly): (\S+)$", text, re.MULTILINE))
    costly = said["costly"] == "true"
    assert check_job(text, said["seed"], tmp_path, Counter(), costly=costly, terminal=True, thorough=True) == []


def test_all_jobs_are_valid_and_the_same_for_the_same_seed(tmp_path: Path) -> None:
    names, opened = set(), Counter[str]()
    for number in range(120):
        text = job_text(random_job(Random(f"2:{number}"), may_be_open=number >= 60, may_overlap=number >= 30))
        assert text == job_text(random_job(Random(f"2:{number}"), may_be_open=number >= 60, may_overlap=number >= 30))
        job = load_job(write_job(text, tmp_path))
        opened.update(key for key in ("placement", "partition", "recompute") if getattr(job.file.pipeline, key) == "auto")
        opened.update(key for key in ("lengths", "memory", "data_parallel") if getattr(job.file, key) is not None)
        if job.open_layout is None:
            names.add(job.problem.placement)
            opened["order"] += not job.problem.in_order and any(len(stage.forward_ns) > 1 for stage in job.problem.stages)
    assert names == {"unidirectional", "loop", "wave", "bidirectional", "explicit"}
    assert set(opened) == {"placement", "partition", "recompute", "lengths", "memory", "data_parallel", "order"}
    assert min(opened.values()) > 0


def test_a_wrong_simulator_is_found_and_the_job_made_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier's replay takes a nanosecond more for each transfer: the kind says so, and two ranks are left."""
    import schedc.verify.plan.replay as replay

    add = replay._Nodes.add

    def late(nodes: replay._Nodes, occupies_ns: int, latency_ns: int | None = None) -> int:
        return add(nodes, occupies_ns, 0 if latency_ns is None else latency_ns + 1)

    monkeypatch.setattr(replay._Nodes, "add", late)

    def fails(job: dict[str, object]) -> bool:
        found = check_job(job_text(job), "seed", tmp_path, Counter())
        return "plan: rule makespan" in {finding.kind for finding in found}

    job = next(job for number in count() if fails(job := random_job(Random(number))))
    small = shrink(job, fails)
    assert small["pipeline"]["ranks"] == 2
    assert small["pipeline"]["microbatches"] == 1
    assert small.keys() == {"pipeline", "profile"}
