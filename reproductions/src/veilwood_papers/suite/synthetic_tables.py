# SPDX-License-Identifier: Apache-2.0
"""Synthetic tables of the accuracy suite, and the tables that scikit-learn provides.

A synthetic table is always the same: its rows come from a generator with a fixed seed. Its bounds could have
been declared without seeing the rows. The bounds of scikit-learn's tables are round numbers, written here.

Development tables from "late-payments" on were added because unseen tables of their kind were predicted badly: one
strong column, a column of many values, bounds that are too wide, targets with a far group or a narrow bulk, many
correlated columns, unequal and rare classes, few rows, rules and parities.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
from sklearn import datasets as bundled

from veilwood.arrays import Bools, Floats
from veilwood.data.schema import Schema

Suite: TypeAlias = Literal["development", "validation"]
Bounds: TypeAlias = tuple[float, float]


class SuiteTable(NamedTuple):
    """Table with its public schema."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]


TableMaker: TypeAlias = Callable[[np.random.Generator], SuiteTable]
SYNTHETIC: Final[dict[Suite, dict[str, TableMaker]]] = {"development": {}, "validation": {}}


def _synthetic_table(suite: Suite, name: str) -> Callable[[TableMaker], TableMaker]:
    def add(maker: TableMaker) -> TableMaker:
        if any(name in makers for makers in SYNTHETIC.values()):
            raise ValueError(f"there are two tables named {name!r}")
        SYNTHETIC[suite][name] = maker
        return maker

    return add


# -- helpers for synthetic tables ------------------------------------------------------------------------------------


def _make_table(
    name: str,
    columns: dict[str, tuple[Any, Bounds | list[str]]] | Floats,
    target: Any,
    goal: Bounds | int,
    bounds: Bounds = (0.0, 1.0),
    nullable: bool = False,
) -> SuiteTable:
    """Return a table of columns and a target. ``goal`` is the bounds or the number of classes of the target."""
    if not isinstance(columns, dict):
        columns = {f"x{i}": (column, bounds) for i, column in enumerate(columns.T)}
    entries: list[dict[str, Any]] = []
    for column, (_, domain) in columns.items():
        if isinstance(domain, list):
            entries.append({"name": column, "kind": "categorical", "values": domain, "nullable": nullable})
        else:
            low, high = domain
            entries.append({"name": column, "kind": "numeric", "lower": low, "upper": high, "nullable": nullable})
    task = "classification" if isinstance(goal, int) else "regression"
    if isinstance(goal, int):
        entries.append({"name": "y", "kind": "categorical", "values": [f"c{i}" for i in range(goal)]})
        y: Any = pd.Series([f"c{int(value)}" for value in target], dtype=object)
    else:
        entries.append({"name": "y", "kind": "numeric", "lower": goal[0], "upper": goal[1]})
        y = pd.Series(np.asarray(target, float))
    schema = Schema.from_dict({"name": name, "task": task, "target": "y", "columns": entries})
    return SuiteTable(schema, pd.DataFrame({column: values for column, (values, _) in columns.items()}), y)


def _binary_labels(rng: np.random.Generator, score: Floats) -> Bools:
    """Draw binary classes with the given log-odds."""
    return rng.random(len(score)) < 1 / (1 + np.exp(-score))


def _correlated_columns(rng: np.random.Generator, n: int, blocks: int, width: int, correlation: float) -> Floats:
    """Draw normal columns in blocks with a shared component."""
    common = np.repeat(rng.standard_normal((n, blocks)), width, axis=1)
    own = rng.standard_normal((n, blocks * width))
    return np.asarray(np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)


def _gaussian_clusters(rng: np.random.Generator, n: int, classes: int, columns: int, parts: int, apart: float) -> Any:
    """Draw classes that are mixtures of Gaussian clusters along shared directions."""
    centres = apart * rng.standard_normal((classes, parts, columns))
    mixing = rng.standard_normal((columns, columns)) / np.sqrt(columns)
    label, part = rng.integers(classes, size=n), rng.integers(parts, size=n)
    return centres[label, part] + rng.standard_normal((n, columns)) @ (0.6 * np.eye(columns) + mixing), label


def _three_classes(rng: np.random.Generator, name: str, n: int, columns: int, apart: float) -> SuiteTable:
    """Draw a small table of three classes with one Gaussian cluster each."""
    label = rng.integers(3, size=n)
    X = rng.standard_normal((n, columns)) + apart * rng.standard_normal((3, columns))[label]
    return _make_table(name, X, label, 3, (-6, 6))


