"""What makes a function a kernel: one that runs as plain Python, or compiled by numba, from the same source.

A kernel is plain Python: arithmetic, indexing and loops over what it is given. Called by its name it runs plain, at once, over
lists or arrays. `compiled(kernel)`, of `schedc.compiled.compiler`, is the same function compiled, over arrays alone; that module is
imported where compiled code may pay.

Numba compiles some things slowly: `array[:] = other` takes 5 s, `array.max()` 1.5 s, a `numpy.zeros` or `.copy()` up to 0.5 s. And
its random numbers are not numpy's. So a kernel gets its arrays and its random numbers from its caller. Where a kernel and all that
it calls make none themselves, `lean` leaves out the counting of references to them, which takes half the time of a small function.
"""

from __future__ import annotations

from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    P = ParamSpec("P")
    R = TypeVar("R")


class How(NamedTuple):
    """How a kernel is compiled: see `kernel`."""

    example: Callable[[], tuple[Any, ...]] | None
    without: tuple[str, ...]
    lean: bool
    inline: bool


KERNELS: dict[Any, How] = {}
"""Every kernel of the modules that are imported."""


def kernel(
    example: Callable[[], tuple[Any, ...]] | None = None,
    *,
    without: tuple[str, ...] = (),
    lean: bool = False,
    inline: bool = False,
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function of a module as a kernel; it stays what it is. It may call other kernels by their names.

    Args:
        example: makes arguments of the types that the function is compiled for; None: it is called by other kernels alone.
        without: names of features, constants that are True in the kernels' modules; compiled, they are False in this function and
            in all that it calls, so that what depends on them is left out. Then it must not be called with what needs them.
        lean: compiled, neither this function nor any that it calls makes lists or arrays.
        inline: compiled, it becomes part of those that call it: for what is small, or called at one place.
    """

    def register(function: Callable[P, R]) -> Callable[P, R]:
        KERNELS[function] = How(example, without, lean, inline)
        return function

    return register


def variant(function: Callable[P, R], name: str, *, without: tuple[str, ...]) -> Callable[P, R]:
    """The same kernel under another name, under which its module has it: compiled, it does without these features, too."""
    copied: Any = renamed(function, function.__globals__, name)
    how = KERNELS[function]
    KERNELS[copied] = how._replace(without=(*how.without, *without))
    form: Callable[P, R] = copied
    return form


def renamed(function: Any, names: dict[str, Any], name: str) -> Any:
    """A copy of a function of a module, with these global names."""
    copied = FunctionType(function.__code__, names, name)
    copied.__module__, copied.__qualname__ = function.__module__, name
    copied.__defaults__, copied.__doc__ = function.__defaults__, function.__doc__
    return copied
