# SPDX-License-Identifier: Apache-2.0
"""Planned measurements (steps): shape, sensitivity, mechanism and privacy loss.

``plan`` puts steps together, and ``door`` releases them. Mechanisms are in ``noise``, ``joint_noise`` and
``selection``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from veilwood.errors import PlanError, short_repr, shorten_text
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, Mechanism, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood.safe_io import all_ints_in

MAX_CELLS = 10**30  # per dimension: more than any step has; a file with a larger number is rejected


class StepName(str):
    """Human-readable name of a step, with the kind and the numbers that code uses to identify the step."""

    kind: str
    at: tuple[int, ...]

    def __new__(cls, text: str, kind: str, at: Iterable[int] = ()) -> Self:  # noqa: D102
        name = super().__new__(cls, text)
        name.kind, name.at = kind, tuple(at)
        return name


class StepKind(Enum):
    """Base class of the step kinds of a family. A value is the human-readable name, with a placeholder per number.

    >>> class Example(StepKind):
    ...     ROUND_ROWS = "round {}: rows"
    >>> name = Example.ROUND_ROWS.at(3)
    >>> name, name.kind, name.at
    ('round 3: rows', 'round_rows', (3,))
    """

    @property
    def key(self) -> str:
        """The kind as written in plans and certificates."""
        return self.name.lower()

    def at(self, *numbers: int) -> StepName:
        """Return the name of a step of this kind. Raise ValueError unless there is one number per placeholder."""
        if self.value.count("{}") != len(numbers):
            raise ValueError(f"a step of kind {self.key} has {self.value.count('{}')} numbers")
        return StepName(self.value.format(*numbers), self.key, numbers)


@dataclass(frozen=True)
class Step:
    """One measurement of a plan.

    Attributes
    ----------
    name : str
        What is measured; different for every step of a plan. A ``StepName`` sets ``kind`` and ``at`` too.
    loss : Loss
        Upper bound of the privacy loss of the release.
    mechanism : Mechanism or None
        Mechanism that releases the exact numbers. None adds no noise, which only an unbounded loss allows.
    sensitivity : int
        Maximum change of the exact numbers by one unit: L1, squared L2 for Gaussian noise, or the range of scores for a
        selection.
    shape : tuple of int
        Shape of the exact numbers.
    selections_per_row : int
        The number of the step's selections that one row can influence.
    kind : str
        Machine-readable kind of measurement. Code uses the kind and never the name.
    at : tuple of int
        Numbers of the round, column or table that is measured.
    """

    name: str
    loss: Loss
    mechanism: Mechanism | None
    sensitivity: int
    shape: tuple[int, ...]
    selections_per_row: int = 1
    kind: str = ""
    at: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.name, StepName):
            object.__setattr__(self, "kind", self.name.kind)
            object.__setattr__(self, "at", self.name.at)
            object.__setattr__(self, "name", str(self.name))
        if not 1 <= self.selections_per_row <= MAX_CELLS:
            raise PlanError(
                f"step {short_repr(self.name)} must have at least 1 selection per row, "
                f"not {short_repr(self.selections_per_row)}."
            )
        is_bounded = self.loss.epsilon is not None or self.loss.rho is not None
        if is_bounded and not self.has_enough_noise:
            raise PlanError(
                f"step {short_repr(self.name)} promises {self.loss_text}, and {self.mechanism_text} at sensitivity "
                f"{self.sensitivity} does not keep that. Hint: let counting_step, sparse_step or selection_step choose "
                "the noise."
            )

    @property
    def has_enough_noise(self) -> bool:
        """Whether the exact loss, recomputed from the mechanism and the sensitivity, is at most ``loss``."""
        mechanism = self.mechanism
        return mechanism is not None and mechanism.costs_at_most(self.loss, self.sensitivity, self.selections_per_row)

    @property
    def mechanism_text(self) -> str:
        """Name and parameters of the mechanism."""
        return "no noise" if self.mechanism is None else self.mechanism.text

    @property
    def loss_text(self) -> str:
        """The loss as text. A fraction of a zCDP budget is shown as rho, because such steps compose by rho."""
        return (
            f"rho={float(self.loss.rho):.4g}" if self.loss.delta > 0 and self.loss.rho is not None else str(self.loss)
        )

    @cached_property
    def variance(self) -> float:
        """Variance of the noise on one number, exact except for joint noise; 0 without noise."""
        return 0.0 if self.mechanism is None else self.mechanism.variance

    @property
    def table_cells(self) -> tuple[int, ...]:
        """Number of cells of each table that is released: several tables if they get joint noise."""
        return self.shape[:1] if self.mechanism is None else self.mechanism.table_sizes(self.shape)

    @property
    def table_variances(self) -> tuple[float, ...]:
        """Variance of the noise on a cell of each of these tables."""
        return (0.0,) if self.mechanism is None else self.mechanism.table_variances

    @property
    def total_variance(self) -> float:
        """Variance of the noise on the sum of a table's cells."""
        return 0.0 if self.mechanism is None else self.mechanism.total_variance(self.shape[0])

    def may_release(self, values: Sequence[NDArray[Any]]) -> bool:
        """Return True if this step can have released these values: counts, selections, or cells with their counts."""
        if any(each.dtype != np.int64 for each in values) or len(values) not in (1, 2):
            return False
        verb = None if self.mechanism is None else self.mechanism.verb  # without noise any of them
        first, *rest = values
        if rest:
            ascends = first.ndim == 1 and bool(np.all(np.diff(first) > 0)) and rest[0].shape == first.shape
            inside = ascends and (not len(first) or 0 <= first[0] <= first[-1] < self.shape[0])
            return verb in (None, "sparse", "above_threshold") and inside and bool(np.all(rest[0] > 0))
        if verb in (None, "noisy") and first.shape == self.shape:
            return True
        selects = verb in (None, "select") and first.ndim == 1 and len(self.shape) == 2 and len(first) <= self.shape[0]
        return selects and bool(np.all((first >= 0) & (first < self.shape[1])))

    def to_dict(self) -> dict[str, Any]:
        """Return a dict with text for readers and, under "exact", exact numbers as strings."""
        return {
            "name": self.name,
            "kind": self.kind,
            "at": list(self.at),
            "mechanism": self.mechanism_text,
            "sensitivity": self.sensitivity,
            "shape": list(self.shape),
            "choices": self.selections_per_row,
            "loss": self.loss_text,
            "exact": {
                **self.loss.to_dict(),
                "mechanism": None if self.mechanism is None else self.mechanism.to_dict(),
            },
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """Read what ``to_dict`` wrote."""
        exact, name, shape = data["exact"], data["name"], tuple(data["shape"])
        kind, at = data["kind"], tuple(data["at"])
        numbers = (*shape, *at, data["sensitivity"], data["choices"])
        if not isinstance(name, str) or not isinstance(kind, str) or not all_ints_in(numbers, 0, MAX_CELLS):
            raise PlanError(f"the numbers of step {shorten_text(str(name))!r} must be integers within bounds.")
        mechanism = None if exact["mechanism"] is None else Mechanism.from_dict(exact["mechanism"])
        return cls(name, Loss.from_dict(exact), mechanism, data["sensitivity"], shape, data["choices"], kind, at)


def counting_step(
    name: str,
    shape: tuple[int, ...],
    loss: Loss,
    neighbours: Neighbours,
    *,
    l1: int,
    squared_l2: int,
    signed: bool = False,
) -> Step:
    """Plan the release of integer sums with additive noise.

    Parameters
    ----------
    l1, squared_l2 : int
        Norms of the largest vector that one row can add to the sums.
    signed : bool
        Whether entries of that vector can be negative.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``: discrete Laplace of scale sensitivity / epsilon for pure epsilon
    (proofs/discrete-laplace.md), discrete Gaussian with sigma^2 = sensitivity^2 / (2 rho) otherwise
    (proofs/discrete-gaussian.md). Attacked by packages/veilwood-audit/tests/test_audit.py::test_halved_noise_is_caught.
    """
    mechanism, sensitivity = _counting_mechanism(name, loss, neighbours, l1, squared_l2, signed)
    return Step(name, loss, mechanism, sensitivity, shape)


def counting_variance(loss: Loss, neighbours: Neighbours, *, l1: int, squared_l2: int) -> float:
    """Return the variance of the noise of a ``counting_step``: enough to compare steps that are not planned yet."""
    mechanism, _ = _counting_mechanism("", loss, neighbours, l1, squared_l2, False)
    return 0.0 if mechanism is None else mechanism.variance


def _counting_mechanism(
    name: str, loss: Loss, neighbours: Neighbours, l1: int, squared_l2: int, signed: bool
) -> tuple[DiscreteLaplace | DiscreteGaussian | None, int]:
    """Return the mechanism that releases sums at a loss, and the sensitivity that it is calibrated to."""
    if loss.epsilon is None:
        return None, neighbours.l1_sensitivity(l1)
    if loss.delta == 0:
        sensitivity = neighbours.l1_sensitivity(l1)
        return DiscreteLaplace(Fraction(sensitivity) / loss.epsilon), sensitivity
    if loss.rho is None or loss.rho == 0:
        raise PlanError(f"step {name!r} has no zCDP budget for Gaussian noise.")
    # Two rows that replace each other differ by up to twice the norm of one if entries can be negative: four times its
    # square. ``squared_l2_sensitivity`` allows for twice the square, which is enough for vectors without signs.
    squared_l2 *= 2 if signed and neighbours.adjacency == "replace-one" else 1
    sensitivity = neighbours.squared_l2_sensitivity(squared_l2)
    return DiscreteGaussian(Fraction(sensitivity) / (2 * loss.rho)), sensitivity


def joint_step(name: str, sizes: Sequence[int], n_classes: int, loss: Loss, neighbours: Neighbours) -> Step:
    """Plan the joint release of tables of class counts, stacked; each row is in one cell of every table.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``, which is pure epsilon (proofs/joint-laplace.md, attacked by
    packages/veilwood/tests/privacy/test_joint_noise.py).
    """
    if loss.epsilon is None or loss.delta > 0:
        raise PlanError(f"joint noise of step {name!r} requires pure epsilon. Hint: set delta=0.")
    sensitivity = neighbours.l1_sensitivity(1)  # a row has norm 1 (JointLaplace.norm), and norms of rows add up at most
    mechanism = JointLaplace(Fraction(sensitivity) / loss.epsilon, sizes)
    return Step(name, loss, mechanism, sensitivity, (sum(sizes), n_classes))


def sparse_step(name: str, n_cells: int, loss: Loss, neighbours: Neighbours, *, l1: int) -> Step:
    """Plan the release of counts of up to ``n_cells`` cells, nearly all of them empty; ``l1`` as in ``counting_step``.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``, which is pure epsilon (proofs/sparse-counts.md, attacked by
    packages/veilwood/tests/privacy/test_sparse_noise.py).
    """
    sensitivity = neighbours.l1_sensitivity(l1)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, (n_cells,))
    if loss.delta > 0:
        raise PlanError(f"sparse noise of step {name!r} requires pure epsilon. Hint: set delta=0.")
    return Step(name, loss, SparseLaplace(Fraction(sensitivity) / loss.epsilon), sensitivity, (n_cells,))


