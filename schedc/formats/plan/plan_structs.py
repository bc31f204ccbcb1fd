"""The plan file's shape (formats, "The plan"), as the types that decode it, encode it and give its JSON Schema; and its tokens.

The types hold what the file says, checked field by field; `plan_file` makes them into a Plan and back. Lists of tokens are lines of
at most 16 tokens joined by single spaces, so that differences read small. A plan of 64 ranks and 1,024 microbatches has half a
million tokens, most of them several times. So who reads many lists passes `functools.cache` of what parses a token, and who writes
them the lookup in `OpTokens`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from schedc.io.location import PRINTABLE
from schedc.ir import BoundName, Collective, Objective, Op, Scope, Versions, parse_op, token

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from schedc.io.location import Location

FORMAT: Final = "schedc.plan"
VERSIONS: Final = (1, 2)
"""Those that are read; the last is written. Version 1 has no `origin` (`version_1`)."""

MOST = 2**53 - 1  # the largest whole number that every JSON reader reads exactly; 104 days in nanoseconds

Count = Annotated[int, Meta(ge=0, le=MOST)]
Several = Annotated[int, Meta(ge=1, le=MOST)]
Tokens = Annotated[
    tuple[str, ...], Meta(description='Lines of at most 16 tokens joined by single spaces; `" ".join(lines).split()` reads them.')
]
Text = Annotated[str, Meta(pattern=PRINTABLE)]
PerMicrobatch = Annotated[Count | tuple[Count, ...], Meta(description="One value for all microbatches, or one for each.")]


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all objects of our own files have in common."""


class FileHeader(Struct):
    """What says whether the rest can be read at all."""

    format: Any = None
    version: Any = None


class MadeByEntry(FileEntry, frozen=True, omit_defaults=True):
    """How the plan came to be."""

    schedc: Text
    method: Text
    seed: int
    job_sha256: str
    reproducible: bool = True


class CertificateEntry(FileEntry, frozen=True):
    """What the plan is worth, and how well that is known."""

    makespan_ns: Count
    lower_bound_ns: Count
    gap: float
    bound: BoundName
    bubble_ratio: float
    peak_activation_bytes: tuple[Count, ...]
    stage_span_ns: Count = 0
    objective: Objective = Objective.MAKESPAN
    solver_log_sha256: str | UnsetType = UNSET  # `omit_defaults` tells texts apart by identity, and would not always leave it out
    scope: Scope | UnsetType = UNSET
    delays: tuple[Count, ...] | UnsetType = UNSET
    versions: tuple[Count, ...] | UnsetType = UNSET


class StageEntry(FileEntry, frozen=True, omit_defaults=True):
    """A stage: its rank, its layers [first, last) where known, its weights, and whether it runs its forward again."""

    rank: Count
    layers: tuple[Count, Count] | None = None
    recompute: bool = False
    parameters: Count = 0
    expert_parameters: Count = 0


class EdgeEntry(FileEntry, frozen=True):
    """A value of one stage that another takes. Gradient null: integers, none comes back."""

    source: Count
    destination: Count
    message_bytes: Count
    gradient_message_bytes: Count | None
    value: Count


class UpdatesEntry(FileEntry, frozen=True, omit_defaults=True):
    """How steps overlap: which weights ops read, the microbatches of one step, and whether the queues are one period."""

    versions: Versions
    microbatches: Several
    is_period: bool
    most_delay: Count | None = None


