"""The rule: all parameters of the list scheduler, which searches over rules search over (design "solving", point 5)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What goes first, and what waits. Every tuple has one entry per stage."""

    priority: tuple[tuple[int, int, int], ...]
    """Of F, of B (or BW) and of W; of the ops that count as ready on a rank, the smallest runs; of equals, the first ready."""
    in_flight: tuple[int | None, ...]
    """The most microbatches whose F has started and whose B has not ended; at least 1, None: no cap."""
    warm_up: tuple[int, ...] = ()
    """This many F start before the stage's first B or W (PipeMorph's x_i); 0, or no entries: none need to. Only with one stage per
    rank."""
    weight_lag: tuple[int, ...]
    """This many W are left waiting for later gaps while the stage has B to run and memory has room for the rank's next F (ZB-H1
    leaves as many as the stage's index); 0: W run whenever nothing else can."""
    fused: tuple[tuple[bool, ...], ...] | None = None
    """Per stage and microbatch, whether the backward is one block, BW; None: where the problem does not split backwards, and only
    there."""
    look_ahead_ns: int = 0
    """An op that is known to become ready within this time counts as ready; if it is chosen, the rank waits for it."""
    foresight: bool = False
    """An op is known as soon as what it waits for has started, not only when that has ended; and a rank that waits for an op may
    still take another one that becomes known. Then blocks stay whole, and a trunk that several ranks share serves in the order of
    starts."""
    alternate: bool = False
    """After a B of a rank, its F go before its B, whatever the priorities say."""
    oldest_first: bool = False
    """Of F, or of B, with equal priorities the one of the lowest microbatch runs, not the first ready."""
    n_sub: int = 1
    """Into how many equal parts a W may be cut, to make way for an op that goes first and becomes ready."""

    def __post_init__(self) -> None:
        """Refuse what could never run."""
        if self.n_sub < 1:
            raise ValueError(f"n_sub must be at least 1, got {self.n_sub}")
        if self.look_ahead_ns < 0:
            raise ValueError(f"look_ahead_ns must be at least 0, got {self.look_ahead_ns}")
        if self.foresight and self.n_sub > 1:
            raise ValueError(f"with foresight n_sub must be 1, got {self.n_sub}")
        caps = [cap for cap in self.in_flight if cap is not None]
        if caps and min(caps) < 1:
            raise ValueError(f"in_flight must be at least 1, got {min(caps)}")