def threshold_step(name: str, shape: tuple[int, ...], loss: Loss, neighbours: Neighbours, *, keys_per_row: int) -> Step:
    """Plan the release of unknown keys; a row adds 1 to at most ``keys_per_row`` of them.

    Notes
    -----
    Guarantee

    The step costs at most ``loss``, an epsilon and a delta (proofs/discover.md, attacked by
    packages/veilwood/tests/privacy/test_noise.py).
    """
    sensitivity = neighbours.squared_l2_sensitivity(keys_per_row)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, shape)
    own = Loss(loss.epsilon, loss.delta)
    # One unit can have that many keys of its own; if units are replaced, both of them can.
    max_changed_keys, max_contribution = neighbours.l1_sensitivity(keys_per_row), neighbours.unit.at_most
    mechanism = ThresholdedGaussian.for_loss(
        own, squared_l2=sensitivity, max_contribution=max_contribution, max_changed_keys=max_changed_keys
    )
    return Step(name, own, mechanism, sensitivity, shape)


def selection_step(
    name: str,
    shape: tuple[int, ...],
    loss: Loss,
    neighbours: Neighbours,
    *,
    score_range: int,
    selections_per_row: int = 1,
    by: Literal["flip", "exponential"] = "flip",
) -> Step:
    """Plan private selections, one for each row of a table of scores of at most ``shape``.

    Parameters
    ----------
    score_range : int
        Range of the scores when one row is added (proofs/permute-and-flip.md).
    selections_per_row : int
        The number of selections that one row of the data can influence: 1 for the nodes of one level of one tree.
    by : {"flip", "exponential"}
        The mechanism: permute-and-flip, which is better under pure epsilon, or the exponential one, under zCDP.

    Notes
    -----
    Guarantee

    The step costs at most ``loss``. A unit of k rows, or a replaced row, changes scores in several nodes; their
    ranges add up to ``neighbours.score_range(score_range)``, which is the range each selection is calibrated to
    (proofs/selection-levels.md, attacked by
    packages/veilwood-audit/tests/test_audit.py::test_levels_of_selections_cost_their_loss).
    """
    sensitivity = neighbours.score_range(score_range)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, shape)
    mechanism = PermuteAndFlip if by == "flip" else ExponentialMechanism
    if loss.delta == 0:
        epsilon = loss.epsilon / selections_per_row
    else:
        if loss.rho is None or loss.rho == 0:
            raise PlanError(f"step {name!r} has no zCDP budget for its selections.")
        squared = mechanism.rho_divisor * loss.rho / selections_per_row
        epsilon = Fraction(math.isqrt(math.floor(squared * 10**24)), 10**12)  # rounded down
    return Step(name, loss, mechanism(epsilon, sensitivity), sensitivity, shape, selections_per_row)
