"""Candidates: the ways to divide devices and batch that are tried. A pure function of numbers; nothing here takes time or bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from schedc.study.tune.tune_file import Across, PlacementName


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneCandidate:
    """One way to run the training step."""

    ranks: int
    """Of each pipeline."""
    data_parallel: int
    """Pipelines."""
    microbatch_size: int
    """Sequences."""
    microbatches: int
    """Of each pipeline."""
    placement: PlacementName
    chunks: int
    """Stages on a rank."""
    zero_stage: int
    recompute: str
    """`none` or `full`."""
    across: Across | None
    """What crosses from site to site; None: there is one site."""
    ranks_of_site: tuple[int, ...]
    """Of one pipeline, for each site that it is in."""
    replicas_of_site: tuple[int, ...]
    """Of one stage, for each site that they are in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What is tried, in its order."""

    groups_of_site: tuple[int, ...]
    """How many ranks the devices of each site make: groups of tensor and context parallelism."""
    batch: int
    """Sequences of a training step, of all pipelines."""
    layers: int
    """Of the model: no pipeline has more stages."""
    ranks: tuple[int, ...]
    microbatch_sizes: tuple[int, ...]
    placements: tuple[PlacementName, ...]
    chunks: tuple[int, ...]
    zero_stages: tuple[int, ...]
    recompute: tuple[str, ...]
    across_sites: tuple[Across, ...]
    expert_parallel: int = 1


def divisors(number: int) -> tuple[int, ...]:
    """All of them, ascending."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def candidates(choices: Choices) -> tuple[TuneCandidate, ...]:
    """All that use every device and the whole batch.

    Ranks of a pipeline across sites are divided as the devices are; otherwise each site has whole pipelines.
    """
    return tuple(dict.fromkeys(_all(choices)))


def _all(choices: Choices) -> Iterator[TuneCandidate]:
    groups = choices.groups_of_site
    for ranks in choices.ranks:
        for across, ranks_of_site, replicas_of_site in _divided(ranks, groups, choices.across_sites):
            data_parallel = sum(groups) // ranks
            # The tokens of an expert-parallel group go to all of its pipelines, so no such group is in two sites.
            if choices.batch % data_parallel or any(each % choices.expert_parallel for each in replicas_of_site):
                continue
            of_pipeline = choices.batch // data_parallel
            for size in choices.microbatch_sizes:
                if of_pipeline % size:
                    continue
                for placement, chunks in _placements(ranks, choices):
                    # ZeRO 1 divides nothing where there is one replica.
                    for zero_stage in choices.zero_stages if data_parallel > 1 else (0,):
                        for recompute in choices.recompute:
                            yield TuneCandidate(
                                ranks=ranks,
                                data_parallel=data_parallel,
                                microbatch_size=size,
                                microbatches=of_pipeline // size,
                                placement=placement,
                                chunks=chunks,
                                zero_stage=zero_stage,
                                recompute=recompute,
                                across=across,
                                ranks_of_site=ranks_of_site,
                                replicas_of_site=replicas_of_site,
                            )


def _divided(
    ranks: int, groups: Sequence[int], across_sites: Sequence[Across]
) -> Iterator[tuple[Across | None, tuple[int, ...], tuple[int, ...]]]:
    """What crosses sites, the ranks of a pipeline in each site, and the replicas of a stage in each site."""
    total = sum(groups)
    if total % ranks:
        return
    if len(groups) == 1:
        yield None, (ranks,), (total // ranks,)
        return
    for across in across_sites:
        if across == "pipeline" and all(ranks * group % total == 0 for group in groups):
            yield across, tuple(ranks * group // total for group in groups), (total // ranks,)
        if across == "data-parallel" and all(group % ranks == 0 for group in groups):
            yield across, (ranks,), tuple(group // ranks for group in groups)


def _placements(ranks: int, choices: Choices) -> Iterator[tuple[PlacementName, int]]:
    for placement in choices.placements:
        for chunks in (1,) if placement == "unidirectional" else choices.chunks:
            if ranks * chunks <= choices.layers and (placement == "unidirectional" or (ranks > 1 and chunks > 1)):
                yield placement, chunks
