# SPDX-License-Identifier: Apache-2.0
"""One measurement of speed, in a process of its own."""

from __future__ import annotations

import pytest

from veilwood_papers.suite import speed_worker


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
@pytest.mark.parametrize(("name", "n_classes"), [("PrivateForest", 3), ("HistGradientBoosting", 0)])
def test_a_worker_measures(name: str, n_classes: int) -> None:
    case = {"estimator": name, "rows": 3000, "columns": 4, "classes": n_classes, "epsilon": 1.0}
    figures = speed_worker.measure_case(case)
    assert figures["fit"] > 0
    assert figures["predict"] > 0
    assert figures["score"] > (0.4 if n_classes else 0.3)
