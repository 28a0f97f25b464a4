# SPDX-License-Identifier: Apache-2.0
"""Data sets of the paper on secure trees, as codes of few values (Table 1), and the trees that it compares.

Trees are trained by plaintext versions of the protocols (``plain``), which give the same trees. Noise is simulated in
floating point from a public seed, on public benchmark tables: nothing here is a release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import train_test_split

from veilwood.arrays import Floats, Ints
from veilwood.data.encoding import Encoding
from veilwood_papers.drawing import draw_agreement, mark_not_private
from veilwood_papers.exhibit import Cell, Exhibit, Experiment, Job, Row, Value, Values, read_published
from veilwood_papers.mpc.plain import USED, SelectionRule, first_largest, grow_tree
from veilwood_papers.tables import PublicTable, PublicTables
from veilwood_secure.protocols.hidden_forest import level_epsilons
from veilwood_secure.protocols.public_trees import PlainTree

Pick = Callable[[Ints], Ints]

TABLES = {"Titanic": "titanic", "Heart": "heart", "Adult": "adult"}
DEPTH = {"Titanic": 4, "Heart": 3, "Adult": 5}
EPSILONS = {
    "Titanic": (0.2, 0.5, 1.0, 1.5, 2.0),
    "Heart": (0.2, 0.5, 1.0, 1.5, 2.0),
    "Adult": (0.005, 0.01, 0.05, 0.1, 0.5, 1.0),
}
FEW = ("Titanic", "Heart")
# Public cut points and groups, chosen as round numbers and not from the data.
CUTOFFS = {
    "titanic": {"age": [12, 18, 35, 55], "siblings_spouses": [1, 2, 3, 5], "parents_children": [1, 2, 3, 5],
                "fare": [10, 20, 50, 100]},
    "heart": {"age": [40, 55, 65], "trestbps": [120, 140], "chol": [200, 240], "thalach": [130, 160],
              "oldpeak": [1, 2]},
    "adult": {"age": [25, 35, 45, 55, 65], "education_num": [9, 10, 11, 13, 14, 15],
              "hours_per_week": [20, 35, 41, 50, 60], "capital_gain": [1, 3000, 5000, 7500, 15000],
              "capital_loss": [1, 1500, 2000]},
}  # fmt: skip
ADULT_GROUPS = {
    "workclass": {"Federal-gov": "government", "Local-gov": "government", "State-gov": "government",
                  "Without-pay": "none", "Never-worked": "none", "?": "none"},
    "occupation": {"Craft-repair": "manual", "Handlers-cleaners": "manual", "Machine-op-inspct": "manual",
                   "Transport-moving": "manual", "Farming-fishing": "manual", "Other-service": "service",
                   "Priv-house-serv": "service", "Protective-serv": "service", "Armed-Forces": "service",
                   "?": "none", "Tech-support": "Adm-clerical"},
}  # fmt: skip
DROPPED = ("fnlwgt", "education")  # a sampling weight, and a duplicate of education_num


@dataclass(frozen=True)
class CodedTable:
    """Encoded rows, with the public sizes of their domains."""

    codes: Ints
    target: Ints
    sizes: tuple[int, ...]

    @property
    def width(self) -> int:
        """Size of the largest domain: the number of branches of every split in a hidden tree."""
        return max(self.sizes)


def load_table(tables: PublicTables, panel: str) -> CodedTable:
    """Return a data set with its numeric columns binned and its categories grouped."""
    name = TABLES[panel]
    table = tables.load_table(name)
    facts, X = table.facts, table.X.copy()
    facts["columns"] = [column for column in facts["columns"] if name != "adult" or column["name"] not in DROPPED]
    for column in facts["columns"]:
        if column["name"] in CUTOFFS[name]:
            column["cutoffs"] = CUTOFFS[name][column["name"]]
        groups = ADULT_GROUPS.get(column["name"]) if name == "adult" else None
        if groups:
            X[column["name"]] = X[column["name"]].replace(groups)
            column["values"] = list(dict.fromkeys(groups.get(value, value) for value in column["values"]))
        elif name == "adult" and column["name"] == "native_country":
            X["native_country"] = X["native_country"].where(X["native_country"] == "United-States", "elsewhere")
            column["values"] = ["United-States", "elsewhere"]
    encoding = Encoding(PublicTable(facts, X, table.y).schema, "bins")
    codes = encoding.encode(X[list(encoding.schema.feature_names)])
    return CodedTable(codes.astype(np.int64), encoding.encode_target(table.y).astype(np.int64), tuple(encoding.n_codes))


# -- selection rules: the random draws of the protocols ----------------------------------------------------------------


class SelectionRules:
    """Selection rules of a tree at a given epsilon and depth, with simulated noise from one generator."""

    def __init__(self, seed: object) -> None:
        self.rng = np.random.default_rng(seed)  # type: ignore[arg-type]

    def laplace_noise(self, epsilon: Fraction) -> Pick:
        """Select the largest score after Laplace noise."""
        return self._noisy_argmax(lambda shape: self.rng.laplace(scale=float(1 / epsilon), size=shape))

    def noisy_max(self, epsilon: Fraction) -> Pick:
        """Select the largest score after one-sided geometric noise, which suffices for monotone scores."""
        stop = -np.expm1(-float(epsilon))
        return self._noisy_argmax(lambda shape: self.rng.geometric(stop, shape).astype(float))

    def exponential_mechanism(self, epsilon: Fraction) -> Pick:
        """Select with the paper's exponential mechanism, whose sensitivity is twice what monotone scores need."""
        half = float(epsilon) / 2
        return lambda scores: np.where(
            scores == USED, -np.inf, half * scores + self.rng.gumbel(size=scores.shape)
        ).argmax(axis=1)  # fmt: skip

    def random_feature(self, level: int, scores: Ints) -> Ints:
        """Select a feature uniformly at random."""
        return np.asarray(np.where(scores == USED, -1.0, self.rng.random(scores.shape)).argmax(axis=1))

    def _noisy_argmax(self, draw: Callable[[tuple[int, ...]], Floats]) -> Pick:
        return lambda scores: np.where(scores == USED, -np.inf, scores + draw(scores.shape)).argmax(axis=1)


