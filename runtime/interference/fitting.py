"""A forest from samples: fitted by scikit-learn, exported as arrays, and compared on runs that it has not seen.

scikit-learn is an optional extra, `schedc[interference]`, and is imported here alone. What the forest is compared with: a linear
model of the same features, and the last value, which is what is known of a rank's slow-down without any model.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from schedc.errors import InvalidInput, Unsupported
from schedc.runtime.interference.forest import FORMAT, LEAF, VERSION, ForestFile, TreeEntry, forest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

TREES = 128
FOLDS = 4
"""Each run is held out once, from the models that are fitted on the runs of the other folds."""


class InterferenceSample(NamedTuple):
    """What was seen in a window, and what the stage took."""

    run: int
    """In the order of time."""
    seen: Mapping[str, float]
    ratio: float
    """How many times as long as alone."""


class PredictionErrors(NamedTuple):
    """Of one way to predict ratios, on runs held out."""

    name: str
    mean: float
    """Absolute, as are the others."""
    worst: float
    after_change: float
    """The mean of the first windows of runs."""


class Fitted(NamedTuple):
    """What has come of the samples."""

    file: ForestFile
    """The forest, fitted on all runs."""
    errors: tuple[PredictionErrors, ...]
    """Of the forest, the linear model and the last value."""
    importances: tuple[tuple[str, float], ...]
    """Of the features, the largest first; they add up to 1."""


def check_installed() -> None:
    """Refuse at once where scikit-learn is missing.

    Raises:
        Unsupported: it is.
    """
    if find_spec("sklearn") is None:
        raise Unsupported("interference: found no scikit-learn, which trains forests; install schedc[interference]")


def fit(samples: Sequence[InterferenceSample], *, trees: int = TREES, seed: int = 0) -> Fitted:
    """Fit a forest on all samples; say how well one fitted on three runs of four predicts the fourth, beside two others.

    Samples are in the order of time.

    Raises:
        InvalidInput: fewer runs than folds, or no feature that all samples have.
        Unsupported: scikit-learn is not installed.
    """
    check_installed()
    runs = np.array([sample.run for sample in samples])
    names = sorted(set.intersection(*(set(sample.seen) for sample in samples))) if samples else []
    if len(set(runs)) < FOLDS or not names:
        raise InvalidInput(f"interference: found samples of {len(set(runs))} runs, expected {FOLDS} or more, that saw the same")
    seen = np.array([[sample.seen[name] for name in names] for sample in samples])
    ratios = np.array([sample.ratio for sample in samples])
    fold = np.unique(runs, return_inverse=True)[1] % FOLDS
    predicted = {"forest": np.empty_like(ratios), "linear": np.empty_like(ratios), "last value": np.r_[1.0, ratios[:-1]]}
    for held_out in range(FOLDS):
        rest, here = fold != held_out, fold == held_out
        predicted["forest"][here] = forest_of(_file(_fitted(seen[rest], ratios[rest], trees, seed), names)).predict(seen[here])
        predicted["linear"][here] = linear(seen[rest], ratios[rest])(seen[here])
    first = np.r_[True, runs[1:] != runs[:-1]]
    whole = _fitted(seen, ratios, trees, seed)
    weights = sorted(zip(names, map(float, whole.feature_importances_), strict=True), key=lambda entry: -entry[1])
    return Fitted(_file(whole, names), tuple(_errors(*entry, ratios, first) for entry in predicted.items()), tuple(weights))


def linear(seen: Array, ratios: Array) -> Callable[[Array], Array]:
    """The linear model with the least squares, in features of mean 0 and variance 1; one that does not vary counts for nothing."""
    mean, spread = seen.mean(axis=0), seen.std(axis=0)
    varies = spread > 1e-9 * np.maximum(1.0, np.abs(mean))

    def columns(samples: Array) -> Any:
        return np.c_[np.ones(len(samples)), ((samples - mean) / np.where(varies, spread, 1.0))[:, varies]]

    weights = np.linalg.lstsq(columns(seen), ratios, rcond=None)[0]

    def predict(samples: Array) -> Array:
        return np.asarray(columns(samples) @ weights, float)

    return predict


def _errors(name: str, predicted: Array, ratios: Array, first: NDArray[np.bool_]) -> PredictionErrors:
    away = np.abs(predicted - ratios)
    return PredictionErrors(name, float(away.mean()), float(away.max()), float(away[first].mean()))


def _fitted(seen: Array, ratios: Array, trees: int, seed: int) -> Any:
    """scikit-learn's forest."""
    from sklearn.ensemble import RandomForestRegressor

    return RandomForestRegressor(n_estimators=trees, random_state=seed).fit(seen, ratios)


def _file(fitted: Any, names: Sequence[str]) -> ForestFile:
    """The trees' arrays. A leaf's threshold is of no use, and 0."""
    trees = []
    for tree in (estimator.tree_ for estimator in fitted.estimators_):
        is_leaf = tree.children_left == -1
        trees.append(
            TreeEntry(
                feature=tuple(np.where(is_leaf, LEAF, tree.feature).tolist()),
                threshold=tuple(np.where(is_leaf, 0.0, tree.threshold).tolist()),
                left=tuple(np.where(is_leaf, 0, tree.children_left).tolist()),
                right=tuple(np.where(is_leaf, 0, tree.children_right).tolist()),
                value=tuple(tree.value[:, 0, 0].tolist()),
            )
        )
    return ForestFile(format=FORMAT, version=VERSION, features=tuple(names), trees=tuple(trees))
