# SPDX-License-Identifier: Apache-2.0
"""Holes that an attack once found, each closed: a row must not decide how other rows are read, nor what is claimed."""

from __future__ import annotations

import copy
import csv
import json
import math
import os
from collections import UserList, deque
from fractions import Fraction
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pytest

import veilwood as vw
from veilwood.data.canonical import factorize_texts, to_canonical_text
from veilwood.data.counts import ContingencyTable
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError, PlanError, UseError
from veilwood.forests.adaptive import sparse_histogram as fine_cells
from veilwood.forests.adaptive.contingency import tables_to_forest
from veilwood.forests.adaptive.row_backend import MemoryBackend
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss, exact_fraction, requested_loss
from veilwood.privacy.neighbours import Neighbours, RowsOf
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.plan import Layout, Plan
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.privacy.steps import Step, counting_step
from veilwood.trees.counting import Assignment, leaf_totals
from veilwood_audit.noninterference import sample_by_content
from veilwood_engines.cluster import source as cluster_rows
from veilwood_engines.cluster.worker import PartialSums, count_rows, encoded_schema, read_bucket
from veilwood_secure.protocols.joint_forest import Parties
from veilwood_testing.errors import rejects

BIG = 2**53 + 1  # the next float is another whole number


def schema(**feature: object) -> vw.Schema:
    column = {"name": "x", "kind": "categorical", "values": ["a", "b"]} | feature
    target = {"name": "y", "kind": "categorical", "values": ["1", "2", "rest"], "other": "rest"}
    return vw.Schema.from_dict({"name": "s", "task": "classification", "target": "y", "columns": [column, target]})


