# SPDX-License-Identifier: Apache-2.0
"""Release plans: every measurement of a fit and its privacy loss, fixed before the data is read.

A plan is public: it can be printed, reviewed, signed and saved. The release door executes exactly this plan.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from fractions import Fraction
from os import PathLike
from typing import Any, Literal, TypeAlias, get_args

from veilwood._version import __version__
from veilwood.charts import html_card
from veilwood.errors import PlanError, VeilwoodError, short_repr, shorten_text
from veilwood.privacy.loss import Loss, format_number
from veilwood.privacy.neighbours import Neighbours, RowsOf
from veilwood.privacy.steps import MAX_CELLS, Step
from veilwood.safe_io import all_ints_in, is_int_in, read_json, read_text, write_file

RowAssignment: TypeAlias = Literal["all to every tree", "each to one tree"]
EACH_TO_ONE_TREE: RowAssignment = "each to one tree"
ALL_TO_EVERY_TREE: RowAssignment = "all to every tree"
_ASSIGNMENT_TEXTS: dict[RowAssignment, str] = {
    ALL_TO_EVERY_TREE: "every row is counted in every tree",
    EACH_TO_ONE_TREE: "every row is counted in one tree",
}
MAX_SEED = 2**128 - 1

_MAX_INLINE_NOTE = 32  # characters; a longer note gets a line of its own
_MAX_ERROR_LENGTH = 400  # characters of the message about an unreadable file
_MAX_STEPS_SHOWN = 12  # readers see the first steps of a plan; all are in its JSON


@dataclass(frozen=True)
class Layout:
    """Public size of a forest: number of trees and leaves, depth, and how rows are assigned to trees.

    Attributes
    ----------
    trees, leaves, depth : int
        Totals for the whole forest; 0 if decided later by a rule in the plan.
    records : str
        Whether every row counts in every tree, or in one only.
    queries : int
        Number of public queries that are answered; 0 for training.
    rows_planned : int or None
        The number of rows that the plan was made for, if it needs one.
    rows_known : str or None
        How that number is known: declared as public, counted because it is public (rows are replaced), or measured with
        noise.
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
        """Read what ``to_dict`` wrote. Raise PlanError if it is not a valid layout."""
        layout = cls(**data)
        rows = 0 if layout.rows_planned is None else layout.rows_planned
        numbers = (layout.trees, layout.leaves, layout.depth, layout.queries, rows)
        are_known = layout.records in get_args(RowAssignment) and layout.rows_known in (
            None, "declared", "counted", "measured"
        )  # fmt: skip
        if not are_known or not all_ints_in(numbers, 0, MAX_CELLS):
            raise PlanError("this is not a plan: the numbers in the layout of its forest must be integers.")
        return layout

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    def describe(self) -> list[str]:
        """Return the numbers with their units, for readers."""
        facts = [f"{value:,} {name}" for name in ("trees", "leaves", "queries") if (value := getattr(self, name))]
        facts += [f"depth {self.depth}"] if self.depth else []
        facts += [_ASSIGNMENT_TEXTS[self.records]] if self.trees else []
        facts += [f"{self.rows_planned:,} rows {self.rows_known}"] if self.rows_planned is not None else []
        return facts


