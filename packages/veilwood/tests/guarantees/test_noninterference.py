# SPDX-License-Identifier: Apache-2.0
"""Noninterference: with every mechanism's outcome forced, neighbouring tables leave the same traces to the last byte.

The pairs are drawn in fixtures/neighbour_pairs.py; tens of thousands of them run in test_noninterference_slow.py. Each
kind of leak is planted once, and must be caught.
"""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood import safe_io as atomic_file
from veilwood.cli.main import main
from veilwood.estimators.base import BaseForest
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood_audit.noninterference import (
    compare_runs,
    find_interference,
    record_trace,
    result_or_error,
    visible_values,
)
from veilwood_testing.neighbour_pairs import (
    DROPS,
    FORMS,
    INVALID,
    NAMES,
    ODD,
    SCHEMAS,
    SETTINGS,
    SMALL,
    TARGETS,
    Pair,
    Row,
    discovery_of,
    pair_of,
    weighed_pair_of,
    write_csv,
)  # fmt: skip

PAIRS = 6  # of each setting
FEWER = 3  # of those that take a second each


def test_every_estimator_has_its_pairs() -> None:
    assert {name for name, _ in SETTINGS} == set(estimators.__all__)


def numbers_of(setting: int) -> range:
    count = FEWER if SETTINGS[setting][0] == "PrivateForestClassifier" else PAIRS
    return range(setting, setting + len(SETTINGS) * count, len(SETTINGS))


def found_in(pair: Pair) -> list[str]:
    return find_interference(pair.run, pair.one, pair.other, draw=pair.draw)


