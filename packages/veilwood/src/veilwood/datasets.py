# SPDX-License-Identifier: Apache-2.0
"""Small public data sets with schemas; no download needed. Two are computed from rules, one is in scikit-learn."""

from __future__ import annotations

from itertools import product
from typing import Any, NamedTuple

import pandas as pd

from veilwood.data.columns import Column
from veilwood.data.schema import Schema

__all__ = ["Dataset", "balance_scale", "car", "iris"]


class Dataset(NamedTuple):
    """A table with its public schema."""

    schema: Schema
    X: pd.DataFrame
    y: pd.Series[Any]


def _categorical_dataset(schema: Schema, rows: list[tuple[str, ...]], labels: list[str]) -> Dataset:
    X = pd.DataFrame(rows, columns=list(schema.feature_names), dtype=object)
    return Dataset(schema, X, pd.Series(labels, name=schema.target.name, dtype=object))


_CAR_DOMAINS = {
    "buying": ("vhigh", "high", "med", "low"),
    "maint": ("vhigh", "high", "med", "low"),
    "doors": ("2", "3", "4", "5more"),
    "persons": ("2", "4", "more"),
    "lug_boot": ("small", "med", "big"),
    "safety": ("low", "med", "high"),
}
# Tables of the decision model (see ``car``), as levels from 0 (worst): the price for each pair of buying and maint, in
# the order of their categories, and the class for each pair of price and technical quality.
_PRICE_LEVELS = {
    "vhigh": (0, 0, 1, 1),
    "high": (0, 1, 1, 1),
    "med": (1, 1, 2, 3),
    "low": (1, 2, 3, 3),
}
_CAR_CLASS = (
    ("unacc", "unacc", "unacc", "unacc"),
    ("unacc", "unacc", "acc", "acc"),
    ("unacc", "acc", "acc", "vgood"),
    ("unacc", "acc", "good", "vgood"),
)


def car() -> Dataset:
    """Return the Car Evaluation data set: all 1728 combinations of six attributes, labelled by a decision model.

    The model (M. Bohanec, V. Rajkovic, 1988) rates a car by its price and its technical quality; price
    follows from buying and maintenance, quality from comfort and safety, comfort from doors, persons and
    luggage boot. UCI Machine Learning Repository, CC BY 4.0 (M. Bohanec, 1997).

    Examples
    --------
    >>> data = car()
    >>> data.y.value_counts().to_dict()
    {'unacc': 1210, 'acc': 384, 'good': 69, 'vgood': 65}
    """
    features = tuple(Column(name, "categorical", values=values) for name, values in _CAR_DOMAINS.items())
    target = Column("class", "categorical", values=("unacc", "acc", "good", "vgood"))
    rows = list(product(*_CAR_DOMAINS.values()))
    return _categorical_dataset(
        Schema("car", "classification", target, features), rows, [_rate_car(*row) for row in rows]
    )


def _rate_car(buying: str, maint: str, doors: str, persons: str, lug_boot: str, safety: str) -> str:
    price = _PRICE_LEVELS[buying][_CAR_DOMAINS["maint"].index(maint)]
    comfort = _rate_comfort(doors, persons, _CAR_DOMAINS["lug_boot"].index(lug_boot))
    grip = _CAR_DOMAINS["safety"].index(safety)
    quality = comfort + grip - 1 if comfort and grip else 0
    return _CAR_CLASS[price][quality]


def _rate_comfort(doors: str, persons: str, boot_level: int) -> int:
    if persons == "2":
        return 0
    if persons == "more" and doors == "2":
        return boot_level
    roomy = doors in ("4", "5more") or (persons == "more" and doors == "3")
    return (1, 2 if roomy else 1, 2)[boot_level]


def balance_scale() -> Dataset:
    """Return the Balance Scale data set: all 625 loads of a scale, labelled with the side to which it tips.

    UCI Machine Learning Repository, CC BY 4.0 (T. Hume, R. Siegler, 1994).

    Examples
    --------
    >>> data = balance_scale()
    >>> data.y.value_counts().to_dict()
    {'R': 288, 'L': 288, 'B': 49}
    """
    names = ("left_weight", "left_distance", "right_weight", "right_distance")
    features = tuple(Column(name, "categorical", values=tuple("12345")) for name in names)
    schema = Schema("balance-scale", "classification", Column("class", "categorical", values=("L", "B", "R")), features)
    rows = list(product("12345", repeat=4))
    tips = [int(row[0]) * int(row[1]) - int(row[2]) * int(row[3]) for row in rows]
    return _categorical_dataset(schema, rows, ["L" if tip > 0 else "R" if tip < 0 else "B" for tip in tips])


def iris() -> Dataset:
    """Return the Iris data set (R. A. Fisher, 1936) of scikit-learn: four lengths in centimetres, three species.

    The bounds are round numbers from general knowledge of these species, not read from the data.

    Examples
    --------
    >>> print(iris().schema)
    Schema 'iris': classification of 'class' (Iris-setosa, Iris-versicolor, Iris-virginica)
      sepal_length  numeric  4 to 8
      sepal_width   numeric  2 to 4.5
      petal_length  numeric  1 to 7
      petal_width   numeric  0 to 2.6
    """
    bounds = {"sepal_length": (4, 8), "sepal_width": (2, 4.5), "petal_length": (1, 7), "petal_width": (0, 2.6)}
    features = tuple(Column(name, "numeric", lower=low, upper=high) for name, (low, high) in bounds.items())
    classes = ("Iris-setosa", "Iris-versicolor", "Iris-virginica")
    schema = Schema("iris", "classification", Column("class", "categorical", values=classes), features)
    from sklearn.datasets import load_iris  # scikit-learn is slow to import

    values, species = load_iris(return_X_y=True)
    labels = [classes[place] for place in species]
    return Dataset(schema, pd.DataFrame(values, columns=list(bounds)), pd.Series(labels, name="class", dtype=object))
