# SPDX-License-Identifier: Apache-2.0
"""Tests of series of releases: one charge, no period twice, the same counts on every engine, files and signatures."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save as write_safetensors

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.errors import (
    BudgetExceededError,
    LedgerError,
    ModelFileError,
    OutOfSchemaError,
    ParameterError,
    UseError,
)
from veilwood.models.file import load, save, sign, sort_header, verify
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.plan import Plan
from veilwood.privacy.signature import generate_key_pair
from veilwood.series import FORMAT, ReleaseSeries, _digest, _read_state, assign_trees

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

SCHEMA = vw.Schema.from_dict({
    "name": "ward", "task": "classification", "target": "ill", "ignore": ["case"],
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "unit", "kind": "categorical", "values": ["a", "b", "c"]},
        {"name": "ill", "kind": "categorical", "values": ["no", "yes"]},
    ],
})  # fmt: skip
STAY = vw.Schema.from_dict({
    "name": "stay", "task": "regression", "target": "days", "ignore": ["case"],
    "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100},
        {"name": "unit", "kind": "categorical", "values": ["a", "b", "c"]},
        {"name": "days", "kind": "numeric", "lower": 0, "upper": 9},
    ],
})  # fmt: skip
T, N_TREES = 4, 40  # with so many trees Gaussian noise is the smaller one


def rows(n: int = 600, target: str = "ill") -> pd.DataFrame:
    rng = np.random.default_rng(3)
    frame = pd.DataFrame({"age": rng.uniform(0, 100, n), "unit": rng.choice(["a", "b", "c"], n)})
    frame["ill"] = np.where(frame["age"] + 9 * rng.standard_normal(n) > 50, "yes", "no")
    frame["days"] = frame["age"] / 12
    return frame[["age", "unit", target]].assign(month=rng.integers(1, T + 1, n))


FORESTS: dict[str, Callable[..., Any]] = {
    "shared": lambda **more: vw.RandomTreesClassifier(
        SCHEMA, n_estimators=N_TREES, max_depth=2, trees="shared", **more
    ),
    "disjoint": lambda **more: vw.RandomTreesClassifier(
        SCHEMA, n_estimators=N_TREES, max_depth=2, trees="disjoint", **more
    ),
    "sized": lambda **more: vw.RandomTreesClassifier(SCHEMA, n_rows=600, trees="shared", **more),
    "regression": lambda **more: vw.RandomTreesRegressor(
        STAY, n_estimators=N_TREES, max_depth=2, trees="shared", **more
    ),
    "matrix": lambda **more: vw.MatrixForestClassifier(SCHEMA, n_estimators=N_TREES, max_depth=2, **more),
    "private": lambda **more: vw.PrivateForestClassifier(SCHEMA, n_rows=600, **more),
}


def table_of(name: str) -> pd.DataFrame:
    table = rows(target="days" if name == "regression" else "ill")
    return table.assign(tree=assign_trees(np.arange(len(table)), b"k" * 16, N_TREES)) if name == "disjoint" else table


def make(
    name: str = "shared", ledger: Any = None, *, epsilon: float = 4.0, delta: float = 1e-6, strategy: str = "auto"
) -> Any:
    forest = FORESTS[name](epsilon=epsilon, delta=delta, random_state=0)
    column = "tree" if name == "disjoint" else None
    held = vw.MemoryLedger() if ledger is None else ledger
    return ReleaseSeries(forest, releases=T, period="month", ledger=held, tree_column=column, strategy=strategy)


# -- releases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("name", FORESTS)
def test_every_release_is_an_ordinary_estimator_of_all_rows_so_far(name: str, delta: float, tmp_path: Path) -> None:
    table, ledger = table_of(name), vw.MemoryLedger()
    series = make(name, ledger, epsilon=40.0, delta=delta)
    for number in range(1, T + 1):
        model = series.release(table)
        save(model, tmp_path / "model.veilwood")
        again = load(tmp_path / "model.veilwood")
        new = table[["age", "unit"]]
        np.testing.assert_array_equal(again.predict(new), model.predict(new))
        assert again.privacy_ == model.privacy_
        np.testing.assert_array_equal(vw.rebuild(again).predict(new), model.predict(new))
        assert model.privacy_.is_private
        assert model.privacy_.epsilon == 40
        assert series._terms.id in model.privacy_.released
        assert model.privacy_.plan_hash == series.plan().fingerprint()
        if name in ("shared", "sized"):  # with hardly any noise the counts are those of the rows
            so_far = int((table["month"] <= number).sum())
            per_tree = model.leaf_counts_.sum() / model.forest_.n_trees
            assert per_tree == pytest.approx(so_far, abs=8)
    free = T + (name == "private")  # tables are chosen in an entry of their own
    assert [entry.state for entry in ledger.entries()] == ["committed"] * (free + 1)
    assert [entry.loss for entry in ledger.entries()[1:]] == [Loss.zero()] * free
    assert ledger.spent == series.plan().loss
    with pytest.raises(UseError):
        series.release(table)


def test_one_charge_within_a_budget() -> None:
    ledger = vw.MemoryLedger(epsilon=4, delta=1e-6)
    series = make(ledger=ledger)
    series.release(rows())
    assert series.release(rows()).privacy_.ledger_entry == ledger.entries()[0].id
    with pytest.raises(BudgetExceededError):
        make(ledger=ledger).release(rows())
    with pytest.raises(BudgetExceededError):
        vw.RandomTreesClassifier(SCHEMA, epsilon=0.1, n_estimators=2, max_depth=2, ledger=ledger).fit(
            rows().drop(columns="month")
        )


def test_a_release_tried_twice_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls, sound = [], Door.release_counts
    monkeypatch.setattr(Door, "release_counts", lambda *args: calls.append(args[1].name) or sound(*args))  # type: ignore[func-returns-value]
    series = make()
    first = series.release(rows(), number=1)
    again = series.release(rows(100), number=1)
    np.testing.assert_array_equal(first.leaf_counts_, again.leaf_counts_)
    assert len(calls) == 1
    with pytest.raises(UseError):
        series.release(rows(), number=3)


def test_rejected_rows_cost_nothing_and_can_be_corrected() -> None:
    ledger = vw.MemoryLedger()
    series = make(ledger=ledger)
    for wrong in (rows().assign(month=9), rows().assign(unit="d"), rows().drop(columns="month")):
        with pytest.raises(OutOfSchemaError):
            series.release(wrong)
    assert [entry.state for entry in ledger.entries()] == ["committed", "cancelled", "cancelled", "cancelled"]
    assert series.release(rows(), number=1).privacy_.is_private


def test_what_cannot_be_a_series_is_refused() -> None:
    plain, three = FORESTS["shared"](epsilon=1.0), vw.Column("m", "categorical", ("1", "2", "3"))
    refused: list[tuple[type[Exception], Callable[[], Any]]] = [
        (ParameterError, lambda: make("disjoint")._check_columns() or ReleaseSeries(
            FORESTS["disjoint"](), releases=T, period="month")),
        (ParameterError, lambda: ReleaseSeries(plain, releases=T, period="month", tree_column="tree")),
        (ParameterError, lambda: ReleaseSeries(plain, releases=0, period="month")),
        (ParameterError, lambda: ReleaseSeries(plain, releases=T, period="month", strategy="best")),
        (ParameterError, lambda: ReleaseSeries(plain, releases=T, period="month", objective="least")),
        (ParameterError, lambda: ReleaseSeries(plain, releases=T, period="month", strategy="banded", bands=9)),
        (ParameterError, lambda: ReleaseSeries(plain, releases=2, period=three)),
        (ParameterError, lambda: ReleaseSeries(plain, releases=2, period=vw.Column("m", "numeric", lower=0, upper=1))),
        (ParameterError, lambda: ReleaseSeries(vw.RandomTreesClassifier(SCHEMA), releases=T, period="month")),
        (ParameterError, lambda: ReleaseSeries(FORESTS["shared"](epsilon=float("inf")), releases=T, period="month")),
        (UseError, lambda: ReleaseSeries(vw.GreedyForestClassifier(SCHEMA, n_rows=9), releases=T, period="month")),
        (UseError, lambda: ReleaseSeries(vw.MedianForestClassifier(SCHEMA, n_rows=9), releases=T, period="month")),
        (ParameterError, lambda: ReleaseSeries(vw.PrivateForestClassifier(SCHEMA), releases=T, period="month")),
        (UseError, lambda: ReleaseSeries(vw.PrivateForestRegressor(STAY, n_rows=9), releases=T, period="month")),
        (UseError, lambda: ReleaseSeries(vw.MatrixForestPredictor(SCHEMA), releases=T, period="month")),  # type: ignore[arg-type]
        (UseError, lambda: ReleaseSeries("forest", releases=T, period="month")),  # type: ignore[arg-type]
        (ParameterError, lambda: ReleaseSeries(plain, releases=T, period="month").release(rows())),
        (UseError, lambda: make().model(1)),
        (ParameterError, lambda: assign_trees([1], b"short", 4)),
        (ParameterError, lambda: assign_trees([1], b"k" * 16, 0)),
    ]  # fmt: skip
    for kind, call in refused:
        with pytest.raises(kind):
            call()


def test_periods_may_be_months_of_a_date_that_the_model_reads_too() -> None:
    period = vw.Column("day", "categorical", values=("2026-01", "2026-02"), prefix=7)
    table = rows().assign(day=lambda frame: np.where(frame["month"] < 3, "2026-01-17", "2026-02-03"))
    forest = FORESTS["shared"](epsilon=40.0, delta=1e-6)
    series = ReleaseSeries(forest, releases=2, period=period, ledger=vw.MemoryLedger())
    first, second = (series.release(table.drop(columns="month")) for _ in range(2))
    assert first.leaf_counts_.sum() / N_TREES == pytest.approx((table["month"] < 3).sum(), abs=8)
    assert second.leaf_counts_.sum() / N_TREES == pytest.approx(len(table), abs=8)


def test_rows_that_vanish_or_arrive_late_count_as_long_as_they_are_there() -> None:
    """Their estimate is the weighted part of their column; the whole of it once they stay."""
    table, series = rows(), make(epsilon=40.0)
    early = table["month"] == 1
    series.release(table[~early])
    late = series.release(table)  # rows of period 1 arrive at release 2
    assert "consent" not in series.withdrawn()
    assert str(len(table)) not in series.withdrawn()
    gone = series.release(table[~early])
    assert abs(late.leaf_counts_.sum() / N_TREES - (table["month"] <= 2).sum()) < early.sum()
    assert gone.leaf_counts_.sum() / N_TREES < (table["month"] <= 3).sum()


# -- units -------------------------------------------------------------------------------------------------------------


def test_of_an_id_the_first_rows_in_time_count(tmp_path: Path) -> None:
    """Later rows never displace earlier ones; in memory, in files and in a database."""
    n = 200
    table = pd.DataFrame({
        "age": 50.0, "unit": np.repeat(["a", "b", "c"], n), "ill": "no", "month": np.repeat([3, 1, 2], n),
        "case": np.tile(np.arange(n), 3),
    }).sample(frac=1, random_state=0)  # fmt: skip
    for engine in engines(table, tmp_path):
        forest = FORESTS["shared"](epsilon=4.0, delta=1e-6, privacy_unit={"id": "case", "at_most": 2}, random_state=0)
        series = ReleaseSeries(
            forest, releases=3, period="month", ledger=vw.MemoryLedger(), strategy="splitting"
        )  # every row weighs 1
        seen: list[int] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Door, "release_counts", partial(note_sum, seen))
            for _ in range(3):
                series.release(engine())
        assert seen == [N_TREES * n, 2 * N_TREES * n, 2 * N_TREES * n]  # the rows of month 3 never count


def note_sum(seen: list[int], step: Any, exact: Ints) -> Ints:
    seen.append(int(exact.sum()))
    return exact


def engines(table: pd.DataFrame, folder: Path) -> list[Callable[[], Any]]:
    """The same rows in memory, in two files, in SQLite and on Dask, each anew for every release."""
    dask = pytest.importorskip("dask")
    frames = pytest.importorskip("dask.dataframe")
    pytest.importorskip("veilwood_engines")
    (folder / "parts").mkdir(exist_ok=True)
    half = len(table) // 2
    table[:half].to_csv(folder / "parts" / "a.csv", index=False)
    table[half:].to_csv(folder / "parts" / "b.csv", index=False)
    with sqlite3.connect(folder / "rows.sqlite") as connection:
        table.to_sql("visits", connection, index=False, if_exists="replace")
    connection.close()
    dask.config.set({"scheduler": "synchronous", "dataframe.shuffle.method": "tasks"})
    return [
        lambda: table,
        lambda: str(folder / "parts"),
        lambda: f"sqlite:///{folder / 'rows.sqlite'}#visits",
        lambda: frames.from_pandas(table, npartitions=3, sort=False),
    ]


@pytest.mark.parametrize("name", FORESTS)
def test_every_engine_counts_the_same_integers(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_of(name)
    found: list[list[Ints]] = []
    for engine in engines(table, tmp_path):
        series, seen = make(name, strategy="toeplitz"), list[Ints]()
        # Without noise, so that equal counts choose equal tables.
        monkeypatch.setattr(Door, "release_counts", lambda *args, seen=seen: seen.append(args[2]) or args[2])
        for _ in range(T):
            series.release(engine())
        found.append(seen)
    for other in found[1:]:
        assert len(other) == len(found[0]) > 0
        for mine, yours in zip(found[0], other, strict=True):
            np.testing.assert_array_equal(mine, yours)
    assert any(exact.sum() > 4096 for exact in found[0])  # weights of the grid, not counts


# -- crashes and two processes -----------------------------------------------------------------------------------------

PROGRAM = """
import os, signal, sys, time
import veilwood as vw, warnings
from veilwood import series as module
from veilwood.privacy.door import Door
warnings.simplefilter("ignore")
folder, moment, number = sys.argv[1], sys.argv[2], int(sys.argv[3])
series = vw.ReleaseSeries.load(f"{folder}/ward.series", ledger=f"{folder}/spends.db")
def die(*args, **kwargs): os.kill(os.getpid(), signal.SIGKILL)
sound, write = Door.release_counts, module.write_file
def counted(*args):
    with open(f"{folder}/measured", "a") as file: file.write(f"{number} {os.getpid()}\\n")
    noisy = sound(*args)
    if moment == "race": time.sleep(2)
    return noisy
