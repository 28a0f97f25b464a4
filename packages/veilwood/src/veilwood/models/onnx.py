# SPDX-License-Identifier: Apache-2.0
"""Export of a fitted model as an ONNX graph that takes raw values and predicts as the model does.

The graph contains released values only. Model files of Veilwood are in ``file``.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from veilwood._version import __version__
from veilwood.arrays import Floats, Ints
from veilwood.data.encoding import TARGET_LEVELS, Encoding
from veilwood.errors import FileError, ModelFileError, SetupError, UseError
from veilwood.estimators.base import BaseForest
from veilwood.estimators.class_weights import resolve_weights
from veilwood.forests.adaptive.private_forest import PrivateForestModel
from veilwood.forests.matrix.training import GEOMETRIC, MatrixModel
from veilwood.forests.noisy_leaves import LeafModel
from veilwood.safe_io import write_file
from veilwood.trees.forest import LEAF, Forest

if TYPE_CHECKING:
    from veilwood.data.columns import Column

# The operator TreeEnsemble needs ai.onnx.ml 5; the other two numbers are of the same ONNX release.
_OPSET, _ML_OPSET, _IR_VERSION = 21, 5, 10


class Graph:
    """Builder of an ONNX graph: unique names, constants, and nodes in order."""

    def __init__(self, taken: Sequence[str]) -> None:
        try:
            import onnx
        except ImportError:
            raise SetupError("ONNX export needs the package onnx. Hint: run pip install 'veilwood[onnx]'") from None
        self.onnx = onnx
        self._taken = set(taken)
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def unused_name(self, name: str) -> str:
        """Return ``name``, with underscores appended until it is unused."""
        while name in self._taken:
            name += "_"
        self._taken.add(name)
        return name

    def add_input(self, name: str, dtype: str) -> str:
        """Declare an input of one column."""
        kind = getattr(self.onnx.TensorProto, dtype)
        self._inputs.append(self.onnx.helper.make_tensor_value_info(name, kind, ["rows", 1]))
        return name

    def add_output(self, source: str, name: str, dtype: str, shape: list[str | int]) -> None:
        """Declare ``source`` as an output with the name ``name``."""
        name = self.unused_name(name)
        self._nodes.append(self.onnx.helper.make_node("Identity", [source], [name]))
        kind = getattr(self.onnx.TensorProto, dtype)
        self._outputs.append(self.onnx.helper.make_tensor_value_info(name, kind, shape))

    def add_constant(self, value: Any) -> str:
        """Add a constant tensor."""
        name = self.unused_name("constant")
        self._constants.append(self.onnx.numpy_helper.from_array(np.asarray(value), name))
        return name

    def add_node(self, operator: str, *sources: str, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its result; arrays among the attributes become tensors."""
        result = self.unused_name(operator)
        plain = {
            key: self.onnx.numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value
            for key, value in attributes.items()
        }
        self._nodes.append(self.onnx.helper.make_node(operator, sources, [result], domain=domain, **plain))
        return result

    def to_model(self, certificate: str, privacy: str) -> Any:
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


def add_column_inputs(graph: Graph, encoding: Encoding, float64: bool) -> tuple[str, str]:
    """Return the features as one double matrix with categories as codes, and a mask of invalid rows, (rows, 1)."""
    columns, refused = [], []
    for column in encoding.schema.features:
        if column.part is not None or column.prefix is not None or column.of is not None:
            raise UseError(
                f"column {column.name!r} is a part of a string, which an ONNX graph cannot extract. Hint: derive the "
                "part before fitting, and declare it as a column."
            )
        numeric = column.kind == "numeric"
        value, bad = _encode_numeric(graph, column, float64) if numeric else _encode_categorical(graph, column)
        columns.append(value)
        refused += [bad] if bad else []
    either = refused[0] if refused else graph.add_node("IsNaN", columns[0])  # all False: no value is NaN here
    for bad in refused[1:]:
        either = graph.add_node("Or", either, bad)
    return graph.add_node("Concat", *columns, axis=1), either


def _encode_numeric(graph: Graph, column: Column, float64: bool) -> tuple[str, str | None]:
    """Clamp numbers to the upper bound, and map missing values to infinity, because their code is the largest."""
    given = graph.add_input(column.name, "DOUBLE" if float64 else "FLOAT")
    number = given if float64 else graph.add_node("Cast", given, to=graph.onnx.TensorProto.DOUBLE)
    missing = graph.add_node("IsNaN", number)
    clamped = graph.add_node("Min", number, graph.add_constant(np.float64(column.bounds[1])))
    value = graph.add_node("Where", missing, graph.add_constant(np.float64(np.inf)), clamped)
    return value, None if column.nullable else missing


