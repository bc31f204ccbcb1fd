"""Microbatches of different lengths: their durations from a CSV, and a share that grows with the square of a length."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.jobs import write_job

from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.frontend.lengths import fitted_share
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job

JOB = """
[pipeline]
ranks = 2
microbatches = 3
[lengths]
path = "lengths.csv"
profile_length = 100
{keys}
[profile]
forward = "1 us"
backward_input = ["2 us", "3 us"]
backward_weight = "1 us"
backward = "2 us"
{rest}
"""
PLAIN = JOB.format(keys="", rest="")


def load(directory: Path, lengths: str, text: str) -> Job:
    (directory / "lengths.csv").write_text(lengths, encoding="utf-8")
    return load_job(write_job(directory, text))


def read(directory: Path, lengths: str, keys: str = "", rest: str = "", times: str = "") -> Job:
    (directory / "times.csv").write_text(times, encoding="utf-8")
    job = load(directory, lengths, JOB.format(keys=keys, rest=rest))
    assert verify_problem(job.problem) == ()
    return job


def test_durations_follow_the_lengths(tmp_path: Path) -> None:
    job = read(tmp_path, "length\n100\n50\n200\n")
    first, second = job.problem.stages
    assert first.forward_ns == second.forward_ns == (1000, 500, 2000)
    assert (first.backward_input_ns, second.backward_input_ns) == ((2000, 1000, 4000), (3000, 1500, 6000))
    assert first.backward_ns == (2000, 1000, 4000)
    assert set(job.files) == {tmp_path / "job.toml", tmp_path / "lengths.csv"}


@pytest.mark.parametrize(
    ("order", "lengths", "in_order"), [("given", "9,5,9", True), ("auto", "9,5,9", False), ("given", "9,9,9", False)]
)
def test_the_order_in_which_they_enter(tmp_path: Path, order: str, lengths: str, in_order: bool) -> None:
    """It is given unless it is to be chosen; where all are alike it says nothing."""
    text = PLAIN.replace("microbatches = 3", f'microbatches = 3\nmicrobatch_order = "{order}"')
    job = load(tmp_path, "length\n" + lengths.replace(",", "\n"), text)
    assert job.problem.in_order == in_order
    assert job.workload.in_order == (order == "given")


@pytest.mark.parametrize("share", ["quadratic = 0.4", 'fit = "times.csv"'])
def test_a_share_is_quadratic(tmp_path: Path, share: str) -> None:
    """The fit is of 6·n + 0.04·n², of which 0.04·100² is 40 % at 100."""
    times = "length,duration\n50, 400 ns\n100,1 us\n200,2.8 us\n"
    job = read(tmp_path, "length\n100\n50\n200\n", share, times=times)
    assert job.problem.stages[0].forward_ns == (1000, 600 // 2 + 400 // 4, 600 * 2 + 400 * 4)


def test_a_sum_of_halves_remains_their_sum(tmp_path: Path) -> None:
    """2000 and 1500 ns at 333 of 1000 tokens are 666 and 500 ns. What a job gives for BW is taken as any other duration."""
    text = PLAIN.replace("profile_length = 100", "profile_length = 1000").replace('"1 us"', '"1500 ns"')
    for job_text, expected in (
        (text, (2000, 666, 1334)),
        (text.replace('backward = "2 us"\n', ""), (3500, 666 + 500, 1334 + 1000)),
    ):
        stage = load(tmp_path, "length\n1000\n333\n667\n", job_text).problem.stages[0]
        assert stage.backward_ns == expected
    assert stage.backward_weight_ns == (1500, 500, 1000)


def test_several_sequences_in_a_microbatch(tmp_path: Path) -> None:
    """Their lengths add up, and so do the squares; the rows may be in any order."""
    job = read(tmp_path, "microbatch,length\n2,100\n0,50\n1,10\n0,50\n1,20\n1,70\n", "quadratic = 1.0")
    assert job.problem.stages[0].forward_ns == (2 * 250, 10 + 40 + 490, 1000)
    job = read(tmp_path, "microbatch,length\n2,100\n0,50\n1,10\n0,50\n1,20\n1,70\n")
    assert job.problem.stages[0].forward_ns == (1000,)  # one for all, as they take the same time


@given(
    linear=st.integers(0, 1000),
    quadratic=st.integers(0, 1000),
    lengths=st.lists(st.integers(1, 10**5), min_size=2, max_size=5, unique=True),
    length=st.integers(1, 10**5),
)
def test_a_fit_finds_what_the_times_were_made_of(linear: int, quadratic: int, lengths: list[int], length: int) -> None:
    times = [(n, linear * n + quadratic * n * n) for n in lengths]
    if linear or quadratic:
        assert fitted_share(times, length) == Fraction(quadratic * length, linear + quadratic * length)


def test_a_fit_is_neither_below_nothing_nor_above_all() -> None:
    assert fitted_share([(1, 10), (2, 15), (4, 20)], 4) == 0  # grows less than linearly
    assert fitted_share([(1, 1), (2, 10), (4, 90)], 4) == 1  # more than quadratically


@pytest.mark.parametrize(
    ("lengths", "keys", "rest", "says"),
    [
        ("length\n100\n", "", "", "lengths.csv: found 1 lengths, expected 3, one for each microbatch"),
        ("tokens\n100\n", "", "", 'lengths.csv: found the header "tokens", expected length or microbatch,length'),
        ("", "", "", 'lengths.csv: found the header "", expected length or'),
        ("length\n1\nx\n3\n", "", "", 'lengths.csv: line 3: found "x", expected a whole number from 1 to'),
        ("length\n1\n0\n3\n", "", "", 'lengths.csv: line 3: found "0", expected a whole number from 1'),
        ("length\n1\n2,3\n3\n", "", "", "lengths.csv: line 3: found 2 cells, expected 1, as in the header length"),
        ("microbatch,length\n3,5\n", "", "", 'lengths.csv: line 2: found "3", expected a whole number from 0 to 2'),
        ("microbatch,length\n0,5\n2,5\n", "", "", "lengths.csv: found no sequence of microbatch 1, expected one or more"),
        ("length\n1\n2\n3\n", "quadratic = 1.5", "", "job.toml: lengths.quadratic: found 1.5, expected a number from 0 to 1"),
        ("length\n1\n2\n3\n", 'quadratic = 0.5\nfit = "times.csv"', "", "lengths.fit: found a value beside lengths.quadratic"),
        ("length\n1\n2\n3\n", 'fit = "times.csv"', "", "times.csv: found 2 rows of less than two lengths, expected measured"),
        ("length\n1\n2\n3\n", 'fit = "none.csv"', "", 'lengths.fit: found "none.csv"; '),
        (
            "length\n1\n2\n101\n",
            "",
            'activation = "1 B"\n[memory]\nlimit = "9 B"',
            "lengths.profile_length: found 100 where microbatch 2 has 101 tokens and memory is limited, expected a profile of at",
        ),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, lengths: str, keys: str, rest: str, says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read(tmp_path, lengths, keys, rest, "length,duration\n5,1 ms\n5,2 ms\n")
    assert says in str(caught.value) and str(caught.value).isprintable()


def test_durations_for_each_microbatch_are_said_once(tmp_path: Path) -> None:
    text = PLAIN.replace('forward = "1 us"', 'forward = [["1 us", "2 us", "1 us"], "1 us"]')
    with pytest.raises(InvalidInput, match="lengths: found a section beside durations for each microbatch"):
        load(tmp_path, "length\n1\n2\n3\n", text)
