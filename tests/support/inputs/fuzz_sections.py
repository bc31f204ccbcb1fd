"""Sections of random jobs: pipeline, profile, memory, topology and collectives, as nested dicts, and what is drawn for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.lower.placement import place

if TYPE_CHECKING:
    from random import Random

    from schedc.ir.layout import Placement

NAMES = ("plain", "two words", "[bold]x[/bold]", "[/]", "ünï→🚀", 'q"uo\\te', "a/b", "%s {0}", "-o", "C:\\x", "0>1", "=cmd()")


class Draw:
    """What is drawn for one job: values of one scale, so that much happens at the same time, and a few that are odd.

    Half of the jobs are in the numbers of measured ones: odd nanoseconds of steps of seconds, odd bytes of GiB.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        self.unit = random.choice(["ns", "ns", "us", "ms", "s"])
        self.most = random.choice([1, 2, 3, 6, 12])
        self.least = random.choice([0, 1, 1])
        self.is_measured = random.random() < 0.5
        self.scale_ns = random.randrange(10**7 + 1, 3 * 10**7, 2) if self.is_measured else 1

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def duration(self, least: int | None = None) -> str:
        if self.chance(0.02):
            return self.random.choice(["0 ns", "1 ns", "1.5 us", "0.001 ms", "999 ns"])
        count = self.random.randint(self.least if least is None else least, max(self.most, 1))
        if self.is_measured:
            return f"{count * self.scale_ns + (self.random.randint(1, 99) if count else 0)} ns"
        return f"{count} {self.unit}"

    def held(self, least: int) -> int:
        """The bytes of an activation."""
        count = self.random.randint(least, 4)
        return count * self.random.randrange(2**29 + 1, 2**31, 2) + self.random.randint(0, 999) if self.is_measured else count

    def size(self, least: int, most: int) -> str:
        return f"{self.random.randint(least, most)} B"

    def many(self, make: Any, counts: list[int], one: float = 0.5) -> Any:
        """One value, or a list of one of these lengths."""
        if self.chance(one):
            return make()
        return [make() for _ in range(self.random.choice(counts))]

    def link(self, bandwidth: bool) -> dict[str, str]:
        """Latency and occupancy, or only one of them."""
        cost: dict[str, str] = {}
        if self.chance(0.6):
            cost["latency"] = self.duration(0)
        if self.chance(0.7) or not cost:
            if bandwidth and self.chance(0.5):
                cost["bandwidth"] = self.random.choice(["1 GB/s", "3 GB/s", "8 Gb/s", "1 KB/s", "7 MB/s"])
            else:
                cost["transfer"] = self.duration(0)
        return cost


def draw_pipeline(draw: Draw) -> tuple[dict[str, Any], Placement]:
    random = draw.random
    ranks = random.choice([1, 2, 2, 3, 3, 3, 4, 4, 5])
    pipeline: dict[str, Any] = {"ranks": ranks, "microbatches": random.choice([1, 2, 2, 3, 3, 4, 6])}
    placement: Any = random.choice(["unidirectional", "unidirectional", "loop", "wave", "bidirectional", "explicit", "explicit"])
    chunks = 1
    if placement == "explicit":
        placement = random.sample(range(ranks), ranks)
        placement += [random.randrange(ranks) for _ in range(random.choice([0, 0, 1, 2, 3]))]
        random.shuffle(placement)
        counts = {placement.count(rank) for rank in range(ranks)}
        if len(counts) == 1 and draw.chance(0.3):
            pipeline["chunks"] = counts.pop()
    elif placement in ("loop", "wave"):
        chunks = pipeline["chunks"] = random.choice([2, 2, 3])
    if placement != "unidirectional" or draw.chance(0.5):
        pipeline["placement"] = placement
    if draw.chance(0.35):
        pipeline["split_backward"] = False
    placed = place(placement, ranks, chunks)
    pipeline["semantics"] = "torch" if len(placed.paths) == 1 and draw.chance(0.12) else "schedc"
    return pipeline, placed


def draw_profile(
    draw: Draw, pipeline: dict[str, Any], placed: Placement, bandwidth: bool
) -> tuple[dict[str, Any], list[int] | None]:
    """The section, and the activation of each stage."""
    stages, random = len(placed.rank_of_stage), draw.random
    counts = [stages, placed.pieces]
    profile: dict[str, Any] = {"forward": draw.many(draw.duration, counts)}
    fused_only = pipeline.get("split_backward") is False and draw.chance(0.4)
    if not fused_only or draw.chance(0.2):
        profile["backward_input"] = draw.many(draw.duration, counts)
        profile["backward_weight"] = draw.many(draw.duration, counts)
    if fused_only or draw.chance(0.3):  # by chance shorter or longer than B and W together
        profile["backward"] = draw.many(draw.duration, counts)
    held = None
    if draw.chance(0.75):
        held = [draw.held(0 if draw.chance(0.1) else 1) for _ in range(placed.pieces)]
        after = [random.randint(0, whole) for whole in held]
        if draw.chance(0.4):
            held, after = [held[0]] * placed.pieces, [min(after[0], held[0])] * placed.pieces
            profile["activation"] = f"{held[0]} B"
        else:
            profile["activation"] = [f"{size} B" for size in held]
        if draw.chance(0.6):
            profile["activation_after_input"] = [f"{size} B" for size in after]
        held = [held[piece] for piece in placed.piece_of_stage]
    if bandwidth or draw.chance(0.3):
        profile["message"] = draw.many(lambda: draw.size(1, 5), counts)
        if draw.chance(0.3):
            profile["gradient_message"] = draw.many(lambda: draw.size(0, 5), counts)
    if draw.chance(0.1):
        pipeline["partition"] = [random.randint(1, 3) for _ in range(placed.pieces)]
    return profile, held


