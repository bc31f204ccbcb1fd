"""What a rank sees of the machine that it runs on, without looking into other tasks: rates between two looks, by name.

Everything is from /proc (Linux), the standard library, and two probes of a millisecond together: how long a copy and a product of
small matrices take. What a kernel does not have is absent, as GPU counters are without a GPU (`nvml`). Reading is apart from
parsing, which is pure.
"""

from __future__ import annotations

import os
import re
import resource
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from schedc.errors import Unsupported

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.runtime.interference.nvml import Gpu

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
COPIED_BYTES = 8 << 20
"""Of the memory probe: more than the caches next to a core hold."""
SIDE, PRODUCTS = 64, 40
"""Of the compute probe's matrices, which stay in the nearest cache, and how many products."""
LEAST_CPU = 1e-3
"""A rank that has computed less than this share of the time says nothing of how fast it is."""
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")
_STAT = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Look(NamedTuple):
    """What was there at one time."""

    at_ns: int
    counters: Mapping[str, float]
    """These only rise; what counts is by how much."""
    gauges: Mapping[str, float]
    """These are taken as they are."""


def machine_counters(stat: str) -> tuple[dict[str, float], dict[str, float]]:
    """Of /proc/stat, for a mean CPU: seconds by what it did, and switches; how many tasks can run; and how many CPUs there are."""
    lines = dict(line.split(None, 1) for line in stat.splitlines() if " " in line)
    cpus = sum(re.fullmatch(r"cpu\d+", name) is not None for name in lines)
    spent_s = dict(zip(_STAT, (int(ticks) / TICKS_PER_S for ticks in lines["cpu"].split()), strict=False))
    counters = {
        "cpu_busy": sum(spent_s.get(name, 0.0) for name in _BUSY) / cpus,
        **{f"cpu_{name}": spent_s.get(name, 0.0) / cpus for name in ("system", "iowait", "steal")},
        "cpu_switches": int(lines["ctxt"]) / cpus,
    }
    return counters, {"cpus": cpus, "cpu_runnable": int(lines["procs_running"]) / cpus}


def waited_s(schedstat: str) -> float:
    """Of a thread's schedstat: how long it was ready and had to wait for a CPU."""
    return int(schedstat.split()[1]) / 1e9


def stalled_s(pressure: str) -> float:
    """Of a file of /proc/pressure: for how long some task has had to wait for the resource."""
    return int(pressure.partition("total=")[2].split()[0]) / 1e6


def frequency_mhz(cpuinfo: str) -> float | None:
    """The mean of all CPUs; None: it is not said."""
    found = [float(value) for value in re.findall(r"^cpu MHz\s*:\s*([\d.]+)$", cpuinfo, re.MULTILINE)]
    return sum(found) / len(found) if found else None


def look(proc: Path = PROC) -> Look:
    """What there is now; this process's own times, too."""
    counters, gauges = machine_counters((proc / "stat").read_text())
    for resource_name in ("cpu", "memory"):
        with suppress(OSError):  # a kernel without pressure stall information
            counters[f"pressure_{resource_name}"] = stalled_s((proc / "pressure" / resource_name).read_text())
    waits_s = []
    for task in (proc / "self" / "task").iterdir():
        with suppress(OSError):  # a thread that has just ended, or a kernel without schedstat
            waits_s.append(waited_s((task / "schedstat").read_text()))
    if waits_s:
        counters["own_waiting"] = sum(waits_s)
    counters["own_cpu"] = time.process_time()
    counters["own_preempted"] = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    mhz = frequency_mhz((proc / "cpuinfo").read_text())
    if mhz is not None:
        gauges["frequency_mhz"] = mhz
    return Look(time.perf_counter_ns(), counters, gauges)


def rates(before: Look, after: Look) -> dict[str, float]:
    """By name: counters per second, gauges as they are. Of its own time, only ratios: a rank that waits for others is not slow."""
    took_s = max(1, after.at_ns - before.at_ns) / 1e9
    # A thread that ends takes its count with it: what seems to fall has not risen.
    found = {
        name: max(0.0, count - before.counters[name]) / took_s for name, count in after.counters.items() if name in before.counters
    }
    gauges = dict(after.gauges)
    own_cpu = found.pop("own_cpu")
    found["others_cpu"] = max(0.0, found.pop("cpu_busy") - own_cpu / gauges.pop("cpus"))
    found["own_preempted"] /= max(own_cpu, LEAST_CPU)  # per second that it computes
    if "own_waiting" in found:
        found["own_ready_share"] = own_cpu / max(own_cpu + found["own_waiting"], LEAST_CPU)  # of the time when it could compute
        found["own_waiting"] /= max(own_cpu, LEAST_CPU)
    return found | gauges


class Probes:
    """Two small pieces of work, always the same."""

    def __init__(self) -> None:
        """Make what they work on."""
        self._from, self._to = (np.ones(COPIED_BYTES // 4, np.float32) for _ in range(2))
        self._factors, self._product = (np.full((SIDE, SIDE), 0.1, np.float32) for _ in range(2))

    def take(self) -> dict[str, float]:
        """Of the CPU time of this thread, the seconds that each takes; and how many times as long both last."""
        begun_ns, times_ns = time.perf_counter_ns(), [time.thread_time_ns()]
        np.copyto(self._to, self._from)
        times_ns.append(time.thread_time_ns())
        for _ in range(PRODUCTS):
            np.matmul(self._factors, self._factors, out=self._product)
        times_ns.append(time.thread_time_ns())
        memory_ns, compute_ns = times_ns[1] - times_ns[0], times_ns[2] - times_ns[1]
        lasted_ns = time.perf_counter_ns() - begun_ns
        return {
            "probe_memory_s": memory_ns / 1e9,
            "probe_compute_s": compute_ns / 1e9,
            "probe_stretch": lasted_ns / max(1, memory_ns + compute_ns),
        }


class Seen:
    """What this process sees, look after look."""

    def __init__(self, gpu: Gpu | None = None) -> None:
        """Look for the first time.

        Args:
            gpu: of this rank; None: it has none, or none that says anything.

        Raises:
            Unsupported: this is not Linux.
        """
        if not (PROC / "stat").exists():
            raise Unsupported("interference: found no /proc, expected Linux")
        self._gpu = gpu
        self._probes = Probes()
        self._probes.take()  # what is touched for the first time takes longer
        self._last = look()

    def take(self) -> dict[str, float]:
        """What there was since the last time, by name."""
        now = look()
        found = rates(self._last, now) | self._probes.take() | ({} if self._gpu is None else self._gpu.counters())
        self._last = look()  # the probes are no part of what is seen next
        return found
