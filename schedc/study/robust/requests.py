"""What `--robust` and `--links` name: a link trace, a distribution of link delays as text, or conditions written out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.formats.links import read_link_trace
from schedc.io.location import one_line, show
from schedc.ir import Conditions, LinkState, Problem
from schedc.study.robust.scenarios import Scenarios, states_of_trace
from schedc.units import format_duration_ns, parse_duration_ns

if TYPE_CHECKING:
    from collections.abc import Mapping


EXPECTED = '"normal(MEAN, DEVIATION)" or "uniform(LEAST, MOST)" of durations, as in "normal(30 ms, 10 ms)"'
_CALL = re.compile(r"\s*(\w+)\s*\(([^()]*)\)\s*")
_TERM = re.compile(r"\s*(?:([0-9]{1,9})-([0-9]{1,9})\s*=)?\s*(\w+\s*\([^()]*\))\s*", re.ASCII)
_GRID = re.compile(r"\s*(each|all|[0-9]{1,9}[->][0-9]{1,9})\s*=(.*)")


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


def pairs_of(problem: Problem) -> list[tuple[int, int]]:
    """The pairs of ranks that a link joins, the lower rank first, ascending."""
    return sorted({(min(ends), max(ends)) for ends in ((link.source, link.destination) for link in problem.links)})


def drawn_states(problem: Problem, latency: Mapping[tuple[int, int], Distribution], count: int, seed: int) -> Scenarios:
    """This many states: each pair of ranks draws a latency, the same both ways, apart from the other pairs. All weigh the same.

    Latencies are by pair of ranks, the lower one first; the links of other pairs are as planned.
    """
    random = Random(seed)
    drawn = {pair: latency[pair].draw_ns(count, random) for pair in sorted(latency)}
    links = {(link.source, link.destination) for link in problem.links}
    ways = [(way, pair) for pair in drawn for way in (pair, pair[::-1]) if way in links]
    states = (Conditions(links={way: LinkState(latency_ns=drawn[pair][number]) for way, pair in ways}) for number in range(count))
    return Scenarios(tuple(states), (1.0,) * count)


def is_drawn(text: str) -> bool:
    """Whether the text is distributions, and not a file's name: `normal(30 ms, 10 ms); 3-4 = uniform(10 ms, 60 ms)`."""
    return all(_TERM.fullmatch(term) for term in text.split(";"))


def states_named(text: str, problem: Problem, *, samples: int, seed: int, option: str) -> Scenarios:
    """The states that the text names: distributions of the latencies of links, or the path of a link trace.

    A distribution without ranks is that of all pairs which none names; without one, these are as planned. `samples`: this many
    states of a distribution, and at most this many of a trace. `option` is what gave the text, for messages.

    Raises:
        InvalidInput: it is neither, or the file cannot be used, or the problem has no links.
    """
    if not problem.links:
        raise InvalidInput(f"{option}: found {show(text)}, but no link of the job is crossed, so none can be slow")
    if not is_drawn(text):
        if not text.strip() or ("(" in text and not Path(text).exists()):
            whose = 'of all links, or of a pair of ranks both ways, as in "3-4 = normal(30 ms, 10 ms)"'
            raise InvalidInput(f"{option}: found {show(text)}, expected the file of a link trace, or {EXPECTED}, {whose}")
        trace = read_link_trace(Path(text), problem)
        if not trace.entries:
            raise InvalidInput(f"{one_line(text)}: found a link trace without rows, expected links that change")
        return states_of_trace(trace, samples)
    pairs = pairs_of(problem)
    every: dict[tuple[int, int], Distribution] = {}
    named: dict[tuple[int, int], Distribution] = {}
    for match in filter(None, map(_TERM.fullmatch, text.split(";"))):
        try:
            distribution = parse_distribution(match[3])
        except InvalidInput as error:
            raise InvalidInput(f"{option}: {error}") from error
        if match[1] is None:
            if every:
                raise InvalidInput(f"{option}: found {show(match[0].strip())}, expected one distribution without ranks")
            every = dict.fromkeys(pairs, distribution)
            continue
        first, second = int(match[1]), int(match[2])
        pair = min(first, second), max(first, second)
        if pair not in pairs or pair in named:
            known = ", ".join(f"{low}-{high}" for low, high in pairs[:12])
            raise InvalidInput(
                f"{option}: found {show(match[0].strip())}, expected each once, of {known}{', …' * (len(pairs) > 12)}"
            )
        named[pair] = distribution
    return drawn_states(problem, every | named, samples, seed)


def is_grid(text: str) -> bool:
    """Whether the text is conditions written out, and not a file's name."""
    return _GRID.fullmatch(text) is not None and not is_drawn(text)


def grid_of(text: str, problem: Problem, *, option: str) -> list[tuple[str, Conditions]]:
    """Conditions by name, as `3-4=10ms,30ms` writes them: a latency of these links, one condition for each.

    `3-4` is the links both ways, `3>4` one of them, `all` every link at once, and `each` one pair of ranks after the other.

    Raises:
        InvalidInput: it does not say that, or there is no such link.
    """
    match = _GRID.fullmatch(text)
    expected = "RANKS=LATENCY,… with RANKS 3-4, 3>4, each or all, as in 3-4=10ms,30ms"
    if match is None:
        raise InvalidInput(f"{option}: found {show(text)}, expected a link trace, or {expected}")
    who = match[1].strip()
    links = {(link.source, link.destination) for link in problem.links}
    both = [[way for way in (pair, pair[::-1]) if way in links] for pair in pairs_of(problem)]
    if who == "each":
        groups = {f"{ways[0][0]}{'-' if len(ways) == 2 else '>'}{ways[0][1]}": ways for ways in both}
    elif who == "all":
        groups = {"all": [way for ways in both for way in ways]}
    else:
        first, second = map(int, re.split("[->]", who))
        wanted = [(first, second)] if ">" in who else [(first, second), (second, first)]
        groups = {who: [way for way in wanted if way in links]}
    if not groups or not all(groups.values()):
        known = ", ".join(f"{source}>{destination}" for source, destination in sorted(links)[:12])
        more = ", …" * (len(links) > 12)
        raise InvalidInput(f"{option}: found {show(text)}, expected links of the job: {known or 'it has none'}{more}")
    made = []
    for value in match[2].split(","):
        try:
            latency_ns = parse_duration_ns(value)
        except ValueError as error:
            raise InvalidInput(f"{option}: found {show(value.strip())} in {show(text)}, {error}") from error
        said = format_duration_ns(latency_ns, 9).replace(" ", "")
        for name, ways in groups.items():
            made.append((f"{name}={said}", Conditions(links=dict.fromkeys(ways, LinkState(latency_ns=latency_ns)))))
    return made
