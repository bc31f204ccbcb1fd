"""A random forest as arrays, evaluated with numpy alone; and its file, JSON, which executes nothing when it is read.

scikit-learn trains it (`fitting`) and is not needed here. A sample's features are compared as float32, as scikit-learn does.

{"format": "schedc.interference", "version": 1, "features": [names], "trees": [{"feature": [of each node; -1: a leaf],
 "threshold": […], "left": [a later node of the tree], "right": […], "value": [what the slow-down is there]}]}
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final, Literal

import msgspec
import numpy as np
from msgspec import Meta

from schedc.errors import InvalidInput
from schedc.formats.plan.plan_structs import FileEntry, Text
from schedc.io.input_file import read_bytes, without_mark
from schedc.io.location import Location
from schedc.io.tables import decode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

FORMAT: Final = "schedc.interference"
VERSION: Final = 1
LEAF = -1


class TreeEntry(FileEntry, frozen=True):
    """One tree; all lists have a value for each node, of which the first is the root."""

    feature: Annotated[tuple[int, ...], Meta(min_length=1)]
    """Which feature is looked at; -1: none, the node is a leaf."""
    threshold: tuple[float, ...]
    """A sample whose feature is at most this goes left."""
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    """Of a leaf: the prediction."""


class ForestFile(FileEntry, frozen=True):
    """The whole file."""

    format: Literal["schedc.interference"]
    version: Literal[1]
    features: Annotated[tuple[Text, ...], Meta(min_length=1)]
    trees: Annotated[tuple[TreeEntry, ...], Meta(min_length=1)]


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """The nodes of all trees, one tree after the other."""

    names: tuple[str, ...]
    """Of the features, in their order."""
    roots: NDArray[np.int64]
    """The first node of each tree."""
    feature: NDArray[np.int64]
    threshold: NDArray[np.float64]
    left: NDArray[np.int64]
    right: NDArray[np.int64]
    value: NDArray[np.float64]

    def predict(self, samples: NDArray[np.float64]) -> NDArray[np.float64]:
        """The mean of the trees for each sample, a row with a column for each feature."""
        compared = samples.astype(np.float32)
        rows = np.arange(len(samples))[:, None]
        node = np.broadcast_to(self.roots, (len(samples), len(self.roots)))
        while (inner := self.feature[node] != LEAF).any():
            goes_left = compared[rows, np.maximum(self.feature[node], 0)] <= self.threshold[node]
            node = np.where(inner, np.where(goes_left, self.left[node], self.right[node]), node)
        return np.asarray(self.value[node].mean(axis=1))

    def predict_one(self, seen: Mapping[str, float]) -> float:
        """The prediction for one sample, by the names of its features; more of them count for nothing.

        Raises:
            InvalidInput: a feature is missing.
        """
        missing = next((name for name in self.names if name not in seen), None)
        if missing is not None:
            raise InvalidInput(
                f"interference model: found no {missing!r} on this machine, expected what it was trained with; train one here"
            )
        return float(self.predict(np.array([[seen[name] for name in self.names]]))[0])


def forest_of(file: ForestFile) -> Forest:
    """The forest in a file whose rules have been checked."""
    sizes = [len(tree.feature) for tree in file.trees]
    roots = np.cumsum([0, *sizes[:-1]])
    shift = np.repeat(roots, sizes)

    def joined(name: str) -> NDArray[np.float64]:
        return np.concatenate([np.array(getattr(tree, name), float) for tree in file.trees])

    return Forest(
        names=file.features,
        roots=roots,
        feature=joined("feature").astype(np.int64),
        threshold=joined("threshold"),
        left=joined("left").astype(np.int64) + shift,
        right=joined("right").astype(np.int64) + shift,
        value=joined("value"),
    )


def forest_json(file: ForestFile) -> bytes:
    """The file's bytes: a line for each tree; they end with a newline."""
    trees = b",\n".join(map(msgspec.json.encode, file.trees))
    head = msgspec.json.encode({"format": file.format, "version": file.version, "features": file.features})
    return head[:-1] + b',"trees":[\n' + trees + b"\n]}\n"


def read_forest(path: Path | str) -> Forest:
    """The forest in the file.

    Raises:
        InvalidInput: names the file, the place in it, what was found and what was expected.
    """
    location = Location(str(path))
    file = decode(without_mark(read_bytes(path)), ForestFile, location)
    if len(set(file.features)) < len(file.features):
        raise (location / "features").refuse("a name twice", "each feature once")
    for at, tree in enumerate(file.trees):
        _check(tree, len(file.features), location / "trees" / at)
    return forest_of(file)


def _check(tree: TreeEntry, features: int, location: Location) -> None:
    """A sample must come to a leaf, whatever its features are."""
    nodes = len(tree.feature)
    for name in ("threshold", "left", "right", "value"):
        if len(getattr(tree, name)) != nodes:
            raise (location / name).refuse(f"{len(getattr(tree, name))} values", f"{nodes}, one for each node")
    for node, feature in enumerate(tree.feature):
        if not LEAF <= feature < features:
            raise (location / "feature" / node).refuse(str(feature), f"a feature from 0 to {features - 1}, or -1 for a leaf")
        for name, child in (("left", tree.left[node]), ("right", tree.right[node])):
            if feature != LEAF and not node < child < nodes:
                raise (location / name / node).refuse(str(child), f"a later node, up to {nodes - 1}")
