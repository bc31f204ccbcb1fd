"""The files of the page, put together: style sheets, scripts in their order, and the template that they go into."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPTS = (
    "decode",
    "units",
    "model",
    "lanes",
    "view",
    "colours",
    "spans",
    "draw",
    "overview",
    "describe",
    "pointer",
    "keys",
    "main",
)
"""In this order: each uses those before it."""
_PLACE = re.compile(r"\{\{([a-z-]+)\}\}")


def filled(contents: Mapping[str, str]) -> str:
    """The page with its style and its scripts, and these contents where the template names them; they are HTML already.

    The page's security policy names the digest of its scripts: a browser runs nothing else in it, and loads nothing.
    """
    folder = files("schedc.view.report") / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8").strip()

    script = '\n(() => {\n"use strict";\n\n' + "\n\n".join(read(f"{name}.js") for name in SCRIPTS) + "\n})();\n"
    digest = b64encode(sha256(script.encode()).digest()).decode()
    every = {**contents, "style": read("style.css"), "script": script, "script-hash": f"sha256-{digest}"}
    return _PLACE.sub(lambda place: every[place[1]], read("page.html")) + "\n"
