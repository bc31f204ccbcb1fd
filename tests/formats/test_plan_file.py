from __future__ import annotations

import json
import pickle
import re
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from inputs.plans import plans, small_plan
from inputs.workloads import random_workload

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_file import parse_plan, plan_json, read_plan, write_plan
from schedc.formats.plan.plan_structs import plan_schema
from schedc.ir.network import Link
from schedc.ir.ops import Kind
from schedc.ir.plan import MadeBy
from schedc.ir.problem import Objective
from schedc.ir.schedule import Parts
from schedc.lower.problem import problem_of
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from collections.abc import Callable

    from schedc.ir.plan import Plan


@given(plans())
def test_what_is_written_is_read_again(plan: Plan) -> None:
    content = plan_json(plan)
    assert parse_plan(content, "x") == plan
    assert plan_json(parse_plan(content, "x")) == content


def test_equal_plans_have_equal_bytes() -> None:
    """A copy from another process has texts of its own, which msgspec's `omit_defaults` does not take for the default ones."""
    plan = small_plan()
    copy: Plan = pickle.loads(pickle.dumps(plan))
    assert copy == plan
    assert plan_json(copy) == plan_json(plan)


def test_fields_that_random_plans_lack() -> None:
    plan = small_plan()
    stages = tuple(
        replace(
            stage,
            forward_ns=(1, 2, 3, 4),
            message_bytes=7,
            gradient_message_bytes=9,
            layers=(index, index + 1),
            static_bytes=(None, 0, 5)[index],
            parameters=(0, 7, 8)[index],
            expert_parameters=(0, 7, 0)[index],
        )
        for index, stage in enumerate(plan.problem.stages)
    )
    links = (
        Link(source=0, destination=1, bytes_per_second=5, trunk="söder"),
        Link(source=1, destination=0, latency_ns=3, transfer_ns=0),
    )
    problem = replace(
        plan.problem, stages=stages, links=links, memory_limit_bytes=(None, 0, 5), objective=Objective.STAGE_SPAN, name='"a\\n [/b]'
    )
    made_by = MadeBy(schedc="1", method="cpsat{workers=8}", seed=-3, job_sha256="ab", reproducible=False)
    parts = (Parts(kind=Kind.W, stage=1, shares=(1, 2)), Parts(kind=Kind.BW, stage=0, shares=(3, 1, 1)))
    certificate = replace(plan.certificate, solver_log_sha256="cd", objective=Objective.STAGE_SPAN)
    plan = replace(plan, problem=problem, made_by=made_by, parts=parts, certificate=certificate)
    assert parse_plan(plan_json(plan), "x") == plan


@pytest.mark.parametrize("seed", range(20))
def test_an_origin_is_read_again(seed: int) -> None:
    workload, layout = random_workload(Random(seed))
    problem = problem_of(workload, layout)
    plan = small_plan(origin=problem.origin)
    again = parse_plan(plan_json(plan), "x")
    assert again.problem.origin == problem.origin is not None
    assert plan_json(again) == plan_json(plan)
    without = parse_plan(plan_json(small_plan()), "x")
    assert without.problem.origin is None
    assert without == again  # they ask for the same


@pytest.mark.parametrize(
    ("change", "place"),
    [
        (lambda file: file["costs"]["links"].append(file["costs"]["links"][0]), "links[6]"),
        (lambda file: file["costs"]["links"][5].update(source=9), "links[5].source"),
        (lambda file: file["pipeline"]["stages"][2].update(layers=[5, 7]), "stages[2].layers"),
        (lambda file: file["pipeline"]["stages"][3].update(layers=[7, 7]), "stages[3].layers"),
        (lambda file: file["pipeline"].update(paths=[[0, 2, 1, 9]]), "paths[0][3]"),
    ],
)
def test_what_is_wrong_in_version_1_is_not_said_of_an_origin_which_it_does_not_have(
    change: Callable[[dict[str, Any]], None], place: str
) -> None:
    file = json.loads((Path(__file__).parent / "v1" / "plan.json").read_text())
    change(file)
    places = [violation.place for violation in verify_problem(parse_plan(json.dumps(file).encode(), "x").problem)]
    assert place in places
    assert [at for at in places if at.startswith("origin")] == []


def test_a_plan_that_does_not_say_what_stages_hold_all_the_time_is_read() -> None:
    plan = small_plan()
    assert "static_bytes" not in json.loads(plan_json(plan))["costs"]
    known = replace(plan, problem=replace(plan.problem, stages=tuple(replace(s, static_bytes=3) for s in plan.problem.stages)))
    table = json.loads(plan_json(known))
    assert table["costs"].pop("static_bytes") == [3, 3, 3]
    assert parse_plan(json.dumps(table).encode(), "x") == plan


