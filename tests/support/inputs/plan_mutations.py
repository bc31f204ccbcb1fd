"""Plans broken on purpose: one edit of a plan's file; whether the reader or the verifier refuses it, and if not, if it is as good.

`mutate` makes one random edit of a plan's JSON; some get a certificate of what is left, so that no wrong claim gives them away.
`judge` says what became of it. A plan that is accepted must be proven to be as good as it claims, by means that the verifier does
not use: the simulator times it, and an executor of its own, which knows no times, runs all queues in a random order to their end.
A plan of other costs must be refused for the job that it was made for. Texts for people (the name, what made it, the placement's
word) may be anything.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from oracles.fuzz_problems import has_room, load
from oracles.queue_run import stuck

from inputs.fuzz_jobs import job_text, random_job
from inputs.graphs import graph_problem, random_order
from inputs.tiny_problems import random_parts, random_schedule
from schedc.analysis.bounds.lower_bounds import best_bound
from schedc.analysis.simulation.memory import peak_bytes
from schedc.analysis.simulation.simulate import simulate
from schedc.compile.certify import certify, check_plan
from schedc.errors import CheckFailed, InvalidInput, Unsupported
from schedc.formats.plan.plan_file import parse_plan, plan_json
from schedc.ir.ops import Kind
from schedc.ir.plan import BoundName, MadeBy, Scope
from schedc.ir.problem import Objective
from schedc.solvers.heuristics.greedy import Greedy
from schedc.verify.plan.checks import RANKS
from schedc.verify.problem import check_costs, check_pipeline, verify_problem
from schedc.verify.schedule.checks import verify_schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from random import Random

    from schedc.ir.plan import Plan

UNCHANGED = "unchanged"
SURVIVED = "SURVIVED"
"""What `judge` says of a broken plan that is accepted: the begin of its answer."""

WORDS = (*Objective, *BoundName, *Scope, *(kind.name for kind in Kind), "")
"""Texts that mean something in a plan."""

File = dict[str, Any]


def _tokens(owner: dict[str, Any], key: str) -> list[str]:
    return " ".join(owner[key]).split()


def _put(owner: dict[str, Any], key: str, tokens: list[str]) -> None:
    owner[key] = [" ".join(tokens)] if tokens else []


def _queues(
    file: File, random: Random, *, shortest: int = 1, keys: tuple[str, ...] = ("compute", "transfers", "collectives")
) -> Any:
    """A random list of tokens of at least this length: its owner, its key, the tokens."""
    owners = [(rank, key) for rank in file["ranks"] for key in ("compute", "collectives")]
    owners += [(channel, "transfers") for rank in file["ranks"] for channel in rank["channels"]]
    found = [(owner, key) for owner, key in owners if key in keys and len(_tokens(owner, key)) >= shortest]
    if not found:
        return None
    owner, key = random.choice(found)
    return owner, key, _tokens(owner, key)


def _receives(file: File, random: Random) -> Any:
    found = [channel for rank in file["ranks"] for channel in rank["channels"] if channel.get("post_before")]
    if not found:
        return None
    channel = random.choice(found)
    return channel, "post_before", _tokens(channel, "post_before")


def swap(file: File, random: Random) -> bool:
    """Two entries of a queue, neighbours or not."""
    if (chosen := _queues(file, random, shortest=2)) is None:
        return False
    owner, key, tokens = chosen
    a = random.randrange(len(tokens))
    b = (a + 1) % len(tokens) if random.random() < 0.6 else random.randrange(len(tokens))
    tokens[a], tokens[b] = tokens[b], tokens[a]
    _put(owner, key, tokens)
    return True


def swap_on_both_ends(file: File, random: Random) -> bool:
    """Two neighbours of a channel, at the sender and at the receiver."""
    if (chosen := _queues(file, random, shortest=2, keys=("transfers",))) is None:
        return False
    _, _, before = chosen
    at = random.randrange(len(before) - 1)
    for rank in file["ranks"]:
        for channel in rank["channels"]:
            if (tokens := _tokens(channel, "transfers")) == before:
                tokens[at], tokens[at + 1] = tokens[at + 1], tokens[at]
                _put(channel, "transfers", tokens)
    return True


def drop(file: File, random: Random) -> bool:
    """An entry of a queue."""
    if (chosen := _queues(file, random)) is None:
        return False
    owner, key, tokens = chosen
    del tokens[random.randrange(len(tokens))]
    _put(owner, key, tokens)
    return True


def drop_transfer(file: File, random: Random) -> bool:
    """A message at both ends, with its posting."""
    if (chosen := _queues(file, random, keys=("transfers",))) is None:
        return False
    name = random.choice(chosen[2])
    for rank in file["ranks"]:
        for channel in rank["channels"]:
            tokens = _tokens(channel, "transfers")
            if name in tokens:
                at = tokens.index(name)
                _put(channel, "transfers", tokens[:at] + tokens[at + 1 :])
                if "post_before" in channel:
                    posts = _tokens(channel, "post_before")
                    _put(channel, "post_before", posts[:at] + posts[at + 1 :])
    return True


def double(file: File, random: Random) -> bool:
    """An entry of a queue a second time, anywhere in it."""
    if (chosen := _queues(file, random)) is None:
        return False
    owner, key, tokens = chosen
    tokens.insert(random.randint(0, len(tokens)), random.choice(tokens))
    _put(owner, key, tokens)
    return True


def retarget(file: File, random: Random) -> bool:
    """Another op in place of one."""
    if (chosen := _queues(file, random)) is None:
        return False
    owner, key, tokens = chosen
    at = random.randrange(len(tokens))
    if key == "collectives":
        tokens[at] = random.choice(["AG", "RS"]) + str(random.randrange(len(file["pipeline"]["stages"]) + 1))
    else:
        stage, microbatch = (
            random.randrange(len(file["pipeline"]["stages"]) + 1),
            random.randrange(file["pipeline"]["microbatches"] + 1),
        )
        tokens[at] = f"{random.choice(['F', 'B', 'W', 'BW'])}{stage}.{microbatch}{random.choice(['', '', '', '/0', '/1'])}"
        if key == "transfers" and file["pipeline"].get("edges"):
            tokens[at] = tokens[at].partition("/")[0] + f">{random.randrange(len(file['pipeline']['stages']) + 1)}"
    _put(owner, key, tokens)
    return True


def move(file: File, random: Random) -> bool:
    """An entry to another place of its queue, or to another queue."""
    if (chosen := _queues(file, random)) is None:
        return False
    owner, key, tokens = chosen
    moved = tokens.pop(random.randrange(len(tokens)))
    _put(owner, key, tokens)
    if random.random() < 0.5 and (other := _queues(file, random, keys=(key,))) is not None:
        owner, key, tokens = other
    tokens.insert(random.randint(0, len(tokens)), moved)
    _put(owner, key, tokens)
    return True


def fuse_or_split(file: File, random: Random) -> bool:
    """One backward fused where it was split, or the other way."""
    owner, key, tokens = _queues(file, random, keys=("compute",))
    at = random.randrange(len(tokens))
    if tokens[at].startswith("BW"):
        tokens[at : at + 1] = [tokens[at].replace("BW", "B"), tokens[at].replace("BW", "W")]
    elif tokens[at].startswith("B"):
        weight = tokens[at].replace("B", "W")
        tokens = [token.replace("B", "BW") if index == at else token for index, token in enumerate(tokens) if token != weight]
    _put(owner, key, tokens)
    return True


def retime(file: File, random: Random) -> bool:
    """When a receive is posted."""
    if (chosen := _receives(file, random)) is None:
        return False
    owner, key, posts = chosen
    at = random.randrange(len(posts))
    posts[at] = str(max(0, int(posts[at]) + random.choice([-2, -1, 1, 1, 2, 5])))
    _put(owner, key, posts)
    return True


def repost(file: File, random: Random) -> bool:
    """All receives of a channel from one on as early, or as late, as one of them."""
    if (chosen := _receives(file, random)) is None:
        return False
    owner, key, posts = chosen
    at = random.randrange(len(posts))
    earlier = random.random() < 0.5
    posts = [str(min(int(post), int(posts[at])) if earlier else max(int(post), int(posts[at]))) for post in posts]
    _put(owner, key, posts)
    return True


def edit_channel(file: File, random: Random) -> bool:
    """A channel's name or peer, or the whole channel away."""
    owners = [(rank, channel) for rank in file["ranks"] for channel in rank["channels"]]
    if not owners:
        return False
    rank, channel = random.choice(owners)
    what = random.randrange(4)
    if what == 0:
        rank["channels"].remove(channel)
    elif what == 1:
        channel["peer"] = random.randrange(file["pipeline"]["ranks"] + 1)
    elif what == 2:
        channel["name"] = random.choice(["send_next", "send_prev", "recv_next", "recv_prev", "send_r2", "recv_r2", ""])
    else:
        rank["channels"].append(copy.deepcopy(channel))
    return True


