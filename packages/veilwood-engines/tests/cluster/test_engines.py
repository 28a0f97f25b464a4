# SPDX-License-Identifier: Apache-2.0
"""Tests of clusters: real ones of separate processes give the counts of one process, bit by bit, whatever dies."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import OutOfSchemaError, VeilwoodError
from veilwood.privacy import entropy
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.neighbours import RowsOf
from veilwood_engines.cluster import worker as partitions
from veilwood_engines.cluster.engines import BucketedPartitions, DaskPartitions
from veilwood_engines.cluster.source import ClusterSource
from veilwood_testing.clusters import (
    CLASSES,
    CLINIC,
    PARTS,
    SIZE,
    STAY,
    N,
    as_dask,
    as_files,
    as_ray,
    clinic_rows,
    clinic_rows_with_ids,
    dask,
    dd,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


CAP = RowsOf("who", at_most=2)
CAPPED = {"id": "who", "at_most": 2}

FORESTS: dict[str, Callable[..., Any]] = {
    "shared": partial(vw.RandomTreesClassifier, CLINIC, n_estimators=5, max_depth=4),
    "disjoint": partial(vw.RandomTreesClassifier, CLINIC, n_estimators=5, max_depth=4, trees="disjoint"),
    "regression": partial(vw.RandomTreesRegressor, STAY, n_estimators=3, max_depth=4),
    "matrix": partial(vw.MatrixForestClassifier, CLINIC, n_estimators=4, max_depth=2),
    "median": partial(vw.MedianForestClassifier, CLINIC, n_estimators=3, max_depth=3),
    "median regression": partial(vw.MedianForestRegressor, STAY, n_estimators=3, max_depth=2),
    "greedy": partial(vw.GreedyForestClassifier, CLINIC, n_estimators=3, max_depth=2, branching="binary"),
    "private": partial(vw.PrivateForestClassifier, CLINIC),
    "private regression": partial(vw.PrivateForestRegressor, STAY),
}


def fitted(name: str, X: Any, **params: Any) -> Any:
    """Fit with seeded noise and a seeded key of rows to trees: equal counts then give equal leaves."""
    with entropy.seeded_for_tests(5):
        return FORESTS[name](random_state=0, **params).fit(X)


def target_of(name: str) -> str:
    return "days" if "regression" in name else "ill"


def assert_same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one.forest_.cut, other.forest_.cut)
    leaves = "leaf_counts_" if hasattr(one, "leaf_counts_") else "leaf_values_"
    np.testing.assert_array_equal(getattr(one, leaves), getattr(other, leaves))


# -- Dask, on two processes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORESTS)
def test_dask_gives_what_one_process_gives(client: Any, name: str, tmp_path: Path) -> None:
    frame = clinic_rows(target_of(name))
    assert_same(fitted(name, as_dask(frame)), fitted(name, as_files(frame, tmp_path)))


def test_workers_are_other_processes(client: Any) -> None:
    client.wait_for_workers(2, timeout=300)
    assert os.getpid() not in client.run(os.getpid).values()
    assert len(client.run(os.getpid)) == 2


def die_once(rows: pd.DataFrame, mark: str) -> pd.DataFrame:
    """Kill the worker that reads its third partition, the first time."""
    if len(rows) and int(rows.index[0]) == 2 * SIZE and not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return rows


@pytest.mark.parametrize("name", ["disjoint", "median"])
def test_a_killed_worker_changes_nothing(client: Any, name: str, tmp_path: Path) -> None:
    frame = clinic_rows()
    mark = tmp_path / "died"
    fragile = as_dask(frame).map_partitions(die_once, str(mark), meta=frame.iloc[:0])
    (tmp_path / "files").mkdir()
    assert_same(fitted(name, fragile), fitted(name, as_files(frame, tmp_path / "files")))
    assert mark.exists()


def test_dask_predicts_what_one_process_predicts(client: Any) -> None:
    frame = clinic_rows()
    forest = fitted("shared", frame, ledger=MemoryLedger())  # which cannot be sent to workers
    keyed = as_dask(frame.assign(key=np.arange(N)))  # other columns are left alone
    labels = forest.predict(keyed).compute()
    assert (labels.index == frame.index).all()
    np.testing.assert_array_equal(labels.to_numpy(object), forest.predict(frame))
    shares = forest.predict_proba(as_dask(frame)).compute()
    assert list(shares.columns) == ["no", "yes"]
    np.testing.assert_array_equal(shares.to_numpy(), forest.predict_proba(frame))


def test_dask_counts_every_person_alike(client: Any) -> None:
    frame = clinic_rows_with_ids()
    exact = fitted("disjoint", as_dask(frame), privacy_unit=CAPPED, epsilon=float("inf"))
    assert exact.leaf_counts_.sum() == 2 * frame["who"].nunique()


# -- the same code in this process ----------------------------------------------------------------------------------


def kept_people(frame: pd.DataFrame) -> pd.Series[int]:
    """How many rows of each person a cap lets through, by the code that workers run."""
    schema = vw.Schema.from_dict(
        {"name": "who", "task": "classification", "target": "ill",
         "columns": [{"name": "copy", "kind": "numeric", "lower": 0, "upper": 65535}, CLASSES]}
    )  # fmt: skip
    kept: list[int] = []

    def collect(batches: Any, *, n_jobs: Any = 1) -> Any:
        for batch in batches:
            kept.extend(batch.codes[:, 0].tolist())
        return np.zeros(1, np.int64)

    copy = frame["copy"] if "copy" in frame else frame["who"]
    rows = as_dask(frame.assign(copy=copy.astype(float))[["copy", "ill", "who"]])
    source = open_rows(rows, None, Encoding(schema), unit=CAP)
    source.aggregate(collect)
    source.aggregate(collect)  # the same rows again, or an error
    return pd.Series(kept).value_counts() // 2


def test_nobody_has_more_rows_than_allowed(here: None) -> None:
    frame = clinic_rows_with_ids()
    assert (kept_people(frame) <= 2).all()
    # Numbers and texts in one column are the same people.
    written: list[Callable[[int], Any]] = [int, str, float, np.float32, "{}.0".format, lambda who: Decimal(f"{who}.00")]
    mixed = frame.assign(copy=frame["who"], who=[written[row % 6](who) for row, who in enumerate(frame["who"])])
    mixed["who"] = mixed["who"].astype(object)
    with dask.config.set({"dataframe.convert-string": False}):
        assert (kept_people(mixed) <= 2).all()


def test_a_cap_within_partitions_is_caught(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = clinic_rows_with_ids()
    monkeypatch.setattr(type(as_dask(frame)), "shuffle", lambda self, on: self)  # mutant: rows stay where they are
    with pytest.raises((AssertionError, VeilwoodError)):
        assert (kept_people(frame) <= 2).all()


def test_people_without_a_name_are_refused(here: None) -> None:
    frame = clinic_rows_with_ids().astype({"who": float})
    frame.loc[3, "who"] = np.nan
    ledger = MemoryLedger()
    with pytest.raises(OutOfSchemaError, match="missing"):
        fitted("shared", as_dask(frame), privacy_unit=CAPPED, ledger=ledger)
    assert [entry.state for entry in ledger.entries()] == ["cancelled"]
    with pytest.raises(OutOfSchemaError, match="no column 'who'"):
        fitted("shared", as_dask(clinic_rows()), privacy_unit=CAPPED)


def test_rows_that_change_between_passes_are_refused(here: None) -> None:
    turns: list[int] = []

    def shuffled(rows: pd.DataFrame) -> pd.DataFrame:
        turns.append(1)
        return rows.sample(frac=1, random_state=len(turns))

    frame = clinic_rows()
    restless = as_dask(frame).map_partitions(shuffled, meta=frame.iloc[:0])
    ledger = MemoryLedger()
    with pytest.raises(VeilwoodError, match="between two passes") as refusal:
        fitted("median", restless, ledger=ledger)
    assert "counts as spent" in refusal.value.__notes__[0]
    assert [entry.state for entry in ledger.entries()] == ["reserved"]
    fitted("disjoint", restless)  # one pass: nothing to disagree with


def test_refused_rows_cost_nothing(here: None) -> None:
    frame = clinic_rows()
    frame.loc[N - 1, "ward"] = "x"
    ledger = MemoryLedger()
    with pytest.raises(OutOfSchemaError, match="'ward'") as refusal:
        fitted("shared", as_dask(frame), ledger=ledger)
    assert refusal.value.column == "ward"
    assert refusal.value.__notes__ == ["Nothing was spent."]
    assert [entry.state for entry in ledger.entries()] == ["cancelled"]


def test_empty_partitions_do_not_matter_and_empty_frames_are_refused(here: None, tmp_path: Path) -> None:
    frame = clinic_rows()
    holes = as_dask(frame)
    assert_same(
        fitted("shared", dd.concat([holes[holes["age"] > 2], holes], interleave_partitions=True)),
        fitted("shared", as_files(frame, tmp_path)),
    )
    with pytest.raises(OutOfSchemaError, match="no rows"):
        fitted("shared", holes[holes["age"] > 2])


def with_misfits() -> tuple[pd.DataFrame, pd.DataFrame]:
    """A table in which some rows do not fit, in every partition, and those that do."""
    frame, rows = clinic_rows(), np.arange(N)
    frame.loc[rows % 7 == 0, "ward"] = "elsewhere"
    frame.loc[rows % 11 == 0, "ill"] = None
    return frame, frame[(rows % 7 > 0) & (rows % 11 > 0)]


def assert_drops(rows: Any, none: Any, fits: pd.DataFrame) -> None:
    """Rows that do not fit leave no trace, and where no row fits nothing is said either."""
    assert_same(fitted("shared", rows, invalid="drop"), fitted("shared", fits))
    assert_same(fitted("shared", none, invalid="drop"), fitted("shared", none, invalid="drop"))
    with pytest.raises(OutOfSchemaError, match="'ward'"):
        fitted("shared", rows)


def test_dask_drops_what_does_not_fit(here: None) -> None:
    frame, fits = with_misfits()
    assert_drops(as_dask(frame), as_dask(frame[::7]), fits)


def test_what_is_no_frame_is_refused(here: None) -> None:
    frame = as_dask(clinic_rows())
    with pytest.raises(OutOfSchemaError, match="y cannot be combined"):
        FORESTS["shared"]().fit(frame, [1])
    with pytest.raises(OutOfSchemaError, match="no column 'ill'"):
        FORESTS["shared"]().fit(frame[["age", "ward"]])
    with pytest.raises(OutOfSchemaError, match="column 'more'"):
        FORESTS["shared"]().fit(frame.assign(more=1))
    with pytest.raises(OutOfSchemaError, match="not a frame of Dask"):
        FORESTS["shared"]().fit(frame["age"].to_dask_array())
    with pytest.raises(VeilwoodError, match="stay on the cluster"):
        vw.MatrixForestPredictor(CLINIC, max_depth=2).fit(frame)


def test_frames_that_guess_types_from_rows_are_refused(here: None, tmp_path: Path) -> None:
    """One row that is no number refused the others, or made texts of them, by where it stands."""
    clinic_rows().to_csv(tmp_path / "rows.csv", index=False)
    with pytest.raises(OutOfSchemaError, match="types from the rows"):
        fitted("shared", dd.read_csv(tmp_path / "rows.csv").dropna())
    with pytest.raises(OutOfSchemaError, match="types from the rows"):
        fitted("shared", dd.read_csv(tmp_path / "rows.csv").dropna().optimize())
    clinic_rows().to_json(tmp_path / "rows.json", orient="records", lines=True)
    with pytest.raises(OutOfSchemaError, match="types from the rows"):
        fitted("shared", dd.read_json(tmp_path / "rows.json"))
    fitted("shared", dd.read_csv(tmp_path / "rows.csv", dtype=str), invalid="drop")  # where texts are read as numbers


def double(value: Any) -> Any:
    return 2 * value


def test_what_is_kept_is_moved_and_asked_where_it_is(here: None) -> None:
    held = [
        partitions.PartitionState(np.array([number]), partitions.PartialSums(checksums={number: (1, 0)}))
        for number in range(20)
    ]
    one_by_one = DaskPartitions([dask.delayed(each, traverse=False) for each in held])
    in_lists = BucketedPartitions(
        DaskPartitions([dask.delayed(held[i : i + 3], traverse=False) for i in range(0, 20, 3)])
    )
    for kept in (one_by_one, in_lists):
        later = kept.update(partial(partitions.update_state, double))
        total = later.aggregate(partial(partitions.query_state, double))
        np.testing.assert_array_equal(total.sums, [4 * 190])
        assert len(total.checksums) == 20
        later.close()
    refused = partitions.PartitionState(None, partitions.PartialSums(error=OutOfSchemaError("no")))
    assert partitions.query_state(double, partitions.update_state(double, refused)).error is not None


def test_rows_of_a_frame_are_kept_once(here: None) -> None:
    source = open_rows(as_dask(clinic_rows()), None, Encoding(CLINIC))
    assert isinstance(source, ClusterSource)
    rows = source.persist(lambda batches: np.array([sum(len(batch.target) for batch in batches)]))
    rows.update(double)
    assert rows.aggregate(double) == 4 * N
    rows.close()


# -- Spark and Ray ----------------------------------------------------------------------------------------------------


def in_order_of_spark(frame: Any, folder: Path) -> str:
    """Write Spark's partitions, numbered as Spark does, into files for a single process."""
    from pyspark.sql.functions import spark_partition_id

    numbered = frame.withColumn("part", spark_partition_id()).toPandas()
    for part, rows in numbered.groupby("part"):
        rows.drop(columns="part").to_parquet(folder / f"{part}.parquet", index=False)
    assert numbered["part"].nunique() == PARTS
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESTS)
def test_spark_gives_what_one_process_gives(spark: Any, name: str, tmp_path: Path) -> None:
    frame = spark.read.parquet(as_files(clinic_rows(target_of(name)), tmp_path))
    again = tmp_path / "again"
    again.mkdir()
    assert_same(fitted(name, frame), fitted(name, in_order_of_spark(frame, again)))


