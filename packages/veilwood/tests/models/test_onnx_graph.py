# SPDX-License-Identifier: Apache-2.0
"""Graphs under construction: names of their own, constants and nodes in order."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnx")

from veilwood.models.onnx import Graph

onnxruntime = pytest.importorskip("onnxruntime")


def test_names_that_are_taken_get_underscores() -> None:
    graph = Graph(["Add", "age"])
    assert (graph.unused_name("age"), graph.unused_name("age"), graph.unused_name("ward")) == ("age_", "age__", "ward")


def test_a_graph_computes_and_carries_its_certificate() -> None:
    graph = Graph(["age", "constant"])
    doubled = graph.add_node("Mul", graph.add_input("age", "DOUBLE"), graph.add_constant(np.array([[2.0]])))
    graph.add_output(graph.add_node("Cast", doubled, to=graph.onnx.TensorProto.INT64), "result", "INT64", ["rows", 1])
    model = graph.to_model("{}", "epsilon 1")
    graph.onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"age": np.array([[1.5], [3.0]])})
    np.testing.assert_array_equal(found, [[3], [6]])
    assert (model.doc_string, session.get_modelmeta().custom_metadata_map) == ("epsilon 1", {"certificate": "{}"})
