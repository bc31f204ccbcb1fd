"""How much memory this process has had resident at most."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

_UNIT = 1 if sys.platform == "darwin" else 1024
"""Bytes in the unit of `ru_maxrss`."""
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_memory_bytes() -> int:
    """The most memory that this process, or one it started and waited for, has had resident."""
    return max(own_peak_memory_bytes(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * _UNIT)


def own_peak_memory_bytes() -> int:
    """The most memory that this process has had resident since it began; see `forget_peak_memory`."""
    if _STATUS.exists():  # Linux passes ru_maxrss on through exec, so there it may be that of the process that started this one
        lines = dict(line.split(":", 1) for line in _STATUS.read_text().splitlines())
        if "VmHWM" in lines:
            return int(lines["VmHWM"].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _UNIT


def forget_peak_memory() -> None:
    """Let the peak of this process begin at what is resident now, where the system can (Linux); elsewhere it stays."""
    if _CLEAR.exists():
        try:
            _CLEAR.write_text("5")
        except OSError:  # a container may forbid it
            return