def _encode_categorical(graph: Graph, column: Column) -> tuple[str, str | None]:
    """Map categories to codes; values outside the schema get -1."""
    unknown = -1 if column.other is None else column.values.index(column.other)
    missing = len(column.values) if column.nullable else -1
    # A graph cannot canonicalize texts: list categories as declared and in canonical form.
    known = {str(label): place for place, label in enumerate(column.labels)}
    known |= {text: place for place, text in enumerate(column.values)} | {"": missing}
    known |= {spelling: column.values.index(category) for spelling, category in column.aliases.items()}
    code = graph.add_node(
        "LabelEncoder",
        graph.add_input(column.name, "STRING"),
        domain="ai.onnx.ml",
        keys_strings=list(known),
        values_int64s=list(known.values()),
        default_int64=unknown,
    )
    value = graph.add_node("Cast", code, to=graph.onnx.TensorProto.DOUBLE)
    return value, graph.add_node("Less", code, graph.add_constant(np.int64(0))) if min(unknown, missing) < 0 else None


_AT_LEAST, _MEMBER = 2, 6  # node modes of TreeEnsemble


class _CodeTest(NamedTuple):
    """Test of a decision: the code of a column is at least ``first``, or one of ``members``."""

    feature: int
    first: int
    members: Floats | None = None


class _DecisionTable(NamedTuple):
    """Decisions as parallel arrays: column, index of the test, and the nodes of both branches.

    Indices below ``n_nodes`` are nodes of the forest; larger indices are the additional binary decisions of multiway
    nodes.
    """

    feature: Ints
    test: Ints
    right: Ints
    left: Ints


def tree_attributes(forest: Forest, encoding: Encoding) -> dict[str, Any]:
    """Return the attributes of TreeEnsemble: separate lists of decisions and leaves, indexed from 0.

    Each tree is one target, and the weight of a leaf is its index: the operator returns the leaf of each row and tree.
    """
    is_leaf = forest.feature == LEAF
    decides = ~is_leaf
    decides[forest.roots] = True  # a tree with one leaf becomes a decision whose branches both lead to that leaf
    nodes = np.flatnonzero(decides)
    tests: list[_CodeTest] = []
    decisions = _list_decisions(forest, encoding, nodes, tests)
    place = np.cumsum(decides) - 1
    n_own = len(nodes)

    def branch_attributes(name: str, node: Ints) -> dict[str, list[int]]:
        own = node < forest.n_nodes
        at = np.where(own, node, 0)
        leaf = own & is_leaf[at]
        number = np.where(leaf, forest.child[at], np.where(own, place[at], node - forest.n_nodes + n_own))
        return {f"nodes_{name}nodeids": number.tolist(), f"nodes_{name}leafs": leaf.astype(int).tolist()}

    splits = _split_values(tests, encoding)[decisions.test]
    by_members = np.array([test.members is not None for test in tests])[decisions.test]
    members = [tests[test].members for test in decisions.test[by_members].tolist()]
    return {
        "n_targets": forest.n_trees,
        "tree_roots": place[forest.roots].tolist(),
        "nodes_featureids": decisions.feature.tolist(),
        "nodes_modes": np.where(by_members, _MEMBER, _AT_LEAST).astype(np.uint8),
        "nodes_splits": splits,
        **branch_attributes("true", decisions.right),
        **branch_attributes("false", decisions.left),
        "leaf_targetids": np.repeat(np.arange(forest.n_trees), np.diff(forest.tree_leaves)).tolist(),
        "leaf_weights": np.arange(forest.n_leaves, dtype=np.float64),
        **({"membership_values": np.concatenate([np.append(one, np.nan) for one in members])} if members else {}),
    }


