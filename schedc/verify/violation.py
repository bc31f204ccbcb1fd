"""What a verifier returns: one entry for every rule that is broken, with its place."""

from __future__ import annotations

from typing import NamedTuple


class Violation(NamedTuple):
    """One broken rule. `str()` of it is the line that a person reads."""

    rule: str
    """The rule's name in kebab-case, as in the check `check_memory_limit`: `memory-limit`."""
    place: str
    """Where: `ranks[3].compute[17]`, `stages[2].activation_bytes`."""
    message: str
    """What was found and what was expected."""

    def __str__(self) -> str:
        """`ranks[3].compute[17]: memory-limit: …`."""
        return f"{self.place}: {self.rule}: {self.message}"