def _robot_arm(rng: np.random.Generator, n: int, columns: int) -> tuple[Floats, Floats]:
    """Return the joint angles of an arm of eight links and the distance of its end from a point.

    Two of the joints matter most.
    """
    angles = rng.uniform(-np.pi, np.pi, (n, columns)) / 2
    turn = np.cumsum(angles[:, :8] * np.array([1.0, 1.0, 0.3, 0.2, 0.2, 0.1, 0.1, 0.1]), axis=1)
    x, y = np.cos(turn).sum(axis=1) / 8, np.sin(turn).sum(axis=1) / 8
    return angles, np.sqrt((x - 0.1) ** 2 + (y - 0.1) ** 2) + 0.02 * rng.standard_normal(n)


def _bundled_table(name: str, data: Any, bounds: list[Bounds] | Bounds, goal: Bounds | int) -> SuiteTable:
    values, target = np.asarray(data.data, float), np.asarray(data.target)
    each = bounds if isinstance(bounds, list) else [bounds] * values.shape[1]
    columns: dict[str, Any] = {f"x{i}": (values[:, i], each[i]) for i in range(values.shape[1])}
    return _make_table(name, columns, target, goal)


def _round_bounds(values: Floats) -> list[Bounds]:
    """Return bounds as an expert would choose them: from 0 to the next 1, 2 or 5 times a power of ten."""
    tops = []
    for top in values.max(axis=0):
        power = 10.0 ** np.ceil(np.log10(max(top, 1e-9)))
        tops.append(next(power * part for part in (0.2, 0.5, 1.0) if top <= power * part))
    return [(0.0, float(top)) for top in tops]


# -- development -----------------------------------------------------------------------------------------------------


@_synthetic_table("development", "breast-cancer")
def _(rng: np.random.Generator) -> SuiteTable:
    data = bundled.load_breast_cancer()
    return _bundled_table("breast-cancer", data, _round_bounds(data.data), 2)


@_synthetic_table("development", "digits")
def _(rng: np.random.Generator) -> SuiteTable:
    return _bundled_table("digits", bundled.load_digits(), (0.0, 16.0), 10)


@_synthetic_table("development", "iris")
def _(rng: np.random.Generator) -> SuiteTable:
    return _bundled_table("iris", bundled.load_iris(), [(4, 8), (2, 4.5), (1, 7), (0, 2.6)], 3)


@_synthetic_table("development", "twonorm")
def _(rng: np.random.Generator) -> SuiteTable:
    label = rng.integers(2, size=7_400)
    X = rng.standard_normal((7_400, 20)) + np.where(label, 1, -1)[:, None] * 2 / np.sqrt(20)
    return _make_table("twonorm", X, label, 2, (-5, 5))


@_synthetic_table("development", "xor-of-two")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((20_000, 8))
    label = ((X[:, 2] > 0.5) ^ (X[:, 5] > 0.5)) ^ (rng.random(20_000) < 0.1)
    return _make_table("xor-of-two", X, label, 2)


@_synthetic_table("development", "sparse-additive-classes")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((20_000, 100))
    return _make_table("sparse-additive-classes", X, _binary_labels(rng, 8 * (X[:, 17] + X[:, 60] - 1)), 2)


@_synthetic_table("development", "sparse-additive-regression")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((4_000, 100))
    y = np.sin(2 * np.pi * X[:, 8]) + 2 * X[:, 71] + 0.3 * rng.standard_normal(4_000)
    return _make_table("sparse-additive-regression", X, y, (-4, 6))


@_synthetic_table("development", "friedman1")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = bundled.make_friedman1(5_000, noise=1.0, random_state=1)
    return _make_table("friedman1", X, y, (-5, 35))


@_synthetic_table("development", "friedman3")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = bundled.make_friedman3(1_000, noise=0.1, random_state=3)
    limits: list[Bounds] = [(0, 100), (100, 1800), (0, 1), (0, 12)]
    return _make_table("friedman3", {f"x{i}": (X[:, i], limits[i]) for i in range(4)}, y, (-1, 3))


@_synthetic_table("development", "robot-arm-32")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = _robot_arm(rng, 8_192, 32)
    return _make_table("robot-arm-32", X, y, (0, 1.5), (-1.6, 1.6))


@_synthetic_table("development", "computer-activity")
def _(rng: np.random.Generator) -> SuiteTable:
    load_ = rng.gamma(2.0, 1.0, 8_192)
    rates = np.exp(rng.normal(0, 0.7, (8_192, 20)) + np.outer(np.log1p(load_), rng.random(20)))
    busy = 100 - 8 * load_ - 3 * np.log1p(rates[:, 0] * rates[:, 1]) - 2 * rates[:, 2] * (load_ > 3)
    y = np.clip(np.where(rng.random(8_192) < 0.03, 0, busy + rng.standard_normal(8_192)), 0, 100)
    columns: dict[str, Any] = {f"rate{i}": (rates[:, i], (0.0, 100.0)) for i in range(20)}
    columns["load"] = (load_ + 0.1 * rng.standard_normal(8_192), (0.0, 50.0))
    return _make_table("computer-activity", columns, y, (0, 100))


