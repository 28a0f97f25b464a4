# SPDX-License-Identifier: Apache-2.0
"""Test explanations for results below the published ones: one experiment per explanation.

Run: python benchmarks/explanations.py --data DATA

Each experiment changes one factor and measures the result again. The sentences in the report and in
reproductions/README.md that begin with "tested" rely on the output, benchmarks/results/papers/explanations.csv.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
from sklearn.model_selection import train_test_split

from veilwood.data.encoding import Encoding
from veilwood.estimators import MatrixForestClassifier, MedianForestClassifier
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_papers.diprime import methods as diprime
from veilwood_papers.diprime.tables import measure_name
from veilwood_papers.diprime.tables import published_values as diprime_published
from veilwood_papers.exhibit import Cell, Value, Values, mean_values
from veilwood_papers.exhibit import Row as Found
from veilwood_papers.mrf import appendix_tables, figure_2, methods
from veilwood_papers.mrf.runtime import ACCURACY, ASK
from veilwood_papers.mrf.sizes import published_depths
from veilwood_papers.rdt import all_sizes
from veilwood_papers.rdt.sizes import CHOSEN, ERROR, NOISE_FREE
from veilwood_papers.rdt.table_1 import published_values as rdt_published
from veilwood_papers.tables import PublicTable, PublicTables, cache_folder

HEAD = ("test", "cell", "variant", "published", "measured", "error", "runs")
RESULT = Path(__file__).parent / "results" / "papers" / "explanations.csv"
EIGHT = ("age", "workclass", "education", "marital_status", "occupation", "relationship", "race", "sex", "income")
Tested = Iterator[tuple[str, str, float, Value]]  # cell, variant, published, measured


def mean_of(values: list[float]) -> Value:
    """Return the mean with its standard error."""
    cell = Cell("", "", "")
    return mean_values(Found(cell, i, value) for i, value in enumerate(values))[cell]


def all_categories(tables: PublicTables) -> PublicTable:
    """Adult as it was first taken here: relationship for hours, and every category by itself."""
    table = tables.load_table("adult")
    table.facts["columns"] = [column for column in table.facts["columns"] if column["name"] in EIGHT]
    return PublicTable(table.facts, table.X[list(EIGHT[:-1])], table.y)


def adult(tables: PublicTables) -> Tested:
    """Grouped categories, and the rows of the second file."""
    trees, known = figure_2.SETTINGS[figure_2.ADULT].trees, figure_2.published_values()
    variants = {
        "training file, every category by itself": all_categories(tables),
        "training file, grouped as the authors do": methods.load_table(tables, "adult"),
        "both files, grouped": methods.load_table(tables, "adult-both"),
    }
    for epsilon in (0.1, 1.0):
        cell = Cell(figure_2.ADULT, methods.TRAIN, f"{epsilon:g}")
        for name, table in variants.items():
            found = [
                methods.mean_accuracy(methods.split_table(table, seed), methods.TRAIN, trees, epsilon, seed, draws=2)
                for seed in range(4)
            ]
            yield (
                f"M-RF Figure 2, Adult, DP batch training, epsilon {epsilon:g}",
                name,
                known[cell].mean,
                mean_of(found),
            )


def cuts(tables: PublicTables) -> Tested:
    """On which side of a cut a value on it falls."""
    setting, known = figure_2.SETTINGS["Iris"], figure_2.published_values()
    for side in ("right", "left"):
        table = tables.load_table("iris")
        for column in table.facts["columns"]:
            if "mrf_cutoffs" in column:
                cut_points = column["mrf_cutoffs"]
                column["cutoffs"] = cut_points if side == "right" else [math.nextafter(c, math.inf) for c in cut_points]
        data = methods.split_table(table, 0)
        for method, x in ((methods.EXTRA, math.inf), (methods.PREDICT, 2.0)):
            found = [methods.mean_accuracy(data, method, setting.trees, x, seed) for seed in range(8)]
            other = known[Cell("Iris", method, f"{x:g}")].mean
            yield (
                f"M-RF Figure 2, Iris, {method}, epsilon {x:g}",
                f"values on a cut fall {side}",
                other,
                mean_of(found),
            )


def split_of_car(tables: PublicTables) -> Tested:
    """One split or many."""
    table, trees = methods.load_table(tables, "car"), {"n_estimators": 128, "max_depth": 2}
    other = published_depths()[Cell("Car", methods.TRAIN, "2")].mean
    for name, own in (("another split for each forest", False), ("the authors' split", True)):
        found = []
        for seed in range(10):
            with mock.patch.object(methods, "SAME_ORDER", ("car",) if own else ()):
                found.append(
                    methods.mean_accuracy(methods.split_table(table, seed), methods.TRAIN, trees, 2.0, seed, draws=2)
                )
        yield "M-RF appendix Figure 1, Car, DP batch training, depth 2", name, other, mean_of(found)


def ties(tables: PublicTables) -> Tested:
    """Noise in whole numbers, or in floating point."""
    known, data = figure_2.published_values(), methods.split_table(methods.load_table(tables, "car"), 0)
    other = known[Cell("Car", methods.FLOATING, "2")].mean
    for name, method in (("noise in whole numbers", methods.DISJOINT), ("noise in floating point", methods.FLOATING)):
        trees = figure_2.SETTINGS["Car"].trees
        found = [methods.mean_accuracy(data, method, trees, 2.0, seed) for seed in range(8)]
        yield "M-RF Figure 2, Car, DP disjoint training, epsilon 2", name, other, mean_of(found)


def shares(tables: PublicTables) -> Tested:
    """Epsilon divided among ensembles by their errors, or equally; and how much cuts of the features differ."""
    setting, known = figure_2.SETTINGS["Mushroom"], figure_2.published_values()
    data = methods.split_table(methods.load_table(tables, "mushroom"), 0)

    def equal(paths: Any, *rest: Any) -> list[Fraction]:
        return [Fraction(1, len(paths))] * len(paths)

    for epsilon in (0.01, 0.05):
        other = known[Cell("Mushroom", methods.TRAIN, f"{epsilon:g}")].mean
        for name in ("shares by error", "equal shares, as the authors"):
            found = []
            for seed in range(20):
                with (
                    mock.patch("veilwood.forests.matrix.training.split_budget", equal)
                    if "equal" in name
                    else mock.MagicMock()
                ):
                    found.append(methods.mean_accuracy(data, methods.TRAIN, setting.trees, epsilon, seed, draws=2))
            cell = f"M-RF Figure 2, Mushroom, DP batch training, epsilon {epsilon:g}"
            yield cell, name, other, mean_of(found)
            yield cell, f"{name}: the best of 20 cuts of the features", other, Value(max(found), runs=1)


def subsets(tables: PublicTables) -> Tested:
    """Which four features of Car two ensembles draw; trees of depth 4 over four features are one classifier."""
    data = methods.split_table(methods.load_table(tables, "car"), 0)
    other = appendix_tables.published_values()[Cell("Car, q=2", methods.TRAIN, ASK, ACCURACY)].mean
    facts: dict[str, list[float]] = {"both have persons and safety": [], "any": []}
    size = {"n_ensembles": 2, "max_features": 4, "n_estimators": 2, "max_depth": 4, "n_jobs": 1,
            "voting": "hard"}  # fmt: skip
    for seed in range(150):
        forest = MatrixForestClassifier(data.schema, random_state=seed, ledger=MemoryLedger(), **size)
        right = float(np.mean(forest.fit(data.X, data.y).predict(data.X_test) == data.truth))
        facts["any"].append(right)
        columns = np.array([*forest.feature_names_in_, "leaf"])
        drawn = [set(columns[part]) for part in np.split(forest.forest_.feature, forest.forest_.roots[1:])]
        if all({"persons", "safety"} <= features for features in drawn):
            facts["both have persons and safety"].append(right)
    for name, found in facts.items():
        yield "M-RF appendix Table 2, Car, two ensembles of four features", name, other, mean_of(found)


def missing_values(tables: PublicTables) -> Tested:
    """What stands for a missing value in Mam_Mass."""
    table = all_sizes.load_table(tables, "Mam_Mass")
    numbers = [c["name"] for c in table.facts["columns"] if c["kind"] == "numeric"]
    filled = table.X.fillna(table.X[numbers].median())
    columns = [{**c, "nullable": False} if c["name"] in numbers else c for c in table.facts["columns"]]
    variants = {
        "a value of its own": table,
        "the median of the column": PublicTable({**table.facts, "columns": columns}, filled, table.y),
    }
    for name, variant in variants.items():
        encoding = Encoding(variant.schema)
        errors: dict[str, list[float]] = {rule: [] for rule in all_sizes.RULES[:2]}
        for seed in range(10):
            parts = all_sizes.split_rows(encoding, variant, seed)
            noises: list[tuple[all_sizes.NoiseKind, float]] = [("none", 0.0)]
            read = all_sizes.read_sizes(parts, encoding, range(1, 16), range(1, 22, 2), noises, "range", seed)
            for i, rule in enumerate(errors):
                errors[rule].append(all_sizes.best_size(read[noises[0]], i).test[i])
        for rule, found in errors.items():
            other = rdt_published()[Cell("Mam_Mass", NOISE_FREE[rule], CHOSEN, ERROR)].mean
            yield f"Bojarski Table 1, Mam_Mass, n-dp{rule}, error in percent", name, other, mean_of(found)


def of_diprime(
    tables: PublicTables, panel: str, name: str, method: str,
    variants: dict[str, Callable[[PublicTable, int], tuple[Any, PublicTable]]], known: Values, seeds: int,
) -> Tested:  # fmt: skip
    """Measure one cell of DiPriMe's tables with forests made in several ways."""
    other = known[Cell(panel, method, "", measure_name(panel))].mean
    table = diprime.load_table(tables, name)
    for variant, make in variants.items():
        found = []
        for seed in range(seeds):
            forest, rows = make(table, seed)
            unit = diprime.error_unit(table) * (0.01 if panel == "Parkinsons" else 1.0)
            found.append(diprime.holdout_score(forest, rows, seed, unit))
        yield f"DiPriMe, {panel}, {method}", variant, other, mean_of(found)