@pytest.mark.parametrize("setting", range(len(SETTINGS)), ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_valid_neighbours_leave_the_same_traces(setting: int) -> None:
    for number in numbers_of(setting):
        pair = pair_of(number)
        assert found_in(pair) == [], pair


@pytest.mark.skipif(not DROPS, reason="invalid='drop' is not there yet")
@pytest.mark.parametrize("setting", range(len(SETTINGS)), ids=lambda setting: f"{setting} {SETTINGS[setting][0]}")
def test_all_neighbours_leave_the_same_traces_where_invalid_rows_are_dropped(setting: int) -> None:
    for number in numbers_of(setting)[:3]:
        pair = pair_of(number, drop=True)
        assert found_in(pair) == [], pair


def test_neighbours_whose_schema_is_discovered_leave_the_same_traces() -> None:
    for number in range(24):
        pair = discovery_of(number)
        assert find_interference(pair.run, pair.one, pair.other, draw=pair.draw) == [], pair.number


@pytest.mark.skipif(not DROPS, reason="invalid='drop' is not there yet")
@pytest.mark.parametrize("form", ["list", "iterator", "csv"])
@pytest.mark.parametrize("trees", ["shared", "disjoint"])
def test_whether_there_was_any_row_cannot_be_seen(trees: str, form: str) -> None:
    row: Row = {"age": 37.5, "income": 5, "city": "Lima", "grade": 1, "ill": 1}
    params = SMALL | {"trees": trees, "invalid": "drop", "random_state": 0, "n_jobs": 1}
    pair = Pair("RandomTreesClassifier", params, form, False, [row], [], "first", 0, 0, [row])
    assert found_in(pair) == []


@pytest.mark.parametrize("number", [0, 3, 14, 18, 26])
def test_neighbours_whose_rows_are_weighed_leave_the_same_traces(number: int) -> None:
    """A forest that counts rows where they are replaced took the exact sum of their weights into its plan."""
    for drop in (False, True):
        pair = weighed_pair_of(number, drop=drop)
        trace, lines = compare_runs(pair.run, pair.one, pair.other, draw=pair.draw)
        assert isinstance(trace.visible["returned"], dict), trace.visible["returned"][-1]
        assert lines == [], pair


@pytest.mark.parametrize("Forest", [vw.PrivateForestClassifier, vw.PrivateForestRegressor])
def test_how_many_rows_replaced_weights_make_is_not_seen(Forest: Any) -> None:
    task = Forest._task

    def fit(weight: float, folder: Path) -> Any:
        rows = [{"age": 37.5, "income": 5, "city": "Lima", "grade": 1, "ill": 1}] * 40
        forest = Forest(SCHEMAS[task], adjacency="replace-one", max_weight=5, random_state=0, n_jobs=1)
        forest.fit(pd.DataFrame(rows), sample_weight=[1.0] * 39 + [weight])
        visible = visible_values(forest)
        return visible | {"loaded": str(vw.load("model.veilwood").plan_)}

    assert find_interference(fit, 1.0, 5.0) == []


@pytest.mark.parametrize("setting", [1, 3, 13, 15, 18])
def test_neighbours_of_forests_that_choose_their_size_leave_the_same_traces(setting: int) -> None:
    for number in (setting, setting + len(SETTINGS)):
        pair = pair_of(number, drop=True, form="frame", sized=True)
        trace, lines = compare_runs(pair.run, pair.one, pair.other, draw=pair.draw)
        assert isinstance(trace.visible["returned"], dict), trace.visible["returned"][-1]
        assert lines == [], pair


@pytest.mark.parametrize("form", ["address", "query", "spool"])  # of HANDED_OVER; all are in the slow tests
def test_neighbours_handed_over_by_other_libraries_leave_the_same_traces(form: str) -> None:
    for number in (1, 14):  # one pass, several passes
        pair = pair_of(number, drop=True, form=form)
        assert found_in(pair) == [], pair


def test_the_pairs_reach_what_they_should() -> None:
    """Every form, unit, adjacency, place and size is drawn, fits succeed, and rows move what is released."""
    drawn: Counter[str] = Counter()
    for number in (n for setting in range(len(SETTINGS)) for n in numbers_of(setting)):
        pair = pair_of(number)
        unit = pair.params.get("privacy_unit", "row")
        drawn.update([pair.form, pair.place, f"{len(pair.other)} rows", f"delta {pair.params['delta']}"])
        drawn.update([pair.params["adjacency"], f"epsilon {pair.params['epsilon']}", type(unit).__name__])
        drawn["in parts"] += pair.in_parts
    wanted = {*FORMS, "first", "middle", "last", "spread", "in parts", "str", "int", "dict", "delta 0.0", "delta 1e-06"}
    wanted |= {"add-remove", "replace-one", "epsilon 0.1", "epsilon 1.0", "epsilon 20.0", "1 rows"}
    assert {name for name in wanted if drawn[name] < 3} == set()


def test_rows_reach_the_fine_cells(tmp_path: Path) -> None:
    """Coins that hold all rows back would leave nothing to be told apart."""
    rows = [pair_of(0).other[0] | {"age": float(age), "ill": age % 3} for age in range(60)]
    params = {"epsilon": 20.0, "n_rows": 3000, "random_state": 0, "n_jobs": 1}
    pair = Pair("PrivateForestClassifier", params, "list", False, rows, rows[1:], "first", 0, 0, rows[:2])
    one, other = (record_trace(pair.run, table, tmp_path / "run", pair.draw).events for table in (pair.one, pair.other))
    reached = {own.step.name: (own.exact, yours.exact) for own, yours in zip(one, other, strict=True) if own.step}
    for name in ("classes by column", "fine cells", "weight of fine cells"):
        exact = reached[name][0]
        counted = sum(exact.values()) if isinstance(exact, dict) else int(np.asarray(exact).sum())
        assert counted > 0, name
    assert reached["fine cells"][0] != reached["fine cells"][1]


# -- one odd cell -------------------------------------------------------------------------------------------

KNOWN: set[tuple[str, str]] = set()  # cells that are known to interfere: column and value; each must be mended
ODDER: dict[str, list[Any]] = {
    "age": [Decimal("12.5"), True, pd.NaT, pd.NA, np.longdouble("1e4000"), np.float16(3), np.uint64(2**64 - 1)],
    "income": [10**300],
    "city": [pd.NA, b"Lima", pd.Timestamp("2020"), np.str_("Lima"), Decimal("7.0"), "\x00", INF := float("inf")],
    "grade": [np.float16(3.0), np.str_("2")],
    "classification": [np.bool_(True), pd.Timestamp("2020"), INF, -(2**63)],
    "regression": [Decimal("1.5"), 10**300],
}
ODD_CELLS = [(column, value) for column in ODD for value in [*ODD[column], *ODDER[column]]]


@pytest.mark.parametrize("form", ["list", "array", "frame"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        pytest.param(column, value, id=f"{column} {value!r:.30}", marks=[
            pytest.mark.xfail(strict=True, reason="known to interfere")
        ] * ((column, repr(value)) in KNOWN))
        for column, value in ODD_CELLS
    ],
)  # fmt: skip
def test_an_odd_cell_of_one_row_changes_nothing_for_the_others(column: str, value: Any, form: str) -> None:
    task = column if column in TARGETS else "classification"
    rows: list[Row] = [
        {"age": 37.5, "income": 12, "city": "Lima", "grade": 1, "ill": 1},
        {"age": 3.0, "income": 500.5, "city": "rest", "grade": 2, "ill": 0},
    ]
    odd = rows[0] | {"ill" if column in TARGETS else column: value}
    name = f"RandomTrees{'Classifier' if task == 'classification' else 'Regressor'}"
    place = "last" if form == "array" else "first"
    with_it = [*rows, odd] if place == "last" else [odd, *rows]
    params = SMALL | {"random_state": 0, "n_jobs": 1}
    assert found_in(Pair(name, params, form, False, with_it, rows, place, 0, 0, rows)) == []


@pytest.mark.parametrize(
    ("column", "one", "other"),
    [("grade", 4, "one"), ("income", "abc", "12 EUR"), ("city", [1, 2], {"x": 1}), ("income", None, float("nan"))],
)
@pytest.mark.parametrize("form", ["list", "frame", "csv"])
def test_a_refusal_tells_the_kind_of_problem_and_no_value(column: str, one: Any, other: Any, form: str) -> None:
    if form == "csv" and column == "city":
        return  # a list is a text there, and texts are categories
    row: Row = {"age": 37.5, "income": 12, "city": "Lima", "grade": 1, "ill": 1}
    tables = [[row, row | {column: value}] for value in (one, other)]
    params = SMALL | {"random_state": 0, "n_jobs": 1}
    pair = Pair("RandomTreesClassifier", params, form, False, tables[0], tables[1], "last", 0, 0, [row])
    assert found_in(pair) == []
    assert result_or_error(lambda: pair.run(pair.one, Path("nowhere")))[0] in ("OutOfSchemaError", "FileNotFoundError")


# -- the command line ---------------------------------------------------------------------------------------


def commands(family: str, *more: str) -> Callable[[list[Row], Path], dict[str, Any]]:
    def program(rows: list[Row], folder: Path) -> dict[str, Any]:
        task = "classification"
        SCHEMAS[task].save(folder / "clinic.json")
        write_csv(rows, task, folder / "rows.csv")
        write_csv(pair_of(0).queries, task, folder / "queries.csv")
        table, schema, model = str(folder / "rows.csv"), str(folder / "clinic.json"), "clinic.veilwood"
        lines = [
            ["schema", "check", table, "--schema", schema],
            ["ledger", "create", "spends.db", "--epsilon", "30"],
            ["plan", table, "--schema", schema, "--estimator", family, "-o", "plan.json", *more],
            ["fit", table, "--schema", schema, "--estimator", family, "--ledger", "spends.db", "-o", model, *more],
            ["fit", table, "--schema", schema, "--estimator", family, "--json", "--force", "-o", model, *more],
            ["fit", table, "--schema", schema, "--plan", "plan.json", "-o", "planned.veilwood"],
            ["fit", table, "--schema", schema, "--estimator", family, "--param", "invalid=drop", "-o", "drop", *more],
            ["evaluate", model, table, "--epsilon", "2", "--ledger", "spends.db", "-o", "quality.json"],
            ["evaluate", model, table, "--epsilon", "2", "--delta", "1e-6", "--drop", "--json"],
            ["report", model, "--evaluation", "quality.json", "--ledger", "spends.db", "-o", "clinic.html"],
            ["predict", model, str(folder / "queries.csv"), "--proba"],
            ["certificate", model],
            ["audit", "model", model, "--json"],
            ["ledger", "show", "spends.db", "--json"],
            ["ledger", "verify", "spends.db"],
            ["fit", table, "--schema", schema, "--estimator", family, "--ledger", "spends.db", *more, "--epsilon=40"],
        ]
        return {" ".join(line): main(line) for line in lines}

    return program


@pytest.mark.usefixtures("cached_strategies")
@pytest.mark.parametrize("family", [
    "random-trees", "private-forest",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("greedy-forest", "median-forest", "matrix-forest")),
])  # fmt: skip
def test_the_command_line_says_the_same_about_neighbours(family: str, tmp_path: Path) -> None:
    small = ["--param", "n_estimators=2", "--param", "max_depth=2"] if family != "private-forest" else []
    program = commands(family, *small)
    pair = pair_of(0, form="csv")
    rows = [{name: row[name] for name in NAMES} | {"ill": place % 3} for place, row in enumerate(pair.other)]
    added = {"age": float("inf"), "income": 10**30, "city": "x" * 9000, "grade": "3.0", "ill": 2**70}
    assert find_interference(program, [added, *rows], rows) == []
    codes = record_trace(program, rows, tmp_path / "run").visible["returned"]
    *done, over_budget = codes.values()
    assert set(done) == {0}, codes
    assert over_budget != 0  # over budget: refused, with the same words


