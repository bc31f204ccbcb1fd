"""torchtitan's own trainer runs plans: losses, gradient norms and weights are those of its own 1F1B."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from inputs.jobs import write_job
from suite.command_line import schedc
from suite.optional_packages import importing

with importing("torchtitan"):
    from runs.torchtitan_runs import Run, Trained, trained

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from runs.processes import Ranks

JOB = """
[pipeline]
ranks = {ranks}
microbatches = 4
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


@pytest.fixture(scope="module")
def own() -> dict[int, Trained]:
    """What torchtitan's own 1F1B gives, by number of ranks, once it has run."""
    return {}


def of_1f1b(count: int, ranks: Ranks, own: dict[int, Trained]) -> Trained:
    if count not in own:
        own[count] = trained(ranks, Run())
    return own[count]


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("count", PARTITIONS)
def test_20_steps_are_those_of_1f1b(
    count: int, name: str, request: pytest.FixtureRequest, plans: dict[tuple[int, str], str], own: dict[int, Trained]
) -> None:
    ranks = request.getfixturevalue({2: "two", 4: "four"}[count])
    losses, norms, weights = of_1f1b(count, ranks, own)
    assert len(losses) == len(norms) == 20
    assert losses[-1] < losses[0]
    assert max(norms) > 1  # it clips
    found = trained(ranks, Run(plan=plans[count, name]))
    if name in ("1f1b", "split"):  # the same stages: everything is equal bit by bit, whatever the order of ops
        assert found == (losses, norms, weights)
    else:  # others: the norm over all ranks sums in another order, and the steps after it differ by rounding
        assert found[0][0] == losses[0]
        assert found[0] == pytest.approx(losses, rel=1e-5)
        assert found[1] == pytest.approx(norms, rel=1e-4)
        assert found[2].keys() == weights.keys()


def test_a_partition_of_the_users_own_is_equal_bit_by_bit(two: Ranks, plans: dict[tuple[int, str], str]) -> None:
    names = modules(PARTITIONS[2]["uneven"])
    given = {"parallelism.module_fqns_per_model_part": names}
    assert trained(two, Run(steps=3, plan=plans[2, "uneven"])) == trained(two, Run(steps=3, options=given))
    assert trained(two, Run(steps=3, plan=plans[2, "split"], options=given)) == trained(two, Run(steps=3, options=given))


VARIANTS = {
    "accumulation": Run(steps=3, options={"training.global_batch_size": 8}),
    "bfloat16": Run(steps=3, options={"training.mixed_precision_param": "bfloat16"}),
    "chunked loss": Run(steps=3, chunked_loss=True),
    "full recomputation": Run(steps=3, recompute="full"),
    "selective recomputation": Run(steps=3, recompute="selective"),
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_are_equal_bit_by_bit_with_b_and_w_apart(two: Ranks, plans: dict[tuple[int, str], str], variant: str) -> None:
    run = VARIANTS[variant]
    assert trained(two, replace(run, plan=plans[2, "split"])) == trained(two, run)


@pytest.mark.parametrize("replicas", [1, 2], ids=["sharded", "replicated"])
def test_two_pipelines_with_fsdp(four: Ranks, plans: dict[tuple[int, str], str], replicas: int) -> None:
    options = {
        "parallelism.pipeline_parallel_degree": 2,
        "parallelism.data_parallel_replicate_degree": replicas,
        "parallelism.spmd_backend": "partial_dtensor",
    }
    own = trained(four, Run(steps=3, options=options))
    for name in ("1f1b", "split"):
        assert trained(four, Run(steps=3, plan=plans[2, name], options=options)) == own, name


def test_validation_is_that_of_torchtitan(two: Ranks, plans: dict[tuple[int, str], str]) -> None:
    options = {"validator.enable": True, "validator.freq": 2, "validator.steps": 2}
    own, found = [trained(two, Run(steps=3, plan=plan, options=options)) for plan in (None, plans[2, "split"])]
    assert found == own
    assert len(own[0]) == 3 + 2  # after steps 1 and 2


def test_training_goes_on_from_a_checkpoint_of_torchtitan(two: Ranks, plans: dict[tuple[int, str], str], tmp_path: Path) -> None:
    settings = {"checkpoint.enable": True, "checkpoint.interval": 100, "checkpoint.last_save_model_only": False}
    saving = Run(steps=2, folder=str(tmp_path), options=settings)
    trained(two, saving)
    resumed = replace(saving, steps=4, options={**settings, "checkpoint.load_step": 2})
    own = trained(two, resumed)
    assert len(own[0]) == 2
    assert trained(two, replace(resumed, plan=plans[2, "split"])) == own
