# SPDX-License-Identifier: Apache-2.0
"""Discovery of schemas, attacked; values of columns without a schema."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from veilwood.cli.main import main
from veilwood.data.dialect import Dialect
from veilwood.data.schema import Schema
from veilwood.drafting.discover import (
    N_MAGNITUDES,
    discover,
    magnitude_bounds,
    magnitude_of,
    open_schemaless,
    plan_discovery,
)
from veilwood.errors import BudgetExceededError, OutOfSchemaError, ParameterError, SchemaError
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.neighbours import Neighbours, RowsOf
from veilwood.privacy.noise import DiscreteGaussian, ThresholdedGaussian
from veilwood_audit.noninterference import compare_runs, find_interference
from veilwood_testing.errors import rejects


def people(n: int = 3000) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame({
        "patient": [f"p{row // 2}" for row in range(n)], "age": rng.integers(18, 90, n),
        "pay": rng.normal(3000, 400, n), "ward": rng.choice(["A", "B", "C"], n), "code": rng.integers(0, 2, n),
        "note": [f"note {row}" for row in range(n)], "ill": rng.choice(["no", "yes"], n),
    }).astype(object)  # fmt: skip


UNIT = {"id": "patient", "at_most": 2}


def test_a_schema_is_discovered() -> None:
    ledger = MemoryLedger(epsilon=3, delta=1e-5)
    found = discover(people(), epsilon=2.0, delta=1e-6, privacy_unit=UNIT, ledger=ledger, name="clinic")
    schema = found.schema
    assert schema.feature_names == ("age", "pay", "ward", "code")
    assert schema.ignore == ("patient", "note")
    assert [column.kind for column in schema.features] == ["numeric", "numeric", "categorical", "categorical"]
    assert schema.features[0].bounds == (16, 128)
    assert schema.features[2].values == ("A", "B", "C", "other")
    assert schema.classes == ("no", "yes")
    assert all(column.nullable for column in schema.features)
    assert not schema.inferred
    assert found.privacy.is_private
    assert (found.privacy.epsilon, found.privacy.delta) == (2.0, 1e-6)
    assert not any("nothing in it was read from the data" in text for text in found.privacy.assumptions)
    assert any("names of the columns" in text for text in found.privacy.assumptions)
    assert Schema.from_dict(json.loads(json.dumps(found.to_dict()))) == schema
    with pytest.raises(BudgetExceededError):
        discover(people(), epsilon=2.0, delta=1e-6, ledger=ledger)


def test_regression_and_public_classes() -> None:
    table = people()[["ward", "pay"]]
    assert discover(table, epsilon=2.0, delta=1e-6).schema.task == "regression"
    found = discover(
        people(), "ill", epsilon=1.0, delta=0.0, classes=["no", "yes"], bounds_only=True, ignore=["patient"]
    )
    assert found.schema.feature_names == ("age", "pay", "code")  # 0 and 1 are numbers, as far as bounds go
    assert found.plan.loss.delta == 0
    assert found.schema.classes == ("no", "yes")


def test_categories_are_refused_without_a_delta() -> None:
    ledger = MemoryLedger(epsilon=3)
    with rejects(ParameterError, name="delta"):
        discover(people(), epsilon=1.0, delta=0.0, ledger=ledger)
    assert list(ledger.entries()) == []


# -- attacks -----------------------------------------------------------------------------------------------------------


def appearances(runs: int, delta: float) -> int:
    """How often the village that one patient has comes out, in her two rows."""
    table = pd.DataFrame({
        "patient": [*(f"p{row}" for row in range(300)), "x", "x"], "home": ["Ulm", "Bonn"] * 150 + ["Secretville"] * 2,
        "ill": ["no", "yes"] * 151,
    })  # fmt: skip
    seen = 0
    for _ in range(runs):
        found = discover(table, epsilon=4.0, delta=delta, privacy_unit=UNIT)
        seen += "Secretville" in json.dumps(found.to_dict())
    return seen


def test_a_value_of_one_person_comes_out_with_probability_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, delta = 150, 0.01
    most = int(binom.isf(1e-7, runs, delta))
    assert appearances(runs, delta) <= most
    monkeypatch.setattr(ThresholdedGaussian, "perturb", with_a_low_threshold)
    assert appearances(runs, delta) > most


def with_a_low_threshold(mechanism: ThresholdedGaussian, counts: Any) -> tuple[Any, Any]:
    """What the attack must see: the planned noise, and a quarter of the threshold."""
    noisy = DiscreteGaussian(mechanism.sigma_squared).perturb(counts)
    places = np.flatnonzero(noisy > mechanism.threshold // 4)
    return places, noisy[places]


def test_neighbours_differ_by_no_more_than_planned() -> None:
    """Sensitivity by enumeration: for random tables, take one unit away and compare all counts."""
    rng = np.random.default_rng(1)
    columns, cells = ["a", "b", "c"], [0, 1, 7, "7.0", "x", "y", None, -2.5, "01", float("nan"), [3], "1e400"]
    for _ in range(60):
        n = int(rng.integers(1, 12))
        frame = pd.DataFrame(
            {name: [cells[i] for i in rng.integers(0, len(cells), n)] for name in columns}, dtype=object
        )
        frame["id"] = [f"p{i}" for i in rng.integers(0, 4, n)]
        rows = int(frame.groupby("id").size().max())
        plan = plan_discovery(columns, epsilon=1.0, delta=1e-6, neighbours=Neighbours("add-remove", RowsOf("id", rows)))
        (step,) = plan.steps
        mechanism = step.mechanism
        assert isinstance(mechanism, ThresholdedGaussian)
        full = counted(frame, columns, RowsOf("id", rows))
        for person in frame["id"].unique():
            less = counted(frame[frame["id"] != person], columns, RowsOf("id", rows))
            change = {key: full[key] - less[key] for key in full | less}
            assert sum(value**2 for value in change.values()) <= step.sensitivity
            new = {key: full[key] for key in full if not less[key]}
            assert len(new) <= mechanism.max_changed_keys
            assert max(new.values(), default=0) <= mechanism.max_contribution


def counted(frame: pd.DataFrame, columns: list[str], cap: RowsOf | None) -> Counter[Any]:
    texts, sizes = open_schemaless(frame).count_values(columns, cap)
    found: Counter[Any] = Counter()
    for place, name in enumerate(columns):
        found.update({(name, text): count for text, count in texts[place].items()})
        found.update({(name, size): int(count) for size, count in enumerate(sizes[place]) if count})
    return found


def test_the_planned_sensitivity_is_attained() -> None:
    """A person of two rows, alone with all that is in them: a bound that could be halved would be seen here."""
    frame = pd.DataFrame({"id": ["x", "x"], "a": [3, 3], "b": [5, 5]})
    (step,) = plan_discovery(
        ["a", "b"], epsilon=1.0, delta=1e-6, neighbours=Neighbours("add-remove", RowsOf("id", 2))
    ).steps
    found = counted(frame, ["a", "b"], RowsOf("id", 2))
    assert sum(value**2 for value in found.values()) == step.sensitivity


# -- noninterference: with what comes out forced, nothing tells neighbours apart ---------------------------------------

ODD = [None, float("nan"), [1, 2], "x" * 10_000, "\ud800", 10**400, b"\xff", float("inf"), "=1+1", pd.NaT]


def forced(mechanism: ThresholdedGaussian, counts: Any) -> tuple[Any, Any]:
    """Let out what many have, with a count that follows from the step alone."""
    places = np.flatnonzero(counts >= 100)
    return places, np.full(len(places), mechanism.threshold + 7)


SETTINGS: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "privacy_unit": UNIT}


def in_memory(table: pd.DataFrame, folder: Path) -> Any:
    return discover(table, **SETTINGS, ledger=MemoryLedger(epsilon=1, delta=1e-5)).to_dict()


def by_command(raw: bytes, folder: Path) -> list[int]:
    """Discover the schema of a file by the command line, with a ledger, once more than the budget allows."""
    (folder / "t.csv").write_bytes(raw)
    words = ["schema", "discover", str(folder / "t.csv"), "--epsilon", "1", "--delta", "1e-6", "--sep", ";",
             "--encoding", "latin-1", "--privacy-unit", json.dumps(UNIT), "--ledger", "l.db", "-o"]  # fmt: skip
    created = main(["ledger", "create", "l.db", "--epsilon", "1", "--delta", "1e-5"])
    return [created, main([*words, "out.json"]), main([*words, "again.json"])]


def test_neighbours_leave_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThresholdedGaussian, "perturb", forced)
    table = people(1200)[["patient", "age", "ward", "note", "ill"]]
    for odd in ODD:
        row = pd.DataFrame([["new", odd, odd, odd, odd]], columns=table.columns, dtype=object)
        for more in (pd.concat([row, table]), pd.concat([table, row, row])):
            seen, found = compare_runs(in_memory, table, more)
            assert found == [], odd
            assert "certificate" in seen.visible["returned"]
    assert find_interference(in_memory, table, table.iloc[::-1]) == []


def test_files_of_neighbours_leave_the_same_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThresholdedGaussian, "perturb", forced)
    text = people(1200)[["patient", "age", "ward", "ill"]].to_csv(index=False, sep=";").encode("latin-1")
    for more in (b"new;1;A;yes\n", b"new;\xff\x81;;\n", b"new;1;2;3;4;5;6\n", b"new\n", b'new;"a\nb";"c";d\n'):
        seen, found = compare_runs(by_command, text, text + more)
        assert found == [], more
        assert seen.visible["returned"] == [0, 0, 3]
        assert {"out.json", "l.db"} <= set(seen.visible["files"])


def test_a_number_of_rows_that_slips_out_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the two tests above would see: a discovery that names the schema after its rows."""
    monkeypatch.setattr(ThresholdedGaussian, "perturb", forced)
    table = people(1200)

    def leaks(table: pd.DataFrame, folder: Path) -> Any:
        return discover(table, **SETTINGS, name=f"of {len(table)}").to_dict()

    assert find_interference(leaks, table, table.iloc[1:])