# -- planted leaks ------------------------------------------------------------------------------------------


@pytest.fixture
def pair() -> Pair:
    rows: list[Row] = [
        {"age": float(3 * i), "income": 12.5, "city": "Lima", "grade": 1 + i % 3, "ill": i % 3} for i in range(6)
    ]
    added = {"age": 99.0, "income": 7.0, "city": "elsewhere", "grade": 2, "ill": 2**63}
    params = SMALL | {"random_state": 0, "n_jobs": 1, "epsilon": 20.0}
    return Pair("RandomTreesClassifier", params, "list", False, [added, *rows], rows, "first", 1, 0, rows)


def after_fit(monkeypatch: pytest.MonkeyPatch, leak: Callable[[Any, Any, Any], None]) -> None:
    """Let every fit leak something about its rows once it is done."""
    sound = BaseForest.fit

    def leaking(self: Any, X: Any, y: Any = None, **more: Any) -> Any:
        sound(self, X, y, **more)
        leak(self, X, y)
        return self

    monkeypatch.setattr(BaseForest, "fit", leaking)


def test_nothing_is_found_where_nothing_is_planted(pair: Pair) -> None:
    assert found_in(pair) == []


def keep_total(model: Any, X: Any, y: Any) -> None:
    model.total_ = len(X)


