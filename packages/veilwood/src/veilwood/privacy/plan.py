# SPDX-License-Identifier: Apache-2.0
"""What will be released and at what cost, decided before any data is seen.

A plan is public: it can be printed, reviewed, signed and saved. ``door`` carries out exactly what it says.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

from veilwood._version import __version__
from veilwood.charts import html_card
from veilwood.errors import PlanError, VeilwoodError, short_repr, shorten_text
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, RowsOf
from veilwood.privacy.steps import MAX_CELLS, Step, format_number, loss_from_dict, to_plain_values
from veilwood.safe_io import all_ints_in, is_int_in, read_json, read_text, write_file

RowAssignment: TypeAlias = Literal["all to every tree", "each to one tree"]
EACH_TO_ONE_TREE: RowAssignment = "each to one tree"
ALL_TO_EVERY_TREE: RowAssignment = "all to every tree"
MAX_SEED = 2**128 - 1

_MAX_INLINE_NOTE = 32  # a longer note gets a line of its own
_MOST_TOLD = 400  # characters of what is wrong with a file
_MAX_STEPS_SHOWN = 12  # a person reads the first steps of a plan; all are in its JSON


@dataclass(frozen=True)
class Layout:
    """The public shape of a forest, as far as the plan decides by it; texts for people are the plan's notes.

    Attributes
    ----------
    trees, leaves, depth : int
        Of the whole forest; 0 where it is decided later, by the rule that the plan states.
    records : str
        Whether every row counts in every tree, or in one only.
    queries : int
        How many public queries are answered; 0 for training.
    rows_planned : int or None
        The number of rows that the plan was made for, if it needs one,
    rows_known : str or None
        and how it is known: declared as public, counted because it is (rows are replaced), or measured with noise.
    """

    trees: int = 0
    leaves: int = 0
    depth: int = 0
    records: RowAssignment = ALL_TO_EVERY_TREE
    queries: int = 0
    rows_planned: int | None = None
    rows_known: Literal["declared", "counted", "measured"] | None = None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Layout:
        """Read what ``to_dict`` wrote, refusing what is no layout."""
        made = cls(**data)
        rows = 0 if made.rows_planned is None else made.rows_planned
        numbers = (made.trees, made.leaves, made.depth, made.queries, rows)
        known = made.records in get_args(RowAssignment) and made.rows_known in (None, "declared", "counted", "measured")
        if not known or not all_ints_in(numbers, 0, MAX_CELLS):
            raise PlanError("this is not a plan: the layout of its forest is not made of whole numbers.")
        return made

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def describe(self) -> list[str]:
        """The numbers, as a person would list them."""
        words = [f"{value:,} {name}" for name in ("trees", "leaves", "queries") if (value := getattr(self, name))]
        words += [f"depth {self.depth}"] if self.depth else []
        words += [f"records {self.records}"]
        words += [f"{self.rows_planned:,} rows {self.rows_known}"] if self.rows_planned is not None else []
        return words


@dataclass(frozen=True)
class Plan:
    """A release, planned: everything that is decided without the data.

    Attributes
    ----------
    estimator : str
        Who planned it.
    parameters : dict
        Its parameters, as far as they are not named below.
    public_seed : int
        The seed of everything random about the structure. It does not seed noise.
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
    layout : Layout
        The shape of the forest.
    choices : dict
        What else was chosen and is carried out: the strategy, the method, a hash of the structure.
    notes : dict
        What is shown to people; nothing is decided by it.
    expected_leaf_mse : float
        Mean squared error, over leaves, of one class count (for regression, of the count of rows) due to noise.
    version : str
        The version of the library that carries it out.
    opened_as : str or None
        The fingerprint of the plan that opened the door, where this one was refined from what was released.
    expected : dict
        The quality of predictions to expect, by number of rows. As ``notes``, it is shown to people only.
    """

    estimator: str
    loss: Loss
    neighbours: Neighbours
    steps: tuple[Step, ...]
    released: str
    schema_name: str
    schema_hash: str
    layout: Layout
    expected_leaf_mse: float
    parameters: dict[str, Any] = field(default_factory=dict)
    public_seed: int = 0
    choices: dict[str, Any] = field(default_factory=dict)
    notes: dict[str, Any] = field(default_factory=dict)
    version: str = __version__
    opened_as: str | None = None
    expected: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.steps or any(step.sensitivity < 1 for step in self.steps):
            raise PlanError("a plan has steps, and every step a sensitivity of at least 1.")
        if len({step.name for step in self.steps}) < len(self.steps):
            raise PlanError("two steps of a plan have the same name: the door could not tell them apart.")
        total = Loss.total([step.loss for step in self.steps])
        if self.loss.epsilon is not None and not self._covers_loss(total):
            raise PlanError(f"the steps of this plan cost {total}, more than the {self.loss} it promises.")

    def _covers_loss(self, total: Loss) -> bool:
        """Whether steps keep the promised epsilon and delta, by their epsilons or by their rhos, and the rho if any."""
        rho, epsilon = self.loss.rho, self.loss.epsilon
        if rho is not None and (total.rho is None or total.rho > rho):
            return False
        if rho is not None and self.loss.delta > 0 and Loss(None, Fraction(0), total.rho).is_within(self.loss):
            return True
        # Of parts of a rho the epsilon is not their own (Loss.scaled); a step with a delta of its own has no rho.
        in_parts_of_rho = any(step.loss.delta > 0 and step.loss.rho is not None for step in self.steps)
        if in_parts_of_rho or total.epsilon is None or epsilon is None:
            return False
        return total.epsilon <= epsilon and total.delta <= self.loss.delta

    @property
    def adjacency(self) -> str:
        """The neighbouring relation."""
        return self.neighbours.adjacency

    @property
    def mechanism(self) -> str:
        """The mechanisms of the steps, in words."""
        return "; ".join(dict.fromkeys(step.mechanism_text for step in self.steps))

    @property
    def sensitivity(self) -> int:
        """The sensitivity of the first step: L1, squared L2 for Gaussian noise, the range of scores for a selection."""
        return self.steps[0].sensitivity

    @property
    def n_leaves(self) -> int:
        """Leaves of all trees together."""
        return self.layout.leaves

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for the fingerprint."""
        unit, (loss, steps) = self.neighbours.unit, to_plain_values(self.loss, self.steps)
        return {
            "estimator": self.estimator,
            "parameters": self.parameters,
            "public_seed": self.public_seed,
            **loss,
            "adjacency": self.neighbours.adjacency,
            "unit": str(self.neighbours.unit),
            "privacy_unit": {"id": unit.id, "at_most": unit.at_most} if isinstance(unit, RowsOf) else unit.k,
            "released": self.released,
            "schema": self.schema_name,
            "schema_hash": self.schema_hash,
            "layout": self.layout.to_dict(),
            "choices": self.choices,
            "notes": self.notes,
            "expected": self.expected,
            "expected_leaf_mse": self.expected_leaf_mse,
            "steps": steps,
            "version": self.version,
            "opened_as": self.opened_as,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read what ``to_dict`` wrote."""
        try:
            texts = [data[key] for key in ("estimator", "released", "schema", "schema_hash", "version")]
            noise, opened_as = data["expected_leaf_mse"], data["opened_as"]
            if not all(isinstance(text, str) for text in texts) or not isinstance(opened_as, str | None):
                raise PlanError("this is not a plan: a text is missing.")
            if isinstance(noise, bool) or not isinstance(noise, int | float) or not 0 <= noise < math.inf:
                raise PlanError("this is not a plan: its noise is not a finite number.")
            if not all(isinstance(text, str) for text in dict(data["expected"]).values()):
                raise PlanError("this is not a plan: the quality to expect is not text.")
            if not is_int_in(data["public_seed"], 0, MAX_SEED):
                raise PlanError("this is not a plan: its seed is not a whole number within bounds.")
            made = cls(
                estimator=data["estimator"],
                parameters=dict(data["parameters"]),
                public_seed=data["public_seed"],
                loss=loss_from_dict(data),
                neighbours=Neighbours.from_parameters(data["adjacency"], data["privacy_unit"]),
                steps=tuple(Step.from_dict(step) for step in data["steps"]),
                released=data["released"],
                schema_name=data["schema"],
                schema_hash=data["schema_hash"],
                layout=Layout.from_dict(data["layout"]),
                choices=dict(data["choices"]),
                notes=dict(data["notes"]),
                expected=dict(data["expected"]),
                expected_leaf_mse=noise,
                version=data["version"],
                opened_as=opened_as,
            )
            if json.loads(json.dumps(made.to_dict())) != dict(data):  # a text for people that says something else
                raise PlanError("this is not a plan as it was saved: it says more or other things than it does.")
            return made
        except VeilwoodError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise PlanError(f"this is not a plan: {type(error).__name__} {shorten_text(str(error))}.") from None

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a JSON file: to be signed, kept, and carried out by ``fit(X, y, plan=path)``."""
        write_file(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read what ``save`` wrote, and check that it keeps its promise."""
        text = read_text(path)
        try:
            data = read_json(text)
            if not isinstance(data, dict):
                raise PlanError("this is not a plan. Hint: write one with plan.save(path).")
            return cls.from_dict(data)
        except VeilwoodError as error:  # in one line, whatever stands in the file
            raise PlanError(f"{short_repr(str(path))}: {shorten_text(str(error), _MOST_TOLD)}") from None

    def fingerprint(self) -> str:
        """Return a hash that names this plan, with everything in it."""
        return self.payload_and_fingerprint()[1]

    def payload_and_fingerprint(self) -> tuple[dict[str, Any], str]:
        """Return what ``to_dict`` says, and the fingerprint of it."""
        told = self.to_dict()
        return told, hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Plan) -> list[str]:
        """Say in what another plan differs, as ``name: here, there``; empty if they are the same plan."""
        mine, theirs = self.to_dict(), other.to_dict()
        if math.isclose(self.expected_leaf_mse, other.expected_leaf_mse, rel_tol=1e-6):
            del mine["expected_leaf_mse"]  # a forecast: sums of floats differ in their last digits between machines
        return [
            f"{key}: {shorten_text(json.dumps(mine[key]))} planned, {shorten_text(json.dumps(theirs[key]))} now"
            for key in mine
            if mine[key] != theirs[key]
        ]

    def refined(self, **changes: Any) -> Plan:
        """Return the plan as it goes on after a release; it remembers under which one the door opened."""
        return replace(self, **changes, opened_as=self.opened_as or self.fingerprint())

    def explain(self) -> str:
        """Return the plan in words."""
        sentences = {
            key: f"{value}. What to expect: {self.expected[key]}" if key in self.expected else value
            for key, value in self.notes.items()
            if key in self.expected or len(str(value)) > _MAX_INLINE_NOTE
        }
        told = self.layout.describe() + [f"{key} {value}" for key, value in self.notes.items() if key not in sentences]
        lines = [
            f"{self.estimator} on schema {self.schema_name!r}: {', '.join(told)}.",
            *(f"{key.capitalize()}: {value}." for key, value in sentences.items()),
            f"Costs {self.loss}, protecting {self.neighbours}.",
            f"Releases {self.released}.",
        ]
        steps = [
            f"  - {step.name} ({' x '.join(map(str, step.shape))}): sensitivity {step.sensitivity}, "
            f"{step.mechanism_text}, {step.loss_text}"
            for step in self.steps
        ]
        if len(steps) > _MAX_STEPS_SHOWN + 1:  # the last one, often the leaves, is always shown
            steps[_MAX_STEPS_SHOWN:-1] = [f"  - and {len(steps) - 1 - _MAX_STEPS_SHOWN} more, see to_json()"]
        lines += steps
        if not self.loss.is_bounded:
            lines.append("No bound holds: the result is NOT PRIVATE.")
        elif self.expected_leaf_mse > 0:
            what = "the votes for one class of a query" if self.layout.queries else "one count of a leaf"
            lines.append(
                f"Expected noise on {what}: about {self.expected_leaf_mse**0.5:.3g} rows (mean squared error "
                f"{format_number(float(f'{self.expected_leaf_mse:.4g}'))}). What is smaller than that tells little."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        return html_card(f"Plan of {self.estimator}: {self.loss}", self.explain())
