# SPDX-License-Identifier: Apache-2.0
"""One measurement of a plan: what is measured, how far one unit can move it, and the noise that hides that.

Steps are put together in ``plan`` and carried out by ``door``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from fractions import Fraction
from functools import cached_property
from typing import Any, Final, Literal, Self, TypeAlias

from veilwood.errors import PlanError, short_repr, shorten_text
from veilwood.privacy.joint_noise import MAX_JOINT_CELLS, JointLaplace
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, SparseLaplace, ThresholdedGaussian
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip, RandomStopping
from veilwood.safe_io import all_ints_in, parse_fraction

Noise: TypeAlias = DiscreteLaplace | DiscreteGaussian | JointLaplace | SparseLaplace | ThresholdedGaussian


Selection: TypeAlias = NoisyMax | PermuteAndFlip | ExponentialMechanism | RandomStopping


_MECHANISMS = (
    DiscreteLaplace,
    DiscreteGaussian,
    JointLaplace,
    SparseLaplace,
    ThresholdedGaussian,
    NoisyMax,
    PermuteAndFlip,
    ExponentialMechanism,
    RandomStopping,
)


BACKEND_VARIABLE = "VEILWOOD_NOISE_BACKEND"
"""Environment variable: "veilwood" (default) or "opendp" decides who draws additive noise."""


_SIZES_KEY: Final = "sizes"  # of tables, a parameter of a mechanism that is several numbers
MAX_CELLS = 10**30  # in any direction: more than any step has; what a file says beyond it is no plan


class StepName(str):
    """Name of a step for people, with the kind and the numbers that it was written from: code goes by these."""

    kind: str
    at: tuple[int, ...]

    def __new__(cls, text: str, kind: str, at: Iterable[int] = ()) -> Self:  # noqa: D102
        name = super().__new__(cls, text)
        name.kind, name.at = kind, tuple(at)
        return name


class StepKind(Enum):
    """Base class of the kinds of steps of a family; a value is the name for people, with a place for each number.

    >>> class Example(StepKind):
    ...     ROUND_ROWS = "round {}: rows"
    >>> name = Example.ROUND_ROWS.at(3)
    >>> name, name.kind, name.at
    ('round 3: rows', 'round_rows', (3,))
    """

    @property
    def key(self) -> str:
        """The kind as plans and certificates write it."""
        return self.name.lower()

    def at(self, *numbers: int) -> StepName:
        """Name a step of this kind; raise ValueError unless there is one number for each place."""
        if self.value.count("{}") != len(numbers):
            raise ValueError(f"a step of kind {self.key} has {self.value.count('{}')} numbers")
        return StepName(self.value.format(*numbers), self.key, numbers)


@dataclass(frozen=True)
class Step:
    """One measurement of a plan: what is measured, how much one unit can move it, and the noise for that.

    ``mechanism`` None means that no noise is added, which only an unbounded loss allows. ``selections_per_row`` is how many of a
    step's selections one row can influence. ``kind`` says what is measured, and ``at`` in which round, column or table;
    a ``StepName`` brings both.
    """

    name: str
    loss: Loss
    mechanism: Noise | Selection | None
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
                f"step {short_repr(self.name)} has {short_repr(self.selections_per_row)} choices by one row, not 1 or more."
            )
        promises = self.loss.epsilon is not None or self.loss.rho is not None
        if promises and not self.has_enough_noise:
            raise PlanError(
                f"step {short_repr(self.name)} promises {self.loss_text}, and {self.mechanism_text} at sensitivity {self.sensitivity} "
                "does not keep that. Hint: counting_step, sparse_step and selecting_step choose the noise."
            )

    @property
    def has_enough_noise(self) -> bool:
        """Whether the noise, recomputed from its exact parameters and the sensitivity, costs no more than promised.

        A loss makes up to two statements, epsilon and rho, and plans add up either: both must hold.
        """
        if isinstance(self.mechanism, ThresholdedGaussian):  # the one that has a delta of its own
            return self.mechanism.costs_at_most(self.loss, self.sensitivity)
        epsilon, rho = self._mechanism_cost()
        if rho is None:  # no noise at all
            return False
        if self.loss.rho is not None and rho > self.loss.rho:
            return False
        if self.loss.delta > 0:  # a part of rho, whose epsilon is not its own (Loss.scaled)
            return self.loss.rho is not None
        return epsilon is not None and self.loss.epsilon is not None and epsilon <= self.loss.epsilon

    def _mechanism_cost(self) -> tuple[Fraction | None, Fraction | None]:
        """Epsilon and rho that the mechanism costs at this sensitivity; None where it keeps none."""
        match self.mechanism:
            case None | ThresholdedGaussian():
                return None, None
            case (DiscreteLaplace() | JointLaplace() | SparseLaplace()) as noise:
                epsilon = noise.epsilon(self.sensitivity)
                return epsilon, epsilon**2 / 2
            case DiscreteGaussian() as noise:
                return None, noise.rho(self.sensitivity)
            case choice if choice.score_range < self.sensitivity:
                return None, None
            case choice:
                return (
                    choice.epsilon * self.selections_per_row,
                    choice.epsilon**2 * self.selections_per_row / _rho_divisor(choice),
                )

    @property
    def mechanism_text(self) -> str:
        """The mechanism in words."""
        match self.mechanism:
            case DiscreteLaplace(scale=scale):
                return f"discrete Laplace, scale {format_number(float(scale))}"
            case DiscreteGaussian(sigma_squared=variance):
                return f"discrete Gaussian, sigma {format_number(float(variance) ** 0.5)}"
            case JointLaplace(scale=scale):
                return f"joint Laplace, scale {format_number(float(scale))}"
            case SparseLaplace(scale=scale, gap=gap):
                chance = -math.expm1(-1 / gap)
                kind = f"sparse Laplace, scale {format_number(float(scale))}"
                return f"{kind}, an empty cell turns up with probability {chance:.3g}"
            case ThresholdedGaussian(sigma_squared=variance, threshold=threshold):
                return f"discrete Gaussian, sigma {format_number(float(variance) ** 0.5)}, what is above {threshold} comes out"
            case None:
                return "no noise"
            case selection:
                return f"{type(selection).__name__}, epsilon {float(selection.epsilon):.6g}"

    @property
    def loss_text(self) -> str:
        """The loss in words; parts of a zCDP budget compose by rho, so that is what they state."""
        return (
            f"rho={float(self.loss.rho):.4g}" if self.loss.delta > 0 and self.loss.rho is not None else str(self.loss)
        )

    @cached_property
    def variance(self) -> float:
        """Variance of the noise on one number, exact but for joint noise (``joint_moments``); 0 without noise."""
        return self.mechanism.variance if isinstance(self.mechanism, Noise) else 0.0

    @property
    def table_cells(self) -> tuple[int, ...]:
        """Cells of each table that is released: of several, if they get their noise together."""
        return self.mechanism.sizes if isinstance(self.mechanism, JointLaplace) else self.shape[:1]

    @property
    def table_variances(self) -> tuple[float, ...]:
        """Of the noise on a cell of each of these tables."""
        return self.mechanism.variances if isinstance(self.mechanism, JointLaplace) else (self.variance,)

    @property
    def total_variance(self) -> float:
        """Of the noise on the sum of a table's cells."""
        return (
            self.mechanism.moments.total if isinstance(self.mechanism, JointLaplace) else self.shape[0] * self.variance
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in words and, under "exact", as exact numbers in text."""
        return {
            "name": self.name,
            "kind": self.kind,
            "at": list(self.at),
            "mechanism": self.mechanism_text,
            "sensitivity": self.sensitivity,
            "shape": list(self.shape),
            "choices": self.selections_per_row,
            "loss": self.loss_text,
            "exact": {**loss_to_dict(self.loss), "mechanism": _mechanism_to_dict(self.mechanism)},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """Read what ``to_dict`` wrote."""
        exact, name, shape = data["exact"], data["name"], tuple(data["shape"])
        kind, at = data["kind"], tuple(data["at"])
        numbers = (*shape, *at, data["sensitivity"], data["choices"])
        if not isinstance(name, str) or not isinstance(kind, str) or not all_ints_in(numbers, 0, MAX_CELLS):
            raise PlanError(f"step {shorten_text(str(name))!r} is not made of whole numbers.")
        mechanism = _mechanism_from_dict(exact["mechanism"])
        return cls(name, loss_from_dict(exact), mechanism, data["sensitivity"], shape, data["choices"], kind, at)


def format_number(value: float) -> str:
    """Write a number with six digits that count, as people do: millions without a power of ten.

    >>> format_number(2219570.4), format_number(0.5), format_number(20.0)
    ('2,219,570', '0.5', '20')
    """
    rounded = float(f"{value:.6g}")
    return f"{rounded:,.0f}" if 1e6 <= abs(rounded) < 1e15 else f"{rounded:.6g}"


def _rho_divisor(choice: Selection | type[Selection]) -> int:
    """The d in rho = epsilon^2 / d of one choice: 8 for the exponential mechanism, 2 for any pure mechanism."""
    kind = choice if isinstance(choice, type) else type(choice)
    return 8 if kind is ExponentialMechanism else 2


def to_plain_values(loss: Loss, steps: Iterable[Step]) -> tuple[dict[str, str | None], list[dict[str, Any]]]:
    """Return the loss and the steps of a plan as plain values."""
    return loss_to_dict(loss), [step.to_dict() for step in steps]


def loss_to_dict(loss: Loss) -> dict[str, str | None]:
    """Return a loss as exact numbers in text."""
    return {
        "epsilon": None if loss.epsilon is None else str(loss.epsilon),
        "delta": str(loss.delta),
        "rho": None if loss.rho is None else str(loss.rho),
    }


def loss_from_dict(data: Mapping[str, Any]) -> Loss:
    """Read what ``loss_to_dict`` wrote."""
    epsilon, delta, rho = (
        None if data[key] is None else parse_fraction(data[key], key) for key in ("epsilon", "delta", "rho")
    )
    return Loss(epsilon, Fraction(0) if delta is None else delta, rho)


def _mechanism_to_dict(mechanism: Noise | Selection | None) -> dict[str, str] | None:
    if mechanism is None:
        return None
    facts = {f.name: getattr(mechanism, f.name) for f in fields(mechanism)}
    texts = {name: " ".join(map(str, fact)) if name == _SIZES_KEY else str(fact) for name, fact in facts.items()}
    return {"kind": type(mechanism).__name__} | texts


def _mechanism_from_dict(data: Mapping[str, str] | None) -> Noise | Selection | None:
    if data is None:
        return None
    (kind,) = (known for known in _MECHANISMS if known.__name__ == data["kind"])
    numbers = {key: _parse_parameter(key, value) for key, value in data.items() if key != "kind"}
    made: Noise | Selection = kind(**numbers)
    return made


def _parse_parameter(name: str, text: str) -> Any:
    """Read a parameter of a mechanism."""
    if name == _SIZES_KEY:
        sizes = text.split() if isinstance(text, str) and len(text) <= 4 * MAX_JOINT_CELLS else None
        if sizes is None or not all(size.isdecimal() and size.isascii() for size in sizes):
            raise PlanError("sizes of tables are whole numbers, with blanks between them.")
        return tuple(map(int, sizes))
    return text if name == "backend" else parse_fraction(text, name)


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
    if loss.epsilon is None:
        return Step(name, loss, None, neighbours.l1_sensitivity(l1), shape)
    backend: Any = os.environ.get(BACKEND_VARIABLE, "veilwood")
    if loss.delta == 0:
        sensitivity = neighbours.l1_sensitivity(l1)
        return Step(name, loss, DiscreteLaplace(Fraction(sensitivity) / loss.epsilon, backend), sensitivity, shape)
    if loss.rho is None or loss.rho == 0:
        raise PlanError(f"step {name!r} has no zCDP budget for Gaussian noise.")
    # Two rows that replace each other differ by up to twice the norm of one if entries can be negative: four times its
    # square. ``squared_l2_sensitivity`` allows for twice the square, which is enough for vectors without signs.
    squared_l2 *= 2 if signed and neighbours.adjacency == "replace-one" else 1
    sensitivity = neighbours.squared_l2_sensitivity(squared_l2)
    return Step(name, loss, DiscreteGaussian(Fraction(sensitivity) / (2 * loss.rho), backend), sensitivity, shape)


def joint_step(name: str, sizes: Sequence[int], n_classes: int, loss: Loss, neighbours: Neighbours) -> Step:
    """Plan the release of tables of class counts, one below the other; each row is in one cell of every table.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``, which is pure epsilon (proofs/joint-laplace.md, attacked by
    packages/veilwood/tests/privacy/test_joint_noise.py).
    """
    if loss.epsilon is None or loss.delta > 0:
        raise PlanError(f"step {name!r} takes pure epsilon. Hint: delta=0.")
    sensitivity = neighbours.l1_sensitivity(1)  # the norm of a row is 1, and rows add up at most
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
        raise PlanError(f"step {name!r} takes pure epsilon. Hint: delta=0.")
    return Step(name, loss, SparseLaplace(Fraction(sensitivity) / loss.epsilon), sensitivity, (n_cells,))


def threshold_step(name: str, shape: tuple[int, ...], loss: Loss, neighbours: Neighbours, *, keys_per_row: int) -> Step:
    """Plan the release of things that are not known before, of which a row adds one to ``keys_per_row`` at most.

    Notes
    -----
    Guarantee

    The step costs at most ``loss``, an epsilon and a delta (proofs/discover.md, attacked by
    packages/veilwood/tests/privacy/test_standing_out.py).
    """
    sensitivity = neighbours.squared_l2_sensitivity(keys_per_row)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, shape)
    own = Loss(loss.epsilon, loss.delta)
    # A unit alone can have so many things; of two that replace each other, each can.
    things, most = neighbours.l1_sensitivity(keys_per_row), neighbours.unit.at_most
    mechanism = ThresholdedGaussian.for_loss(
        own, squared_l2=sensitivity, max_contribution=most, max_changed_keys=things
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
    """Plan private choices, one for each row of a table of scores of at most ``shape``.

    Parameters
    ----------
    score_range : int
        Range of the scores when one row is added (proofs/permute-and-flip.md).
    selections_per_row : int
        How many of the choices one row of the data can influence: 1 for the nodes of one level of one tree.

    Notes
    -----
    Guarantee

    The step costs at most ``loss``. A unit of k rows, or a replaced row, changes scores in several nodes; their
    ranges add up to ``neighbours.score_range(score_range)``, which is the range each choice is calibrated to
    (proofs/selection-levels.md, attacked by packages/veilwood-audit/tests/test_audit.py::test_levels_of_selections_cost_their_loss).
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
        squared = _rho_divisor(mechanism) * loss.rho / selections_per_row
        epsilon = Fraction(math.isqrt(math.floor(squared * 10**24)), 10**12)  # rounded down
    return Step(name, loss, mechanism(epsilon, sensitivity), sensitivity, shape, selections_per_row)
