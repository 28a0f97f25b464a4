# SPDX-License-Identifier: Apache-2.0
"""Whole fits attacked by likelihood ratio: of all noisy numbers that came out, row by row, by replaying the fit.

Each attack must also refute the same fit with half of its noise, sold under the same claim: shared trees, replaced
rows, regression, batch predictions, median forests, tables that get their noise together, and fine cells at the budgets
where they are used.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.schema import Schema
from veilwood.forests.adaptive import loop, table_design
from veilwood.forests.adaptive.table_design import TableDesign
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace
from veilwood_audit.attacks import ReplayResult, canary_schema, guess_rows, record_releases
from veilwood_audit.statistics import epsilon_lower_bound

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

SMALL_SHARE = {"split_budget": 0.05, "candidates": 1}  # of the budget for splits, of which this attack makes no use


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wire the mutant into the library: half the scale, whatever was planned."""
    laplace, gaussian, sparse = DiscreteLaplace.sample, DiscreteGaussian.sample, SparseLaplace.perturb
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, n: laplace(DiscreteLaplace(self.scale / 2), n))
    monkeypatch.setattr(
        DiscreteGaussian, "sample", lambda self, n: gaussian(DiscreteGaussian(self.sigma_squared / 4), n)
    )
    monkeypatch.setattr(SparseLaplace, "perturb", lambda self, *cells: sparse(SparseLaplace(self.scale / 2), *cells))
    joint = JointLaplace.sample
    monkeypatch.setattr(JointLaplace, "sample", lambda self, n: joint(JointLaplace(self.scale / 2, self.sizes), n))


def attack_fit(name: str, canaries: int, adjacency: Any = "add-remove", **params: Any) -> ReplayResult:
    """Attack a forest on dice: rows that are nearly all alone in their leaves."""
    kind = getattr(vw, name)
    regression = name.endswith("Regressor")
    schema = canary_schema("regression" if regression else "classification", 20, 2)
    n_rows = 2 * canaries if adjacency == "replace-one" else canaries
    bits = np.random.default_rng(0).permutation(2**20)[:n_rows, None] >> np.arange(20) & 1
    table = pd.DataFrame(bits.astype(str).astype(object), columns=list(schema.feature_names))
    target = np.full(n_rows, 1.0 if regression else "yes", dtype=object)

    def fit(rows: Any) -> None:
        forest = kind(schema, epsilon=1.0, adjacency=adjacency, random_state=0, n_jobs=1, **params)
        forest.fit(table.iloc[rows], target[rows])

    return guess_rows(fit, canaries, adjacency)


def attack_predictor(adjacency: Any = "add-remove", **params: Any) -> ReplayResult:
    """Attack the answers to a batch of all cells of two dice."""
    schema = canary_schema("classification", 2, 64)
    table = pd.DataFrame({"die0": np.repeat(np.arange(64), 64), "die1": np.tile(np.arange(64), 64)}).astype(str)

    def fit(rows: Any) -> None:
        predictor = vw.MatrixForestPredictor(
            schema, epsilon=1.0, adjacency=adjacency, n_estimators=1, max_depth=2, random_state=0, n_jobs=1, **params
        )
        predictor.fit(table.iloc[rows], np.full(len(rows), "yes", dtype=object)).answer(table)

    return guess_rows(fit, 2048 if adjacency == "replace-one" else 4096, adjacency)


FITS: dict[str, Callable[[], ReplayResult]] = {
    "shared trees": lambda: attack_fit("RandomTreesClassifier", 4500, n_estimators=3, max_depth=15),
    "a replaced row": lambda: attack_fit("RandomTreesClassifier", 3000, "replace-one", n_estimators=1, max_depth=14),
    "regression": lambda: attack_fit("RandomTreesRegressor", 1500, n_estimators=1, max_depth=14),
    "regression, a replaced row": lambda: attack_fit(
        "RandomTreesRegressor", 2500, "replace-one", n_estimators=1, max_depth=14
    ),
    "predictor": lambda: attack_predictor(),
    "medians": lambda: attack_fit("MedianForestClassifier", 1500, n_estimators=1, max_depth=12, **SMALL_SHARE),
    "medians, regression": lambda: attack_fit(
        "MedianForestRegressor", 1500, n_estimators=1, max_depth=12, **SMALL_SHARE
    ),
}
LARGE_FITS: dict[str, Callable[[], ReplayResult]] = {
    "eight shared trees": lambda: attack_fit("RandomTreesClassifier", 28000, n_estimators=8, max_depth=17),
    "three shared trees, a replaced row": lambda: attack_fit(
        "RandomTreesClassifier", 12000, "replace-one", n_estimators=3, max_depth=17
    ),
    "two shared trees, regression, a replaced row": lambda: attack_fit(
        "RandomTreesRegressor", 12000, "replace-one", n_estimators=2, max_depth=17
    ),
    "predictor, a replaced row": lambda: attack_predictor("replace-one"),
    "medians, a replaced row": lambda: attack_fit(
        "MedianForestClassifier", 6000, "replace-one", n_estimators=1, max_depth=14, **SMALL_SHARE
    ),
    "three shared trees of medians": lambda: attack_fit(
        "MedianForestClassifier", 6000, n_estimators=3, max_depth=15, trees="shared", **SMALL_SHARE
    ),
}


def holds_and_sees(attack: Callable[[], ReplayResult], monkeypatch: pytest.MonkeyPatch) -> None:
    with entropy.seeded_for_tests(31):
        assert 0.1 < attack().epsilon_lower_bound <= 1
    halve_noise(monkeypatch)
    with entropy.seeded_for_tests(31):
        assert attack().epsilon_lower_bound > 1.03