@pytest.mark.slow
def test_spark_predicts_and_refuses(spark: Any, tmp_path: Path) -> None:
    frame = clinic_rows()
    forest = fitted("shared", frame)
    rows = spark.read.parquet(as_files(frame.assign(key=np.arange(N)), tmp_path))
    labels = forest.predict(rows).toPandas().sort_values("key")["prediction"]
    np.testing.assert_array_equal(labels.astype(object), forest.predict(frame))
    shares = forest.predict_proba(rows).toPandas().sort_values("key")["probability"]
    np.testing.assert_array_equal(np.stack(list(shares)), forest.predict_proba(frame))
    frame.loc[0, "ward"] = "x"
    ledger = MemoryLedger()
    with pytest.raises(OutOfSchemaError, match="'ward'"):
        fitted("shared", spark.createDataFrame(frame), ledger=ledger)
    assert [entry.state for entry in ledger.entries()] == ["cancelled"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FORESTS)
def test_ray_gives_what_one_process_gives(ray: Any, name: str, tmp_path: Path) -> None:
    frame = clinic_rows(target_of(name))
    assert_same(fitted(name, as_ray(ray, frame)), fitted(name, as_files(frame, tmp_path)))


@pytest.mark.slow
def test_ray_predicts(ray: Any) -> None:
    frame = clinic_rows()
    forest = fitted("shared", frame)
    rows = forest.predict(as_ray(ray, frame.assign(key=np.arange(N)))).to_pandas().sort_values("key")
    np.testing.assert_array_equal(rows["prediction"].astype(object), forest.predict(frame))


