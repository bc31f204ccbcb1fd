"""Relations between answers: freer is never worse, other names change nothing; `benchmarks/compiler/relations.py` has thousands."""

from __future__ import annotations

from collections import Counter

import pytest
from inputs.few_layouts import seek_few_layouts
from inputs.layout_relations import MORE_CHOICE
from oracles import relations
from oracles.relations import FREER, SAME, _Answer, check_relation, random_relation

QUICK = (0, 4, 7, 8, 9, 11, 14, 15)
"""Those on which searches end soon."""
SLOW = tuple(set(range(18)) - set(QUICK) - {1, 13})
"""Not those on which CP-SAT counts little of its work, so that a limit of work is none."""


def assert_hold(numbers: tuple[int, ...], patch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(patch)
    patch.setattr(relations, "WORK", 0.3)
    counts: Counter[str] = Counter()
    assert [(number, finding) for number in numbers for finding in check_relation(number, counts)] == []
    assert counts["answers compared"] > len(numbers) // 2


def test_relations_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_hold(QUICK, monkeypatch)


@pytest.mark.slow
def test_more_relations_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_hold(SLOW, monkeypatch)


def test_every_relation_is_drawn() -> None:
    drawn = [random_relation(number) for number in range(300)]
    assert {relation.name for relation in drawn} == {*FREER, *SAME, *MORE_CHOICE}
    assert drawn[:20] == [random_relation(number) for number in range(20)]


def test_worse_answers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bound and an answer that are both worse."""
    relation = random_relation(0)
    assert relation.factor is None

    def answer(job: object, work: float = 0) -> _Answer:
        worse = job is relation.second
        return _Answer(10 + worse, "work", 100 + 2 * worse, "greedy", ())

    monkeypatch.setattr(relations, "random_relation", lambda _: relation)
    monkeypatch.setattr(relations, "_answer", answer)
    kinds = [finding.kind for finding in check_relation(0, Counter())]
    assert kinds == [f"{relation.name}: bounds", f"{relation.name}: worse"]
