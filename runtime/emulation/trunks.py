"""Trunks: what the links of several ranks of one host share, held in memory that their processes share.

All ranks call `open_trunks` together. Reservations are made in the order in which they are asked for, one at a time; the lock is a
file's, which the system takes from a process that ends.
"""

from __future__ import annotations

import os
import struct
import tempfile
from mmap import mmap
from typing import TYPE_CHECKING

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from schedc.runtime.common.groups import Groups

FREE_NS = struct.Struct("=q")


class Trunk:
    """One rank's end of a trunk, as `Reservable`: the time at which it is free, in a file that all who share it have open."""

    def __init__(self, file: int, place: int) -> None:
        """Take a place in the file, which is closed with this."""
        self._file = file
        self._memory = mmap(file, 0)
        self._at = place * FREE_NS.size

    def __del__(self) -> None:
        """Close the file."""
        os.close(self._file)

    def reserve(self, ready_ns: int, occupancy_ns: int) -> int:
        """As `Reservable.reserve`."""
        import fcntl  # not every system that trains has it

        fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            (free_ns,) = FREE_NS.unpack_from(self._memory, self._at)
            left_ns: int = max(ready_ns, free_ns) + occupancy_ns
            FREE_NS.pack_into(self._memory, self._at, left_ns)
        finally:
            fcntl.flock(self._file, fcntl.LOCK_UN)
        return left_ns


def open_trunks(senders: Mapping[str, Sequence[int]], hosts: Sequence[str], groups: Groups) -> dict[str, Trunk]:
    """The trunks, by name. All ranks call it together; their file has no name any more when it returns.

    Args:
        senders: by trunk, the ranks that send on it.
        hosts: by rank, its host.
        groups: of the plan's ranks.

    Raises:
        Unsupported: a trunk's senders are on several hosts, or cannot open one file.
        TransferFailed: another rank has ended.
    """
    if not senders:
        return {}
    for trunk, ranks in senders.items():
        other = next((rank for rank in ranks if hosts[rank] != hosts[ranks[0]]), None)
        if other is not None:
            raise Unsupported(
                f"ranks {ranks[0]} and {other} share the trunk {trunk!r}, but not a host, so that neither knows when the other"
                " occupies it; run them on one host, or give the job's links no trunk (one site, or [[topology.link]] for each)"
            )
    leader = hosts.index(hosts[groups.rank])
    own: str | None = None
    try:
        if leader == groups.rank:
            handle, own = tempfile.mkstemp(prefix="schedc-trunks-")
            os.truncate(handle, FREE_NS.size * len(senders))
            os.close(handle)
        path = groups.exchange(own)[leader]
        assert path is not None
        files = _opened(path, len(senders))
        shared = groups.exchange(bool(files))
    finally:
        if own is not None:
            os.unlink(own)
    if not all(shared):
        absent = shared.index(False)
        raise Unsupported(f"rank {absent} is on the host of rank {hosts.index(hosts[absent])}, but sees another file system")
    return {trunk: Trunk(file, place) for place, (trunk, file) in enumerate(zip(senders, files, strict=True))}


def _opened(path: str, times: int) -> list[int]:
    try:
        return [os.open(path, os.O_RDWR) for _ in range(times)]
    except OSError:
        return []
