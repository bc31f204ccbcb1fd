"""Quantities as people write them, and back: durations in nanoseconds, sizes in bytes, bandwidths in bytes per second.

Takes text with a unit (`"38 ms"`, `"1.5 GiB"`, `"400 Gb/s"`) and gives integers; the two `format_*` functions give text for people.
The arithmetic is exact on integers; a value that falls between two whole units goes to the nearest, a tie to the even one. A bare
number is refused. No quantity exceeds `MAX_QUANTITY`, so that every reader of a JSON file holds it exactly.
"""

from __future__ import annotations

import re

MAX_QUANTITY = 2**53 - 1
"""The largest quantity: 104 days in nanoseconds, 8 PiB in bytes, and the last integer up to which a double holds all."""

_DURATIONS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "min": 60 * 10**9}
_SIZES = {
    "B": 1,
    **{f"{prefix}B": 1000**power for power, prefix in enumerate("KMGT", start=1)},
    **{f"{prefix}iB": 1024**power for power, prefix in enumerate("KMGT", start=1)},
}
_EIGHTHS_PER_SECOND = {
    **{f"{unit}/s": 8 * factor for unit, factor in _SIZES.items()},
    **{f"{prefix}b/s": 1000**power for power, prefix in enumerate(("", *"KMGT"))},
}
_QUANTITY = re.compile(r"([+-]?)([0-9]{1,30})(?:\.([0-9]{1,30}))?\s*([A-Za-z\u00b5\u03bc][A-Za-z/]{0,7})")
"""A micro sign or a Greek mu is read as part of a unit, so that the unit that was meant can be named."""
_MU = str.maketrans("\u00b5\u03bc", "uu")


def _pattern(units: dict[str, int]) -> str:
    return rf"^\s*[0-9]{{1,30}}(\.[0-9]{{1,30}})?\s*({'|'.join(units)})\s*$"


DURATION_PATTERN = _pattern(_DURATIONS)
"""A regular expression of the durations, for schemas."""
SIZE_PATTERN = _pattern(_SIZES)
"""A regular expression of the sizes, for schemas."""
BANDWIDTH_PATTERN = _pattern(_EIGHTHS_PER_SECOND)
"""A regular expression of the bandwidths, for schemas."""


def parse_duration_ns(text: str) -> int:
    """The duration in nanoseconds: `"38 ms"` is 38,000,000. Units: ns, us, ms, s, min.

    Raises:
        ValueError: `text` is not a duration; the message says what is expected, beginning with that word.
    """
    return _parse(text, _DURATIONS, 1, 'a duration such as "38 ms" (ns, us, ms, s or min)')


def parse_bytes(text: str) -> int:
    """The size in bytes: `"1 GiB"` is 1,073,741,824 and `"1 GB"` is 1,000,000,000.

    Raises:
        ValueError: `text` is not a size; the message says what is expected, beginning with that word.
    """
    return _parse(text, _SIZES, 1, 'a size such as "512 MiB" (B, KB, MB, GB, TB, KiB, MiB, GiB or TiB)')


def parse_bandwidth(text: str) -> int:
    """The bandwidth in bytes per second: `"50 GB/s"`, or in bits as `"400 Gb/s"`, which is the same.

    Raises:
        ValueError: `text` is not a bandwidth above 0; the message says what is expected, beginning with that word.
    """
    expected = 'a bandwidth such as "50 GB/s", or "400 Gb/s" in bits'
    bytes_per_second = _parse(text, _EIGHTHS_PER_SECOND, 8, expected)
    if bytes_per_second == 0:
        raise ValueError("expected a bandwidth of at least 1 B/s")
    return bytes_per_second


def format_duration_ns(duration_ns: int, decimals: int = 3) -> str:
    """The duration for people, in the largest of ns, us, ms and s that is not above it: `2.415 s`, `76 ms`.

    At most `decimals` digits follow the point; with 9 the text is exact, and `parse_duration_ns` gives the same number back.
    """
    return _format(duration_ns, (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1)), decimals)


def format_bytes(size_bytes: int, decimals: int = 3) -> str:
    """The size for people, in the largest of B, KiB, MiB, GiB and TiB that is not above it: `8 GiB`, `1.863 GiB`.

    At most `decimals` digits follow the point; with 40 the text is exact.
    """
    steps = tuple((f"{prefix}iB", 1024**power) for power, prefix in reversed(tuple(enumerate("KMGT", start=1))))
    return _format(size_bytes, (*steps, ("B", 1)), decimals)


def _parse(text: str, units: dict[str, int], divisor: int, expected: str) -> int:
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {expected}")
    sign, whole, fraction, unit = match.group(1), match.group(2), match.group(3) or "", match.group(4)
    if unit not in units:
        near = [known for known in units if known.lower() == unit.translate(_MU).lower()]
        raise ValueError(f"expected {expected}" + (f"; did you mean {' or '.join(near)}?" if near else ""))
    digits = int(whole + fraction)
    if sign == "-" and digits:
        raise ValueError("expected at least 0")
    value = _nearest(digits * units[unit], divisor * 10 ** len(fraction))
    if value > MAX_QUANTITY:
        raise ValueError(f"expected at most {MAX_QUANTITY * divisor // units[unit]} {unit}")
    return value


def _nearest(numerator: int, denominator: int) -> int:
    """The nearest integer to a fraction, ties to even."""
    whole, rest = divmod(numerator, denominator)
    return whole + (2 * rest > denominator or (2 * rest == denominator and whole % 2))


def _format(value: int, units: tuple[tuple[str, int], ...], decimals: int) -> str:
    if value < 0:
        return "-" + _format(-value, units, decimals)
    scale = 10**decimals
    index = next((index for index, (_, factor) in enumerate(units) if value >= factor), len(units) - 1)
    scaled = _nearest(value * scale, units[index][1])
    if index and scaled * units[index][1] >= scale * units[index - 1][1]:
        index, scaled = index - 1, scale  # 999.9996 ms rounds to 1 s
    whole, fraction = divmod(scaled, scale)
    point = f".{fraction:0{decimals}d}".rstrip("0") if fraction else ""
    return f"{whole}{point} {units[index][0]}"
