"""Whether the ranks' devices can have the channels that a job wishes for; asked where a rank has a GPU, or wishes for NCCL."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedc.errors import InvalidInput, Unsupported

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from schedc.runtime.transports.wishes import Hardware

__all__ = ["check_devices"]


def check_devices(channels: str, ranks: Sequence[Hardware], pairs: Iterable[tuple[int, int]]) -> None:
    """Refuse channels that the devices cannot have.

    Args:
        channels: what the ranks wish for.
        ranks: what each runs on.
        pairs: the ranks that have a wire, (source, destination).

    Raises:
        InvalidInput: they do not fit the devices.
        Unsupported: some ranks are on CPUs and some on GPUs, or a rank's PyTorch lacks NCCL.
    """
    on_cpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is None]
    on_gpu = [rank for rank, hardware in enumerate(ranks) if hardware.gpu is not None]
    if on_cpu and on_gpu:
        raise Unsupported(
            f"rank {on_cpu[0]}'s stages are on the CPU, rank {on_gpu[0]}'s on a GPU; put all ranks' stages on devices of one kind"
        )
    if channels == "gloo" and on_gpu:
        raise InvalidInput(f"channels='gloo' carries tensors of the CPU, rank {on_gpu[0]}'s stages are on a GPU; use 'auto'")
    if channels != "nccl":
        return
    if on_cpu:
        raise InvalidInput(f"channels='nccl' carries tensors of GPUs, rank {on_cpu[0]}'s stages are on the CPU; use 'auto'")
    lacking = next((rank for rank, hardware in enumerate(ranks) if not hardware.nccl), None)
    if lacking is not None:
        raise Unsupported(f"channels='nccl': rank {lacking}'s PyTorch is built without NCCL; use 'delegate', or another build")
    for source, destination in pairs:
        if ranks[source].gpu == ranks[destination].gpu:
            raise InvalidInput(
                f"channels='nccl': ranks {source} and {destination} have the same GPU, which NCCL does not connect; use 'auto'"
            )
