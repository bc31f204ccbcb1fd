"""What `schedc diff` shows: a few lines for each part of a plan that changed, or one object."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from schedc.ir import token
from schedc.spelling import counted, ranges
from schedc.view.document import duration, picked, size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from schedc.analysis.difference.orders import RankOrder
    from schedc.analysis.difference.plans import At, FactChange, PlanDifference

MOST_LINES = 8
"""In one section: a pull request is read as a whole."""
SECTIONS = ("layout", "cuts", "certificate", "memory", "costs", "made_by")
_NOUNS = {"links": "link", "edges": "edge", "memory_limit_bytes": "rank", "peak_activation_bytes": "rank", "parts": "block"}
"""What the place of a list's entry is; elsewhere it is a stage."""
_FIRST = ("ranks", "microbatches", "stages", "placement", "makespan_ns", "stage_span_ns", "lower_bound_ns", "gap", "bound", "scope")
"""The facts that readers look for first, in this order; the others come after them by name."""
_WORDS = {
    "job_sha256": "job digest",
    "schedc": "schedc's version",
    "solver_log_sha256": "digest of the solver's log",
    "path_of": "paths of the microbatches",
    "in_order": "microbatches enter in order",
    "cut_blocks": "blocks may be cut",
    "split_backward": "backwards may be split",
    "memory_limit_bytes": "limit",
    "peak_activation_bytes": "peak",
    "bytes_per_second": "bandwidth",
    "bound": "bound by",
}
_LONGEST = 60  # of a list of values, in characters
_HEXADECIMAL = 12  # of a digest, as many as tell two apart


def difference_json(difference: PlanDifference) -> dict[str, Any]:
    """The object of `diff --json`."""
    return {
        "equal": difference.is_empty,
        **{name: [picked(change, "place before after") for change in getattr(difference, name)] for name in SECTIONS},
        "orders": difference.orders,
        "not_compared": difference.not_compared or None,
    }


def difference_lines(difference: PlanDifference, name: str, slices: int = 0) -> list[str]:
    """The difference in words; `name` is the job's, and `slices` how many each of its microbatches has."""
    if difference.is_empty:
        return [f"{name}: the plans are equal"]
    keys = {change.key for change in difference.certificate}
    follows = "certificate.bubble_ratio" if "certificate.makespan_ns" in keys else ""  # says nothing new then
    sections = {
        "layout": _change_lines(difference.layout),
        "orders": [*_order_lines(difference, slices), *_change_lines(difference.cuts)],
        "certificate": _change_lines([change for change in difference.certificate if change.key != follows]),
        "memory": _change_lines(difference.memory),
        "costs": _change_lines(difference.costs),
        "made by": _change_lines(difference.made_by),
    }
    lines = [f"{name}: the plans differ"]
    for section, found in sections.items():
        if said := list(found):
            left_out = len(said) - (MOST_LINES - 1)
            shown = said if left_out <= 1 else [*said[: MOST_LINES - 1], f"and {left_out} more lines; --json has all"]
            lines += [f"{section}:", *(f"  {line}" for line in shown)]
    return lines


def _order_lines(difference: PlanDifference, slices: int) -> list[str]:
    """The ranks by how much moved on them, the most first; then those where only transfers differ, on one line."""
    if difference.not_compared:
        return [f"not compared: {difference.not_compared}"]
    computing = [order for order in difference.orders if order.moved or order.fused or order.split or order.recut]
    others = [order.rank for order in difference.orders if order not in computing]
    said: dict[str, list[RankOrder]] = {}
    for order in sorted(computing, key=lambda order: (-order.moved, order.rank)):
        said.setdefault(_order_text(order, slices), []).append(order)
    most = MOST_LINES - bool(others)
    shown = list(said.items())[: most if len(said) <= most else most - 1]
    left_out = [order for orders in list(said.values())[len(shown) :] for order in orders]
    by_rank = sorted(shown, key=lambda pair: pair[1][0].rank)
    lines = [f"{_numbered('rank', [order.rank for order in orders])}: {text}" for text, orders in by_rank]
    if left_out:
        moved = sum(order.moved for order in left_out)
        lines.append(f"{counted(len(left_out), 'more rank')}: {moved} of {sum(order.ops for order in left_out)} ops moved")
    if others:
        lines.append(f"{_numbered('rank', others)}: computes as before; transfers or collectives come otherwise")
    return lines


