"""What blocks and messages cost, whoever has the cost: a layer or a stage, a pair of sites or of ranks.

Times are integer nanoseconds, sizes integer bytes. The rules of one value are checked on construction (`ValueError`).
"""

from __future__ import annotations

from dataclasses import dataclass

from schedc.ir.ops import Kind

DURATIONS = {Kind.F: "forward_ns", Kind.B: "backward_input_ns", Kind.W: "backward_weight_ns", Kind.BW: "backward_ns"}
"""Where `BlockCosts` has the durations of each kind of block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockCosts:
    """The costs of the blocks of one microbatch. Each `*_ns` tuple holds one value for all microbatches, or one per microbatch."""

    forward_ns: tuple[int, ...]
    backward_input_ns: tuple[int, ...]
    backward_weight_ns: tuple[int, ...]
    backward_ns: tuple[int, ...]
    """The fused backward, `BW`: its input and weight parts together, unless measured otherwise."""
    activation_bytes: int = 0
    """Held from the start of F."""
    activation_after_input_bytes: int = 0
    """What of it is still held between the end of B and the end of W."""
    message_bytes: int = 0
    """What F sends to the next stage of the path."""
    gradient_message_bytes: int = 0
    """What comes back for it: the gradient that the next stage of the path sends to this one."""

    def __post_init__(self) -> None:
        """Refuse negative numbers and a held remainder larger than the activation."""
        for name in DURATIONS.values():
            values: tuple[int, ...] = getattr(self, name)
            if not values or min(values) < 0:
                raise ValueError(f"{name} must hold durations of at least 0, got {values}")
        for name in ("activation_bytes", "activation_after_input_bytes", "message_bytes", "gradient_message_bytes"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, got {getattr(self, name)}")
        if self.activation_after_input_bytes > self.most_bytes:
            raise ValueError(f"activation_after_input_bytes ({self.activation_after_input_bytes}) exceeds {self.most_bytes}")

    @property
    def most_bytes(self) -> int:
        """What one microbatch holds at most."""
        return self.activation_bytes

    def durations_ns(self, kind: Kind) -> tuple[int, ...]:
        """The durations of the blocks of this kind: one value for all microbatches, or one per microbatch."""
        if kind is Kind.F:
            return self.forward_ns
        if kind is Kind.B:
            return self.backward_input_ns
        return self.backward_weight_ns if kind is Kind.W else self.backward_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageCost:
    """What a message costs on its way: it arrives `latency_ns` after it has left the link, which it occupies."""

    latency_ns: int = 0
    transfer_ns: int | None = None
    """The occupancy of one message, given outright; wins over `bytes_per_second`."""
    bytes_per_second: int | None = None
    """Bandwidth; None: a message occupies the link for no time."""
    setup_ns: int = 0
    """For how long a message occupies the link besides, whatever its size: its latency, where the link is held for that, too."""

    def __post_init__(self) -> None:
        """Refuse negative numbers."""
        if self.latency_ns < 0 or (self.transfer_ns or 0) < 0 or self.setup_ns < 0:
            found = f"{self.latency_ns}, {self.transfer_ns} and {self.setup_ns}"
            raise ValueError(f"latency, transfer and setup must be at least 0, got {found}")
        if self.bytes_per_second is not None and self.bytes_per_second <= 0:
            raise ValueError(f"bytes_per_second must be above 0, got {self.bytes_per_second}")

    def occupancy_ns(self, message_bytes: int) -> int:
        """For how long a message of this size occupies the link; a fraction of a nanosecond counts as a whole one."""
        if self.transfer_ns is not None:
            return self.setup_ns + self.transfer_ns
        if self.bytes_per_second is None:
            return self.setup_ns
        return self.setup_ns - (-message_bytes * 1_000_000_000 // self.bytes_per_second)

    def payload_ns(self, size_bytes: int, message_bytes: int) -> int:
        """For how long what is no message of the pipeline occupies the link, such as gradients or weights.

        `transfer_ns` is the time of one message, of `message_bytes`; so what is larger takes longer in proportion.

        Raises:
            ValueError: `transfer_ns` is above 0, and of no known size.
        """
        if self.transfer_ns is None:
            return self.occupancy_ns(size_bytes)
        if not self.transfer_ns or not size_bytes:
            return self.setup_ns
        if message_bytes <= 0:
            raise ValueError("transfer_ns is the time of a message of no known size")
        return self.setup_ns - (-size_bytes * self.transfer_ns // message_bytes)


FREE = MessageCost()
"""A message takes no time."""