@_synthetic_table("development", "pen-strokes")
def _(rng: np.random.Generator) -> SuiteTable:
    X, label = _gaussian_clusters(rng, 10_000, 10, 16, 3, 1.2)
    return _make_table("pen-strokes", X, label, 10, (-6, 6))


@_synthetic_table("development", "rare-classes")
def _(rng: np.random.Generator) -> SuiteTable:
    label = rng.choice(5, p=[0.7, 0.2, 0.06, 0.03, 0.01], size=8_000)
    X = rng.standard_normal((8_000, 8)) + 1.2 * rng.standard_normal((5, 8))[label]
    return _make_table("rare-classes", X, label, 5, (-6, 6))


@_synthetic_table("development", "lognormal-wide-bounds")
def _(rng: np.random.Generator) -> SuiteTable:
    Z = rng.standard_normal((8_000, 10))
    return _make_table(
        "lognormal-wide-bounds", np.exp(Z), _binary_labels(rng, 2 * Z[:, 0] + 2 * Z[:, 3] - Z[:, 4]), 2, (0, 5_000)
    )


@_synthetic_table("development", "correlated-blocks")
def _(rng: np.random.Generator) -> SuiteTable:
    X = _correlated_columns(rng, 2_000, 3, 4, 0.9)
    return _make_table("correlated-blocks", X, _binary_labels(rng, X[:, :4].sum(axis=1) - 2 * X[:, 4]), 2, (-5, 5))


@_synthetic_table("development", "few-rows-classes")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.standard_normal((200, 5))
    return _make_table("few-rows-classes", X, _binary_labels(rng, 3 * X[:, 0] + X[:, 1]), 2, (-4, 4))


@_synthetic_table("development", "few-rows-regression")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((800, 6))
    return _make_table("few-rows-regression", X, 3 * X[:, 0] + X[:, 1] ** 2 + 0.3 * rng.standard_normal(800), (-2, 6))


@_synthetic_table("development", "nulls")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((6_000, 6))
    shop = rng.integers(12, size=6_000)
    missing = rng.random((6_000, 6)) < 0.2
    label = _binary_labels(rng, 5 * (X[:, 0] - 0.5) + 2.0 * missing[:, 1] + np.sin(shop))
    columns: dict[str, Any] = {f"x{i}": (np.where(missing[:, i], np.nan, X[:, i]), (0.0, 1.0)) for i in range(6)}
    shops = np.array([f"s{i}" for i in range(12)], object)
    visited = shops[shop]
    visited[rng.random(6_000) < 0.05] = None
    columns["shop"] = (visited, shops.tolist())
    return _make_table("nulls", columns, label, 2, nullable=True)


@_synthetic_table("development", "one-column-decides")
def _(rng: np.random.Generator) -> SuiteTable:
    X, kinds = rng.integers(6, size=(6_000, 9)), np.array([f"k{i}" for i in range(9)], object)
    kind = rng.choice(9, p=np.arange(9, 0, -1) / 45, size=6_000)
    label = np.where(rng.random(6_000) < 0.06, rng.integers(3, size=6_000), np.array([0, 1, 1, 0, 2, 0, 1, 2, 2])[kind])
    columns: dict[str, Any] = {f"x{i}": (kinds[X[:, i]], kinds[:6].tolist()) for i in range(9)}
    columns["kind"] = (kinds[kind], kinds.tolist())
    return _make_table("one-column-decides", columns, label, 3)


@_synthetic_table("development", "many-values")
def _(rng: np.random.Generator) -> SuiteTable:
    X, columns = rng.random((15_000, 3)), dict[str, Any]()
    score = 3 * (X[:, 0] - 0.5)
    for name, n_values in (("shop", 400), ("maker", 60)):
        values = np.array([f"v{i}" for i in range(n_values)], object)
        value = rng.permutation(n_values)[np.minimum(rng.zipf(1.3, 15_000) - 1, n_values - 1)]
        score = score + 1.2 * rng.standard_normal(n_values)[value]
        columns[name] = (values[value], values.tolist())
    columns |= {f"x{i}": (X[:, i], (0.0, 1.0)) for i in range(3)}
    return _make_table("many-values", columns, _binary_labels(rng, score), 2)


@_synthetic_table("development", "few-rows-many-columns")
def _(rng: np.random.Generator) -> SuiteTable:
    return _three_classes(rng, "few-rows-many-columns", 180, 12, 1.1)


@_synthetic_table("development", "image-moments")
def _(rng: np.random.Generator) -> SuiteTable:
    X, label = _gaussian_clusters(rng, 4_000, 6, 8, 2, 1.3)
    both = np.column_stack([X, np.abs(X @ rng.standard_normal((8, 16)) / 3)])
    return _make_table("image-moments", both, label, 6, (-8, 8))


