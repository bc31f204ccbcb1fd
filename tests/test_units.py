from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from schedc.spelling import counted
from schedc.units import (
    MAX_QUANTITY,
    format_bytes,
    format_duration_ns,
    parse_bandwidth,
    parse_bytes,
    parse_duration_ns,
)

DURATION_NS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
SIZE_BYTES = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


@pytest.mark.parametrize(
    ("text", "duration_ns"),
    [
        ("38 ms", 38_000_000),
        ("46.5 ms", 46_500_000),
        ("38ms", 38_000_000),
        (" 10 us ", 10_000),
        ("1 min", 60_000_000_000),
        ("0 s", 0),
        ("-0 s", 0),
        ("+2 ns", 2),
        ("0.5 ns", 0),
        ("1.5 ns", 2),
        ("2.5 ns", 2),
        ("2.51 ns", 3),
        ("0.000000001 s", 1),
    ],
)
def test_parse_duration(text: str, duration_ns: int) -> None:
    assert parse_duration_ns(text) == duration_ns


@pytest.mark.parametrize(
    ("text", "size"),
    [("1 GiB", 2**30), ("1 GB", 10**9), ("1.5 KiB", 1536), ("0.3 KiB", 307), ("7 B", 7), ("8191 TiB", 8191 * 2**40)],
)
def test_parse_bytes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "bytes_per_second"),
    [
        ("50 GB/s", 50 * 10**9),
        ("400 Gb/s", 50 * 10**9),
        ("1 GiB/s", 2**30),
        ("12 b/s", 2),
        ("8 b/s", 1),
        ("0.9 GB/s", 900_000_000),
    ],
)
def test_parse_bandwidth(text: str, bytes_per_second: int) -> None:
    assert parse_bandwidth(text) == bytes_per_second


@pytest.mark.parametrize(
    "text", ["", "38", "ms", "1e3 ms", "1_000 ms", "nan ms", "inf s", "1 h", ".5 ms", "1 ms 2", "٣ ms", "1,5 ms"]
)
def test_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r'^expected a duration such as "38 ms" \(ns, us, ms, s or min\)$'):
        parse_duration_ns(text)


def test_what_is_wrong_with_a_quantity() -> None:
    with pytest.raises(ValueError, match=r"^expected at least 0$"):
        parse_duration_ns("-5 ms")
    with pytest.raises(ValueError, match=r"did you mean ms\?$"):
        parse_duration_ns("5 MS")
    with pytest.raises(ValueError, match=r"did you mean GB/s or Gb/s\?$"):
        parse_bandwidth("5 gb/s")
    with pytest.raises(ValueError, match=r"expected at least 0|at least 1 B/s"):
        parse_bandwidth("0.1 b/s")
    with pytest.raises(ValueError, match=r"^expected at most 8388607 GiB$"):
        parse_bytes("8388609 GiB")
    with pytest.raises(ValueError, match=r"^expected at most"):
        parse_duration_ns("9" * 30 + " ns")


@pytest.mark.parametrize(
    ("duration_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1500, "1.5 us"),
        (76_000_000, "76 ms"),
        (2_415_000_000, "2.415 s"),
        (2_415_123_456, "2.415 s"),
        (999_999_999, "1 s"),
        (999_999, "999.999 us"),
        (-1500, "-1.5 us"),
        (600 * 10**9, "600 s"),
    ],
)
def test_format_duration(duration_ns: int, text: str) -> None:
    assert format_duration_ns(duration_ns) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1 KiB"), (2**33, "8 GiB"), (2 * 10**9, "1.863 GiB"), (2**50, "1024 TiB")],
)
def test_format_bytes(size: int, text: str) -> None:
    assert format_bytes(size) == text


@given(st.integers(0, MAX_QUANTITY))
def test_exact_text_reads_back(value: int) -> None:
    assert parse_duration_ns(format_duration_ns(value, decimals=9)) == value
    assert parse_bytes(format_bytes(value, decimals=30)) == value


@given(st.integers(0, MAX_QUANTITY // 2))
def test_short_text_is_the_nearest(value: int) -> None:
    shown = parse_duration_ns(format_duration_ns(value))
    assert abs(shown - value) <= value / 2000


@given(st.integers(0, 10**7), st.integers(0, 6), st.sampled_from(sorted(DURATION_NS | SIZE_BYTES)))
def test_parsed_is_the_nearest_integer(digits: int, point: int, unit: str) -> None:
    exact = Fraction(digits, 10**point) * (DURATION_NS | SIZE_BYTES)[unit]
    text = f"{digits // 10**point}.{digits % 10**point:0{point}d} {unit}" if point else f"{digits} {unit}"
    parse = parse_duration_ns if unit in DURATION_NS else parse_bytes
    if round(exact) > MAX_QUANTITY:
        with pytest.raises(ValueError, match=r"at most"):
            parse(text)
    else:
        assert parse(text) == round(exact)


def test_one_thing_is_singular() -> None:
    said = [counted(*each) for each in ((1, "rank"), (0, "rank"), (1, "microbatch"), (2, "microbatch"), (2, "process"))]
    assert said == ["1 rank", "0 ranks", "1 microbatch", "2 microbatches", "2 processes"]
