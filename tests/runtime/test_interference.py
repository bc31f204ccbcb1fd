"""Interference: what a rank sees, the forest that tells how slow it is, and what a monitor makes of it."""

from __future__ import annotations

import json
import os
import random
from queue import SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from inputs.problems import make_problem
from suite.command_line import schedc

from schedc.errors import InvalidInput, Unsupported
from schedc.io.child import Child
from schedc.ir.ops import Kind, Op
from schedc.runtime.adapt.monitor import Monitor
from schedc.runtime.adapt.monitoring.change import Rate
from schedc.runtime.adapt.monitoring.speeds import CREDIT, SpeedWatch
from schedc.runtime.interference.fitting import FOLDS, Fitted, InterferenceSample, fit, linear
from schedc.runtime.interference.forest import ForestFile, TreeEntry, forest_json, forest_of, read_forest
from schedc.runtime.interference.making import CALM_RUN, Competition, drawn_competitions, make, most_competitors, samples_of
from schedc.runtime.interference.nvml import Gpu
from schedc.runtime.interference.predictor import SlowdownPredictor
from schedc.runtime.interference.seen import TICKS_PER_S, Look, Seen, look, machine_counters, rates, stalled_s, waited_s

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable
    from pathlib import Path

MS = 1_000_000
STAT = """cpu  1000 20 300 4000 50 6 7 8 0 0
cpu0 500 10 150 2000 25 3 4 4 0 0
cpu1 500 10 150 2000 25 3 3 4 0 0
intr 12345 0 1
ctxt 9000
btime 1700000000
procs_running 3
procs_blocked 0
"""
CPUINFO = "processor\t: 0\ncpu MHz\t\t: 2000.000\n\nprocessor\t: 1\ncpu MHz\t\t: 3000.000\n"
PRESSURE = "some avg10=0.22 avg60=0.10 avg300=0.05 total=2500000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n"