def medians(tables: PublicTables) -> Tested:
    """How attributes are chosen in median forests without noise."""

    def forest(variant: str) -> Callable[[PublicTable, int], tuple[Any, PublicTable]]:
        return lambda table, seed: (
            MedianForestClassifier(table.schema, epsilon=math.inf, trees="shared", variant=variant, n_estimators=10,
                                   max_depth=6, random_state=seed, n_jobs=1),
            table,
        )  # fmt: skip

    variants = {name: forest(name) for name in ("select-then-median", "k-medians", "random-attribute")}
    yield from of_diprime(tables, "Banknote", "banknote", diprime.MEDIAN, variants, diprime_published("table 2"), 10)


def bounds(tables: PublicTables) -> Tested:
    """The bounds of the target of Parkinsons."""

    def forest(upper: float) -> Callable[[PublicTable, int], tuple[Any, PublicTable]]:
        def made(table: PublicTable, seed: int) -> tuple[Any, PublicTable]:
            columns = [
                {**c, "upper": upper} if c["name"] == table.facts["target"] else c for c in table.facts["columns"]
            ]
            rows = table._replace(facts={**table.facts, "columns": columns})
            return diprime.make_forest(
                diprime.DP_ERT, rows, epsilon=10.0, n_estimators=10, max_depth=7, seed=seed
            ), rows

        return made

    variants = {"target in 0 to 176, the scale of the score": forest(176), "target in 0 to 55, the data's": forest(55)}
    yield from of_diprime(
        tables, "Parkinsons", "parkinsons", diprime.DP_ERT, variants, diprime_published("table 1"), 10
    )


