"""A plan in a training loop of Megatron-Core: what takes the place of its forward and backward function.

`forward_backward_func_from(plan)` gives a function with the arguments and the result of those that Megatron's
`get_forward_backward_func` gives. Megatron's own `forward_step` runs each forward, so that losses, token counts and the scales of
auxiliary losses are what Megatron makes of them; the order, the transfers and the backwards are the plan's. Made for megatron-core
0.16 (`megatron/core/pipeline_parallel/schedules.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.utils import get_model_config

from schedc.errors import CheckFailed, InvalidInput, SchedcError
from schedc.ir import Plan
from schedc.runtime.common.hooks import ReplicaHooks
from schedc.runtime.frameworks.megatron_backwards import ApartPipe, delayed_layers, layers_of_one_backward, split_linear_layers
from schedc.runtime.frameworks.megatron_checks import check_call, check_model, splits, warn_of_backwards
from schedc.runtime.frameworks.megatron_stage import Call, MegatronStage
from schedc.runtime.session.acceptance import read
from schedc.runtime.session.loading import load
from schedc.runtime.session.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from torch import nn


def forward_backward_func_from(plan: Path | str | Plan, **options: Any) -> ForwardBackward:
    """What runs a plan where Megatron runs a forward and backward function of its own.

    Args:
        plan: the plan file, or the plan.
        options: what `schedc.runtime.load` takes besides: `timeout_s`, `observe`, `channels`, `queues`, `wrap`.

    Returns:
        A function to call as Megatron's; it loads the plan when it is first called, and `close` closes its connections.

    Raises:
        InvalidInput: the file is no plan of a known version, or an option is one that Megatron decides.
    """
    return ForwardBackward(read(plan, verify=False), options)


class ForwardBackward:
    """A plan, called as Megatron's forward and backward functions are."""

    def __init__(self, plan: Plan, options: Mapping[str, Any]) -> None:
        """Take the plan, and the options of `load`."""
        allowed = {"timeout_s", "observe", "channels", "queues", "wrap"}
        unknown = sorted(options.keys() - allowed)
        if unknown:
            raise InvalidInput(f"forward_backward_func_from: found {unknown[0]}, expected one of {', '.join(sorted(allowed))}")
        self.plan = plan
        self.pipe: Pipe | None = None
        """The loaded plan, from the first call on."""
        self._options = options
        self._chunks: list[nn.Module] = []
        self._group: dist.ProcessGroup | None = None
        self._stages: dict[int, MegatronStage] = {}
        self._split: list[nn.Module] = []

    def __call__(
        self,
        *,
        forward_step_func: Callable[..., Any],
        data_iterator: Any,
        model: nn.Module | list[nn.Module],
        num_microbatches: int,
        seq_length: int | None = None,
        micro_batch_size: int | None = None,
        decoder_seq_length: int | None = None,
        forward_only: bool = False,
        collect_non_loss_data: bool = False,
        first_val_step: bool | None = None,
        adjust_tensor_shapes_fn: Callable[..., Any] | None = None,
        p2p_communicator: Any = None,
        pg_collection: Any = None,
        force_all_reduce: bool | None = False,
    ) -> list[Any]:
        """Run the plan once, as Megatron's functions run theirs; all ranks of the pipeline call it together.

        Args:
            forward_step_func: takes a data iterator and a model chunk; gives its output and the loss function.
            data_iterator: one, or one of its own for each of this rank's chunks.
            model: this rank's chunks of the model, in the order of their stages in the plan.
            num_microbatches: as many as the plan has.
            seq_length: with the two below it says whether what crosses ranks has shapes that have been seen before. Where
                microbatches of a call differ, the model has `variable_seq_lengths`.
            micro_batch_size: as `seq_length`.
            decoder_seq_length: as `seq_length`.
            forward_only: whether to run the forwards alone.
            collect_non_loss_data: whether the loss function gives other data.
            first_val_step: whether it is the first step of a validation, for layers in FP8.
            adjust_tensor_shapes_fn: not needed.
            p2p_communicator: whose group of the pipeline's ranks is taken; it sends nothing.
            pg_collection: the groups; None: those of `parallel_state`.
            force_all_reduce: goes to `finalize_model_grads_func`.

        Returns:
            On the rank with the last stage, what the loss function gives for each microbatch, in their order; else nothing.

        Raises:
            SchedcError: the plan does not fit the model or this call, or one of them asks for what is not supported here; says why.
                At the first call on all ranks, before anything is computed.
            TransferFailed: another rank has ended, failed, or does not answer.
        """
        chunks = model if isinstance(model, list) else [model]
        config = get_model_config(chunks[0])
        groups = _groups_of_megatron() if pg_collection is None else pg_collection
        if self.pipe is None:
            self._load(chunks, config, groups.pp if p2p_communicator is None else p2p_communicator.pp_group, groups.cp.size())
        assert self.pipe is not None
        if chunks != self._chunks:
            raise InvalidInput(
                "model: found other chunks than in the first call; give them a forward_backward_func_from of their own"
            )
        iterators = data_iterator if isinstance(data_iterator, list) else [data_iterator]
        check_call(self.plan, len(chunks), iterators, num_microbatches)
        device = next((weight.device for chunk in chunks for weight in chunk.parameters()), torch.device("cpu"))
        call = Call(forward_step_func, iterators, num_microbatches, device, forward_only, collect_non_loss_data, first_val_step)
        if config.timers is not None:
            config.timers("forward-backward", log_level=1).start(barrier=config.barrier_with_L1_time)
        alike = [torch.empty(seq_length or 0, decoder_seq_length or 0, micro_batch_size or 0, 0, device="cpu")] * num_microbatches
        for stage in self._stages.values():
            stage.begin(call)
        if forward_only:
            self.pipe.evaluate(alike, outputs={})
        else:
            with ExitStack() as not_synchronizing:
                for function in _each(config.no_sync_func) or [*map(_NO_SYNC, filter(_overlaps, chunks))]:
                    not_synchronizing.enter_context(function())
                self.pipe.step(alike, alike, divide_by=1)
        for stage in self._stages.values():
            stage.end()
        if config.finalize_model_grads_func is not None and not forward_only:
            tokens = self._on_last_rank(call.tokens) if config.calculate_per_token_loss else None
            config.finalize_model_grads_func(chunks, tokens, pg_collection=groups, force_all_reduce=force_all_reduce)
        if config.timers is not None:
            config.timers("forward-backward").stop()
        return call.store

    def _on_last_rank(self, tokens: torch.Tensor) -> torch.Tensor:
        """The number of tokens, which is known with the last stage, on the last rank, from which Megatron broadcasts it."""
        problem = self.plan.problem
        known = problem.stages[problem.paths[0][-1]].rank
        if known != problem.ranks - 1:
            assert self._group is not None
            dist.broadcast(tokens, group=self._group, group_src=known)
        return tokens

    def close(self) -> None:
        """Close all connections. Closing again does nothing."""
        for layer in self._split:  # they are what they were
            vars(layer).pop("_forward_impl", None)
        if self.pipe is not None:
            self.pipe.close()

    def _load(self, chunks: list[nn.Module], config: Any, group: dist.ProcessGroup, cp_size: int) -> None:
        """Load the plan with these chunks as stages, on all ranks of the group or on none."""
        refusal = None
        try:
            check_model(self.plan, chunks, config, group.rank())
        except SchedcError as error:
            refusal = error
        refusals: list[str | None] = [None] * group.size()
        dist.all_gather_object(refusals, None if refusal is None else str(refusal), group=group)
        if refusal is not None:
            raise refusal
        other = next(((rank, text) for rank, text in enumerate(refusals) if text is not None), None)
        if other is not None:
            raise CheckFailed(f"rank {other[0]} has refused the plan: {other[1]}")
        own = self.plan.problem.stages_on(group.rank())
        stages = {stage: MegatronStage(self.plan, stage, number, chunks, cp_size) for number, stage in enumerate(own)}
        apart = splits(self.plan)
        if apart and group.rank() == 0:
            warn_of_backwards(self.plan, config, layers_of_one_backward(chunks))
        if apart:
            self._split = split_linear_layers(chunks)
        self.pipe = load(
            self.plan,
            stages=stages,
            loss_fn=partial(_scaled, config),
            pipeline_group=group,
            check_loss=False,
            replicas=GradientSync(dict(zip(own, chunks, strict=True)), config),
            kind=ApartPipe if apart or delayed_layers(chunks) else Pipe,
            varying=bool(config.variable_seq_lengths),
            **self._options,
        )
        self._chunks, self._stages, self._group = [*chunks], stages, group


