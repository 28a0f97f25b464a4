# SPDX-License-Identifier: Apache-2.0
"""Export of a fitted model as an ONNX graph that takes raw values and predicts as the model does.

Only what the release made public goes into the graph; Veilwood's own files are in ``file``.
"""

from __future__ import annotations

from os import PathLike
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from veilwood.atomic_file import write_file
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.errors import FileError, ModelFileError, UseError
from veilwood.estimators.base import BaseForest
from veilwood.estimators.class_weights import weights_of
from veilwood.forests.adaptive.private_forest import PrivateForestModel
from veilwood.forests.matrix.training import MatrixModel
from veilwood.forests.noisy_leaves import LeafModel
from veilwood.models.onnx_graph import Graph, read_columns
from veilwood.models.onnx_trees import tree_attributes
from veilwood.trees.forest import Forest

__all__ = ["REFUSED_NUMBER", "REFUSED_TEXT", "export_onnx"]

REFUSED_TEXT: Final = "?"
"""Label of a row that holds something outside the schema, where classes are text."""
REFUSED_NUMBER: Final = -(2**63)
"""Label of such a row where classes are whole numbers."""


class _Said(NamedTuple):
    """What a graph says of rows: shares of classes and what the label is the largest of, or a part of the target."""

    shares: str
    votes: str
    drawn: bool = False  # labels are drawn by the shares


def export_onnx(estimator: BaseForest, path: str | PathLike[str], *, float64: bool = True) -> None:
    """Write a fitted model as an ONNX file.

    The graph has one input of shape (rows, 1) for each feature, under its name: numbers as double, categories as
    text, in which ``""`` stands for a missing value. A classifier gives ``label`` (rows) and ``probabilities``
    (rows, classes), a regressor ``value`` (rows); an underscore is added where a feature has that name. In onnxruntime
    all are equal to ours: bit for bit where leaves vote or are averaged, and up to the rounding of exponentials where
    a PrivateForest turns scores into probabilities.

    A graph cannot raise errors. Where ``predict`` would (a category that is not in the schema, a missing value in a
    column that is not nullable), the row gets NaN for probabilities or value, and the label ``"?"``, or -2**63 where
    classes are whole numbers. With ``voting="probabilistic"`` there is no label: draw it from the probabilities.

    Parameters
    ----------
    estimator : any estimator but MatrixForestPredictor
        Fitted. Labels are int64 where ``classes_`` are whole numbers, and text as in the schema otherwise.
        A MatrixForestPredictor has no model that may leave: each of its answers is a release of its own.
    path : path
        Where to; the certificate is in the file's metadata under ``certificate``.
    float64 : bool
        False declares numbers as float instead of double; the graph computes in double all the same.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> from veilwood.models.onnx import export_onnx
    >>> car = vw.datasets.car()
    >>> forest = vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_onnx(forest, f"{folder}/car.onnx")
    """
    name = type(estimator).__name__
    if not isinstance(estimator, BaseForest):
        raise UseError(f"{name} has no ONNX export. Hint: give a fitted estimator of Veilwood.")
    check_is_fitted(estimator, "schema_")
    model = getattr(estimator, "model_", None)
    if model is None:
        raise UseError(
            f"{name} has no ONNX export: it keeps the private data and answers each batch by a release of its own, so "
            "there is no model that may leave. Hint: MatrixForestClassifier releases one."
        )
    graph = Graph(estimator.schema_.feature_names)
    values, refused = read_columns(graph, model.encoding, float64)
    said = _say(graph, model, values)
    if estimator.task == "classification":
        _classify(graph, estimator, said, refused)
    else:
        _regress(graph, model.encoding.schema.target.bounds, said.shares, refused)
    written = graph.model(estimator.privacy_.to_json(), str(estimator.privacy_))
    try:
        write_file(path, written.SerializeToString())
    except FileError as error:
        raise ModelFileError(str(error)) from None


def _say(graph: Graph, model: Any, values: str) -> _Said:
    """Add what a model says of rows: each step is that of its ``outputs``."""
    if isinstance(model, PrivateForestModel):
        return _add_up_scores(graph, model, values)
    if not isinstance(model, LeafModel):
        raise UseError(f"{type(model).__name__} has no ONNX export.")
    total = _sum_over_trees(graph, model.forest, model.leaf_values, model.encoding, values)
    if isinstance(model, MatrixModel):
        shares = _plain_shares(graph, total, len(model.encoding.schema.classes))
        return _Said(_with_doubt(graph, shares, model), total)
    mean = graph.add("Div", total, graph.constant(np.float64(model.forest.n_trees)))
    if not model.encoding.schema.classes:
        return _Said(mean, mean)
    return _Said(_with_doubt(graph, mean, model), mean, drawn=model.voting == "probabilistic")


def _with_doubt(graph: Graph, shares: str, model: LeafModel) -> str:
    """Turn shares into probabilities none of which is 0 (``leaves.with_doubt``)."""
    if not model.doubtful:
        return shares
    n_trees, n_classes = np.float64(model.forest.n_trees), len(model.encoding.schema.classes)
    told = graph.add("Mul", shares, graph.constant(n_trees))
    told = graph.add("Add", told, graph.constant(np.float64(1 / n_classes)))
    return graph.add("Div", told, graph.constant(n_trees + 1))