@_synthetic_table("development", "sum-of-sizes")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.laplace(size=(10_000, 12))
    return _make_table("sum-of-sizes", X, np.abs(X[:, :8]).sum(axis=1) > 7.67, 2, (-10, 10))


@_synthetic_table("development", "steps-of-four")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = rng.random((10_000, 10)), 0.1 * rng.standard_normal(10_000)
    for _ in range(12):
        sides = rng.choice(10, 4, replace=False)
        y += rng.standard_normal() * (X[:, sides] < rng.uniform(0.3, 0.9, 4)).all(axis=1)
    return _make_table("steps-of-four", X, y, (-5, 5))


@_synthetic_table("development", "constant-class")
def _(rng: np.random.Generator) -> SuiteTable:
    return _make_table("constant-class", rng.random((1_000, 5)), np.ones(1_000), 3)


@_synthetic_table("development", "late-payments")
def _(rng: np.random.Generator) -> SuiteTable:
    """Monthly columns that are almost redundant, as in credit tables. The latest column, status0, decides the class."""
    n, names = 20_000, np.array([f"s{i}" for i in range(9)], object)
    hidden = np.cumsum(np.column_stack([rng.standard_normal(n), 0.45 * rng.standard_normal((n, 5))]), axis=1)
    late, size = np.clip(np.floor(1.3 * hidden - 0.4), 0, 8).astype(int), np.exp(rng.standard_normal(n))
    columns: dict[str, Any] = {f"status{i}": (names[late[:, i]], names.tolist()) for i in range(6)}
    for i in range(6):
        columns[f"amount{i}"] = (size * np.exp(0.3 * rng.standard_normal(n) + 0.1 * late[:, i]), (0.0, 50.0))
    limit = 2 * size * np.exp(0.5 * rng.standard_normal(n))
    columns["limit"] = (limit, (0.0, 50.0))
    often = late[:, 1:].max(axis=1) >= 2
    score = 3.4 * (late[:, 0] >= 2) - 1.9 + 0.25 * often - 0.3 * np.log(limit / 2)
    return _make_table("late-payments", columns, _binary_labels(rng, score), 2)


@_synthetic_table("development", "party-votes")
def _(rng: np.random.Generator) -> SuiteTable:
    """One vote determines the party. Many other votes nearly do, and their errors coincide."""
    party, names = rng.random(430) < 0.4, np.array(["no", "yes", "none"], object)
    strays, columns = rng.random(430) < 0.12, dict[str, Any]()
    for i, follows in enumerate((96, 90, 88, 85, 85, 80, 80, 75, 75, 70, 65, 60, 60, 55, 50)):
        side = party ^ strays if i else party
        vote = np.where(100 * rng.random(430) < follows, side, ~side).astype(int)
        vote[rng.random(430) < 0.05] = 2
        columns[f"vote{i}"] = (names[vote], names.tolist())
    return _make_table("party-votes", columns, party, 2)


@_synthetic_table("development", "towns")
def _(rng: np.random.Generator) -> SuiteTable:
    sizes, names = rng.pareto(1.2, 600) + 0.2, np.array([f"t{i}" for i in range(600)], object)
    town, X = rng.choice(600, p=sizes / sizes.sum(), size=12_000), rng.random((12_000, 5))
    score = 1.3 * rng.standard_normal(600)[town] + 2 * (X[:, 0] - 0.5) + 1.5 * (X[:, 1] - 0.5)
    columns: dict[str, Any] = {f"x{i}": (X[:, i], (0.0, 1.0)) for i in range(5)}
    columns["town"] = (names[town], names.tolist())
    return _make_table("towns", columns, _binary_labels(rng, score), 2)


@_synthetic_table("development", "wide-interaction")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.laplace(size=(7_000, 7)) * np.exp(0.7 * rng.standard_normal((7_000, 7)))
    y = 4 * np.tanh(X[:, 0]) + 5 * np.tanh(X[:, 1]) * np.tanh(2 * X[:, 3]) + rng.standard_normal(7_000)
    return _make_table("wide-interaction", X, y, (-40, 40), (-200, 200))


# Regression with few rows, a far group or a narrow bulk.


@_synthetic_table("development", "body-measures")
def _(rng: np.random.Generator) -> SuiteTable:
    """Few rows, and one column that predicts the target almost alone."""
    size, n = rng.standard_normal((420, 1)), 420
    X = 0.7 * size + 0.7 * rng.standard_normal((n, 12))
    fat = 19 + 6 * size[:, 0] + 5 * X[:, 4]
    columns: dict[str, Any] = {f"girth{i}": (100 + 10 * X[:, i], (50.0, 200.0)) for i in range(12)}
    columns["density"] = (1.1 - 0.0023 * fat + 0.001 * rng.standard_normal(n), (0.9, 1.2))
    return _make_table("body-measures", columns, np.clip(fat, 0, 60), (0, 60))


