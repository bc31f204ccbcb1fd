"""When a move to another plan pays: a pure rule, so that plans do not change with every tremor of a link."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from schedc.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Hysteresis:
    """What a move must bring."""

    cost_s: float = 0.05
    """What a move takes from training: every rank lays the wires of the new plan between two steps."""
    expected_steps: int = 50
    """For how many steps conditions are expected to last; a move pays if its gain over this many exceeds its cost."""
    least_gain: float = 0.01
    """The least share of a step that a move must gain: predictions are no better than that."""
    rest_steps: int = 10
    """How many steps there are between one move and the next proposal, at least, unless that gains `plain_gain`."""
    plain_gain: float = 0.1
    """A move that gains this share of a step rests for nothing."""

    def __post_init__(self) -> None:
        """Refuse numbers that cannot be.

        Raises:
            InvalidInput: names the first.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not (math.isfinite(value) and value >= 0):
                raise InvalidInput(f"hysteresis: {field.name}: found {value}, expected a number from 0")

    def pays(self, running_ns: int, proposed_ns: int, *, since_move: int | None, back: bool) -> bool:
        """Whether to move.

        Args:
            running_ns: a step of the plan that runs, under the conditions.
            proposed_ns: a step of the proposed one.
            since_move: how many steps ago the last proposal was settled; None: there was none.
            back: whether conditions are as the job's own plan expects, and that plan is proposed: it need not be faster then, only
                as fast, since its quality is known best.
        """
        gain_ns = running_ns - proposed_ns
        if since_move is not None and since_move < self.rest_steps and gain_ns < self.plain_gain * running_ns:
            return False
        if back:
            return gain_ns >= 0
        return gain_ns >= self.least_gain * running_ns and gain_ns * self.expected_steps > self.cost_s * 1e9
