"""Devices and number types by the names that a command line has for them."""

from __future__ import annotations

import torch

from schedc.errors import InvalidInput

_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "fp64": "float64"}


def device_named(name: str | None) -> torch.device:
    """The device `cpu` or `cuda`; for None a GPU where there is one.

    Raises:
        InvalidInput: there is no GPU.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise InvalidInput("--device cuda: torch finds no GPU here; expected one, or --device cpu")
    return torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))


def dtype_named(name: str | None) -> torch.dtype | None:
    """The type `bfloat16`, or `bf16` for short."""
    if name is None:
        return None
    found = getattr(torch, _SHORT.get(name, name))
    assert isinstance(found, torch.dtype)
    return found


def described(device: torch.device) -> str:
    """What the device is, for people."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"the CPU, threads: {torch.get_num_threads()}"
