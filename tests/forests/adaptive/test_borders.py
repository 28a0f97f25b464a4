# SPDX-License-Identifier: Apache-2.0
"""Histograms of several columns with noise together: taken where they pay, and groups then follow the rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.audit.model_file import check_model
from veilwood.data.encoding import Encoding
from veilwood.forests.adaptive import borders as borders_module
from veilwood.forests.adaptive.borders import Borders
from veilwood.forests.cells import questions as asked
from veilwood.forests.cells.columns import columns_of
from veilwood.privacy.entropy import seeded_for_tests

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]


def wide_table(n_rows: int, n_columns: int) -> tuple[vw.Schema, pd.DataFrame, pd.Series]:
    """Lognormal columns in bounds far too wide, the first with nulls; the class is whether all together are large."""
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.lognormal(size=(n_rows, n_columns)), columns=[f"x{i}" for i in range(n_columns)])
    y = pd.Series(np.where(np.log(X).sum(axis=1) > 0, "large", "small"), name="y")
    X.loc[::11, "x0"] = np.nan
    numbers = [{"name": name, "kind": "numeric", "lower": 0, "upper": 1000, "nullable": True} for name in X.columns]
    target = {"name": "y", "kind": "categorical", "values": ["large", "small"]}
    facts = {"name": "wide", "task": "classification", "target": "y", "columns": [*numbers, target]}
    return vw.Schema.from_dict(facts), X, y


def fitted(n_rows: int, n_columns: int, **params: Any) -> vw.PrivateForestClassifier:
    schema, X, y = wide_table(n_rows, n_columns)
    with seeded_for_tests(3):
        return vw.PrivateForestClassifier(schema, n_rows=n_rows, random_state=0, **params).fit(X, y)


def together(forest: Any) -> list[str]:
    return [step.name for step in forest.plan_.steps if step.name.endswith("rows by group")]


def test_they_are_taken_where_they_pay_and_the_plan_is_checked_again() -> None:
    forest = fitted(2000, 6, epsilon=0.5)
    assert together(forest) == ["histograms 1 to 6: rows by group"]
    holds = {check.question: check.holds for check in check_model(forest)}
    assert [question for question, held in holds.items() if not held] == ["Is it private?"]  # seeded for this test
    assert not together(fitted(2000, 6, epsilon=0.05))  # too poor
    assert not together(fitted(2000, 1, epsilon=0.5))  # nothing to be together with
    assert not together(fitted(20_000, 6, epsilon=0.5, delta=1e-6))  # by rho each has its own


def test_groups_follow_the_rows_and_bounds_far_too_wide_do_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    _, X, y = wide_table(3000, 10)
    right = [(fitted(3000, 10, epsilon=0.5).predict(X) == y).mean()]
    monkeypatch.setattr(borders_module, "TOGETHER_NEEDS", np.inf)
    right.append((fitted(3000, 10, epsilon=0.5).predict(X) == y).mean())
    assert right[0] > 0.75 > right[1] + 0.1


def test_rows_are_spread_by_counts_of_groups_and_inside_of_them_as_before() -> None:
    schema, _, _ = wide_table(10, 1)
    (column,) = columns_of(Encoding(schema, "grid"))
    axis = column.of_scales(4)
    inside = axis.groups[: column.n_inside]
    counts = np.zeros(axis.size)
    counts[0], counts[1] = 900.0, 100.0
    borders = Borders(rows=None, n_columns=1)  # type: ignore[arg-type]
    assert not borders.known(column)
    borders._spread(column, axis, counts, 1e-9, 1000.0)
    held = np.bincount(inside, borders._mass[0])
    assert held[:2].round() == pytest.approx([900, 100])
    assert held[2:].sum() < 1
    first = inside == 0
    assert borders._mass[0][first] / held[0] == pytest.approx(column.prior[first] / column.prior[first].sum())
    assert borders.known(column)


def test_classes_added_up_are_the_rows_in_groups() -> None:
    """What is asked for, in one question wherever rows are, is what the step promises: each row once in each table."""
    schema, X, y = wide_table(500, 3)
    seen: list[Any] = []
    real = asked.ClassesByCell.__call__

    def kept(self: asked.ClassesByCell, rows: Any) -> Any:
        seen.append((self.tables, real(self, rows)))
        return seen[-1][1]

    with pytest.MonkeyPatch.context() as patch, seeded_for_tests(1):
        patch.setattr(asked.ClassesByCell, "__call__", kept)
        vw.PrivateForestClassifier(schema, epsilon=2, n_rows=500).fit(X, y)
    (tables, counts), *_ = seen
    assert len(tables) == 3
    parts = np.split(counts.sum(axis=1), np.cumsum([table.n_cells for table in tables])[:-1])
    assert [part.sum() for part in parts] == [500] * 3
    (nulls,) = (part[-1] for table, part in zip(tables, parts, strict=True) if table.features == (0,))
    assert nulls == X.x0.isna().sum()  # a missing value is a group of its own
