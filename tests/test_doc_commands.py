"""What README and docs tell a reader to type exists, and what they show as output comes from a run that something repeats."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from command_page import commands
from repository.doc_outputs import FILES, PROGRAMS, ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = commands()
NO_OUTPUT = {("docs/architecture.md", "job.toml, profile.json, topology.toml"): "a drawing"}
"""Blocks that look like output and are none: page and first line, and what they are."""
OUTPUT_LANGUAGES = ("", "text", "console")
SHELL_LANGUAGES = ("sh", "bash", "shell")


class Block(NamedTuple):
    """A block of code, also one in a list."""

    language: str
    text: str
    before: str
    """What is between it and the heading above."""
    section: str
    """All between the headings above and below."""


def blocks_of(page: str) -> Iterator[Block]:
    """The blocks of code of a page. A line of code that begins with `#` is no heading."""
    fences = list(re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", page, re.DOTALL | re.MULTILINE))
    inside = [range(*fence.span()) for fence in fences]
    heads = [match.start() for match in re.finditer(r"^#+ ", page, re.MULTILINE) if not any(match.start() in one for one in inside)]
    for fence in fences:
        begin = max((head for head in heads if head < fence.start()), default=0)
        end = min((head for head in heads if head > fence.start()), default=len(page))
        yield Block(fence[2], fence[3], page[begin : fence.start()], page[begin:end])


def calls_in(text: str) -> Iterator[list[str]]:
    """The words after `schedc` of each call in a piece of shell, without what leads its output elsewhere."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
        lexer.wordchars += ":,[]{}|" if "[" in line else ":,{}"
        words = list(lexer)
        while "schedc" in words:
            words = words[words.index("schedc") + 1 :]
            end = next((place for place, word in enumerate(words) if set(word) <= set("();<>|&")), len(words))
            yield words[: end - 1] if end and words[end - 1].isdigit() and words[end : end + 1] == [">"] else words[:end]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that is called, and its arguments."""
    for length in (2, 1):
        command = COMMANDS.get(" ".join(["schedc", *words[:length]]))
        if command:
            return command, words[length:]
    raise AssertionError(f"no such command: schedc {' '.join(words)}")


def unknown_options(words: list[str]) -> set[str]:
    """The options of a call that its command does not have."""
    command, arguments = command_of(words)
    known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)} | {"--help", "-h"}
    return {word for word in arguments if re.match(r"--?[a-z]", word)} - known


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", FILES)
def test_every_call_in_a_block_of_shell_is_one_that_the_command_line_takes(name: str) -> None:
    for block in blocks_of(read(name)):
        for words in calls_in(block.text) if block.language in SHELL_LANGUAGES else ():
            plain = [word for word in words if not word.startswith("[") and not word.endswith("]")]
            command, arguments = command_of(plain)
            command.make_context(plain[0], list(arguments))


@pytest.mark.parametrize("name", FILES)
def test_every_option_that_is_named_with_its_command_exists(name: str) -> None:
    calls = re.findall(r"`schedc ([a-z][^`]*)`", re.sub(r"^```.*?^```$", "", read(name), flags=re.DOTALL | re.MULTILINE))
    for call in calls:
        words = re.split(r"[\s\[\]]+", re.sub(r"\\?\|\w+", "", call.replace(r"\|", "|")).strip())
        assert unknown_options(words) == set(), call


@pytest.mark.parametrize("name", FILES)
def test_every_block_of_output_comes_from_a_run_that_something_repeats(name: str) -> None:
    """It has an `output` marker, or it is what a program of the page prints, or its section names the benchmark that prints it."""
    silent = [
        block.text.partition("\n")[0]
        for block in blocks_of(read(name))
        if block.language in OUTPUT_LANGUAGES
        and name not in PROGRAMS
        and not block.before.rstrip().endswith("-->")
        and not re.search(r"benchmarks/[\w/]+\.py", block.section)
    ]
    assert [line for line in silent if (name, line) not in NO_OUTPUT] == []


def test_what_is_wrong_is_noticed() -> None:
    shell = "# a comment\nschedc compile a.toml -o b.json > c.txt 2> /dev/null\nschedc show b.json; schedc export torch p -o c\n"
    (block,) = blocks_of(f"# A\n```sh\n{shell}```\n# B\n")
    assert block.section == f"# A\n```sh\n{shell}```\n"
    assert list(calls_in(block.text)) == [
        ["compile", "a.toml", "-o", "b.json"],
        ["show", "b.json"],
        ["export", "torch", "p", "-o", "c"],
    ]
    assert unknown_options(["compile", "a.toml", "--outptu", "b"]) == {"--outptu"}
    with pytest.raises(AssertionError, match="no such command"):
        command_of(["complie", "a.toml"])
