# SPDX-License-Identifier: Apache-2.0
"""Trees as ONNX nodes."""

from __future__ import annotations

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.models.onnx import tree_attributes
from veilwood.trees.forest import build_forest

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def test_intervals_that_are_sent_here_and_there_are_refused() -> None:
    encoding = Encoding(vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=1), "bins")
    odd = build_forest([3], [0, -1, -1], [-1, 0, 0], [2, 0, 0], [np.array([0, 1, 0, 1, 0], np.uint16)])
    with pytest.raises(vw.VeilwoodError, match="not monotonic"):
        tree_attributes(odd, encoding)


def test_a_node_of_many_branches_becomes_as_few_decisions_as_can_be() -> None:
    columns = [{"name": "v", "kind": "categorical", "values": [f"v{i}" for i in range(9)]}]
    goal = {"name": "y", "kind": "categorical", "values": ["a", "b"]}
    schema = vw.Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [*columns, goal]})
    nine = build_forest([10], [0, *[-1] * 9], [-1, *[0] * 9], [9, *[0] * 9], [np.arange(9, dtype=np.uint16)])
    told = tree_attributes(nine, Encoding(schema))
    assert len(told["nodes_splits"]) == 8
    assert "membership_values" not in told
    assert sorted(told["nodes_splits"].tolist()) == list(range(1, 9))
