"""[lengths] read: microbatches whose sequences differ in length, and so in what their blocks take.

A block's duration grows with the tokens of its microbatch, and a share of it (attention) with the square of each sequence's length.
The share is given, or fitted to measured times. The profile's durations are those of one sequence of a known length.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

from schedc.frontend.job_source import named_bytes
from schedc.io.input_file import without_mark
from schedc.io.location import Location, show
from schedc.ir import BLOCKS, Layer
from schedc.lower.slices import alike_or_each
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from schedc.frontend.job_file import JobFile
    from schedc.frontend.job_source import JobSource

_LONGEST = 2**30
"""The longest sequence, in tokens."""


def layers_of_lengths(job: JobFile, source: JobSource, layers: Sequence[Layer]) -> tuple[Layer, ...]:
    """The layers with a duration for each microbatch.

    A block of d ns takes d × ((1 − q) × tokens ÷ L + q × the sum of squared lengths ÷ L²), to the nearest nanosecond, ties to even;
    L is the profile's length, and q the share that is quadratic there.

    Args:
        job: without the section, the layers stay as they are; where it limits memory, no microbatch may have more tokens than the
            profile, whose sizes count for all.
        source: its place.
        layers: with one duration for all microbatches.

    Raises:
        InvalidInput: a file that cannot be used, other microbatches than the job's, or durations for each of them in the profile.
    """
    section, microbatches, location = job.lengths, job.pipeline.microbatches, source.place / "lengths"
    if section is None:
        return tuple(layers)
    if any(len(layer.durations_ns(kind)) > 1 for layer in layers for kind in BLOCKS):
        raise location.refuse("a section beside durations for each microbatch in [profile]", "one of the two")
    share = Fraction(repr(section.quadratic or 0.0))
    if section.fit is not None:
        share = _fitted(source, section.fit, section.profile_length)
    sequences = _sequences(source, section.path, microbatches)
    length = section.profile_length
    longest = max(range(microbatches), key=lambda microbatch: sum(sequences[microbatch]))
    if job.memory is not None and sum(sequences[longest]) > length:
        raise (location / "profile_length").refuse(
            f"{length} where microbatch {longest} has {sum(sequences[longest])} tokens and memory is limited",
            "a profile of at least as many, as its sizes count for all microbatches",
        )
    scales = [
        (1 - share) * Fraction(sum(own), length) + share * Fraction(sum(each * each for each in own), length * length)
        for own in sequences
    ]
    return tuple(_scaled(layer, scales) for layer in layers)


def fitted_share(times: Sequence[tuple[int, int]], length: int) -> Fraction:
    """The share q of a duration at `length` that is quadratic in the length, by least squares of a·n + b·n² with a, b ≥ 0.

    Args:
        times: lengths, of which at least two differ, and the nanoseconds measured.
        length: the profile's.
    """
    squares, cubes, fourths = (sum(n**power for n, _ in times) for power in (2, 3, 4))
    by_length, by_square = sum(n * time_ns for n, time_ns in times), sum(n * n * time_ns for n, time_ns in times)
    # The normal equations; their determinant is above 0 for two different lengths, so the signs are those of a and b.
    linear, quadratic = by_length * fourths - by_square * cubes, squares * by_square - cubes * by_length
    if quadratic <= 0:
        return Fraction(0)
    return Fraction(1) if linear <= 0 else Fraction(quadratic * length, linear + quadratic * length)


def _scaled(layer: Layer, scales: Sequence[Fraction]) -> Layer:
    def each_ns(values: tuple[int, ...]) -> tuple[int, ...]:
        return alike_or_each(tuple(round(values[0] * scale) for scale in scales))

    again = layer.forward_again_ns
    halves_ns = tuple(round(layer.backward_input_ns[0] * scale) + round(layer.backward_weight_ns[0] * scale) for scale in scales)
    # Else rounding would make some BW a nanosecond shorter than B and W, and methods would look for what fusing gains.
    is_sum = layer.backward_ns[0] == layer.backward_input_ns[0] + layer.backward_weight_ns[0]
    return replace(
        layer,
        forward_ns=each_ns(layer.forward_ns),
        backward_input_ns=each_ns(layer.backward_input_ns),
        backward_weight_ns=each_ns(layer.backward_weight_ns),
        backward_ns=alike_or_each(halves_ns) if is_sum else each_ns(layer.backward_ns),
        forward_again_ns=None if again is None else each_ns(again),
    )


def _fitted(source: JobSource, name: str, length: int) -> Fraction:
    times = []
    file, rows = _rows(source, "fit", name, [("length", "duration")])
    for place, row in rows:
        try:
            times.append((_whole(row["length"], 1, _LONGEST, place), parse_duration_ns(row["duration"])))
        except ValueError as error:
            raise place.error(f"found {show(row['duration'])}, {error}") from None
    if len({n for n, _ in times}) < 2:
        raise file.refuse(f"{len(times)} rows of less than two lengths", "measured durations of two lengths or more")
    return fitted_share(times, length)


def _sequences(source: JobSource, name: str, microbatches: int) -> list[list[int]]:
    """Per microbatch, the lengths of its sequences."""
    found: list[list[int]] = [[] for _ in range(microbatches)]
    file, rows = _rows(source, "path", name, [("length",), ("microbatch", "length")])
    if rows and "microbatch" not in rows[0][1] and len(rows) != microbatches:
        raise file.refuse(f"{len(rows)} lengths", f"{microbatches}, one for each microbatch")
    for number, (place, row) in enumerate(rows):
        microbatch = _whole(row["microbatch"], 0, microbatches - 1, place) if "microbatch" in row else number
        found[microbatch].append(_whole(row["length"], 1, _LONGEST, place))
    for microbatch, own in enumerate(found):
        if not own:
            raise file.refuse(f"no sequence of microbatch {microbatch}", "one or more for each microbatch")
    return found


def _rows(
    source: JobSource, key: str, name: str, headers: Sequence[tuple[str, ...]]
) -> tuple[Location, list[tuple[Location, dict[str, str]]]]:
    """The place of a CSV that a key names so, whose header is one of these, and its rows with their places."""
    path, content = named_bytes(source, "lengths", key, name)
    file = Location(path)
    try:
        text = without_mark(content).decode()
    except UnicodeDecodeError as error:
        raise file.refuse("a byte that is not UTF-8", "UTF-8") from error
    try:
        header, *others = [tuple(map(str.strip, cells)) for cells in csv.reader(text.splitlines() or [""])] or [()]
    except csv.Error as error:
        raise file.refuse(f"text that is not CSV ({error})", "CSV") from error
    expected = " or ".join(",".join(each) for each in headers)
    if header not in headers:
        raise file.refuse(f"the header {show(','.join(header))}", expected)
    rows = []
    for number, cells in enumerate(others, start=2):
        place = Location(f"{path}: line {number}")
        if cells and len(cells) != len(header):
            raise place.refuse(f"{len(cells)} cells", f"{len(header)}, as in the header {','.join(header)}")
        if cells:
            rows.append((place, dict(zip(header, cells, strict=True))))
    return file, rows


def _whole(text: str, least: int, most: int, place: Location) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 20 or not least <= int(text) <= most:
        raise place.refuse(show(text), f"a whole number from {least} to {most}")
    return int(text)