def keep_sum_in_a_closure(model: Any, X: Any, y: Any) -> None:
    largest = max(row[0] for row in X)
    model._scale = lambda value: value / largest


def type_from_the_data(model: Any, X: Any, y: Any) -> None:
    model.classes_ = model.classes_.astype(np.asarray(y).dtype)


def warn_of_a_value(model: Any, X: Any, y: Any) -> None:
    warnings.warn(f"the largest age is {max(row[0] for row in X)}", vw.UtilityWarning, stacklevel=2)


def refuse_a_value(model: Any, X: Any, y: Any) -> None:
    raise vw.OutOfSchemaError(f"row {X[0]} is odd")


def refuse_in_other_words(model: Any, X: Any, y: Any) -> None:
    error = vw.OutOfSchemaError("a row is odd")
    error.add_note(f"among {len(X)}")
    raise error


def log_the_number_of_rows(model: Any, X: Any, y: Any) -> None:
    logging.getLogger("veilwood.fit").debug("fitted %d rows", len(X))


def print_the_number_of_rows(model: Any, X: Any, y: Any) -> None:
    print(f"fitted {len(X)} rows")


def leave_a_file(model: Any, X: Any, y: Any) -> None:
    Path(f"cache-{len(X)}").write_bytes(b"")


def another_passage(model: Any, X: Any, y: Any) -> None:
    if len(X) > 6:
        DiscreteLaplace(1).perturb(np.zeros(1, np.int64))


def noise_beside_the_door(model: Any, X: Any, y: Any) -> None:
    model.extra_ = DiscreteLaplace(1).perturb(np.array([len(X)]))


