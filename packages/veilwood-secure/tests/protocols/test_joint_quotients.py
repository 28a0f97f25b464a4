# SPDX-License-Identifier: Apache-2.0
"""Forests whose choices compare quotients of counts, fitted by several owners, and owners that send no counts."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.errors import PartyError
from veilwood.forests.greedy import _n_log_n
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import PermuteAndFlip
from veilwood.trees.histograms import impurity_range, total_impurity
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.protocols import joint_forest as joint
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.joint_forest import RING
from veilwood_secure.protocols.records import MAX_COUNT
from veilwood_secure.protocols.secret_array import SecretArray
from veilwood_testing.errors import rejects
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.parties import CAR, OWNERS, Threads, Whisper

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

NUMBERS = vw.Schema.from_dict({
    "name": "numbers", "task": "regression", "target": "y",
    "columns": [{"name": name, "kind": "numeric", "lower": 0, "upper": 1} for name in ("a", "b", "y")],
})  # fmt: skip
FEW: dict[str, Any] = {"epsilon": 4, "random_state": 0, "trees": "shared", "n_estimators": 1, "max_depth": 2}
FITS: dict[str, Any] = {
    "gini": vw.GreedyForestClassifier(CAR.schema, **FEW, quality="gini"),
    "entropy": vw.GreedyForestClassifier(CAR.schema, **FEW, quality="entropy"),
    "gini in two": vw.GreedyForestClassifier(CAR.schema, **FEW, quality="gini", branching="binary"),
    "squared error": vw.GreedyForestRegressor(NUMBERS, **FEW),
    "select-then-median": vw.MedianForestClassifier(CAR.schema, **FEW),
    "k-medians": vw.MedianForestClassifier(CAR.schema, **FEW, variant="k-medians"),
    "select-then-median of numbers": vw.MedianForestRegressor(NUMBERS, **FEW),
    "k-medians of numbers": vw.MedianForestRegressor(NUMBERS, **FEW, variant="k-medians"),
}
QUICK = ("gini", "entropy", "squared error", "k-medians")


def numbers() -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(5)
    X = pd.DataFrame(rng.random((300, 2)), columns=["a", "b"])
    y = (X["a"] > 0.4) * 0.5 + X["b"] * 0.3 + rng.random(300) * 0.1
    return [(X[:100], y[:100]), (X[100:], y[100:])]


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FITS]
)
def test_owners_together_choose_what_one_table_chooses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the noise taken out, the model is that of the pooled rows, bit for bit."""
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, shape: np.zeros(shape, np.int64))
    monkeypatch.setattr(
        PermuteAndFlip,
        "_select_columns",
        lambda self, gaps, admissible: np.where(admissible, -gaps, -(2**62)).argmax(axis=1),
    )
    for law in ("discrete_laplace", "geometric"):
        monkeypatch.setattr(noise, law, lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))
    forest = FITS[name]
    tables = numbers() if forest.schema is NUMBERS else OWNERS
    together = {key: array.copy() for key, array in forest.fit(Threads(tables)).model_.to_arrays().items()}
    alone = forest.fit(pd.concat([x for x, _ in tables]), np.concatenate([np.asarray(y) for _, y in tables]))
    for key, array in alone.model_.to_arrays().items():
        assert np.array_equal(array, together[key]), key


@pytest.mark.parametrize("name", ["gini", "squared error"])
def test_a_joint_model_with_its_noise_is_charged_as_planned(name: str) -> None:
    forest = FITS[name]
    X, y = (tables := numbers() if forest.schema is NUMBERS else OWNERS)[0]
    fitted = forest.fit(Threads(tables))
    assert (fitted.privacy_.epsilon, fitted.privacy_.delta) == (4, float(joint.ADAPTIVE_DELTA))
    assert fitted.predict(X).shape == np.shape(y)


def test_entropies_bend_where_their_table_does() -> None:
    engine = PlainEngine(RING)
    rows = np.concatenate([np.arange(3000), np.arange(65_000, 66_000), [1 << 26]])
    found = _n_log_n(SecretArray(engine, engine.constant(rows)))
    assert np.array_equal(engine.open(found.shared), _n_log_n(rows))


def sums_of(honest: Any, wrong: Any, forest: Any) -> Any:
    """Open the histograms of two owners together, the second of which may send anything."""
    voices = [[Whisper.pair() for _ in range(3)] for _ in range(2)]
    for sums, voice in zip((honest, wrong), voices, strict=True):
        joint.ServerChannels([own for own, _ in voice]).send_share(np.array(sums))

    def served(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=RING)
        heard = {str(i): voice[links.party][1] for i, voice in enumerate(voices)}
        return engine.open(joint.OnlineOwners(engine, heard, forest).collect_sums(np.shape(honest)))

    return run_in_threads(served)[0].tolist()


MOST = MAX_COUNT // 2
TOP = TARGET_LEVELS


def test_histograms_that_no_rows_have_are_refused() -> None:
    """With counts of 5 - 4 and 7 - 7, or a mean beyond the target's range, one row would move spreads by far more."""
    counts, moments = [[[5, 7], [1, 0]]], [[[2, 10, 58], [1, TOP, TOP**2]]]
    assert sums_of(counts, [[[0, MOST - 2], [1, 1]]], FITS["gini"]) == [[[5, MOST + 5], [2, 1]]]
    for cells in ([[-4, -7], [0, 0]], [[0, 0], [0, -1]], [[MOST, 1], [0, 0]], [[0, 0], [0, 1 << 63]]):
        with rejects(PartyError, party=None, raised_in="OnlineOwners.collect_sums"):
            sums_of(counts, np.array([cells], np.uint64 if cells[1][1] > MOST else np.int64), FITS["gini"])
    most = [MOST - 1, (MOST - 1) * TOP, (MOST - 1) * TOP**2]
    assert sums_of(moments, [[most, [1, 0, 0]]], FITS["squared error"])[0][1] == [2, TOP, TOP**2]
    for cell in ([1, TOP + 1, 0], [0, 0, 1], [1, 3, 3 * TOP + 1], [1, -1, 0], [1, 1, -1], [0, 1, 1], [MOST + 1, 0, 0]):
        with rejects(PartyError, party=None, raised_in="OnlineOwners.collect_sums"):
            sums_of(moments, [[cell, [0, 0, 0]]], FITS["squared error"])
    none = np.zeros((0, 2, 2), np.int64)  # a level whose nodes are all leaves
    assert sums_of(none, none, FITS["gini"]) == []


def test_whatever_passes_keeps_the_range_of_spreads() -> None:
    """Squares that no rows have pass, and change nothing: a row moves the spread of a cell within the planned range."""
    for n, total in product(range(4), (0, 1, TOP // 2, TOP)):
        cell = np.array([n, min(total * n, TOP * n), 7])
        for y in (0, 1, TOP // 3, TOP):
            more = total_impurity(cell + np.array([1, y, y * y]), moments=True) - total_impurity(cell, moments=True)
            assert 0 <= more <= impurity_range(moments=True)
