"""Traces of torch pipelines: those made up here, whose times are known, and those of a real run."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import typer
from inputs.jobs import read_problem, write_job
from runs.harness import SAMPLES
from runs.processes import rank_processes
from runs.torch_runs import MICROBATCHES, SLOW_S, TRACED_WIDTH, record
from typer.testing import CliRunner

from schedc.cli.commands.profile import profile_command
from schedc.errors import InvalidInput
from schedc.formats.torch_profiler import RecordedAction, TorchTrace, read_torch_trace, stage_times, stages_profile

if TYPE_CHECKING:
    from pathlib import Path

Event = dict[str, Any]
MAIN, AUTOGRAD, COMPUTE, OTHER = 10, 11, 7, 20
"""Threads of the host, streams of the GPU."""


def event(name: str, begin: float, duration: float, cat: str = "user_annotation", tid: int = MAIN, **arguments: Any) -> Event:
    """Microseconds, as the trace has them."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": 0 if tid in (COMPUTE, OTHER) else 1,
        "tid": tid,
        "ts": begin,
        "dur": duration,
        "args": {key.replace("_", " "): value for key, value in arguments.items()},
    }


def launched(number: int, at: float, thread: int, begin: float, duration: float, stream: int, name: str = "gemm") -> list[Event]:
    """A kernel and its launch."""
    return [
        event("cudaLaunchKernel", at, 1.0, "cuda_runtime", thread, correlation=number),
        event(name, begin, duration, "kernel", stream, correlation=number),
    ]


def write_trace(path: Path, events: list[Event]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def times(trace: TorchTrace) -> list[tuple[str, int, int, int]]:
    return [(action.kind, action.stage, action.microbatch, action.duration_ns) for action in trace.actions]


def test_on_a_cpu_waiting_for_the_message_is_left_out(tmp_path: Path) -> None:
    events = [
        event("PP:1RECV_F0", 0, 10),
        event("c10d::recv_", 2, 5, "cpu_op"),
        event("gloo:recv", 4, 90),
        event("PP:1F0", 10, 100),
        event("aten::mm", 95, 14, "cpu_op"),
        event("aten::add", 109, 0.5, "cpu_op"),
        event("aten::mul", 20, 5, "cpu_op", AUTOGRAD),  # another thread's
        event("PP:1I0", 120, 30),
        event("aten::mm", 125, 20, "cpu_op"),
        event("PP:1W0", 160, 8.5),
        event("aten::mm", 160.5, 8, "cpu_op"),
        event("PP:0I0", 170, 50),  # the first stage's: a wait, and nothing to do
        event("PP:1REDUCE_GRAD", 230, 5),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "trace.json", events))
    assert times(trace) == [("F", 1, 0, 15_000), ("I", 1, 0, 25_000), ("W", 1, 0, 8_000), ("I", 0, 0, 0)]
    assert not trace.on_gpu
    assert not trace.waits_included


def test_on_a_gpu_the_kernels_count_whoever_launched_them(tmp_path: Path) -> None:
    events = [
        event("PP:0F0", 0, 20),
        *launched(1, 2, MAIN, 100, 30, COMPUTE),
        *launched(2, 4, MAIN, 140, 10, COMPUTE),
        *launched(3, 5, MAIN, 50, 400, OTHER, "ncclDevKernel_SendRecv"),
        event("PP:0B0", 20, 10),
        *launched(4, 22, AUTOGRAD, 200, 50, COMPUTE),
        *launched(5, 23, AUTOGRAD, 90, 4, OTHER),
        *launched(6, 29, AUTOGRAD, 260, 40, COMPUTE),
        event("PP:0B0", 28, 1, "gpu_user_annotation", COMPUTE),  # as kineto gives it: without autograd's kernels
        *launched(7, 40, MAIN, 400, 100, COMPUTE),  # the optimizer's
        event("PP:0W0", 50, 10),
    ]
    trace = read_torch_trace(write_trace(tmp_path / "trace.json", events))
    assert times(trace) == [("F", 0, 0, 50_000), ("B", 0, 0, 100_000), ("W", 0, 0, 0)]
    assert trace.on_gpu


def test_without_operators_the_waits_are_in_and_it_is_said(tmp_path: Path) -> None:
    events = [event("PP:0F0", 0, 20), event("PP:0B0", 30, 40), event("PP:(0F1;0B1)OVERLAP_F_B", 80, 9)]
    trace = read_torch_trace(write_trace(tmp_path / "trace.json", events))
    assert times(trace) == [("F", 0, 0, 20_000), ("B", 0, 0, 40_000)]
    assert (trace.waits_included, trace.overlapped) == (True, 1)
    _, notes = stages_profile([trace], stage_times([trace]))
    assert any("waiting for messages is in the times" in note for note in notes)
    assert any("1 OVERLAP_F_B left out" in note for note in notes)


def test_messages_of_gloo_and_nccl(tmp_path: Path) -> None:
    gloo: Event = {"Input_Dims": [[4, 8]], "Input_type": ["c10::BFloat16"]}
    nccl: Event = {"Collective_name": "send", "In_msg_nelems": 100, "dtype": "Float"}
    events = [
        event("PP:0F0", 0, 5),
        event("PP:0SEND_F0", 10, 5),
        event("gloo:send", 12, 90, **gloo),
        event("PP:2SEND_F0", 20, 5),
        event("record_param_comms", 21, 1, "cpu_op", **nccl),
        event("record_param_comms", 22, 1, "cpu_op", **nccl),  # a boundary of two tensors
        event("PP:2SEND_B0", 30, 5),
        event("gloo:send", 31, 5, **gloo),
    ]
    assert read_torch_trace(write_trace(tmp_path / "trace.json", events)).message_bytes == {0: 64, 2: 800}


