"""Modules, edges and slices in a job and in a profile.json: what they become, and each way to say them wrong."""

from __future__ import annotations

import json
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any

import pytest
from inputs.jobs import write_job

from schedc.errors import InvalidInput
from schedc.formats.profile_file import stage_profile_json
from schedc.frontend.job import load_job
from schedc.ir import BLOCKS, DataParallel, Kind
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.ir import Problem

JOB = """
[pipeline]
ranks = 2
microbatches = {microbatches}
placement = [0, 1, 0, 1]
[profile]
forward = ["2 us", "3 us", "5 us", "7 us"]
backward_input = ["4 us", "6 us", "5 us", "7 us"]
backward_weight = "1 us"
activation = "10 MB"
message = ["1 MB", "2 MB", "3 MB", "4 MB"]
[topology.within]
bandwidth = "1 GB/s"
{rest}
"""
VISION = '[[module]]\nname = "vision"\nlayers = 2\n'
TEXT = '[[module]]\nname = "text"\nlayers = 2\n'
IDS = '[[edge]]\nsource = "vision.0"\ndestination = "text.1"\nvalue = "ids"\nmessage = "8 KB"\ngradient = false\n'


def problem_of(directory: Path, rest: str = "", microbatches: int = 3) -> Problem:
    problem = load_job(write_job(directory, JOB.format(rest=rest, microbatches=microbatches))).problem
    assert verify_problem(problem) == ()
    return problem


def edges_of(problem: Problem) -> set[tuple[int, int, int, int | None]]:
    return {(edge.source, edge.destination, edge.message_bytes, edge.gradient_message_bytes) for edge in problem.edges}


def test_modules_in_a_row_are_a_chain(tmp_path: Path) -> None:
    assert problem_of(tmp_path, VISION + TEXT) == problem_of(tmp_path)
    assert problem_of(tmp_path, VISION + TEXT + 'inputs = ["vision"]\n') == problem_of(tmp_path)


def test_a_skip_edge_of_integers(tmp_path: Path) -> None:
    chain = {(0, 1, 10**6, 10**6), (1, 2, 2 * 10**6, 2 * 10**6), (2, 3, 3 * 10**6, 3 * 10**6)}
    assert edges_of(problem_of(tmp_path, VISION + TEXT + IDS)) == {*chain, (0, 3, 8000, None)}
    assert edges_of(problem_of(tmp_path, IDS.replace('"vision.0"', "0").replace('"text.1"', "3"))) == {*chain, (0, 3, 8000, None)}


def test_two_modules_that_begin_with_the_batch(tmp_path: Path) -> None:
    """The text's first layer begins with the batch; its last one takes what the vision's last gives."""
    joined = '[[edge]]\nsource = "vision"\ndestination = "text.1"\ngradient_message = "5 MB"\n'
    problem = problem_of(tmp_path, VISION + TEXT + "inputs = []\n" + joined)
    assert edges_of(problem) == {(0, 1, 10**6, 10**6), (2, 3, 3 * 10**6, 3 * 10**6), (1, 3, 2 * 10**6, 5 * 10**6)}