def generated(count: int, seed: int = 0) -> list[InterferenceSample]:
    """Samples in which the ratio is no line: it depends on one feature beyond a threshold, and on two together."""
    draw = random.Random(seed)
    found = []
    for number in range(count):
        a, b, c = (draw.uniform(0, 1) for _ in range(3))
        ratio = 1.0 + (2.0 if a > 0.6 else 0.0) + (1.5 if b > 0.5 and a < 0.4 else 0.0)
        found.append(InterferenceSample(number // 4, {"a": a, "b": b, "c": 1000 * c}, ratio + draw.gauss(0, 0.02)))
    return found


@pytest.fixture(scope="module")
def fitted() -> Fitted:
    pytest.importorskip("sklearn")
    return fit(generated(240), trees=16)


def test_the_forest_is_the_one_of_scikit_learn() -> None:
    """The exported arrays say what it says, for samples of any size, near thresholds as well."""
    ensemble = pytest.importorskip("sklearn.ensemble")
    samples = generated(200)
    names = ["a", "b", "c"]
    seen = np.array([[sample.seen[name] for name in names] for sample in samples])
    ratios = np.array([sample.ratio for sample in samples])
    theirs = ensemble.RandomForestRegressor(n_estimators=128, random_state=0).fit(seen, ratios)
    ours = forest_of(fit(samples).file)
    assert ours.names == tuple(names)
    assert len(ours.roots) == 128
    draw = np.random.default_rng(1)
    others = np.r_[draw.uniform(-1, 2, (500, 3)) * [1, 1, 1000], seen, np.zeros((1, 3))]
    others = np.r_[others, others + np.spacing(others), others.astype(np.float32)]
    assert np.abs(ours.predict(others) - theirs.predict(others)).max() <= 1e-12
    assert ours.predict_one({"c": 300.0, "more": 1.0, "b": 0.2, "a": 0.7}) == pytest.approx(
        float(theirs.predict([[0.7, 0.2, 300.0]])[0]), abs=1e-12
    )


def test_a_forest_beats_a_line_on_what_is_none(fitted: Fitted) -> None:
    """Errors are of runs that no model has seen; the last value's follow from the samples."""
    forest, line, last = fitted.errors
    assert (forest.name, line.name, last.name) == ("forest", "linear", "last value")
    assert forest.mean < 0.5 * line.mean and forest.mean < 0.5 * last.mean
    ratios = [sample.ratio for sample in generated(240)]
    away = [abs(after - before) for before, after in zip([1.0, *ratios], ratios, strict=False)]
    assert [last.mean, last.worst] == pytest.approx([sum(away) / len(away), max(away)])
    assert last.after_change == pytest.approx(sum(away[::4]) / len(away[::4]))
    assert [name for name, _ in fitted.importances][:2] == ["a", "b"]
    assert sum(share for _, share in fitted.importances) == pytest.approx(1)


def test_the_linear_model_finds_a_line() -> None:
    draw = np.random.default_rng(0)
    seen = np.c_[draw.uniform(0, 1, (50, 2)), np.full(50, 7.0)]
    predict = linear(seen, 1 + seen @ [2.0, -1.0, 0.0])
    assert predict(np.array([[3.0, 1.0, 7.0], [0.0, 0.0, 9.0]])) == pytest.approx([6.0, 1.0])


def test_too_few_runs_are_refused() -> None:
    pytest.importorskip("sklearn")
    for samples in ([], generated(4 * (FOLDS - 1))):
        with pytest.raises(InvalidInput, match=f"expected {FOLDS} or more"):
            fit(samples)


def test_the_file_says_the_same(fitted: Fitted, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(forest_json(fitted.file))
    samples = np.random.default_rng(2).uniform(0, 1, (100, 3))
    assert (read_forest(path).predict(samples) == forest_of(fitted.file).predict(samples)).all()
    assert read_forest(path).predict(samples) == pytest.approx([read_forest(path).predict(row[None])[0] for row in samples])


LEAF = TreeEntry(feature=(-1,), threshold=(0.0,), left=(0,), right=(0,), value=(1.5,))
SPLIT = TreeEntry(feature=(0, -1, -1), threshold=(0.5, 0.0, 0.0), left=(1, 0, 0), right=(2, 0, 0), value=(0.0, 1.0, 2.0))


def forest_file(*trees: TreeEntry, features: tuple[str, ...] = ("a",)) -> ForestFile:
    return ForestFile(format="schedc.interference", version=1, features=features, trees=trees)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left": [0, 0, 0]}, r"trees\[1\]\.left\[0\]: found 0, expected a later node, up to 2"),
        ({"right": [3, 0, 0]}, r"trees\[1\]\.right\[0\]: found 3, expected a later node, up to 2"),
        ({"feature": [1, -1, -1]}, r"trees\[1\]\.feature\[0\]: found 1, expected a feature from 0 to 0, or -1 for a leaf"),
        ({"value": [0, 1]}, r"trees\[1\]\.value: found 2 values, expected 3, one for each node"),
        ({"feature": []}, r"trees\[1\]\.feature: found \[\], expected a list of at least 1"),
        ({"threshold": ["a", 0, 0]}, r'trees\[1\]\.threshold\[0\]: found "a", expected a number'),
        ({"code": 1}, r"trees\[1\]\.code: found an unknown key"),
    ],
)
def test_a_file_that_is_no_forest_is_refused_in_one_line(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    content = json.loads(forest_json(forest_file(LEAF, SPLIT)))
    path.write_text(json.dumps(content))
    assert read_forest(path).predict(np.array([[0.5], [0.6]])) == pytest.approx([1.25, 1.75])
    content["trees"][1] |= change
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=rf"model\.json: {message}"):
        read_forest(path)


def test_a_model_of_another_machine_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_bytes(forest_json(forest_file(LEAF, features=("gpu_busy",))))
    with pytest.raises(
        InvalidInput, match="found no 'gpu_busy' on this machine, expected what it was trained with; train one here"
    ):
        SlowdownPredictor(path)
    path.write_bytes(forest_json(forest_file(LEAF, features=("others_cpu", "probe_memory_s"))))
    predictor = SlowdownPredictor(path)
    assert (predictor.slowdown(), predictor.slowdown()) == (1.5, 1.5)


def recorded(folder: Path, **texts: str) -> Path:
    """A folder like /proc."""
    for name, text in {"stat": STAT, "cpuinfo": CPUINFO, **texts}.items():
        (folder / name).write_text(text)
    (folder / "pressure").mkdir()
    for name in ("cpu", "memory"):
        (folder / "pressure" / name).write_text(PRESSURE)
    for thread, text in (("10", "5000000000 2000000000 30\n"), ("11", "7000000 500000000 4\n")):
        (folder / "self" / "task" / thread).mkdir(parents=True)
        (folder / "self" / "task" / thread / "schedstat").write_text(text)
    return folder


def test_what_the_kernel_says_is_read(tmp_path: Path) -> None:
    counters, gauges = machine_counters(STAT)
    assert counters["cpu_busy"] == pytest.approx((1000 + 20 + 300 + 6 + 7 + 8) / TICKS_PER_S / 2)
    assert [counters[f"cpu_{name}"] for name in ("system", "iowait", "steal")] == pytest.approx(
        [ticks / TICKS_PER_S / 2 for ticks in (300, 50, 8)]
    )
    assert counters["cpu_switches"] == 4500
    assert gauges == {"cpus": 2, "cpu_runnable": 1.5}
    assert waited_s("5000000000 2000000000 30\n") == 2.0
    assert stalled_s(PRESSURE) == 2.5
    seen = look(recorded(tmp_path))
    assert seen.counters["own_waiting"] == 2.5
    assert seen.counters["pressure_cpu"] == seen.counters["pressure_memory"] == 2.5
    assert seen.gauges["frequency_mhz"] == 2500


def test_other_systems_are_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("seen", "making"):
        monkeypatch.setattr(f"schedc.runtime.interference.{module}.PROC", tmp_path)
    for begin in (Seen, lambda: make(4, 0.5)):
        with pytest.raises(Unsupported, match=r"^interference: found no /proc, expected Linux$"):
            begin()


def test_what_a_kernel_does_not_say_is_absent(tmp_path: Path) -> None:
    folder = recorded(tmp_path, cpuinfo="processor\t: 0\nBogoMIPS\t: 48.00\n")
    for path in (*folder.glob("pressure/*"), *folder.glob("self/task/*/schedstat")):
        path.unlink()
    seen = look(folder)
    assert not {"pressure_cpu", "own_waiting"} & seen.counters.keys()
    assert "frequency_mhz" not in seen.gauges
    assert "own_ready_share" not in rates(seen, seen)


def test_rates_are_of_the_time_between() -> None:
    """Of its own time only ratios, so that a rank that waits for others looks as one that computes."""
    before = Look(0, {"cpu_busy": 1.0, "own_cpu": 3.0, "own_waiting": 1.0, "own_preempted": 10, "ended": 5.0}, {"cpus": 2})
    for cpu_s in (0.5, 0.25):
        waited = 1.0 + cpu_s / 4
        counters = {"cpu_busy": 1.5, "own_cpu": 3.0 + cpu_s, "own_waiting": waited, "own_preempted": 10 + 40 * cpu_s, "ended": 4.0}
        found = rates(before, Look(500 * MS, counters, {"cpus": 2, "cpu_runnable": 1.5}))
        assert found["own_waiting"] == pytest.approx(0.25)
        assert found["own_ready_share"] == pytest.approx(0.8)
        assert found["own_preempted"] == pytest.approx(40)
        assert found["others_cpu"] == pytest.approx(1.0 - cpu_s)
        assert (found["ended"], found["cpu_runnable"]) == (0.0, 1.5)
        assert not {"own_cpu", "cpu_busy", "cpus"} & found.keys()


class FakeNvml:
    """A library whose GPU 1 has all counters but the power."""

    def __init__(self) -> None:
        self.nvmlInit_v2: Callable[[], int] = lambda: 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = 77
        return 0 if index.value == 1 else 6

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, used: Any) -> int:
        used._obj.gpu, used._obj.memory = (60, 25) if handle.value == 77 else (0, 0)
        return 0

    def nvmlDeviceGetMemoryInfo(self, _handle: ctypes.c_void_p, memory: Any) -> int:
        memory._obj.total, memory._obj.used = 80 << 30, 20 << 30
        return 0

    def nvmlDeviceGetClockInfo(self, _handle: ctypes.c_void_p, kind: Any, clock: Any) -> int:
        clock._obj.value = {1: 1980, 2: 2619}[kind.value]
        return 0

    def nvmlDeviceGetPcieThroughput(self, _handle: ctypes.c_void_p, way: Any, kbps: Any) -> int:
        kbps._obj.value = {0: 100, 1: 200}[way.value]
        return 0

    def nvmlDeviceGetPowerUsage(self, _handle: ctypes.c_void_p, _power: Any) -> int:
        return 3