def rows_of_higgs(tables: PublicTables) -> Tested:
    """Half of the rows, and all that are here."""

    def forest(share: float) -> Callable[[PublicTable, int], tuple[Any, PublicTable]]:
        def made(table: PublicTable, seed: int) -> tuple[Any, PublicTable]:
            kept = (
                train_test_split(np.arange(len(table.X)), train_size=share, random_state=seed)[0] if share < 1 else None
            )
            rows = table if kept is None else table._replace(X=table.X.iloc[kept], y=table.y.iloc[kept])
            return diprime.make_forest(diprime.RF, rows, epsilon=2.0, n_estimators=10, max_depth=11, seed=seed), rows

        return made

    variants = {"23,120 rows": forest(0.5), "46,239 rows": forest(1)}
    yield from of_diprime(tables, "Higgs", "higgs", diprime.RF, variants, diprime_published("table 2"), 4)


def depth_of_posture(tables: PublicTables) -> Tested:
    """Forests without noise and without a limit of depth."""

    def forest(depth: int | None) -> Callable[[PublicTable, int], tuple[Any, PublicTable]]:
        def made(table: PublicTable, seed: int) -> tuple[Any, PublicTable]:
            made = diprime.make_forest(diprime.RF, table, epsilon=2.0, n_estimators=10, max_depth=12, seed=seed)
            made.forest.set_params(max_depth=depth)
            return made, table

        return made

    variants = {"depth 12, as published": forest(12), "any depth": forest(None)}
    yield from of_diprime(tables, "PUC-Rio", "puc-rio-posture", diprime.RF, variants, diprime_published("table 2"), 2)


TESTS = (
    adult,
    cuts,
    split_of_car,
    ties,
    shares,
    subsets,
    missing_values,
    medians,
    bounds,
    rows_of_higgs,
    depth_of_posture,
)


def main() -> None:
    """Run every test, or one, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="a folder of NAME.csv.gz with NAME.json")
    parser.add_argument(
        "--only", choices=[test.__name__ for test in TESTS], help="one test; the others stay as they are"
    )
    given = parser.parse_args()
    tables = PublicTables([given.data, cache_folder()])
    warnings.simplefilter("ignore")
    found = {} if given.only is None else {key: rows for key, rows in pd.read_csv(RESULT, dtype=str).groupby("test")}
    for test in TESTS:
        if given.only not in (None, test.__name__):
            continue
        began, lines = time.process_time(), []
        for cell, variant, other, value in test(tables):
            error = "" if math.isnan(value.error) else f"{value.error:.4f}"
            lines.append([test.__name__, cell, variant, f"{other:g}", f"{value.mean:.4f}", error, str(value.runs)])
            print(*lines[-1], sep=" | ", flush=True)
        found[test.__name__] = pd.DataFrame(lines, columns=list(HEAD))
        print(f"{test.__name__}: {time.process_time() - began:.1f} CPU s", flush=True)
    frame = pd.concat([found[test.__name__] for test in TESTS if test.__name__ in found])
    frame.to_csv(RESULT, index=False, lineterminator="\n")


if __name__ == "__main__":
    main()
