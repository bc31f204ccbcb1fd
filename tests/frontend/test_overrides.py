"""Values that are set in a job: the same as in the file; what is wrong with one is said of who set it."""

from __future__ import annotations

import hashlib
import json
import tomllib
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st
from inputs.jobs import M70, write_job
from suite.example_counts import examples

from schedc.errors import InvalidInput
from schedc.frontend.job import checked_job, load_job
from schedc.frontend.job_source import option_override, python_override, source_of_table, with_overrides
from schedc.io.location import Location

if TYPE_CHECKING:
    from pathlib import Path

    from schedc.frontend.job import Job

TOPOLOGY = M70[M70.index("sites =") : M70.index("[data_parallel]")].replace("topology.", "")
OF_STAGES = '[profile]\nforward = "1 ms"\nbackward_input = "1 ms"\nbackward_weight = "1 ms"\n'


def toml(value: object) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


def path_of(value: object, sought: str) -> list[str]:
    """The path of the text in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if inner == sought:
            return [str(key)]
        if path := path_of(inner, sought):
            return [str(key), *path]
    return []


LINES = {}
for number, line in enumerate(M70.splitlines()):
    if " = " in line:
        changed = M70.splitlines()
        changed[number] = f'{line.split(" = ")[0]} = "sought"'
        LINES[number] = ".".join(path_of(tomllib.loads("\n".join(changed)), "sought"))

ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
SENSIBLE = st.sampled_from(["0 ms", "3 s", "1 GiB", "0 B", "5 GB/s", "wave", "loop", "bidirectional", "152 ms"])
SCALAR = st.booleans() | st.integers(-2, 20) | st.floats(-10, 10) | ASCII | SENSIBLE
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(ASCII, inner, max_size=2), max_leaves=9)


def outcome(load: Any) -> tuple[Job | None, str]:
    try:
        return load(), ""
    except InvalidInput as error:
        return None, str(error)


def same(one: Job | None, other: Job | None) -> bool:
    if one is None or other is None:
        return one is other
    return (one.file, one.workload, one.given_layout, one.given_problem) == (
        other.file, other.workload, other.given_layout, other.given_problem,
    )  # fmt: skip


def test_every_line_has_a_path() -> None:
    assert {"pipeline.ranks", "topology.between.latency", "topology.link.0.transfer", "solver.seed"} <= set(LINES.values())
    assert len(set(LINES.values())) == len(LINES)


@given(st.lists(st.tuples(st.sampled_from(sorted(LINES)), VALUE), min_size=1, max_size=3, unique_by=lambda change: change[0]))
@examples(50)
def test_set_is_the_same_as_editing_the_file(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, object]]) -> None:
    lines = M70.splitlines()
    for number, value in changes:
        lines[number] = f"{lines[number].split(' = ')[0]} = {toml(value)}"
    directory = tmp_path_factory.mktemp("job")
    edited, error = outcome(lambda: load_job(write_job(directory, "\n".join(lines))))
    path = write_job(directory, M70)
    options = [f"{LINES[number]}={toml(value)}" for number, value in changes]
    set_job, set_error = outcome(lambda: load_job(path, [option_override(option) for option in options]))
    assert same(edited, set_job), (error, set_error)
    if edited is None:
        assert set_error.isprintable()
        assert set_error.endswith(error[error.index(": found") :])
        assert set_error.startswith((*(f"--set {option}: found" for option in options), f"{path} with values set: ", "--set "))
    table = tomllib.loads(M70)
    values = [python_override(LINES[number], value) for number, value in changes]
    source = partial(source_of_table, table, directory=directory, name=directory.name, overrides=values)
    made, made_error = outcome(lambda: checked_job(source()))
    assert same(edited, made), (error, made_error)
    assert table == tomllib.loads(M70)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("pipeline.microbatches=0", "--set pipeline.microbatches=0: found 0, expected a whole number from 1"),
        ("pipeline.microbatchs=3", "--set pipeline.microbatchs=3: found an unknown key, expected one of ranks, "),
        ("pipelin.microbatches=3", "--set pipelin.microbatches=3: found an unknown key, expected one of name, "),
        ("memory.limt=8 GiB", "--set memory.limt=8 GiB: found an unknown key"),
        ("devices.sped=[1]", "--set devices.sped=[1]: devices.sped: found an unknown key, expected one of speed"),
        ("topology.between.latency=76", "--set topology.between.latency=76: found 76, expected a duration"),
        ('topology.between={latency="x"}', '--set topology.between={latency="x"}: topology.between.latency: found "x", expected a'),
        ("pipeline={ranks=3}", "--set pipeline={ranks=3}: pipeline.microbatches: found nothing, expected a whole number"),
        ("pipeline.ranks.x=3", "--set pipeline.ranks.x=3: found 8 at pipeline.ranks, expected a table or a list there"),
        ("topology.link[1].latency=1 ms", "--set topology.link[1].latency=1 ms: found no item 1 of the list topology.link"),
        ("topology.sites.x=1", "--set topology.sites.x=1: found no item x of the list topology.sites, expected one"),
        ("topology.sites[0]=3", "job.toml with values set: topology.sites: found [3, 4], 7 in all, expected sites that add up to"),
        ("pipeline.ranks", '--set: found "pipeline.ranks", expected KEY=VALUE'),
        ("=3", '--set =3: found the key "", expected the path of a key'),
        ("pipeline..ranks=3", '--set pipeline..ranks=3: found the key "pipeline..ranks", expected the path of a key'),
        ("x\ny=3", '--set x\\ny=3: found the key "x\\ny", expected the path of a key'),
        ("pipeline.ranks=" + "9" * 5000, "found \"999"),
        ("pipeline.ranks=" + "[" * 5000, "found \"[[["),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_of_the_option(tmp_path: Path, option: str, says: str) -> None:
    path = write_job(tmp_path, M70)
    job, error = outcome(lambda: load_job(path, [option_override(option)]))
    assert job is None and says in error and error.isprintable() and len(error) < 500


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32", 32),
        ('"152 ms"', "152 ms"),
        ("152 ms", "152 ms"),
        (" auto ", "auto"),
        ("true", True),
        ("[4, 4]", [4, 4]),
        ('{latency = "1 ms"}', {"latency": "1 ms"}),
        ("", ""),
        ("a=b", "a=b"),
        ("1\nother = 2", "1\nother = 2"),
        ("1.5 # of two", 1.5),
    ],
)
def test_a_value_is_toml_where_it_is_and_text_otherwise(text: str, value: object) -> None:
    assert option_override(f"a.b={text}").value == value


def test_values_are_set_in_their_order_and_the_document_stays() -> None:
    document = {"a": {"b": [1, {"c": 2}]}, "x": 1}
    before = json.dumps(document)
    options = ["a.b[1].c=3", "a.b.1.c=4", "d.e.f=5", "d.e.g=6", "x={y=7}", "x.y=8"]
    made, place = with_overrides(document, [option_override(option) for option in options], Location("f"))
    assert made == {"a": {"b": [1, {"c": 4}]}, "x": {"y": 8}, "d": {"e": {"f": 5, "g": 6}}}
    assert json.dumps(document) == before
    assert str((place / "a" / "b" / 1 / "c").error("is bad")) == "--set a.b.1.c=4: is bad"
    assert str((place / "d" / "e" / "h").error("is bad")) == "--set d.e.f=5: d.e.h: is bad"
    assert str((place / "a").error("is bad")) == "f with values set: a: is bad"
    made, _ = with_overrides(document, [option_override("a.b=9"), python_override("a", {"z": (1, 2)})], Location("f"))
    assert made["a"] == {"z": [1, 2]}


def test_values_of_a_topology_that_is_in_a_file(tmp_path: Path) -> None:
    """They are set in the file's table: the same as editing it; another path may be set first."""
    (tmp_path / "links.toml").write_text(TOPOLOGY, encoding="utf-8")
    whole = M70[: M70.index("[topology]")] + '[topology]\npath = "links.toml"\n' + M70[M70.index("[data_parallel]") :]
    path = write_job(tmp_path, whole)
    options = ["topology.between.latency=152 ms", "topology.link[0].transfer=1 ms", "pipeline.microbatches=8"]
    job = load_job(path, [option_override(option) for option in options])
    edited = M70.replace("76 ms", "152 ms").replace('transfer = "9.5 ms"', 'transfer = "1 ms"').replace("= 16", "= 8")
    assert job.problem == load_job(write_job(tmp_path, edited)).problem
    assert job.files == (path, tmp_path / "links.toml")
    path = write_job(tmp_path, whole)
    for option, says in (
        (
            "topology.betwen.latency=1 ms",
            "--set topology.betwen.latency=1 ms: found an unknown key, expected one of sites, inbound, within",
        ),
        ("topology.sites=[4]", "--set topology.sites=[4]: found [4], 4 in all, expected sites that add up to the 8 of"),
        ("topology.path=no.toml", '--set topology.path=no.toml: found "no.toml"; '),
    ):
        _, error = outcome(lambda option=option: load_job(path, [option_override(option)]))
        assert error.startswith(says)
    moved = M70[: M70.index("[topology]")] + M70[M70.index("[data_parallel]") :]
    options = ["topology.path=links.toml", "topology.between.latency=152 ms"]
    job = load_job(write_job(tmp_path, moved), [option_override(option) for option in options])
    assert job.problem == load_job(write_job(tmp_path, M70.replace("76 ms", "152 ms"))).problem