def _edit_number(section: Any, random: Random) -> bool:
    """One number, truth value, text or missing value somewhere below the section."""
    places: list[tuple[Any, Any]] = []
    stack = [section]
    while stack:
        value = stack.pop()
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(entry, (dict, list)):
                stack.append(entry)
            else:
                places.append((value, key))
    if not places:
        return False
    owner, key = random.choice(places)
    value = owner[key]
    if isinstance(value, bool):
        owner[key] = not value
    elif isinstance(value, int):
        owner[key] = random.choice([value + 1, max(0, value - 1), value * 2, 0, value + random.randint(2, 9)])
    elif isinstance(value, float):
        owner[key] = random.choice([value + 0.01, value / 2, -value, 1.0])
    elif value is None:
        owner[key] = random.randint(0, 9)
    else:
        owner[key] = random.choice([*WORDS, "site0>site1", "site1>site0", value + "x"])
    return True


def edit_cost(file: File, random: Random) -> bool:
    """A duration, size, limit, link, part, or collective."""
    return _edit_number(file["costs"], random)


def edit_pipeline(file: File, random: Random) -> bool:
    """Ranks, microbatches, stages, paths, what may be split; the placement's name is for people."""
    return (
        _edit_number({key: value for key, value in file["pipeline"].items() if isinstance(value, list)}, random)
        if (random.random() < 0.6)
        else _edit_scalar(file["pipeline"], random)
    )


