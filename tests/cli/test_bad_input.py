"""What is wrong with a command line or a file is said in one line, with an exit status, and nothing is left behind.

Each row of the table is a command line, the changed files it is about, the exit status and the line on standard error. They run in
this process, in a directory with one good file of each kind; a few that are about the process itself run as one.
"""

# ruff: noqa: E501 - one line for each row, as long as it is

from __future__ import annotations

import gzip
import os
import re
import shlex
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest
from inputs.traces import trace_of_timelines
from msgspec import inspect
from suite.command_line import content, run

from schedc.analysis.simulation.simulate import simulate
from schedc.formats.plan.plan_file import read_plan
from schedc.formats.trace_file import write_trace_file
from schedc.solvers.common.method import Method
from schedc.solvers.driver.registry import methods

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

JOB = """\
name = "small"
[pipeline]
ranks = 2
microbatches = 4
[profile]
path = "profile.json"
[topology]
path = "links.toml"
"""
VALUES = """\
[pipeline]
ranks = 2
microbatches = 4
[profile]
forward = "38 ms"
backward_input = "46 ms"
backward_weight = "20 ms"
activation = "1 GiB"
message = "64 MiB"
[topology.within]
bandwidth = "50 GB/s"
"""
PROFILE = """\
{"format": "schedc.profile", "version": 1, "layers": [
  {"repeat": 2, "forward": "38 ms", "backward_input": "46 ms", "backward_weight": "20 ms", "message": "1 MiB"}]}
"""
LINKS = '[within]\nlatency = "1 ms"\nbandwidth = "50 GB/s"\n'
MARK = b"\xef\xbb\xbf"


class Row(NamedTuple):
    """A command that must fail."""

    command: str
    status: int
    said: str
    """The line on standard error, less `schedc: `, `{here}` being the directory; `{any}` any text;
    where the option parser prints its usage, the last of its lines."""
    changes: Mapping[str, bytes | str | tuple[str, str]] = {}
    """Files that are different: their content, or a text in them and what replaces it."""


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with one good file of each kind."""
    directory = tmp_path_factory.mktemp("good")
    for name, text in (("job.toml", JOB), ("values.toml", VALUES), ("profile.json", PROFILE), ("links.toml", LINKS)):
        (directory / name).write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(directory)
        for command in ("compile job.toml -o plan.json --method 1f1b --quiet", "export torch plan.json -o torch.csv"):
            assert run(command) == 0
    plan = read_plan(directory / "plan.json")
    write_trace_file(trace_of_timelines(plan, [simulate(plan.problem, plan.schedule())]), directory / "trace.json")
    return directory


@pytest.fixture
def here(good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the directory of good files, with links to the plan; the current directory."""
    directory = tmp_path / "here"
    shutil.copytree(good, directory)
    for name in ("folder", "map.stages.json"):
        (directory / name).mkdir()
    (directory / "symlink.json").symlink_to("plan.json")
    os.link(directory / "plan.json", directory / "hardlink.json")
    os.mkfifo(directory / "pipe")
    monkeypatch.chdir(directory)
    return directory


def change(directory: Path, changes: Mapping[str, bytes | str | tuple[str, str]]) -> None:
    for name, new in changes.items():
        path = directory / name
        if isinstance(new, bytes):
            path.write_bytes(new)
        elif isinstance(new, str):
            path.write_text(new, encoding="utf-8")
        else:
            text = path.read_text(encoding="utf-8")
            assert new[0] in text
            path.write_text(text.replace(*new), encoding="utf-8")


