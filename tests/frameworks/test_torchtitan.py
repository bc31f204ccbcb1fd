"""torchtitan's own trainer runs plans: losses, gradient norms and weights are those of its own 1F1B."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import schedc
from jobs import write_job
from optional_packages import skip_without

skip_without("torchtitan")

from rank_processes import Ranks, rank_processes  # noqa: E402
from torchtitan_runs import Found, Run, train  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

JOB = """
[pipeline]
ranks = {ranks}
microbatches = 8
{layout}
[profile]
forward = "10 ms"
backward_input = "12 ms"
backward_weight = "9 ms"
message = "1 MiB"
[topology]
sites = {sites}
between = {{ latency = "1 ms" }}
"""
# 6 blocks, with the embedding and the head 8 layers
LAYOUTS = {
    "1f1b": "partition = {even}\nsplit_backward = false",
    "split": "partition = {even}",
    "wave": 'placement = "wave"\nchunks = 2\npartition = {wave}',
    "uneven": "partition = {uneven}",
}
PARTITIONS = {
    2: {"even": [4, 4], "wave": [1, 3, 2, 2], "uneven": [3, 5]},
    4: {"even": [2, 2, 2, 2], "wave": [1] * 8, "uneven": [1, 3, 3, 1]},
}
NAMES = ["tok_embeddings", *(f"layers.{block}" for block in range(6)), "norm+lm_head"]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Two ranks."""
    with rank_processes(2, tmp_path_factory.mktemp("two")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Four ranks."""
    with rank_processes(4, tmp_path_factory.mktemp("four")) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def plans(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], str]:
    """Plan files by number of ranks and layout."""
    folder = tmp_path_factory.mktemp("plans")
    return {(ranks, name): compiled(folder / f"{ranks}-{name}", ranks, name) for ranks in PARTITIONS for name in LAYOUTS}


def compiled(folder: Path, ranks: int, name: str) -> str:
    folder.mkdir()
    layout = LAYOUTS[name].format(**PARTITIONS[ranks])
    job = write_job(folder, JOB.format(ranks=ranks, layout=layout, sites=[ranks // 2] * 2))
    method = "1f1b" if name == "1f1b" else "greedy"
    done = schedc("compile", job, "-o", folder / "plan.json", "--method", method, "--quiet")
    assert done.returncode == 0, done.stderr
    return str(folder / "plan.json")


def modules(partition: Sequence[int]) -> list[list[str]]:
    """`module_fqns_per_model_part` of a partition."""
    names = iter(NAMES)
    return [[part for _ in range(count) for part in next(names).split("+")] for count in partition]


def trained(ranks: Ranks, run: Run) -> tuple[list[float], list[float], dict[str, str]]:
    """Losses, norms and digests of the weights of a run."""
    found = ranks.run(train, run, limit_s=200)
    assert all(isinstance(one, Found) for one in found), found
    (losses,) = [one.losses for one in found if one.losses]
    assert all(one.norms == found[0].norms for one in found)
    return losses, found[0].norms, {name: digest for one in found for name, digest in one.weights.items()}


@pytest.mark.parametrize("count", PARTITIONS)
def test_20_steps_are_those_of_1f1b(count: int, request: pytest.FixtureRequest, plans: dict[tuple[int, str], str]) -> None:
    ranks = request.getfixturevalue({2: "two", 4: "four"}[count])
    own = trained(ranks, Run())
    losses, norms, weights = own
    assert len(losses) == len(norms) == 20
    assert losses[-1] < losses[0]
    assert max(norms) > 1  # it clips
    # with the same stages everything is equal bit by bit, whatever the order of ops
    for name in ("1f1b", "split"):
        assert trained(ranks, Run(plan=plans[count, name])) == own, name
    # with others the norm sums in another order, and the steps after it differ by rounding
    for name in ("wave", "uneven"):
        other_losses, other_norms, other = trained(ranks, Run(plan=plans[count, name]))
        assert other_losses[0] == losses[0]
        assert other_losses == pytest.approx(losses, rel=1e-5)
        assert other_norms == pytest.approx(norms, rel=1e-4)
        assert other.keys() == weights.keys()
