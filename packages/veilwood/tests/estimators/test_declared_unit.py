# SPDX-License-Identifier: Apache-2.0
"""The unit that a schema declares is protected by everything that plans or releases, unless another is chosen."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.cli.main import main
from veilwood.errors import OutOfSchemaError, PrivacyWarning
from veilwood.privacy import accountant
from veilwood.privacy.neighbours import Rows, RowsOf, Unit

PATIENT = RowsOf("patient", 3)
CLASSES = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=2)
NUMBERS = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=2)
ALL = sorted(estimators.__all__)


def declaring(schema: vw.Schema, unit: Unit | None = PATIENT) -> vw.Schema:
    return replace(schema, privacy_unit=unit)


def visits(n: int = 240, *, target: bool = True) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.random((n, 2)), columns=["x0", "x1"])
    table["patient"] = [f"0{i // 4}" for i in range(n)]
    return table.assign(target=np.where(table["x0"] > 0.5, "yes", "no")) if target else table


@pytest.fixture(autouse=True)
def no_earlier_warnings(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(accountant._accountant, "warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("declared", [PATIENT, Rows(3), None], ids=str)
def test_every_estimator_protects_the_declared_unit(name: str, declared: Unit | None) -> None:
    kind = getattr(estimators, name)
    schema = declaring(CLASSES if kind._task == "classification" else NUMBERS, declared)
    _, neighbours = kind(schema)._requested_privacy()
    assert neighbours.unit == (declared or Rows(1))
    if not name.endswith("Predictor"):
        assert kind(schema, n_rows=200).plan().neighbours.unit == (declared or Rows(1))


def test_a_larger_weight_protects_as_many_copies_of_the_declared_unit() -> None:
    plan = vw.RandomTreesClassifier(declaring(CLASSES), n_estimators=2, max_depth=2, max_weight=4).plan()
    assert plan.neighbours.unit == RowsOf("patient", 12)


def test_a_fit_bounds_the_rows_of_a_patient_and_is_saved_with_that(tmp_path: Path) -> None:
    table, schema = visits(), declaring(CLASSES)
    forest = vw.RandomTreesClassifier(schema, n_estimators=2, max_depth=2, random_state=0)
    forest.fit(table.drop(columns="target"), table["target"])
    assert forest.plan_.neighbours.unit == PATIENT
    with pytest.raises(OutOfSchemaError):  # without the id, no patient can be protected
        forest.fit(table[["x0", "x1"]], table["target"])
    vw.save(forest, tmp_path / "m.veilwood")
    again = vw.load(tmp_path / "m.veilwood")
    assert again.privacy_.unit == str(PATIENT)
    assert list(again.predict(table[["x0", "x1"]])) == list(forest.predict(table.drop(columns="target")))


def test_read_table_keeps_the_id_that_the_unit_needs(tmp_path: Path) -> None:
    path, schema = tmp_path / "v.csv", declaring(CLASSES)
    visits().to_csv(path, index=False)
    X, y = vw.read_table(path, schema)
    assert X["patient"].tolist() == visits()["patient"].tolist()  # text: 007 and 7 are two patients
    forest = vw.RandomTreesClassifier(schema, n_estimators=2, max_depth=2, random_state=0).fit(X, y)
    assert forest.privacy_.unit == str(PATIENT)
    assert list(vw.read_table(path, schema, target=False)) == ["x0", "x1", "patient"]
    visits(target=False).drop(columns="patient").to_csv(path, index=False)
    assert list(vw.read_table(path, schema, target=False)) == ["x0", "x1"]
    visits().drop(columns="patient").to_csv(path, index=False)
    with pytest.raises(OutOfSchemaError) as caught:
        vw.read_table(path, schema)
    assert caught.value.column == "patient"


@pytest.mark.parametrize(
    ("declared", "chosen", "warned"),
    [
        (PATIENT, "row", True), (PATIENT, 50, True), (PATIENT, {"id": "doctor", "at_most": 9}, True),
        (PATIENT, {"id": "patient", "at_most": 9}, False), (PATIENT, None, False), (Rows(3), 2, True),
        (Rows(3), 4, False), (None, "row", False),
    ],
)  # fmt: skip
def test_protecting_less_than_declared_warns_once(declared: Unit | None, chosen: Any, warned: bool) -> None:
    forest = vw.RandomTreesClassifier(declaring(CLASSES, declared), n_estimators=2, max_depth=2, privacy_unit=chosen)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forest.plan()
        forest.plan()
    assert sum(issubclass(each.category, PrivacyWarning) for each in caught) == warned


def test_tune_search_and_evaluate_protect_the_declared_unit(tmp_path: Path) -> None:
    table, schema = visits(), declaring(CLASSES)
    X, y = table.drop(columns="target"), table["target"]
    forest = vw.RandomTreesClassifier(schema, n_estimators=2, max_depth=2, random_state=0)
    grid = {"n_estimators": [2], "max_depth": [2]}
    of_patients = vw.tune(schema, forest, n_rows=200, epsilon=1.0, grid=grid)
    of_rows = vw.tune(declaring(CLASSES, None), forest, n_rows=200, epsilon=1.0, grid=grid)
    assert of_patients.best.plan().neighbours.unit == PATIENT
    assert of_patients.settings[0].noise_std > 2 * of_rows.settings[0].noise_std
    search = vw.PrivateSearch(forest, {"max_depth": [1, 2]}, epsilon=4.0)
    assert search.plan().neighbours.unit == PATIENT
    found = vw.evaluate(forest.fit(X, y), X, y, epsilon=1.0)
    assert found.plan.neighbours.unit == PATIENT
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        vw.evaluate(forest, X, y, epsilon=1.0, privacy_unit="row")
    assert [each.category for each in caught if "declares" in str(each.message)] == [PrivacyWarning]


def test_commands_print_the_declared_unit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declaring(CLASSES).save(tmp_path / "s.json")
    schema = ["--schema", str(tmp_path / "s.json")]
    assert main(["plan", *schema, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unit"] == str(PATIENT)
    sizes = ["--rows", "200", "--param", "n_estimators=[2]", "--param", "max_depth=[2]", "--json"]
    noise = {}
    for unit in (PATIENT, None):
        declaring(CLASSES, unit).save(tmp_path / "s.json")
        assert main(["tune", *schema, "--estimator", "random-trees", *sizes]) == 0
        noise[unit] = json.loads(capsys.readouterr().out)["settings"][0]["noise_std"]
    assert noise[PATIENT] > 2 * noise[None]