@_synthetic_table("development", "insurance-charges")
def _(rng: np.random.Generator) -> SuiteTable:
    """A binary column that predicts most of the target, which has a long tail."""
    n, flags = 1_300, np.array(["no", "yes"], object)
    age, mass = rng.uniform(18, 65, n), rng.normal(30, 6, n)
    smokes, child = (rng.random(n) < 0.2).astype(int), rng.poisson(1.1, n).clip(0, 5)
    y = 1.2 + 0.26 * (age - 18) + smokes * (14 + 14 * (mass > 30)) + 0.5 * child + rng.exponential(2.5, n)
    columns: dict[str, Any] = {
        "age": (age, (0.0, 100.0)),
        "mass": (mass, (10.0, 60.0)),
        "children": (child, (0.0, 10.0)),
        "smokes": (flags[smokes], flags.tolist()),
        "sex": (flags[rng.integers(2, size=n)], flags.tolist()),
    }
    return _make_table("insurance-charges", columns, y, (0, 100))


@_synthetic_table("development", "flat-prices")
def _(rng: np.random.Generator) -> SuiteTable:
    """Prices whose bulk takes a tenth of the declared range."""
    n, towns = 2_000, np.array([f"t{i}" for i in range(8)], object)
    area, town = rng.gamma(6.0, 12.0, n), rng.integers(8, size=n)
    X = rng.random((n, 5))
    y = 20 + 1.1 * area * (0.6 + 0.1 * town) + 25 * X[:, 0] + 12 * rng.standard_normal(n)
    columns: dict[str, Any] = {"area": (area, (0.0, 500.0)), "town": (towns[town], towns.tolist())}
    columns |= {f"x{i}": (X[:, i], (0.0, 1.0)) for i in range(5)}
    return _make_table("flat-prices", columns, y.clip(0), (0, 1_500))


@_synthetic_table("development", "failures-far-away")
def _(rng: np.random.Generator) -> SuiteTable:
    """Four percent of the targets are far from the others; two columns decide which."""
    X = rng.random((6_000, 8))
    far = (X[:, 2] > 0.8) & (X[:, 5] < 0.2)
    y = np.where(far, 80 + 5 * rng.standard_normal(6_000), 5 + 4 * X[:, 0] + 2 * X[:, 1] + rng.standard_normal(6_000))
    return _make_table("failures-far-away", X, y.clip(0), (0, 100))


@_synthetic_table("development", "calibrated-mixture")
def _(rng: np.random.Generator) -> SuiteTable:
    """A thousand rows with a smooth response to correlated ingredients, as in tests of materials."""
    X = rng.dirichlet([2, 1, 1, 3, 1, 2], 1_030)
    age = np.exp(rng.uniform(0, 5.9, 1_030))
    y = 12 * np.log1p(age) * (0.4 + 2 * X[:, 0]) - 60 * X[:, 3] ** 2 + 20 * X[:, 4] + 4 * rng.standard_normal(1_030)
    columns: dict[str, Any] = {f"part{i}": (X[:, i], (0.0, 1.0)) for i in range(6)}
    columns["age"] = (age, (0.0, 1_000.0))
    return _make_table("calibrated-mixture", columns, y.clip(0, 150), (0, 150))


@_synthetic_table("development", "narrow-counts")
def _(rng: np.random.Generator) -> SuiteTable:
    """Counts by hour and weather: a narrow bulk and a long tail."""
    n, names = 9_000, np.array([f"h{i}" for i in range(24)], object)
    hour, warm = rng.integers(24, size=n), rng.normal(15, 8, n)
    rate = np.exp(3 + 1.6 * np.sin((hour - 8) / 24 * 2 * np.pi) + 0.05 * (warm - 15))
    columns: dict[str, Any] = {"hour": (names[hour], names.tolist()), "warm": (warm, (-30.0, 50.0))}
    columns |= {f"x{i}": (rng.standard_normal(n), (-5.0, 5.0)) for i in range(6)}
    return _make_table("narrow-counts", columns, rng.poisson(rate).clip(0, 1_000), (0, 1_000))


# Three or more classes: correlated columns, unequal classes, few rows, rules.


@_synthetic_table("development", "bean-shapes")
def _(rng: np.random.Generator) -> SuiteTable:
    """Many measurements of a few hidden sizes: classes differ in directions of strongly correlated columns."""
    n, k = 9_000, 7
    label = rng.choice(k, p=[0.26, 0.19, 0.15, 0.14, 0.12, 0.1, 0.04], size=n)
    hidden = 1.6 * rng.standard_normal((k, 4))[label] + rng.standard_normal((n, 4)) * [1.2, 0.8, 0.6, 0.5]
    X = hidden @ rng.standard_normal((4, 16)) + 0.25 * rng.standard_normal((n, 16))
    return _make_table("bean-shapes", X, label, k, (-15, 15))


