"""Packages that only `make test-frameworks` installs."""

from __future__ import annotations

import warnings
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.distributed",
    "torchtitan.trainer",
    "torchtitan.models.llama3.config_registry",
)
"""What processes of tests with these packages begin with: imported once, by the server that forks them."""


@contextmanager
def importing(package: str) -> Iterator[None]:
    """A context for a test module's imports of what needs a package; without the package it skips the module, with the reason.

    What the package itself warns of when it is imported is not shown.
    """
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed; `make test-frameworks` tests with it", allow_module_level=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