class TestNoRowDecidesHowOthersAreRead:
    @pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table])
    @pytest.mark.parametrize("odd", [1.5, 2.0**24, -(2.0**30)])
    @pytest.mark.parametrize(
        "how", [{"prefix": 2, "values": ["99", "10", "o"]}, {"part": "year", "values": [2026, "o"]}]
    )
    def test_whole_numbers_are_read_by_prefix_or_part_beside_any_other_number(
        self, make: Any, odd: float, how: dict[str, Any]
    ) -> None:
        """One row that was no small whole number moved the counts of a thousand others."""
        encoding = Encoding(schema(**how, other="o"))

        def counts(cells: list[float]) -> Any:
            source = open_rows(make({"x": cells, "y": ["1"] * len(cells)}), None, encoding, invalid="drop")
            codes = np.concatenate([batch.codes[:, 0] for batch in source.batches()])
            return np.bincount(codes, minlength=3)

        assert np.abs(counts([99084.0] * 1000 + [odd]) - counts([99084.0] * 1000)).sum() <= 1

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
    @pytest.mark.parametrize("make", [list, tuple, deque, UserList, lambda cells: [[cell] for cell in cells]])
    def test_no_sequence_of_labels_or_rows_is_turned_into_one_type(self, make: Any) -> None:
        encoding = Encoding(schema(values=["True", "1", "rest"], other="rest"))
        assert encoding.encode_target(make([True, True])).tolist() == [2, 2]
        assert encoding.encode_target(make([True, True, 1])).tolist() == [2, 2, 0]
        if make in (deque, UserList):
            for rows in ([[True]] * 2, [[True]] * 2 + [[2]]):
                source = open_rows(make(rows), ["1"] * len(rows), encoding, invalid="drop")
                assert [codes[0] for batch in source.batches() for codes in batch.codes][:2] == [0, 0]

    @pytest.mark.parametrize("rows", [[[1, 2]], [[[1], [1, 2]], [1]], [np.array(1)], [[]]])
    def test_rows_of_several_labels_are_refused_in_one_line(self, rows: list[Any]) -> None:
        with pytest.raises(OutOfSchemaError, match="y should be a 1d array"):
            Encoding(schema()).encode_target(rows)

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.DataConversionWarning")
    @pytest.mark.parametrize("make", [pl.DataFrame, pa.table, partial(pd.DataFrame, dtype="Int64")])
    def test_labels_in_a_table_of_one_column_stay_whole(self, make: Any) -> None:
        labels = {"name": "y", "kind": "categorical", "values": [str(BIG), str(BIG - 1), "rest"], "other": "rest"}
        facts = schema().to_dict() | {"columns": [{"name": "x", "kind": "categorical", "values": ["a"]}, labels]}
        encoding = Encoding(vw.Schema.from_dict(facts))
        assert encoding.encode_target(make({"y": [BIG, BIG]})).tolist() == [0, 0]
        source = open_rows([["a"]] * 3, make({"y": [BIG, BIG, None]}), encoding, invalid="drop")
        assert [int(label) for batch in source.batches() for label in batch.target][:2] == [0, 0]

    @pytest.mark.parametrize(
        ("cells", "odd"),
        [(["A", "A"], "A\0"), (["A\0b"], "A"), (["'\\ud800'"], "\ud800"), ([1, 1], True), ([True], 1.0)],
    )
    def test_objects_that_a_hash_table_takes_for_one_are_two(self, cells: list[Any], odd: Any) -> None:
        for together in ([odd, *cells], [*cells, odd]):
            codes, texts = factorize_texts(pd.Series(together, dtype=object))
            assert [texts[code] for code in codes] == [to_canonical_text(cell) for cell in together]

    def test_objects_of_a_sparse_column_are_two(self) -> None:
        sparse: Any = "Sparse[object]"
        column = pd.Series(np.array([True, 1, None], object)).astype(sparse)
        codes, texts = factorize_texts(column)
        assert [texts[code] if code >= 0 else None for code in codes] == ["True", "1", None]

    @pytest.mark.parametrize("kind", [pa.float16(), pa.float32(), pa.time64("ns")])
    def test_dictionaries_of_chunks_are_joined_without_a_change(self, kind: Any) -> None:
        numbers = pa.array([1, 7], pa.int64()).cast(kind) if pa.types.is_time(kind) else pa.array(
            np.array([0.1, 7], np.float16 if kind == pa.float16() else np.float32)
        )  # fmt: skip
        first = pa.DictionaryArray.from_arrays(pa.array([0, 1], pa.int8()), numbers)
        alone = factorize_texts(pa.chunked_array([first]))
        missing = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), pa.nulls(1, kind))
        other = pa.DictionaryArray.from_arrays(pa.array([0], pa.int8()), numbers[1:])
        for more in (missing, other):
            codes, texts = factorize_texts(pa.chunked_array([first, more]))
            assert [texts[code] for code in codes[:2]] == [alone[1][code] for code in alone[0]]

    def test_a_time_of_polars_with_nanoseconds_is_read(self) -> None:
        encoding = Encoding(schema(values=["00:00:01", "rest"], other="rest"))
        for times in ([10**9], [10**9, 1]):
            frame = pl.DataFrame({"x": pl.Series(times).cast(pl.Time), "y": ["1"] * len(times)})
            (batch,) = open_rows(frame, None, encoding).batches()
            assert batch.codes[:, 0].tolist() == [0, 1][: len(times)]

    def test_a_list_of_several_types_is_read_row_by_row(self) -> None:
        encoding = Encoding(schema())
        assert encoding.encode_target([1.0, 1.0]).tolist() == [0, 0]
        assert encoding.encode_target([True, True]).tolist() == [2, 2]
        assert encoding.encode_target([1.0, 1.0, "x"]).tolist() == [0, 0, 2]
        assert encoding.encode_target((True, True, 2)).tolist() == [2, 2, 1]

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
            open_rows(dataset, None, Encoding(schema()))

    def test_a_file_that_changes_between_passes_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "t.parquet"
        frame = pd.DataFrame({"x": ["a"] * 6, "y": ["1"] * 6, "who": [1, 1, 1, 2, 2, 2]})
        frame.to_parquet(path)
        source = open_rows(str(path), None, Encoding(schema()), unit=RowsOf("who", 1))
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
    def predictor(self, car: vw.datasets.Dataset, **parameters: Any) -> vw.MatrixForestPredictor:
        usual: dict[str, Any] = {"n_estimators": 4, "max_depth": 2, "random_state": 0, "mode": "subsample"}
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

    def test_an_interrupted_refit_keeps_leaves_and_certificate_together(
        self, car: vw.datasets.Dataset, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        forest = vw.RandomTreesClassifier(car.schema, epsilon=float("inf"), n_estimators=2, max_depth=2)
        forest.fit(car.X, car.y).set_params(epsilon=1.0)

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(forest, "_set_schema_attributes", interrupt)
        with pytest.raises(KeyboardInterrupt):
            forest.fit(car.X, car.y)
        assert not forest.privacy_.is_private  # the certificate of the leaves that are there
        assert forest.plan_.loss.epsilon is None

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

    def test_a_model_that_needs_no_delta_can_be_saved(self, car: vw.datasets.Dataset, tmp_path: Path) -> None:
        forest = vw.PrivateForestClassifier(car.schema, delta=1e-6, n_rows=1728, random_state=0).fit(car.X, car.y)
        assert forest.privacy_.delta == 0
        vw.save(forest, tmp_path / "m.veilwood")
        assert vw.load(tmp_path / "m.veilwood").privacy_ == forest.privacy_


class TestBadNumbersSpendNothing:
    def test_numbers_of_numpy_do_not_overflow(self, car: vw.datasets.Dataset) -> None:
        forest = vw.RandomTreesClassifier(
            car.schema, n_estimators=20, max_depth=3, privacy_unit={"id": "p", "at_most": np.uint8(17)}
        )
        assert forest.plan().sensitivity == 340
        json.dumps(forest.plan().to_dict())

    @pytest.mark.parametrize(("name", "value"), [("n_jobs", 0), ("n_jobs", "two"), ("delta", 0.999)])
    def test_they_are_refused_first(self, car: vw.datasets.Dataset, name: str, value: Any) -> None:
        ledger = vw.MemoryLedger(epsilon=1)
        with pytest.raises(vw.VeilwoodError, match=name):
            vw.RandomTreesClassifier(car.schema, ledger=ledger, **{name: value}).fit(car.X, car.y)
        assert ledger.spent.epsilon == 0


def one_step(step: Step, loss: Loss) -> Plan:
    return Plan("e", loss, Neighbours(), (step,), "counts", "s", "0", Layout(trees=1, leaves=1), 0.0)


class TestNoiseOfOneKindIsNotSoldAsTheOther:
    def test_gaussian_noise_keeps_no_pure_epsilon(self) -> None:
        with pytest.raises(vw.VeilwoodError, match="does not keep"):  # rho = 1/2 is what epsilon = 1 implies, not back
            Step("counts", Loss.pure(Fraction(1)), DiscreteGaussian(Fraction(1)), 1, (3,))

    def test_laplace_noise_in_a_part_of_rho_must_cost_that_part(self) -> None:
        part = requested_loss(1, 1e-6).scaled(Fraction(1, 50))
        with pytest.raises(vw.VeilwoodError, match="does not keep"):  # fifty of them cost epsilon = 50, not 1
            Step("counts", part, DiscreteLaplace(Fraction(1)), 1, (3,))
        assert part.rho is not None
        Step("counts", part, DiscreteLaplace(1 / exact_fraction(math.sqrt(part.rho))), 1, (3,))

    def test_parts_of_rho_add_up_only_in_a_plan_that_counts_rho(self) -> None:
        step = Step(
            "counts", Loss(Fraction(1), Fraction(1, 10**6), Fraction(50)), DiscreteGaussian(Fraction(1, 100)), 1, (3,)
        )
        with pytest.raises(vw.VeilwoodError, match="more than"):
            one_step(step, Loss(Fraction(1), Fraction(1, 10**6)))


class TestACertificateSaysWhatItRestsOn:
    def test_a_number_of_rows_that_was_given(self, car: vw.datasets.Dataset) -> None:
        forest = vw.PrivateForestClassifier(car.schema, n_rows=1728, random_state=0).fit(car.X, car.y)
        assert any("number of rows" in text for text in forest.privacy_.assumptions)
        forest = vw.PrivateForestClassifier(car.schema, random_state=0).fit(car.X, car.y)
        assert not any("number of rows" in text for text in forest.privacy_.assumptions)

    def test_the_certificate_of_servers_says_what_that_of_an_analyst_says(self, car: vw.datasets.Dataset) -> None:
        from veilwood_secure.roles.config import Task
        from veilwood_secure.roles.program import program_for_task

        parameters = {"random_state": 0, "trees": "disjoint", "n_estimators": 3, "max_depth": 2}
        task = Task(
            "t", car.schema.to_dict(), "1", {"north": None}, ("u",), "public-forest",
            {"estimator": "RandomTreesClassifier", "parameters": parameters},
        )  # fmt: skip
        result = program_for_task(task).make_certificate("a ledger", 1).assumptions
        unit = Assumption.UNIT_IS_COMPLETE.value.format(unit="one row")
        assert {Assumption.ROWS_FIT_SCHEMA.value, Assumption.KEYED_TREE_ASSIGNMENT.value, unit} <= set(result)


class TestNothingIsSpentOnWhatCannotBeDone:
    def test_noise_that_servers_cannot_deal_is_refused_before_the_charge(self, car: vw.datasets.Dataset) -> None:
        class Silent(Parties):
            def release(self, estimator: object, plan: Plan) -> NoReturn:
                raise AssertionError("the servers were asked")

        ledger = vw.MemoryLedger(epsilon=1)
        forest = vw.RandomTreesClassifier(
            car.schema, epsilon=0.001, n_estimators=10, max_depth=2, random_state=0, ledger=ledger
        )
        with pytest.raises(vw.VeilwoodError, match="sampled"):
            forest.fit(Silent("dealt"))
        assert ledger.spent.epsilon == 0


class TestClusters:
    def test_ids_that_end_in_nul_are_not_those_without(self) -> None:
        encoded = pa.table(
            {"bucket": [0, 0], "id": ["a", "a\0"], "target": [0, 1], "code0": [0, 1]},
            schema=encoded_schema(Encoding(schema())),
        )
        count = partial(leaf_totals, tables_to_forest([ContingencyTable(())])[0], n_classes=3)
        sums: Any = count_rows(count, partial(read_bucket, RowsOf("who", 1), 0, None), encoded).sums
        assert sums.sum() == 2

    def test_what_a_worker_logs_holds_no_counts_and_no_key(self) -> None:
        count = 12_345_678_901  # of so many digits that no address in memory, which a plain repr shows, has them all
        assert str(count) not in repr(PartialSums(np.array([count])))
        assert "secret" not in repr(partial(leaf_totals, assignment=Assignment(b"secret", 3)))
        assert "secret" not in repr(methodcaller("hold_out_keyed", cluster_rows.DrawKey(b"secret"), 0.1))

    def test_an_unfinished_fit_does_not_travel_with_a_model(self, car: vw.datasets.Dataset) -> None:
        cloudpickle = pytest.importorskip("cloudpickle")
        frame = pytest.importorskip("dask.dataframe").from_pandas(car.X, npartitions=2)
        forest = vw.RandomTreesClassifier(car.schema, n_estimators=2, max_depth=2, random_state=0)
        forest.fit(car.X, car.y).partial_fit(car.X, car.y)
        answers: Any = forest.predict(frame)
        cloudpickle.dumps(dict(answers.dask))  # as it goes to workers: exact counts cannot be pickled


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
def test_a_column_may_be_called_teach() -> None:
    frame = pd.DataFrame({"teach": ["a", "b"], "y": ["1", "2"]})
    vw.RandomTreesClassifier(schema(name="teach"), n_estimators=2, max_depth=1, random_state=0).fit(frame)


def test_an_interrupted_batch_leaves_its_places_unused(car: vw.datasets.Dataset) -> None:
    class Interrupting(np.ndarray):
        def __array_finalize__(self, of: object) -> None:
            pass

        def __add__(self, other: object) -> NoReturn:
            raise KeyboardInterrupt

    forest = vw.RandomTreesClassifier(car.schema, n_estimators=2, max_depth=2, trees="disjoint", random_state=0)
    forest.partial_fit(car.X[:9], car.y[:9])
    assert forest._unfinished is not None
    exact_sums, places = forest._unfinished.sums, forest._unfinished.n_partitions
    forest._unfinished.sums = exact_sums.view(Interrupting)
    with pytest.raises(KeyboardInterrupt):
        forest.partial_fit(car.X[9:], car.y[9:])
    assert forest._unfinished.n_partitions > places  # two rows in one place would be given to the same tree


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("epsilon", [10.0, 50.0])
def test_no_step_of_a_private_forest_moves_further_than_planned(
    epsilon: float, task: str, delta: float, adjacency: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two neighbours in another order, the second shown what came out for the first: whole fits, step by step."""
    monkeypatch.setattr(fine_cells, "MIN_TABLE_ROWS", 0.0)  # so that they are reached
    estimator = vw.PrivateForestClassifier if task == "classification" else vw.PrivateForestRegressor
    target = {"kind": "categorical", "values": ["0", "1", "2"]} if task == "classification" else {"kind": "numeric"}
    bounds = {"lower": 0, "upper": 1}
    columns = [
        {"name": "x", "kind": "numeric", "nullable": True, **bounds},
        {"name": "c", "kind": "categorical", "values": ["p", "q"]},
        {"name": "y", **target, **(bounds if task == "regression" else {})},
    ]
    public = vw.Schema.from_dict({"name": "s", "task": task, "target": "y", "columns": columns})
    frame = pd.DataFrame({"x": np.linspace(0, 1, 90), "c": ["p", "q", "q"] * 30, "y": [0, 0, 1] * 30})
    frame.loc[::7, "x"] = np.nan
    extra = pd.DataFrame({"x": [0.3] * 3, "c": ["p"] * 3, "y": [1] * 3})
    first, second = pd.concat([frame, extra]), frame[::-1]
    if adjacency == "replace-one":
        second = pd.concat([second, extra.assign(y=0)])
    kinds = str if task == "classification" else float
    forest = estimator(
        public, epsilon=epsilon, delta=delta, n_rows=300, privacy_unit=3, adjacency=adjacency,
        random_state=0,
    )  # fmt: skip
    noisy, select, sparse = Door.release_counts, Door.select, Door.release_sparse
    tape: list[Any] = []
    moved: list[float] = []

    def record(door: Door, step: Step, exact_sums: Any) -> Any:
        tape.append((step, exact_sums.copy(), noisy(door, step, exact_sums)))
        return tape[-1][2]

    def record_choice(door: Door, step: Step, scores: Any, allowed: Any = None) -> Any:
        tape.append((step, scores.copy(), select(door, step, scores, allowed)))
        return tape[-1][2]

    def replay(door: Door, step: Step, exact_sums: Any, allowed: Any = None) -> Any:
        door._admit_step(step, exact_sums.shape)
        planned, before, out = tape[len(moved)]
        assert planned == step
        change = exact_sums - before
        match step.mechanism:
            case PermuteAndFlip() | ExponentialMechanism():
                far = int(np.ptp(change))
            case JointLaplace() as noise:
                far = noise.norm(change)
            case mechanism:
                far = int((np.abs(change) ** (2 if isinstance(mechanism, DiscreteGaussian) else 1)).sum())
        moved.append(far / step.sensitivity)
        return out

    def record_cells(door: Door, step: Step, cells: Any, counts: Any, n_cells: int) -> Any:
        tape.append(
            (step, dict(zip(cells.tolist(), counts.tolist(), strict=True)), sparse(door, step, cells, counts, n_cells))
        )
        return tape[-1][2]

    def replay_cells(door: Door, step: Step, cells: Any, counts: Any, n_cells: int) -> Any:
        door._admit_step(step, step.shape)
        planned, before, out = tape[len(moved)]
        assert planned == step
        now = dict(zip(cells.tolist(), counts.tolist(), strict=True))
        moved.append(sum(abs(now.get(cell, 0) - before.get(cell, 0)) for cell in {*now, *before}) / step.sensitivity)
        return out

    monkeypatch.setattr(MemoryBackend, "_draw_mask", sample_by_content)  # whose coins are secret, and a row's own
    monkeypatch.setattr(Door, "release_counts", record)
    monkeypatch.setattr(Door, "select", record_choice)
    monkeypatch.setattr(Door, "release_sparse", record_cells)
    forest.fit(first[["x", "c"]], first["y"].astype(kinds))
    monkeypatch.setattr(Door, "release_counts", replay)
    monkeypatch.setattr(Door, "select", replay)
    monkeypatch.setattr(Door, "release_sparse", replay_cells)
    forest.set_params(n_jobs=2).fit(second[["x", "c"]], second["y"].astype(kinds))
    assert len(moved) == len(tape)
    if epsilon == 50 and task == "classification" and adjacency == "add-remove":
        assert "fine cells" in [step.name for step, *_ in tape]
    assert 0.5 < max(moved) <= 1  # above a half, so that half the sensitivity would be caught


# -- a step says what it costs twice, in epsilon and in rho, and plans add up either -------------------------------


def test_no_exact_number_slips_into_a_private_release() -> None:
    whole = requested_loss(1, 1e-6)
    step = counting_step("a", (1,), whole.scaled(Fraction(1, 2)), Neighbours(), l1=1, squared_l2=1)
    bare = Step("b", Loss.unbounded(), None, 1, (3,))
    with Door(Plan("E", whole, Neighbours(), (step,), "r", "s", "0", Layout(), 0.0), MemoryLedger()) as door:
        with pytest.raises(PlanError):
            door.extend(bare)
        door.plan._steps_by_name["b"] = bare  # as if a plan had let it through
        with rejects(PlanError, raised_in="Door._admit_step"):
            door.release_counts(bare, np.array([11, 22, 33]))


def test_a_door_cannot_be_copied() -> None:
    whole = Loss.pure(Fraction(1))
    step = counting_step("a", (1,), whole, Neighbours(), l1=1, squared_l2=1)
    with Door(Plan("E", whole, Neighbours(), (step,), "r", "s", "0", Layout(), 0.0), MemoryLedger()) as door:
        for copied in (copy.copy, copy.deepcopy):
            with rejects(UseError, raised_in="Door.__reduce__"):
                copied(door)


# -- a line break inside a cell is part of the cell, wherever a block of the file ends ------------------------------


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_one_cell_of_many_lines_is_one_row(invalid: Any, tmp_path: Path) -> None:
    text = {"name": "c", "kind": "categorical", "values": ["a", "b"], "other": "a"}
    target = {"name": "t", "kind": "categorical", "values": ["x", "y"]}
    schema = vw.Schema.from_dict({"name": "s", "task": "classification", "target": "t", "columns": [target, text]})
    path = tmp_path / "t.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([["t", "c"], *[["x", "b"]] * 10, ["y", "note" + "\ny,b" * 1_200_000]])
    rows = open_rows(path, None, Encoding(schema, "grid"), invalid=invalid)
    kept = {"refuse": 11, "drop": 10}  # where nothing may refuse a file, a row of several MiB is dropped alone
    assert sum(len(batch.target) for batch in rows.batches()) == kept[invalid]


def test_types_that_follow_from_rows_are_refused_in_unions_too(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,t\n007,x\n")
    (tmp_path / "t.json").write_text('{"a": 1, "t": "x"}\n')
    schema = vw.Schema.numeric((0, 1), classes=["x", "y"], names=["a"])
    one = pa.dataset.dataset(tmp_path / "t.csv", format="csv")
    for dataset in (pa.dataset.dataset([one]), pa.dataset.dataset(tmp_path / "t.json", format="json")):
        with rejects(vw.OutOfSchemaError, raised_in="_open_dataset"):
            open_rows(dataset, None, Encoding(schema, "grid"))


def test_a_plan_that_says_other_things_than_it_does_is_refused() -> None:
    data = vw.RandomTreesClassifier(vw.Schema.numeric((0, 1), classes=["x", "y"]), random_state=0).plan().to_dict()
    assert vw.Plan.from_dict(data).to_dict() == data
    for edited in ({"unit": "nobody"}, {"approved_by": "the board"}, {"steps": [{**data["steps"][0], "loss": "none"}]}):
        with pytest.raises(PlanError):
            vw.Plan.from_dict(data | edited)


def test_a_spent_ledger_refuses_before_rows_are_read() -> None:
    ledger = vw.MemoryLedger(epsilon=0.5)
    schema = vw.Schema.numeric((0, 1), classes=["x", "y"], n_features=1)
    for rows in ([[0.5]], [["private"]]):
        with pytest.raises(vw.BudgetExceededError) as refused:
            vw.RandomTreesClassifier(schema, epsilon=1, ledger=ledger).fit(rows, ["x"])
        assert refused.value.__context__ is None
