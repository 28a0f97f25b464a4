# SPDX-License-Identifier: Apache-2.0
"""Released measurements: written to Parquet, and every estimator's model computed again from them, to the last bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.cli.main import main
from veilwood.errors import ModelFileError, UseError
from veilwood.models.measurements import check_rebuilds, export_measurements, rebuild
from veilwood.privacy.door import Measurement
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
]

NAMES = [name for name in estimators.__all__ if name != "MatrixForestPredictor"]  # it answers batches, and has no model
NUMBERS = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=2)


def fitted(name: str, **parameters: Any) -> Any:
    kind = getattr(vw, name)
    if name.endswith("Regressor"):
        rows = np.random.default_rng(0).random((800, 2))
        return kind(NUMBERS, random_state=0, **parameters).fit(rows, 10 * rows[:, 0])
    car = vw.datasets.car()
    return kind(car.schema, random_state=0, **parameters).fit(car.X, car.y)


def arrays_differ(one: Any, other: Any) -> list[str]:
    own, expected = one.model_.to_arrays(), other.model_.to_arrays()
    assert set(own) == set(expected)
    return [name for name in own if own[name].tobytes() != expected[name].tobytes()]


@pytest.mark.parametrize("parameters", [{}, {"epsilon": 20.0}], ids=["epsilon 1", "epsilon 20"])
@pytest.mark.parametrize("name", NAMES)
def test_the_trees_of_every_estimator_follow_from_the_file(
    name: str, parameters: dict[str, Any], tmp_path: Path
) -> None:
    forest, path = fitted(name, **parameters), tmp_path / "measured.parquet"
    vw.save(forest, tmp_path / "forest.veilwood")
    loaded = vw.load(tmp_path / "forest.veilwood")
    assert export_measurements(loaded, path) == sum(each.values[-1].size for each in forest.measurements_)
    again = rebuild(path)
    assert arrays_differ(forest, again) == []
    assert again.privacy_ == forest.privacy_
    check_rebuilds(loaded)


OTHER_FITS: dict[str, dict[str, Any]] = {
    "a delta": {"delta": 1e-6},
    "rows are replaced, so that their number is public": {"adjacency": "replace-one"},
    "no noise": {"epsilon": np.inf},
}


@pytest.mark.parametrize("name", ["PrivateForestClassifier", "RandomTreesClassifier", "MatrixForestClassifier"])
@pytest.mark.parametrize("case", OTHER_FITS)
def test_other_guarantees_lead_to_the_same_trees(name: str, case: str, tmp_path: Path) -> None:
    size = {} if name == "PrivateForestClassifier" else {"n_estimators": 4, "max_depth": 3}
    forest = fitted(name, **size, **OTHER_FITS[case])
    export_measurements(forest, tmp_path / "measured.parquet")
    assert arrays_differ(forest, rebuild(tmp_path / "measured.parquet")) == []


def test_units_held_out_and_ids_change_nothing(tmp_path: Path) -> None:
    car = vw.datasets.car()
    rows = pd.DataFrame(car.X).assign(person=np.arange(len(car.X)) // 3)
    unit = {"id": "person", "at_most": 2}
    forest = vw.PrivateForestClassifier(car.schema, epsilon=4.0, privacy_unit=unit, random_state=0)
    forest.fit(rows, car.y, holdout_fraction=0.3)
    assert arrays_differ(forest, rebuild(forest)) == []


def test_batches_are_released_as_one(tmp_path: Path) -> None:
    car = vw.datasets.car()
    forest = vw.RandomTreesClassifier(car.schema, n_estimators=4, max_depth=3, random_state=0)
    forest.partial_fit(car.X[:900], car.y[:900]).partial_fit(car.X[900:], car.y[900:]).release()
    assert arrays_differ(forest, rebuild(forest)) == []


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("name", ["RandomTreesClassifier", "MatrixForestClassifier"])
def test_releases_of_a_series_follow_from_their_files(name: str, delta: float, tmp_path: Path) -> None:
    car = vw.datasets.car()
    forest = getattr(vw, name)(car.schema, epsilon=3, delta=delta, n_estimators=2, max_depth=2, random_state=0)
    series = vw.ReleaseSeries(forest, releases=3, period="month", ledger=vw.MemoryLedger())
    table = car.X.assign(month=np.arange(len(car.X)) % 3 + 1)
    for _ in range(2):
        model = series.release(table, car.y)
        export_measurements(model, tmp_path / "measured.parquet")
        assert arrays_differ(model, rebuild(tmp_path / "measured.parquet")) == []


def test_the_file_can_be_read_without_the_library(tmp_path: Path) -> None:
    forest = fitted("RandomTreesClassifier", n_estimators=2, max_depth=2, epsilon=2.0)
    export_measurements(forest, tmp_path / "measured.parquet")
    table = pq.read_table(tmp_path / "measured.parquet").to_pandas()
    assert (table["value"].to_numpy().reshape(forest.leaf_counts_.shape) == forest.leaf_counts_).all()
    (step,) = forest.plan_.steps
    assert set(table["shape"]) == {"x".join(map(str, step.shape))}
    assert set(table["variance"]) == {step.variance}
    assert set(table["kind"]) == {"leaf_classes"}


def test_equal_models_give_equal_bytes(tmp_path: Path) -> None:
    forest = fitted("PrivateForestClassifier", epsilon=20.0)
    for name in ("one", "other"):
        export_measurements(forest, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()


def test_a_changed_value_leads_to_another_model(tmp_path: Path) -> None:
    forest = fitted("RandomTreesClassifier", n_estimators=2, max_depth=2, epsilon=2.0)
    export_measurements(forest, path := tmp_path / "measured.parquet")
    table = pq.read_table(path)
    values = table["value"].to_numpy().copy()
    values[0] += 1
    pq.write_table(table.set_column(table.column_names.index("value"), "value", pa.array(values)), path)
    assert "leaf_counts" in arrays_differ(forest, rebuild(path))


def test_a_model_with_something_else_in_it_is_caught() -> None:
    forest = fitted("PrivateForestClassifier", epsilon=1.0)
    check_rebuilds(forest)
    forest.model_.leaf_values[0] += 0.01
    with rejects(ModelFileError, raised_in="check_rebuilds"):
        check_rebuilds(forest)


def test_values_that_lead_to_another_plan_are_refused() -> None:
    forest = fitted("PrivateForestClassifier", epsilon=20.0)
    first, *rest = forest.measurements_  # the class counts, from which the number of rows is known
    forest.measurements_ = (Measurement(first.step, (first.values[0] * 50,)), *rest)
    with pytest.raises(ModelFileError):
        rebuild(forest)


def test_other_files_and_models_without_measurements_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"value": [1]}), tmp_path / "other.parquet")
    for name in ("other.parquet", "missing.parquet"):
        with pytest.raises(ModelFileError):
            rebuild(tmp_path / name)
    with pytest.raises(UseError):
        rebuild(vw.RandomTreesClassifier(vw.datasets.car().schema))


def test_the_command_writes_measurements(tmp_path: Path, car_forest: Any, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(car_forest, tmp_path / "model.veilwood")
    words = ["export", str(tmp_path / "model.veilwood"), "--measurements", "-o", str(tmp_path / "car.parquet")]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["values"] == pq.read_metadata(tmp_path / "car.parquet").num_rows
    assert arrays_differ(car_forest, rebuild(tmp_path / "car.parquet")) == []
