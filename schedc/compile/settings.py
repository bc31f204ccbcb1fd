"""The method and the limits of a search: what the caller gives, else what the job says."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING

from schedc.errors import InvalidInput
from schedc.io.location import Location, show
from schedc.solvers.common.base import Limits, SearchSettings
from schedc.solvers.driver.registry import check_method

if TYPE_CHECKING:
    from schedc.frontend.job import Job

DEFAULT_TIME_S = 60.0
"""How long a search lasts unless the job or the caller says otherwise."""


def search_settings(
    job: Job,
    *,
    method: str | None,
    time_limit_s: float | None,
    gap: float | None,
    seed: int | None,
    workers: int,
    deterministic_limit: float | None,
    option: str = "method",
) -> SearchSettings:
    """The method and its limits: what the caller gives, as to `compile_job`, else what the job says.

    Messages call the caller's method by `option`.

    Raises:
        InvalidInput: the method's name, one of its options or a limit is wrong.
    """
    settings = job.solver
    chosen = settings.method if method is None else method
    try:
        check_method(chosen, is_open=job.open_layout is not None)
    except InvalidInput as error:
        place = job.source.place / "solver" / "method" if method is None else Location(option)
        raise place.error(str(error)) from error
    for key, value, least, below in (
        ("time_limit_s", time_limit_s, 0, math.inf),
        ("gap", gap, 0, 1),
        ("seed", seed, 0, 2**31),
        ("workers", workers, 1, 2**31),
        ("deterministic_limit", deterministic_limit, 0, math.inf),
    ):
        kind, number = (Integral, "a whole number") if key in ("seed", "workers") else (Real, "a number")
        if value is not None and not (isinstance(value, kind) and least <= value < below):
            raise Location(key).refuse(show(value), f"{number} of at least {least} and below {below}")
    if time_limit_s is None:
        time_limit_s = DEFAULT_TIME_S if settings.time_limit_ns is None else settings.time_limit_ns / 1e9
    limits = Limits(
        time_s=time_limit_s,
        gap=settings.gap if gap is None else gap,
        seed=settings.seed if seed is None else seed,
        workers=workers,
        deterministic=deterministic_limit,
    )
    return SearchSettings(method=chosen, limits=limits)
