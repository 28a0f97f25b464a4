# SPDX-License-Identifier: Apache-2.0
"""An ONNX graph under construction, and how it reads the columns of a table. What it predicts is in ``onnx``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from veilwood._version import __version__
from veilwood.data.encoding import Encoding
from veilwood.errors import SetupError, UseError

if TYPE_CHECKING:
    from veilwood.data.columns import Column

__all__ = ["Graph", "read_columns"]

# TreeEnsemble came with ai.onnx.ml 5, in the release of ONNX that has these numbers.
_OPSET, _ML_OPSET, _IR_VERSION = 21, 5, 10


class Graph:
    """A graph under construction: names that are not taken, constants, and nodes in order."""

    def __init__(self, taken: Sequence[str]) -> None:
        try:
            import onnx
        except ImportError:
            raise SetupError("ONNX export needs the package onnx. Hint: pip install 'veilwood[onnx]'") from None
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


def read_columns(graph: Graph, encoding: Encoding, float64: bool) -> tuple[str, str]:
    """Return the features as one double matrix, categories as codes, and which rows are refused (rows, 1)."""
    columns, refused = [], []
    for column in encoding.schema.features:
        if column.part is not None or column.prefix is not None or column.of is not None:
            raise UseError(
                f"column {column.name!r} is a part of a text, which an ONNX graph cannot cut. Hint: cut it before, and "
                "declare what is left."
            )
        numeric = column.kind == "numeric"
        value, bad = _read_numbers(graph, column, float64) if numeric else _read_categories(graph, column)
        columns.append(value)
        refused += [bad] if bad else []
    either = refused[0] if refused else graph.add("IsNaN", columns[0])  # no column refuses: nothing is NaN by now
    for bad in refused[1:]:
        either = graph.add("Or", either, bad)
    return graph.add("Concat", *columns, axis=1), either


def _read_numbers(graph: Graph, column: Column, float64: bool) -> tuple[str, str | None]:
    """Clamp to the upper bound; a missing value, whose code is above all others, becomes infinite."""
    given = graph.input(column.name, "DOUBLE" if float64 else "FLOAT")
    number = given if float64 else graph.add("Cast", given, to=graph.onnx.TensorProto.DOUBLE)
    missing = graph.add("IsNaN", number)
    clamped = graph.add("Min", number, graph.constant(np.float64(column.bounds[1])))
    value = graph.add("Where", missing, graph.constant(np.float64(np.inf)), clamped)
    return value, None if column.nullable else missing


def _read_categories(graph: Graph, column: Column) -> tuple[str, str | None]:
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