IN_FILE = {
    number: LINES[job_number]
    for number, line in enumerate(TOPOLOGY.splitlines())
    for job_number in [M70[: M70.index("sites =")].count("\n") + number]
    if " = " in line
}
"""The lines of the topology's file that have a key, and its path in the job."""


@given(st.lists(st.tuples(st.sampled_from(sorted(IN_FILE)), VALUE), min_size=1, max_size=3, unique_by=lambda change: change[0]))
@examples(25)
def test_set_is_the_same_as_editing_the_file_that_a_job_names(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, object]]
) -> None:
    lines = TOPOLOGY.splitlines()
    for number, value in changes:
        lines[number] = f"{lines[number].split(' = ')[0]} = {toml(value)}"
    directory = tmp_path_factory.mktemp("job")
    whole = M70[: M70.index("[topology]")] + '[topology]\npath = "links.toml"\n' + M70[M70.index("[data_parallel]") :]
    path, links = write_job(directory, whole), directory / "links.toml"
    links.write_text("\n".join(lines), encoding="utf-8")
    edited, error = outcome(lambda: load_job(path))
    links.write_text(TOPOLOGY, encoding="utf-8")
    options = [f"{IN_FILE[number]}={toml(value)}" for number, value in changes]
    set_job, set_error = outcome(lambda: load_job(path, [option_override(option) for option in options]))
    assert same(edited, set_job), (error, set_error)
    if edited is None:
        assert set_error.endswith(error[error.index(": found") :])
        assert set_error.startswith(("--set topology.", f"{links} with values set: ", f"{path}: "))


