"""A distribution of link delays as text, `normal(30 ms, 10 ms)`, and delays drawn from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.location import show
from schedc.units import parse_duration_ns

if TYPE_CHECKING:
    from random import Random

EXPECTED = '"normal(MEAN, DEVIATION)" or "uniform(LEAST, MOST)" of durations, as in "normal(30 ms, 10 ms)"'
_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")


@dataclass(frozen=True, slots=True)
class Distribution:
    """Delays of a link, at least 0: what a normal distribution has below 0 is 0."""

    name: str
    """`normal` or `uniform`."""
    first_ns: int
    """The mean, or the least."""
    second_ns: int
    """The standard deviation, or the most."""

    def quantile_ns(self, share: float) -> int:
        """The delay that this share of all delays does not exceed; `share` is above 0 and below 1."""
        if self.name == "uniform":
            return round(self.first_ns + share * (self.second_ns - self.first_ns))
        if not self.second_ns:
            return self.first_ns
        return max(0, round(NormalDist(self.first_ns, self.second_ns).inv_cdf(share)))

    def draw_ns(self, count: int, random: Random) -> list[int]:
        """This many delays, one from each of as many equally likely ranges, in random order (Latin hypercube sampling).

        So even few delays have the distribution's mean and spread.
        """
        shares = [(place + random.uniform(0.001, 0.999)) / count for place in range(count)]
        random.shuffle(shares)
        return [self.quantile_ns(share) for share in shares]


def parse_distribution(text: str) -> Distribution:
    """The distribution that the text says.

    Raises:
        InvalidInput: it says none; the message is `found …, expected …`.
    """
    call = _CALL.fullmatch(text)
    values = call[2].split(",") if call else []
    if call is None or call[1] not in ("normal", "uniform") or len(values) != 2:
        raise InvalidInput(f"found {show(text)}, expected {EXPECTED}")
    numbers_ns = []
    for value in values:
        try:
            numbers_ns.append(parse_duration_ns(value))
        except ValueError as error:
            raise InvalidInput(f"found {show(value.strip())} in {show(text)}, {error}") from error
    if call[1] == "uniform" and numbers_ns[0] > numbers_ns[1]:
        raise InvalidInput(f"found {show(text)}, expected the least before the most")
    return Distribution(call[1], *numbers_ns)
