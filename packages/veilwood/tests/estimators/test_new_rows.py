# SPDX-License-Identifier: Apache-2.0
"""Predictions for files and for rows with values that the schema does not allow."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.problems import show_private_values
from veilwood.errors import OutOfSchemaError, ParameterError, UseError, UtilityWarning

COLUMNS = [
    {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
    {"name": "unit", "kind": "categorical", "values": ["x", "y", "rest"], "other": "rest"},
    {"name": "sex", "kind": "categorical", "values": ["f", "m"], "nullable": True},
    {"name": "dose", "kind": "numeric", "lower": 0, "upper": 10, "nullable": True},
    {"name": "age", "kind": "numeric", "lower": 0, "upper": 120},
]
ILL = {"name": "ill", "kind": "categorical", "values": ["no", "yes"]}
DAYS = {"name": "days", "kind": "numeric", "lower": 0, "upper": 30}
CLINIC = vw.Schema.from_dict({
    "name": "clinic", "task": "classification", "target": "ill", "columns": [*COLUMNS, ILL],
    "privacy_unit": {"id": "patient", "at_most": 2},
})  # fmt: skip
STAYS = vw.Schema.from_dict({"name": "stays", "task": "regression", "target": "days", "columns": [*COLUMNS, DAYS]})
ODD = {
    "ward": ("Z", "mean over its categories"), "sex": ("?", "mean over its categories"),
    "dose": ("much", "counted as missing"), "age": ("old", "not predicted"),
}  # fmt: skip


def rows_of(n: int = 300, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({
        "ward": rng.choice(list("ABC"), n), "unit": rng.choice(["x", "y"], n), "sex": rng.choice(list("fm"), n),
        "dose": rng.integers(0, 10, n), "age": rng.integers(0, 100, n), "patient": [f"P{i // 2}" for i in range(n)],
    })  # fmt: skip
    return table.assign(ill=np.where(table["ward"] == "A", "yes", "no"), days=table["dose"] + 3)


@pytest.fixture(scope="module", params=["classification", "PrivateForest", "regression"])
def forest(request: pytest.FixtureRequest) -> Any:
    rows = rows_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if request.param == "regression":
            kind: Any = vw.RandomTreesRegressor(STAYS, epsilon=9.0, n_estimators=5, max_depth=4, random_state=0)
            return kind.fit(rows.drop(columns=["ill", "patient", "days"]), rows["days"])
        kind = vw.PrivateForestClassifier(CLINIC, epsilon=9.0, random_state=0)
        if request.param == "classification":
            kind = vw.RandomTreesClassifier(CLINIC, epsilon=9.0, n_estimators=5, max_depth=4, random_state=0)
        return kind.fit(rows.drop(columns=["ill", "days"]), rows["ill"])


def new_rows(forest: Any) -> pd.DataFrame:
    return rows_of(40, seed=1).drop(columns=["ill", "days", *(["patient"] if forest._task == "regression" else [])])


def outputs_of(forest: Any, X: Any, **how: Any) -> Any:
    return forest.predict_proba(X, **how) if hasattr(forest, "predict_proba") else forest.predict(X, **how)


def test_a_file_is_predicted_as_its_table(forest: Any, tmp_path: Path) -> None:
    table = new_rows(forest)
    table.to_csv(tmp_path / "new.csv", index=False)
    table.to_parquet(tmp_path / "new.parquet")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, outputs = forest.predict(table), outputs_of(forest, table)
        for path in (tmp_path / "new.csv", str(tmp_path / "new.parquet")):
            assert forest.predict(path).tolist() == expected.tolist()
            np.testing.assert_array_equal(outputs_of(forest, path), outputs)
        both = forest.predict([tmp_path / "new.csv", tmp_path / "new.parquet"])
        assert both.tolist() == [*expected, *expected]


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("kind", ["csv", "memory"])
def test_no_value_stops_a_prediction(forest: Any, name: str, kind: str, tmp_path: Path) -> None:
    value, treatment = ODD[name]
    table = new_rows(forest).astype(object)
    clean = outputs_of(forest, new_rows(forest))
    table.loc[[3, 17], name] = value
    X: Any = table
    if kind == "csv":
        X = tmp_path / "new.csv"
        table.to_csv(X, index=False)
    with pytest.warns(UtilityWarning, match=f"{name!r} in 2 .{treatment}") as caught:
        outputs = outputs_of(forest, X, unknown="other")
    assert value not in str(caught[0].message)
    others = np.setdiff1d(np.arange(40), [3, 17])
    np.testing.assert_array_equal(outputs[others], clean[others])
    match name:
        case "ward" | "sex":
            known = {"ward": "ABC", "sex": "fm"}[name]
            variants = [outputs_of(forest, new_rows(forest).assign(**{name: each}))[[3, 17]] for each in known]
            np.testing.assert_allclose(outputs[[3, 17]], np.mean(variants, axis=0))
        case "age":
            assert np.isnan(outputs[[3, 17]]).all()
        case _:
            expected = table.copy()
            expected[name] = [None if each == value else each for each in table[name]]
            np.testing.assert_array_equal(outputs, outputs_of(forest, expected))
    with pytest.warns(UtilityWarning):
        labels = forest.predict(X, unknown="other")
    if name == "age" and forest._task == "classification":
        assert [labels[3], labels[17]] == [None, None]
    with pytest.warns(UtilityWarning), show_private_values():
        labels = forest.predict(X, unknown="skip")
    assert pd.isna(labels[[3, 17]]).all()
    with pytest.raises(OutOfSchemaError) as refused:
        forest.predict(X, unknown="refuse")
    assert refused.value.column == name


def test_tables_in_memory_are_refused_by_default_and_say_how_not_to(forest: Any) -> None:
    table = new_rows(forest).assign(ward="Z")
    with pytest.raises(OutOfSchemaError) as caught:
        forest.predict(table)
    assert "unknown=" in caught.value.__notes__[0]


def test_several_odd_values_in_a_row(forest: Any) -> None:
    table = new_rows(forest).astype(object).head(3)
    table.loc[0, ["ward", "unit"]] = "Z"  # the schema counts an unknown unit as the rest
    table.loc[1, ["ward", "age"]] = "Z"
    with pytest.warns(UtilityWarning):
        outputs = outputs_of(forest, table, unknown="other")
    variants = [outputs_of(forest, new_rows(forest).head(1).assign(ward=ward, unit="rest")) for ward in "ABC"]
    np.testing.assert_allclose(outputs[0], np.mean(variants, axis=0)[0])
    assert np.isnan(outputs[1]).all()


def test_a_rule_that_a_column_cannot_follow_is_an_error(forest: Any) -> None:
    table = new_rows(forest).assign(ward="Z")
    with pytest.raises(UseError):
        forest.predict(table, unknown="missing")
    table = new_rows(forest).assign(sex="?")
    with pytest.warns(UtilityWarning):
        outputs = outputs_of(forest, table, unknown="missing")
    np.testing.assert_array_equal(outputs, outputs_of(forest, table.assign(sex=None)))
    with pytest.raises(ParameterError):
        forest.predict(table, unknown="guess")


def test_the_command_predicts_every_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = rows_of()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        forest = vw.RandomTreesClassifier(CLINIC, epsilon=9.0, n_estimators=2, max_depth=3, random_state=0)
        vw.save(forest.fit(rows.drop(columns=["ill", "days"]), rows["ill"]), "m.veilwood")
    table = new_rows(forest).astype(object)
    table.loc[3, "ward"], table.loc[4, "age"] = "Palliative", None
    table.to_csv("new.csv", index=False)
    assert main(["predict", "m.veilwood", "new.csv", "-o", "out.csv", "--keep", "patient", "--proba"]) == 0
    output = capsys.readouterr().err
    assert "'ward' in 1 (mean over its categories)" in output
    assert "'age' in 1 (not predicted)" in output
    assert "Palliative" not in output
    out = pd.read_csv("out.csv")
    assert out["patient"].tolist() == table["patient"].tolist()
    assert out["prediction"].isna().tolist() == [row == 4 for row in range(40)]
    assert out["probability_yes"].isna().sum() == 1
    assert main(["predict", "m.veilwood", "new.csv", "--show-values", "--unknown", "skip"]) == 0
    assert "row 4: 'Palliative'" in capsys.readouterr().err
    assert main(["predict", "m.veilwood", "new.csv", "--unknown", "refuse"]) == 2
    assert main(["predict", "m.veilwood", "new.csv", "--unknown", "guess"]) == 2