def _order_text(order: RankOrder, slices: int) -> str:
    said = []
    if order.first is not None:
        where = f"{counted(abs(order.first_places), 'place')} {'earlier' if order.first_places < 0 else 'later'}"
        farthest = f", by at most {counted(order.most_places, 'place')}" if order.most_places > abs(order.first_places) else ""
        first = "the first is " if order.moved > 1 else ""
        said.append(f"{order.moved} of {order.ops} ops moved{farthest}, {first}{token(order.first, slices)}: {where}")
    if order.fused or order.split:
        counts = [f"{count} {word}" for count, word in ((order.fused, "fused"), (order.split, "split")) if count]
        said.append(f"backwards: {' and '.join(counts)}")
    if order.recut:
        said.append(f"{counted(order.recut, 'block')} cut otherwise")
    return "; ".join(said)


def _change_lines(changes: Sequence[FactChange]) -> Iterator[str]:
    """One line for each change, those of the whole plan first; the same change at several places is one line."""

    def importance(change: FactChange) -> tuple[int, bool]:
        name = change.key.rpartition(".")[2]
        return _FIRST.index(name) if name in _FIRST else len(_FIRST), change.at is not None

    groups: dict[tuple[str, str], list[At]] = {}
    for change in sorted(changes, key=importance):
        groups.setdefault((change.key, _values(change)), []).append(change.at)
    for (key, values), places in groups.items():
        yield f"{_subject(key, [at for at in places if at is not None])}{values}"


def _subject(key: str, places: Sequence[At]) -> str:
    """What changed, in words: `F of stages 0-3`."""
    names = [part.removesuffix("[]") for part in key.split(".")]
    word = _WORDS.get(names[-1]) or names[-1].removesuffix("_bytes").removesuffix("_ns").replace("_", " ")
    if not places and word == "peak":
        return "highest peak: "
    if not places:
        return f"collectives, {word}: " if names[-2:-1] == ["data_parallel"] else f"{word}: "
    noun = next((_NOUNS[name] for name in names if name in _NOUNS), "stage")
    where = _numbered(noun, places)
    return f"parts of {where}: " if noun == "block" else f"{word} of {where}: "


def _values(change: FactChange) -> str:
    before, after = _value(change.key, change.before), _value(change.key, change.after)
    if change.key == "pipeline.edges" and set(change.before) != set(change.after):
        both = ((change.before, change.after), (change.after, change.before))
        gone, new = (_few([edge for edge in one if edge not in other]) for one, other in both)
        return ", ".join(f"{edges} {what}" for edges, what in ((new, "added"), (gone, "removed")) if edges)
    if before == after:  # the text is rounded, or one value for all microbatches became a list of the same value
        before, after = str(change.before), str(change.after)
        if len(before) + len(after) > _LONGEST:
            return "other values"
    share = ""
    if change.key.startswith("certificate.") and change.key.endswith("_ns") and change.before:
        share = f" ({change.after / change.before - 1:+.2%})"
    return f"{before} → {after}{share}"


def _few(places: Sequence[str]) -> str:
    """The first of them."""
    left_out = f" and {len(places) - MOST_LINES} more" if len(places) > MOST_LINES else ""
    return ", ".join(places[:MOST_LINES]) + left_out


def _value(key: str, value: Any) -> str:
    name = key.rpartition(".")[2].removesuffix("[]")
    if value is None or value == "":
        return "none"
    if isinstance(value, tuple):
        return _tuple(key, name, value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2%}"
    if isinstance(value, int):
        if name.endswith("_bytes") or name == "bytes_per_second":
            return size(value) + "/s" * (name == "bytes_per_second")
        return duration(value) if name.endswith("_ns") or "_ns." in key else str(value)
    return str(value)[:_HEXADECIMAL] if name.endswith("_sha256") else str(value)


def _tuple(key: str, name: str, value: tuple[Any, ...]) -> str:
    if name == "layers":
        return f"{value[0]}-{value[1] - 1}" if value[1] - value[0] > 1 else str(value[0])
    if "_ns" in key and len(set(value)) > 1:
        return f"{_value(key, min(value))} to {_value(key, max(value))}, by microbatch"
    if "_ns" in key:
        return _value(key, value[0]) if value else "none"
    if name == "parts" and value and isinstance(value[0], int):
        return "/".join(map(str, value))
    return "others" if len(value) > MOST_LINES else ", ".join(map(str, value))


def _numbered(noun: str, places: Iterable[At]) -> str:
    """`stages 0-3, 5`, `link 3>4`."""
    given = list(places)
    texts = [str(place) for place in given if not isinstance(place, int)]
    texts += ranges(place for place in given if isinstance(place, int))
    return f"{noun}{'s' * (len(given) > 1)} {_few(texts)}"