class Pipeline(FileEntry, frozen=True, omit_defaults=True):
    """Stages on ranks, and the paths of microbatches through them."""

    ranks: Several
    microbatches: Several
    placement: Text
    split_backward: bool
    stages: tuple[StageEntry, ...]
    paths: tuple[tuple[Count, ...], ...]
    path_of: Annotated[tuple[Count, ...], Meta(description="The path of each microbatch; one number where all take the same.")]
    cut_blocks: Annotated[bool, Meta(description="Blocks may be cut into parts.")] = True
    in_order: Annotated[bool, Meta(description="Microbatches enter in the order of their numbers; false: in any order.")] = False
    updates: UpdatesEntry | None = None
    edges: Annotated[tuple[EdgeEntry, ...], Meta(description="What stages take from each other, where they are no chain.")] = ()
    slices: Annotated[
        tuple[Several, ...], Meta(description="The lengths of the slices of each microbatch; each counts as one.")
    ] = ()


class Durations(FileEntry, frozen=True):
    """The time of each kind of block, per stage, in nanoseconds."""

    F: tuple[PerMicrobatch, ...]
    B: tuple[PerMicrobatch, ...]
    W: tuple[PerMicrobatch, ...]
    BW: tuple[PerMicrobatch, ...]


class LinkEntry(FileEntry, frozen=True, omit_defaults=True):
    """A directed link between two ranks."""

    source: Count
    destination: Count
    latency_ns: Count
    transfer_ns: Count | None = None
    bytes_per_second: Several | None = None
    setup_ns: Count = 0
    trunk: Text | None = None


class CostEntry(FileEntry, frozen=True, omit_defaults=True):
    """What a message costs."""

    latency_ns: Count = 0
    transfer_ns: Count | None = None
    bytes_per_second: Several | None = None
    setup_ns: Count = 0


class SiteLinkEntry(FileEntry, frozen=True):
    """What a message costs from one site to another."""

    source: Count
    destination: Count
    cost: CostEntry


class NetworkEntry(FileEntry, frozen=True, omit_defaults=True):
    """The job's topology: what a message costs between any two ranks. Links win over links of sites, and these over `between`."""

    site_of_rank: tuple[Count, ...]
    within: CostEntry = CostEntry()
    between: CostEntry | None = None
    site_links: tuple[SiteLinkEntry, ...] = ()
    links: tuple[LinkEntry, ...] = ()
    inbound: bool = False


class OriginEntry(FileEntry, frozen=True):
    """Where the costs came from: the job's layers [first, last) of each stage, and its topology."""

    layers_of_stage: tuple[tuple[Count, Count], ...]
    network: NetworkEntry


class PartsEntry(FileEntry, frozen=True):
    """How the blocks of one kind of one stage are cut: the relative time of each part."""

    kind: Annotated[str, Meta(pattern="^(F|B|W|BW)$")]
    stage: Count
    shares: tuple[Several, ...]


class DataParallelEntry(FileEntry, frozen=True, omit_defaults=True):
    """The collectives beside the pipeline; times per stage."""

    size: Several
    zero_stage: Count
    reduce_scatter_ns: tuple[Count, ...]
    all_gather_ns: tuple[Count, ...] = ()
    trunk: Text | None = None
    gathered_bytes: tuple[Count, ...] = ()
    gradient_bytes: tuple[Count, ...] = ()


class CostsEntry(FileEntry, frozen=True, omit_defaults=True):
    """All that is needed to simulate the plan without its job. Bytes per stage, but `memory_limit_bytes` per rank."""

    objective: Objective
    durations_ns: Durations
    activation_bytes: tuple[Count, ...]
    activation_after_input_bytes: tuple[Count, ...]
    message_bytes: tuple[Count, ...]
    gradient_message_bytes: tuple[Count, ...]
    memory_limit_bytes: tuple[Count | None, ...]
    links: tuple[LinkEntry, ...]
    recomputed_bytes: tuple[Count, ...] = ()
    """What B or BW takes besides of a stage that recomputes; empty where none does so."""
    static_bytes: tuple[Count | None, ...] = ()
    """What a stage holds all the time; empty, or null, where no capacity of its rank is known."""
    update_ns: tuple[Count, ...] = ()
    """Of each stage's U; empty where steps do not overlap."""
    version_bytes: tuple[Count, ...] = ()
    """What one more version of a stage's weights takes; likewise."""
    state_gradient_bytes: tuple[Count, ...] = ()
    """Of a whole microbatch in each stage; empty where microbatches are whole."""
    parts: tuple[PartsEntry, ...] = ()
    data_parallel: DataParallelEntry | None = None