@pytest.mark.slow
def test_all_engines_take_7_and_7_point_0_for_one_person(spark: Any, ray: Any, here: None) -> None:
    frame = clinic_rows_with_ids()
    frame["who"] = [f"{who}.0" if row % 2 else str(who) for row, who in enumerate(frame["who"])]
    people = frame["who"].str.removesuffix(".0")
    for rows in (as_dask(frame), spark.createDataFrame(frame), as_ray(ray, frame)):
        exact = fitted("disjoint", rows, privacy_unit=CAPPED, epsilon=float("inf"))
        assert exact.leaf_counts_.sum() == people.nunique() * 2


@pytest.mark.slow
def test_all_engines_keep_the_same_rows_of_a_person(spark: Any, ray: Any, here: None) -> None:
    frame = clinic_rows_with_ids()
    frames = [as_dask(frame), spark.createDataFrame(frame), as_ray(ray, frame)]
    first, *others = [fitted("median", rows, privacy_unit=CAPPED) for rows in frames]
    for other in others:
        assert_same(first, other)


@pytest.mark.slow
def test_spark_and_ray_drop_what_does_not_fit(spark: Any, ray: Any) -> None:
    frame, fits = with_misfits()
    assert_drops(spark.createDataFrame(frame), spark.createDataFrame(frame[::7]), fits)
    assert_drops(as_ray(ray, frame), as_ray(ray, frame[::7]), fits)