class GradientSync(ReplicaHooks):
    """Starts what Megatron does over data-parallel ranks as soon as a stage is done, or is about to begin."""

    def __init__(self, chunks: Mapping[int, nn.Module], config: Any) -> None:
        """Take this rank's chunks by stage."""
        self._chunks = chunks
        self._numbers = {stage: number for number, stage in enumerate(chunks)}
        self._config = config

    def on_weights_needed(self, stage: int) -> None:
        """Start the gathering of a chunk's weights, where Megatron starts that for all ranks at the same time."""
        functions = _each(self._config.param_sync_func)
        if functions and len(self._chunks) > 1:  # as Megatron: with one chunk the hooks of its modules do it
            functions[self._numbers[stage] % len(functions)](self._chunks[stage].parameters())

    def on_gradients_complete(self, stage: int) -> None:
        """Start the reduction of a chunk's gradients, where Megatron has it beside the backwards.

        Not where the optimizer has several instances: Megatron starts it again at the end then, and all would be reduced twice.
        """
        functions = _each(self._config.grad_sync_func)
        chunk: Any = self._chunks[stage]
        if _overlaps(chunk) and chunk.ddp_config.num_distributed_optimizer_instances > 1:
            return
        if functions:
            functions[self._numbers[stage] % len(functions)](chunk.parameters())
        elif _overlaps(chunk):
            chunk.start_grad_sync()


