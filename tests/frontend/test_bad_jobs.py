"""Every bad job is refused in one line that names the file, the key, what was found and what is expected."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, strategies as st
from inputs.jobs import M70, write_job
from suite.example_counts import examples

from schedc.errors import InvalidInput
from schedc.frontend.job import load_job
from schedc.verify.problem import verify_problem

if TYPE_CHECKING:
    from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Bad:
    """The M70 job with `old` replaced by `new`, and what the message about it must contain, in this order."""

    old: str
    new: str
    says: tuple[str, ...]


def bad(old: str, new: str, *says: str) -> Bad:
    return Bad(old, new, says)


SITES = M70[M70.index("sites =") : M70.index("[data_parallel]")]
MEMORY = 'limit = "8 GiB"'
TIMES = M70[M70.index("forward =") : M70.index("activation =")]

BAD = {
    # keys
    "unknown section": bad("[memory]", "[memroy]", "memroy: ", "unknown key", "one of name, pipeline", "did you mean 'memory'?"),
    "unknown key": bad("ranks = 8", "rank = 8", "pipeline.rank: ", "unknown key", "ranks, microbatches", "did you mean 'ranks'?"),
    "unknown key, in capitals": bad("ranks = 8", "RANKS = 8", "pipeline.RANKS: ", "did you mean 'ranks'?"),
    "unknown key in a link": bad(
        'transfer = "9.5 ms"', 'tranfser = "9.5 ms"', "topology.link[0].tranfser: ", "did you mean 'transfer'?"
    ),
    "key of another section": bad(
        "microbatches = 16", "microbatches = 16\nzero_stage = 1", "pipeline.zero_stage: ", "did you mean data_parallel.zero_stage?"
    ),
    "key that is like nothing": bad("seed = 0", "qqq = 0", "solver.qqq: ", "one of method, time_limit, gap, seed"),
    "quoted key with a line break": bad("seed = 0", '"a\\nb" = 0', 'solver."a\\nb": ', "unknown key"),
    "section missing": bad("[pipeline]\nranks = 8\nmicrobatches = 16", "", "pipeline: ", "found nothing", "a table"),
    "key missing": bad("microbatches = 16", "", "pipeline.microbatches: ", "found nothing", "a whole number from 1 to 1048576"),
    "section that is a value": bad("[objective]", "[[objective]]", "objective: found [a table], expected a table"),
    # types and ranges
    "text for a number": bad("ranks = 8", 'ranks = "8"', 'pipeline.ranks: found "8", expected a whole number from 1 to 1048576'),
    "true for a number": bad("ranks = 8", "ranks = true", "pipeline.ranks: found true, expected a whole number"),
    "fraction for a whole number": bad("ranks = 8", "ranks = 8.0", "pipeline.ranks: found 8.0, expected a whole number"),
    "no ranks": bad("ranks = 8", "ranks = 0", "pipeline.ranks: found 0, expected a whole number from 1 to 1048576"),
    "negative microbatches": bad(
        "batches = 16", "batches = -1", "pipeline.microbatches: found -1, expected a whole number from 1 to"
    ),
    "giant ranks": bad("ranks = 8", f"ranks = 1{'0' * 80}", "pipeline.ranks: found a number of more than 60 digits", "from 1 to"),
    "number too long for anything": bad("ranks = 8", f"ranks = 1{'0' * 5000}", "a number of too many digits", "expected TOML"),
    "too many ops": bad(
        "microbatches = 16",
        "microbatches = 1000000",
        "pipeline.microbatches: found 1000000, which makes 24000000 compute ops",
        "expected at most 41666 for 8 stages, as a plan has at most 1000000 compute ops",
    ),
    "too many stages": bad("ranks = 8", "ranks = 70000", "pipeline: found 70000 stages, expected at most 16384"),
    "number for true": bad("batches = 16", "batches = 16\nsplit_backward = 1", "pipeline.split_backward: found 1", "true or false"),
    "nan": bad("gap = 0.0", "gap = nan", "solver.gap: found nan, expected a number of at least 0 and below 1"),
    "infinity": bad("gap = 0.0", "gap = inf", "solver.gap: found inf, expected a number"),
    "gap of 1": bad("gap = 0.0", "gap = 1", "solver.gap: found 1, expected a number of at least 0 and below 1"),
    "negative seed": bad("seed = 0", "seed = -1", "solver.seed: found -1, expected a whole number of at least 0"),
    "no method": bad('method = "auto"', 'method = ""', 'solver.method: found "", expected text of at least one character'),
    "date for a number": bad("ranks = 8", "ranks = 2024-01-02", "pipeline.ranks: found 2024-01-02, expected a whole number"),
    "table for a duration": bad('forward = "38 ms"', "forward = {ms = 38}", "profile.forward: found a table, expected a duration"),
    "objective": bad(
        '"makespan"', '"stage_span"', "objective.minimize: ", '"stage_span"', '"makespan" or "stage-span"', "'stage-span'"
    ),
    "name of two lines": bad("[pipeline]", 'name = "a\\nb"\n[pipeline]', 'name: found "a\\nb", expected printable text'),
    # quantities
    "bare duration": bad(
        'forward = "38 ms"', "forward = 38", "profile.forward: found 38, ", 'a duration such as "38 ms" or a list'
    ),
    "duration without unit": bad(
        'forward = "38 ms"',
        'forward = "38"',
        'profile.forward: found "38", expected a duration such as "38 ms" (ns, us, ms, s or min)',
    ),
    "unit in capitals": bad('forward = "38 ms"', 'forward = "38 MS"', 'profile.forward: found "38 MS"', "did you mean ms?"),
    "negative duration": bad('forward = "38 ms"', 'forward = "-38 ms"', 'profile.forward: found "-38 ms", expected at least 0'),
    "giant duration": bad('forward = "38 ms"', 'forward = "9999999 min"', 'profile.forward: found "9999999 min", expected at most'),
    "size as duration": bad(
        'latency = "76 ms"', 'latency = "76 MB"', 'topology.between.latency: found "76 MB", expected a duration'
    ),
    "bare latency": bad('latency = "76 ms"', "latency = 76", "topology.between.latency: found 76, expected a duration such as"),
    "bandwidth per nothing": bad(
        '"50 GB/s"', '"50 GB"', 'topology.within.bandwidth: found "50 GB"', 'a bandwidth such as "50 GB/s"'
    ),
    "no bandwidth": bad('"50 GB/s"', '"0 GB/s"', 'topology.within.bandwidth: found "0 GB/s"', "at least 1 B/s"),
    "one bad value of a list": bad(
        'forward = "38 ms"', 'forward = ["1 ms", "2 ms", "3"]', 'profile.forward[2]: found "3", expected a duration'
    ),
    "long text is cut": bad(
        'forward = "38 ms"', f'forward = "{"x" * 500}"', 'profile.forward: found "xxx', '…", expected a duration'
    ),
    # profile
    "list too short": bad(
        'forward = "38 ms"', 'forward = ["38 ms", "38 ms"]', "profile.forward: found 2 values, expected 8, one per stage"
    ),
    "empty list": bad('forward = "38 ms"', "forward = []", "profile.forward: found 0 values, expected 8"),
    "no forward": bad('forward = "38 ms"\n', "", "profile.forward: found nothing, expected a duration"),
    "no backward": bad('backward_weight = "20.5 ms"\n', "", "profile.backward_weight: found nothing, expected a duration"),
    "holds more than there is": bad(
        '"512 MiB"', '"2 GiB"', "profile.activation_after_input: found 2 GiB (2147483648 B), expected at most the activation, 1 GiB"
    ),
    "no message on a link with bandwidth": bad(
        'message = "64 MiB"', "", "profile.message: found no message size of stage 0", "from rank 0 to rank 1 has a bandwidth"
    ),
    "costs twice": bad('forward = "38 ms"', 'path = "p.json"\nforward = "38 ms"', "profile.forward: ", "beside profile.path"),
    "no profile file": bad(TIMES, 'path = "p.json"\n', "profile.activation: found a value beside profile.path"),
    "step of years": bad(
        TIMES, TIMES.replace(" ms", "0000 s"), "profile: found work and transfers of ", "expected at most 9007199.255 s"
    ),
    "petabytes": bad(
        'activation = "1 GiB"',
        'activation = "900 TiB"',
        "profile: found activations of 14400 TiB on rank 0 in all, expected at most 8192 TiB",
    ),
    # pipeline
    "placement": bad(
        "batches = 16",
        'batches = 16\nplacement = "wavy"',
        'pipeline.placement: found "wavy"',
        '"unidirectional"',
        "did you mean 'wave'?",
    ),
    "rank that does not exist": bad(
        "ranks = 8\n", "ranks = 2\nplacement = [0, 1, 2]\n", "pipeline.placement: found [0, 1, 2]", "stage 2 is on rank 2", "0 to 1"
    ),
    "rank without stage": bad(
        "ranks = 8\n", "ranks = 2\nplacement = [0, 0]\n", "pipeline.placement: found [0, 0]", "rank 1 has no stage"
    ),
    "empty placement": bad("ranks = 8\n", "ranks = 2\nplacement = []\n", "pipeline.placement: found []", "rank 0 has no stage"),
    "negative rank": bad("ranks = 8\n", "ranks = 2\nplacement = [0, -1]\n", "pipeline.placement[1]: found -1", "from 0"),
    "wave of one chunk": bad("batches = 16", 'batches = 16\nplacement = "wave"', "pipeline.chunks: found 1", "2 or more chunks"),
    "chunks of no wave": bad("batches = 16", "batches = 16\nchunks = 2", "pipeline.chunks: found 2", "1 chunk per rank"),
    "chunks against the list": bad(
        "ranks = 8\n", "ranks = 2\nplacement = [0, 1, 0]\nchunks = 2\n", "pipeline.chunks: found 2, expected the 1 stages"
    ),
    "partition too short": bad(
        "batches = 16", "batches = 16\npartition = [1, 2]", "pipeline.partition: found 2 values, expected 8"
    ),
    "partition with nothing": bad(
        "batches = 16",
        "batches = 16\npartition = [1, 0]",
        "pipeline.partition[1]: found 0, expected a whole number from 1 to 1048576",
    ),
    "placement to be chosen": bad(
        "batches = 16",
        'batches = 16\nplacement = "auto"',
        'pipeline.placement: found "auto" for costs by stage, expected a name or a list, or a profile.json in profile.path',
    ),
    "recomputation to be chosen on two paths": bad(
        "batches = 16",
        'batches = 16\nplacement = "bidirectional"\nrecompute = "auto"',
        'pipeline.recompute: found "auto" where pipeline.placement is "bidirectional", expected "none", "full" or a list',
    ),
    "partition to be chosen on two paths": bad(
        "batches = 16",
        'batches = 16\nplacement = "bidirectional"\npartition = "auto"',
        'pipeline.partition: found "auto" where pipeline.placement is "bidirectional", expected no such key for the balanced',
    ),
    "recomputation to be chosen for torch": bad(
        "batches = 16",
        'batches = 16\nsemantics = "torch"\nrecompute = "auto"',
        'pipeline.recompute: found "auto" where pipeline.semantics is "torch", expected "none"',
    ),
    "order of another kind": bad(
        "batches = 16",
        'batches = 16\nmicrobatch_order = "best"',
        'pipeline.microbatch_order: found "best", expected "auto" or "given"',
    ),
    "recomputation of some stages": bad(
        "batches = 16", "batches = 16\nrecompute = [true]", "pipeline.recompute: found 1 value, expected 8, one per stage"
    ),
    "recomputation in torch": bad(
        "batches = 16",
        'batches = 16\nrecompute = "full"\nsemantics = "torch"',
        'pipeline.recompute: found "full" where pipeline.semantics is "torch", expected "none"',
    ),
    "recomputation of what kind": bad(
        "batches = 16", 'batches = 16\nrecompute = "all"', 'found "all", expected "auto", "full" or "none" or a list'
    ),
    "microbatches that differ": bad(
        'forward = "38 ms"',
        'forward = ["1 ms", ["1 ms", "2 ms"], "1 ms", "1 ms", "1 ms", "1 ms", "1 ms", "1 ms"]',
        "profile.forward[1]: found 2 values, expected 16, one per microbatch",
    ),
    "a microbatch without unit": bad(
        'forward = "38 ms"', 'forward = [["1 ms", "2"]]', 'profile.forward[0][1]: found "2", expected a duration such as "38 ms"'
    ),
    # devices
    "speeds of some ranks": bad("[memory]", "[devices]\nspeed = [1, 0.5]\n[memory]", "devices.speed: found 2 values, expected 8"),
    "no speed": bad("[memory]", "[devices]\nspeed = [0]\n[memory]", "devices.speed[0]: found 0, expected a number from 0.001 to"),
    # memory
    "two limits": bad(MEMORY, f"{MEMORY}\nin_flight = 8", "memory: found limit and in_flight, expected one of limit"),
    "no limit": bad(MEMORY, "", "memory: found none of the keys, expected one of limit, in_flight or capacity"),
    "limits of some ranks": bad(MEMORY, 'limit = ["8 GiB"]', "memory.limit: found 1 value, expected 8, one per rank"),
    "nothing in flight": bad(MEMORY, "in_flight = 0", "memory.in_flight: found 0, expected a whole number from 1 to 1048576"),
    "static alone": bad(MEMORY, f'{MEMORY}\nstatic = "1 GiB"', "memory.static: ", "without memory.capacity"),
    "bytes without capacity": bad(MEMORY, f"{MEMORY}\nbytes_per_parameter = 16", "memory.bytes_per_parameter: ", "without memory."),
    "bytes of no parameters": bad(
        MEMORY, 'capacity = "1 GiB"\nbytes_per_parameter = 16', "memory.bytes_per_parameter: ", "layers without parameters"
    ),
    "static in two ways": bad(
        MEMORY,
        'capacity = "9 GiB"\nstatic = "1 GiB"\nbytes_per_parameter = 16',
        "memory.bytes_per_parameter: found a value beside memory.static, expected one of the two",
    ),
    "reserve without capacity": bad(MEMORY, f'{MEMORY}\nreserve = "1 GiB"', "memory.reserve: ", "without memory.capacity"),
    "reserve above capacity": bad(
        MEMORY,
        'capacity = "1 GiB"\nstatic = "0 B"\nreserve = "2 GiB"',
        "memory.reserve: found 2 GiB, expected at most the capacity, 1 GiB",
    ),
    "experts' bytes alone": bad(
        MEMORY, 'capacity = "1 GiB"\nstatic = "0 B"\nbytes_per_expert_parameter = 16', "without memory.bytes_per_parameter"
    ),
    "a reserve of no capacities": bad(
        MEMORY,
        'capacity = []\nstatic = "0 B"\nreserve = "2 GiB"',
        "memory.capacity: found 0 values, expected ",
        "one per rank",
    ),
    "static over capacity with a reserve": bad(
        MEMORY,
        'capacity = "8 GiB"\nreserve = "1 GiB"\nstatic = "9 GiB"',
        "memory.capacity: found 7 GiB after a reserve of 1 GiB, expected at least the 9 GiB that is static on rank 0",
        "; more ranks, or less for each parameter",
    ),
    "capacity alone": bad(MEMORY, 'capacity = "80 GiB"', "memory.static: found nothing, expected a size"),
    "static over capacity": bad(
        MEMORY,
        'capacity = "8 GiB"\nstatic = "9 GiB"',
        "memory.capacity: found 8 GiB",
        "at least the 9 GiB that is static on rank 0",
    ),
    "limit of nothing": bad(
        'activation = "1 GiB"\nactivation_after_input = "512 MiB"\n',
        "",
        "memory.limit: ",
        "activations of no size",
        "profile.activation",
    ),
    # topology
    "sites do not add up": bad("[4, 4]", "[4, 3]", "topology.sites: found [4, 3], 7 in all, expected", "the 8 of pipeline.ranks"),
    "empty site": bad("[4, 4]", "[8, 0]", "topology.sites[1]: found 0, expected a whole number from 1 to 1048576"),
    "between one site": bad("sites = [4, 4]", "", "topology.between: ", "all ranks are in one site", "topology.sites"),
    "nothing between": bad(
        '[topology.between]\nlatency = "76 ms"\nbandwidth = "0.9 GB/s"\n',
        "",
        "topology.between: found nothing, expected a table, as ranks 3 and 4 are in the sites 0 and 1",
    ),
    "occupancy twice": bad(
        '"50 GB/s"', '"50 GB/s"\ntransfer = "1 ms"', "topology.within.transfer: found both bandwidth and transfer"
    ),
    "link to itself": bad("ranks = [1, 2]", "ranks = [2, 2]", "topology.link[0].ranks: found [2, 2], expected two different ranks"),
    "link to nowhere": bad(
        "ranks = [1, 2]", "ranks = [1, 8]", "topology.link[0].ranks: found [1, 8], expected two of the ranks 0 to 7"
    ),
    "link of three": bad("ranks = [1, 2]", "ranks = [1, 2, 3]", "topology.link[0].ranks: found [1, 2, 3], expected a list of 2"),
    "link twice": bad(
        "[data_parallel]",
        '[[topology.link]]\nranks = [2, 1]\ndirected = true\nlatency = "1 ms"\n[data_parallel]',
        "topology.link[1].ranks: found [2, 1], which topology.link[0] gives already",
    ),
    "link without cost": bad(
        'latency = "9.5 ms"\ntransfer = "9.5 ms"', "", "topology.link[0]: found neither latency nor bandwidth nor transfer"
    ),
    "site that does not exist": bad(
        "[data_parallel]",
        '[[topology.site_link]]\nsites = [0, 2]\nlatency = "1 ms"\n[data_parallel]',
        "topology.site_link[0].sites: found [0, 2], expected two of the sites 0 to 1",
    ),
    "no topology file": bad(SITES, 'path = "no.toml"\n\n', 'topology.path: found "no.toml"; ', "no.toml: found no readable file"),
    "topology twice": bad("sites = [4, 4]", 'path = "t.toml"', "topology: found other keys beside topology.path"),
    # data parallel
    "zero stage": bad("zero_stage = 1", "zero_stage = 2", "data_parallel.zero_stage: found 2, expected 0, 1 or 3"),
    "zero stage true": bad("zero_stage = 1", "zero_stage = true", "data_parallel.zero_stage: found true, expected 0, 1 or 3"),
    "shards of no size": bad("zero_stage = 1", 'zero_stage = 3\ngathered = "1 GiB"', "data_parallel.gradients: found nothing"),
    "sizes without shards": bad("zero_stage = 1", 'zero_stage = 1\ngathered = "1 GiB"', "data_parallel.gathered: found a value"),
    "bandwidth without shards": bad(
        "zero_stage = 1", 'zero_stage = 1\nbandwidth = "1 GB/s"', "data_parallel.bandwidth: found a value"
    ),
    "latency without bandwidth": bad("zero_stage = 1", 'zero_stage = 1\nlatency = "1 us"', "data_parallel.latency: found a value"),
    "gather without shards": bad("zero_stage = 1", "zero_stage = 0", "data_parallel.all_gather: ", "zero_stage is 0"),
    "no gather": bad('all_gather = "60 ms"', "", "data_parallel.all_gather: found nothing", "zero_stage is 1"),
    "gather of some stages": bad('"60 ms"', '["60 ms"]', "data_parallel.all_gather: found 1 value, expected 8, one per stage"),
    "trunk of nobody": bad("size = 4", "size = 4\ntrunk = [0, 2]", "data_parallel.trunk: found [0, 2]", "site0>site1, site1>site0"),
    # TOML
    "not TOML": bad("ranks = 8", "ranks =", "line 2, column 8: found text that is not TOML", "expected TOML"),
    "key twice": bad(
        "ranks = 8", "ranks = 8\nranks = 9", "line 3, column 10: found text that is not TOML", "Cannot overwrite a value"
    ),
    "cut off": bad("seed = 0\n", "seed = [", "end of the file: found text that is not TOML"),
    "nested too deeply": bad("ranks = 8", f"ranks = {'[' * 5000}{']' * 5000}", "values nested too deeply"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_job(name: str, tmp_path: Path) -> None:
    case = BAD[name]
    assert case.old in M70
    path = write_job(tmp_path, M70.replace(case.old, case.new, 1))
    check(path, f"{path}: ", *case.says)


def check(path: Path, *says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        load_job(path)
    message = str(caught.value)
    assert message.isprintable(), "one line"
    assert len(message) < 500
    assert caught.value.exit_status == 2
    at = 0
    for part in says:
        assert part in message[at:], message
        at = message.index(part, at) + len(part)
    assert ", expected " in message or "; " in message


def test_the_job_itself_is_good(tmp_path: Path) -> None:
    assert load_job(write_job(tmp_path, M70)).problem.ranks == 8


def test_no_file(tmp_path: Path) -> None:
    check(tmp_path / "none.toml", f"{tmp_path}/none.toml: found no readable file (no such file or directory), expected a file")


def test_directory(tmp_path: Path) -> None:
    check(tmp_path, f"{tmp_path}: found no readable file (is a directory), expected a file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_forbidden_file(tmp_path: Path) -> None:
    path = write_job(tmp_path, M70)
    path.chmod(0)
    check(path, "found no readable file (permission denied), expected a file")


def test_empty_file(tmp_path: Path) -> None:
    check(write_job(tmp_path, ""), "pipeline: found nothing, expected a table")


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_bytes(M70.encode().replace(b"[memory]", b"# d\xe9j\xe0 vu\n[memory]"))
    check(path, "line 13: found a byte that is not UTF-8 (0xe9), expected UTF-8")


def test_file_name_with_a_line_break(tmp_path: Path) -> None:
    check(write_job(tmp_path, "x = 1", "a\nb.toml"), f"{tmp_path}/a\\nb.toml: x: found an unknown key")


def toml(value: object) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else json.dumps(value)


LINES = [index for index, line in enumerate(M70.splitlines()) if " = " in line]
ASCII = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
SENSIBLE = st.sampled_from(
    ["0 ms", "3 s", "1 GiB", "0 B", "5 GB/s", "wave", "loop", "bidirectional", "site0", "job.toml", ".", "\0"]
)
SCALAR = st.booleans() | st.integers(-2, 20) | st.integers() | st.floats(-10, 10) | ASCII | SENSIBLE
VALUE = st.recursive(SCALAR, lambda inner: st.lists(inner, max_size=9) | st.dictionaries(ASCII, inner, max_size=2), max_leaves=9)


@given(st.lists(st.tuples(st.sampled_from(LINES), VALUE), min_size=1, max_size=3))
@examples(150)
def test_any_values(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, object]]) -> None:
    """Whatever a job has, it is read or refused in one line."""
    lines = M70.splitlines()
    for index, value in changes:
        lines[index] = f"{lines[index].split(' = ')[0]} = {toml(value)}"
    path = write_job(tmp_path_factory.mktemp("job"), "\n".join(lines))
    try:
        assert verify_problem(load_job(path).problem) == ()
    except InvalidInput as error:
        message = str(error)
        assert message.isprintable()
        assert message.startswith(f"{path}: ")
        assert "expected" in message or "; " in message