def test_counters_of_a_gpu() -> None:
    assert Gpu(FakeNvml(), 1).counters() == {
        "gpu_busy": 0.6,
        "gpu_memory_busy": 0.25,
        "gpu_memory_used": 0.25,
        "gpu_clock_mhz": 1980,
        "gpu_memory_clock_mhz": 2619,
        "gpu_sent_kbps": 100,
        "gpu_received_kbps": 200,
    }
    with pytest.raises(OSError, match="NVML has no GPU 0"):
        Gpu(FakeNvml(), 0)


def test_what_competes_is_drawn() -> None:
    assert [most_competitors(cpus) for cpus in (1, 2, 3, 1000)] == [2, 3, 5, 64]
    for most in (2, 3, 64):
        drawn = drawn_competitions(200, most, seed=3)
        assert drawn == drawn_competitions(200, most, seed=3) != drawn_competitions(200, most, seed=4)
        assert drawn[0] == CALM_RUN
        for beside in drawn:
            assert 0 <= beside.burners + beside.streams <= most
            assert (beside.burners + beside.streams > 0) == (beside.duty > 0)
        assert 20 <= sum(beside.duty == 0 for beside in drawn) <= 90
        assert any(beside.burners and beside.streams for beside in drawn)


def test_ratios_are_to_the_fastest_calm_run() -> None:
    runs: list[list[tuple[dict[str, float], float]]] = [
        [({"a": 1}, 30.0), ({"a": 2}, 10.0), ({"a": 3}, 14.0)],
        [({"a": 4}, 28.0)],
        [],
    ]
    runs.append([({"a": 5}, 7.0)])
    made = samples_of([CALM_RUN, Competition(1, 0, 1.0), CALM_RUN, Competition(0, 1, 0.5)], runs)
    assert made.alone_ns == 14.0
    assert [(sample.run, sample.ratio, sample.seen["a"]) for sample in made.samples] == [
        (0, 30 / 14, 1),
        (0, 10 / 14, 2),
        (0, 1.0, 3),
        (1, 2.0, 4),
        (3, 0.5, 5),
    ]
    assert samples_of([CALM_RUN, Competition(1, 0, 1.0)], runs[2:]).samples == ()


