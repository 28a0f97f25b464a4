# SPDX-License-Identifier: Apache-2.0
"""Simulations agree with what they stand for: forests of the library, and the laws of choices."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.papers.exhibit import Cell, Value
from veilwood.papers.mpc.data import (
    BASELINE,
    NO_NOISE,
    OURS,
    PUBLISHED,
    Choices,
    Data,
    choices_of,
    scores,
)  # fmt: skip
from veilwood.papers.plain_id3 import USED, first_largest
from veilwood.papers.rdt.all_sizes import Reading, best, readings, split
from veilwood.papers.rdt.size_figures import derive, place_of
from veilwood.papers.rdt.sizes import ERROR, PRINTED
from veilwood.papers.tables import Table


@pytest.fixture(scope="module")
def two_classes() -> Table:
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (600, 3))
    schema = vw.Schema.numeric((0, 1), classes=("0", "1"), n_features=3)
    y = np.where(X[:, 0] + 0.3 * X[:, 1] > 0.7, "1", "0")
    import pandas as pd

    frame = pd.DataFrame(X, columns=list(schema.feature_names))
    return Table(schema.to_dict(), frame, pd.Series(y, name=schema.target.name, dtype=object))


@pytest.mark.filterwarnings("ignore")
def test_one_forest_read_at_every_size_is_the_forest_of_that_size(two_classes: Table) -> None:
    """A tree cut off at height h, and the first k trees, err exactly as the library's forest of that size."""
    encoding = Encoding(two_classes.schema, "grid")
    parts = split(encoding, two_classes, 3)
    found = readings(parts, encoding, (1, 3, 6), (1, 5), [("none", 0.0)], "path", 3)["none", 0.0]
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


def test_noise_of_the_proof_hurts_more_than_noise_as_printed(two_classes: Table) -> None:
    encoding = Encoding(two_classes.schema, "grid")
    parts = split(encoding, two_classes, 1)
    kinds = [("none", 0.0), ("printed", 0.1), ("proven", 0.1)]
    found = readings(parts, encoding, (6,), (11,), kinds, "range", 1)  # type: ignore[arg-type]
    none, printed, proven = (found[kind][0].test[1] for kind in kinds)  # type: ignore[index]
    assert printed < 25 < proven
    assert none < 15


def test_the_best_size_is_chosen_by_validation_and_small_among_equals() -> None:
    sizes = [Reading(3, 5, (0.2,), (0.9,)), Reading(2, 5, (0.2,), (0.5,)), Reading(2, 1, (0.3,), (0.0,))]
    assert best(sizes, 0) == sizes[1]


def test_panels_are_arranged_by_height_and_by_count() -> None:
    cells = {Cell("T", PRINTED["RFMV"], f"k={k} h={h}", ERROR): Value(float(k * h)) for k in (3, 21) for h in (5, 11)}
    arranged = derive(cells)
    assert place_of(next(iter(cells))) == (3, 5)
    assert {cell.panel[:3] for cell in arranged} == {"T a", "T b", "T c", "T d"}
    assert arranged[Cell("T a) against h, k = 21", PRINTED["RFMV"], "11", ERROR)].mean == 231


@pytest.mark.parametrize(("name", "half"), [("exponential", 0.5), ("noisy_max", None), ("laplace", None)])
def test_choices_have_their_law(name: str, half: float | None) -> None:
    """A score that leads by one wins with the probability that the mechanism states; used features never win."""
    draws, epsilon = 200_000, Fraction(1)
    scores_of_nodes = np.tile(np.array([[2, 3, USED]]), (draws, 1))
    picked = getattr(Choices(7), name)(epsilon)(scores_of_nodes)
    assert set(np.unique(picked)) == {0, 1}
    e = math.exp(-1)
    expected = {
        "exponential": 1 / (1 + math.exp(-0.5)),
        # Geometric noise on both, the first of equals: a lead of one is lost when the noise differs by one or more.
        "noisy_max": 1 - e * 1 / (1 + e),
        "laplace": 1 - e / 2 * (1 + 0.5),
    }[name]
    deviation = math.sqrt(expected * (1 - expected) / draws)
    assert abs(picked.mean() - expected) < 5.5 * deviation


def test_variants_of_trees_differ_where_they_should() -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 3, (900, 4))
    data = Data(codes, (codes[:, 2] == 1).astype(np.int64), (3, 3, 3, 3))
    assert scores(data, NO_NOISE, 1.0, 2, 0) == (1.0, 1.0)
    assert scores(data, PUBLISHED, 0.5, 2, 0)[0] > 0.95
    assert scores(data, OURS, 5.0, 2, 0)[0] > 0.95
    assert scores(data, BASELINE, 0.001, 2, 0)[0] < 0.9, "an epsilon of nearly nothing leaves nothing"
    assert choices_of(PUBLISHED, 1.0, 2, "laplace", 0)[0] is first_largest, "its splits have no noise: NOT PRIVATE"
    again = scores(data, OURS, 0.1, 2, 5)
    assert again == scores(data, OURS, 0.1, 2, 5), "public seeds give the same figures"