_NO_SYNC = attrgetter("no_sync")


def _overlaps(chunk: Any) -> bool:
    """Whether it is in Megatron's DistributedDataParallel, which reduces gradients beside the backwards."""
    return bool(getattr(getattr(chunk, "ddp_config", None), "overlap_grad_reduce", False))


def _each(functions: Any) -> Sequence[Callable[..., Any]]:
    """Megatron has one function, a list of them by chunk, or None."""
    return functions if isinstance(functions, list) else [] if functions is None else [functions]


def _scaled(config: Any, loss: torch.Tensor, _: object) -> torch.Tensor:
    """The loss from which the backward starts, as in Megatron's `backward_step`."""
    if config.grad_scale_func is not None:
        loss = config.grad_scale_func(loss)
    if loss.numel() != 1:
        raise InvalidInput(f"the loss function must give a scalar tensor as loss; found the shape {list(loss.shape)}")
    return loss.reshape(())


def _groups_of_megatron() -> Any:
    """The groups that Megatron's functions take where they are given none."""
    groups = ProcessGroupCollection()
    groups.tp = parallel_state.get_tensor_model_parallel_group()
    groups.cp = parallel_state.get_context_parallel_group()
    groups.embd = parallel_state.get_embedding_group(check_initialized=False)
    groups.pos_embd = parallel_state.get_position_embedding_group(check_initialized=False)
    groups.pp = parallel_state.get_pipeline_model_parallel_group()
    groups.dp_cp = parallel_state.get_data_parallel_group(with_context_parallel=True, partial_data_parallel=False)
    return groups
