# SPDX-License-Identifier: Apache-2.0
"""What will be released and at what cost, decided before any data is seen.

A plan is public: it can be printed, reviewed and signed. ``release`` carries it out.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from veilwood.bounded import is_whole, rational, shorten, shown
from veilwood.errors import VeilwoodError
from veilwood.privacy.loss import Loss, Neighbours, RowsOf, unit_of
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace, ExponentialMechanism, NoisyMax, PermuteAndFlip
from veilwood.privacy.sparse_noise import SparseLaplace

Noise: TypeAlias = DiscreteLaplace | DiscreteGaussian | SparseLaplace
Selection: TypeAlias = NoisyMax | PermuteAndFlip | ExponentialMechanism
_MECHANISMS = (DiscreteLaplace, DiscreteGaussian, SparseLaplace, NoisyMax, PermuteAndFlip, ExponentialMechanism)

EACH_TO_ONE_TREE = "each to one tree"
ALL_TO_EVERY_TREE = "all to every tree"

BACKEND_VARIABLE = "VEILWOOD_NOISE_BACKEND"
"""Environment variable: "veilwood" (default) or "opendp" decides who draws additive noise."""


_WORDS = 32  # a longer text about the structure gets a line of its own
_STEPS_SHOWN = 12  # a person reads the first steps of a plan; all are in its JSON
_MOST_CELLS = 10**30  # in any direction: more than any step has; what a file says beyond it is no plan


@dataclass(frozen=True)
class Step:
    """One measurement of a plan: what is measured, how much one unit can move it, and the noise for that.

    ``mechanism`` None means that no noise is added, which only an unbounded loss allows. ``choices`` is how many of a
    step's selections one row can influence.
    """

    name: str
    loss: Loss
    mechanism: Noise | Selection | None
    sensitivity: int
    shape: tuple[int, ...]
    choices: int = 1

    def __post_init__(self) -> None:
        if self.loss.epsilon is not None and not self.keeps_its_loss:
            raise VeilwoodError(
                f"step {shown(self.name)} promises {self.cost}, and {self.describe} at sensitivity {self.sensitivity} "
                "does not keep that. Hint: counting_step, sparse_step and selecting_step choose the noise."
            )

    @property
    def keeps_its_loss(self) -> bool:
        """Whether the noise, recomputed from its exact parameters and the sensitivity, costs no more than promised."""
        epsilon, rho = self.loss.epsilon, self.loss.rho
        match self.mechanism:
            case None:
                return False
            case (DiscreteLaplace() | SparseLaplace()) as noise if self.loss.delta == 0:
                return epsilon is not None and noise.epsilon(self.sensitivity) <= epsilon
            case (DiscreteLaplace() | SparseLaplace()) as noise:
                # A part of rho, and pure epsilon is epsilon^2 / 2 of it.
                return rho is not None and noise.epsilon(self.sensitivity) ** 2 <= 2 * rho
            case DiscreteGaussian() as noise:  # without a delta it keeps no epsilon at all
                return self.loss.delta > 0 and rho is not None and noise.rho(self.sensitivity) <= rho
            case choice if choice.score_range < self.sensitivity:
                return False
            case choice if self.loss.delta == 0:
                return epsilon is not None and choice.epsilon * self.choices <= epsilon
            case choice:
                return rho is not None and choice.epsilon**2 * self.choices <= _rho_divisor(choice) * rho

    @property
    def describe(self) -> str:
        """The mechanism in words."""
        match self.mechanism:
            case DiscreteLaplace(scale=scale):
                return f"discrete Laplace, scale {float(scale):.6g}"
            case DiscreteGaussian(sigma_squared=variance):
                return f"discrete Gaussian, sigma {float(variance) ** 0.5:.6g}"
            case SparseLaplace(scale=scale, gap=gap):
                chance = -math.expm1(-1 / gap)
                return f"sparse Laplace, scale {float(scale):.6g}, an empty cell turns up with probability {chance:.3g}"
            case None:
                return "no noise"
            case selection:
                return f"{type(selection).__name__}, epsilon {float(selection.epsilon):.6g}"

    @property
    def cost(self) -> str:
        """The loss in words; parts of a zCDP budget compose by rho, so that is what they state."""
        return (
            f"rho={float(self.loss.rho):.4g}" if self.loss.delta > 0 and self.loss.rho is not None else str(self.loss)
        )

    @property
    def variance(self) -> float:
        """Exact variance of the noise on one number; 0 without noise."""
        return self.mechanism.variance if isinstance(self.mechanism, Noise) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, in words and, under "exact", as exact numbers in text."""
        return {
            "name": self.name,
            "mechanism": self.describe,
            "sensitivity": self.sensitivity,
            "shape": list(self.shape),
            "choices": self.choices,
            "loss": self.cost,
            "exact": {**_loss_to_dict(self.loss), "mechanism": _mechanism_to_dict(self.mechanism)},
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Step:
        """Read what ``to_dict`` wrote."""
        exact, name, shape = data["exact"], data["name"], tuple(data["shape"])
        numbers = (*shape, data["sensitivity"], data["choices"])
        if not isinstance(name, str) or not all(is_whole(number, 0, _MOST_CELLS) for number in numbers):
            raise VeilwoodError(f"step {shorten(str(name))!r} is not made of whole numbers.")
        mechanism = _mechanism_from_dict(exact["mechanism"])
        return cls(name, _loss_from_dict(exact), mechanism, data["sensitivity"], shape, data["choices"])


def _rho_divisor(choice: Selection | type[Selection]) -> int:
    """The d in rho = epsilon^2 / d of one choice: 8 for the exponential mechanism, 2 for any pure mechanism."""
    kind = choice if isinstance(choice, type) else type(choice)
    return 8 if kind is ExponentialMechanism else 2


def _loss_to_dict(loss: Loss) -> dict[str, str | None]:
    return {
        "epsilon": None if loss.epsilon is None else str(loss.epsilon),
        "delta": str(loss.delta),
        "rho": None if loss.rho is None else str(loss.rho),
    }


def _loss_from_dict(data: Mapping[str, Any]) -> Loss:
    epsilon, delta, rho = (
        None if data[key] is None else rational(data[key], key) for key in ("epsilon", "delta", "rho")
    )
    return Loss(epsilon, Fraction(0) if delta is None else delta, rho)


def _mechanism_to_dict(mechanism: Noise | Selection | None) -> dict[str, str] | None:
    if mechanism is None:
        return None
    return {"kind": type(mechanism).__name__} | {f.name: str(getattr(mechanism, f.name)) for f in fields(mechanism)}


def _mechanism_from_dict(data: Mapping[str, str] | None) -> Noise | Selection | None:
    if data is None:
        return None
    (kind,) = (known for known in _MECHANISMS if known.__name__ == data["kind"])
    numbers = {key: value if key == "backend" else rational(value, key) for key, value in data.items() if key != "kind"}
    made: Noise | Selection = kind(**numbers)  # type: ignore[arg-type]
    return made


def counting_step(
    name: str, shape: tuple[int, ...], loss: Loss, neighbours: Neighbours, *, l1: int, squared_l2: int
) -> Step:
    """Plan the release of integer sums with additive noise.

    Parameters
    ----------
    l1, squared_l2 : int
        Norms of the largest non-negative vector that one row can add to the sums.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``: discrete Laplace of scale sensitivity / epsilon for pure epsilon
    (proofs/discrete-laplace.md), discrete Gaussian with sigma^2 = sensitivity^2 / (2 rho) otherwise
    (proofs/discrete-gaussian.md). Attacked by tests/audit/test_audit.py::test_halved_noise_is_caught.
    """
    if loss.epsilon is None:
        return Step(name, loss, None, neighbours.l1(l1), shape)
    backend: Any = os.environ.get(BACKEND_VARIABLE, "veilwood")
    if loss.delta == 0:
        sensitivity = neighbours.l1(l1)
        return Step(name, loss, DiscreteLaplace(Fraction(sensitivity) / loss.epsilon, backend), sensitivity, shape)
    if loss.rho is None or loss.rho == 0:
        raise VeilwoodError(f"step {name!r} has no zCDP budget for Gaussian noise.")
    sensitivity = neighbours.squared_l2(squared_l2)
    return Step(name, loss, DiscreteGaussian(Fraction(sensitivity) / (2 * loss.rho), backend), sensitivity, shape)


def sparse_step(name: str, n_cells: int, loss: Loss, neighbours: Neighbours, *, l1: int) -> Step:
    """Plan the release of counts of up to ``n_cells`` cells, nearly all of them empty; ``l1`` as in ``counting_step``.

    Notes
    -----
    Guarantee

    The step costs exactly ``loss``, which is pure epsilon (proofs/sparse-counts.md, attacked by
    tests/privacy/test_sparse_noise.py).
    """
    sensitivity = neighbours.l1(l1)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, (n_cells,))
    if loss.delta > 0:
        raise VeilwoodError(f"step {name!r} takes pure epsilon. Hint: delta=0.")
    return Step(name, loss, SparseLaplace(Fraction(sensitivity) / loss.epsilon), sensitivity, (n_cells,))


