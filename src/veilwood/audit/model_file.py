# SPDX-License-Identifier: Apache-2.0
"""What can be checked of a model file without the data: its hashes, its plan, its noise and what it holds.

Reading a file is in ``model_file``, which refuses what is damaged; attacks that need fits are in ``attacks``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any

import numpy as np

from veilwood.audit import walk
from veilwood.errors import VeilwoodError
from veilwood.estimators.base import BaseForest
from veilwood.models.file import load
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.plan import ALL_TO_EVERY_TREE
from veilwood.privacy.sparse_noise import SparseLaplace
from veilwood.privacy.standing_out import StandingOut
from veilwood.privacy.steps import Step

__all__ = ["NOT_CHECKABLE", "Check", "check_file", "check_model"]

NOT_CHECKABLE = (
    "that the numbers inside are noisy by the stated law, and that its random bits were secret: any numbers look like "
    "some noise",
    "that the schema was public and not read off the data",
    "that one unit of the data is what the certificate calls it (a person with two rows has two units)",
    "that earlier spends on the same data are in a ledger: ask for the ledger and run veilwood ledger verify",
    "who made the file: its check sum is not a signature",
)
"""What no one can tell from a file."""

# Keys under which a file could hold what must stay private.
_FORBIDDEN = frozenset(
    ("n", "n_rows", "n_samples", "n_samples_", "rows", "row", "class_counts", "exact_counts", "totals", "noise",
     "seed", "noise_seed", "key", "secret", "assignment", "data", "X", "y", "min", "max", "mean", "std")
)  # fmt: skip
_FEWEST_TREES = 8  # noisy totals of so many trees do not agree by chance


@dataclass(frozen=True)
class Check:
    """One check of a model: what was asked, whether it holds, and what was found."""

    question: str
    holds: bool
    found: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def check_file(path: str | PathLike[str]) -> list[Check]:
    """Load a model file and check what it claims.

    Raises
    ------
    ModelFileError
        If the file is not a model, is damaged, or its certificate is of another plan or schema.

    Examples
    --------
    >>> import tempfile, veilwood as vw
    >>> car = vw.datasets.car()
    >>> forest = vw.RandomTreesClassifier(car.schema, n_estimators=5, max_depth=3, random_state=0).fit(car.X, car.y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     vw.save(forest, f"{folder}/car.veilwood")
    ...     all(check.holds for check in check_file(f"{folder}/car.veilwood"))
    True
    """
    model = load(path)
    return [Check("Is the file whole?", True, "its check sum matches all of its contents"), *check_model(model)]


def check_model(model: BaseForest) -> list[Check]:
    """Check what a loaded model claims against what it holds."""
    return [*_hashes(model), *_noise(model), *_certificate(model), *_contents(model)]


def _hashes(model: BaseForest) -> Iterator[Check]:
    statement = model.privacy_
    plan, schema = model.plan_.opened_as or model.plan_.fingerprint(), model.schema_.fingerprint()
    yield Check("Is the certificate of this plan?", plan == statement.plan_hash, f"sha256 {plan}")
    yield Check("Is the certificate of this schema?", schema == statement.schema_hash, f"sha256 {schema}")
    try:
        asked = model.ask(model.schema_, model.plan_.public_seed, model.plan_.choices)
        planned = model.make_method().replan(asked, model.plan_)
    except (VeilwoodError, NotImplementedError) as error:
        yield Check("Do the parameters lead to this plan?", False, f"they cannot be planned: {error}")
        return
    same = planned.steps == model.plan_.steps and planned.loss == model.plan_.loss
    note = "planned afresh from schema, parameters and public seed: the same steps, sensitivities, noise and loss"
    yield Check("Do the parameters lead to this plan?", same, note if same else "another plan comes out")


def _noise(model: BaseForest) -> Iterator[Check]:
    if not model.plan_.loss.is_bounded:
        return
    for step in model.plan_.steps:
        holds, found = _kept(step)
        yield Check(f"Does the noise of {step.name!r} keep its loss?", holds, found)


def _kept(step: Step) -> tuple[bool, str]:
    """Recompute from sensitivity and scale what a step costs, and say so in figures."""
    loss, sensitivity = step.loss, step.sensitivity
    match step.mechanism:
        case DiscreteLaplace(scale=scale) | JointLaplace(scale=scale) | SparseLaplace(scale=scale):
            text = f"sensitivity {sensitivity} / scale {scale} = {sensitivity / scale} <= {loss.epsilon}"
        case DiscreteGaussian(sigma_squared=variance):
            cost = float(sensitivity / (2 * variance))
            text = f"squared sensitivity {sensitivity} / (2 sigma^2) = {cost:.6g} <= rho {float(loss.rho or 0):.6g}"
        case None:
            text = "no noise"
        case StandingOut():
            text = str(step.cost)
        case choice:
            text = f"{step.choices} choices a row at epsilon {choice.epsilon}, range {choice.score_range}: {step.cost}"
    return step.keeps_its_loss, text


def _certificate(model: BaseForest) -> Iterator[Check]:
    statement, plan = model.privacy_, model.plan_
    claims = (statement.adjacency, statement.unit, statement.mechanism, statement.released)
    facts = (plan.neighbours.adjacency, str(plan.neighbours.unit), plan.mechanism, plan.released)
    composed = list(statement.composition) == [step.to_dict() for step in plan.steps]
    yield Check(
        "Does the certificate say what the plan says?", claims == facts and composed,
        "adjacency, unit, mechanisms, what is released, and every step of the composition",
    )  # fmt: skip
    if not statement.is_private:
        yield Check("Is it private?", False, f"NOT PRIVATE, as it says itself: {statement.reason}")
        return
    loss = plan.loss
    same = loss.epsilon is not None and (statement.epsilon, statement.delta) == (float(loss.epsilon), float(loss.delta))
    # That the steps add up to no more is checked whenever a Plan is made, so also when this one was loaded.
    yield Check("Is the certified loss that of the plan, and do its steps add up to it?", same, str(loss))


def _contents(model: BaseForest) -> Iterator[Check]:
    plan = {key: value for key, value in model.plan_.to_dict().items() if key != "parameters"}  # what a user declared
    held = {"schema": model.schema_.to_dict(), "plan": plan, "certificate": model.privacy_.to_dict()}
    arrays = model.model_.arrays()
    names = [str(value) for path, value in walk(held) if path.endswith(f"[{value!r}]")] + list(arrays)
    private = sorted(_FORBIDDEN.intersection(names))
    found = f"entries named {', '.join(private)}" if private else f"{len(names)} names, none of something private"
    yield Check("Does it hold nothing else?", not private, found)
    layout, counts = model.plan_.layout, arrays.get("leaf_counts")
    shared = layout.records == ALL_TO_EVERY_TREE and layout.trees >= _FEWEST_TREES
    if not model.privacy_.is_private or counts is None or counts.dtype != np.int64 or not shared:
        return
    totals = np.add.reduceat(counts.sum(axis=1), model.model_.forest.tree_leaves[:-1])
    yield Check(
        "Do the counts look noisy?", len(set(totals.tolist())) > 1,
        "the trees disagree on how many rows there were, as noisy counts do" if len(set(totals.tolist())) > 1
        else "all trees agree on how many rows there were: these counts are exact",
    )  # fmt: skip