Door.release_counts = counted
if moment == "before noise": Door.release_counts = die
if moment == "before writing": module.write_file = die
if moment == "before commit":
    def write_and_die(*args): write(*args); die()
    module.write_file = write_and_die
if moment == "race":
    open(f"{folder}/ready {os.getpid()}", "w").close()
    while len([name for name in os.listdir(folder) if name.startswith("ready")]) < int(sys.argv[4]): time.sleep(0.001)
try:
    series.release(f"{folder}/rows.csv", number=number)
except vw.LedgerError:
    sys.exit(4)
"""


def started(folder: Path, moment: str, number: int, *more: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, "-c", PROGRAM, str(folder), moment, str(number), *more]
    return subprocess.Popen(words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.PIPE)


def prepared(folder: Path) -> Path:
    rows().to_csv(folder / "rows.csv", index=False)
    vw.SQLiteLedger(folder / "spends.db", epsilon=40, delta=1e-6)
    series = make(ledger=folder / "spends.db", epsilon=40.0)
    series.save(folder / "ward.series")
    series.release(folder / "rows.csv")
    return folder


def opened(folder: Path) -> ReleaseSeries:
    return ReleaseSeries.load(folder / "ward.series", ledger=folder / "spends.db")


@pytest.mark.parametrize("moment", ["before noise", "before writing"])
def test_a_killed_release_is_never_measured_again(moment: str, tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    assert started(folder, moment, 2).wait(300) == -signal.SIGKILL
    series, ledger = opened(folder), vw.SQLiteLedger(folder / "spends.db")
    assert series.numbers == [1]
    assert ledger.entries()[-1].state == "reserved"
    for number in (None, 2, 3):
        with pytest.raises((LedgerError, UseError)):
            series.release(folder / "rows.csv", number=number)
    assert started(folder, "as usual", 2).wait(300) == 4
    ledger.resolve(ledger.entries()[-1].id, "power failure")
    with pytest.raises(UseError):
        series.release(folder / "rows.csv", number=2)
    model = series.release(folder / "rows.csv")
    assert series.numbers == [1, 3]
    expected = int((rows()["month"] <= 3).sum())  # with the rows of the lost release
    assert model.leaf_counts_.sum() / N_TREES == pytest.approx(expected, abs=8)
    save(model, tmp_path / "model.veilwood")
    assert load(tmp_path / "model.veilwood").privacy_ == model.privacy_
    assert opened(folder).release(folder / "rows.csv").leaf_counts_.sum() / N_TREES == pytest.approx(len(rows()), abs=8)
    assert ledger.spent == series.plan().loss


def test_a_release_that_was_written_is_published_after_a_kill(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    assert started(folder, "before commit", 2).wait(300) == -signal.SIGKILL
    series = opened(folder)
    assert series.numbers == [1, 2]
    np.testing.assert_array_equal(series.release("nowhere.csv", number=2).leaf_counts_, series.model(2).leaf_counts_)
    assert series.release(folder / "rows.csv").leaf_counts_.sum() / N_TREES == pytest.approx(
        int((rows()["month"] <= 3).sum()), abs=8
    )


def test_two_processes_at_once_measure_a_period_once(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    (folder / "measured").write_text("")
    running = [started(folder, "race", 2, "3") for _ in range(3)]
    codes = sorted(process.wait(300) for process in running)
    assert codes == [0, 4, 4]
    assert len((folder / "measured").read_text().splitlines()) == 1
    assert opened(folder).numbers == [1, 2]
    entries = vw.SQLiteLedger(folder / "spends.db").entries()
    assert [entry.state for entry in entries] == ["committed"] * 3


def test_older_copies_and_other_ledgers_are_refused(tmp_path: Path) -> None:
    folder = prepared(tmp_path)
    older = (folder / "ward.series").read_bytes()
    opened(folder).release(folder / "rows.csv")
    (folder / "ward.series").write_bytes(older)
    with pytest.raises(ModelFileError):
        opened(folder).release(folder / "rows.csv")
    with pytest.raises(LedgerError):
        ReleaseSeries.load(folder / "ward.series", ledger=vw.MemoryLedger()).release(folder / "rows.csv")
    with pytest.raises(ParameterError):
        ReleaseSeries.load(folder / "ward.series").release(folder / "rows.csv")


def edit_file(path: Path, edit: Callable[[dict[str, Any], dict[str, Ints]], Any]) -> None:
    """Rewrite a file of a series as somebody would who knows its format: the checksum holds."""
    state, held = _read_state(path)
    arrays = dict(held)
    edit(state, arrays)
    text = json.dumps(state, sort_keys=True)
    metadata = {"format": FORMAT, "series": text, "sha256": _digest(text, arrays)}
    path.write_bytes(sort_header(write_safetensors(arrays, metadata)))


def costlier_plan(series: ReleaseSeries, opened: bool) -> Callable[[dict[str, Any], dict[str, Ints]], None]:
    """The plan of the same series at a hundred times its loss."""
    other = make(epsilon=400.0)
    other._terms = replace(other._terms, id=series._terms.id)

    def edit(state: dict[str, Any], arrays: dict[str, Ints]) -> None:
        state["parameters"]["epsilon"], state["plan"] = 400.0, other.plan().to_dict()
        state["opened"] = state["opened"] if opened else None

    return edit


def other_months(state: dict[str, Any], arrays: dict[str, Ints]) -> None:
    state["plan"]["choices"]["series"]["period"]["values"] = ["2", "1", "3", "4"]


@pytest.mark.parametrize("change", ["loss", "loss before opening", "periods"])
def test_a_plan_that_was_not_charged_is_refused(change: str, tmp_path: Path) -> None:
    """Whoever can write the file gets no other plan under the charge of the first."""
    ledger, file = vw.SQLiteLedger(tmp_path / "spends.db", epsilon=4, delta=1e-6), tmp_path / "ward.series"
    series = make(ledger=ledger)
    series.save(file)
    series.release(rows())
    edit = other_months if change == "periods" else costlier_plan(series, change == "loss")
    edit_file(file, edit)
    ReleaseSeries.load(file)  # the file itself is consistent
    with pytest.raises(LedgerError):
        ReleaseSeries.load(file, ledger=ledger)
    late = ReleaseSeries.load(file)
    late._ledger = ledger
    for each, kind in ((late, LedgerError), (series, ModelFileError)):
        with pytest.raises(kind):
            each.release(rows())
        with pytest.raises(kind):
            each.release(rows(), number=1)
    assert len(ledger.entries()) == 2


def test_tables_are_chosen_once_whoever_dies_or_comes_twice(tmp_path: Path) -> None:
    rows().to_csv(tmp_path / "rows.csv", index=False)
    ledger = vw.SQLiteLedger(tmp_path / "spends.db", epsilon=80, delta=1e-6)
    make("private", ledger, epsilon=40.0).save(tmp_path / "ward.series")
    (tmp_path / "measured").write_text("")
    assert sorted(each.wait(300) for each in [started(tmp_path, "race", 1, "2") for _ in range(2)]) == [0, 4]
    assert len((tmp_path / "measured").read_text().splitlines()) == 2  # the choice and the release, once each
    first, again = opened(tmp_path).model(1), opened(tmp_path).release(tmp_path / "rows.csv")
    assert first.plan_.choices["chosen"] == again.plan_.choices["chosen"]
    make("private", ledger, epsilon=40.0).save(tmp_path / "ward.series")
    assert started(tmp_path, "before noise", 1).wait(300) == -signal.SIGKILL
    with pytest.raises(LedgerError):
        opened(tmp_path).release(tmp_path / "rows.csv")
    ledger.resolve(ledger.entries()[-1].id, "power failure")
    model = opened(tmp_path).release(tmp_path / "rows.csv")  # with tables that need no rows
    assert "chosen" not in model.plan_.choices
    save(model, tmp_path / "model.veilwood")
    new = rows()[["age", "unit"]]
    np.testing.assert_array_equal(vw.rebuild(load(tmp_path / "model.veilwood")).predict(new), model.predict(new))


def test_an_older_copy_does_not_choose_again(tmp_path: Path) -> None:
    ledger = vw.MemoryLedger()
    series = make("private", ledger)
    series.save(tmp_path / "ward.series")
    older = (tmp_path / "ward.series").read_bytes()
    series.release(rows())
    (tmp_path / "ward.series").write_bytes(older)
    with pytest.raises(ModelFileError):
        ReleaseSeries.load(tmp_path / "ward.series", ledger=ledger).release(rows())


@pytest.mark.parametrize("forgery", ["more tables", "other groups", "odd groups"])
def test_forged_tables_are_refused(forgery: str, tmp_path: Path) -> None:
    model = make("private").release(rows())
    forged = json.loads(model.plan_.to_json())
    tables = forged["choices"]["chosen"]
    forged["choices"]["chosen"] = {
        "more tables": [*tables, [2]], "other groups": [[table[0], 3] if len(table) > 1 else table for table in tables],
        "odd groups": [[*table, 7, 7] for table in tables],
    }[forgery]  # fmt: skip
    model.plan_ = Plan.from_dict(forged)
    save(model, tmp_path / "model.veilwood")
    with pytest.raises(ModelFileError):
        load(tmp_path / "model.veilwood")


def test_an_entry_resolved_too_early_ends_the_release() -> None:
    ledger = vw.MemoryLedger()
    series, sound = make(ledger=ledger), Door.release_counts
    series.release(rows())

    def resolve(*args: Any) -> Any:
        ledger.resolve(ledger.entries()[-1].id, "too early")
        return sound(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "release_counts", resolve)
        with pytest.raises(LedgerError):
            series.release(rows())
    assert series.numbers == [1]
    assert series.release(rows()).privacy_.is_private
    assert series.numbers == [1, 3]


# -- files and signatures ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORESTS)
def test_a_series_is_read_back_from_its_file(name: str, tmp_path: Path) -> None:
    ledger, table = vw.MemoryLedger(), table_of(name)
    series = make(name, ledger)
    series.save(tmp_path / "ward.series")
    series.release(table)
    again = ReleaseSeries.load(tmp_path / "ward.series", ledger=ledger)
    assert again.plan() == series.plan()
    assert again.numbers == [1]
    again.release(table)
    new = table[["age", "unit"]]
    np.testing.assert_array_equal(series.release(table, number=2).predict(new), again.model().predict(new))
    assert repr(again).endswith("made: 1, 2)")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    series = make()
    series.save(tmp_path / "ward.series")
    series.release(rows())
    content = (tmp_path / "ward.series").read_bytes()
    for place in range(0, len(content), max(1, len(content) // 60)):
        (tmp_path / "bad").write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ModelFileError):
            ReleaseSeries.load(tmp_path / "bad")
    for wrong in (b"", b"{}", content[: len(content) // 2]):
        (tmp_path / "bad").write_bytes(wrong)
        with pytest.raises(ModelFileError):
            ReleaseSeries.load(tmp_path / "bad")
    with pytest.raises(ModelFileError):
        ReleaseSeries.load(tmp_path / "none")


def test_the_plan_of_a_series_is_signed_on_the_first_day(tmp_path: Path) -> None:
    series = make()
    series.plan().save(tmp_path / "plan.json")
    generate_key_pair(tmp_path / "clinic.key")
    sign(tmp_path / "plan.json", tmp_path / "clinic.key")
    verify(tmp_path / "plan.json", tmp_path / "clinic.key.pub")
    for number in (1, 2):
        save(series.release(rows()), tmp_path / f"{number}.veilwood")
        sign(tmp_path / f"{number}.veilwood", tmp_path / "clinic.key")
        signed = verify(tmp_path / f"{number}.veilwood", tmp_path / "clinic.key.pub", tmp_path / "plan.json")
        assert signed["plan_hash"] == Plan.load(tmp_path / "plan.json").fingerprint()
    assert "splitting" in series.plan().notes["time"]


def test_a_model_with_another_time_factor_is_refused(tmp_path: Path) -> None:
    """A forger who claims the noise of a single release."""
    model = make().release(rows())
    forged = json.loads(model.plan_.to_json())
    forged["choices"]["series"]["weights"] = "1; 0 1; 0 0 1; 0 0 0 1"
    model.plan_ = Plan.from_dict(forged)
    save_path = tmp_path / "model.veilwood"
    save(model, save_path)
    with pytest.raises(ModelFileError):
        load(save_path)
