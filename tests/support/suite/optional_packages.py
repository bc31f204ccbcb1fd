"""Packages that only `make test-frameworks` installs."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

MODULES = (
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.distributed",
    "torchtitan.trainer",
    "torchtitan.models.llama3.config_registry",
)
"""What processes of tests with these packages begin with: imported once, by the server that forks them."""


def skip_without(package: str) -> None:
    """Skip the whole module of tests that calls this, with the reason, where a package is not installed."""
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make test-frameworks` tests with it", allow_module_level=True)