@_synthetic_table("development", "vehicle-outlines")
def _(rng: np.random.Generator) -> SuiteTable:
    """Few rows of correlated columns, four classes."""
    n, k = 850, 4
    label = rng.integers(k, size=n)
    hidden = 1.3 * rng.standard_normal((k, 5))[label] + rng.standard_normal((n, 5))
    X = hidden @ rng.standard_normal((5, 18)) + 0.5 * rng.standard_normal((n, 18))
    return _make_table("vehicle-outlines", X, label, k, (-15, 15))


@_synthetic_table("development", "moves-to-win")
def _(rng: np.random.Generator) -> SuiteTable:
    """Eighteen classes of 0.1 to 16 percent, a function of distances between positions on a board."""
    n, names = 28_000, np.array([f"p{i}" for i in range(8)], object)
    P = rng.integers(8, size=(n, 6))
    king = np.maximum(abs(P[:, 0] - P[:, 4]), abs(P[:, 1] - P[:, 5]))
    edge = np.minimum(np.minimum(P[:, 4], 7 - P[:, 4]), np.minimum(P[:, 5], 7 - P[:, 5]))
    score = 1.1 * king + 1.6 * edge + (P[:, 2] == P[:, 4]) + 0.6 * abs(P[:, 3] - P[:, 5]) / 2
    score = score + 0.5 * rng.standard_normal(n)
    shares = np.array([0.1, 0.3, 0.9, 0.3, 0.7, 1.7, 2.1, 2.4, 5.1, 6.1, 7.1, 10.2, 12.8, 14.9, 16.2, 7.7, 1.4, 10.0])
    ends = np.quantile(score, np.cumsum(shares / shares.sum())[:-1])
    columns: dict[str, Any] = {f"place{i}": (names[P[:, i]], names.tolist()) for i in range(6)}
    return _make_table("moves-to-win", columns, np.searchsorted(ends, score), 18)


@_synthetic_table("development", "glass-splinters")
def _(rng: np.random.Generator) -> SuiteTable:
    """Two hundred rows of six unequal classes."""
    label = rng.choice(6, p=[0.33, 0.36, 0.08, 0.06, 0.04, 0.13], size=214)
    X = rng.standard_normal((214, 9)) + 1.3 * rng.standard_normal((6, 9))[label]
    return _make_table("glass-splinters", X, label, 6, (-8, 8))


@_synthetic_table("development", "seed-kernels")
def _(rng: np.random.Generator) -> SuiteTable:
    """Three classes that one size separates, measured in seven correlated columns."""
    label = rng.integers(3, size=210)
    size = 2.2 * (label - 1.0) + rng.standard_normal(210)
    X = size[:, None] * rng.uniform(0.5, 1.5, 7) + 0.6 * rng.standard_normal((210, 7))
    return _make_table("seed-kernels", X, label, 3, (-10, 10))


@_synthetic_table("development", "admission-rules")
def _(rng: np.random.Generator) -> SuiteTable:
    """Few columns of categories whose rules interact, in four unequal classes."""
    n, sizes = 8_000, (3, 5, 4, 4, 3, 2, 3, 3)
    V = np.column_stack([rng.integers(size, size=n) for size in sizes])
    social, home = V[:, 5] + V[:, 6], V[:, 1] + V[:, 2] + V[:, 3]
    label = np.where(V[:, 7] == 0, 0, np.where((home > 7) & (V[:, 0] > 0), 2, 1))
    label = np.where((label == 1) & (social == 0) & (home < 4), 3, label)
    columns: dict[str, Any] = {
        f"v{j}": (np.array([f"a{i}" for i in range(size)], object)[V[:, j]], [f"a{i}" for i in range(size)])
        for j, size in enumerate(sizes)
    }
    return _make_table("admission-rules", columns, label, 4)


@_synthetic_table("development", "gene-letters")
def _(rng: np.random.Generator) -> SuiteTable:
    """Sixty columns of four categories that are independent within each of three classes."""
    n, names = 3_200, np.array(["a", "c", "g", "t"], object)
    label, columns = rng.choice(3, p=[0.25, 0.25, 0.5], size=n), dict[str, Any]()
    for i in range(60):
        strength = 4.0 / (1 + abs(i - 30)) if i % 3 else 0.3
        odds = rng.standard_normal((3, 4)) * strength * np.array([1, 1, 0])[:, None]
        shares = np.exp(odds) / np.exp(odds).sum(axis=1, keepdims=True)
        drawn = (rng.random(n)[:, None] > np.cumsum(shares[label], axis=1)).sum(axis=1)
        columns[f"g{i}"] = (names[drawn.clip(0, 3)], names.tolist())
    return _make_table("gene-letters", columns, label, 3)


