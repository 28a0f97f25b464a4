# SPDX-License-Identifier: Apache-2.0
"""Experiment of Table 1 and the odd figures of Bojarski et al.: test errors at each depth and number of trees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.tree import DecisionTreeClassifier

from veilwood.data.encoding import Encoding
from veilwood.estimators import RandomTreesClassifier
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_papers.drawing import mark_not_private
from veilwood_papers.exhibit import Cell, Experiment, Job, Row, read_published
from veilwood_papers.not_private.as_published import RandomTreesAsPrintedNotPrivate
from veilwood_papers.rdt import all_sizes
from veilwood_papers.rdt.all_sizes import RULES, TABLES, NoiseKind, SplitRows, best_size, load_table, read_sizes
from veilwood_papers.tables import PublicTable, PublicTables

ERROR = "error (%)"
HEIGHTS, COUNTS = tuple(range(1, 16)), tuple(range(1, 22, 2))
QUICK_HEIGHTS, QUICK_COUNTS = (1, 3, 5, 7, 9, 11, 13, 15), (1, 3, 7, 13, 21)
LARGE = ("Adult", "Covertype")
PANELS = (("Ban_Aut", "CVR", "Mam_Mass", "Mushroom"), ("Adult",), ("BTSC",), ("Covertype",), ("Quantum",))
"""Data sets of each pair of figures: errors at each size, then at each eta."""
SECONDS = {"Adult": 8.0, "Covertype": 5.0, "Mushroom": 2.5}
# At eta = 1000/n the noise of a count has standard deviation sqrt(2) k n / 1000, and an average leaf has n / 2^h rows.
# With k = 11 and h = 6 the two are equal for every n, so this public size does not depend on any data set.
PUBLIC_K, PUBLIC_H = 11, 6

CART = mark_not_private("CART, pruned as rpart does")
NOISE_FREE = {rule: mark_not_private(f"n-dp{rule}, thresholds as printed") for rule in RULES}
NOISE_FREE_OURS = {rule: mark_not_private(f"n-dp{rule}, our thresholds") for rule in RULES}
PRINTED = {rule: mark_not_private(f"dp{rule} as printed") for rule in RULES}
PROVEN = {rule: mark_not_private(f"dp{rule}, scale of the proof, simulated") for rule in RULES}
SOUND = {rule: f"dp{rule}, sound, k={PUBLIC_K} h={PUBLIC_H}" for rule in RULES}
# The same at the published k and h of each rule, where nothing is chosen. The paper prints none for RFPA.
PRINTED_AT_PUBLISHED = {rule: mark_not_private(f"dp{rule} as printed, published k and h") for rule in RULES[:2]}
SOUND_AT_PUBLISHED = {rule: f"dp{rule}, sound, published k and h" for rule in RULES[:2]}
MIXED_AT_PUBLISHED = {
    rule: mark_not_private(f"dp{rule}, scale of the proof, leaves as printed, published k and h") for rule in RULES[:2]
}
VOTING = dict(zip(RULES, ("majority", "threshold", "probabilistic"), strict=True))
CHOSEN = "chosen"  # x of the size selected on validation rows; any other x is a size, "" if the method has none


def list_jobs(quick: bool) -> list[Job]:
    """Return one job per run and data set: ten runs. A quick run has two of large tables, and fewer sizes."""
    return [
        Job(f"{panel}, run {seed}", table, {"panel": panel, "seed": seed, "quick": quick}, SECONDS.get(panel, 1.0))
        for panel, table in TABLES.items()
        for seed in range(2 if quick and panel in LARGE else 10)
    ]


def size_name(k: int, h: int) -> str:
    """Return the x coordinate of a forest with k trees of height h."""
    return f"k={k} h={h}"


def measure_job(job: Job, tables: PublicTables) -> Iterator[Row]:
    """Measure one split: two forests at all sizes, CART, and sound forests of one public size."""
    panel, seed, quick = job.settings["panel"], job.settings["seed"], job.settings["quick"]
    table = load_table(tables, panel)
    encoding = Encoding(table.schema, "grid")
    parts = all_sizes.split_rows(encoding, table, seed)
    heights, counts = (QUICK_HEIGHTS, QUICK_COUNTS) if quick else (HEIGHTS, COUNTS)
    eta = 1000 / (len(parts.train) + len(parts.validation))

    def make_row(curve: str, x: str, value: float, measure: str = ERROR) -> Row:
        return Row(Cell(panel, curve, x, measure), seed, value)

    by_range = read_sizes(parts, encoding, heights, counts, [("none", 0.0), ("printed", eta)], "range", seed)
    by_path = read_sizes(parts, encoding, heights, counts, [("none", 0.0), ("proven", eta)], "path", seed)
    chosen = {
        **{NOISE_FREE[rule]: by_range["none", 0.0] for rule in RULES},
        **{PRINTED[rule]: by_range["printed", eta] for rule in RULES},
        **{NOISE_FREE_OURS[rule]: by_path["none", 0.0] for rule in RULES},
    }
    for place, (curve, readings) in enumerate(chosen.items()):
        reading = best_size(readings, place % len(RULES))
        yield make_row(curve, CHOSEN, reading.test[place % len(RULES)])
        yield make_row(curve, CHOSEN, reading.k, "k")
        yield make_row(curve, CHOSEN, reading.h, "h")
    for curves, readings in ((PRINTED, by_range["printed", eta]), (PROVEN, by_path["proven", eta])):
        for reading in readings:
            for rule, error in zip(RULES, reading.test, strict=True):
                yield make_row(curves[rule], size_name(reading.k, reading.h), error)
    yield make_row(CART, CHOSEN, _cart_error(parts))
    for rule in RULES:
        error = _forest_error(RandomTreesClassifier, table, parts, rule, PUBLIC_K, PUBLIC_H, seed, epsilon=eta)
        yield make_row(SOUND[rule], CHOSEN, error)
    for place, (rule, (k, h)) in enumerate(published_sizes(panel).items()):
        printed = _forest_error(RandomTreesAsPrintedNotPrivate, table, parts, rule, k, h, seed, epsilon_in_paper=eta)
        yield make_row(PRINTED_AT_PUBLISHED[rule], CHOSEN, printed)
        sound = _forest_error(RandomTreesClassifier, table, parts, rule, k, h, seed, epsilon=eta, leaves="plain")
        yield make_row(SOUND_AT_PUBLISHED[rule], CHOSEN, sound)
        mixed: tuple[NoiseKind, float] = ("proven, leaves as printed", eta)
        (reading,) = read_sizes(all_rows_train(parts), encoding, (h,), (k,), [mixed], "range", seed)[mixed]
        yield make_row(MIXED_AT_PUBLISHED[rule], CHOSEN, reading.test[place])


def published_sizes(panel: str) -> dict[str, tuple[int, int]]:
    """Return the published k and h of each rule with noise on a data set."""
    lines = {row["method"]: row for row in read_published("rdt_table1") if row["dataset"] == panel}
    return {rule: (int(lines[f"dp{rule}"]["k"]), int(lines[f"dp{rule}"]["h"])) for rule in RULES[:2]}


def all_rows_train(parts: SplitRows) -> SplitRows:
    """Return the split with its validation rows moved to the training rows, for forests of a given size."""
    train = np.concatenate([parts.train, parts.validation])
    return parts._replace(train=train, validation=parts.validation[:0])


def _cart_error(parts: SplitRows) -> float:
    """Return the error of CART with the defaults of rpart: 20 rows to split, 7 per leaf, complexity 0.01."""
    rows = np.concatenate([parts.train, parts.validation])
    classes = parts.classes[rows]
    impurity = 1 - float((np.bincount(classes) / len(classes)) @ (np.bincount(classes) / len(classes)))
    tree = DecisionTreeClassifier(min_samples_split=20, min_samples_leaf=7, ccp_alpha=0.01 * impurity, random_state=0)
    tree.fit(parts.codes[rows], classes)
    return 100 * float(np.mean(tree.predict(parts.codes[parts.test]) != parts.classes[parts.test]))


def _forest_error(
    kind: Any, table: PublicTable, parts: SplitRows, rule: str, k: int, h: int, seed: int, **parameters: Any
) -> float:
    """Return the test error of a forest of the library, or of the algorithm as printed."""
    rows = all_rows_train(parts).train
    X_test, truth = table.X.iloc[parts.test], table.y.iloc[parts.test].to_numpy()
    forest = kind(
        table.schema, n_estimators=k, max_depth=h, voting=VOTING[rule], random_state=seed, ledger=MemoryLedger(),
        n_jobs=1, **parameters,
    ).fit(table.X.iloc[rows], table.y.iloc[rows])  # fmt: skip
    return 100 * float(np.mean(forest.predict(X_test) != truth))


EXPERIMENT = Experiment("rdt-sizes", list_jobs, measure_job)
