# SPDX-License-Identifier: Apache-2.0
"""Holes that an attack once found, each closed: a row must not decide how other rows are read, nor what is claimed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

import veilwood as vw
from veilwood.encoding import Encoding, class_labels
from veilwood.entropy import seeded_for_tests
from veilwood.privacy import RowsOf
from veilwood.sources import open_source

BIG = 2**53 + 1  # the next float is another whole number


def schema(**feature: object) -> vw.Schema:
    column = {"name": "x", "kind": "categorical", "values": ["a", "b"]} | feature
    target = {"name": "y", "kind": "categorical", "values": ["1", "2", "rest"], "other": "rest"}
    return vw.Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [column, target]})


class TestNoRowDecidesHowOthersAreRead:
    def test_a_list_of_several_types_is_refused(self) -> None:
        encoding = Encoding(schema())
        assert encoding.encode_target([1.0, 1.0]).tolist() == [0, 0]
        assert encoding.encode_target([True, True]).tolist() == [2, 2]
        for y in ([1.0, 1.0, "x"], (True, True, 2)):
            with pytest.raises(vw.OutOfSchemaError, match="several types"):
                encoding.encode_target(y)
            with pytest.raises(vw.OutOfSchemaError, match="several types"):
                class_labels(schema(), y)

    @pytest.mark.parametrize("frame", [pl.DataFrame, pa.table])
    def test_a_null_leaves_whole_numbers_whole(self, frame: object) -> None:
        encoding = Encoding(schema(values=[str(BIG - 1), str(BIG)], nullable=True))
        alone = encoding.encode(frame({"x": [BIG, BIG]}))  # type: ignore[operator]
        beside_a_null = encoding.encode(frame({"x": [BIG, BIG, None]}))  # type: ignore[operator]
        assert alone.ravel().tolist() == [1, 1]
        assert beside_a_null.ravel().tolist() == [1, 1, 2]

    def test_masked_arrays_are_refused(self) -> None:
        masked = np.ma.masked_array([[1.0], [2.0]], mask=[[True], [False]])
        with pytest.raises(vw.OutOfSchemaError, match="masked"):
            Encoding(vw.Schema.numeric((0, 3), classes=["a", "b"], n_features=1)).encode(masked)

    def test_a_csv_dataset_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("x,y\na,1\n")
        dataset = pa.dataset.dataset(str(tmp_path / "t.csv"), format="csv")
        with pytest.raises(vw.OutOfSchemaError, match="path"):
            open_source(dataset, None, Encoding(schema()))

    def test_a_file_that_changes_between_passes_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        frame = pd.DataFrame({"x": ["a"] * 6, "y": ["1"] * 6, "who": [1, 1, 1, 2, 2, 2]})
        frame.to_parquet(path)
        source = open_source(str(path), None, Encoding(schema()), unit=RowsOf("who", 1))
        assert sum(len(batch.target) for batch in source.batches()) == 2
        frame.iloc[::-1].to_parquet(path)
        os.utime(path, ns=(1, 1))
        with pytest.raises(vw.VeilwoodError, match="changed while it was read"):
            list(source.batches())


@pytest.fixture(scope="module")
def car() -> vw.datasets.Dataset:
    return vw.datasets.car()


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")
class TestNoCertificateOfAnotherRelease:
    def predictor(self, car: vw.datasets.Dataset, **parameters: object) -> vw.MatrixForestPredictor:
        usual = {"n_estimators": 4, "max_depth": 2, "random_state": 0, "mode": "subsample"}
        return vw.MatrixForestPredictor(car.schema, **usual | parameters)

    def test_a_seeded_fit_taints_later_answers(self, car: vw.datasets.Dataset) -> None:
        with seeded_for_tests(1):
            predictor = self.predictor(car).fit(car.X, car.y)
        predictor.answer(car.X[:5])
        assert not predictor.privacy_.is_private

    def test_a_refused_refit_changes_nothing(self, car: vw.datasets.Dataset) -> None:
        predictor = self.predictor(car).set_params(schema="infer").fit(car.X, car.y)
        predictor.set_params(schema=car.schema)
        with pytest.raises(vw.OutOfSchemaError):
            predictor.fit(car.X.assign(safety="superb"), car.y)
        predictor.answer(car.X[:5])
        assert not predictor.privacy_.is_private

    def test_a_stored_answer_comes_with_its_own_certificate(self, car: vw.datasets.Dataset) -> None:
        predictor = self.predictor(car).fit(car.X, car.y)
        predictor.answer(car.X[:5], epsilon=float("inf"))
        assert not predictor.privacy_.is_private
        predictor.answer(car.X[:9], epsilon=0.5)
        predictor.answer(car.X[:5], epsilon=0.25)  # answered anew: the stored one has no guarantee
        assert predictor.privacy_.epsilon == 0.25
        predictor.answer(car.X[:9], epsilon=0.125)  # stored
        assert predictor.privacy_.epsilon == 0.5
        assert predictor.ledger_.entries()[-1].loss.epsilon == 0.25

    def test_the_mode_is_that_of_the_fit(self, car: vw.datasets.Dataset) -> None:
        predictor = self.predictor(car, ledger=vw.MemoryLedger(epsilon=1)).fit(car.X, car.y).set_params(mode="batch")
        with pytest.raises(vw.VeilwoodError, match="fit again"):
            predictor.answer(car.X[:5])
        assert predictor.ledger_.spent.epsilon == 0

    def test_an_interrupted_refit_leaves_no_old_leaves(
        self, car: vw.datasets.Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forest = vw.RandomTreesClassifier(car.schema, epsilon=float("inf"), n_estimators=2, max_depth=2)
        forest.fit(car.X, car.y).set_params(epsilon=1.0)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(forest, "_set_public", interrupt)
        with pytest.raises(KeyboardInterrupt):
            forest.fit(car.X, car.y)
        assert not hasattr(forest, "leaf_counts_")

    def test_a_refused_refit_keeps_the_model_that_was_paid_for(self, car: vw.datasets.Dataset) -> None:
        forest = vw.RandomTreesClassifier(car.schema, n_estimators=2, max_depth=2, ledger=vw.MemoryLedger(epsilon=1))
        before = forest.fit(car.X, car.y).predict(car.X)
        with pytest.raises(vw.BudgetExceededError):
            forest.fit(car.X, car.y)
        assert (forest.predict(car.X) == before).all()
        assert forest.privacy_.epsilon == 1

    def test_parameters_changed_after_the_fit_are_not_saved(self, car: vw.datasets.Dataset, tmp_path: Path) -> None:
        forest = vw.RandomTreesClassifier(car.schema, epsilon=50.0, n_estimators=2, max_depth=2).fit(car.X, car.y)
        with pytest.raises(vw.VeilwoodError, match="changed after the fit"):
            vw.save(forest.set_params(epsilon=0.1), tmp_path / "m.veilwood")


class TestBadNumbersSpendNothing:
    def test_numbers_of_numpy_do_not_overflow(self, car: vw.datasets.Dataset) -> None:
        forest = vw.RandomTreesClassifier(
            car.schema, n_estimators=20, privacy_unit={"id": "p", "at_most": np.uint8(17)}
        )
        assert forest.plan().sensitivity == 340
        json.dumps(forest.plan().to_dict())

    @pytest.mark.parametrize(("name", "value"), [("n_jobs", 0), ("n_jobs", "two"), ("delta", 0.999)])
    def test_they_are_refused_first(self, car: vw.datasets.Dataset, name: str, value: object) -> None:
        ledger = vw.MemoryLedger(epsilon=1)
        with pytest.raises(vw.VeilwoodError, match=name):
            vw.RandomTreesClassifier(car.schema, ledger=ledger, **{name: value}).fit(car.X, car.y)
        assert ledger.spent.epsilon == 0
