# SPDX-License-Identifier: Apache-2.0
"""Contribution bounds, row hashes and weights of rows."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.data.batches import Source
from veilwood.data.columns import Column
from veilwood.data.contributions import Weights, copies_per_row, row_hash
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.data.schema import Schema
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.neighbours import RowsOf
from veilwood_testing.errors import rejects
from veilwood_testing.small_forests import ONE_COLUMN_SCHEMA, SMALL_TREES
from veilwood_testing.tables import write_frame

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")]


ID_SCHEMA = Schema.numeric((0, 65534), classes=[0, 1], names=["row"])


ID_ENCODING = Encoding(
    Schema("r", "classification", ID_SCHEMA.target, (Column("row", "numeric", lower=0, upper=65535),))
)


def kept_rows(source: Source) -> list[int]:
    return [int(code) for batch in source.batches() for code in batch.codes[:, 0]]


def visits(ids: Any) -> pd.DataFrame:
    return pd.DataFrame({"row": np.arange(len(ids)) + 0.5, "who": ids, "target": 0})


@pytest.mark.parametrize("kind", ["memory", "csv", "folder"])
@pytest.mark.parametrize("at_most", [1, 3, 25])
def test_every_id_counts_as_k_rows_which_its_rows_share(tmp_path: Path, kind: str, at_most: int) -> None:
    ids = np.minimum(np.random.default_rng(0).integers(0, 60, 500), 50)
    frame = visits(ids)
    X: Any = frame
    if kind == "csv":
        X = write_frame(frame, tmp_path / "v.csv")
    elif kind == "folder":  # the same ids as text, int and float: one person is one person
        write_frame(frame[:200], tmp_path / "a.csv")
        write_frame(frame[200:300], tmp_path / "b.parquet")
        write_frame(frame[300:].astype({"who": float}), tmp_path / "c.arrow")
        X = tmp_path
    source = open_rows(X, None, ID_ENCODING, unit=RowsOf("who", at_most=at_most), batch_rows=64)
    kept = kept_rows(source)
    assert kept == sorted(kept)
    assert Counter(ids[kept].tolist()) == dict.fromkeys(ids.tolist(), at_most)
    copies = np.bincount(kept, minlength=len(ids))
    for who in set(ids.tolist()):
        assert np.ptp(copies[ids == who]) <= 1
    assert kept_rows(source) == kept, "every pass must repeat the same rows"
    numbered = [(b.partition, b.first_row + i) for b in source.batches() for i in range(len(b.codes))]
    assert len(set(numbered)) == len(kept)


def person_distances(at_most: int) -> set[int]:
    """How far counts move, in L1, when a person of one to five rows is added to three people of one row."""
    distances, others = set(), visits(["a", "b", "c"])
    for n_rows in range(1, 6):
        person = pd.DataFrame({"row": 60_000.5 + np.arange(n_rows) // 2, "who": "z", "target": 0})
        for tables in ([others, person], [person, others]):
            sources = (
                open_rows(frame, None, ID_ENCODING, unit=RowsOf("who", at_most))
                for frame in (pd.concat(tables), others)
            )
            together, alone = (np.bincount(kept_rows(source), minlength=1 << 16) for source in sources)
            distances.add(int(np.abs(together - alone).sum()))
    return distances


@pytest.mark.parametrize("at_most", [2, 3, 4, 7])
def test_a_person_moves_counts_by_k_rows_however_many_there_are(at_most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert person_distances(at_most) == {at_most}

    def rounded_up(ids: Any, order: Any, at_most: int, *, shared: bool = True) -> Any:
        return -(-at_most // np.bincount(ids)[ids])

    monkeypatch.setattr("veilwood.data.contributions.copies_per_row", rounded_up)  # mutant: every row is rounded up
    assert max(person_distances(at_most)) > at_most


def test_rows_of_one_person_in_two_batches_have_draws_of_their_own(tmp_path: Path) -> None:
    frame = visits(np.repeat(np.arange(50), 2))
    path = write_frame(frame, tmp_path / "v.csv")
    for rows in (path, vw.spool(iter([frame[:37], frame[37:]]))):
        source = open_rows(rows, None, ID_ENCODING, unit=RowsOf("who", 6), batch_rows=8)
        numbers = [(b.partition, b.first_row + row) for b in source.batches() for row in range(len(b.codes))]
        assert len(numbers) == len(set(numbers)) == 300


def test_with_a_column_of_times_a_later_row_changes_no_earlier_one() -> None:
    ids = np.array([0, 0, 1, 0, 1])
    now = copies_per_row(ids[:3], np.arange(3, dtype=np.uint64), 4, shared=False)
    later = copies_per_row(ids, np.arange(5, dtype=np.uint64), 4, shared=False)
    assert later[:3].tolist() == now.tolist() == [1, 1, 1]


def test_cap_chooses_at_random() -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(np.repeat(np.arange(2000), 4))
    chosen = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    counts = np.bincount(chosen, minlength=4)
    assert counts.min() > 380  # 500 expected each, standard deviation 19
    again = np.array(kept_rows(open_rows(frame, None, ID_ENCODING, unit=unit))) % 4
    assert (chosen != again).any()


def test_cap_needs_ids(tmp_path: Path) -> None:
    unit = RowsOf("who", at_most=1)
    frame = visits(["a", None, "b"])
    with rejects(OutOfSchemaError, column="who", problems=(("who", "missing value"),)):
        open_rows(frame, None, ID_ENCODING, unit=unit)
    with rejects(OutOfSchemaError, column="who", problems=(("who", "missing value"),)):
        open_rows(write_frame(frame, tmp_path / "v.csv"), None, ID_ENCODING, unit=unit)
    bare = frame.drop(columns="who")
    for X in (bare, write_frame(bare, tmp_path / "w.csv")):
        with rejects(OutOfSchemaError, column="who"):
            open_rows(X, None, ID_ENCODING, unit=unit)
    with rejects(OutOfSchemaError, column="who", raised_in="id_column"):
        open_rows([[1.0]], [0], ID_ENCODING, unit=unit)
    with rejects(OutOfSchemaError, column="who", raised_in="check_names"):
        open_rows(frame, None, ID_ENCODING)


PEOPLE = ["0" * n + "7" for n in range(9)]


@pytest.mark.parametrize("first", ["", "\n", "\r\n", "\ufeff\n", "\n\n"])
@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_an_empty_line_before_the_names_lets_no_row_decide_how_ids_are_read(
    tmp_path: Path, first: str, invalid: Any
) -> None:
    """Types were taken from the rows: without the last person all others were one."""
    for people in (PEOPLE, [*PEOPLE, "A1"]):
        rows = "".join(f"{row}.5,{who},0\n" for row, who in enumerate(people))
        (tmp_path / "v.csv").write_bytes(f"{first}row,who,target\n{rows}".encode())
        source = open_rows(tmp_path / "v.csv", None, ID_ENCODING, unit=RowsOf("who", at_most=1), invalid=invalid)
        assert kept_rows(source) == list(range(len(people)))


@pytest.mark.parametrize("invalid", ["refuse", "drop"])
def test_an_id_that_is_a_number_of_the_schema_is_refused_in_files_of_text(tmp_path: Path, invalid: Any) -> None:
    number = Column("who", "numeric", lower=0, upper=100)
    encoding = Encoding(Schema("r", "classification", ID_SCHEMA.target, (*ID_ENCODING.schema.features, number)))
    frame = visits([7, 8, 7])
    unit = RowsOf("who", at_most=1)
    with rejects(OutOfSchemaError, column="who", raised_in="_reject_numeric_id"):
        open_rows(write_frame(frame, tmp_path / "v.csv"), None, encoding, unit=unit, invalid=invalid)
    for X in (frame, write_frame(frame, tmp_path / "v.parquet")):
        assert len(kept_rows(open_rows(X, None, encoding, unit=unit, invalid=invalid))) == 2


def test_a_dataset_that_would_turn_ids_into_numbers_is_refused(tmp_path: Path) -> None:
    files = [
        str(write_frame(visits([100]), tmp_path / "a.parquet")),
        str(write_frame(visits(PEOPLE), tmp_path / "b.parquet")),
    ]
    unit = RowsOf("who", at_most=1)
    with rejects(OutOfSchemaError, column="who", raised_in="_reject_cast_ids"):
        open_rows(pyarrow.dataset.dataset(files), None, ID_ENCODING, unit=unit)
    assert len(kept_rows(open_rows(files, None, ID_ENCODING, unit=unit))) == 10
    assert len(kept_rows(open_rows(pyarrow.dataset.dataset(files[1:]), None, ID_ENCODING, unit=unit))) == 9


def test_splitmix64_of_one_column() -> None:
    """The first outputs of splitmix64 from seed 0, as published with the generator; a column of zeros goes on."""
    rows = np.zeros((1, 1), np.int64)
    assert row_hash(rows, 0).tolist() == [0xE220A8397B1DCDAF]


def test_rows_get_their_own_number_wherever_they_are() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 5, (1000, 4))
    numbers = row_hash(rows, 3)
    order = rng.permutation(1000)
    np.testing.assert_array_equal(row_hash(rows[order], 3), numbers[order])
    assert len(np.unique(numbers)) == len(np.unique(rows, axis=0))
    assert (row_hash(rows, 4) != numbers).all()
    assert row_hash(rows[:, ::-1], 3).tolist() != numbers.tolist()
    assert abs(np.mean(numbers / 2.0**64) - 0.5) < 0.1


EVERY = [getattr(vw, name) for name in vw.estimators.__all__ if not name.endswith("Predictor")]


class TestRows:
    @pytest.mark.parametrize("weight", [0.0, 0.3, 1.0, 2.5, 3.0, 7.0, math.inf])
    def test_a_row_counts_its_weight_on_average_and_never_more_than_declared(self, weight: float) -> None:
        """The sensitivity by enumeration: whatever one weight is, one row adds at most the declared maximum."""
        copies = Weights(np.full(4000, weight), 3).draw_copies(4000, "refuse")
        assert copies.max() <= 3
        assert copies.mean() == pytest.approx(min(weight, 3), abs=0.06)  # 7 standard errors

    @pytest.mark.parametrize(
        "odd", ["x", "", 10**400, pd.NA, None, Decimal("sNaN"), [1], -1.0, math.nan], ids=lambda odd: repr(odd)[:9]
    )
    def test_no_weight_can_refuse_where_rows_are_dropped(self, odd: Any) -> None:
        """One row's weight decided whether the fit was refused, or failed."""
        for given in ([1.0, 2.0, odd], pd.Series([1.0, 2.0, odd], dtype=object)):
            assert Weights(given, 3).draw_copies(3, "drop").tolist() == [1, 2, 0]
            with pytest.raises(vw.OutOfSchemaError, match="below 0, missing or not numbers"):
                Weights(given, 3).draw_copies(3, "refuse")

    def test_one_row_moves_counts_by_no_more_than_the_plan_says(self) -> None:
        forest = vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, max_weight=3, **SMALL_TREES)
        (step,) = forest.plan().steps
        assert step.sensitivity == 4 * 3
        design, method = forest._design_for(ONE_COLUMN_SCHEMA), forest._make_method()
        X, y = np.array([[0.2], [0.8], [0.5]]), ["no", "yes", "no"]
        for weight in (0.0, 1.0, 2.5, 3.0, 1e9):
            with_it, without = (
                open_rows(X[:n], y[:n], design.encoding, weights=Weights([1.0, 3.0, weight][:n], 3)).aggregate(
                    method.make_count(design)
                )
                for n in (3, 2)
            )
            assert np.abs(with_it - without).sum() <= step.sensitivity
        # The twin that forgets the maximum in its plan is caught by the same weights.
        assert (
            np.abs(with_it - without).sum()
            > vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, **SMALL_TREES).plan().steps[0].sensitivity
        )

    def test_what_comes_out_tells_no_more_than_epsilon(self) -> None:
        """An attack: one row of the largest weight, in or out, judged by its leaf; half the noise is caught."""
        rng, n = np.random.default_rng(0), 4000
        most, epsilon = 3, 1.0

        def visible(scale: float) -> float:
            noise = rng.geometric(1 - np.exp(-1 / scale), (2, 2, n))
            inside, outside = (noise[:, 0] - noise[:, 1]) + np.array([[most], [0]])
            guessed = [float((values >= most).mean()) for values in (inside, outside)]
            return math.log(guessed[0] / guessed[1])

        forest = vw.RandomTreesClassifier(
            ONE_COLUMN_SCHEMA, epsilon=epsilon, max_weight=most, n_estimators=1, max_depth=1
        )
        scale = float(forest.plan().steps[0].mechanism.scale)  # type: ignore[union-attr]
        assert visible(scale) < epsilon + 0.25
        assert visible(scale / 2) > epsilon + 0.25

    @pytest.mark.parametrize("family", ["RandomTrees", "MedianForest", "GreedyForest", "MatrixForest"])
    def test_a_whole_weight_is_so_many_rows(self, family: str) -> None:
        data = vw.datasets.iris()
        weights = np.random.default_rng(0).integers(0, 4, len(data.y))
        sized: dict[str, Any] = {"n_estimators": 3, "max_depth": 2, "trees": "shared", "random_state": 0}
        forest = getattr(vw, f"{family}Classifier")(data.schema, epsilon=math.inf, max_weight=4, **sized)
        with_weights = clone(forest).fit(data.X, data.y, sample_weight=weights)
        repeated = clone(forest).fit(data.X.loc[data.X.index.repeat(weights)], np.repeat(np.asarray(data.y), weights))
        np.testing.assert_allclose(with_weights.predict_proba(data.X), repeated.predict_proba(data.X))

    def test_heavier_rows_are_learned_from(self) -> None:
        X = np.tile([[0.2], [0.8]], (500, 1))
        y = np.array(["no", "yes"] * 500)
        noisy = np.where(np.arange(1000) % 4 < 2, y, "no")  # a half of the rows say nothing but no
        weights = np.where(np.arange(1000) % 4 < 2, 4.0, 0.2)
        for Forest in (vw.RandomTreesClassifier, vw.PrivateForestClassifier, vw.MedianForestClassifier):
            forest = Forest(ONE_COLUMN_SCHEMA, epsilon=40.0, max_weight=4, random_state=0).fit(
                X, noisy, sample_weight=weights
            )
            assert forest.predict_proba([[0.8]])[0, 1] > 0.7, Forest.__name__
            assert forest.privacy_.unit == "any 4 rows"

    def test_rows_of_a_person_are_capped_before_they_are_weighed(self) -> None:
        forest = vw.RandomTreesClassifier(
            ONE_COLUMN_SCHEMA, privacy_unit={"id": "who", "at_most": 2}, max_weight=3, **SMALL_TREES
        )
        assert forest.plan().steps[0].sensitivity == 4 * 2 * 3
        table = pd.DataFrame({"x0": [0.5] * 10, "who": ["a"] * 10})
        encoding = Encoding(ONE_COLUMN_SCHEMA, "grid")
        table = table.rename(columns={"x0": ONE_COLUMN_SCHEMA.feature_names[0]})
        weights = Weights(np.full(10, 3.0), 3)
        rows = open_rows(table, ["no"] * 10, encoding, unit=RowsOf("who", 2), weights=weights)
        assert sum(len(batch.target) for batch in rows.batches()) == 6

    @pytest.mark.parametrize(
        ("weights", "message"),
        [
            ([1.0, -1.0, 1.0], "below 0"),
            ([1.0, math.nan, 1.0], "missing"),
            (["a"] * 3, "not numbers"),
            ([1.0], "one number"),
        ],
    )
    def test_weights_that_are_none_are_refused_without_their_values(self, weights: Any, message: str) -> None:
        forest = vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, max_weight=2, **SMALL_TREES)
        with pytest.raises(vw.OutOfSchemaError, match=message) as caught:
            forest.fit([[0.1], [0.2], [0.3]], ["no"] * 3, sample_weight=weights)
        assert "-1" not in str(caught.value)

    def test_dropping_leaves_such_rows_out(self) -> None:
        forest = vw.RandomTreesClassifier(
            ONE_COLUMN_SCHEMA, max_weight=2, invalid="drop", epsilon=math.inf, **SMALL_TREES
        )
        forest.fit([[0.1], [0.2], [0.3]], ["no"] * 3, sample_weight=[1.0, math.nan, -3.0])
        assert forest.leaf_counts_.sum() == 4  # one row, in each of four trees

    def test_a_bound_must_be_declared(self) -> None:
        with pytest.raises(vw.VeilwoodError, match="max_weight"):
            vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, **SMALL_TREES).fit([[0.1]], ["no"], sample_weight=[1.0])
        bad: Any
        for bad in (0, -1, 2.5, "many", True):
            with pytest.raises(vw.VeilwoodError, match="max_weight"):
                vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, max_weight=bad, **SMALL_TREES).plan()
        with pytest.raises(vw.VeilwoodError, match="in memory"):
            vw.RandomTreesClassifier(ONE_COLUMN_SCHEMA, max_weight=2, **SMALL_TREES).fit(
                "rows.csv", sample_weight=[1.0]
            )

    @pytest.mark.parametrize("Forest", EVERY)
    def test_weights_of_one_change_nothing_but_the_price(self, Forest: Any) -> None:
        schema = ONE_COLUMN_SCHEMA if Forest._task == "classification" else vw.Schema.numeric(
            (0, 1), target_bounds=(0, 1), n_features=1)  # fmt: skip
        light, heavy = (Forest(schema, random_state=0, max_weight=w).plan() for w in (None, 5))
        assert heavy.steps[0].sensitivity == 5 * light.steps[0].sensitivity
