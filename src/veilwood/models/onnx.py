# SPDX-License-Identifier: Apache-2.0
"""Export of a fitted model as an ONNX graph that takes raw values and predicts as the model does.

Only what the release made public goes into the graph; Veilwood's own files are in ``model_file``.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from veilwood._version import __version__
from veilwood.atomic_file import write_file
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.errors import FileError, ModelFileError, VeilwoodError
from veilwood.estimators.base import BaseForest
from veilwood.forests.noisy_leaves import LeafModel
from veilwood.trees.forest import LEAF, Forest

if TYPE_CHECKING:
    from veilwood.data.columns import Column

__all__ = ["REFUSED_NUMBER", "REFUSED_TEXT", "export_onnx"]

REFUSED_TEXT: Final = "?"
"""Label of a row that holds something outside the schema, where classes are text."""
REFUSED_NUMBER: Final = -(2**63)
"""Label of such a row where classes are whole numbers."""

# TreeEnsemble came with ai.onnx.ml 5, in the release of ONNX that has these numbers.
_OPSET, _ML_OPSET, _IR_VERSION = 21, 5, 10
_AT_LEAST, _MEMBER = 2, 6  # node modes of TreeEnsemble


def export_onnx(estimator: BaseForest, path: str | PathLike[str], *, float64: bool = True) -> None:
    """Write a fitted model as an ONNX file.

    The graph has one input of shape (rows, 1) for each feature, under its name: numbers as double, categories as
    text, in which ``""`` stands for a missing value. A classifier gives ``label`` (rows) and ``probabilities``
    (rows, classes), a regressor ``value`` (rows); an underscore is added where a feature has that name. In onnxruntime
    all are equal to ours, bit for bit.

    A graph cannot raise errors. Where ``predict`` would (a category that is not in the schema, a missing value in a
    column that is not nullable), the row gets NaN for probabilities or value, and the label ``"?"``, or -2**63 where
    classes are whole numbers. With ``voting="probabilistic"`` there is no label: draw it from the probabilities.

    Parameters
    ----------
    estimator : random trees, median forest or greedy forest
        Fitted. Labels are int64 where ``classes_`` are whole numbers, and text as in the schema otherwise.
    path : path
        Where to; the certificate is in the file's metadata under ``certificate``.
    float64 : bool
        False declares numbers as float instead of double; the graph computes in double all the same.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> from veilwood.models.onnx import export_onnx
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, epsilon=2.0, n_estimators=5, max_depth=3).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     export_onnx(forest, f"{folder}/car.onnx")
    """
    known = isinstance(estimator, BaseForest)
    if known:
        check_is_fitted(estimator, "privacy_")
    model = getattr(estimator, "model_", None)
    if not known or type(model) is not LeafModel:
        raise VeilwoodError(
            f"{type(estimator).__name__} has no ONNX export. Hint: random trees, and median and greedy forests, have."
        )
    if model.forest.lookup.max() > 1:
        raise VeilwoodError(
            f"multiway trees of {type(estimator).__name__} have no ONNX export. Hint: branching='binary'."
        )
    graph = _Graph(estimator.schema_.feature_names)
    values, refused = _read_columns(graph, model.encoding, float64)
    mean = _mean_over_trees(graph, model, values)
    if estimator.task == "classification":
        _classify(graph, estimator, model.voting, mean, refused)
    else:
        _regress(graph, model.encoding.schema.target.bounds, mean, refused)
    written = graph.model(estimator.privacy_.to_json(), str(estimator.privacy_))
    try:
        write_file(path, written.SerializeToString())
    except FileError as error:
        raise ModelFileError(str(error)) from None


class _Graph:
    """A graph under construction: names that are not taken, constants, and nodes in order."""

    def __init__(self, taken: Sequence[str]) -> None:
        try:
            import onnx
        except ImportError:
            raise VeilwoodError("ONNX export needs the package onnx. Hint: pip install 'veilwood[onnx]'") from None
        self.onnx = onnx
        self._taken = set(taken)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def unused(self, name: str) -> str:
        """Return ``name`` with as many underscores as make it new."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def input(self, name: str, dtype: str) -> str:
        """Declare an input of one column."""
        kind = getattr(self.onnx.TensorProto, dtype)
        self._inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["rows", 1]))
        return name

    def output(self, source: str, name: str, dtype: str, shape: list[str | int]) -> None:
        """Declare ``source`` an output under a name of its own."""
        name = self.unused(name)
        self._nodes.append(self.onnx.helper.make_node("Identity", [source], [name]))
        kind = getattr(self.onnx.TensorProto, dtype)
        self._outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))

    def constant(self, value: Any) -> str:
        """Add a constant tensor."""
        name = self.unused("constant")
        self._constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator: str, *sources: str, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its result; arrays among the attributes become tensors."""
        result = self.unused(operator)
        plain = {
            key: self.onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for key, value in attributes.items()
        }
        self._nodes.append(self.onnx.helper.make_node(operator, sources, [result], domain=domain, **plain))
        return result

    def model(self, certificate: str, privacy: str) -> Any:
        """Return the finished model."""
        helper = self.onnx.helper
        graph = helper.make_graph(self._nodes, "veilwood", self._inputs, self._outputs, self._constants)
        model = helper.make_model(
            graph,
            producer_name="veilwood",
            producer_version=__version__,
            doc_string=privacy,
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET), helper.make_opsetid("ai.onnx.ml", _ML_OPSET)],
        )
        helper.set_model_props(model, {"certificate": certificate})
        return model


def _read_columns(graph: _Graph, encoding: Encoding, float64: bool) -> tuple[str, str]:
    """Return the features as one double matrix, categories as codes, and which rows are refused (rows, 1)."""
    columns, refused = [], []
    for column in encoding.schema.features:
        numeric = column.kind == "numeric"
        value, bad = _read_numbers(graph, column, float64) if numeric else _read_categories(graph, column)
        columns.append(value)
        refused += [bad] if bad else []
    either = refused[0] if refused else graph.add("IsNaN", columns[0])  # no column refuses: nothing is NaN by now
    for bad in refused[1:]:
        either = graph.add("Or", either, bad)
    return graph.add("Concat", *columns, axis=1), either


def _read_numbers(graph: _Graph, column: Column, float64: bool) -> tuple[str, str | None]:
    """Clamp to the upper bound; a missing value, whose code is above all others, becomes infinite."""
    given = graph.input(column.name, "DOUBLE" if float64 else "FLOAT")
    number = given if float64 else graph.add("Cast", given, to=graph.onnx.TensorProto.DOUBLE)
    missing = graph.add("IsNaN", number)
    clamped = graph.add("Min", number, graph.constant(np.float64(column.bounds[1])))
    value = graph.add("Where", missing, graph.constant(np.float64(np.inf)), clamped)
    return value, None if column.nullable else missing


def _read_categories(graph: _Graph, column: Column) -> tuple[str, str | None]:
    """Look up codes; what the schema does not allow gets code -1."""
    unknown = -1 if column.other is None else column.values.index(column.other)
    missing = len(column.values) if column.nullable else -1
    # A graph cannot rewrite texts: categories are known as the schema declares them, and by the text they compare by.
    known = {str(label): place for place, label in enumerate(column.labels)}
    known |= {text: place for place, text in enumerate(column.values)} | {"": missing}
    code = graph.add(
        "LabelEncoder",
        graph.input(column.name, "STRING"),
        domain="ai.onnx.ml",
        keys_strings=list(known),
        values_int64s=list(known.values()),
        default_int64=unknown,
    )
    value = graph.add("Cast", code, to=graph.onnx.TensorProto.DOUBLE)
    return value, graph.add("Less", code, graph.constant(np.int64(0))) if min(unknown, missing) < 0 else None


def _mean_over_trees(graph: _Graph, model: LeafModel, values: str) -> str:
    """Route rows by TreeEnsemble, which gives leaf numbers here, one target a tree; then look up what leaves say."""
    forest = model.forest
    leaves = graph.add("TreeEnsemble", values, domain="ai.onnx.ml", **_tree_attributes(forest, model.encoding))
    numbers = graph.add("Cast", leaves, to=graph.onnx.TensorProto.INT64)
    said = graph.add("Gather", graph.constant(model.leaf_values), numbers, axis=0)
    # CumSum adds one tree after the other, as we do, so even the rounding is the same.
    sums = graph.add("CumSum", said, graph.constant(np.int64(1)))
    total = graph.add("Gather", sums, graph.constant(np.int64(forest.n_trees - 1)), axis=1)
    return graph.add("Div", total, graph.constant(np.float64(forest.n_trees)))


def _tree_attributes(forest: Forest, encoding: Encoding) -> dict[str, Any]:
    """Return binary trees as TreeEnsemble wants them: decisions and leaves listed apart, numbered from 0."""
    is_leaf = forest.feature == LEAF
    decides = ~is_leaf
    decides[forest.roots] = True  # a tree of one leaf is a decision whose branches both lead to that leaf
    place = np.cumsum(decides) - 1
    nodes = np.flatnonzero(decides)
    feature, cut = forest.feature[nodes], forest.cut[nodes]
    left = np.where(is_leaf[nodes], nodes, forest.child[nodes])
    right = np.where(is_leaf[nodes], nodes, forest.child[nodes] + 1)

    threshold = np.zeros(len(nodes))
    for column, meaning in enumerate(encoding.columns):
        if meaning.ordered:
            here = feature == column
            apart = here & (cut == meaning.missing_code)  # sets missing values apart from all numbers
            threshold[apart] = np.inf
            threshold[here & ~apart] = encoding.threshold(column, cut[here & ~apart].astype(np.int64))
    by_subset = cut < 0
    widths = np.array(encoding.n_codes)[feature[by_subset]]
    members = [
        np.append(np.flatnonzero(forest.lookup[start : start + width]), np.nan)
        for start, width in zip(-1 - cut[by_subset], widths, strict=True)
    ]

    def branch(name: str, node: NDArray[np.int64]) -> dict[str, list[int]]:
        number = np.where(is_leaf[node], forest.child[node], place[node])
        return {f"nodes_{name}nodeids": number.tolist(), f"nodes_{name}leafs": is_leaf[node].astype(int).tolist()}

    return {
        "n_targets": forest.n_trees,
        "tree_roots": place[forest.roots].tolist(),
        "nodes_featureids": np.maximum(feature, 0).tolist(),
        "nodes_modes": np.where(by_subset, _MEMBER, _AT_LEAST).astype(np.uint8),
        "nodes_splits": threshold,
        **branch("true", right),
        **branch("false", left),
        "leaf_targetids": np.repeat(np.arange(forest.n_trees), np.diff(forest.tree_leaves)).tolist(),
        "leaf_weights": np.arange(forest.n_leaves, dtype=np.float64),
        **({"membership_values": np.concatenate(members)} if members else {}),
    }


def _classify(graph: _Graph, estimator: BaseForest, voting: str, shares: str, refused: str) -> None:
    nan = graph.constant(np.float64(np.nan))
    target = estimator.schema_.target
    classes = target.labels if target.label_type == "text" else target.values
    if voting != "probabilistic":
        best = graph.add("ArgMax", shares, axis=1, keepdims=1)
        chosen = graph.add("Where", refused, graph.constant(np.int64(len(classes))), best)
        if whole := estimator.classes_.dtype.kind in "iu":
            table = np.array([*estimator.classes_.tolist(), REFUSED_NUMBER], np.int64)
        else:
            table = np.array([*classes, REFUSED_TEXT], dtype=object)
        label = graph.add("Gather", graph.constant(table), graph.add("Squeeze", chosen, graph.constant(np.array([1]))))
        graph.output(label, "label", "INT64" if whole else "STRING", ["rows"])
    graph.output(graph.add("Where", refused, nan, shares), "probabilities", "DOUBLE", ["rows", len(classes)])


def _regress(graph: _Graph, bounds: tuple[float, float], shares: str, refused: str) -> None:
    lower, upper = bounds
    share = graph.add("Gather", shares, graph.constant(np.array([0])), axis=1)
    # The steps of Encoding.decode_target, one by one, for equal rounding.
    levels = graph.add("Mul", share, graph.constant(np.float64(TARGET_LEVELS)))
    above = graph.add("Mul", levels, graph.constant(np.float64((upper - lower) / TARGET_LEVELS)))
    value = graph.add("Add", above, graph.constant(np.float64(lower)))
    value = graph.add("Where", refused, graph.constant(np.float64(np.nan)), value)
    graph.output(graph.add("Squeeze", value, graph.constant(np.array([1]))), "value", "DOUBLE", ["rows"])