def _list_decisions(forest: Forest, encoding: Encoding, nodes: Ints, tests: list[_CodeTest]) -> _DecisionTable:
    """Return a decision for each node, followed by the additional decisions of multiway nodes. Appends to ``tests``."""
    alone = forest.feature[nodes] == LEAF
    feature = np.maximum(forest.feature[nodes], 0).astype(np.int64)
    cut = np.where(alone, 0, forest.cut[nodes]).astype(np.int64)
    child = np.where(alone, nodes, forest.child[nodes])
    parent = forest.parent
    n_branches = np.bincount(parent[parent >= 0], minlength=forest.n_nodes)[nodes]
    middle = np.maximum(n_branches, 2) // 2
    distinct, test = np.unique(np.stack([feature, cut, middle]), axis=1, return_inverse=True)
    tests += [_split_test(forest, encoding, *(int(part) for part in one)) for one in distinct.T]
    right, left = child + np.where(alone, 0, middle), child.copy()
    more: list[tuple[int, int, int, int]] = []
    known: dict[tuple[int, int, int], int] = {}

    def target_of_range(node: int, first: int, last: int) -> int:
        """Return the index of the child or decision that leads to the branches ``first <= b < last`` of a node."""
        if last - first == 1:
            return int(child[node]) + first
        key = (int(feature[node]), int(cut[node]), (first + last) // 2)
        if key not in known:
            known[key] = len(tests)
            tests.append(_split_test(forest, encoding, *key))
        number = len(more)
        more.append((key[0], known[key], 0, 0))
        more[number] = (key[0], known[key], target_of_range(node, key[2], last), target_of_range(node, first, key[2]))
        return forest.n_nodes + number

    for node in np.flatnonzero(n_branches > 2).tolist():
        right[node] = target_of_range(node, int(middle[node]), int(n_branches[node]))
        left[node] = target_of_range(node, 0, int(middle[node]))
    further = np.array(more, np.int64).reshape(-1, 4).T
    return _DecisionTable(*(
        np.concatenate([own, added]) for own, added in zip((feature, test.ravel(), right, left), further, strict=True)
    ))  # fmt: skip


def _split_test(forest: Forest, encoding: Encoding, feature: int, cut: int, first_branch: int) -> _CodeTest:
    """Return the test whether a code goes to branch ``first_branch`` or a later one."""
    if cut >= 0:
        return _CodeTest(feature, cut)
    n_codes, ordered = encoding.columns[feature].n_codes, encoding.columns[feature].ordered
    goes = forest.lookup[-1 - cut : -1 - cut + n_codes] >= first_branch
    first = int(n_codes - goes.sum())
    if goes[first:].all():
        return _CodeTest(feature, first)
    if ordered:
        raise UseError("trees whose lookups are not monotonic in a number have no ONNX export.")
    return _CodeTest(feature, 0, np.flatnonzero(goes).astype(np.float64))


def _split_values(tests: list[_CodeTest], encoding: Encoding) -> Floats:
    """Return the split values of tests: codes of categories, and the smallest number of each numeric code."""
    feature, first = np.array([test.feature for test in tests]), np.array([test.first for test in tests])
    splits = first.astype(np.float64)
    for column, meaning in enumerate(encoding.columns):
        if meaning.ordered:
            here = feature == column
            missing = here & (first == meaning.missing_code)  # sets missing values apart from all numbers
            nothing = here & (first >= meaning.n_codes)  # no number is at least NaN
            splits[missing], splits[nothing] = np.inf, np.nan
            numbers = here & ~missing & ~nothing
            splits[numbers] = encoding.threshold(column, first[numbers])
    return splits


REFUSED_TEXT: Final = "?"
"""Label of a row with a value outside the schema, if classes are text."""
REFUSED_NUMBER: Final = -(2**63)
"""Label of a row with a value outside the schema, if classes are integers."""


class _GraphOutputs(NamedTuple):
    """Outputs of the graph: class probabilities and the scores that decide the label, or the scaled target."""

    probabilities: str
    label_scores: str
    is_random: bool = False  # labels are drawn from the probabilities


def export_onnx(estimator: BaseForest, path: str | PathLike[str], *, float64: bool = True) -> None:
    """Write a fitted model as an ONNX file.

    The graph has one input of shape (rows, 1) for each feature, under its name: numbers as double, categories as
    text, in which ``""`` stands for a missing value. A classifier gives ``label`` (rows) and ``probabilities``
    (rows, classes), a regressor ``value`` (rows); an underscore is appended if a feature has that name. In onnxruntime
    they equal the predictions of the estimator: bit for bit if leaves vote or are averaged, and up to the rounding of
    exponentials if a PrivateForest converts scores to probabilities.

    A graph cannot raise errors. If ``predict`` would (a category outside the schema, a missing value in a column that
    is not nullable), the row gets NaN for probabilities or value, and the label ``"?"``, or -2**63 if classes are
    integers. With ``voting="probabilistic"`` there is no label: draw it from the probabilities.

    Parameters
    ----------
    estimator : any fitted estimator except MatrixForestPredictor
        Labels are int64 if ``classes_`` are integers, and text as in the schema otherwise. A MatrixForestPredictor has
        no released model: each batch of predictions is a separate release.
    path : path
        Output file. Its metadata holds the certificate under ``certificate``.
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
        raise UseError(f"{name} has no ONNX export. Hint: pass a fitted estimator of Veilwood.")
    check_is_fitted(estimator, "schema_")
    model = getattr(estimator, "model_", None)
    if model is None:
        raise UseError(
            f"{name} has no ONNX export: it keeps the private data and answers each batch by a separate release, so "
            "there is no released model. Hint: fit a MatrixForestClassifier."
        )
    graph = Graph(estimator.schema_.feature_names)
    values, refused = add_column_inputs(graph, model.encoding, float64)
    outputs = _add_outputs(graph, model, values)
    if estimator._task == "classification":
        _add_class_outputs(graph, estimator, outputs, refused)
    else:
        _add_target_output(graph, model.encoding.schema.target.bounds, outputs.probabilities, refused)
    written = graph.to_model(estimator.privacy_.to_json(), str(estimator.privacy_))
    try:
        write_file(path, written.SerializeToString())
    except FileError as error:
        raise ModelFileError(str(error)) from None


def _add_outputs(graph: Graph, model: Any, values: str) -> _GraphOutputs:
    """Add the outputs of a model, step by step as in ``predict_outputs``."""
    if isinstance(model, PrivateForestModel):
        return _add_scores(graph, model, values)
    if not isinstance(model, LeafModel):
        raise UseError(f"{type(model).__name__} has no ONNX export.")
    total = _sum_over_trees(graph, model.forest, model.leaf_values, model.encoding, values)
    if isinstance(model, MatrixModel) and model.voting == GEOMETRIC:
        scores = graph.add_node("Div", total, graph.add_constant(np.float64(model.forest.n_trees)))
        return _GraphOutputs(_scores_to_probabilities(graph, scores, len(model.encoding.schema.classes)), total)
    if isinstance(model, MatrixModel):
        shares = _normalize_counts(graph, total, len(model.encoding.schema.classes))
        return _GraphOutputs(_smooth_probabilities(graph, shares, model), total)
    mean = graph.add_node("Div", total, graph.add_constant(np.float64(model.forest.n_trees)))
    if not model.encoding.schema.classes:
        return _GraphOutputs(mean, mean)
    return _GraphOutputs(_smooth_probabilities(graph, mean, model), mean, is_random=model.votes_by_chance)


def _smooth_probabilities(graph: Graph, probabilities: str, model: LeafModel) -> str:
    """Smooth class frequencies so that none is 0 (``leaves.smooth_probabilities``)."""
    if not model.smoothed:
        return probabilities
    n_trees, n_classes = np.float64(model.forest.n_trees), len(model.encoding.schema.classes)
    smoothed = graph.add_node("Mul", probabilities, graph.add_constant(n_trees))
    smoothed = graph.add_node("Add", smoothed, graph.add_constant(np.float64(1 / n_classes)))
    return graph.add_node("Div", smoothed, graph.add_constant(n_trees + 1))


def _sum_over_trees(graph: Graph, forest: Forest, leaf_values: Floats, encoding: Encoding, values: str) -> str:
    """Find the leaf of each row and tree by TreeEnsemble, and sum the values of these leaves."""
    leaves = graph.add_node("TreeEnsemble", values, domain="ai.onnx.ml", **tree_attributes(forest, encoding))
    numbers = graph.add_node("Cast", leaves, to=graph.onnx.TensorProto.INT64)
    tree_values = graph.add_node("Gather", graph.add_constant(leaf_values), numbers, axis=0)
    # CumSum adds one tree after the other, as ``sum_over_trees`` does, so that rounding is the same.
    sums = graph.add_node("CumSum", tree_values, graph.add_constant(np.int64(1)))
    return graph.add_node("Gather", sums, graph.add_constant(np.int64(forest.n_trees - 1)), axis=1)


def _normalize_counts(graph: Graph, votes: str, n_classes: int) -> str:
    """Divide votes by their sum, negative ones as 0; without votes, classes are equal (``normalize_counts``)."""
    positive = graph.add_node("Max", votes, graph.add_constant(np.float64(0)))
    total = _row_sums(graph, positive)
    some = graph.add_node("Greater", total, graph.add_constant(np.float64(0)))
    shares = graph.add_node("Div", positive, graph.add_node("Where", some, total, graph.add_constant(np.float64(1))))
    return graph.add_node("Where", some, shares, graph.add_constant(np.full((1, n_classes), 1 / n_classes)))


# -- PrivateForest -----------------------------------------------------------------------------------------------


def _add_scores(graph: Graph, model: PrivateForestModel, values: str) -> _GraphOutputs:
    sums = _sum_over_trees(graph, model.forest, model.leaf_values, model.encoding, values)
    scores = graph.add_node("Add", graph.add_constant(model.start[None]), sums)
    if not model.encoding.schema.classes:
        part = graph.add_node("Clip", scores, graph.add_constant(np.float64(0)), graph.add_constant(np.float64(1)))
        return _GraphOutputs(part, part)
    probabilities = _scores_to_probabilities(graph, scores, len(model.start))
    if model.cell_forest is not None:
        sums_of_cells = _sum_over_trees(
            graph, model.cell_forest.forest, model.cell_forest.values, model.encoding, values
        )
        cell_probabilities = graph.add_node("Div", sums_of_cells, _row_sums(graph, sums_of_cells))
        probabilities = graph.add_node(
            "Add",
            graph.add_node("Mul", graph.add_constant(np.float64(1 - model.cell_weight)), probabilities),
            graph.add_node("Mul", graph.add_constant(np.float64(model.cell_weight)), cell_probabilities),
        )
    return _GraphOutputs(probabilities, probabilities)


def _scores_to_probabilities(graph: Graph, scores: str, n_outputs: int) -> str:
    """Add class probabilities of scores, as ``row_backend.scores_to_probabilities`` computes them."""
    if n_outputs > 1:
        highest = graph.add_node("ReduceMax", scores, graph.add_constant(np.array([1])), keepdims=1)
        powers = graph.add_node("Exp", graph.add_node("Sub", scores, highest))
        return graph.add_node("Div", powers, _row_sums(graph, powers))
    one = graph.add_constant(np.float64(1))
    cut = graph.add_node("Clip", scores, graph.add_constant(np.float64(-50)), graph.add_constant(np.float64(50)))
    second = graph.add_node("Div", one, graph.add_node("Add", one, graph.add_node("Exp", graph.add_node("Neg", cut))))
    return graph.add_node("Concat", graph.add_node("Sub", one, second), second, axis=1)


def _row_sums(graph: Graph, numbers: str) -> str:
    return graph.add_node("ReduceSum", numbers, graph.add_constant(np.array([1])), keepdims=1)


# -- outputs -----------------------------------------------------------------------------------------------------


def _add_class_outputs(graph: Graph, estimator: BaseForest, outputs: _GraphOutputs, refused: str) -> None:
    nan = graph.add_constant(np.float64(np.nan))
    weights = resolve_weights(getattr(estimator, "class_weight", None), estimator.classes_, estimator.model_)
    if weights is not None:
        heavy = graph.add_node("Mul", outputs.probabilities, graph.add_constant(weights[None]))
        heavy = graph.add_node("Div", heavy, _row_sums(graph, heavy))
        outputs = _GraphOutputs(heavy, heavy)
    target = estimator.schema_.target
    classes = target.labels if target.label_type == "text" else target.values
    if not outputs.is_random:
        best = graph.add_node("ArgMax", outputs.label_scores, axis=1, keepdims=1)
        chosen = graph.add_node("Where", refused, graph.add_constant(np.int64(len(classes))), best)
        if integer_labels := estimator.classes_.dtype.kind in "iu":
            table = np.array([*estimator.classes_.tolist(), REFUSED_NUMBER], np.int64)
        else:
            table = np.array([*classes, REFUSED_TEXT], dtype=object)
        label = graph.add_node(
            "Gather", graph.add_constant(table), graph.add_node("Squeeze", chosen, graph.add_constant(np.array([1])))
        )
        graph.add_output(label, "label", "INT64" if integer_labels else "STRING", ["rows"])
    graph.add_output(
        graph.add_node("Where", refused, nan, outputs.probabilities), "probabilities", "DOUBLE", ["rows", len(classes)]
    )


def _add_target_output(graph: Graph, bounds: tuple[float, float], scaled_target: str, refused: str) -> None:
    lower, upper = bounds
    share = graph.add_node("Gather", scaled_target, graph.add_constant(np.array([0])), axis=1)
    # The operations of Encoding.decode_target, in its order, so that rounding is the same.
    levels = graph.add_node("Mul", share, graph.add_constant(np.float64(TARGET_LEVELS)))
    above = graph.add_node("Mul", levels, graph.add_constant(np.float64((upper - lower) / TARGET_LEVELS)))
    value = graph.add_node("Add", above, graph.add_constant(np.float64(lower)))
    value = graph.add_node("Where", refused, graph.add_constant(np.float64(np.nan)), value)
    graph.add_output(graph.add_node("Squeeze", value, graph.add_constant(np.array([1]))), "value", "DOUBLE", ["rows"])
