"""Counters of a GPU, by NVIDIA's management library, which the driver brings: through ctypes, so nothing is to be installed."""

from __future__ import annotations

import ctypes
import os
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_SENT, _RECEIVED = 0, 1


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class Gpu:
    """One of the machine's GPUs."""

    def __init__(self, library: Any, index: int) -> None:
        """Find the GPU with this index, as the loaded library counts.

        Raises:
            OSError: the library says that there is no such GPU.
        """
        self._library = library
        self._handle = ctypes.c_void_p()
        if library.nvmlInit_v2() or library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(self._handle)):
            raise OSError(f"NVML has no GPU {index}")

    def counters(self) -> dict[str, float]:
        """By name; what this GPU does not say is absent."""
        found: dict[str, float] = {}
        used, memory = _Utilization(), _Memory()
        if not self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(used)):
            found |= {"gpu_busy": used.gpu / 100, "gpu_memory_busy": used.memory / 100}
        if not self._library.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)):
            found["gpu_memory_used"] = memory.used / max(1, memory.total)
        for name, function, selector in (
            ("gpu_clock_mhz", self._library.nvmlDeviceGetClockInfo, _SM_CLOCK),
            ("gpu_memory_clock_mhz", self._library.nvmlDeviceGetClockInfo, _MEMORY_CLOCK),
            ("gpu_sent_kbps", self._library.nvmlDeviceGetPcieThroughput, _SENT),
            ("gpu_received_kbps", self._library.nvmlDeviceGetPcieThroughput, _RECEIVED),
        ):
            value = ctypes.c_uint()
            if not function(self._handle, ctypes.c_uint(selector), ctypes.byref(value)):
                found[name] = float(value.value)
        power = ctypes.c_uint()
        if not self._library.nvmlDeviceGetPowerUsage(self._handle, ctypes.byref(power)):
            found["gpu_power_w"] = power.value / 1000
        return found


def find_gpu(number: int = 0) -> Gpu | None:
    """This process's GPU of that number, as CUDA counts those that it may see; None: there is none, or no driver.

    Where CUDA_VISIBLE_DEVICES has names instead of numbers, there is none.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = None if visible is None else visible.split(",")
    if names is not None and (number >= len(names) or not names[number].strip().isdecimal()):
        return None
    try:
        return Gpu(ctypes.CDLL(LIBRARY), number if names is None else int(names[number]))
    except OSError:
        return None
