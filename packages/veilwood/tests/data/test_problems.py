# SPDX-License-Identifier: Apache-2.0
"""Invalid values: messages name a column and a kind of problem, never a private value, row, count or length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import veilwood as vw
from veilwood.cli.main import main
from veilwood.data.problems import show_private_values
from veilwood_testing.tables import CLINIC_SCHEMA, INVALID_CSV, clinic_forest, rejection_of, visible_text


def test_all_columns_and_kinds_are_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(INVALID_CSV)
    refusal = rejection_of(tmp_path / "rows.csv")
    assert refusal.problems == (
        ("age", "missing value"), ("age", "not a number"), ("ward", "unknown category"), ("ill", "unknown category"),
    )  # fmt: skip
    assert refusal.value is None
    for column, _ in refusal.problems:
        assert f"'{column}'" in str(refusal)


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_all_files_and_batches_are_told_at_once(ending: str, tmp_path: Path) -> None:
    """What is wrong in a later file or batch is told too, and always in the order of the schema."""
    rows = [(31.0, "A", "no"), (31.0, "A", "maybe"), (31.0, "C", "no"), (None, "A", "no")]
    for name, file in (("1", rows[:2]), ("2", rows[2:])):
        frame = pd.DataFrame(file * 3, columns=["age", "ward", "ill"])
        path = tmp_path / f"{name}.{ending}"
        frame.to_csv(path, index=False) if ending == "csv" else frame.to_parquet(path)
    assert rejection_of(tmp_path).problems == (
        ("age", "missing value"), ("ward", "unknown category"), ("ill", "unknown category"),
    )  # fmt: skip


GOOD: dict[str, list[Any]] = {"age": [31.0, 58.0], "ward": ["A", "B"], "ill": ["no", "yes"]}


def with_cell(column: str, value: Any) -> dict[str, list[Any]]:
    return GOOD | {column: [*GOOD[column][:1], value]}


def as_frame(cells: dict[str, list[Any]], folder: Path) -> Any:
    return pd.DataFrame({name: pd.Series(values, dtype=object) for name, values in cells.items()})


def as_csv(cells: dict[str, list[Any]], folder: Path) -> Any:
    as_frame(cells, folder).to_csv(folder / "rows.csv", index=False)
    return folder / "rows.csv"


def as_parquet(cells: dict[str, list[Any]], folder: Path) -> Any:
    pd.DataFrame({name: [str(v) for v in values] for name, values in cells.items()}).to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


def as_iterator(cells: dict[str, list[Any]], folder: Path) -> Iterator[Any]:
    yield as_frame(cells, folder)


def as_dask(cells: dict[str, list[Any]], folder: Path) -> Any:
    import dask.dataframe as dd

    return dd.from_pandas(as_frame(cells, folder), npartitions=1)


FORMS = [as_frame, as_csv, as_parquet, as_iterator, as_dask]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("ward", "Peter Private", "x" * 10_000),
        ("ward", "Aa", 77_777.5),  # near to a declared value, and not
        ("age", "Peter Private", "37,5"),
        ("ill", "Peter Private", "yess"),
    ],
)
def test_two_bad_values_of_a_column_are_refused_in_the_same_words(
    form: Any, column: str, one: Any, other: Any, tmp_path: Path
) -> None:
    own, yours = (visible_text(rejection_of(form(with_cell(column, value), tmp_path))) for value in (one, other))
    assert own == yours
    assert f"'{column}'" in own
    assert "Hint" in own
    assert "Peter" not in own
    assert "xxxx" not in own


def test_four_refused_fits_print_no_category() -> None:
    text = ""
    for name in ("Anna", "Bert", "Carla", "Dora"):
        text += visible_text(rejection_of(as_frame(with_cell("ward", name), Path())))
    assert not [name for name in ("Anna", "Bert", "Carla", "Dora") if name in text]


def test_a_csv_with_decimal_commas_prints_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("age,ward,ill\n31,A,no\n58271,2,B,yes\nPeterPrivate,B,yes\n")
    refusal = rejection_of(path)
    assert "PeterPrivate" not in visible_text(refusal)
    assert "58271" not in visible_text(refusal)
    CLINIC_SCHEMA.save(tmp_path / "schema.json")
    command = ["fit", str(path), "--schema", str(tmp_path / "schema.json"), "-o", str(tmp_path / "m.veilwood")]
    assert main(command) == 2
    output = capsys.readouterr()
    assert "58271" not in output.err
    assert "Peter" not in output.err


@pytest.mark.parametrize("n", [3, 4])
def test_no_length_is_told(n: int) -> None:
    assert str(n) not in visible_text(rejection_of([[1.0, "A"]] * n, ["no"]))
    assert str(n) not in visible_text(rejection_of(np.zeros((n, 0)), ["no"] * n))
    assert str(n) not in visible_text(rejection_of([[1.0, "A"]] * n, np.zeros((n, 2))))


def test_an_inferred_schema_prints_no_value() -> None:
    odd = pa.table({"age": [[1], [77_777]], "ward": ["A", "B"]})
    with pytest.raises(vw.errors.VeilwoodError) as caught:
        vw.Schema.infer(odd, ["no", "no"], "classification")
    assert "77" not in visible_text(caught.value)
    assert "'no'" not in visible_text(caught.value)


# -- what is told instead -----------------------------------------------------------------------------------


@pytest.mark.parametrize("form", [as_frame, as_csv], ids=lambda form: form.__name__)
def test_refusals_stand_in_the_ledger(form: Any, tmp_path: Path) -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    rejection_of(form(with_cell("ward", "Peter Private"), tmp_path), ledger=ledger)
    (entry,) = ledger.entries()
    assert (entry.state, entry.resolution) == ("cancelled", "'ward': unknown category")
    assert "rejected: 'ward': unknown category" in str(ledger)
    ledger.verify()
    assert ledger.spent.epsilon == 0
    spent = vw.MemoryLedger(epsilon="0.1")
    with pytest.raises(vw.BudgetExceededError):  # nobody asks for refusals without a budget
        clinic_forest(ledger=spent).fit(form(with_cell("ward", "Peter Private"), tmp_path))


def test_refusals_of_a_part_stand_in_the_ledger() -> None:
    ledger = vw.MemoryLedger(epsilon=3)
    parts = clinic_forest(ledger=ledger).partial_fit(as_frame(GOOD, Path()))
    for _ in range(2):
        with pytest.raises(vw.OutOfSchemaError):
            parts.partial_fit(as_frame(with_cell("ward", "Peter Private"), Path()))
    assert [entry.resolution for entry in ledger.entries()] == ["'ward': unknown category"] * 2
    assert parts.release().privacy_.epsilon == 1.0
    assert [entry.state for entry in ledger.entries()] == ["cancelled", "cancelled", "committed"]


def test_refusals_of_a_predictor_stand_in_the_ledger() -> None:
    ledger = vw.MemoryLedger(epsilon=1)
    predictor = vw.MatrixForestPredictor(CLINIC_SCHEMA, n_estimators=2, max_depth=1, ledger=ledger)
    with pytest.raises(vw.OutOfSchemaError):
        predictor.fit(as_frame(with_cell("ward", "Peter Private"), Path()))
    assert [(entry.state, entry.resolution) for entry in ledger.entries()] == [
        ("cancelled", "'ward': unknown category")
    ]
    predictor.fit(as_frame(GOOD, Path())).answer(pd.DataFrame(GOOD)[["age", "ward"]])
    for cells in (GOOD, with_cell("ward", "Peter Private")):  # the budget is spent: whether rows fit is not told
        with pytest.raises(vw.BudgetExceededError):
            predictor.fit(as_frame(cells, Path()))


def test_the_data_holder_may_ask_for_values(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text(INVALID_CSV)
    with show_private_values():
        refusal = rejection_of(tmp_path / "rows.csv")
    assert "row 3: 'Anna'" in str(refusal)
    assert "row 2: 'old'" in str(refusal)
    assert "Anna" not in visible_text(rejection_of(tmp_path / "rows.csv"))