# Rare classes, small gaps, and rules of high order.


@_synthetic_table("development", "rare-positives")
def _(rng: np.random.Generator) -> SuiteTable:
    """Two percent of positives in 14,000 rows."""
    X = rng.standard_normal((14_000, 12))
    score = 0.5 * X[:, :4].sum(axis=1) + 0.4 * np.abs(X[:, 5]) - 4.6
    return _make_table("rare-positives", X, _binary_labels(rng, score), 2, (-5, 5))


@_synthetic_table("development", "small-gap")
def _(rng: np.random.Generator) -> SuiteTable:
    """Columns that raise the accuracy by only a few points."""
    X = rng.standard_normal((4_000, 9))
    return _make_table("small-gap", X, _binary_labels(rng, 0.5 * X[:, 0] + 0.4 * X[:, 3] + 0.9), 2, (-5, 5))


@_synthetic_table("development", "lines-of-three")
def _(rng: np.random.Generator) -> SuiteTable:
    """Whether a player occupies one of eight lines of three fields: every column alone predicts little."""
    n, names = 960, np.array(["x", "o", "b"], object)
    board = np.argsort(rng.random((n, 9)), axis=1) < 5
    lines = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]
    won = np.any([board[:, line].all(axis=1) for line in lines], axis=0)
    field = np.where(board, 0, np.where(rng.random((n, 9)) < 0.8, 1, 2))
    columns: dict[str, Any] = {f"f{j}": (names[field[:, j]], names.tolist()) for j in range(9)}
    return _make_table("lines-of-three", columns, won, 2)


@_synthetic_table("development", "parity-of-four")
def _(rng: np.random.Generator) -> SuiteTable:
    """The parity of four of eight binary columns, with noise: no set of three predicts anything."""
    n, names = 20_000, np.array(["no", "yes"], object)
    bits = rng.integers(2, size=(n, 8))
    label = (bits[:, [1, 3, 4, 6]].sum(axis=1) % 2 == 1) ^ (rng.random(n) < 0.05)
    columns: dict[str, Any] = {f"b{j}": (names[bits[:, j]], names.tolist()) for j in range(8)}
    return _make_table("parity-of-four", columns, label, 2)


@_synthetic_table("development", "binary-patterns")
def _(rng: np.random.Generator) -> SuiteTable:
    """Binary columns with rules of two and three among them."""
    n, names = 3_200, np.array(["no", "yes"], object)
    B = rng.random((n, 20)) < rng.uniform(0.2, 0.8, 20)
    score = 2.5 * (B[:, 0] & B[:, 7] & ~B[:, 11]) - 2.5 * (B[:, 3] & ~B[:, 9]) + 1.5 * B[:, 5] - 1.5 * B[:, 14]
    score = 2 * score + 3 * (B[:, 2] ^ B[:, 16]) - 1.5
    columns: dict[str, Any] = {f"b{j}": (names[B[:, j].astype(int)], names.tolist()) for j in range(20)}
    return _make_table("binary-patterns", columns, _binary_labels(rng, score), 2)


# -- validation ------------------------------------------------------------------------------------------------------


@_synthetic_table("validation", "wine")
def _(rng: np.random.Generator) -> SuiteTable:
    data = bundled.load_wine()
    return _bundled_table("wine", data, _round_bounds(data.data), 3)


@_synthetic_table("validation", "diabetes")
def _(rng: np.random.Generator) -> SuiteTable:
    return _bundled_table("diabetes", bundled.load_diabetes(), (-0.2, 0.2), (0, 400))


@_synthetic_table("validation", "linnerud")
def _(rng: np.random.Generator) -> SuiteTable:
    data = bundled.load_linnerud()
    columns: dict[str, Any] = {f"x{i}": (data.data[:, i], (0.0, 300.0)) for i in range(3)}
    return _make_table("linnerud", columns, data.target[:, 1], (20, 60))


@_synthetic_table("validation", "ringnorm")
def _(rng: np.random.Generator) -> SuiteTable:
    label = rng.integers(2, size=7_400)
    X = rng.standard_normal((7_400, 20)) * np.where(label, 2.0, 1.0)[:, None] + (1 - label)[:, None] * 2 / np.sqrt(20)
    return _make_table("ringnorm", X, label, 2, (-8, 8))


@_synthetic_table("validation", "waveform")
def _(rng: np.random.Generator) -> SuiteTable:
    place = np.arange(1, 22)
    waves = np.stack([np.maximum(6 - abs(place - centre), 0) for centre in (11, 15, 7)])
    label, part = rng.integers(3, size=5_000), rng.random((5_000, 1))
    first, second = waves[np.array([0, 0, 1])[label]], waves[np.array([1, 2, 2])[label]]
    X = part * first + (1 - part) * second + rng.standard_normal((5_000, 21))
    return _make_table("waveform", X, label, 3, (-5, 10))