def test_values_of_a_profile_that_is_in_a_file(tmp_path: Path) -> None:
    layer = {"forward": "2 ms", "backward_input": "2 ms", "backward_weight": "2 ms"}
    profile = {"format": "schedc.profile", "version": 1, "layers": [layer, {**layer, "repeat": 3}]}
    (tmp_path / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    path = write_job(tmp_path, '[pipeline]\nranks = 2\nmicrobatches = 2\n[profile]\npath = "profile.json"\n')
    job = load_job(path, [option_override("profile.layers[1].forward=5 ms")])
    assert [layer.forward_ns for layer in job.workload.layers] == [(2_000_000,), *[(5_000_000,)] * 3]
    for option, says in (
        ("profile.layers[2].forward=5 ms", "found no item 2 of the list layers, expected one of its items 0 to 1"),
        ("profile.layers[1].forwrd=5 ms", "--set profile.layers[1].forwrd=5 ms: found an unknown key"),
        ("profile.layer=5 ms", "--set profile.layer=5 ms: found an unknown key, expected one of format, version, model, device"),
        (
            "profile.forward=5 ms",
            "--set profile.forward=5 ms: found a value beside profile.path, expected the costs here",
        ),
    ):
        _, error = outcome(lambda option=option: load_job(path, [option_override(option)]))
        assert says in error


def test_the_digest_is_of_the_text_and_of_what_was_set(tmp_path: Path) -> None:
    path = write_job(tmp_path, M70)
    job = load_job(path, [option_override('topology.between.latency="9 ms"'), option_override("topology.link[0].latency=1 ms")])
    lines = '--set topology.between.latency="9 ms"\n--set topology.link.0.latency="1 ms"\n'
    assert job.sha256 == hashlib.sha256(f"{M70}{lines}".encode()).hexdigest()
    assert job.sha256 == load_job(path, [python_override("topology.between.latency", "9 ms"), *job.source.overrides[1:]]).sha256
    assert load_job(path).sha256 == hashlib.sha256(M70.encode()).hexdigest()