def watched(steps: int = 600) -> tuple[SpeedWatch, Callable[[float], None], Callable[[float], None]]:
    """A rank that is known well, with functions for a measured step and a prediction, by the factor that there is."""
    draw, watch = random.Random(5), SpeedWatch(Rate(50))

    def step(factor: float) -> None:
        kinds = Kind.F, Kind.B, Kind.W
        watch.step((Op(kind, 0, at), round(10 * MS * factor * draw.gauss(1, 0.01))) for at in range(8) for kind in kinds)

    def predict(factor: float) -> None:
        watch.add_prediction(1.2 * factor * draw.gauss(1, 0.02))  # this machine is a little slower than the one it was trained on

    for _ in range(steps):
        step(1.0)
        predict(1.0)
    return watch, step, predict


def slow(factor: float) -> Any:
    return pytest.approx(dict.fromkeys((Kind.F, Kind.B, Kind.W), factor), rel=0.05)


def test_what_is_predicted_is_known_before_a_step_has_ended_and_then_measured() -> None:
    watch, step, predict = watched()
    for _ in range(6):
        predict(1.5)
    assert watch.slowdown() == slow(1.5)
    for _ in range(CREDIT):  # what is measured takes over: it is a little less
        step(1.4)
        assert watch.slowdown() == slow(1.5) or watch.slowdown() == slow(1.4)
    for _ in range(10):
        step(1.4)
        predict(1.5)
    assert watch.slowdown() == slow(1.4)
    for _ in range(40):
        predict(1.0)
        step(1.4)
    assert watch.slowdown() == slow(1.4)
    for _ in range(20):
        step(1.0)
    assert watch.slowdown() == {}