def _edit_scalar(pipeline: dict[str, Any], random: Random) -> bool:
    key = random.choice(["ranks", "microbatches", "split_backward", "cut_blocks", "in_order"])
    if key in ("split_backward", "cut_blocks", "in_order"):
        pipeline[key] = not pipeline.get(key, key != "in_order")
    else:
        pipeline[key] += random.choice([-1, 1])
    return True


def edit_certificate(file: File, random: Random) -> bool:
    """A claim."""
    return _edit_number(file["certificate"], random)


def other_type(file: File, random: Random) -> bool:
    """Any value of the file as one of another type, or without its key."""
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [file]
    while stack:
        value = stack.pop()
        for key, entry in value.items() if isinstance(value, dict) else enumerate(value):
            places.append((value, key))
            if isinstance(entry, (dict, list)):
                stack.append(entry)
    owner, key = random.choice(places)
    if random.random() < 0.3:
        del owner[key]
    else:
        owner[key] = random.choice(
            [None, True, 1.5, 2**70, -1, "", "F0.0", [], {}, [[]], [None], ["F0.0"], {"x": 1}, float(10**15)]
        )
    return True


def swap_ranks(file: File, random: Random) -> bool:
    """The queues of two ranks."""
    if len(file["ranks"]) < 2:
        return False
    a, b = random.sample(range(len(file["ranks"])), 2)
    file["ranks"][a], file["ranks"][b] = file["ranks"][b], file["ranks"][a]
    if random.random() < 0.5:
        file["ranks"][a]["rank"], file["ranks"][b]["rank"] = a, b
    return True


def reroute(file: File, random: Random) -> bool:
    """What an op of a graph sends to one stage goes to another, at both ends."""
    if not file["pipeline"].get("edges") or (chosen := _queues(file, random, keys=("transfers",))) is None:
        return False
    name = random.choice(chosen[2])
    other = name.partition(">")[0] + f">{random.randrange(len(file['pipeline']['stages']))}"
    for rank in file["ranks"]:
        for channel in rank["channels"]:
            _put(channel, "transfers", [other if token == name else token for token in _tokens(channel, "transfers")])
    return True


def edit_graph(file: File, random: Random) -> bool:
    """An edge, its sizes or its value, the order of edges; the length of a slice."""
    pipeline = file["pipeline"]
    edges, slices = pipeline.get("edges", []), pipeline.get("slices", [])
    what = random.choice(["number", "number", "away", "order"]) if edges else "number"
    if what == "away":
        edges.pop(random.randrange(len(edges)))
    elif what == "order":
        random.shuffle(edges)
    else:
        return _edit_number([each for each in (edges, slices) if each], random)
    return True


KINDS = (
    swap,
    swap_on_both_ends,
    drop,
    drop_transfer,
    double,
    retarget,
    move,
    fuse_or_split,
    retime,
    repost,
    edit_channel,
    edit_cost,
    edit_pipeline,
    edit_certificate,
    swap_ranks,
    other_type,
)


KINDS_OF_GRAPHS = (*KINDS, reroute, edit_graph)
"""Those of plans whose stages are a graph, or whose microbatches are in slices."""


def mutate(content: bytes, random: Random, kinds: Sequence[Callable[[File, Random], bool]] = KINDS) -> tuple[str, bytes]:
    """One edit of the plan's file: its kind and the new bytes."""
    while True:
        file = json.loads(content)
        kind = random.choice(kinds)
        if kind(file, random):
            return kind.__name__, json.dumps(file).encode()


