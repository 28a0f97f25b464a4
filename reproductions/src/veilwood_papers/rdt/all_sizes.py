# SPDX-License-Identifier: Apache-2.0
"""Errors of one random forest at each depth and number of trees: a simulation, NOT PRIVATE.

A random tree truncated at depth h is a random tree of depth h, and the first k trees of a forest are a forest of k
trees. Rows are therefore routed once, and noise is drawn for the nodes that test rows reach. The noise is
floating-point noise from a public seed, on public benchmark tables that are read many times: nothing here is a release.
``RandomTreesClassifier`` fits sound forests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from veilwood.arrays import Codes, Floats, Ints
from veilwood.data.encoding import Encoding
from veilwood.trees.forest import LEAF, Forest
from veilwood.trees.random import Thresholds, grow_binary
from veilwood_papers.tables import PublicTable, PublicTables

NoiseKind = Literal["none", "printed", "proven", "proven, leaves as printed"]
RULES = ("RFMV", "RFTA", "RFPA")
"""Majority voting, threshold averaging and probabilistic averaging."""

TABLES = {
    "Ban_Aut": "banknote",
    "BTSC": "blood-transfusion",
    "CVR": "congressional-voting",
    "Mam_Mass": "mammographic",
    "Mushroom": "mushroom",
    "Adult": "adult-a9a",
    "Covertype": "covertype",
}
"""Data sets by their names in the paper. Quantum is not available, and only a tenth of Covertype is."""


def load_table(tables: PublicTables, panel: str) -> PublicTable:
    """Return a data set as in the paper: attributes are binary or numeric where possible."""
    table = tables.load_table(TABLES[panel])
    X = table.X.copy()
    for column in table.facts["columns"]:
        values = [value for value in column.get("values", ()) if value != "?"]
        if column["name"] == table.facts["target"] or len(values) <= 2 or not all(v.isdigit() for v in values):
            continue
        levels = [int(value) for value in values]
        del column["values"]
        column.update(kind="numeric", lower=min(levels), upper=max(levels), nullable=True)
        X[column["name"]] = pd.to_numeric(X[column["name"]], errors="coerce")
    texts = {name: "category" for name in X.columns if X[name].dtype == object}  # categories are encoded much faster
    return PublicTable(table.facts, X.astype(texts), table.y)


class SplitRows(NamedTuple):
    """Codes and classes of all rows, split into training, validation (to select sizes) and test rows."""

    codes: Codes
    classes: Ints
    train: Ints
    validation: Ints
    test: Ints


def split_rows(encoding: Encoding, table: PublicTable, seed: int) -> SplitRows:
    """Hold out a tenth for testing, and a tenth of the rest for validation."""
    order = np.random.default_rng(seed).permutation(len(table.X))
    n_train = round(0.9 * len(order))
    n_own = round(0.9 * n_train)
    codes, classes = encoding.encode(table.X), encoding.encode_target(table.y).astype(np.int64)
    return SplitRows(codes, classes, order[:n_own], order[n_own:n_train], order[n_train:])


def node_levels(forest: Forest, codes: Codes) -> Iterator[Ints]:
    """Yield the node of each row in each tree, level by level. A row stays in the leaf that it reaches."""
    node = np.broadcast_to(forest.roots, (len(codes), forest.n_trees)).astype(np.int64)
    rows = np.arange(len(codes))[:, None]
    while True:
        yield node
        feature = forest.feature[node]
        inner = feature != LEAF
        if not inner.any():
            return
        code = codes[rows, np.where(inner, feature, 0)].astype(np.int64)
        cut = forest.cut[node]
        branch = np.where(cut < 0, forest.lookup[np.where(cut < 0, -1 - cut + code, 0)], code >= cut)
        node = np.where(inner, forest.child[node] + branch, node)


class Reading(NamedTuple):
    """Validation and test errors of the three voting rules, for one forest at one depth and number of trees."""

    h: int
    k: int
    validation: tuple[float, ...]
    test: tuple[float, ...]


def read_sizes(
    parts: SplitRows, encoding: Encoding, heights: Sequence[int], counts: Sequence[int],
    noises: Sequence[tuple[NoiseKind, float]], thresholds: Thresholds, seed: int,
) -> dict[tuple[NoiseKind, float], list[Reading]]:  # fmt: skip
    """Grow one forest, route the rows once, and return the errors at each size and noise.

    ``noises`` are pairs of a kind and the paper's eta: no noise, noise of the printed scale eta/k, or noise of the
    scale k/eta that the proof needs, with negative counts set to 0 or replaced as Algorithm 2 prints it.
    """
    forest = grow_binary(encoding.columns, max(counts), max(heights), seed, thresholds=thresholds)
    rng = np.random.default_rng([seed, 1])
    readings: dict[tuple[NoiseKind, float], list[Reading]] = {noise: [] for noise in noises}
    held_out = np.concatenate([parts.validation, parts.test])
    truth, n_validation = parts.classes[held_out], len(parts.validation)
    walks = zip(node_levels(forest, parts.codes[parts.train]), node_levels(forest, parts.codes[held_out]), strict=False)
    coin = rng.random(len(held_out))
    for h, (node, place) in enumerate(walks):
        if h not in heights:
            continue
        own_class = parts.classes[parts.train][:, None]
        totals = np.bincount((2 * node + own_class).ravel(), minlength=2 * forest.n_nodes).reshape(-1, 2)
        reached, spot = np.unique(place, return_inverse=True)
        spot = spot.reshape(place.shape)
        unit, random_share = rng.laplace(size=(len(reached), 2)), rng.random(len(reached))
        for (kind, eta), readings_of in readings.items():
            for k in counts:
                scale = 0.0 if kind == "none" else eta / k if kind == "printed" else k / eta
                as_printed = kind in ("printed", "proven, leaves as printed")
                share = _class_frequencies(totals[reached] + scale * unit, random_share if as_printed else None)
                own = share[spot[:, :k]]
                votes = np.where(own == 0.5, 0.5, own > 0.5).mean(axis=1)
                average = own.mean(axis=1)
                wrong = [(rule != truth) for rule in (votes > 0.5, average > 0.5, coin < average)]
                readings_of.append(
                    Reading(
                        h,
                        k,
                        tuple(100 * float(w[:n_validation].mean()) for w in wrong),
                        tuple(100 * float(w[n_validation:].mean()) for w in wrong),
                    )
                )
    return readings


def best_size(readings: Sequence[Reading], rule: int) -> Reading:
    """Return the size with the smallest validation error. Ties go to the smaller forest."""
    return min(readings, key=lambda reading: (reading.validation[rule], reading.k * 2**reading.h))


def _class_frequencies(counts: Floats, random_share: Floats | None) -> Floats:
    """Return the frequency of the second class.

    Negative counts are clipped to 0, or replaced by a random frequency as printed if ``random_share`` is given.
    """
    clipped = np.maximum(counts, 0)
    total = clipped.sum(axis=1)
    share = np.where(total > 0, clipped[:, 1] / np.where(total > 0, total, 1), 0.5)
    if random_share is None:
        return share
    return np.where((counts < 0).any(axis=1) | (total == 0), random_share, share)