def _per_level(choices: list[Pick | SelectionRule]) -> SelectionRule:
    return lambda level, scores: choices[level](scores)  # type: ignore[call-arg, arg-type]


NO_NOISE, PUBLISHED = mark_not_private("MPC-ID3, no noise"), mark_not_private("ODP+FMPC-ID3 as published")
BASELINE, OURS = "CDP+PMPC-ID3, the paper's baseline", "hidden tree, noisy maxima (ours)"
EXTRA = "extra trees: random structure, noisy leaves"
SINGLE = (NO_NOISE, PUBLISHED, BASELINE, OURS)


def selection_rules(
    variant: str, epsilon: float, depth: int, leaf: str, seed: object
) -> tuple[SelectionRule, SelectionRule]:
    """Return the rules by which a variant selects splits and leaf labels."""
    exact, draw = Fraction(str(epsilon)), SelectionRules(seed)
    at_leaf = {"laplace": draw.laplace_noise, "exponential": draw.exponential_mechanism}[leaf]
    nothing: list[Any] = [first_largest] * depth
    if variant == NO_NOISE:
        return first_largest, first_largest
    if variant == PUBLISHED:
        return first_largest, _per_level([*nothing, at_leaf(exact)])
    if variant == BASELINE:
        share = exact / (depth + 1)
        choose = _per_level([*[draw.exponential_mechanism(share)] * depth, at_leaf(share)])
        return choose, choose
    if variant == OURS:
        choose = _per_level([draw.noisy_max(part) for part in level_epsilons(exact, depth)])
        return choose, choose
    return draw.random_feature, _per_level([*nothing, draw.noisy_max(exact)])


def train_tree(data: CodedTable, rows: Ints, choices: tuple[SelectionRule, SelectionRule], depth: int) -> PlainTree:
    """Train one tree on the given rows."""
    split, label = choices
    return grow_tree(
        data.codes[rows], data.target[rows], sizes=(data.width,) * len(data.sizes), n_classes=2, depth=depth,
        split=split, label=label,
    )  # fmt: skip


def forest_scores(
    data: CodedTable, variant: str, epsilon: float, depth: int, seed: int, leaf: str = "laplace", n_trees: int = 1
) -> tuple[float, float]:
    """Return accuracy and AUC of predicted labels on a fifth of the rows. Trees of a forest see disjoint rows."""
    rows, test = train_test_split(np.arange(len(data.target)), test_size=0.2, random_state=seed)
    fixed = [seed, depth, n_trees, int(1000 * epsilon), len(variant), len(leaf)]  # public, one per cell
    tree_of_row = np.random.default_rng(fixed).integers(0, n_trees, len(rows))
    trees = [
        train_tree(
            data, rows[tree_of_row == tree], selection_rules(variant, epsilon, depth, leaf, [*fixed, tree]), depth
        )
        for tree in range(n_trees)
    ]
    votes = np.sum([tree.predict(data.codes[test]) for tree in trees], axis=0)
    predicted = (2 * votes > n_trees).astype(np.int64)
    truth = data.target[test]
    return float(np.mean(predicted == truth)), float(roc_auc_score(truth, predicted))


def list_splits(quick: bool) -> list[Job]:
    """Return one job per data set and split: a hundred splits, or twenty in a quick run. The paper has five."""
    return [
        Job(f"{panel}, seed {seed}", table, {"panel": panel, "seed": seed}, 0.6 if panel == "Adult" else 0.1)
        for panel, table in TABLES.items()
        for seed in range(20 if quick else 100)
    ]


# -- Table 1: sizes of the data sets ---------------------------------------------------------------------------------

SIZE_COLUMNS = {"sample size": "sample_size", "attributes": "attributes", "domain size": "domain_size"}


def list_size_jobs(quick: bool) -> list[Job]:
    """Return one job per data set."""
    return [Job(panel, table, {"panel": panel}, 0.3) for panel, table in TABLES.items()]


def measure_sizes(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure the number of rows and columns, and the largest number of values of a column."""
    data = load_table(tables, job.settings["panel"])
    for name, size in zip(SIZE_COLUMNS, (len(data.target), len(data.sizes), data.width), strict=True):
        yield Row(Cell(job.settings["panel"], "size", name, "number"), 0, float(size))


def published_sizes() -> Values:
    """Return the published sizes."""
    return {
        Cell(row["dataset"], "size", name, "number"): Value(float(row[column]))
        for row in read_published("secure_table1")
        for name, column in SIZE_COLUMNS.items()
    }


def size_reason(cell: Cell, measured: Values) -> str:
    """Return the reason why a size differs from the published size."""
    if cell.x == "sample size":
        return "known: 32,651 in the paper; UCI's training file of Adult has 32,561 rows."
    return "not tested: the paper counts the class as well, or another selection of columns: it does not say which."


EXHIBITS = (
    Exhibit(
        "secure",
        "table 1",
        "Sizes of the data sets",
        "After numbers were cut and categories grouped, as in the figures.",
        Experiment("secure-sizes", list_size_jobs, measure_sizes),
        draw_agreement,
        published=published_sizes,
        why=size_reason,
    ),
)
