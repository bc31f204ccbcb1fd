"""Processes that a test finds again by a mark in their environment, whoever started them; on Linux."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def processes_of(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def parent(process: int) -> int:
    """Which process has started this one."""
    after_name = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[1])


def until(condition: Callable[[], bool], limit_s: float = 250.0) -> bool:
    """Whether the condition comes true in time."""
    end_s = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True
