"""Relations between answers: freer is never worse, other names change nothing; `benchmarks/compiler/relations.py` has thousands."""

from __future__ import annotations

from collections import Counter

import pytest
from inputs.few_layouts import seek_few_layouts
from inputs.layout_relations import MORE_CHOICE
from oracles import relations
from oracles.relations import FREER, MORE_ASKED, SAME, _Answer, check_relation, random_relation

QUICK = (2, 3, 4, 5, 6, 7, 14, 17, 22, 137, 554)
"""Those on which searches end soon; in the last two any stage may recompute, and the best layout is one where none does."""
SLOW = (*sorted(set(range(23)) - {*QUICK, 11}), 47, 53, 57)
"""The last ones have 11's relation, `a faster stage` in odd numbers; 11 takes as long as all others together."""


def assert_hold(numbers: tuple[int, ...], patch: pytest.MonkeyPatch) -> None:
    seek_few_layouts(patch)
    patch.setattr(relations, "WORK", 0.3)
    counts: Counter[str] = Counter()
    assert [(number, finding) for number in numbers for finding in check_relation(number, counts)] == []
    assert counts["answers compared"] > len(numbers) // 2


def test_relations_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_hold(QUICK, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("number", SLOW)
def test_more_relations_hold(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_hold((number,), monkeypatch)


def test_every_relation_is_drawn() -> None:
    drawn = [random_relation(number) for number in range(300)]
    assert {relation.name for relation in drawn} == {*FREER, *SAME, *MORE_ASKED, *MORE_CHOICE}
    assert drawn[:20] == [random_relation(number) for number in range(20)]


def test_worse_answers_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a bound and an answer that are both worse."""
    relation = next(relation for relation in map(random_relation, range(100)) if relation.name == "more memory")

    def answer(job: object, work: float, method: str = "auto") -> _Answer:
        worse = job is relation.second
        return _Answer(10 + worse, "work", 100 + 2 * worse, "greedy", ())

    monkeypatch.setattr(relations, "random_relation", lambda _: relation)
    monkeypatch.setattr(relations, "_answer", answer)
    kinds = [finding.kind for finding in check_relation(0, Counter())]
    assert kinds == [f"{relation.name}: bounds", f"{relation.name}: worse"]


def test_bounds_that_the_other_answer_refutes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a solver, for schedules of whole blocks: one that cuts some refutes nothing."""
    relation = next(relation for relation in map(random_relation, range(100)) if relation.name == "a larger limit")
    answers = [
        _Answer(10, "work", 100, "greedy", (), is_whole=is_whole) if is_first else _Answer(10, "work", 99, "cpsat", (), 101, True)
        for is_whole in (True, False)
        for is_first in (True, False)
    ]
    monkeypatch.setattr(relations, "random_relation", lambda _: relation)
    monkeypatch.setattr(relations, "_answer", lambda *_: answers.pop(0))
    for is_whole in (True, False):
        kinds = [finding.kind for finding in check_relation(0, Counter())]
        assert kinds == [f"{relation.name}: a bound above a known schedule"] * is_whole