@pytest.mark.slow
def test_spark_and_ray_frames_that_guess_types_are_refused(spark: Any, ray: Any, tmp_path: Path) -> None:
    """One row of a CSV file made texts of the numbers of 50 others, so that 007 and 7 were two categories."""
    clinic_rows().to_csv(tmp_path / "rows.csv", index=False)
    clinic_rows().to_json(tmp_path / "rows.json", orient="records", lines=True)
    csv, json = str(tmp_path / "rows.csv"), str(tmp_path / "rows.json")
    guessed = spark.read.csv(csv, header=True, inferSchema=True).filter("age > 0")
    for frame in (guessed, spark.read.json(json), ray.data.read_csv(csv), ray.data.read_json(json, lines=True)):
        with pytest.raises(OutOfSchemaError, match="types from the rows"):
            fitted("shared", frame)
    fitted("shared", spark.read.csv(csv, header=True), invalid="drop")


@pytest.mark.slow
def test_what_ray_raises_before_rows_are_counted_is_not_shown(ray: Any) -> None:
    def fail(rows: pd.DataFrame) -> pd.DataFrame:
        raise ValueError("a secret of a row")

    with pytest.raises(VeilwoodError, match="could not compute the frame") as refusal:
        fitted("shared", as_ray(ray, clinic_rows()).map_batches(fail, batch_format="pandas"))
    assert "secret" not in "".join(traceback.format_exception(refusal.value))