@pytest.mark.parametrize("name", FITS)
def test_a_fit_keeps_its_epsilon_and_half_the_noise_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holds_and_sees(FITS[name], monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE_FITS)
def test_a_large_fit_keeps_its_epsilon_and_half_the_noise_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    holds_and_sees(LARGE_FITS[name], monkeypatch)


def test_random_answers_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The attack is honest: without the rows in what comes out it finds nothing."""
    sound = DiscreteLaplace.perturb
    monkeypatch.setattr(DiscreteLaplace, "perturb", lambda self, exact: sound(self, np.zeros_like(exact)))
    with entropy.seeded_for_tests(32):
        assert FITS["a replaced row"]().epsilon_lower_bound < 0.1


# -- tables together ----------------------------------------------------------------------------------------


def attack_tables(adjacency: Any = "add-remove") -> ReplayResult:
    """Attack tables of four coins: two rows in each class, with cells of their own in every table."""
    n_rows, n_coins = 2000, 4
    kinds = {f"coin{i}": ["0", "1"] for i in range(n_coins)} | {"target": list(map(str, range(n_rows // 2)))}
    columns = [{"name": name, "kind": "categorical", "values": values} for name, values in kinds.items()]
    schema = Schema.from_dict({"name": "coins", "task": "classification", "target": "target", "columns": columns})
    every = np.arange(n_rows)
    sides = (every[:, None] + np.arange(n_coins)) % 2
    table = pd.DataFrame(sides.astype(str).astype(object), columns=list(schema.feature_names))
    labels = (every // 2).astype(str).astype(object)

    def fit(rows: Any) -> None:
        forest = vw.PrivateForestClassifier(
            schema, epsilon=1.0, adjacency=adjacency, n_rows=100, random_state=0, n_jobs=1
        )
        forest.fit(table.iloc[rows], labels[rows])

    return guess_rows(fit, n_rows // 2 if adjacency == "replace-one" else n_rows, adjacency)


def all_columns_in_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every column counted, and nothing else but all rows."""
    monkeypatch.setattr(table_design, "design_tables", lambda columns, *_: (TableDesign(1.0, len(columns), 2), 1.0))


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_tables_together_keep_their_epsilon_and_half_the_noise_is_caught(
    adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_columns_in_tables(monkeypatch)
    with record_releases() as heard:
        holds_and_sees(lambda: attack_tables(adjacency), monkeypatch)
    joint = [step for step, _, _ in heard if isinstance(step.mechanism, JointLaplace)]
    assert joint
    assert all(step.loss.epsilon is not None and step.loss.epsilon > 0.9 for step in joint)  # nearly all of the budget


def test_random_tables_together_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    all_columns_in_tables(monkeypatch)
    sound = JointLaplace.perturb
    monkeypatch.setattr(JointLaplace, "perturb", lambda self, exact: sound(self, np.zeros_like(exact)))
    with entropy.seeded_for_tests(32):
        assert attack_tables().epsilon_lower_bound < 0.1


# -- fine cells ---------------------------------------------------------------------------------------------


class _Enough(Exception):
    """Everything has come out."""


def cells_attack(epsilon: float, monkeypatch: pytest.MonkeyPatch) -> tuple[float, ReplayResult]:
    """How often does the cell of a single row come out, and how often one of the many that are empty?

    Empty cells are all alike: each of them is a row that was left out, so one fit is as many runs as it has cells.
    Returned are the epsilon of the step and what is shown of it; each cell that comes out is a guess.
    """
    schema = vw.Schema.numeric((0, 1), classes=["a", "b"], names=[f"c{i}" for i in range(6)])
    rng = np.random.default_rng(33)
    rows, target = rng.random((3000, 6)), np.where(rng.random(3000) < 0.5, "a", "b")

    def stop(door: Door) -> None:
        raise _Enough  # the forest that is grown from cells takes its time, and sees nothing but what came out

    forest = vw.PrivateForestClassifier(schema, epsilon=epsilon, n_rows=10**6, random_state=0, n_jobs=1)
    with monkeypatch.context() as patch, record_releases() as heard, suppress(_Enough):
        patch.setattr(Door, "certificate", stop)
        patch.setattr(loop, "DECLARED_FACTOR", 1e9)  # what is declared is believed, so that fine cells are tried
        forest.fit(rows, target)
    (step, out, given), *_ = (passed for passed in heard if isinstance(passed[0].mechanism, SparseLaplace))
    assert step.loss.epsilon is not None
    cells, counts, n_cells = given
    single, by_chance = cells[counts == 1], np.setdiff1d(out[0], cells)
    hits, empty = int(np.isin(single, out[0]).sum()), int(n_cells) - len(cells)
    visible = epsilon_lower_bound(hits, len(single), len(by_chance), empty)
    return float(step.loss.epsilon), ReplayResult(len(single) + empty, hits + len(by_chance), hits, visible)


@pytest.mark.parametrize("epsilon", [6.0, 20.0])
def test_fine_cells_keep_their_epsilon_and_half_the_noise_is_caught(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    with entropy.seeded_for_tests(34):
        planned, found = cells_attack(epsilon, monkeypatch)
    assert 0.8 * planned < found.epsilon_lower_bound <= planned <= epsilon
    halve_noise(monkeypatch)
    with entropy.seeded_for_tests(34):
        assert cells_attack(epsilon, monkeypatch)[1].epsilon_lower_bound > 1.1 * planned
