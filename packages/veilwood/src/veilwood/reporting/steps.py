# SPDX-License-Identifier: Apache-2.0
"""Purpose and noise of the steps of a plan, for readers of a report."""

from __future__ import annotations

import math
from typing import Final

from veilwood.privacy.steps import Step

_GROUP_BOUNDS = "Distribution of the values of columns, for the boundaries of their groups."
_TARGET_SPREAD = "Distribution of the target or its residuals: location and outliers."
_ROUND = "The next correction and its size. Each round improves the prediction of the rounds before it."
_N_ROWS = "Approximate number of rows, which determines the resolution of the other measurements."
_BEST_COLUMNS = "The columns that are most informative about the target, which get the rest of the budget."
_CELL_CLASSES = "Number of rows of each class with each value, or group of values, of a column."
_CLASS_COUNTS = "Number of rows of each class in each part of the data. Predictions are their fractions."
_TARGET_MEANS = "Sum and number of targets in each part of the data. Predictions are their means."

STEP_PURPOSES = {
    "column_strengths": "Strength of the best column and of the average column: whether one column is enough.",
    "round_histogram": "Distribution of the values of a column, for the boundaries of its groups.",
    **dict.fromkeys(("histogram", "joint_histograms"), _GROUP_BOUNDS),
    **dict.fromkeys(("residual_histogram",), _TARGET_SPREAD),
    "table_weight": "Common weight of all tables: smaller if columns are redundant.",
    "cell_weight": "Weight of the sparse histogram relative to the other tables.",
    **dict.fromkeys(("round_selection", "round_rows", "round_gradients", "round_pairs"), _ROUND),
    **dict.fromkeys(("row_count", "all_rows"), _N_ROWS),
    "column_selection": _BEST_COLUMNS,
    **dict.fromkeys(("table", "joint_tables", "column_classes"), _CELL_CLASSES),
    "sparse_cells": "Number of rows of each class in small cells of several columns.",
    **dict.fromkeys(("class_counts", "class_counts_again", "leaf_classes", "leaf_labels"), _CLASS_COUNTS),
    **dict.fromkeys(("target_sums", "leaf_targets"), _TARGET_MEANS),
    "splits": "Split points that separate the classes.",
    "medians": "Median of a column, used as a split point.",
    "attributes": "Column of the next split.",
    "matrix_table": "Tables of counts from which all leaves can be computed with little noise.",
}
"""Purpose of a step, by its kind."""


def purpose_of(kind: str) -> str:
    """Return the purpose of a step of a plan, as a sentence.

    >>> purpose_of("leaf_classes").split(".")[0]
    'Number of rows of each class in each part of the data'
    """
    return STEP_PURPOSES.get(kind, "Part of the input of the model.")


# Steps whose noise is on numbers of rows, and those that sum gradients, of which no row has more than 1.
_COUNTS: Final = frozenset({
    "class_counts", "class_counts_again", "row_count", "all_rows", "round_rows", "histogram", "joint_histograms",
    "round_histogram", "residual_histogram", "table", "joint_tables", "column_classes", "leaf_classes", "sparse_cells",
    "matrix_table",
})  # fmt: skip
_GRADIENTS: Final = frozenset({"round_gradients"})
_GRADIENT_UNITS: Final = 1 << 12  # per row, as in forests.adaptive.row_backend


def noise_of(step: Step) -> str:
    """Return the mean size of the noise that a step adds: in rows, or in the most that one unit can change."""
    if step.mechanism is None:
        return "none"
    if step.variance <= 0:
        return "a random selection"
    is_gaussian = "Gaussian" in step.mechanism_text
    size = math.sqrt(step.variance * (2 / math.pi if is_gaussian else 1 / 2))
    if step.kind in _GRADIENTS:
        size /= _GRADIENT_UNITS
    elif step.kind not in _COUNTS:
        one_unit = math.sqrt(step.sensitivity) if is_gaussian else step.sensitivity
        return f"about {size / one_unit:,.0f} times what one unit can change"
    return f"about {size:,.0f} rows" if size >= 1.5 else "about 1 row"