class ChannelEntry(FileEntry, frozen=True, omit_defaults=True):
    """One queue of transfers with one peer; `post_before` where it receives."""

    name: Text
    peer: Count
    transfers: Tokens
    post_before: Tokens | None = None


class RankEntry(FileEntry, frozen=True):
    """The queues of one rank."""

    rank: Count
    compute: Tokens
    channels: tuple[ChannelEntry, ...]
    collectives: Tokens = ()


class PlanFile(FileEntry, frozen=True, kw_only=True):
    """The whole file."""

    format: Literal["schedc.plan"]
    version: Literal[1, 2]
    name: Text
    made_by: MadeByEntry
    certificate: CertificateEntry
    pipeline: Pipeline
    costs: CostsEntry
    origin: OriginEntry | UnsetType = UNSET
    ranks: tuple[RankEntry, ...]


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of the plan file."""
    schema = msgspec.json.schema(PlanFile)
    whole = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "A plan of schedc", **schema}
    as_json: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(whole))  # a default of () becomes [], as in any JSON
    return as_json


T = TypeVar("T")

TOKENS_PER_LINE = 16
_INDEX = re.compile("0|[1-9][0-9]{0,17}")
_COLLECTIVE = re.compile(f"(RS|AG)({_INDEX.pattern})(?:@({_INDEX.pattern})-({_INDEX.pattern}))?")


def read_tokens(parse: Callable[[str], T], lines: Sequence[str], location: Location) -> tuple[T, ...]:
    """What the tokens of the lines mean, which are at `location` of the file.

    Raises:
        InvalidInput: a text is no token, for which `parse` raises `ValueError`; names its line.
    """
    try:
        return tuple(map(parse, " ".join(lines).split()))
    except ValueError:
        for number, line in enumerate(lines):
            for text in line.split():
                try:
                    parse(text)
                except ValueError as error:
                    raise (location / number).error(str(error)) from error
        raise


def lines_of(make: Callable[[T], str], values: Iterable[T]) -> tuple[str, ...]:
    """The tokens of the values as lines."""
    tokens = list(map(make, values))
    return tuple(" ".join(tokens[at : at + TOKENS_PER_LINE]) for at in range(0, len(tokens), TOKENS_PER_LINE))


class OpTokens(dict[Op, str]):
    """The token of each op, made once."""

    def __missing__(self, op: Op) -> str:
        """Make the token."""
        text = self[op] = token(op)
        return text


def parse_plan_op(text: str) -> Op:
    """The op that a token names.

    Raises:
        ValueError: the text is not a token.
    """
    if not text.isascii() or len(text) > 64:  # other scripts' digits are no digits here, and nothing counts that far
        raise ValueError(f"found {text[:64]!r}, expected an op as in F3.12, B3.12, W3.12, BW3.12 or W3.12/0")
    return parse_op(text)


def parse_index(text: str) -> int:
    """The index that a token of `post_before` gives.

    Raises:
        ValueError: the text is not a number from 0.
    """
    if _INDEX.fullmatch(text) is None:
        raise ValueError(f"found {text[:64]!r}, expected an index of the compute queue as in 0 or 17")
    return int(text)


def parse_collective(text: str) -> Collective:
    """The collective that a token names.

    Raises:
        ValueError: the text is not a token.
    """
    match = _COLLECTIVE.fullmatch(text)
    if match is None:
        raise ValueError(f"found {text[:64]!r}, expected a collective as in RS3 or AG3, with its places AG3@0-17")
    return Collective(match[1], int(match[2]), *(int(place or -1) for place in match.groups()[2:]))