def draw_layers(draw: Draw, pipeline: dict[str, Any], placed: Placement, bandwidth: bool) -> dict[str, Any]:
    """A profile.json, with a partition or without."""
    layers: list[dict[str, Any]] = []
    count = placed.pieces + draw.random.randint(0, 3)
    if draw.chance(0.5):
        extra = [draw.random.randint(1, 2) for _ in range(placed.pieces)]
        pipeline["partition"], count = extra, sum(extra)
    while count:
        repeat = draw.random.randint(1, min(2, count))
        count -= repeat
        layer: dict[str, Any] = {"forward": draw.duration(), "backward_input": draw.duration(), "backward_weight": draw.duration()}
        if draw.chance(0.3):
            layer["backward"] = draw.duration()
        if draw.chance(0.5):
            layer |= {"activation": "2 B", "activation_after_input": draw.size(0, 2)}
        if bandwidth or draw.chance(0.5):
            layer["message"] = draw.size(1, 5)
        if repeat > 1 or draw.chance(0.2):
            layer |= {"repeat": repeat, "name": draw.random.choice(NAMES)}
        layers.append(layer)
    return {"format": "schedc.profile", "version": 1, "layers": layers}


def draw_memory(draw: Draw, ranks: int, placed: Placement, held: list[int]) -> dict[str, Any]:
    """Just what one microbatch needs, or a little more, in one of the three ways; sometimes too little."""
    random = draw.random
    one = [
        max(sum(held[stage] for stage in path if placed.rank_of_stage[stage] == rank) for path in placed.paths)
        for rank in range(ranks)
    ]
    way = random.choice(["limit", "in_flight", "capacity"])
    if way == "in_flight":
        return {"in_flight": draw.many(lambda: random.choice([1, 1, 2, 3]), [ranks])}
    limits = [max(0, each * random.choice([1, 1, 1, 2, 3]) + random.choice([0, 0, 0, 1, 2])) for each in one]
    if draw.chance(0.05):
        limits[random.randrange(ranks)] //= 2
    if way == "limit":
        return {"limit": f"{max(limits)} B" if draw.chance(0.3) else [f"{limit} B" for limit in limits]}
    static = [random.randint(0, 3) for _ in placed.rank_of_stage]
    full = [
        limit + sum(s for s, r in zip(static, placed.rank_of_stage, strict=True) if r == rank) for rank, limit in enumerate(limits)
    ]
    reserves = [random.choice([0, 1, 2]) for _ in full] if draw.chance(0.3) else [0] * ranks
    full = [size + kept for size, kept in zip(full, reserves, strict=True)]
    capacity: Any = f"{max(full)} B" if draw.chance(0.3) else [f"{size} B" for size in full]
    memory = {"capacity": capacity, "static": [f"{size} B" for size in static]}
    return memory | ({"reserve": [f"{kept} B" for kept in reserves]} if any(reserves) else {})


def draw_topology(draw: Draw, ranks: int, placed: Placement, bandwidth: bool) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    """The section, and the ordered pairs of sites whose trunk the pipeline's transfers cross."""
    random = draw.random
    topology: dict[str, Any] = {}
    sites = [ranks]
    if ranks > 1 and draw.chance(0.7):
        cuts = sorted(random.sample(range(1, ranks), random.randint(1, min(2, ranks - 1))))
        sites = [b - a for a, b in zip([0, *cuts], [*cuts, ranks], strict=True)]
        topology |= {"sites": sites, "between": draw.link(bandwidth)}
    site = [index for index, size in enumerate(sites) for _ in range(size)]
    if draw.chance(0.5):
        topology["within"] = draw.link(bandwidth)
    if len(sites) > 1 and draw.chance(0.3):
        pairs = _some_pairs(draw, len(sites))
        topology["site_link"] = [{"sites": list(pair), **draw.link(bandwidth), **directed} for pair, directed in pairs]
    alone: set[tuple[int, int]] = set()
    if ranks > 1 and draw.chance(0.3):
        topology["link"] = []
        for (a, b), directed in _some_pairs(draw, ranks):
            entry: dict[str, Any] = {"ranks": [a, b], **draw.link(bandwidth), **directed}
            if draw.chance(0.3):
                entry["trunk"] = False
                alone |= {(a, b)} if directed else {(a, b), (b, a)}
            topology["link"].append(entry)
    crossed = {(site[a], site[b]) for a, b in placed.crossed() if site[a] != site[b] and (a, b) not in alone}
    return topology, sorted(crossed)


def _some_pairs(draw: Draw, count: int) -> list[tuple[tuple[int, int], dict[str, bool]]]:
    """Pairs of ranks or sites, each direction at most once, and whether only the one direction is meant."""
    found: dict[tuple[int, int], dict[str, bool]] = {}
    for _ in range(draw.random.randint(1, 2)):
        a, b = draw.random.sample(range(count), 2)
        if draw.chance(0.5):
            if (a, b) not in found and found.get((b, a), {"directed": True}):
                found[a, b] = {"directed": True}
        elif (a, b) not in found and (b, a) not in found:
            found[a, b] = {}
    return list(found.items())


def draw_data_parallel(draw: Draw, placed: Placement, crossed: list[tuple[int, int]]) -> dict[str, Any]:
    stages = len(placed.rank_of_stage)
    counts = [stages, placed.pieces]
    section: dict[str, Any] = {"size": draw.random.randint(1, 4), "zero_stage": draw.random.randint(0, 1)}
    section["reduce_scatter"] = draw.many(lambda: draw.duration(0), counts)
    if section["zero_stage"]:
        section["all_gather"] = draw.many(lambda: draw.duration(0), counts)
    if crossed and draw.chance(0.5):
        section["trunk"] = list(draw.random.choice(crossed))
    return section