def test_no_row_is_refused_and_no_table_too_small() -> None:
    """Whether a table has rows, or has any that can be used, shows in nothing but what stands out."""
    for table in (people(3).iloc[:0], people(3)):
        with rejects(SchemaError, raised_in="_infer_schema"):
            discover(table, epsilon=1.0, delta=1e-6)
    with rejects(OutOfSchemaError, column="ill", raised_in="discover"):
        discover(people(3).drop(columns="ill"), "ill", epsilon=1.0, delta=1e-6)
    with rejects(OutOfSchemaError, raised_in="open_schemaless"):
        discover(np.zeros((3, 2)), epsilon=1.0, delta=1e-6)
    with rejects(ParameterError, name="ignore"):
        discover(people(3), epsilon=1.0, delta=1e-6, ignore=["*"])
    with rejects(OutOfSchemaError, column="who", raised_in="discover"):
        discover(people(3), epsilon=1.0, delta=1e-6, privacy_unit={"id": "who", "at_most": 2})


def test_a_dialect_is_read(tmp_path: Path) -> None:
    rows = "".join(f"{'k.A.' if n % 5 == 0 else f'1.{100 + n % 800},5 €'};{'jn'[n % 2]}\n" for n in range(2000))
    (tmp_path / "t.csv").write_text("kosten;krank\n" + rows, encoding="cp1252")
    dialect = Dialect(sep=";", decimal=",", thousands=".", encoding="cp1252", nulls=("k.A.",), money=True)
    schema = discover(tmp_path / "t.csv", epsilon=2.0, delta=1e-6, dialect=dialect).schema
    assert schema.features[0].bounds == (1024, 2048)
    assert schema.dialect == dialect


