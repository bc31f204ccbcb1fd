"""Link traces: what the rows say, at each time; what is refused, in one line that names the row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.problems import MS, make_problem

from schedc.errors import InvalidInput
from schedc.formats.links import parse_link_trace, read_link_trace
from schedc.ir.conditions import AS_PLANNED, Conditions, LinkState, LinkTrace

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "time_ms,ranks,latency_ms,bandwidth_GBps\n"
PROBLEM = make_problem(3, 2, links={(0, 1): (MS, MS), (1, 0): (MS, MS), (1, 2): (MS, MS), (2, 1): (MS, MS)})


def test_rows_replace_what_the_pair_had() -> None:
    text = HEADER + "0.5,0-1,30,\n\n2,1>0, 60 ,12.5\n2,2>1,,1e-9\n4,0-1,,\n"
    trace = parse_link_trace(text, PROBLEM)
    slow = LinkState(latency_ns=30 * MS)
    assert trace.at(-1) == trace.at(MS // 2 - 1) == AS_PLANNED
    assert trace.at(MS // 2) == trace.at(2 * MS - 1) == Conditions(links={(0, 1): slow, (1, 0): slow})
    both = {(0, 1): slow, (1, 0): LinkState(latency_ns=60 * MS, bytes_per_second=12_500_000_000)}
    assert trace.at(2 * MS) == Conditions(links={**both, (2, 1): LinkState(bytes_per_second=1)})
    assert trace.at(10**15) == Conditions(links={(2, 1): LinkState(bytes_per_second=1)})
    assert parse_link_trace(HEADER, PROBLEM) == LinkTrace(())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("0,0-1,30", "line 2: found 3 values, expected 4, an empty one for what stays as planned"),
        (",0-1,30,", "line 2: time_ms: found nothing, expected a time"),
        ("-1,0-1,30,", 'line 2: time_ms: found "-1", expected a number of at least 0 (up to 9.01e+09)'),
        ("nan,0-1,30,", 'line 2: time_ms: found "nan", expected a number of at least 0 (up to 9.01e+09)'),
        ("0,0-1,inf,", 'line 2: latency_ms: found "inf", expected a number of at least 0 (up to 9.01e+09)'),
        ("0,0-1,1e300,", 'line 2: latency_ms: found "1e300", expected a number of at least 0 (up to 9.01e+09)'),
        ("0,0-1,30 ms,", 'line 2: latency_ms: found "30 ms", expected a number of at least 0 (up to 9.01e+09)'),
        ("0,0-1,,0", 'line 2: bandwidth_GBps: found "0", expected a number above 0 (up to 9.01e+06)'),
        ("0,0,30,", 'line 2: ranks: found "0", expected two ranks: 3-4 for the links both ways, 3>4 for one'),
        ("0,0-3,30,", 'line 2: ranks: found "0-3", expected ranks of the plan, 0 to 2'),
        ("0,0>2,30,", 'line 2: ranks: found "0>2", expected links of the plan: 0>1, 1>0, 1>2, 2>1'),
        ("0,0-0,30,", 'line 2: ranks: found "0-0", expected links of the plan: 0>1, 1>0, 1>2, 2>1'),
        ("5,0-1,30,\n4,0-1,20,", "line 3: time_ms: found 4, expected at least the 5 of the row before"),
        ('0,"0-1,30,', "line 2: found text that is not CSV (unexpected end of data), expected CSV"),
    ],
)
def test_refused_rows(row: str, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_link_trace(f"{HEADER}{row}\n", PROBLEM, file="slow.csv")
    assert str(refused.value) == f"slow.csv: {said}"


def test_refused_files(tmp_path: Path) -> None:
    path = tmp_path / "slow.csv"
    for content, said in ((b"time,ranks\n", "line 1: found "), (b"", 'line 1: found ""'), (b"\xff", "found a byte that is not")):
        path.write_bytes(content)
        with pytest.raises(InvalidInput) as refused:
            read_link_trace(path, PROBLEM)
        assert str(refused.value).startswith(f"{path}: {said}")
    path.write_bytes(b"\xef\xbb\xbf" + HEADER.replace("\n", "\r\n").encode() + b"7,0>1,30,\r\n")
    assert read_link_trace(path, PROBLEM).entries == ((7 * MS, Conditions(links={(0, 1): LinkState(latency_ns=30 * MS)})),)


def test_times_rise() -> None:
    for times_ns in ((3, 3), (4, 3), (-1, 0)):
        with pytest.raises(ValueError, match="rise"):
            LinkTrace(tuple((time_ns, AS_PLANNED) for time_ns in times_ns))


LINKS = st.sampled_from([(0, 1), (1, 0), (1, 2)])
STATES = st.builds(LinkState, latency_ns=st.none() | st.integers(0, 9), bytes_per_second=st.none() | st.integers(1, 9))


@given(
    changes=st.lists(st.tuples(st.integers(0, 20), LINKS, STATES), max_size=12).map(lambda rows: sorted(rows, key=lambda r: r[0]))
)
def test_at_each_time_the_last_change_counts(changes: list[tuple[int, tuple[int, int], LinkState]]) -> None:
    trace = LinkTrace.of(changes)
    for time_ns in range(-1, 22):
        expected: dict[tuple[int, int], LinkState] = {}
        for since_ns, link, state in changes:
            if since_ns <= time_ns:
                expected[link] = state
        assert trace.since(time_ns).at(0) == trace.at(time_ns)
        assert trace.since(time_ns).at(7) == trace.at(time_ns + 7)
        assert trace.at(time_ns).links == {link: state for link, state in expected.items() if state != LinkState()}