def test_the_same_from_a_profile(tmp_path: Path) -> None:
    layer = {"forward": "1 us", "backward_input": "1 us", "backward_weight": "1 us", "message": "1 MB"}
    profile: dict[str, Any] = {
        "format": "schedc.profile",
        "version": 1,
        "layers": [{**layer, "repeat": 4, "quadratic": {"forward": 0.5}}, layer],
        "modules": [{"name": "vision", "layers": 3}, {"name": "text", "layers": 2}],
        "edges": [{"source": 0, "destination": "text.1", "value": "ids", "message": "8 KB", "gradient": False}],
    }
    (tmp_path / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    text = '[pipeline]\nranks = 2\nmicrobatches = 3\npartition = [3, 2]\n[profile]\npath = "profile.json"\n{rest}'
    problem = load_job(write_job(tmp_path, text.format(rest=""))).problem
    assert problem.is_chain and problem.stages[0].message_bytes == 10**6 + 8000  # both go from the first stage to the second
    problem = load_job(write_job(tmp_path, text.format(rest="[slices]\nlengths = [1, 1]\n"))).problem
    assert problem.stages[1].forward_ns == (750 - 250 + 500, 750 + 250 + 500) * 3 or problem.stages[1].forward_ns == (875, 1125) * 3
    with pytest.raises(InvalidInput, match=r"beside a profile\.json with modules or edges"):
        load_job(write_job(tmp_path, text.format(rest=VISION)))


@pytest.mark.parametrize("lengths", [(1, 1), (3, 1, 2), (5, 4, 3, 2, 1)])
@pytest.mark.parametrize("fixed", ["0", "0.1"])
def test_slices_take_what_their_tokens_and_their_prefix_take(tmp_path: Path, lengths: tuple[int, ...], fixed: str) -> None:
    whole, n = problem_of(tmp_path), len(lengths)
    rest = f'[slices]\nlengths = {list(lengths)}\nquadratic = 0.3\nfixed = {fixed}\nstate_gradient = "1 MB"\n'
    problem = problem_of(tmp_path, rest)
    assert (problem.microbatches, problem.slices, problem.in_order) == (3 * n, lengths, False)
    total, c = sum(lengths), Fraction(fixed)
    for index, stage in enumerate(problem.stages):
        assert stage.state_gradient_bytes == 10**6
        for kind in (Kind.F, Kind.B, Kind.W):
            d, q = whole.duration_ns(kind, index, 0), Fraction(0) if kind is Kind.W else Fraction(3, 10)
            for unit in range(problem.microbatches):
                before, after = list(pairwise([0, *accumulate(lengths)]))[unit % n]
                pairs = sum(2 * token + 1 for token in range(before, after))  # each attends to itself and those before it, twice
                expected = d * (c + (1 - c - q) * (after - before) / total + q * pairs / total**2)
                assert problem.duration_ns(kind, index, unit) == round(expected)
        for unit in range(problem.microbatches):
            halves = problem.duration_ns(Kind.B, index, unit) + problem.duration_ns(Kind.W, index, unit)
            assert problem.duration_ns(Kind.BW, index, unit) == halves


def test_durations_may_be_given_by_slice(tmp_path: Path) -> None:
    text = JOB.format(rest="[slices]\ncount = 2\n", microbatches=2)
    by_slice = text.replace('forward = ["2 us", "3 us", "5 us", "7 us"]', 'forward = [["1 us", "2 us"], "3 us", "4 us", "4 us"]')
    problem = load_job(write_job(tmp_path, by_slice)).problem
    assert problem.stages[0].forward_ns == (1000, 2000, 1000, 2000)
    assert problem.stages[1].forward_ns == (1500,)
    assert problem.stages[0].backward_ns == (2000 + 500,)


@pytest.mark.parametrize(
    ("rest", "message"),
    [
        (VISION, "job.toml: module: found 2 layers in all, expected 4, as many as the profile has"),
        (VISION + VISION, "module[1].name: found 'vision' for the second time"),
        (
            VISION + TEXT + 'inputs = ["visoin"]\n',
            "module[1].inputs[0]: found 'visoin', expected one of vision, text; did you mean",
        ),
        (VISION + TEXT + 'inputs = ["text"]\n', "an edge from layer 3 to layer 2"),
        (VISION + TEXT + "inputs = []\n", "found nothing that joins module text with the first layer"),
        (IDS.replace('"vision.0"', "4"), "edge[0].source: found layer 4, expected 0 to 3"),
        (IDS, "edge[0].source: found 'vision', expected a layer's number, as there are no modules"),
        (VISION + TEXT + IDS.replace("text.1", "text.2"), "found 'text.2', expected a layer of module text, text.0 to text.1"),
        (VISION + TEXT + IDS + IDS, "a second edge from layer 0 to layer 3"),
        (VISION + TEXT + IDS.replace('value = "ids"\n', ""), "found 'output' of layer 0 with 8000 B, expected 1000000 B"),
        ("[slices]\nquadratic = 0.1\n", "slices.count: found nothing, expected one of slices.count and slices.lengths"),
        ("[slices]\ncount = 1\n", "found one slice, expected two or more, or no [slices]"),
        ("[slices]\ncount = 2\nquadratic = 0.8\nfixed = 0.3\n", "shares that add up to at most 1"),
        ('[slices]\ncount = 2\n[lengths]\npath = "x.csv"\nprofile_length = 9\n', "a section beside [lengths]"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, rest: str, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        problem_of(tmp_path, rest)
    assert message.replace("'", '"') in str(raised.value).replace("'", '"') and "\n" not in str(raised.value)


@pytest.mark.parametrize("section", ["[slices]\ncount = 2\n", IDS.replace('"vision.0"', "0").replace('"text.1"', "3")])
@pytest.mark.parametrize(
    "pipeline",
    ['placement = "bidirectional"', 'semantics = "torch"', 'mode = "asynchronous"\nversions = "stash"'],
)
def test_what_is_for_chains_alone_is_refused(tmp_path: Path, section: str, pipeline: str) -> None:
    text = JOB.format(rest=section, microbatches=4)
    text = text.replace("placement = [0, 1, 0, 1]", pipeline)
    with pytest.raises(InvalidInput, match=r"found a section (with|where)"):
        load_job(write_job(tmp_path, text))


def test_kinds_are_those_that_are_cut() -> None:
    assert BLOCKS == (Kind.F, Kind.B, Kind.W, Kind.BW)


TIED = '[[tied]]\nfirst = {first}\nlast = {last}\ngradient = "{size}"\n'


def test_a_tied_weight_is_summed_behind_its_two_stages(tmp_path: Path) -> None:
    """A message each way between its ranks, 1 GB/s; on one rank nothing. Layers are named as in edges."""
    assert problem_of(tmp_path, TIED.format(first=0, last=2, size="1 GB")).data_parallel is None
    apart = DataParallel(size=1, zero_stage=0, reduce_scatter_ns=(10**9, 0, 0, 10**9))
    assert problem_of(tmp_path, TIED.format(first=0, last=3, size="1 GB")).data_parallel == apart
    named = VISION + TEXT + TIED.format(first='"vision"', last='"text"', size="1 GB")
    assert problem_of(tmp_path, named).data_parallel == apart
    section = '[data_parallel]\nsize = 2\nzero_stage = 1\nreduce_scatter = "2 ns"\nall_gather = "3 ns"\n'
    beside = replace(apart, size=2, zero_stage=1, reduce_scatter_ns=(10**9 + 2, 2, 2, 10**9 + 2), all_gather_ns=(3,) * 4)
    assert problem_of(tmp_path, section + TIED.format(first=3, last=0, size="1 GB")).data_parallel == beside


@pytest.mark.parametrize(
    ("rest", "found", "expected"),
    [
        (TIED.format(first=0, last=4, size="1 GB"), "layer 4", "0 to 3"),
        (TIED.format(first=1, last=1, size="1 GB"), "layer 1, as in `first`", "another layer"),
        (TIED.format(first=0, last='"text"', size="1 GB"), '"text"', "a layer's number"),
        (
            TIED.format(first=0, last=3, size="1 GB") + '[pipeline]\nplacement = "bidirectional"\n',
            'with placement "bidirectional"',
            "each path has both layers",
        ),
    ],
)
def test_tied_weights_that_cannot_be(tmp_path: Path, rest: str, found: str, expected: str) -> None:
    job = JOB.format(rest=rest.partition("[pipeline]")[0], microbatches=4)
    if "[pipeline]" in rest:
        job = job.replace("placement = [0, 1, 0, 1]", 'placement = "bidirectional"')
    with pytest.raises(InvalidInput) as said:
        load_job(write_job(tmp_path, job))
    assert found in str(said.value) and expected in str(said.value)


@pytest.mark.parametrize(
    "rest", [VISION + TEXT + IDS, "[slices]\ncount = 3\nquadratic = 0.4\n", IDS + "[slices]\nlengths = [1, 2, 5]\n"]
)
def test_the_stages_of_a_plan_are_a_profile(tmp_path: Path, rest: str) -> None:
    """What `compare --profile` writes: the job with it has the same edges and slices, and durations but for what is rounded."""
    rest = rest.replace('"vision.0"', "0").replace('"text.1"', "3").replace(VISION + TEXT, "")
    problem = problem_of(tmp_path, rest)
    (tmp_path / "stages.json").write_bytes(stage_profile_json(problem))
    begin, profile, end = (
        JOB.partition("[profile]\n")[0],
        '[profile]\npath = "stages.json"\n',
        "[topology.within]" + JOB.partition("[topology.within]")[2],
    )
    slices = "[slices]" + rest.partition("[slices]")[2] if "[slices]" in rest else ""
    again = load_job(
        write_job(tmp_path, (begin + profile + end).format(rest=slices.replace("quadratic = 0.4\n", ""), microbatches=3))
    ).problem
    assert edges_of(again) == edges_of(problem)
    assert again.slices == problem.slices
    for stage, other in zip(again.stages, problem.stages, strict=True):
        for kind in BLOCKS:
            pairs = zip(stage.durations_ns(kind), other.durations_ns(kind), strict=True)
            assert all(abs(one - two) <= 0.002 * sum(other.durations_ns(kind)) for one, two in pairs)
