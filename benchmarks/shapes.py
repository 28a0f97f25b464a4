# SPDX-License-Identifier: Apache-2.0
"""What other shapes of tables of class counts would have reached, on the development suite.

    python benchmarks/shapes.py --data DATA --cache shapes.csv --out shapes.md

Each fit has tables of a fixed shape and no rounds: so many columns (2, 4, 8, half, all), so many of them together,
numbers in so many groups. Beside them stand PrivateForest itself, which must choose before it knows, and the best shape
of each table, which nobody knows: it is chosen on half of the seeds and scored on the others. The tables are those of
classes that a grid of so many fits can be afforded on, without those where tables show nothing (exclusive-or) or
everything. A run that was broken off goes on where it stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from veilwood import PrivateForestClassifier
from veilwood.bench.suite import compute, done, jobs_of
from veilwood.forests.adaptive import loop, private_forest
from veilwood.forests.adaptive.shapes import Strengths, TableShape

TABLES = (
    "balance-scale", "banknote", "breast-cancer", "correlated-blocks", "digits", "few-rows-classes",
    "few-rows-many-columns", "heart", "image-moments", "iris", "lognormal-wide-bounds", "mammographic", "mushroom",
    "party-votes", "pen-strokes", "rare-classes", "sparse-additive-classes", "sum-of-sizes", "twonorm",
    "wall-following-robot",
)  # fmt: skip
COLUMNS: dict[str, Callable[[int], int]] = {
    "2": lambda n: 2, "4": lambda n: 4, "8": lambda n: 8, "half": lambda n: n // 2, "all": lambda n: n,
}  # fmt: skip
TOGETHER, GROUPS = (1, 2, 3), (2, 3, 4, 6, 10)
BUDGETS = (0.5, 2.0)
OWN = "PrivateForest"
LOOKED_AT = (("4", 2, 6), ("8", 2, 4), ("all", 1, 4), ("all", 2, 3))  # that the report shows by themselves


class FixedLoop(loop.Loop):
    """The loop, whose strengths of columns never keep it from tables."""

    def _strengths(self) -> Strengths | None:
        return None if super()._strengths() is None else Strengths(0.3, 0.2)


def forest_of(columns: str, together: int, groups: int) -> type:
    """Return a classifier whose tables have this shape."""

    class FixedForest(PrivateForestClassifier):  # type: ignore[misc]
        def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
            def division(cells: Any, *_: Any) -> tuple[TableShape, float]:
                n = min(max(COLUMNS[columns](len(cells)), 1), len(cells))
                return TableShape(1.0, n, min(together, n), groups), 1.0

            before = loop.division, private_forest.Loop
            loop.division, private_forest.Loop = division, FixedLoop  # type: ignore[misc]
            try:
                return super().fit(X, y, **unsupported)
            finally:
                loop.division, private_forest.Loop = before  # type: ignore[misc]

    return FixedForest


def name_of(columns: str, together: int, groups: int) -> str:
    return f"Tables_{columns}_{together}_{groups}"


SHAPES = {name_of(*shape): shape for shape in product(COLUMNS, TOGETHER, GROUPS)}
globals().update({name: forest_of(*shape) for name, shape in SHAPES.items()})


def report(found: pd.DataFrame) -> str:
    """Write the table."""
    found = found.assign(estimator=found.estimator.str.split(":").str[-1])
    halves = [
        found[found.seed % 2 == half].pivot_table(index=["table", "epsilon"], columns="estimator", values="score")
        for half in (0, 1)
    ]
    scores = sum(halves) / 2
    shapes = [name for name in SHAPES if name in scores]
    best = pd.DataFrame([
        [other.loc[cell, one[shapes].loc[cell].idxmax()] for cell in scores.index]
        for one, other in (halves, reversed(halves))
    ], columns=scores.index).mean()  # fmt: skip
    single = scores[shapes].mean().idxmax()
    # The shape that is best on all other tables, for each table: what settling on a shape is worth on a new one.
    left_out = pd.Series({
        (table, epsilon): scores.loc[(table, epsilon), scores[shapes].drop(table, level="table").mean().idxmax()]
        for table, epsilon in scores.index
    })  # fmt: skip
    shown = [OWN, *(name_of(*shape) for shape in LOOKED_AT)]
    means = {
        OWN: scores[OWN], "the best shape of each table and budget, chosen on other seeds": best,
        f"one shape for all ({_words(single)})": scores[single], "the shape that is best on the other tables": left_out,
    }  # fmt: skip
    return "\n".join([
        "# Shapes of tables, development suite", "", f"{found.seed.nunique()} seeds, accuracy.", "",
        f"| table | epsilon | {' | '.join(map(_words, shown))} | best of {len(shapes)} shapes |",
        f"|{'---|' * (len(shown) + 3)}",
        *(f"| {table} | {epsilon:g} | {' | '.join(f'{row[name]:.3f}' for name in shown)} | {best[table, epsilon]:.3f} |"
          for (table, epsilon), row in scores.iterrows()),
        "", "Mean: " + "; ".join(f"{name} {values.mean():.3f}" for name, values in means.items()) + ".", "",
    ])  # fmt: skip


def _words(shape: str) -> str:
    if shape == OWN:
        return shape
    columns, together, groups = shape.removeprefix("Tables_").split("_")
    return f"{columns} columns, {together} together, {groups} groups"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    estimators = [OWN, *(f"{__file__}:{name}" for name in SHAPES)]
    jobs = jobs_of("development", TABLES, estimators, BUDGETS, 0.0, given.seeds, references=False)
    compute(jobs, given.data, given.cache, given.jobs, lambda line: print(line, flush=True))
    text = report(done(given.cache))
    print(text)
    if given.out:
        given.out.write_text(text)


if __name__ == "__main__":
    main()
