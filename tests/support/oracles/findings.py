"""What a check finds, and the checks of one job with their random numbers."""

from __future__ import annotations

import re
import traceback
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from schedc.errors import Defect

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator


@dataclass(frozen=True)
class Finding:
    """Something that does not hold."""

    kind: str
    """The same for all jobs where the same thing is wrong."""
    message: str


@dataclass
class Checks:
    """What has been checked and found of one job."""

    seed: str
    counts: Counter[str]
    thorough: bool
    findings: list[Finding] = field(default_factory=list)

    def random(self, what: str) -> Random:
        """Draws for this purpose alone, so that they stay the same while a job is made smaller."""
        return Random(f"{self.seed} {what}")

    def fail(self, kind: str, message: object) -> None:
        self.findings.append(Finding(kind, str(message)))

    @contextmanager
    def step(self, name: str, *expected: type[Exception]) -> Iterator[None]:
        """Count the step; an exception that nobody expects is a finding."""
        self.counts[name] += 1
        try:
            yield
        except expected as error:
            self.counts[f"{name}: {type(error).__name__}"] += 1
        except Exception as error:  # broad on purpose: whatever comes out of the compiler here is what a fuzzer is for
            frame = traceback.extract_tb(error.__traceback__)[-1]
            rule = re.search(r"breaks a rule: \S+: ([a-z-]+):", str(error)) if isinstance(error, Defect) else None
            place = f"rule {rule[1]}" if rule else f"in {frame.filename.rpartition('/')[2]}:{frame.name}"
            self.fail(f"{name.partition('{')[0]}: {type(error).__name__} {place}", error)
