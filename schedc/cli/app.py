"""The command line: all commands, each from its file in `commands`, and how one ends.

Heavy modules are imported inside the command that needs them, so that `schedc --help` is instant. `main` is the one place where a
`SchedcError` becomes a line on standard error and an exit status.
"""

from __future__ import annotations

import signal
import sys
from functools import cache
from importlib import import_module
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer import Option
from typer.main import get_command

from schedc import __version__
from schedc.cli.options import INTERRUPTED
from schedc.cli.standard_output import PLAIN, standard_error, standard_output
from schedc.cli.usage import UsageError, refused
from schedc.errors import SchedcError
from schedc.io.location import one_line

app = typer.Typer(
    help="Compile pipeline-parallel training schedules: a job in, a verified plan with an optimality certificate out.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"schedc {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Take the options before the command."""


_ABOUT_PLANS = ("compile", "verify", "simulate", "show", "bounds", "templates")
_ABOUT_INPUTS = ("bench", "schema", "profile", "costs", "init", "tune", "family")
_ABOUT_RUNS = ("emulate", "compare", "diff", "report", "explain")
_ABOUT_CHANGES = ("assign", "repartition", "plot", "sweep", "export", "lint")
COMMANDS = (*_ABOUT_PLANS, *_ABOUT_INPUTS, *_ABOUT_RUNS, *_ABOUT_CHANGES)
"""In the order in which `--help` lists them; each is `NAME_command`, or a group of commands `NAME_app`, of its file."""
for name in COMMANDS:
    module = import_module(f"schedc.cli.commands.{name}")
    if hasattr(module, f"{name}_app"):
        app.add_typer(getattr(module, f"{name}_app"), name=name)
    else:
        app.command(name)(getattr(module, f"{name}_command"))


@cache
def _command() -> Any:
    """All commands and their options; made once, which takes as long as a small command itself."""
    return get_command(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the entry point of the `schedc` script. Always ends by `SystemExit`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=PLAIN)  # a terminal that cannot show a character gets a plain one, not a traceback
    if arguments is None:
        sys.stdout, sys.stderr = standard_output(), standard_error()
        if hasattr(signal, "SIGPIPE"):
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `schedc show plan.json | head` ends as other programs do
    try:
        try:
            sys.exit(_command()(arguments, prog_name="schedc", standalone_mode=False) or 0)
        except UsageError as error:
            if (error.message or "").startswith("Usage: "):  # no command at all: the help
                print(error.message, file=sys.stderr)
                sys.exit(error.exit_code)
            raise refused(error) from error
        finally:
            sys.stdout.flush()  # here, and not when the interpreter ends, where a failure could not be reported in one line
    except SchedcError as error:
        print(f"schedc: {one_line(str(error))}", file=sys.stderr)
        sys.exit(error.exit_status)
    except (KeyboardInterrupt, SystemExit, typer.Abort) as end:
        # Typer makes the status of a KeyboardInterrupt, without a word.
        if isinstance(end, SystemExit) and end.code != INTERRUPTED:
            raise
        print("schedc: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