def mutated_plans(random: Random, folder: Path, mutants: int = 20, *, graphs: bool = False) -> Iterator[tuple[str, str, bytes]]:
    """The kind, the outcome and the file of mutants of one plan: of a random job, by greedy or a random schedule.

    With `graphs` it is of a random problem whose stages are a graph, or whose microbatches are in slices.
    """
    if graphs:
        problem = graph_problem(
            random,
            most_ranks=4,
            most_stages=7,
            most_microbatches=4,
            least_ns=random.choice([0, 1]),
            collectives=True,
            may_be_odd=True,
        )
        schedule = random_order(random, problem, random_parts(random, problem)) if random.random() < 0.5 else None
    else:
        problem = load(job_text(random_job(random, most_ops=36)), folder)
        schedule = random_schedule(random, problem) if random.random() < 0.5 else None
    try:
        schedule = schedule or Greedy(n_sub=2)(problem)
    except Unsupported:  # the job's memory is below one microbatch
        return
    if not has_room(problem, schedule):  # with values that wait
        return
    content = plan_json(plan := certify(problem, schedule, MadeBy(schedc="0", method="test")))
    while mutants:
        kind, changed = mutate(content, random, KINDS_OF_GRAPHS if graphs else KINDS)
        if random.random() < 0.4:
            changed = _certified_anew(changed)
        outcome = judge(plan, changed, random)
        if outcome != UNCHANGED:  # a swap of equal tokens, say
            yield kind, outcome, changed
            mutants -= 1


def _certified_anew(content: bytes) -> bytes:
    """The file with the certificate that its orders and costs really have, so that no wrong claim gives the edit away.

    As it is, where it has none: the reader or a rule of the compute queues refuses it.
    """
    try:
        plan = parse_plan(content, "plan")
    except InvalidInput:
        return content
    if verify_problem(plan.problem) or RANKS.broken(plan) or verify_schedule(plan.problem, plan.schedule()):
        return content
    timeline = simulate(plan.problem, plan.schedule())
    objective_ns = timeline.objective_ns(plan.problem.objective)
    bound = best_bound(plan.problem)
    certificate = replace(
        plan.certificate,
        makespan_ns=timeline.makespan_ns,
        stage_span_ns=timeline.stage_span_ns,
        bubble_ratio=timeline.bubble_ratio,
        peak_activation_bytes=peak_bytes(plan.problem, plan.schedule()),
        lower_bound_ns=bound.value_ns,
        bound=bound.name,
        gap=(objective_ns - bound.value_ns) / objective_ns if objective_ns else 0.0,
        objective=plan.problem.objective,
        solver_log_sha256="",
    )
    return plan_json(replace(plan, certificate=certificate))


def judge(plan: Plan, content: bytes, random: Random) -> str:
    """What becomes of a mutated plan.

    Args:
        plan: the plan before the edit, whose problem is the job.
        content: the file after it.
        random: the order in which the executor runs queues.

    Returns:
        Who refused it, or why it is as good, or `SURVIVED` with the reason why it is not.
    """
    try:
        changed = parse_plan(content, "plan")
    except InvalidInput:
        return "refused by the reader"
    if changed == plan:
        return UNCHANGED
    violations = check_plan(changed)
    if violations:
        return "refused by the verifier"
    if wrong := _wrong(changed, random):
        return f"{SURVIVED}: {wrong}"
    if replace(changed.problem, name=plan.problem.name, placement=plan.problem.placement) == plan.problem:
        return "accepted, proven as good"
    if check_pipeline(changed, plan.problem) + check_costs(changed, plan.problem):
        return "accepted as a plan of other costs, refused for the job"
    return f"{SURVIVED}: accepted for the job, whose costs are others"


def _wrong(plan: Plan, random: Random) -> str | None:
    """What of the plan's claims does not hold, by the simulator and by running it."""
    problem, schedule, claims = plan.problem, plan.schedule(), plan.certificate
    try:
        timeline = simulate(problem, schedule)
    except CheckFailed as error:
        return f"the simulator: {error}"
    claimed = (claims.makespan_ns, claims.stage_span_ns, claims.peak_activation_bytes, claims.objective)
    found = (timeline.makespan_ns, timeline.stage_span_ns, peak_bytes(problem, schedule), problem.objective)
    if claimed != found:
        return f"claims {claimed}, is {found}"
    if not has_room(problem, schedule):
        return "holds more than a limit"
    if abs(claims.bubble_ratio - timeline.bubble_ratio) > 1e-6:
        return f"claims a bubble ratio of {claims.bubble_ratio}, is {timeline.bubble_ratio}"
    objective_ns = timeline.objective_ns(problem.objective)
    if claims.lower_bound_ns > objective_ns:
        return "claims a bound above its objective"
    if objective_ns and abs(claims.gap - (objective_ns - claims.lower_bound_ns) / objective_ns) > 1e-6:
        return f"claims a gap of {claims.gap}"
    return stuck(plan, random)
