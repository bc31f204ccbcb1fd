"""What a file that is not a plan of this version is: imported where reading one has failed."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

import msgspec

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_structs import FORMAT, VERSION
from schedc.io.decode import decode
from schedc.io.location import show

if TYPE_CHECKING:
    from schedc.io.location import Location


class _Header(msgspec.Struct):
    """What says whether the rest can be read at all."""

    format: Any = None
    version: Any = None


def check_header(content: bytes, location: Location) -> None:
    """Refuse jobs, other formats and other versions.

    Raises:
        InvalidInput: it is one of these, or not JSON.
    """
    try:
        header = decode(content, _Header, location)
    except InvalidInput as error:
        if _is_job(content):
            raise location.refuse("a job (TOML)", "a plan (JSON), which `schedc compile` makes of a job") from error
        raise
    if header.format != FORMAT:
        raise (location / "format").refuse(show(header.format), show(FORMAT))
    if type(header.version) is not int or header.version != VERSION:
        raise (location / "version").refuse(show(header.version), f"{VERSION}, the one version that this schedc reads")


def _is_job(content: bytes) -> bool:
    """Whether what is no plan is a job file."""
    try:
        return "pipeline" in tomllib.loads(content.decode())
    except (ValueError, RecursionError):
        return False
