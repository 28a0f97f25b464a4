# SPDX-License-Identifier: Apache-2.0
"""Forests with public structure, counted by their owners and noised by three servers; the model is an ordinary one.

Owners count their own rows by the estimator's own code and share the sums; servers add them up, add noise and open
the result; the estimator learns from it as if it had come through its own door. Hidden trees are in ``hidden_forest``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from veilwood.data.open_rows import open_rows
from veilwood.errors import MechanismError, ParameterError, PartyError, PlanError, UseError
from veilwood.estimators.one_pass import OnePassForest
from veilwood.forests.method import Design
from veilwood.privacy.certificate import ByServers
from veilwood.privacy.door import Door
from veilwood.privacy.ledger import Ledger, open_ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import RowsOf
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.secure.mpc.engine import Engine, Ints, Shared
from veilwood.secure.protocols import noise
from veilwood.secure.protocols.plans import sampling_delta

Law = Literal["dealt", "sampled"]
LAWS: tuple[Law, ...] = ("dealt", "sampled")

RING = np.uint64
"""Word type for sums: the weighted ones of a matrix strategy can leave 32 bits."""

DEALT_VARIANCE = Fraction(3, 2)
"""Three servers deal half a discrete Laplace each, so that two of them suffice."""


def joint_design(estimator: Any) -> Design:
    """Return the public design that owners, servers and analyst agree on; refuse what cannot be released jointly."""
    if not isinstance(estimator, OnePassForest):
        raise UseError(
            f"{type(estimator).__name__} chooses its splits from the rows. Hint: owners can train random trees and "
            "matrix forests together, or a hidden tree."
        )
    if not isinstance(estimator.random_state, int | np.integer):
        raise UseError(
            f"random_state={estimator.random_state!r}: owners must grow the same trees. Hint: a public whole number."
        )
    if isinstance(estimator.schema, str) and estimator.schema == "infer":
        raise UseError("schema='infer' reads the rows, which nobody here sees. Hint: declare a schema.")
    _, neighbours = estimator.promise()
    if isinstance(neighbours.unit, RowsOf):
        raise UseError(
            f"privacy_unit={estimator.privacy_unit!r}: owners cannot tell which rows of one person others hold. "
            "Hint: a number of rows, counting all owners."
        )
    schema, not_private = estimator.declared_schema()
    if not_private:
        raise UseError(f"owners must not share rows for a model that is not private: {not_private}.")
    design = estimator.prepare(schema)
    for step in design.plan.steps:
        if not isinstance(step.mechanism, DiscreteLaplace):
            raise PlanError(
                f"step {step.name!r} is planned with {step.describe}, and servers add discrete Laplace noise. "
                "Hint: delta=0 and a finite epsilon."
            )
    return design


def count_rows(estimator: Any, X: Any, y: Any = None) -> Ints:
    """Return what an owner's rows add to the estimator's sums: exact, so to be shared and never sent as it is."""
    design = joint_design(estimator)
    source = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit, invalid=estimator.invalid)
    return source.add_up(estimator.make_method().count(design), n_jobs=estimator.n_jobs).ravel()


def release_sums(engine: Engine, owners: Sequence[Shared], plan: Plan, law: Law = "dealt") -> Ints:
    """Add up the owners' shared sums, add the planned noise, and open the result: the servers' part.

    Dealt noise takes one round: each server draws a part, and two parts suffice. Sampled noise is known to nobody and
    has two thirds of the variance.

    Notes
    -----
    Guarantee

    What is opened costs the plan's loss, also towards one of the servers (proofs/secure.md, attacked by
    tests/secure/protocols/test_joint_forest.py).
    """
    sizes = [math.prod(step.shape) for step in plan.steps]
    wrong = {counts.shape for counts in owners} - {(sum(sizes),)}
    if wrong or not owners:
        raise PlanError(f"owners shared sums of shape {wrong or 'none'}, and the plan has {sum(sizes)} numbers.")
    total = owners[0]
    for counts in owners[1:]:
        total = total + counts
    draw = noise.dealt_laplace if law == "dealt" else noise.discrete_laplace
    ends = np.cumsum(sizes)
    parts = [
        engine.open(total[end - size : end] + draw(engine, _scale(step), (size,)))
        for step, size, end in zip(plan.steps, sizes, ends, strict=True)
    ]
    return np.concatenate(parts)


def _scale(step: Step) -> Fraction:
    assert isinstance(step.mechanism, DiscreteLaplace)
    return step.mechanism.scale


class Parties(ABC):
    """Owners and servers as an estimator sees them: ``RandomTreesClassifier(...).fit(parties)``.

    Parameters
    ----------
    law : {"dealt", "sampled"}
        Each server adds a part of the noise, or all three draw it together in shares.
    """

    def __init__(self, law: Law = "dealt") -> None:
        if law not in LAWS:
            raise ParameterError("law", law, "is not known", "'dealt' or 'sampled'")
        self.law = law

    @abstractmethod
    def release(self, estimator: OnePassForest, plan: Plan) -> Ints:
        """Have every owner ``count_rows`` and share, and the servers ``release_sums``; return what they opened."""

    def teach(self, estimator: OnePassForest) -> None:
        """Fit the estimator from what the servers release, charging its ledger before they are asked."""
        design = joint_design(estimator)
        plan = joint_plan(design.plan, self.law)
        door = JointDoor(plan, open_ledger(estimator.ledger), self, estimator)
        nothing = np.zeros(sum(math.prod(step.shape) for step in plan.steps), np.int64)
        # Sums of several steps lie one after the other; those of a single one have its shape, as ``count`` gives them.
        exact = nothing.reshape(plan.steps[0].shape) if len(plan.steps) == 1 else nothing
        method = estimator.make_method()
        estimator.go_through(door, design, method, lambda door: method.release(design, exact, door))


def joint_plan(plan: Plan, law: Law) -> Plan:
    """Return the plan as servers carry it out: with the variance of dealt noise, or the delta of sampled noise."""
    if law == "dealt":
        for step in plan.steps:
            if _scale(step) > noise.LARGEST_DEALT_SCALE:  # here, before anything is charged
                raise MechanismError(
                    f"step {step.name!r} needs noise of scale {float(_scale(step)):.6g}, and servers deal up to "
                    f"{noise.LARGEST_DEALT_SCALE}. Hint: law='sampled', or a larger epsilon."
                )
        return replace(plan, expected_leaf_mse=float(DEALT_VARIANCE) * plan.expected_leaf_mse)
    assert plan.loss.epsilon is not None
    draws = [(_scale(step), 2 * math.prod(step.shape)) for step in plan.steps]
    return replace(plan, loss=Loss(plan.loss.epsilon, sampling_delta(plan.loss.epsilon, draws)))


class JointDoor(Door):
    """The door of a joint fit: it charges the ledger as any door does, and the noise comes from the servers.

    Notes
    -----
    Guarantee

    The loss stands in the ledger before the servers are asked (proofs/secure.md, attacked by
    tests/secure/protocols/test_joint_forest.py).
    """

    def __init__(self, plan: Plan, ledger: Ledger, parties: Parties, estimator: OnePassForest) -> None:
        super().__init__(plan, ledger)
        self._parties, self._estimator = parties, estimator
        self._servers = ByServers(parties.law, "counts")
        self._released: dict[str, Ints] = {}

    def noisy(self, step: Step, exact: Ints) -> Ints:
        """Hand out what the servers released; nothing was counted here."""
        self._pass(step, exact.shape)
        if not self._released:
            sizes = [math.prod(planned.shape) for planned in self.plan.steps]
            opened = self._parties.release(self._estimator, self.plan)
            if opened.shape != (sum(sizes),):
                raise PartyError(f"the servers released {opened.shape} numbers, and the plan has {sum(sizes)}.")
            parts = np.split(opened, np.cumsum(sizes)[:-1])
            self._released = {p.name: part.reshape(p.shape) for p, part in zip(self.plan.steps, parts, strict=True)}
        return self._released[step.name] + exact