def _sum_over_trees(
    graph: Graph, forest: Forest, leaf_values: NDArray[np.float64], encoding: Encoding, values: str
) -> str:
    """Route rows by TreeEnsemble, which gives leaf numbers here, one target a tree; then add up what leaves say."""
    leaves = graph.add("TreeEnsemble", values, domain="ai.onnx.ml", **tree_attributes(forest, encoding))
    numbers = graph.add("Cast", leaves, to=graph.onnx.TensorProto.INT64)
    said = graph.add("Gather", graph.constant(leaf_values), numbers, axis=0)
    # CumSum adds one tree after the other, as we do, so even the rounding is the same.
    sums = graph.add("CumSum", said, graph.constant(np.int64(1)))
    return graph.add("Gather", sums, graph.constant(np.int64(forest.n_trees - 1)), axis=1)


def _plain_shares(graph: Graph, votes: str, n_classes: int) -> str:
    """Divide votes by their sum, those below 0 left out; without any, all classes are equal (``plain_shares``)."""
    kept = graph.add("Max", votes, graph.constant(np.float64(0)))
    total = _row_sums(graph, kept)
    some = graph.add("Greater", total, graph.constant(np.float64(0)))
    shares = graph.add("Div", kept, graph.add("Where", some, total, graph.constant(np.float64(1))))
    return graph.add("Where", some, shares, graph.constant(np.full((1, n_classes), 1 / n_classes)))


# -- PrivateForest -----------------------------------------------------------------------------------------------


def _add_up_scores(graph: Graph, model: PrivateForestModel, values: str) -> _Said:
    sums = _sum_over_trees(graph, model.forest, model.leaf_values, model.encoding, values)
    scores = graph.add("Add", graph.constant(model.start[None]), sums)
    if not model.encoding.schema.classes:
        part = graph.add("Clip", scores, graph.constant(np.float64(0)), graph.constant(np.float64(1)))
        return _Said(part, part)
    shares = _probabilities(graph, scores, len(model.start))
    if model.cells is not None:
        sums_of_cells = _sum_over_trees(graph, model.cells.forest, model.cells.values, model.encoding, values)
        theirs = graph.add("Div", sums_of_cells, _row_sums(graph, sums_of_cells))
        shares = graph.add(
            "Add",
            graph.add("Mul", graph.constant(np.float64(1 - model.weight)), shares),
            graph.add("Mul", graph.constant(np.float64(model.weight)), theirs),
        )
    return _Said(shares, shares)


def _probabilities(graph: Graph, scores: str, n_outputs: int) -> str:
    """Turn scores into class probabilities, as ``rows.probabilities`` does."""
    if n_outputs > 1:
        highest = graph.add("ReduceMax", scores, graph.constant(np.array([1])), keepdims=1)
        powers = graph.add("Exp", graph.add("Sub", scores, highest))
        return graph.add("Div", powers, _row_sums(graph, powers))
    one = graph.constant(np.float64(1))
    cut = graph.add("Clip", scores, graph.constant(np.float64(-50)), graph.constant(np.float64(50)))
    second = graph.add("Div", one, graph.add("Add", one, graph.add("Exp", graph.add("Neg", cut))))
    return graph.add("Concat", graph.add("Sub", one, second), second, axis=1)


def _row_sums(graph: Graph, numbers: str) -> str:
    return graph.add("ReduceSum", numbers, graph.constant(np.array([1])), keepdims=1)


# -- outputs -----------------------------------------------------------------------------------------------------


def _classify(graph: Graph, estimator: BaseForest, said: _Said, refused: str) -> None:
    nan = graph.constant(np.float64(np.nan))
    weights = weights_of(getattr(estimator, "class_weight", None), estimator.classes_, estimator.model_)
    if weights is not None:
        heavy = graph.add("Mul", said.shares, graph.constant(weights[None]))
        heavy = graph.add("Div", heavy, _row_sums(graph, heavy))
        said = _Said(heavy, heavy)
    target = estimator.schema_.target
    classes = target.labels if target.label_type == "text" else target.values
    if not said.drawn:
        best = graph.add("ArgMax", said.votes, axis=1, keepdims=1)
        chosen = graph.add("Where", refused, graph.constant(np.int64(len(classes))), best)
        if whole := estimator.classes_.dtype.kind in "iu":
            table = np.array([*estimator.classes_.tolist(), REFUSED_NUMBER], np.int64)
        else:
            table = np.array([*classes, REFUSED_TEXT], dtype=object)
        label = graph.add("Gather", graph.constant(table), graph.add("Squeeze", chosen, graph.constant(np.array([1]))))
        graph.output(label, "label", "INT64" if whole else "STRING", ["rows"])
    graph.output(graph.add("Where", refused, nan, said.shares), "probabilities", "DOUBLE", ["rows", len(classes)])


def _regress(graph: Graph, bounds: tuple[float, float], shares: str, refused: str) -> None:
    lower, upper = bounds
    share = graph.add("Gather", shares, graph.constant(np.array([0])), axis=1)
    # The steps of Encoding.decode_target, one by one, for equal rounding.
    levels = graph.add("Mul", share, graph.constant(np.float64(TARGET_LEVELS)))
    above = graph.add("Mul", levels, graph.constant(np.float64((upper - lower) / TARGET_LEVELS)))
    value = graph.add("Add", above, graph.constant(np.float64(lower)))
    value = graph.add("Where", refused, graph.constant(np.float64(np.nan)), value)
    graph.output(graph.add("Squeeze", value, graph.constant(np.array([1]))), "value", "DOUBLE", ["rows"])