def selecting_step(
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
    (proofs/selection-levels.md, attacked by tests/audit/test_audit.py::test_levels_of_selections_cost_their_loss).
    """
    sensitivity = neighbours.score_range(score_range)
    if loss.epsilon is None:
        return Step(name, loss, None, sensitivity, shape)
    mechanism = PermuteAndFlip if by == "flip" else ExponentialMechanism
    if loss.delta == 0:
        epsilon = loss.epsilon / selections_per_row
    else:
        if loss.rho is None or loss.rho == 0:
            raise VeilwoodError(f"step {name!r} has no zCDP budget for its selections.")
        squared = _rho_divisor(mechanism) * loss.rho / selections_per_row
        epsilon = Fraction(math.isqrt(math.floor(squared * 10**24)), 10**12)  # rounded down
    return Step(name, loss, mechanism(epsilon, sensitivity), sensitivity, shape, selections_per_row)


@dataclass(frozen=True)
class Plan:
    """A release, planned: everything that is decided without the data.

    Attributes
    ----------
    estimator : str
        Who planned it.
    loss : Loss
        What the whole release costs.
    neighbours : Neighbours
        Whom it protects.
    steps : tuple of Step
        What is measured; their losses add up to at most ``loss``.
    released : str
        What becomes public, in words.
    schema_name, schema_hash : str
        The public facts it was made from.
    structure : dict
        Public numbers about the trees.
    expected_leaf_mse : float
        Mean squared error, over leaves, of one class count (for regression, of the count of rows) due to noise.
    """

    estimator: str
    loss: Loss
    neighbours: Neighbours
    steps: tuple[Step, ...]
    released: str
    schema_name: str
    schema_hash: str
    structure: dict[str, Any]
    expected_leaf_mse: float

    def __post_init__(self) -> None:
        if not self.steps or any(step.sensitivity < 1 for step in self.steps):
            raise VeilwoodError("a plan has steps, and every step a sensitivity of at least 1.")
        if len({step.name for step in self.steps}) < len(self.steps):
            raise VeilwoodError("two steps of a plan have the same name: the door could not tell them apart.")
        total = Loss.total(step.loss for step in self.steps)
        by_rho = self.loss.delta > 0 and self.loss.rho is not None
        if by_rho and not Loss(None, Fraction(0), self.loss.rho).fits(self.loss):
            raise VeilwoodError(f"rho={float(self.loss.rho or 0):.4g} is more than {self.loss} allows.")
        cost, promise = (total.rho, self.loss.rho) if by_rho else (total.epsilon, self.loss.epsilon)
        in_parts_of_rho = any(step.loss.delta > 0 for step in self.steps)  # whose epsilon is not their own (Loss.part)
        if promise is not None and (cost is None or cost > promise or (not by_rho and in_parts_of_rho)):
            raise VeilwoodError(f"the steps of this plan cost {total}, more than the {self.loss} it promises.")

    @property
    def adjacency(self) -> str:
        """The neighbouring relation."""
        return self.neighbours.adjacency

    @property
    def mechanism(self) -> str:
        """The mechanisms of the steps, in words."""
        return "; ".join(dict.fromkeys(step.describe for step in self.steps))

    @property
    def sensitivity(self) -> int:
        """The sensitivity of the first step: L1, squared L2 for Gaussian noise, the range of scores for a selection."""
        return self.steps[0].sensitivity

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees together."""
        return int(self.structure["leaves"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for the fingerprint."""
        unit = self.neighbours.unit
        return {
            "estimator": self.estimator,
            **_loss_to_dict(self.loss),
            "adjacency": self.neighbours.adjacency,
            "unit": str(self.neighbours.unit),
            "privacy_unit": {"id": unit.id, "at_most": unit.at_most} if isinstance(unit, RowsOf) else unit.k,
            "released": self.released,
            "schema": self.schema_name,
            "schema_hash": self.schema_hash,
            "structure": self.structure,
            "expected_leaf_mse": self.expected_leaf_mse,
            "steps": [step.to_dict() for step in self.steps],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what ``to_dict`` wrote."""
        try:
            texts = (data["estimator"], data["released"], data["schema"], data["schema_hash"])
            structure, noise = dict(data["structure"]), data["expected_leaf_mse"]
            if not all(isinstance(text, str) for text in texts) or not is_whole(structure["leaves"], 0, _MOST_CELLS):
                raise VeilwoodError("this is not a plan: a text or the number of leaves is missing.")
            if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
                raise VeilwoodError("this is not a plan: its noise is not a finite number.")
            return cls(
                estimator=data["estimator"],
                loss=_loss_from_dict(data),
                neighbours=Neighbours(data["adjacency"], unit_of(data["privacy_unit"])),
                steps=tuple(Step.from_dict(step) for step in data["steps"]),
                released=data["released"],
                schema_name=data["schema"],
                schema_hash=data["schema_hash"],
                structure=structure,
                expected_leaf_mse=noise,
            )
        except VeilwoodError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise VeilwoodError(f"this is not a plan: {type(error).__name__} {shorten(str(error))}.") from None

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def fingerprint(self) -> str:
        """Return a hash that names this plan."""
        return hashlib.sha256(json.dumps(self.to_dict(), sort_keys=True).encode()).hexdigest()

    def explain(self) -> str:
        """Return the plan in words."""
        told = {key: value for key, value in self.structure.items() if value != 0}
        sentences = {key: value for key, value in told.items() if isinstance(value, str) and len(value) > _WORDS}
        shape = ", ".join(f"{value:,} {key}" if isinstance(value, int) and key != "depth" else f"{key} {value}"
                          for key, value in told.items() if key not in sentences)  # fmt: skip
        lines = [
            f"{self.estimator} on schema {self.schema_name!r}: {shape}.",
            *(f"{key.capitalize()}: {value}." for key, value in sentences.items()),
            f"Costs {self.loss}, protecting {self.neighbours}.",
            f"Releases {self.released}.",
        ]
        steps = [
            f"  - {step.name} ({' x '.join(map(str, step.shape))}): sensitivity {step.sensitivity}, "
            f"{step.describe}, {step.cost}"
            for step in self.steps
        ]
        if len(steps) > _STEPS_SHOWN + 1:  # the last one, often the leaves, is always shown
            steps[_STEPS_SHOWN:-1] = [f"  - and {len(steps) - 1 - _STEPS_SHOWN} more, see to_json()"]
        lines += steps
        if not self.loss.is_bounded:
            lines.append("No bound holds: the result is NOT PRIVATE.")
        elif self.expected_leaf_mse > 0:
            what = "the votes for one class of a query" if "queries" in self.structure else "one count of a leaf"
            lines.append(
                f"Expected noise on {what}: about {self.expected_leaf_mse**0.5:.3g} rows (mean squared error "
                f"{self.expected_leaf_mse:.4g}). What is smaller than that tells little."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()
