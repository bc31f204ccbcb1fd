"""Kernels that compile in little time, for the tests of `schedc.compiled`; in a module, as a child process imports them."""

from __future__ import annotations

from typing import Any

import numpy as np

from schedc.compiled.kernel import kernel, variant


@kernel()
def square(value: int) -> int:
    return value * value


@kernel(lambda: (np.zeros(1, np.int64),))
def sum_of_squares(values: Any) -> int:
    total = 0
    for at in range(len(values)):
        total += square(values[at])
    return total


@kernel(lambda: (1,))
def double(value: int) -> int:
    return 2 * value


LOUD = True


@kernel(inline=True)
def loudness() -> int:
    return 10 if LOUD else 1


@kernel(lambda: (1,), lean=True)
def shout(value: int) -> int:
    return value * loudness()


whisper = variant(shout, "whisper", without=("LOUD",))
