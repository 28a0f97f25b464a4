# SPDX-License-Identifier: Apache-2.0
"""Variants that follow a paper to the letter and are not private; they exist to reproduce published figures.

Their sound counterparts are in ``estimators``. Nothing here carries a guarantee, and every result says so.
"""

from veilwood.not_private.diprime import DiPriMeClassifierAsPublishedNotPrivate, DiPriMeRegressorAsPublishedNotPrivate
from veilwood.not_private.hidden_id3 import ExactHiddenSplitTreeNotPrivate
from veilwood.not_private.random_trees import RandomTreesAsPrintedNotPrivate

__all__ = [
    "DiPriMeClassifierAsPublishedNotPrivate",
    "DiPriMeRegressorAsPublishedNotPrivate",
    "ExactHiddenSplitTreeNotPrivate",
    "RandomTreesAsPrintedNotPrivate",
]