def test_what_no_step_shows_counts_no_more() -> None:
    watch, step, predict = watched()
    for _ in range(6):
        predict(2.0)
    assert watch.slowdown() == slow(2.0)
    for _ in range(CREDIT):
        assert watch.slowdown() != {}
        step(1.0)
    assert watch.slowdown() == {}
    for _ in range(50):
        predict(2.0)
        step(1.0)
        assert watch.slowdown() == {}
    for _ in range(10):  # the prediction is as usual again, and a later change counts again
        predict(1.0)
    assert watch.slowdown() == {}
    for _ in range(10):
        predict(1.7)
    assert watch.slowdown() == slow(1.7)
    for _ in range(10):
        predict(1.0)
    assert watch.slowdown() == {}


def test_predictions_that_vary_as_they_did_change_nothing() -> None:
    watch, step, predict = watched()
    for _ in range(300):
        predict(1.0)
        predict(1.0)
        step(1.0)
        assert watch.slowdown() == {}
    assert watch.alarms == 0


class Predicted:
    """Says what it is set to, and how often it was asked."""

    every_s = 0.001

    def __init__(self) -> None:
        self.factor, self.asked = 1.0, 0

    def slowdown(self) -> float:
        self.asked += 1
        return self.factor


def test_a_monitor_asks_while_nothing_ends() -> None:
    """Its thread does, between what it measures; what is predicted is in the conditions then."""
    predicted = Predicted()
    monitor = Monitor(predictor=predicted)
    monitor._problem = make_problem(2, 4)
    assert monitor.conditions() is None
    ops = [(Op(kind, 0, at), 10 * MS) for kind in (Kind.F, Kind.B, Kind.W) for at in range(4)]
    for _ in range(40):
        monitor.measure(ops)
        monitor._predict()
    assert monitor.conditions() is not None
    assert not monitor.changed.wait(0) or monitor.conditions().slowdown == {}  # type: ignore[union-attr]
    monitor.changed.clear()
    predicted.factor = 1.5
    for _ in range(9):
        monitor._predict()
    assert monitor.changed.is_set()
    assert monitor.conditions().slowdown == {(0, kind): 1.5 for kind in (Kind.F, Kind.B, Kind.W)}  # type: ignore[union-attr]
    assert predicted.asked == 49


def test_what_is_measured_gets_its_turn_between_predictions() -> None:
    monitor, ended = Monitor(predictor=Predicted()), SimpleQueue[Any]()
    for job in (print, None):
        ended.put(job)
    assert monitor._next(ended) == monitor._predict
    monitor._next_prediction_s = monotonic() + 1000
    assert (monitor._next(ended), monitor._next(ended)) == (print, None)
    monitor._next_prediction_s = monotonic() + 0.01  # nothing is there then
    assert monitor._next(ended) == monitor._predict
    plain = Monitor()
    ended.put(print)
    assert plain._next(ended) is print


def test_processes_that_compete_end_with_the_one_that_started_them() -> None:
    with Child(["-m", "schedc.runtime.interference.child"]) as child:
        assert child.ask(b'{"compete": "stream", "duty": 1.0}') == b"null"
        windows = json.loads(child.ask(b'{"measure_s": 0.05, "window_s": 0.01, "busy": 0.5}'))
        assert all(iteration_ns > 0 and "probe_memory_s" in seen for seen, iteration_ns in windows)
        os.kill(child.pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(child.pid, 0)


@pytest.mark.slow
def test_the_command_trains_a_forest(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    path = tmp_path / "model.json"
    done = schedc("interference", "-o", path, "--runs", 8, "--seconds", 1, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    assert found["errors"].keys() == {"forest", "linear", "last value"}
    assert len({sample["run"] for sample in found["samples"]}) > FOLDS
    assert found["alone_ns"] > 0
    forest = read_forest(path)
    assert len(forest.roots) == 128
    assert found["importances"].keys() == set(forest.names)
    ratios = [sample["ratio"] for sample in found["samples"]]
    assert all(min(ratios) <= forest.predict_one(sample["seen"]) <= max(ratios) for sample in found["samples"])