@_synthetic_table("validation", "hastie")
def _(rng: np.random.Generator) -> SuiteTable:
    X, label = bundled.make_hastie_10_2(12_000, random_state=2)
    return _make_table("hastie", X, label > 0, 2, (-5, 5))


@_synthetic_table("validation", "xor-of-three")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((20_000, 8))
    label = ((X[:, 1] > 0.5) ^ (X[:, 4] > 0.5) ^ (X[:, 6] > 0.5)) ^ (rng.random(20_000) < 0.1)
    return _make_table("xor-of-three", X, label, 2)


@_synthetic_table("validation", "xor-and-sum")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((10_000, 12))
    score = 4 * np.sign((X[:, 0] - 0.5) * (X[:, 7] - 0.5)) + 4 * (X[:, 3] + X[:, 9] - 1)
    return _make_table("xor-and-sum", X, _binary_labels(rng, score), 2)


@_synthetic_table("validation", "sparse-regression-20000")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((20_000, 100))
    y = 3 * abs(X[:, 30] - 0.5) + X[:, 77] ** 2 + 0.2 * rng.standard_normal(20_000)
    return _make_table("sparse-regression-20000", X, y, (-2, 5))


@_synthetic_table("validation", "friedman2")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = bundled.make_friedman2(4_000, noise=50.0, random_state=2)
    limits: list[Bounds] = [(0, 100), (100, 1800), (0, 1), (0, 12)]
    return _make_table("friedman2", {f"x{i}": (X[:, i], limits[i]) for i in range(4)}, y, (0, 2_000))


@_synthetic_table("validation", "robot-arm-8")
def _(rng: np.random.Generator) -> SuiteTable:
    X, y = _robot_arm(rng, 8_192, 8)
    return _make_table("robot-arm-8", X, y, (0, 1.5), (-1.6, 1.6))


@_synthetic_table("validation", "letters")
def _(rng: np.random.Generator) -> SuiteTable:
    X, label = _gaussian_clusters(rng, 16_000, 26, 16, 2, 1.2)
    return _make_table("letters", X, label, 26, (-6, 6))


@_synthetic_table("validation", "image-segments")
def _(rng: np.random.Generator) -> SuiteTable:
    X, label = _gaussian_clusters(rng, 2_310, 7, 9, 2, 1.5)
    both = np.column_stack([np.exp(X / 2), X @ rng.standard_normal((9, 9)) / 3])
    columns: dict[str, Any] = {f"x{i}": (both[:, i], (0.0, 50.0) if i < 9 else (-8.0, 8.0)) for i in range(18)}
    return _make_table("image-segments", columns, label, 7)


@_synthetic_table("validation", "rare-event")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.random((15_000, 10))
    return _make_table("rare-event", X, _binary_labels(rng, 12 * X[:, 2] * X[:, 5] - 6), 2)


@_synthetic_table("validation", "heavy-tails")
def _(rng: np.random.Generator) -> SuiteTable:
    X = rng.standard_t(2, (8_000, 8))
    y = 10 * np.arctan(X[:, 0]) + 5 * np.arctan(X[:, 1] * X[:, 2]) + rng.standard_t(3, 8_000)
    return _make_table("heavy-tails", X, y, (-100, 100), (-500, 500))


@_synthetic_table("validation", "correlated-regression")
def _(rng: np.random.Generator) -> SuiteTable:
    X = _correlated_columns(rng, 2_000, 3, 4, 0.9)
    return _make_table(
        "correlated-regression", X, X[:, 0] + X[:, 1] - X[:, 5] + rng.standard_normal(2_000), (-12, 12), (-5, 5)
    )


@_synthetic_table("validation", "many-categories")
def _(rng: np.random.Generator) -> SuiteTable:
    towns = np.array([f"t{i}" for i in range(1_000)], object)
    town = np.minimum(rng.geometric(0.01, 20_000) - 1, 999)
    effect, X = rng.standard_normal(1_000), rng.random((20_000, 4))
    label = _binary_labels(rng, 1.5 * effect[town] + 3 * (X[:, 0] - 0.5))
    columns: dict[str, Any] = {f"x{i}": (X[:, i], (0.0, 1.0)) for i in range(4)}
    columns["town"] = (towns[town], towns.tolist())
    return _make_table("many-categories", columns, label, 2)


@_synthetic_table("validation", "few-rows-three-classes")
def _(rng: np.random.Generator) -> SuiteTable:
    return _three_classes(rng, "few-rows-three-classes", 120, 6, 1.5)


@_synthetic_table("validation", "constant-number")
def _(rng: np.random.Generator) -> SuiteTable:
    return _make_table("constant-number", rng.random((1_000, 5)), np.full(1_000, 3.0), (0, 10))
