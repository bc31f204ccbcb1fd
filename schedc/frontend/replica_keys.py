"""The keys of [data_parallel] in a job file: replicas of the pipeline, and what their collectives take; as in `job_file`."""

from __future__ import annotations

from typing import Annotated, Literal

from schedc.io.conform import Bandwidth, Count, Duration, Durations, Pair, Rules, Section, Sizes, key


class DataParallelSection(Section, frozen=True, kw_only=True):
    """The data-parallel collectives beside the pipeline."""

    size: Annotated[Count, key("Replicas of the pipeline; only recorded in the plan.", example="4")]
    zero_stage: Annotated[
        Literal[0, 1, 3],
        key(
            "0: all-reduce after the last `W`. 1: reduce-scatter, and all-gather before the first `F`. 3:"
            " [weights are gathered and released](cost-model.md#sharded-weights) within the step (FSDP).",
            example="1",
        ),
    ]
    reduce_scatter_ns: Annotated[
        Durations | None,
        key(
            "One value, or one per stage; for ZeRO 0 it is the all-reduce. Required without `bandwidth`.",
            example='"60 ms"',
            note="of a stage's gradients; or a list, one for each stage",
        ),
    ] = None
    all_gather_ns: Annotated[
        Durations | None,
        key(
            "Likewise, before a stage's first `F`: required for ZeRO 1, refused for 0.", example='"30 ms"', note="of its parameters"
        ),
    ] = None
    gathered_bytes: Annotated[
        Sizes | None,
        key("What a stage's weights take while they are gathered, one value or one per stage: for ZeRO 3, required there."),
    ] = None
    gradients_bytes: Annotated[
        Sizes | None,
        key("What a stage's gradients take until they are reduced; likewise. Neither is part of what is static."),
    ] = None
    bytes_per_second: Annotated[
        Bandwidth | None,
        key(
            "Between the replicas, for ZeRO 3: instead of the durations. A gather takes `latency` + bytes × (size − 1) ÷ size ÷"
            " bandwidth, a reduction the same of the gradients.",
        ),
    ] = None
    latency_ns: Annotated[Duration | None, key("Of a collective, with `bandwidth`. Default: 0.")] = None
    trunk: Annotated[
        Pair | None,
        key(
            "Two sites, `[from, to]`, on whose trunk all ranks' collectives queue with the transfers; transfers of the pipeline"
            " must cross it. Default: beside the pipeline's transfers."
        ),
    ] = None

    def rules(self) -> Rules:
        """An all-gather for ZeRO 1, sizes for ZeRO 3, and durations or a bandwidth that they follow from."""
        shards, needs = self.zero_stage == 3, f"as zero_stage is {self.zero_stage}"
        for name, size in (("gathered", self.gathered_bytes), ("gradients", self.gradients_bytes)):
            if shards != (size is not None):
                size_text = f'a size such as "1 GiB" or a list of them, {needs}'
                yield name, "nothing" if shards else "a value", size_text if shards else f"none, {needs}"
        if self.bytes_per_second is not None:
            if not shards:
                yield "bandwidth", "a value", f"durations instead, {needs}"
            for name, value in (("reduce_scatter", self.reduce_scatter_ns), ("all_gather", self.all_gather_ns)):
                if value is not None:
                    yield name, "a value beside bandwidth", "one of the two"
            return
        if self.latency_ns is not None:
            yield "latency", "a value without bandwidth", "both, or neither of them"
        if self.reduce_scatter_ns is None:
            yield "reduce_scatter", "nothing", 'a duration such as "60 ms" or a list of them'
        if self.zero_stage == 0 and self.all_gather_ns is not None:
            yield "all_gather", "a value where zero_stage is 0", "none, as its all-reduce leaves nothing to gather"
        if self.zero_stage > 0 and self.all_gather_ns is None:
            yield "all_gather", "nothing", f'a duration such as "60 ms" or a list of them, {needs}'