@dataclass(frozen=True, repr=False)
class Plan:
    """Plan of a release: everything that is decided without the data.

    Attributes
    ----------
    estimator : str
        Name of the estimator, or function, that made the plan.
    parameters : dict
        Its parameters, except those named below.
    public_seed : int
        The seed of all public randomness of the structure. It does not seed noise.
    loss : Loss
        Privacy loss of the whole release.
    neighbours : Neighbours
        The protected unit and the adjacency.
    steps : tuple of Step
        The measurements; their losses add up to at most ``loss``.
    released : str
        Description of the values that become public.
    schema_name, schema_hash : str
        The public facts that the plan was made from.
    layout : Layout
        Public size of the forest.
    choices : dict
        Other decisions that the fit executes: the strategy, the method, a hash of the structure.
    notes : dict
        Texts for readers; nothing depends on them.
    expected_leaf_mse : float
        Mean squared error, over leaves, of one class count (for regression, of the count of rows) due to noise.
    version : str
        The version of the library that executes the plan.
    opened_as : str or None
        The fingerprint of the plan that opened the door, if this one was derived from released values.
    expected : dict
        The quality of predictions to expect, by number of rows. Like ``notes``, for readers only.
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
    _steps_by_name: dict[str, Step] = field(init=False, repr=False, compare=False)
    _steps_loss: Loss = field(init=False, repr=False, compare=False)
    _in_parts_of_rho: bool = field(init=False, repr=False, compare=False, default=False)

    def __post_init__(self) -> None:
        if not self.steps:
            raise PlanError("a plan must have steps.")
        self._check_steps(self.steps, Loss.total(step.loss for step in self.steps), {})

    def with_step(self, step: Step, opened_as: str) -> Plan:
        """Return the plan with one more step. The time of its checks does not grow with the number of steps."""
        plan = copy(self)
        plan.__dict__.update(steps=(*self.steps, step), opened_as=opened_as)
        plan._check_steps((step,), self._steps_loss + step.loss, self._steps_by_name)
        return plan

    def has_step(self, step: Step) -> bool:
        """Return True if the plan contains exactly this step."""
        return self._steps_by_name.get(step.name) == step

    def _check_steps(self, added: Sequence[Step], total: Loss, earlier: Mapping[str, Step]) -> None:
        """Raise PlanError unless the steps have unique names, a sensitivity, and a total within the plan's loss."""
        if any(step.sensitivity < 1 for step in added):
            raise PlanError("every step of a plan must have a sensitivity of at least 1.")
        by_name = {**earlier, **{step.name: step for step in added}}
        if len(by_name) < len(self.steps):
            raise PlanError("the steps of a plan must have different names: the door identifies them by name.")
        # The epsilon of a fraction of rho is not its own (Loss.scaled); a step with a delta of its own has no rho.
        in_parts = any(step.loss.delta > 0 and step.loss.rho is not None for step in added)
        in_parts = in_parts or (bool(earlier) and self._in_parts_of_rho)
        if self.loss.epsilon is not None and not self._covers_loss(total, in_parts):
            raise PlanError(f"the steps of this plan cost {total}, more than the {self.loss} it promises.")
        self.__dict__.update(_steps_by_name=by_name, _steps_loss=total, _in_parts_of_rho=in_parts)

    def _covers_loss(self, total: Loss, in_parts_of_rho: bool) -> bool:
        """Return True if the total is within the promised epsilon and delta, and within a promised rho."""
        rho, epsilon = self.loss.rho, self.loss.epsilon
        if rho is not None and (total.rho is None or total.rho > rho):
            return False
        if rho is not None and self.loss.delta > 0 and Loss(None, Fraction(0), total.rho).is_within(self.loss):
            return True
        if in_parts_of_rho or total.epsilon is None or epsilon is None:
            return False
        return total.epsilon <= epsilon and total.delta <= self.loss.delta

    @property
    def adjacency(self) -> str:
        """The neighbouring relation."""
        return self.neighbours.adjacency

    @property
    def mechanism(self) -> str:
        """The mechanisms of the steps, as text."""
        return "; ".join(dict.fromkeys(step.mechanism_text for step in self.steps))

    @property
    def sensitivity(self) -> int:
        """The sensitivity of the first step: L1, squared L2 for Gaussian noise, the range of scores for a selection."""
        return self.steps[0].sensitivity

    @property
    def learned(self) -> str:
        """Decisions made from released values, as text; empty if there were none."""
        return str(self.choices.get("learned", ""))

    @property
    def n_leaves(self) -> int:
        """Number of leaves of all trees together."""
        return self.layout.leaves

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as a dict for JSON and for the fingerprint."""
        unit = self.neighbours.unit
        return {
            "estimator": self.estimator,
            "parameters": self.parameters,
            "public_seed": self.public_seed,
            **self.loss.to_dict(),
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
            "steps": [step.to_dict() for step in self.steps],
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
                raise PlanError("this is not a plan: its expected noise must be a finite number.")
            if not all(isinstance(text, str) for text in dict(data["expected"]).values()):
                raise PlanError("this is not a plan: its expected quality must be text.")
            if not is_int_in(data["public_seed"], 0, MAX_SEED):
                raise PlanError("this is not a plan: its seed must be an integer from 0 to 2**128 - 1.")
            plan = cls(
                estimator=data["estimator"],
                parameters=dict(data["parameters"]),
                public_seed=data["public_seed"],
                loss=Loss.from_dict(data),
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
            if json.loads(json.dumps(plan.to_dict())) != dict(data):  # a text for readers that differs from the numbers
                raise PlanError("this is not a plan as it was saved: its texts do not match its numbers.")
            return plan
        except VeilwoodError:
            raise
        except (KeyError, TypeError, ValueError, ArithmeticError, RecursionError) as error:
            raise PlanError(f"this is not a plan: {type(error).__name__} {shorten_text(str(error))}.") from None

    def to_json(self) -> str:
        """Return the plan as JSON text."""
        return json.dumps(self.to_dict(), indent=2)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan to a JSON file, to be signed, archived, and executed by ``fit(X, y, plan=path)``."""
        write_file(path, (self.to_json() + "\n").encode())

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan from a file. Raise PlanError if its steps exceed the loss that it promises."""
        text = read_text(path)
        try:
            data = read_json(text)
            if not isinstance(data, dict):
                raise PlanError("this is not a plan. Hint: write one with plan.save(path).")
            return cls.from_dict(data)
        except VeilwoodError as error:  # one line, whatever the file contains
            raise PlanError(f"{short_repr(str(path))}: {shorten_text(str(error), _MAX_ERROR_LENGTH)}") from None

    def fingerprint(self) -> str:
        """Return the SHA-256 hash of everything in the plan."""
        return self.payload_and_fingerprint()[1]

    def payload_and_fingerprint(self) -> tuple[dict[str, Any], str]:
        """Return ``to_dict()`` and its fingerprint."""
        payload = self.to_dict()
        return payload, hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()

    def differences(self, other: Plan) -> list[str]:
        """Return the differences from another plan, one line per key; an empty list if the plans are the same."""
        planned, current = self.to_dict(), other.to_dict()
        if math.isclose(self.expected_leaf_mse, other.expected_leaf_mse, rel_tol=1e-6):
            del planned["expected_leaf_mse"]  # a forecast: sums of floats differ in their last digits between machines
        return [
            f"{key}: {shorten_text(json.dumps(planned[key]))} planned, {shorten_text(json.dumps(current[key]))} now"
            for key in planned
            if planned[key] != current[key]
        ]

    def explain(self) -> str:
        """Return the plan as human-readable text."""
        sentences = {
            key: f"{value}. Expect {self.expected[key]}" if key in self.expected else value
            for key, value in self.notes.items()
            if key in self.expected or len(str(value)) > _MAX_INLINE_NOTE
        }
        facts = self.layout.describe() + [f"{key} {value}" for key, value in self.notes.items() if key not in sentences]
        lines = [
            f"{self.estimator} on schema {self.schema_name!r}{': ' if facts else ''}{', '.join(facts)}.",
            *(f"{key.capitalize()}: {value}." for key, value in sentences.items()),
            *["What is expected is a part of what a forest without privacy has over guessing."] * bool(self.expected),
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
                f"{format_number(float(f'{self.expected_leaf_mse:.4g}'))}). Smaller counts are mostly noise."
            )
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        return f"Plan({self.estimator} on {self.schema_name!r}, {self.loss}, {self.neighbours})"

    def _repr_html_(self) -> str:
        """Show the plan in a notebook."""
        head = ("step", "mechanism", "loss")
        rows = [(step.name, step.mechanism_text, step.loss_text) for step in self.steps[:_MAX_STEPS_SHOWN]]
        lines = [f"Protects {self.neighbours}. Releases {self.released}."]
        lines += [f"{rows}: expect {text}" for rows, text in self.expected.items()]
        return html_card(f"Plan of {self.estimator}: {self.loss}", "\n".join(lines), [head, *rows])
