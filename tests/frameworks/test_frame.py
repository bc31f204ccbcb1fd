"""What runs plans inside other frameworks is loaded by the jobs that ask for it, and by nothing else."""

from __future__ import annotations

from repository.import_graph import modules

FRAMEWORKS = {"torchtitan", "megatron"}


def test_nothing_imports_it_but_itself() -> None:
    room = "schedc.runtime.frameworks"
    users = {name for name, (_, imports) in modules().items() for each in imports if f"{each.name}.".startswith(f"{room}.")}
    assert {name for name in users if not f"{name}.".startswith(f"{room}.")} == set()


def test_frameworks_are_imported_there_alone() -> None:
    users = {name for name, (_, imports) in modules().items() for each in imports if each.name.partition(".")[0] in FRAMEWORKS}
    assert {name for name in users if not name.startswith("schedc.runtime.frameworks.")} == set()
