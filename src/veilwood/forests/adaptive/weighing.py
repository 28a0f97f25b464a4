# SPDX-License-Identifier: Apache-2.0
"""How much tables count together, from one number with noise: how fast the likelihood of all rows grows with that.

Tables are added up as if columns were independent inside a class. Columns that tell the same are counted too often,
and ``shrinking.evidence`` takes a part of all of them away for that (``OVERLAP``); where columns really are
independent, it takes too much, and a frequent class is predicted nearly everywhere. Log-loss with the weight less that
without, 64 pairs of a development table and a budget with up to three rounds: -0.024, most where columns are
independent (balance-scale at n e = 700 0.65 -> 0.59) or nearly the same (late payments 0.50 -> 0.45).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from veilwood.forests.cells.rows import SCORE_UNITS, probabilities
from veilwood.privacy.purse import Purse

# Rows times e for an error of about a quarter; limits of the share of what is left.
NEEDS, SHARES = 20.0, (0.02, 0.1)
MOST_GAIN: Final = SCORE_UNITS  # of one row: a log-odds of 1; 1.5, 2 and 3 were no better and need more
VARY: Final = 0.5  # deviation of the logarithm of the best weight, from table to table; 0.35 and 0.7 were as good
FURTHEST: Final = 2.0  # a weight, or its reciprocal; beyond it a rare class is predicted too often (balance-scale -3)
MADE_UP: Final = 2000  # rows, to know how fast the gain falls with the weight

Floats = NDArray[np.float64]


class BelievedTable(NamedTuple):
    """A table as made-up rows need it: what is believed of its class counts, and what each cell adds to scores."""

    counts: Floats
    scores: Floats


def share_of(purse: Purse, n_rows: float) -> float:
    """Return the share of the budget that the weight of tables gets; 0 where that would be too much of what is left."""
    low, high = SHARES
    share = max(purse.share(NEEDS / n_rows), low * purse.left)
    return share if share <= high * purse.left else 0.0


def weight_of(
    gain: float, noise: float, n_rows: float, start: Floats, tables: Sequence[BelievedTable], rng: np.random.Generator
) -> float:
    """Return how much tables count, from the gain of all rows, each cut to 1, with its variance of noise.

    One step of Newton's method towards the weight whose gain is the expected one, shortened as the noise, the chance of
    sampling and the usual weights (``VARY``) tell.
    """
    expected, slope = _expected_gain(start, tables, rng)
    expected, slope = n_rows * expected, n_rows * slope
    away = (gain - expected) * VARY**2 * slope / (VARY**2 * slope**2 + slope + noise) if slope > 0 else 0.0
    most = math.log(FURTHEST)
    return math.exp(min(max(away, -most), most))


def _expected_gain(start: Floats, tables: Sequence[BelievedTable], rng: np.random.Generator) -> tuple[float, float]:
    """Return the gain of a row if the shares of classes are as predicted, and how much more it is per weight if not.

    Without cuts the first is 0: what is cut off are mostly losses, of rows about which tables are sure and wrong. Both
    are found on made-up rows whose columns are independent inside a class, as what was released tells them.
    """
    shares = probabilities(start[None])[0]
    target = rng.choice(len(shares), MADE_UP, p=shares)
    scores = np.zeros((MADE_UP, len(start)))
    for table in tables:
        up_to = (table.counts / table.counts.sum(axis=0)).cumsum(axis=0)[:-1]
        drawn = rng.random(MADE_UP)
        for label in range(len(shares)):
            mine = target == label
            scores[mine] += table.scores[np.searchsorted(up_to[:, label], drawn[mine])]
    predicted = probabilities(start + scores)
    said = np.column_stack([np.zeros(MADE_UP), scores]) if len(start) == 1 else scores
    gains = said - (predicted * said).sum(axis=1, keepdims=True)  # by the class that the row has
    cut = np.clip(gains, -MOST_GAIN / SCORE_UNITS, MOST_GAIN / SCORE_UNITS)
    return float((predicted * cut).sum(axis=1).mean()), float((predicted * gains * cut).sum(axis=1).mean())
