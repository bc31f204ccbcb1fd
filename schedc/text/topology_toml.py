"""The text of a topology file of links, TOML: what the writers of measured links and of a problem's links have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["topology_toml"]


def topology_toml(
    links: Iterable[tuple[Mapping[str, object], str]], *, sites: Sequence[int] = (), notes: Iterable[str] = ()
) -> bytes:
    """The file's bytes; they end with a newline.

    Args:
        links: for each, its keys and values, and a note for people on one line, or none.
        sites: ranks per datacenter, in order; empty: the file says nothing of sites.
        notes: comment lines at the top.
    """
    import tomlkit

    document, tables = tomlkit.document(), tomlkit.aot()
    for note in notes:
        document.add(tomlkit.comment(note))
    if sites:
        document["sites"] = list(sites)
    for values, note in links:
        table = tomlkit.table()
        if note:
            table.comment(note)
        table.update(values)
        tables.append(table)
    if tables:
        document["link"] = tables
    return tomlkit.dumps(document).encode()
