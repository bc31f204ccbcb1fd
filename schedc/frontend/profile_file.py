"""profile.json: the costs of a model's layers, as `schedc profile` measures them or a person writes them.

```json
{"format": "schedc.profile", "version": 1,
 "layers": [
   {"name": "embedding", "forward": "0.4 ms", "backward_input": "0 ms", "backward_weight": "0.5 ms", "message": "64 MiB"},
   {"name": "block", "repeat": 32, "forward": "4.1 ms", "backward_input": "4.3 ms", "backward_weight": "3.6 ms",
    "activation": "544 MiB", "activation_after_input": "272 MiB", "message": "64 MiB"}]}
```
The layers stand in the order of the forward; the keys and units are those of the job's [profile], for one microbatch. A stage costs
what its layers cost together, and sends what its last layer does.
"""

from typing import Annotated, Literal

from msgspec import Meta

from schedc.frontend.quantities import Count, Duration, Section, Size

__all__ = ["LayerEntry", "ProfileFile"]


class LayerEntry(Section, frozen=True, kw_only=True):
    """One layer, or several equal ones in a row."""

    name: Annotated[str, Meta(description="For people.")] = ""
    repeat: Annotated[Count, Meta(description="So many of them in a row.")] = 1
    forward_ns: Duration
    backward_input_ns: Duration
    backward_weight_ns: Duration
    backward_ns: Annotated[Duration | None, Meta(description="Fused, where measured. Default: the two together.")] = None
    activation_bytes: Annotated[Size | None, Meta(description="Held from the layer's forward. Default: nothing.")] = None
    activation_after_input_bytes: Annotated[Size | None, Meta(description="What of it W still needs. Default: nothing.")] = None
    message_bytes: Annotated[Size | None, Meta(description="The layer's output, if a stage ends here. Default: nothing.")] = None
    gradient_message_bytes: Annotated[Size | None, Meta(description="The output's gradient. Default: the message's size.")] = None


class ProfileFile(Section, frozen=True, kw_only=True):
    """Measured layers of a model."""

    format: Literal["schedc.profile"]
    version: Literal[1]
    model: Annotated[str, Meta(description="For people.")] = ""
    layers: Annotated[tuple[LayerEntry, ...], Meta(min_length=1, description="In the order of the forward.")]
