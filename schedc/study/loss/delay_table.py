"""What delays cost by measurement: a table of the user's, of how many times the tokens a run with delays needs for the same loss.

Takes a TOML or JSON file; gives a `DelayTable`, which is asked for an optimizer and the delay of each stage:

```toml
source = "where the numbers are from"

[[measured]]
optimizer = "muon"
delays = [5, 4, 3, 2, 1, 0]      # in updates, of each stage; one number: of all stages
tokens = 1.33                    # times those that a run without delay needs; loss_above is for people
```

Between two measured delays of one optimizer the table interpolates, outside them it has no answer. Delays lie between each other
only where they have the same form: one for all stages, or p − 1..0 for p stages, as 1F1B with stashed weights has; other delays
must be in the table as they are. No delay costs nothing, by definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from schedc.io.conform import Section, conform
from schedc.io.input_file import read_bytes
from schedc.io.location import PRINTABLE, Location, show
from schedc.io.tables import parse_json, parse_toml
from schedc.spelling import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PUBLISHED = "published_delays.toml"
"""The table that is shipped, beside this file."""
OPTIMIZER = Location("optimizer")
Text: TypeAlias = Annotated[str, Meta(pattern=PRINTABLE)]
Delay: TypeAlias = Annotated[int, Meta(ge=0, le=2**20)]


class MeasuredDelay(Section, frozen=True, kw_only=True):
    """One measurement."""

    optimizer: Annotated[Text, Meta(description="Its name, with the correction if there is one.")]
    delays: Annotated[
        Delay | Annotated[tuple[Delay, ...], Meta(min_length=1)],
        Meta(description="In updates: of each stage, or one number for all."),
    ]
    tokens: Annotated[
        Annotated[float, Meta(gt=0, le=1e9)] | None,
        Meta(description="Times those that a run without delay needs for the same loss."),
    ] = None
    loss_above: Annotated[float | None, Meta(description="Above that of a run without delay, after the same tokens.")] = None
    note: Annotated[Text, Meta(description="For people.")] = ""


class DelayTableFile(Section, frozen=True, kw_only=True):
    """Measured costs of delays."""

    source: Annotated[Text, Meta(description="Where the numbers are from.")] = ""
    measured: Annotated[tuple[MeasuredDelay, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFactor:
    """What delays cost by the table."""

    factor: float | None
    """Of tokens; None: the table does not say."""
    basis: str
    """`no delay`, `measured`, or `interpolated` and between what; else why there is no factor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayTable:
    """Measurements, and whose they are."""

    source: str
    measured: tuple[MeasuredDelay, ...]

    def check(self, optimizer: str, place: Location = OPTIMIZER) -> None:
        """Refuse an optimizer that the table does not have.

        Raises:
            InvalidInput: names the place.
        """
        known = dict.fromkeys(each.optimizer for each in self.measured)
        if optimizer not in known:
            raise place.refuse(show(optimizer), f"one of {', '.join(known)}{nearest(optimizer, known)}")

    def least_delays(self, optimizer: str, stages: int) -> tuple[tuple[int, ...], ...]:
        """Delays of this many stages, not all 0, among which are those of the least factor that there is for any.

        Between two measured delays the factor changes evenly, so it is least at one of them, or at a delay of 1.
        """
        own = [each for each in self.measured if each.optimizer == optimizer and each.tokens is not None]
        most = (max(each.delays) if isinstance(each.delays, tuple) else each.delays for each in own)
        same = [(delay,) * stages for delay in sorted({1, *most} - {0})]
        listed = [each.delays for each in own if isinstance(each.delays, tuple) and len(each.delays) == stages and any(each.delays)]
        return tuple(dict.fromkeys((*same, *listed, tuple(range(stages - 1, -1, -1)))))

    def factor(self, optimizer: str, delays: Sequence[int]) -> TokenFactor:
        """How many times the tokens a run with this delay of each stage needs.

        Raises:
            InvalidInput: the table does not have the optimizer.
        """
        self.check(optimizer)
        if not any(delays):
            return TokenFactor(factor=1.0, basis="no delay")
        asked, most = tuple(delays), max(delays)
        form = _form(asked)
        points = {0: 1.0}
        noted = ""
        # A list says more of its stages than one number for any does, and one number more of other stages than a list.
        for each in sorted(self.measured, key=lambda each: not isinstance(each.delays, tuple)):
            own = each.delays if isinstance(each.delays, tuple) else (each.delays,) * len(asked)
            if each.optimizer != optimizer:
                continue
            if own == asked and each.tokens is not None:
                return TokenFactor(factor=each.tokens, basis="measured")
            if own == asked and each.loss_above is not None:
                noted = f"; it says only that the loss is {each.loss_above:g} above"
            if form and _form(own) == form and each.tokens is not None:
                points[max(own)] = each.tokens
        if len(points) == 1:
            called = {"all": f"{most} everywhere", "stages": f"{most}..0"}.get(form, show(list(asked)))
            basis = f"the table has no number of tokens for {optimizer} with delays of {called}{noted}"
            return TokenFactor(factor=None, basis=basis)
        if most in points:
            return TokenFactor(factor=points[most], basis="measured")
        if most > max(points):
            return TokenFactor(factor=None, basis=f"the table ends at a largest delay of {max(points)}, and this has {most}{noted}")
        below, above = max(at for at in points if at < most), min(at for at in points if at > most)
        part = (most - below) / (above - below)
        between = points[below] + part * (points[above] - points[below])
        return TokenFactor(factor=between, basis=f"interpolated between largest delays of {below} and {above}")


def _form(delays: tuple[int, ...]) -> str:
    """`all` stages the same, `stages` p − 1..0; else nothing."""
    if len(set(delays)) == 1:
        return "all"
    return "stages" if delays == tuple(range(len(delays) - 1, -1, -1)) else ""


def read_delay_table(path: Path | str | None = None) -> DelayTable:
    """The table in a TOML file, or in a JSON file by its name; None: the published one that is shipped.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    file = PUBLISHED if path is None else str(path)
    content = resources.files(__package__).joinpath(PUBLISHED).read_bytes() if path is None else read_bytes(path)
    location = Location(file)
    read = conform((parse_json if file.endswith(".json") else parse_toml)(content, file), DelayTableFile, location)
    seen = set()
    for index, each in enumerate(read.measured):
        place = location / "measured" / index
        if each.tokens is None and each.loss_above is None:
            raise place.refuse("neither tokens nor loss_above", "one of them, or both")
        if (each.optimizer, each.delays) in seen:
            raise place.refuse(f"{each.optimizer} with the same delays twice", "each once")
        if each.tokens not in (None, 1) and not any(each.delays if isinstance(each.delays, tuple) else (each.delays,)):
            raise (place / "tokens").refuse(show(each.tokens), "1, or no such row: others are compared with runs without delay")
        seen.add((each.optimizer, each.delays))
    return DelayTable(source=read.source, measured=read.measured)
