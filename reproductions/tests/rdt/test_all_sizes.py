# SPDX-License-Identifier: Apache-2.0
"""One forest, read at every size."""

from __future__ import annotations

import math

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood_papers.rdt.all_sizes import Reading, best_size, read_sizes, split_rows
from veilwood_papers.tables import PublicTable


@pytest.fixture(scope="module")
def two_classes() -> PublicTable:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (600, 3))
    schema = vw.Schema.numeric((0, 1), classes=("0", "1"), n_features=3)
    y = np.where(X[:, 0] + 0.3 * X[:, 1] > 0.7, "1", "0")
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(schema.feature_names))
    return PublicTable(schema.to_dict(), frame, pd.Series(y, name=schema.target.name, dtype=object))


@pytest.mark.filterwarnings("ignore")
def test_one_forest_read_at_every_size_is_the_forest_of_that_size(two_classes: PublicTable) -> None:
    """A tree cut off at height h, and the first k trees, err exactly as the library's forest of that size."""
    encoding = Encoding(two_classes.schema, "grid")
    parts = split_rows(encoding, two_classes, 3)
    found = read_sizes(parts, encoding, (1, 3, 6), (1, 5), [("none", 0.0)], "path", 3)["none", 0.0]
    assert len(found) == 6
    X, y = two_classes.X, two_classes.y
    for reading in found:
        for rule, voting in enumerate(("majority", "threshold")):
            forest = vw.RandomTreesClassifier(
                two_classes.schema, epsilon=math.inf, n_estimators=reading.k, max_depth=reading.h, voting=voting,
                random_state=3,
            ).fit(X.iloc[parts.train], y.iloc[parts.train])  # fmt: skip
            wrong = forest.predict(X.iloc[parts.test]) != y.iloc[parts.test].to_numpy()
            assert reading.test[rule] == pytest.approx(100 * float(wrong.mean()))


def test_noise_of_the_proof_hurts_more_than_noise_as_printed(two_classes: PublicTable) -> None:
    encoding = Encoding(two_classes.schema, "grid")
    parts = split_rows(encoding, two_classes, 1)
    kinds = [("none", 0.0), ("printed", 0.1), ("proven", 0.1)]
    found = read_sizes(parts, encoding, (6,), (11,), kinds, "range", 1)  # type: ignore[arg-type]
    none, printed, proven = (found[kind][0].test[1] for kind in kinds)  # type: ignore[index]
    assert printed < 25 < proven
    assert none < 15


def test_the_best_size_is_chosen_by_validation_and_small_among_equals() -> None:
    sizes = [Reading(3, 5, (0.2,), (0.9,)), Reading(2, 5, (0.2,), (0.5,)), Reading(2, 1, (0.3,), (0.0,))]
    assert best_size(sizes, 0) == sizes[1]
