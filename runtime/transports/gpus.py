"""What channels need of GPUs: devices that fit each other, and settings of NCCL (docs/gpu.md says why).

CUDA and PyTorch read the settings when they begin, which is before `load`: it can only say what is missing.
"""

from __future__ import annotations

import os
import warnings
from typing import TYPE_CHECKING

from torch.distributed.distributed_c10d import _world

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.transports.streams import STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from schedc.runtime.transports.base import Hardware

DEFAULT_CONNECTIONS, MAX_CONNECTIONS = 8, 32
"""CUDA's hardware queues: without CUDA_DEVICE_MAX_CONNECTIONS, and at most."""


def check_devices(channels: str, ranks: Sequence[Hardware], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse channels that the devices cannot have; as `check_requests`."""
    on_cpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is None]
    on_gpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is not None]
    if on_cpu and on_gpu:
        raise Unsupported(
            f"rank {on_cpu[0]}'s stages are on the CPU, rank {on_gpu[0]}'s on a GPU; put all ranks' stages on devices of one kind"
        )
    if channels == "gloo" and on_gpu:
        raise InvalidInput(f"channels='gloo' carries tensors of the CPU, rank {on_gpu[0]}'s stages are on a GPU; use 'auto'")
    pairs = [*pairs]
    for rank in on_gpu:
        wires = sum(rank in pair for pair in pairs)
        if wires > STREAMS:
            raise Unsupported(f"rank {rank} has {wires} wires, each with a CUDA stream of its own, of which PyTorch has {STREAMS}")
    if channels != "nccl":
        return
    if on_cpu:
        raise InvalidInput(f"channels='nccl' carries tensors of GPUs, rank {on_cpu[0]}'s stages are on the CPU; use 'auto'")
    lacking = next((rank for rank, hardware in enumerate(ranks) if not hardware.nccl), None)
    if lacking is not None:
        raise Unsupported(f"channels='nccl': rank {lacking}'s PyTorch is built without NCCL; use 'delegate', or another build")
    serial = next((rank for rank, hardware in enumerate(ranks) if hardware.serial is not None), None)
    if serial is not None:
        raise Unsupported(
            f"channels='nccl': rank {serial} has {ranks[serial].serial}, with which a receive that is posted early may keep back"
            " the send for which its peer waits; change it, or use 'auto' or 'delegate' (docs/gpu.md)"
        )
    for source, destination in pairs:
        if ranks[source].gpu == ranks[destination].gpu:
            raise InvalidInput(
                f"channels='nccl': ranks {source} and {destination} have the same GPU, which NCCL does not connect; use 'auto'"
            )


def serial_setting(environment: Mapping[str, str]) -> str | None:
    """The setting with which a GPU begins one thing after another; None: there is none."""
    if environment.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        return f"CUDA_LAUNCH_BLOCKING={environment['CUDA_LAUNCH_BLOCKING']}"
    return "CUDA_DEVICE_MAX_CONNECTIONS=1" if environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "").strip() == "1" else None


def warn_of_serial(setting: str, *, stacklevel: int) -> None:
    """Warn that a setting takes NCCL from `auto`."""
    said = f"found {setting}, with which NCCL may deadlock: tensors go through the host instead (docs/gpu.md)"
    warnings.warn(said, RuntimeWarning, stacklevel=stacklevel)


def warn_of_settings(wires: int, *, stacklevel: int) -> None:
    """Warn of what is missing for this many wires of this process over NCCL; `stacklevel` as that of `warnings.warn`."""
    job_has_nccl = any("nccl" in str(backends) for backends in _world.pg_backend_config.values())
    missing = missing_settings(os.environ, wires, job_has_nccl=job_has_nccl)
    if missing is not None:
        warnings.warn(missing, RuntimeWarning, stacklevel=stacklevel)


def missing_settings(environment: Mapping[str, str], wires: int, *, job_has_nccl: bool) -> str | None:
    """What to set, in one line; None: nothing is missing.

    `wires` of the process are over NCCL; `job_has_nccl`: whether the job has made a process group over NCCL before.
    """
    if not wires:
        return None
    wanted: dict[str, str] = {}
    streams = 1 + 2 * wires  # the compute's; of each wire ours and NCCL's
    given = environment.get("CUDA_DEVICE_MAX_CONNECTIONS", "")
    if (int(given) if given.isdecimal() else DEFAULT_CONNECTIONS) < min(streams, MAX_CONNECTIONS):
        wanted["CUDA_DEVICE_MAX_CONNECTIONS"] = str(MAX_CONNECTIONS)
    if environment.get("CUDA_MODULE_LOADING") != "EAGER":
        wanted["CUDA_MODULE_LOADING"] = "EAGER"
    if job_has_nccl and "0" not in (environment.get("TORCH_NCCL_ENABLE_MONITORING"), environment.get("TORCH_NCCL_DUMP_ON_TIMEOUT")):
        wanted["TORCH_NCCL_ENABLE_MONITORING"] = "0"
    if not wanted:
        return None
    found = ", ".join(f"{name}={environment.get(name, '(not set)')}" for name in wanted)
    expected = " ".join(f"{name}={value}" for name, value in wanted.items())
    return (
        f"channels over NCCL: found {found}, expected {expected}; set them before the processes start,"
        " or a step may deadlock and a failure end the process (docs/gpu.md)"
    )
