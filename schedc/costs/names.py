"""The architectures that are known by name: the file models.toml beside this one, in the keys of a Hugging Face config.json."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, NamedTuple

from schedc.costs.hugging_face import architecture_of_config
from schedc.errors import InvalidInput
from schedc.io.location import Location, show
from schedc.spelling import nearest

if TYPE_CHECKING:
    from schedc.costs.architecture import Architecture

FILE = "models.toml"


class Published(NamedTuple):
    """What the makers of a model say of it."""

    parameters: int
    parameters_source: str
    dimensions_source: str
    rounded_to: int
    """What the number of parameters is rounded to, where that is more than 1 % of it; else 0."""


def known_names() -> tuple[str, ...]:
    """All names, in the file's order; without those by which some are `also` known."""
    return tuple(_models())


def is_known(name: str) -> bool:
    """Whether there is an architecture of that name."""
    return name in _models() or name in _others()


@cache
def architecture_named(name: str) -> Architecture:
    """The architecture of that name.

    Raises:
        InvalidInput: no such name.
    """
    full = _others().get(name, name)
    return architecture_of_config(_model(full)["config"], full, Location(FILE) / full / "config")


def published(name: str) -> Published:
    """The published number of parameters of a known name, and where that and the dimensions are from.

    Raises:
        InvalidInput: no such name.
    """
    model = _model(name)
    return Published(model["published"], model["published_source"], model["source"], model.get("published_to", 0))


def _model(name: str) -> dict[str, Any]:
    models = _models()
    if name not in models:
        expected = f"one of {', '.join(models)}, or the path of a config.json{nearest(name, models)}"
        raise InvalidInput(f"found the model name {show(name)}, expected {expected}")
    found: dict[str, Any] = models[name]
    return found


@cache
def _others() -> dict[str, str]:
    """The full name of each other one."""
    return {other: name for name, model in _models().items() for other in model.get("also", ())}


@cache
def _models() -> dict[str, Any]:
    return tomllib.loads(resources.files("schedc.costs").joinpath(FILE).read_text(encoding="utf-8"))
