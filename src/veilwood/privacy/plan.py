# SPDX-License-Identifier: Apache-2.0
"""What will be released and at what cost, decided before any data is seen.

A plan is public: it can be printed, reviewed and signed. ``release`` carries it out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from veilwood.bounded import is_whole, shorten
from veilwood.errors import VeilwoodError
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, RowsOf, unit_of
from veilwood.privacy.steps import MOST_CELLS, Step, loss_from_dict, loss_to_dict

EACH_TO_ONE_TREE = "each to one tree"
ALL_TO_EVERY_TREE = "all to every tree"


_WORDS = 32  # a longer text about the structure gets a line of its own
_STEPS_SHOWN = 12  # a person reads the first steps of a plan; all are in its JSON


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
            **loss_to_dict(self.loss),
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
            if not all(isinstance(text, str) for text in texts) or not is_whole(structure["leaves"], 0, MOST_CELLS):
                raise VeilwoodError("this is not a plan: a text or the number of leaves is missing.")
            if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
                raise VeilwoodError("this is not a plan: its noise is not a finite number.")
            return cls(
                estimator=data["estimator"],
                loss=loss_from_dict(data),
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