def test_rows_of_an_id_are_capped_over_all_columns_and_the_same_number_is_one_thing() -> None:
    frame = pd.DataFrame({"id": ["x"] * 50 + [None], "a": [7, "7", 7.0, "7.00", "7"] * 10 + [7], "b": ["u"] * 51})
    texts, sizes = open_schemaless(frame.astype(object)).count_values(["a", "b"], RowsOf("id", 3))
    assert texts == [{"7": 3}, {"u": 3}]
    assert sizes[0, magnitude_of(np.array([7.0]))[0]] == sizes.sum() == 3


def test_sizes_are_those_of_the_numbers_and_in_their_order() -> None:
    numbers = np.array([-1e300, -3.0, -1e-300, 0.0, 1e-300, 0.4, 1.0, 2.0, 1e300])
    sizes = magnitude_of(numbers)
    assert np.all(np.diff(sizes) >= 0)
    assert sizes.min() >= 0
    assert sizes.max() == N_MAGNITUDES - 1
    for number in np.random.default_rng(0).normal(0, 1000, 200):
        low, high = magnitude_bounds(int(magnitude_of(np.array([number]))[0]))
        assert low <= number <= high


def test_codes_and_nonsense_are_no_numbers() -> None:
    cells = ["007", "7", 7, None, [7], "1e999", float("inf"), "x", True, "0", "0.5"]
    texts, sizes = open_schemaless(pd.DataFrame({"a": pd.Series(cells, dtype=object)})).count_values(["a"], None)
    assert sizes.sum() == 5  # "7", 7, True, "0" and "0.5"
    assert texts[0].total() == len(cells) - 2  # a list and nothing have no text


def test_files_are_counted_together_and_read_by_their_dialect(tmp_path: Path) -> None:
    for part, rows in (("a", "1,5;x\n2;y\n"), ("b", "1,5;x\nk.A.;x;too;many\n")):
        (tmp_path / f"{part}.csv").write_text("n;t\n" + rows)
    sources = open_schemaless(tmp_path, Dialect(sep=";", decimal=",", nulls=("k.A.",)))
    assert (sources.name, sources.names) == ("a", ("n", "t"))
    texts, sizes = sources.count_values(["n", "t"], None)
    assert texts == [{"1,5": 2, "2": 1}, {"x": 2, "y": 1}]
    assert sizes[0].sum() == 3
    (tmp_path / "c.csv").write_text("n;u\n")
    with rejects(OutOfSchemaError, raised_in="open_schemaless"):
        open_schemaless(tmp_path, Dialect(sep=";"))