def recorded(*actions: tuple[str, int, int, int]) -> TorchTrace:
    return TorchTrace(
        path="trace.json",
        actions=tuple(RecordedAction(*action) for action in actions),
        message_bytes={},
        on_gpu=False,
        waits_included=False,
        overlapped=0,
    )


def test_the_first_step_is_warm_up_where_there_are_several() -> None:
    steps = [("F", 0, microbatch, 1000 * step + microbatch) for step in (9, 1, 2) for microbatch in (0, 1)]
    found = stage_times([recorded(*steps, ("B", 0, 0, 7), ("B", 0, 1, 8))])
    assert found[0]["F"].samples_ns == (1000, 1001, 2000, 2001)
    assert found[0]["B"].samples_ns == (7,)  # no second: better than nothing


def test_of_one_step_the_first_microbatch_is_warm_up() -> None:
    found = stage_times([recorded(("F", 0, 0, 90), ("F", 0, 1, 10), ("B", 0, 1, 50), ("F", 0, 2, 12), ("B", 0, 0, 20))])
    assert found[0]["F"].samples_ns == (10, 12)
    assert found[0]["B"].samples_ns == (20,)


def test_whole_backwards_and_split_ones() -> None:
    fused = recorded(("F", 0, 0, 10), ("B", 0, 0, 30))
    split = recorded(("F", 1, 0, 10), ("I", 1, 0, 14), ("W", 1, 0, 9), ("B", 1, 0, 20))
    (first, second), notes = stages_profile([fused, split], stage_times([fused, split]))
    assert (first.backward_input_ns, first.backward_weight_ns, first.backward_ns) == (None, None, 30)
    assert (second.backward_input_ns, second.backward_weight_ns, second.backward_ns) == (14, 9, 20)
    assert any(note.startswith("stages 0 ran only whole backwards") for note in notes)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ((("F", 0, 0, 1), ("B", 0, 0, 1), ("F", 2, 0, 1)), "found the stages 0, 2, expected stage 1 too"),
        ((("F", 0, 0, 1),), "stage 0 has only F, expected F, and B or I and W"),
        ((("F", 0, 0, 1), ("I", 0, 0, 1)), "stage 0 has only F, I"),
    ],
)
def test_traces_that_lack_something(actions: tuple[tuple[str, int, int, int], ...], expected: str) -> None:
    trace = recorded(*actions)
    with pytest.raises(InvalidInput, match=expected):
        stages_profile([trace], stage_times([trace]))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (None, "found no readable file"),
        (b"not JSON", "found text that is not JSON"),
        (b"\x1f\x8b broken", "found a gzip file that cannot be unpacked"),
        (gzip.compress(b"x" * 999, mtime=0)[:-12] + bytes(12), "found a gzip file that cannot be unpacked"),
        (b'{"ranks": []}', "found JSON without traceEvents"),
        (b'{"traceEvents": []}', "found no PP: spans"),
        (gzip.compress(b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "PP:0F0"}]}', mtime=0), "found no PP: spans"),
        (
            json.dumps([event("PP:0SEND_F0", 0, 1)]).encode(),
            r"found 1 PP: spans, none of them an F, I, W or B of its own \(0 OVERLAP_F_B\)",
        ),
    ],
)
def test_what_is_no_trace(content: bytes | None, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=expected) as refused:
        read_torch_trace(path)
    assert str(refused.value).startswith(str(path))


@pytest.mark.slow
def test_a_real_run_of_torch(tmp_path: Path) -> None:
    """Two ranks; the second waits for the first, which sleeps, and none of that waiting is in its costs."""
    with rank_processes(2, tmp_path) as ranks:
        assert ranks.run(record, tmp_path, 3, True) == [None, None]
    paths = [tmp_path / f"trace{rank}.json.gz" for rank in (0, 1)]
    first, second = (read_torch_trace(path) for path in paths)
    assert [action.kind for action in first.actions] == list("FFFIWIWIW") * 3
    assert [action.kind for action in second.actions] == list("FIWFIWFB") * 3
    assert first.message_bytes == {0: SAMPLES * TRACED_WIDTH * 4}
    (one, two), notes = stages_profile([first, second], stage_times([first, second]))
    # Torch's first stage does not split: its I is nothing, though it waited for its gradient in there.
    assert one.backward_input_ns == 0
    assert one.parts_ns[1] > 0
    assert any(note.startswith("torch does not split the backward of stage 0") for note in notes)
    assert min(two.forward_ns, *two.parts_ns, two.backward_ns or 0) > 0
    spans = [mark["dur"] for mark in json.loads(gzip.decompress(paths[1].read_bytes()))["traceEvents"] if mark["name"] == "PP:1F0"]
    assert max(spans) > SLOW_S * 1e6 / 2  # microseconds, nearly all of them waiting; where the second is late itself, it waits less
    assert two.forward_ns < SLOW_S * 1e9 / 2
    assert len(stage_times([first, second])[0]["F"].samples_ns) == 2 * MICROBATCHES

    app = typer.Typer()
    app.command()(profile_command)
    options = [option for path in paths for option in ("--from-trace", str(path))]
    done = CliRunner().invoke(app, [*options, "-o", str(tmp_path / "profile.json")])
    assert done.exit_code == 0, done.output
    assert "stage 1" in done.stdout
    job = '[pipeline]\nranks = 2\nmicrobatches = 3\n[profile]\npath = "profile.json"\n[topology.within]\nbandwidth = "1 GB/s"\n'
    problem = read_problem(write_job(tmp_path, job))
    assert problem.stages[0].message_bytes == SAMPLES * TRACED_WIDTH * 4
    assert problem.stages[1].forward_ns[0] == pytest.approx(two.forward_ns, rel=1e-3)
