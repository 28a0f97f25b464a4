# SPDX-License-Identifier: Apache-2.0
"""What can be planned before anything has been released: the first step, how many rounds, by what the budget is spent.

Constants are for the epsilon e of one row (``privacy.purse``), and measured where nothing else is said (``loop``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from veilwood.data.encoding import TARGET_LEVELS
from veilwood.forests.adaptive.shapes import division, one_may_tell
from veilwood.forests.adaptive.weighing import share_of
from veilwood.forests.cells.columns import CellColumn
from veilwood.forests.cells.rows import TARGET_CELLS, dearer
from veilwood.forests.method import Asked
from veilwood.privacy.loss import Loss
from veilwood.privacy.purse import Purse
from veilwood.privacy.steps import Step

START: Final = 0.05  # share for class counts, or the number of rows: n e is then known to 28
# Rows times e below which only the mean of numbers is asked for; measured.
LEAST_START: Final = 200.0
# Rows times e that a histogram of the target needs, and limits of its share.
TARGET_NEEDS, TARGET_SHARES = 100.0, (0.05, 0.25)
# Rounds: T rounds have n e = ROUND_NEEDS T^(1/ROUND_POWER) together; 75 and 150 were worse, and so was a power of 0.75.
ROUND_NEEDS, ROUND_POWER, MOST_ROUNDS = 300.0, 0.6, 80
ROUND_BINS: Final = (0.35, 3, 16)  # groups: a power of rows times e of a round, and limits
# Rounds up to which the weight of tables is asked (``weighing``); more bring themselves what is missing; measured.
FEW_ROUNDS: Final = 3
RICH_WITH_DELTA: Final = 18.0  # the e from which on fine cells are better than rounds with a delta


def first_step(purse: Purse, n_classes: int, n_rows: int | None) -> Step:
    """Take the first step out of a full purse."""
    if n_classes:
        return purse.counting("class counts", (n_classes,), START)
    if n_rows is None:
        return purse.counting("number of rows", (1,), START)
    return mean_step(purse) if n_rows * purse.whole < LEAST_START else target_step(purse, float(n_rows))


def mean_step(purse: Purse) -> Step:
    """All that is left, on the mean of a numeric target."""
    return purse.counting("sums of the target", (2,), purse.left, l1=TARGET_LEVELS, squared_l2=TARGET_LEVELS**2)


def target_step(purse: Purse, n_rows: float) -> Step:
    """A histogram of a numeric target."""
    low, high = TARGET_SHARES
    return purse.counting(
        "histogram of the target", (TARGET_CELLS,), min(max(purse.share(TARGET_NEEDS / n_rows), low), high)
    )


def schedule(n_rows: float, purse: Purse, share: float, outputs: int) -> tuple[int, int]:
    """Return how many rounds a share of the budget is for, and groups of a numeric column in them."""
    t: NDArray[np.float64] = np.arange(1.5, MOST_ROUNDS)
    paid = n_rows * purse.price(share / t) / outputs >= ROUND_NEEDS * t ** (1 / ROUND_POWER - 1)
    n_rounds = 1 + int(paid.sum())  # what a round gets falls with their number, and what it needs grows
    power, fewest, most = ROUND_BINS
    return n_rounds, min(max(round((n_rows * purse.price(share / n_rounds) / outputs) ** power), fewest), most)


def few_rounds(n_rows: float, purse: Purse, share: float, n_classes: int) -> bool:
    """Whether a share of the budget is for few rounds, or none."""
    return share <= 0 or schedule(n_rows, purse, share, dearer(n_classes))[0] <= FEW_ROUNDS


# -- by epsilon or by rho ------------------------------------------------------------------------------------------


def chosen_loss(columns: Sequence[CellColumn], n_classes: int, n_rows: int | None, asked: Asked) -> Loss:
    """Return the loss that is promised: with a delta, pure epsilon where so few steps come that it is more.

    Without a number of rows that is not known before the first step has told it: then either way is.
    """
    loss = asked.loss
    if loss.delta == 0 or loss.epsilon is None:
        return loss
    pure = Loss.pure(loss.epsilon)
    by_epsilon = Purse(pure, asked.neighbours)
    if n_rows is None:
        fine_cells = n_classes and by_epsilon.whole >= RICH_WITH_DELTA
        return pure if fine_cells else Loss.pure_or_zcdp(loss.epsilon, loss.delta)
    by_rho = Purse(loss, asked.neighbours)
    return loss if pays_by_rho(columns, n_classes, float(n_rows), by_epsilon, by_rho) else pure


def settled(columns: Sequence[CellColumn], n_classes: int, n_rows: float, purse: Purse) -> Purse:
    """Return the purse by rho, where it may be spent so and so many steps come that it is more."""
    other = purse.by_rho()
    return other if other and pays_by_rho(columns, n_classes, n_rows, purse, other) else purse


def pays_by_rho(columns: Sequence[CellColumn], n_classes: int, n_rows: float, by_epsilon: Purse, by_rho: Purse) -> bool:
    """Whether rho buys more for so many rows.

    By prices: steps of equal parts are worth more under rho from as many on as the square of how much more the whole is
    worth by epsilon. Tables that get their noise together need less. By rho every number has a histogram of all its
    cells before them, a step each; by epsilon they have coarse ones together (the robot at e = 1, 24 columns of
    numbers: 0.79 by epsilon without any, 0.84 by rho). Fine cells take pure epsilon.
    """
    if n_classes and by_epsilon.whole >= RICH_WITH_DELTA:
        return False
    n_steps: float = schedule(n_rows, by_rho, by_rho.left, dearer(n_classes))[0]
    if n_classes:
        shape, _ = division(columns, n_classes, n_rows, by_epsilon, by_epsilon.left)
        n_histograms = sum(column.ordered for column in columns) * shape.n_columns / len(columns)
        n_steps = max(n_steps, shape.steps_by_rho + n_histograms)
    return n_steps >= (by_epsilon.price(by_epsilon.left) / by_rho.price(by_rho.left)) ** 2


# -- in words ------------------------------------------------------------------------------------------------------


def in_words(columns: Sequence[CellColumn], n_classes: int, n_rows: int, purse: Purse) -> str:
    """Say what the loop would do for so many rows."""
    first_step(purse, n_classes, None)
    purse = settled(columns, n_classes, float(n_rows), purse)
    left, said = purse.left, []
    if n_classes:
        weight_share = share_of(purse, float(n_rows))
        left -= weight_share
        shape, part = division(columns, n_classes, float(n_rows), purse, left)
        if not shape.n_columns:
            return "nothing but how frequent the classes are would stand out: that is predicted"
        how = "all" if shape.n_columns == len(columns) else f"{shape.n_columns} privately chosen"
        tells = one_may_tell(columns, purse, float(n_rows) * purse.price(left))
        asked = weight_share and few_rounds(float(n_rows), purse, left * (1 - part), n_classes)
        said.append(
            f"class counts of {how} of {len(columns)} columns{' (or fewer, if one tells much)' if tells else ''}, "
            f"with {part:.0%} of what is left{', and how much they should count together' if asked else ''}"
        )
        left *= 1 - part
    elif n_rows * purse.whole < LEAST_START:
        return "nothing but the mean of the target would stand out: that is predicted"
    if left > 0:
        n_rounds, bins = schedule(float(n_rows), purse, left, dearer(n_classes))
        times = "1 round, which" if n_rounds == 1 else f"{n_rounds} rounds, each of which"
        said.append(
            f"{times} chooses a column or pair by what it explains of the rest and measures it, numbers in up to "
            f"{bins} groups"
        )
    return "; then ".join(said)
