from __future__ import annotations

import json
from itertools import pairwise

from hypothesis import given, strategies as st

from schedc.io.tables import WIDTH, JsonValue, pretty_json

atoms = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text())
values: st.SearchStrategy[JsonValue] = st.recursive(
    atoms, lambda inner: st.one_of(st.lists(inner), st.dictionaries(st.text(), inner)), max_leaves=20
)


@given(values)
def test_it_is_the_same_value(value: JsonValue) -> None:
    text = pretty_json(value)
    assert json.loads(text) == value
    assert text.endswith("\n")


def test_short_objects_stand_on_one_line_and_long_number_lists_are_filled() -> None:
    text = pretty_json({"a": {"b": [1, 2], "c": ()}, "n": tuple(range(100)), "s": ["x" * 70, "y" * 70], "empty": {}})
    lines = text.splitlines()
    assert lines[1] == '  "a": {"b": [1, 2], "c": []},'
    assert lines[2] == '  "n": ['
    assert lines[3].startswith("    0, 1, 2, 3, ")
    assert lines[3].endswith(",")
    assert lines[-6:] == ['  "s": [', f'    "{"x" * 70}",', f'    "{"y" * 70}"', "  ],", '  "empty": {}', "}"]
    assert max(map(len, lines)) <= WIDTH


@given(st.lists(st.integers(0, 10**12), min_size=20, max_size=60))
def test_lines_of_numbers_are_as_full_as_they_can_be(numbers: list[int]) -> None:
    """On none of them there was room for the next number with its comma."""
    _, *rows, _ = pretty_json(list(numbers)).splitlines()
    assert [number for row in rows for number in json.loads(f"[{row.strip().removesuffix(',')}]")] == numbers
    for row, following in pairwise(rows):
        assert len(f"{row} {following.split(',')[0].strip()},") > WIDTH


@given(st.lists(st.integers(0, 10**12)), st.integers(0, 4))
def test_number_lists_keep_within_the_width(numbers: list[int], depth: int) -> None:
    value: JsonValue = list(numbers)
    for _ in range(depth):
        value = {"key": value, "other": [{}]}
    assert all(len(line) <= WIDTH for line in pretty_json(value).splitlines())