def test_the_layout_is_the_format() -> None:
    text = plan_json(small_plan()).decode()
    assert text.startswith('{\n  "format": "schedc.plan",\n  "version": 2,\n  "name": "test",\n')
    assert text.endswith("\n")
    assert '      "compute": ["F0.0 F0.1 F0.2 BW0.0 F0.3 BW0.1 BW0.2 BW0.3"],\n' in text
    assert '        {"name": "recv_prev", "peer": 0, "transfers": ["F0.0 F0.1 F0.2 F0.3"], "post_before": ["0 0 1 5"]}\n' in text
    assert '"durations_ns": {"F": [10, 10, 10], "B": [10, 10, 10], "W": [10, 10, 10], "BW": [20, 20, 20]},\n' in text
    assert '"path_of": [0]\n' in text
    assert list(json.loads(text)) == ["format", "version", "name", "made_by", "certificate", "pipeline", "costs", "ranks"]


def test_lines_hold_at_most_16_tokens() -> None:
    plan = small_plan(microbatches=40, path_of=(0,) * 40)
    compute = json.loads(plan_json(plan))["ranks"][0]["compute"]
    assert [len(line.split(" ")) for line in compute] == [16] * 5
    assert parse_plan(plan_json(plan), "x") == plan


def test_write_and_read_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a.plan.json"
    write_plan(small_plan(), path)
    first = path.read_bytes()
    write_plan(read_plan(path), str(path))
    assert path.read_bytes() == first == plan_json(small_plan())
    with pytest.raises(InvalidInput, match=r"the directory .* does not exist"):
        write_plan(small_plan(), tmp_path / "no" / "a.plan.json")
    with pytest.raises(InvalidInput, match=r"b\.json: found no readable file \(no such file or directory\), expected a file"):
        read_plan(tmp_path / "b.json")
    with pytest.raises(InvalidInput, match=r"found no readable file \(is a directory\)"):
        read_plan(tmp_path)


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "another format": (lambda p: p.update(format="x"), 'format: found "x", expected "schedc.plan"'),
    "no format": (lambda p: p.pop("format"), 'format: found null, expected "schedc.plan"'),
    "a later version": (lambda p: p.update(version=3), "version: found 3, expected 1 or 2, the versions that this schedc reads"),
    "version true": (lambda p: p.update(version=True), "version: found true, expected 1 or 2, the versions that this schedc reads"),
    "version as text": (
        lambda p: p.update(version="1"),
        'version: found "1", expected 1 or 2, the versions that this schedc reads',
    ),
    "an origin in version 1": (
        lambda p: p.update(version=1, origin={"layers_of_stage": [], "network": {"site_of_rank": []}}),
        "origin: found a key that version 1 does not have, expected no such key",
    ),
    "a site below 0": (
        lambda p: p.update(origin={"layers_of_stage": [], "network": {"site_of_rank": [-1]}}),
        "origin.network.site_of_rank[0]: found -1, expected a whole number from 0 to 9007199254740991",
    ),
    "an origin without a network": (
        lambda p: p.update(origin={"layers_of_stage": []}),
        "origin.network: found nothing, expected a table",
    ),
    "a link of the topology to itself": (
        lambda p: p.update(
            origin={
                "layers_of_stage": [],
                "network": {"site_of_rank": [0], "links": [{"source": 2, "destination": 2, "latency_ns": 0}]},
            }
        ),
        "origin.network.links[0]: found a link from rank 2 to itself, expected two ranks",
    ),
    "no ranks": (lambda p: p.pop("ranks"), "ranks: found nothing, expected a list, each a table"),
    "ranks an object": (lambda p: p.update(ranks={}), "ranks: found an empty table, expected a list, each a table"),
    "a near key": (
        lambda p: p.update(costz={}),
        "costz: found an unknown key, expected one of format, version, name, made_by, certificate, pipeline, costs, origin,"
        " ranks;"
        " did you mean 'costs'?",
    ),
    "a near key inside": (
        lambda p: p["ranks"][1]["channels"][0].update(post_befor=[]),
        "ranks[1].channels[0].post_befor: found an unknown key, expected one of name, peer, transfers, post_before;"
        " did you mean 'post_before'?",
    ),
    "a strange key": (
        lambda p: p["costs"]["data_parallel"].update(qqqq=1),
        "costs.data_parallel.qqqq: found an unknown key, expected one of size, zero_stage, reduce_scatter_ns, all_gather_ns, trunk,"
        " gathered_bytes, gradient_bytes",
    ),
    "a number as text": (
        lambda p: p["certificate"].update(makespan_ns="5 ms"),
        'certificate.makespan_ns: found "5 ms", expected a whole number from 0 to 9007199254740991',
    ),
    "a fraction": (
        lambda p: p["certificate"].update(makespan_ns=1.5),
        "certificate.makespan_ns: found 1.5, expected a whole number from 0 to 9007199254740991",
    ),
    "a negative time": (
        lambda p: p["costs"]["links"][1].update(latency_ns=-1),
        "costs.links[1].latency_ns: found -1, expected a whole number from 0 to 9007199254740991",
    ),
    "a time without end": (
        lambda p: p["costs"]["links"][1].update(latency_ns=10**30),
        f"costs.links[1].latency_ns: found {10**30}, expected a whole number from 0 to {2**53 - 1}",
    ),
    "no bandwidth": (
        lambda p: p["costs"]["links"][0].update(bytes_per_second=0),
        "costs.links[0].bytes_per_second: found 0, expected a whole number from 1 to 9007199254740991",
    ),
    "a link to itself": (
        lambda p: p["costs"]["links"][2].update(destination=1),
        "costs.links[2]: found a link from rank 1 to itself, expected two ranks",
    ),
    "a bad op": (
        lambda p: p["ranks"][2].update(compute=["F2.0 F2.1", "F2.2 X2.0"]),
        "ranks[2].compute[1]: 'X2.0' is not an op; expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0",
    ),
    "an op with a leading zero": (
        lambda p: p["ranks"][2].update(compute=["F02.0"]),
        "ranks[2].compute[0]: 'F02.0' is not an op; expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0",
    ),
    "an op in other digits": (
        lambda p: p["ranks"][0].update(compute=["F0.1\u0662"]),
        "ranks[0].compute[0]: found 'F0.1\u0662', expected an op as in F3.12, B3.12, W3.12, BW3.12 or W3.12/0",
    ),
    "an op of thousands of digits": (
        lambda p: p["ranks"][0].update(compute=["F" + "9" * 5000 + ".0"]),
        f"ranks[0].compute[0]: found 'F{'9' * 63}', expected an op as in F3.12, B3.12, W3.12, BW3.12 or W3.12/0",
    ),
    "a bad transfer": (
        lambda p: p["ranks"][0]["channels"][1].update(transfers=["BW1.0,BW1.1"]),
        "ranks[0].channels[1].transfers[0]: 'BW1.0,BW1.1' is not an op;"
        " expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0",
    ),
    "a bad index": (
        lambda p: p["ranks"][0]["channels"][1].update(post_before=["0 -1"]),
        "ranks[0].channels[1].post_before[0]: found '-1', expected an index of the compute queue as in 0 or 17",
    ),
    "indices as numbers": (
        lambda p: p["ranks"][0]["channels"][1].update(post_before=[0, 1]),
        "ranks[0].channels[1].post_before[0]: found 0, expected text",
    ),
    "a bad collective": (
        lambda p: p["ranks"][0].update(collectives=["AR0"]),
        "ranks[0].collectives[0]: found 'AR0', expected a collective as in RS3 or AG3, with its places AG3@0-17",
    ),
    "a list as one text": (
        lambda p: p["ranks"][0].update(compute="F0.0"),
        'ranks[0].compute: found "F0.0", expected a list, each text',
    ),
    "one duration too few": (
        lambda p: p["costs"]["durations_ns"].update(W=[1, 2]),
        "costs.durations_ns.W: found 2 values, expected 3, one for each of pipeline.stages",
    ),
    "no duration": (
        lambda p: p["costs"]["durations_ns"].update(W=[1, [], 2]),
        "costs.durations_ns.W[1]: found an empty list, expected one duration, or one for each microbatch",
    ),
    "one stage too many": (
        lambda p: p["pipeline"]["stages"].append({"rank": 0}),
        "costs.durations_ns.F: found 3 values, expected 4, one for each of pipeline.stages",
    ),
    "more held than there is": (
        lambda p: p["costs"].update(activation_after_input_bytes=[0, 9, 0]),
        "costs.activation_after_input_bytes[1]: found 9, expected at most what the stage holds in all, 2",
    ),
    "recomputed, though it does not": (
        lambda p: p["costs"].update(recomputed_bytes=[0, 9, 0]),
        "costs.recomputed_bytes[1]: found 9, expected 0, as the stage does not recompute",
    ),
    "more parameters of experts than there are": (
        lambda p: p["pipeline"]["stages"][1].update(parameters=3, expert_parameters=4),
        "pipeline.stages[1].expert_parameters: found 4, expected at most the stage's parameters, 3",
    ),
    "static bytes of one stage alone": (
        lambda p: p["costs"].update(static_bytes=[7]),
        "costs.static_bytes: found 1 values, expected 3, one for each of pipeline.stages",
    ),
    "static bytes below 0": (
        lambda p: p["costs"].update(static_bytes=[7, -1, None]),
        "costs.static_bytes[1]: found -1, expected a whole number from 0 to 9007199254740991",
    ),
    "one part": (
        lambda p: p["costs"].update(parts=[{"kind": "W", "stage": 0, "shares": [1]}]),
        "costs.parts[0].shares: found [1], expected the shares of two or more parts",
    ),
    "parts of what does not exist": (
        lambda p: p["costs"].update(parts=[{"kind": "Q", "stage": 0, "shares": [1, 1]}]),
        'costs.parts[0].kind: found "Q", expected text that matches ^(F|B|W|BW)$',
    ),
    "another objective": (
        lambda p: p["costs"].update(objective="speed"),
        'costs.objective: found "speed", expected "makespan" or "stage-span"',
    ),
    "layers without an end": (
        lambda p: p["pipeline"]["stages"][0].update(layers=[1]),
        "pipeline.stages[0].layers: found [1], expected a list of 2, each a whole number from 0 to 9007199254740991",
    ),
    "microbatches without end": (
        lambda p: p["pipeline"].update(microbatches=10**15),
        "pipeline.microbatches: found 1000000000000000, but the compute queues hold 24 ops in all,"
        " expected one op or more for each microbatch",
    ),
    "ranks without end": (
        lambda p: p["pipeline"].update(ranks=10**15),
        "pipeline.ranks: found 1000000000000000, but 3 in pipeline.stages, expected one stage or more for each rank",
    ),
    "no microbatch": (
        lambda p: p["pipeline"].update(microbatches=0),
        "pipeline.microbatches: found 0, expected a whole number from 1 to 9007199254740991",
    ),
    "a long text": (
        lambda p: p.update(name=["n" * 100]),
        "name: found a list of 1 values, expected printable text on one line",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_plans_are_refused_in_one_line(name: str) -> None:
    edit, message = BAD[name]
    value = json.loads(plan_json(small_plan()))
    edit(value)
    with pytest.raises(InvalidInput) as raised:
        parse_plan(json.dumps(value).encode(), "a.json")
    assert str(raised.value) == f"a.json: {message}"


WHOLE = plan_json(small_plan())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "line 1, column 1: found text that is not JSON (Expecting value), expected JSON"),
        (WHOLE[:-3], "line 71, column 4: found text that is not JSON ("),
        (WHOLE[: len(WHOLE) // 2], "line 39, column 23: found text that is not JSON (Unterminated string"),
        (WHOLE + b"}", "line 73, column 1: found text that is not JSON (Extra data), expected JSON"),
        (b"pipeline: 8\n", "line 1, column 1: found text that is not JSON ("),
        (b"\x89PNG\r\n", "line 1: found a byte that is not UTF-8 (0x89), expected UTF-8"),
        (WHOLE.replace(b"test", b"\xe4"), "line 4: found a byte that is not UTF-8 (0xe4), expected UTF-8"),
        (b"[]", "found a list, expected a JSON object, { … }"),
        (b"null", "found null, expected a JSON object, { … }"),
        (b"# a job\n[pipeline]\nranks = 2\n", "found a job (TOML), expected a plan (JSON)"),
        (
            WHOLE.replace(b'"test"', b"7").replace(b'"seed": 0', b'"seed": ' + b"9" * 5000),
            "found text that is not JSON (a number of too many digits), expected JSON",
        ),
        (b'{"a":' + b"[" * 100_000, "found values nested too deeply, expected JSON"),
        (
            WHOLE.replace(b'"seed": 0', b'"seed": NaN'),
            "found text that is not JSON (JSON is malformed: invalid character",
        ),
        (re.sub(rb'"gap": [0-9.]+', b'"gap": 1e999', WHOLE), "certificate.gap: found inf, expected a number"),
    ],
)
def test_garbage_is_refused_in_one_line(content: bytes, message: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        parse_plan(content, "a.json")
    assert str(raised.value).startswith(f"a.json: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@given(plans())
def test_half_a_file_is_no_plan(plan: Plan) -> None:
    content = plan_json(plan)
    with pytest.raises(InvalidInput):
        parse_plan(content[: len(content) // 3], "a.json")


def test_blanks_between_tokens_do_not_matter() -> None:
    value = json.loads(WHOLE)
    tokens = value["ranks"][0]["compute"][0].split()
    value["ranks"][0]["compute"] = ["", f"  {tokens[0]}", "   ".join(tokens[1:]) + " "]
    assert parse_plan(json.dumps(value).encode(), "x") == small_plan()


def test_the_schema_names_every_key() -> None:
    schema = plan_schema()
    definitions = schema["$defs"]
    assert [key for key in definitions["PlanFile"]["properties"] if key != "origin"] == list(json.loads(WHOLE))
    assert definitions["PlanFile"]["additionalProperties"] is False
    assert definitions["ChannelEntry"]["required"] == ["name", "peer", "transfers"]
    assert json.loads(json.dumps(schema)) == schema