@pytest.mark.parametrize(
    ("leak", "where"),
    [
        (keep_total, "seen['returned']['attributes'][\"['total_']"),
        (keep_sum_in_a_closure, "seen['returned']['attributes'][\"['_scale']<closure>"),
        (type_from_the_data, "seen['returned']['attributes'][\"['classes_']"),
        (warn_of_a_value, "seen['warnings']"),
        (refuse_a_value, "seen['returned']"),
        (refuse_in_other_words, "seen['returned']"),
        (log_the_number_of_rows, "seen['log']"),
        (print_the_number_of_rows, "seen['stdout']"),
        (leave_a_file, "seen['files']['cache-7']"),
        (another_passage, "passages: 2 and 1"),
        (noise_beside_the_door, "passage 1 was not through the door"),
    ],
)
def test_a_planted_leak_is_caught(
    leak: Callable[[Any, Any, Any], None], where: str, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    after_fit(monkeypatch, leak)
    assert any(line.startswith(where) for line in found_in(pair))


def test_a_pickle_that_tells_more_than_the_object_is_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    after_fit(monkeypatch, lambda model, X, y: sizes.append(len(X)))
    sound = BaseForest.__getstate__
    monkeypatch.setattr(BaseForest, "__getstate__", lambda self: sound(self) | {"n": sizes[-1]})
    assert "seen['returned']['pickle']" in found_in(pair)


def test_a_model_file_as_long_as_the_table_is_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    after_fit(monkeypatch, lambda model, X, y: sizes.append(len(X)))
    sound = atomic_file.write_file
    monkeypatch.setattr("veilwood.models.file.write_file", lambda path, raw: sound(path, raw + b" " * sizes[-1]))
    assert "seen['files']['model.veilwood'][1]" in found_in(pair)


def test_a_forgotten_unit_is_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: noise for one row, though a unit has three."""
    pair.params["privacy_unit"] = 3
    pair.one = [pair.one[0]] * 3 + pair.other
    assert found_in(pair) == []
    monkeypatch.setattr(Neighbours, "l1_sensitivity", lambda self, one_row: one_row)
    assert found_in(pair) == ["cost of class counts of leaves: moved by 9, planned for 3"]


def test_a_forgotten_replacement_is_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.params |= {"adjacency": "replace-one", "delta": 1e-3, "n_estimators": 30}  # where Gaussian noise is less
    pair.other = [pair.other[0] | {"age": 1.0, "ill": 0}, *pair.other]
    assert found_in(pair) == []
    monkeypatch.setattr(Neighbours, "squared_l2_sensitivity", lambda self, one_row: one_row)
    assert any(line.startswith("cost of class counts of leaves") for line in found_in(pair))


def test_a_forgotten_cap_on_the_rows_of_an_id_is_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.form, pair.params["privacy_unit"] = "frame", {"id": "person", "at_most": 2}
    others = [row | {"person": f"p{place}"} for place, row in enumerate(pair.other)]
    own = [pair.one[0] | {"person": person} for person in (7, "7", 7.0)]
    pair.one, pair.other = [*own[:2], *others, own[2]], others
    assert found_in(pair) == []
    monkeypatch.setattr("veilwood.data.canonical.to_canonical_id", lambda cell: f"{cell!r}")
    monkeypatch.setattr("veilwood.data.contributions.to_canonical_id", lambda cell: f"{cell!r}")
    assert any(line.startswith("cost of class counts of leaves") for line in found_in(pair))


def test_selections_that_cost_more_than_planned_are_caught(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    pair.estimator, pair.params["quality"] = "GreedyForestClassifier", "gini"
    pair.one = [pair.other[0] | {"city": "K\u00f6ln", "ill": 1}] * 1 + pair.other
    assert found_in(pair) == []
    monkeypatch.setattr(Neighbours, "score_range", lambda self, one_row: 1)
    assert any(line.startswith("cost of splits") for line in found_in(pair))


def test_everything_about_a_model_is_looked_at(pair: Pair, tmp_path: Path) -> None:
    seen = record_trace(pair.run, pair.other, tmp_path / "run").visible
    assert set(seen) == {"returned", "stdout", "stderr", "warnings", "log", "files", "spent here"}
    assert set(seen["files"]) == {"model.veilwood"}
    assert {"attributes", "pickle", "repr", "str", "html", "plan_", "privacy_", "predict", "predict_proba"} <= set(
        seen["returned"]
    )
    assert INVALID.keys() == ODD.keys()
    assert callable(visible_values)
