"""The page of the commands, from the command line itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from markdown_text import code, row, table
from typer.main import get_command

from schedc.cli.app import app

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
# Commands

Every command with its arguments and options, as `schedc COMMAND --help` prints them.
[The command line](../command-line.md) explains them, with JSON output and exit statuses.
"""


def commands() -> dict[str, Any]:
    """Every command that does something, by what is typed, as in `schedc export torch`."""
    return dict(_below(get_command(app), "schedc"))


def command_page() -> str:
    """The Markdown of the page."""
    return "\n".join([_HEAD, *(_section(name, command) for name, command in sorted(commands().items()))])


def _below(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
    else:
        for child_name, child in children.items():
            yield from _below(child, f"{name} {child_name}")


def _section(name: str, command: Any) -> str:
    context = command.context_class(command, info_name=name)
    usage = " ".join([name, *(piece for piece in command.collect_usage_pieces(context))])
    records = [parameter.get_help_record(context) for parameter in command.get_params(context) if not parameter.hidden]
    rows = [row(code(typed), meaning.replace("  ", " ")) for typed, meaning in filter(None, records)]
    return f"## `{name}`\n\n{command.help}\n\n```text\n{usage}\n```\n\n{table(('argument or option', 'meaning'), rows)}\n"
