"""The reference, generated from the code, so that it cannot be out of date; none of it is a file of the repository.

Commands come from the command line, functions and types from their docstrings, files from the types that read them.
"""

from __future__ import annotations

from command_page import command_page
from file_page import file_page
from python_page import python_page


def reference_pages() -> dict[str, str]:
    """The Markdown of each page, by name."""
    return {
        "reference/commands.md": command_page(),
        "reference/python.md": python_page(),
        "reference/files.md": file_page(),
    }
