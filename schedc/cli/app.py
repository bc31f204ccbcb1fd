"""The command line: all commands, each from its file in `commands`, and how one ends.

Heavy modules are imported inside the command that needs them, so that `schedc --help` is instant. `main` is the one place where a
`SchedcError` becomes a line on standard error and an exit status.
"""

from __future__ import annotations

import re
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
from schedc.errors import InvalidInput, SchedcError
from schedc.io.location import one_line, show
from schedc.spelling import nearest

UsageError: Any = typer.BadParameter.__mro__[1]
"""The class of these errors, which typer does not export."""

_LIMITS = {
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
    "greater than": "above",
    "less than": "below",
}
_NEW_NAMES = {"model": "costs", "relayout": "repartition"}
"""Of commands that had another name before."""
_NUMBERS = {"valid number": "a number", "valid integer": "a whole number"}

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
_ABOUT_RUNS = ("emulate", "compare", "diff", "report", "explain", "unroll")
_ABOUT_CHANGES = ("assign", "repartition", "interference", "plot", "sweep", "export", "lint")
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
            raise _refused(error) from error
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


def _refused(error: Any) -> InvalidInput:
    """A command line that cannot be read, in one line: what was found, what was expected.

    typer words these errors in its own way, and after two lines of usage. What is not known here stays as typer says it.
    """
    return InvalidInput(_unknown(error) or _wrong(error) or one_line(error.format_message()).rstrip("."))


def _unknown(error: Any) -> str | None:
    """Names that there are not, and what is missing or too many."""
    message, context = error.message or "", error.ctx
    listed = f"{context.command_path} -h lists them" if context is not None else ""
    if type(error).__name__ == "NoSuchOption":
        near = nearest(error.option_name, [option for param in context.command.params for option in param.opts])
        return f"found an unknown option {show(error.option_name)}{near or f'; {listed}'}"
    if "requires an argument" in message:
        return f"{error.option_name}: found nothing, expected a value"
    if type(error).__name__ == "MissingParameter":
        return f"expected {_name(error.param)}, found none; {listed}"
    match = re.fullmatch(r"No such command '(.*?)'\..*", message, re.DOTALL)
    if match:
        new = _NEW_NAMES.get(match[1]) if context.parent is None else None
        near = f"; it is now `{context.command_path} {new}`" if new else nearest(match[1], context.command.commands)
        return f"found an unknown command {show(match[1])}{near or f'; {listed}'}"
    match = re.fullmatch(r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", message, re.DOTALL)
    return f"found {show(match[1])}, expected no more arguments" if match else None


def _wrong(error: Any) -> str | None:
    """A value that an option does not take."""
    details = getattr(error.__cause__, "errors", None)
    if getattr(error, "param", None) is None or details is None:
        return None
    detail = details()[0]
    message, found = str(detail["msg"]), show(detail["input"])
    choice = re.fullmatch(r"Value error, .* is not one of (.*?)\.", message, re.DOTALL)
    limit = re.fullmatch(r"Input should be (.*) (\S+)", message)
    number = next((kind for text, kind in _NUMBERS.items() if text in message), None)
    if choice:
        *first, last = re.findall(r"'(.*?)'", choice[1])
        expected = f"{', '.join(first)} or {last}" if first else last
    elif number is not None:
        expected = number
    elif limit and limit[1] in _LIMITS:
        expected = f"{_LIMITS[limit[1]]} {limit[2]}"
    else:
        expected = one_line(message)
    return f"{_name(error.param)}: found {found}, expected {expected}"


def _name(param: Any) -> str:
    """What errors of the commands themselves call it: `-o`, `--gap`, `PLAN`."""
    if param.param_type_name == "argument":
        return str(param.metavar or param.name.upper())
    return str("-o" if "-o" in param.opts else max(param.opts, key=len))


if __name__ == "__main__":
    main()