# fmt: off
OUTPUTS = {
    "an output in no folder": Row("compile job.toml -o no/plan.json", 2, "no/plan.json: cannot be written: the directory {here}/no does not exist; create it first"),
    "an output below a file": Row("compile job.toml -o job.toml/plan.json", 2, "job.toml/plan.json: cannot be written: the directory {here}/job.toml is not a directory"),
    "an output that is a folder": Row("compile job.toml -o folder", 2, "folder: cannot be written: found a directory; expected a file or nothing"),
    "an output that is no file": Row("compile job.toml -o pipe", 2, "pipe: cannot be written: found something that is not a regular file; expected a file or nothing"),
    "an output that is a device": Row("compile job.toml -o /dev/null", 2, "/dev/null: cannot be written: found something that is not a regular file; expected a file or nothing"),
    "an output of a name too long": Row(f"compile job.toml -o {'n' * 300}", 2, f"{'n' * 300}: cannot be written: File name too long"),
    "no output": Row("compile job.toml", 2, "expected -o, found none; schedc compile -h lists them"),
    "an empty output": Row("compile job.toml -o ''", 2, ".: cannot be written: found a directory; expected a file or nothing"),
    "the job as output": Row("compile job.toml -o job.toml", 2, "job.toml: cannot be written: this command reads it as job.toml; name another file"),
    "the job as output, by another way": Row("compile job.toml -o folder/../job.toml", 2, "folder/../job.toml: cannot be written: this command reads it as job.toml; name another file"),
    "the profile as output": Row("compile job.toml -o profile.json", 2, "profile.json: cannot be written: this command reads it as profile.json; name another file"),
    "the topology as output": Row("compile job.toml -o links.toml", 2, "links.toml: cannot be written: this command reads it as links.toml; name another file"),
    "the plan as its trace": Row("emulate plan.json --trace plan.json", 2, "plan.json: cannot be written: this command reads it as plan.json; name another file"),
    "the plan as its trace, linked": Row("emulate symlink.json --trace plan.json", 2, "plan.json: cannot be written: this command reads it as symlink.json; name another file"),
    "a link trace that is missing": Row("emulate plan.json --links no.csv", 2, "no.csv: found no readable file (no such file or directory), expected a file"),
    "a link trace of other ranks": Row("emulate plan.json --links links.csv", 2, 'links.csv: line 2: ranks: found "0-2", expected ranks of the plan, 0 to 1', {"links.csv": "time_ms,ranks,latency_ms,bandwidth_GBps\n0,0-2,5,\n"}),
    "the link trace as its trace": Row("emulate plan.json --links links.toml --trace links.toml", 2, "links.toml: cannot be written: this command reads it as links.toml; name another file"),
    "a trace in no folder": Row("emulate plan.json --trace no/trace.json", 2, "no/trace.json: cannot be written: the directory {here}/no does not exist; create it first"),
    "a trace on standard output": Row("emulate plan.json --trace -", 2, "--trace: found -, expected a file; standard output has the tables (a file of that name needs its absolute path)"),
    "the plan as CSV": Row("export torch plan.json -o plan.json", 2, "plan.json: cannot be written: this command reads it as plan.json; name another file"),
    "the plan as CSV, through a symbolic link": Row("export torch plan.json -o symlink.json", 2, "symlink.json: cannot be written: this command reads it as plan.json; name another file"),
    "the plan as CSV, through a hard link": Row("export torch plan.json -o hardlink.json", 2, "hardlink.json: cannot be written: this command reads it as plan.json; name another file"),
    "the plan as stage map": Row("export torch torch.stages.json -o torch.csv", 2, "torch.stages.json: cannot be written: this command reads it as torch.stages.json; name another file"),
    "a stage map that is a folder": Row("export torch plan.json -o map.csv", 2, "map.stages.json: cannot be written: found a directory; expected a file or nothing"),
    "a CSV that is this folder": Row("export torch plan.json -o .", 2, ".: cannot be written: found a directory; expected a file or nothing"),
    "a CSV in no folder": Row("export torch plan.json -o no/torch.csv", 2, "no/torch.csv: cannot be written: the directory {here}/no does not exist; create it first"),
    "the plan as profile": Row("compare plan.json trace.json --profile plan.json", 2, "plan.json: cannot be written: this command reads it as plan.json; name another file"),
    "the trace as topology": Row("compare plan.json trace.json --topology trace.json", 2, "trace.json: cannot be written: this command reads it as trace.json; name another file"),
    "the trace as picture": Row("compare plan.json trace.json --perfetto ./trace.json", 2, "trace.json: cannot be written: this command reads it as trace.json; name another file"),
    "one file for two": Row("compare plan.json trace.json --profile new.json --topology new.json", 2, "new.json: cannot be written: both --profile and --topology name it; name two files"),
    "one file for two, linked": Row("compare plan.json trace.json --profile hardlink.json --perfetto symlink.json", 2, "hardlink.json: cannot be written: this command reads it as plan.json; name another file"),
    "a picture on standard output": Row("compare plan.json trace.json --perfetto -", 2, "--perfetto: found -, expected a file; standard output has the tables (a file of that name needs its absolute path)"),
    "a trace as profile": Row("profile --from-trace trace.json -o trace.json", 2, "trace.json: cannot be written: this command reads it as trace.json; name another file"),
    "a profile in no folder": Row("profile --from-trace trace.json -o no/profile.json", 2, "no/profile.json: cannot be written: the directory {here}/no does not exist; create it first"),
    "two things on standard output": Row("compile job.toml -o - --json", 2, "-o: found - beside --json, and both write to standard output; expected one of them"),
    "a table that is a folder": Row("bench m70 --csv folder", 2, "folder: cannot be written: found a directory; expected a file or nothing"),
    "a table in no folder": Row("bench m70 --csv no/table.csv", 2, "no/table.csv: cannot be written: the directory {here}/no does not exist; create it first"),
    "a table on standard output": Row("bench m70 --csv -", 2, "--csv: found -, expected a file; standard output has the tables (a file of that name needs its absolute path)"),
}
KNOWN_METHODS = ", ".join(("auto", *methods(Method)))
COMMANDS = {
    "an unknown command": Row("compil job.toml", 2, "found an unknown command \"compil\"; did you mean 'compile'?"),
    "an unknown option": Row("show plan.json --form 1ms", 2, "found an unknown option \"--form\"; did you mean '--from'?"),
    "a job that is missing": Row("compile no.toml -o new.json", 2, "no.toml: found no readable file (no such file or directory), expected a file"),
    "a job that is a folder": Row("bounds folder", 2, "folder: found no readable file (is a directory), expected a file"),
    "a job that is a device": Row("bounds /dev/zero", 2, "/dev/zero: found a device, expected a file"),
    "a job that is a plan": Row("bounds plan.json", 2, "plan.json: line 1, column 1: found text that is not TOML (Invalid statement), expected TOML; this looks like JSON, and a job is TOML"),
    "a job that nobody writes": Row("bounds pipe", 2, "pipe: found a pipe that nobody has written to, expected a file"),
    "an unknown method": Row("compile job.toml -o new.json --method 1f1", 2, "--method: method '1f1' is unknown; did you mean '1f1b'?; expected " + KNOWN_METHODS),
    "a method that was taken out": Row("compile job.toml -o new.json --method periodic{x=1}", 2, "--method: method 'periodic' is no longer there; use greedy or in-turn, which found better schedules"),
    "an empty method": Row("compile job.toml -o new.json --method ''", 2, "--method: method '' is unknown; expected " + KNOWN_METHODS),
    "options for auto": Row("compile job.toml -o new.json --method 'auto{x=1}'", 2, "--method: method 'auto{x=1}': auto has no options; give them to one of the methods that it tries"),
    "auto with braces": Row("compile job.toml -o new.json --method 'auto{}'", 2, "--method: method 'auto{}': auto has no options; give them to one of the methods that it tries"),
    "no rounds": Row("compile job.toml -o new.json --method 'local{rounds=-1}'", 2, "--method: method 'local{rounds=-1}': rounds: found -1, expected a whole number from 1 to 1000000"),
    "rounds that are no number": Row("compile job.toml -o new.json --method 'polish{rounds=1.5}'", 2, "--method: method 'polish{rounds=1.5}': rounds: found 1.5, expected a whole number from 1 to 1000000"),
    "negative evaluations": Row("compile job.toml -o new.json --method 'local{evaluations=-1}'", 2, "--method: method 'local{evaluations=-1}': evaluations: found -1, expected a whole number from 0 to 1000000000"),
    "negative climbs": Row("compile job.toml -o new.json --method 'rule-table{climb_ops=-1}'", 2, "--method: method 'rule-table{climb_ops=-1}': climb_ops: found -1, expected a whole number from 0 to 1000000000"),
    "no parts": Row("compile job.toml -o new.json --method 'spread{n_sub=0}'", 2, "--method: method 'spread{n_sub=0}': n_sub: found 0, expected a whole number from 1 to 256"),
    "parts for greedy": Row("compile job.toml -o new.json --method 'greedy{n_sub=1000}'", 2, "--method: method 'greedy{n_sub=1000}': n_sub: found 1000, expected a whole number from 1 to 256"),
    "a negative look-ahead": Row("compile job.toml -o new.json --method 'greedy{look_ahead=-1}'", 2, "--method: method 'greedy{look_ahead=-1}': look_ahead: found -1, expected a number from 0 to 1000 or \"auto\""),
    "a method for a wave": Row("compile job.toml -o new.json --method zb-v", 4, "small: no plan found: zb-v: zb-v needs a wave placement with 2 chunks per rank; this job has a unidirectional placement"),
    "a bare time": Row("compile job.toml -o new.json --time-limit 60", 2, "--time-limit: found '60', expected a duration such as \"38 ms\" (ns, us, ms, s or min)"),
    "a negative time": Row("compile job.toml -o new.json --time-limit -5s", 2, "--time-limit: found '-5s', expected at least 0"),
    "a gap of one": Row("compile job.toml -o new.json --gap 1", 2, '--gap: found "1", expected at most 0.999'),
    "a seed below 0": Row("compile job.toml -o new.json --seed -1", 2, '--seed: found "-1", expected at least 0'),
    "a seed of 33 bits": Row("tune job.toml -o new --seed 4294967296", 2, '--seed: found "4294967296", expected at most 2147483647'),
    "too many workers": Row("compile job.toml -o new.json --workers 5000", 2, '--workers: found "5000", expected at most 1024'),
    "no workers": Row("compile job.toml -o new.json --workers 0", 2, '--workers: found "0", expected at least 1'),
    "a begin after the end": Row("show plan.json --from 2s --to 1s", 2, "--from: found '2s', expected a time before --to and before the plan's end"),
    "a time in micrometres": Row("show plan.json --from '38 µs'", 2, "--from: found '38 µs', expected a duration such as \"38 ms\" (ns, us, ms, s or min); did you mean us?"),
    "a rank too many": Row("show plan.json --ranks 0-2", 2, "--ranks: found '0-2', expected ranks from 0 to 1 as in 0-3,8, or all"),
    "too few columns": Row("show plan.json --width 10", 2, '--width: found "10", expected at least 40'),
    "a plan that is missing": Row("show no.json", 2, "no.json: found no readable file (no such file or directory), expected a file"),
    "a plan that is a folder": Row("verify folder", 2, "folder: found no readable file (is a directory), expected a file"),
    "a plan that is a device": Row("simulate /dev/zero", 2, "/dev/zero: found a device, expected a file"),
    "a plan that is a job": Row("show job.toml", 2, "job.toml: found a job (TOML), expected a plan (JSON), which `schedc compile` makes of a job"),
    "a plan that is a profile": Row("show profile.json", 2, 'profile.json: format: found "schedc.profile", expected "schedc.plan"'),
    "a plan that is a trace": Row("show trace.json", 2, 'trace.json: format: found null, expected "schedc.plan"'),
    "another job's plan": Row("simulate plan.json --job values.toml", 1, "small: the plan cannot be timed: pipeline.microbatches: same-pipeline: the plan has 4, the job 5; compile the job again (and 1 more)", {"values.toml": ("microbatches = 4", "microbatches = 5")}),
    "a trace that is missing": Row("compare plan.json no.json", 2, "no.json: found no readable file (no such file or directory), expected a file"),
    "a trace that is a plan": Row("compare plan.json plan.json", 2, 'plan.json: schedc: found no such key, expected a trace file of schedc, not a plan or another tool\'s trace'),
    "a trace of another plan": Row("compare plan.json trace.json", 2, "trace.json: is a trace of the plan 'small' with the sha256 {any}…, found plan.json with {any}…; compare the plan that was run", {"plan.json": ('"seed": 0', '"seed": 1')}),
    "a step that is no number": Row("compare plan.json trace.json --step first", 2, "--step: found 'first', expected the number of a recorded step, or median"),
    "a step that was not recorded": Row("compare plan.json trace.json --step 7", 2, "trace.json: step 7 is not in the trace, which has the step 0 only"),
    "a scale of 0": Row("emulate plan.json --scale 0", 2, "--scale: found 0, expected a number above 0"),
    "transfers of no engine": Row("simulate plan.json --transfers queue", 2, '--transfers: found "queue", expected decoupled, one-queue or blocking'),
    "three queues": Row("emulate plan.json --queues 3", 2, "--queues: found 3, expected 4 (as the plan has them) or 1 (all transfers of a rank in one)"),
    "a number that is none": Row("compile job.toml -o new.json --gap many", 2, '--gap: found "many", expected a number'),
    "an option without a value": Row("compile job.toml -o", 2, "-o: found nothing, expected a value"),
    "an argument too many": Row("show plan.json job.toml", 2, 'found "job.toml", expected no more arguments'),
    "no argument": Row("show", 2, "expected PLAN, found none; schedc show -h lists them"),
    "the old name of a command": Row("relayout plan.json", 2, 'found an unknown command "relayout"; it is now `schedc repartition`'),
    "another old name": Row("model gpt2", 2, 'found an unknown command "model"; it is now `schedc costs`'),
    "an unknown command of a group": Row("export x", 2, 'found an unknown command "x"; schedc export -h lists them'),
    "an option that is like none": Row("show plan.json --quux", 2, 'found an unknown option "--quux"; schedc show -h lists them'),
    "a flag with a value": Row("compile job.toml -o new.json --quiet=3", 2, "Option '--quiet' does not take a value"),
    "no runs": Row("emulate plan.json --runs 0", 2, '--runs: found "0", expected at least 1'),
    "neither model nor traces": Row("profile -o new.json", 2, "expected one of --model, to measure, --operators, to measure a device, and --from-trace, to read what torch recorded"),
    "a trace of nobody's profiler": Row("profile --from-trace plan.json -o new.json", 2, "plan.json: found JSON without traceEvents, expected a Chrome trace as export_chrome_trace writes it"),
    "a packed trace cut short": Row("profile --from-trace t.gz -o new.json", 2, "t.gz: found a gzip file that cannot be unpacked (Compressed file ended before the end-of-stream marker was reached), expected a trace", {"t.gz": gzip.compress(b"x" * 99, mtime=0)[:-9]}),
    "an unknown method of a set": Row("bench m70 --methods '1f1b,auto{x=1}'", 2, "method 'auto{x=1}': auto has no options; give them to one of the methods that it tries"),
    "an unknown set": Row("bench m71", 2, "set 'm71' is unknown; did you mean 'm70'?; expected m70, m70-wave, m70-loop, pipemorph, zero-bubble, zero-bubble-span, random, large"),
    "an empty method of a set": Row("bench m70 --methods 1f1b,", 2, "methods '1f1b,': found an empty name; expected names separated by commas, as in 1f1b,auto"),
    "a method twice": Row("bench m70 --methods 1f1b,1f1b", 2, "methods '1f1b,1f1b': 1f1b is a duplicate; name each method once"),
    "a bare time of a set": Row("bench m70 --time-limit 60", 2, "--time-limit: found '60', expected a duration such as \"38 ms\" (ns, us, ms, s or min)"),
    "a schema of nothing": Row("schema profile", 2, 'job|plan|tune: found "profile", expected job, plan or tune'),
    "a CSV that is missing": Row("lint no.csv --job job.toml", 2, "no.csv: found no readable file (no such file or directory), expected a file"),
    "a CSV that is a device": Row("lint /dev/zero --job job.toml", 2, "/dev/zero: found a device, expected a file"),
    "a CSV without job": Row("lint torch.csv", 2, "expected --job, found none; schedc lint -h lists them"),
    "a CSV that is no text": Row("lint torch.csv --job job.toml", 2, "torch.csv: found a byte that is not UTF-8 at 0, expected a CSV in UTF-8", {"torch.csv": b"\xff\xfe0F0"}),
}
FILES = {
    "a job cut short": Row("bounds job.toml", 2, "job.toml: end of the file: found text that is not TOML (Expected ']' at the end of a table declaration), expected TOML", {"job.toml": b"[pipeline"}),
    "a job that is no text": Row("bounds job.toml", 2, "job.toml: line 1: found a byte that is not UTF-8 (0xff), expected UTF-8", {"job.toml": b'name = "\xff"'}),
    "an empty job": Row("bounds job.toml", 2, "job.toml: pipeline: found nothing, expected a table", {"job.toml": b""}),
    "an unknown key": Row("bounds job.toml", 2, "job.toml: pipeline.micro_batches: found an unknown key, expected one of ranks, microbatches, placement, chunks, split_backward, semantics, partition, head, recompute, microbatch_order, mode, versions, most_delay, update; did you mean 'microbatches'?", {"job.toml": ("microbatches", "micro_batches")}),
    "no ranks": Row("bounds job.toml", 2, "job.toml: pipeline.ranks: found 0, expected a whole number from 1 to 1048576", {"job.toml": ("ranks = 2", "ranks = 0")}),
    "a name with an escape sequence": Row("bounds job.toml", 2, 'job.toml: name: found "\\u001b[31msmall", expected printable text on one line', {"job.toml": ('"small"', '"\\u001b[31msmall"')}),
    "a duration in µs": Row("bounds values.toml", 2, 'values.toml: profile.forward: found "38 µs", expected a duration such as "38 ms" (ns, us, ms, s or min); did you mean us?', {"values.toml": ("38 ms", "38 \u00b5s")}),
    "a duration in μs": Row("bounds values.toml", 2, 'values.toml: profile.forward: found "38 μs", expected a duration such as "38 ms" (ns, us, ms, s or min); did you mean us?', {"values.toml": ("38 ms", "38 \u03bcs")}),
    "a bare duration": Row("bounds values.toml", 2, 'values.toml: profile.forward: found 38, expected a duration such as "38 ms" or a list of them', {"values.toml": ('"38 ms"', "38")}),
    "a negative duration": Row("bounds values.toml", 2, 'values.toml: profile.forward: found "-38 ms", expected at least 0', {"values.toml": ('"38 ms"', '"-38 ms"')}),
    "a message of 0 B": Row("bounds values.toml", 2, "values.toml: profile.message: found a message of 0 B from stage 0, expected more, as the link from rank 0 to rank 1 has a bandwidth", {"values.toml": ('"64 MiB"', '"0 B"')}),
    "no message": Row("bounds values.toml", 2, "values.toml: profile.message: found no message size of stage 0, expected one, as the link from rank 0 to rank 1 has a bandwidth", {"values.toml": ('message = "64 MiB"\n', "")}),
    "a profile that is missing": Row("bounds job.toml", 2, 'job.toml: profile.path: found "no.json"; no.json: found no readable file (no such file or directory), expected a file', {"job.toml": ("profile.json", "no.json")}),
    "a profile that is a device": Row("bounds job.toml", 2, 'job.toml: profile.path: found "/dev/zero"; /dev/zero: found a device, expected a file', {"job.toml": ("profile.json", "/dev/zero")}),
    "a profile that is a folder": Row("bounds job.toml", 2, 'job.toml: profile.path: found "folder"; folder: found no readable file (is a directory), expected a file', {"job.toml": ("profile.json", "folder")}),
    "a profile that nobody writes": Row("bounds job.toml", 2, 'job.toml: profile.path: found "pipe"; pipe: found a pipe that nobody has written to, expected a file', {"job.toml": ("profile.json", "pipe")}),
    "a profile of another version": Row("bounds job.toml", 2, "profile.json: version: found 2, expected 1", {"profile.json": ('"version": 1', '"version": 2')}),
    "a profile cut short": Row("bounds job.toml", 2, "profile.json: line 2, column 36: found text that is not JSON (Expecting property name enclosed in double quotes), expected JSON", {"profile.json": PROFILE[:90]}),
    "a profile of one layer": Row("bounds job.toml", 2, "profile.json: layers: found 1 layer, expected 2 or more, one for each piece of the model", {"profile.json": ('"repeat": 2, ', "")}),
    "a topology that is missing": Row("bounds job.toml", 2, 'job.toml: topology.path: found "no.toml"; no.toml: found no readable file (no such file or directory), expected a file', {"job.toml": ("links.toml", "no.toml")}),
    "a topology that is a device": Row("bounds job.toml", 2, 'job.toml: topology.path: found "/dev/zero"; /dev/zero: found a device, expected a file', {"job.toml": ("links.toml", "/dev/zero")}),
    "a topology with an unknown key": Row("bounds job.toml", 2, "links.toml: within.latncy: found an unknown key, expected one of latency, bandwidth, transfer, holds_latency; did you mean 'latency'?", {"links.toml": ("latency", "latncy")}),
    "a topology of other sites": Row("bounds job.toml", 2, "links.toml: sites: found [2, 2], 4 in all, expected sites that add up to the 2 of pipeline.ranks", {"links.toml": "sites = [2, 2]\n" + LINKS}),
    "an unknown method in a job": Row("compile job.toml -o new.json", 2, "job.toml: solver.method: method 'auto{x=1}': auto has no options; give them to one of the methods that it tries", {"job.toml": JOB + '[solver]\nmethod = "auto{x=1}"\n'}),
    "a limit that nothing meets": Row("compile values.toml -o new.json", 3, "values: no schedule exists: rank 0 may hold 1 MiB of activations, but one microbatch alone needs 1 GiB there, the smallest limit that may suffice", {"values.toml": VALUES + '[memory]\nlimit = "1 MiB"\n'}),
    "an empty plan": Row("show plan.json", 2, "plan.json: line 1, column 1: found text that is not JSON (Expecting value), expected JSON", {"plan.json": b""}),
    "a plan cut short": Row("show plan.json", 2, "plan.json: line 1, column 41: found text that is not JSON (Expecting property name enclosed in double quotes), expected JSON", {"plan.json": b'{"format": "schedc.plan", "version": 1, '}),
    "a plan of another version": Row("show plan.json", 2, "plan.json: version: found 9, expected 1 or 2, the versions that this schedc reads", {"plan.json": ('"version": 2', '"version": 9')}),
    "a plan that is no text": Row("show plan.json", 2, "plan.json: line 1: found a byte that is not UTF-8 (0xff), expected UTF-8", {"plan.json": b'{"format": "\xff"}'}),
    "a plan with an escape sequence": Row("show plan.json", 2, 'plan.json: name: found "\\u001b[31msmall", expected printable text on one line', {"plan.json": ('"small"', '"\\u001b[31msmall"')}),
    "a method with an escape sequence": Row("show plan.json", 2, 'plan.json: made_by.method: found "\\x9b31m", expected printable text on one line', {"plan.json": ('"1f1b"', '"\\u009b31m"')}),
    "a plan with an unknown key": Row("show plan.json", 2, "plan.json: certificat: found an unknown key, expected one of format, version, name, made_by, certificate, pipeline, costs, origin, ranks; did you mean 'certificate'?", {"plan.json": ('"certificate":', '"certificat":')}),
    "a plan with a bad token": Row("show plan.json", 2, "plan.json: ranks[0].compute[0]: 'X0.1' is not an op; expected F, B, W, BW or U, then stage.microbatch, as in W3.12 or W3.12/0", {"plan.json": ("F0.0 F0.1", "F0.0 X0.1")}),
    "a plan that its verifier refuses": Row("export torch plan.json -o new.csv", 1, "plan.json: certificate.makespan_ns: makespan: claims 524083888 ns, but the plan's queues take 562083888 ns (`schedc verify` lists all 3)", {"plan.json": ("F0.0 F0.1", "F0.1 F0.0")}),
    "a trace cut short": Row("compare plan.json trace.json", 2, "trace.json: line 1, column 13: found text that is not JSON (Expecting property name enclosed in double quotes), expected JSON", {"trace.json": b'{"schedc": {'}),
    "a trace of another version": Row("compare plan.json trace.json", 2, "trace.json: schedc.version: found 2, expected 1; another version of schedc has written this trace", {"trace.json": b'{"schedc": {"format": "schedc.trace", "version": 2}}'}),
    "a trace with an escape sequence": Row("compare plan.json trace.json", 2, 'trace.json: schedc.plan.name: found "\\u001b", expected printable text on one line', {"trace.json": ('"name":"small"', '"name":"\\u001b"')}),
}
# fmt: on
ROWS = {**OUTPUTS, **COMMANDS, **FILES}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_bad_input(row: Row, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(here, row.changes)
    before = content(here)
    status = run(row.command)
    out, err = capsys.readouterr()
    lines = err.splitlines()
    pattern = ".*".join(map(re.escape, row.said.replace("{here}", str(here)).split("{any}")))
    assert len(lines) == 1
    assert re.fullmatch(f"schedc: {pattern}", lines[0]), lines[0]
    assert (status, out) == (row.status, "")
    assert content(here) == before


@pytest.mark.parametrize(
    "command",
    [
        "bounds job.toml",
        "verify plan.json --job job.toml",
        "compare plan.json trace.json",
        "lint torch.csv --job values.toml",
        "profile --from-trace torch.json -o new.json",
    ],
)
def test_a_byte_order_mark_is_passed_over(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spans = [
        f'{{"ph": "X", "cat": "user_annotation", "name": "PP:0{name}0", "ts": {at}, "dur": 5}}' for at, name in enumerate("FIW")
    ]
    (here / "torch.json").write_text(f"[{','.join(spans)}]")
    assert run(command) == 0, capsys.readouterr().err
    without = capsys.readouterr().out
    for name in ("job.toml", "values.toml", "profile.json", "links.toml", "plan.json", "trace.json", "torch.csv", "torch.json"):
        path = here / name
        path.write_bytes(MARK + path.read_bytes())
    assert run(command) == 0, capsys.readouterr().err
    assert capsys.readouterr().out == without


def test_every_number_of_a_method_has_a_range() -> None:
    for name, method in methods(Method).items():
        for option in inspect.type_info(method).fields:  # type: ignore[attr-defined]
            kinds = option.type.types if isinstance(option.type, inspect.UnionType) else (option.type,)
            for kind in kinds:
                number = kind.item_type if isinstance(kind, inspect.VarTupleType) else kind
                if isinstance(number, inspect.IntType | inspect.FloatType):
                    assert number.ge is not None and number.le is not None, f"{name}: {option.name}"


NAME = "a [/x] [bold]b[/bold] :smile:"


def test_names_are_shown_as_they_are(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Brackets are no markup and colons no pictures, in whatever is printed."""
    monkeypatch.setenv("COLUMNS", "160")
    change(here, {"job.toml": ('"small"', f'"{NAME}"')})
    for command in (
        "compile job.toml -o named.json --method 1f1b",
        "show named.json",
        "simulate named.json",
        "bounds job.toml",
        "templates job.toml",
    ):
        assert run(command) == 0
        assert NAME in capsys.readouterr().out


def test_a_directory_s_name_cannot_reach_the_terminal_as_an_escape_sequence(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = here / "\x1b[31mred"
    directory.mkdir()
    (directory / "job.toml").write_text(VALUES, encoding="utf-8")
    assert run(f"compile '{directory.name}/job.toml' -o '{directory.name}/plan.json' --method 1f1b") == 0
    for command in ("show", "verify"):
        assert run(f"{command} '{directory.name}/plan.json'") == 0
    assert run(f"show '{directory.name}/no.json'") == 2
    out, err = capsys.readouterr()
    assert "\x1b[31m" not in out + err
    assert "\\x1b[31mred" in out


def process(here: Path, command: str) -> subprocess.CompletedProcess[bytes]:
    """The shell's command line, with `schedc` as a process."""
    schedc = f"{shlex.quote(sys.executable)} -m schedc"
    return subprocess.run(
        ["bash", "-c", command.replace("schedc", schedc)], cwd=here, capture_output=True, check=False, timeout=250
    )


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("schedc show plan.json > /dev/full", "standard output: cannot be written: No space left on device"),
        ("schedc simulate plan.json --json >&-", "standard output: cannot be written: Bad file descriptor"),
        (
            "echo no | schedc show /dev/stdin",
            "/dev/stdin: line 1, column 1: found text that is not JSON (Expecting value), expected JSON",
        ),
    ],
)
def test_a_process_says_what_is_wrong_in_one_line(here: Path, command: str, said: str) -> None:
    done = process(here, command)
    assert done.returncode == 2
    assert done.stdout == b""
    assert done.stderr.decode() == f"schedc: {said}\n"


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
def test_the_status_holds_where_nobody_can_be_told(here: Path, stderr: str) -> None:
    assert process(here, f"schedc show no.json 2>{stderr}").returncode == 2
    assert process(here, f"schedc compile job.toml 2>{stderr}").returncode == 2


@pytest.mark.parametrize("stderr", ["/dev/full", "&-"])
def test_a_plan_is_written_where_nobody_can_be_told(here: Path, stderr: str) -> None:
    assert process(here, f"schedc compile job.toml -o new.json --method 1f1b 2>{stderr}").returncode == 0
    assert (here / "new.json").read_bytes() == (here / "plan.json").read_bytes()


def test_python_m_schedc_and_pipes(here: Path) -> None:
    """The plan goes through a pipe, the table past it; what comes out is what the file would show."""
    piped = process(here, "schedc compile job.toml -o - --method 1f1b | tee new.json | schedc simulate /dev/stdin")
    assert piped.returncode == 0, piped.stderr
    assert b"small: 1 candidates" in piped.stderr
    assert (here / "new.json").read_bytes() == (here / "plan.json").read_bytes()
    assert piped.stdout == process(here, "schedc simulate plan.json").stdout
