"""The keys of a Hugging Face config.json, read one by one: none is skipped in silence."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, TypeGuard

from schedc.io.location import Location, show

if TYPE_CHECKING:
    from collections.abc import Mapping

    from schedc.errors import InvalidInput


@cache
def _without_effect() -> frozenset[str]:
    """ConfigKeys that change no layer's dimensions."""
    text = resources.files("schedc.costs").joinpath("keys_without_effect.txt").read_text(encoding="utf-8")
    return frozenset(key for line in text.splitlines() if not line.startswith("#") for key in line.split())


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number."""
    return isinstance(value, int) and not isinstance(value, bool)


class ConfigKeys:
    """The keys of one config; knows which of them have been read."""

    def __init__(self, table: Mapping[str, Any], location: Location) -> None:
        self.table, self.location = table, location
        self.read: set[str] = set()

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        self.read.add(key)
        return self.table.get(key) is not None

    def refuse(self, key: str, expected: str, value: object = None) -> InvalidInput:
        """The error about the key, for the caller to raise."""
        return (self.location / key).refuse("nothing" if value is None else show(value), expected)

    def count(self, key: str, default: int | None = None, *, least: int = 1, most: int = 2**32) -> int:
        """A whole number; refused where it is missing and there is no default."""
        value = self.table.get(key) if self.has(key) else default
        if not is_whole(value) or not least <= value <= most:
            raise self.refuse(key, f"a whole number from {least} to {most}", value)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.table[key] if self.has(key) else default
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false", value)
        return value

    def window(self) -> int | None:
        """How many tokens a token sees; None: all before it."""
        return self.count("sliding_window") if self.has("sliding_window") else None

    def must_be(self, value: bool, *names: str) -> None:
        """Refuse the keys where they say the opposite: what they switch has no operators here."""
        for key in names:
            if self.flag(key, value) is not value:
                raise self.refuse(key, show(value), not value)

    def table_of(self, key: str) -> ConfigKeys:
        """The keys of an object in it; refused where there is none."""
        value = self.table.get(key)
        self.read.add(key)
        if not isinstance(value, dict):
            raise self.refuse(key, "a table", value)
        return ConfigKeys(value, self.location / key)

    def whole_numbers(self, key: str) -> list[int] | None:
        """A list of whole numbers; None where it is missing."""
        value = self.table[key] if self.has(key) else None
        if value is not None and not (isinstance(value, list) and all(map(is_whole, value))):
            raise self.refuse(key, "a list of whole numbers", value)
        return value

    def check(self) -> None:
        """Refuse a key that has not been read, and is not known to change no dimension."""
        for key, value in self.table.items():
            if value is not None and key not in self.read and key not in _without_effect():
                expected = "keys whose effect on the costs is known; remove it if it changes no layer's dimensions"
                raise (self.location / key).refuse(f"{show(value)} under an unknown key", expected)
