# SPDX-License-Identifier: Apache-2.0
"""Federated fitting: owners and three servers run an ordinary method with a secret-shared source and release door.

All parties run ``method.measure_rows`` on the same public design. Each owner sums over its own rows and secret-shares
the sums. Servers add the owners' shares, draw noise on shares and open the result. The analyst replays the opened
values. The next query depends on opened values only, so all parties run the same queries. Hidden trees are in
``hidden_forest``; queries on secret-shared rows are in ``shared_backend``.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from types import TracebackType
from typing import Any, Final, Literal, cast

import numpy as np

from veilwood.arrays import Bools, Ints
from veilwood.data.batches import Batch, RowFilter, Source
from veilwood.data.open_rows import JointRows, open_rows
from veilwood.errors import MechanismError, ParameterError, PartyError, PlanError, UseError
from veilwood.estimators.base import BaseForest
from veilwood.estimators.method import Design
from veilwood.estimators.one_pass import OnePassForest
from veilwood.forests.adaptive.private_forest import PrivateForest
from veilwood.privacy.certificate import ServerParticipation
from veilwood.privacy.door import Door, UnchargedDoor
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger import Ledger
from veilwood.privacy.ledger_stores import open_ledger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import RowsOf
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.selection import NoisyMax, PermuteAndFlip
from veilwood.privacy.steps import Step
from veilwood_secure.mpc.engine import Engine, Shared
from veilwood_secure.mpc.replicated import OwnerChannel
from veilwood_secure.mpc.shares import find_majority, pair_from_bytes, pair_to_bytes, share
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.circuits import argmax
from veilwood_secure.protocols.hidden_forest import sampling_delta
from veilwood_secure.protocols.records import may_be_summed
from veilwood_secure.protocols.secret_array import SecretArray

NoiseProtocol = Literal["dealt", "sampled"]
NOISE_PROTOCOLS: tuple[NoiseProtocol, ...] = ("dealt", "sampled")

RING = np.uint64
"""Word type of sums. Weighted sums of a matrix strategy can exceed 32 bits."""

DEALT_VARIANCE_FACTOR = Fraction(3, 2)
"""Each of the three servers draws half a discrete Laplace variable, so that the draws of any two suffice."""

DEALT_JOINT_VARIANCE: Final = 2.0
"""Variance of joint noise, in multiples of one draw: two servers draw the full noise each, so that either draw
suffices."""

ADAPTIVE_DELTA: Final = Fraction(9, 10**13)
"""Bound on the delta of all noise in an adaptive fit; the release door rejects any step that would exceed it."""

EXCLUDED_SCORE_BITS: Final = 3
"""Inadmissible candidates have a score of -2 to the power of (counted bits minus this number)."""


# Public design, on which all parties agree


def joint_design(estimator: Any, charged: Plan | None = None) -> Design:
    """Return the public design that all parties derive from the estimator.

    Raise ``UseError`` or ``PlanError`` if it cannot be released jointly or differs from the charged plan.
    """
    if not isinstance(estimator, BaseForest):
        raise UseError(f"{type(estimator).__name__} has no method that owners and servers can run jointly.")
    if not isinstance(estimator.random_state, int | np.integer):
        raise UseError(
            f"random_state={estimator.random_state!r}: owners must grow the same trees. Hint: pass a public integer."
        )
    _, neighbours = estimator._requested_privacy()
    if isinstance(neighbours.unit, RowsOf):
        raise UseError(
            f"{neighbours.unit} cannot be protected: owners cannot determine which rows of one person others hold. "
            "Hint: pass privacy_unit=3 to protect any 3 rows, counted over all owners."
        )
    schema, not_private = estimator._resolve_schema()
    if not_private:
        raise UseError(f"owners must not share rows for a model that is not private: {not_private}.")
    design = estimator._design_for(schema)
    if design.plan.loss.accounting_open:
        raise PlanError(
            "later steps may need Gaussian noise, but servers add discrete Laplace noise. Hint: pass delta=0."
        )
    for step in design.plan.steps:
        if not isinstance(step.mechanism, DiscreteLaplace | NoisyMax | PermuteAndFlip):
            raise PlanError(
                f"step {step.name!r} is planned with {step.mechanism_text}, but servers add discrete Laplace noise or "
                "select by noisy maxima. Hint: use delta=0, a finite epsilon and, if there is one, selection='flip'."
            )
    own = design.plan  # compared without the delta of noise sampled on shares
    if charged is not None and (own.neighbours, own.loss.epsilon) != (charged.neighbours, charged.loss.epsilon):
        raise PlanError(
            f"the release costs {own.loss} for {own.neighbours}; charged: {charged.loss} for {charged.neighbours}."
        )
    return design


def needs_online_owners(estimator: Any) -> bool:
    """Return True if owners must stay online to answer several queries, rather than share one array of sums."""
    return not isinstance(estimator, OnePassForest)


def joint_plan(estimator: Any, noise_protocol: NoiseProtocol) -> Plan:
    """Return the plan that servers execute, with the variance of dealt noise or the delta of sampled noise."""
    plan = joint_design(estimator).plan
    assert plan.loss.epsilon is not None
    if needs_online_owners(estimator):
        if noise_protocol == "dealt":
            raise ParameterError(
                "noise_protocol",
                noise_protocol,
                "needs a forest that counts rows once",
                "use noise_protocol='sampled', which draws selections on shares",
            )
        sampling_delta(plan.loss.epsilon, [])  # raises MechanismError if epsilon protects nothing
        return replace(plan, loss=Loss(plan.loss.epsilon, ADAPTIVE_DELTA))
    if noise_protocol == "sampled":
        draws = [(_laplace_scale(step), 2 * math.prod(step.shape)) for step in plan.steps]
        return replace(plan, loss=Loss(plan.loss.epsilon, sampling_delta(plan.loss.epsilon, draws)))
    for step in plan.steps:
        if _laplace_scale(step) > noise.MAX_DEALT_SCALE:  # raised here, before anything is charged
            raise MechanismError(
                f"step {step.name!r} needs noise of scale {float(_laplace_scale(step)):.6g}, but servers deal at most "
                f"{noise.MAX_DEALT_SCALE}. Hint: use noise_protocol='sampled', or increase epsilon."
            )
    return replace(plan, expected_leaf_mse=float(DEALT_VARIANCE_FACTOR) * plan.expected_leaf_mse)


def default_noise_protocol(estimator: Any) -> NoiseProtocol:
    """Return "dealt", which takes one round, unless selections or a noise scale beyond its limit require "sampled"."""
    if needs_online_owners(estimator):
        return "sampled"
    wide = any(_laplace_scale(step) > noise.MAX_DEALT_SCALE for step in joint_design(estimator).plan.steps)
    return "sampled" if wide else "dealt"


def server_participation(
    estimator: BaseForest, noise_protocol: NoiseProtocol, shared_input: Literal["counts", "rows", "columns"]
) -> ServerParticipation:
    """Return the role of the servers. They deal joint noise if the estimator may release several tables at once."""
    deals_joint_noise = noise_protocol == "sampled" and isinstance(estimator._make_method(), PrivateForest)
    return ServerParticipation("both" if deals_joint_noise else noise_protocol, shared_input)


def _laplace_scale(step: Step) -> Fraction:
    assert isinstance(step.mechanism, DiscreteLaplace)
    return step.mechanism.scale


# Owners


class ServerChannels:
    """Channels from an online owner to the three servers."""

    def __init__(self, channels: Sequence[OwnerChannel]) -> None:
        self._channels = channels

    def send_share(self, sums: Ints) -> None:
        """Send each server its share of an owner's sums."""
        for channel, pair in zip(self._channels, share(sums, RING), strict=True):
            channel.send(pair_to_bytes(pair))

    def receive_opened(self, count: int) -> Ints:
        """Return the values that the servers opened, as at least two of them report."""
        return parse_opened(find_majority([bytes(channel.receive()) for channel in self._channels]), count)


def parse_opened(data: bytes, count: int) -> Ints:
    """Parse opened values from a message."""
    if len(data) != 8 * count:
        raise PartyError(f"the servers did not open the expected number of values, {count}.")
    return np.frombuffer(data, "<i8").astype(np.int64)


@dataclass(frozen=True, repr=False)
class OwnerRowSource(Source):
    """Source of an owner's rows. Their sums are secret-shared with the servers and replaced by zeros here."""

    servers: ServerChannels | None = None

    def share_sums(self, sums: Ints) -> Ints:
        """Secret-share the sums with the servers and return zeros."""
        assert self.servers is not None
        self.servers.send_share(np.asarray(sums, np.int64))
        return np.zeros(sums.shape, np.int64)

    @property
    def is_complete(self) -> bool:
        """False: other owners have rows too."""
        return False


def run_owner(estimator: BaseForest, plan: Plan, X: Any, y: Any, channels: Sequence[OwnerChannel]) -> None:
    """Answer queries on an owner's rows until the method ends.

    The estimator's ledger is charged here. In a deployment the owner's own ledger is charged earlier (``roles.owner``).

    Notes
    -----
    Guarantee

    Only shares of sums leave the owner, and the loss is recorded in its ledger before the first of them
    (proofs/secure-joint.md, attacked by packages/veilwood-secure/tests/protocols/test_joint_private_forest.py).
    """
    design, method, servers = joint_design(estimator, plan), estimator._make_method(), ServerChannels(channels)
    own = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit, invalid=estimator.invalid)
    own.check_passes(method.multi_pass, type(estimator).__name__)
    source = OwnerRowSource(own._read, own.single_pass, own.n_partitions, servers)
    participation = server_participation(estimator, "sampled", "counts")
    with JointDoor(plan, open_ledger(estimator.ledger), servers.receive_opened, participation) as door:
        method.measure_rows(design, source, door, estimator.n_jobs)


# Servers


class OnlineOwners:
    """Online owners, as seen by a server."""

    def __init__(self, engine: Engine, channels: Mapping[str, OwnerChannel], estimator: BaseForest) -> None:
        self._engine, self._channels, self._histograms = engine, channels, estimator._make_method().histogram_kind

    def collect_sums(self, shape: tuple[int, ...]) -> Shared:
        """Return the sums over all owners' rows, in shares; raise PartyError if they could wrap around.

        Notes
        -----
        Guarantee

        A deviating owner can only add a constant to the sums of others (an additive attack); it cannot turn a small
        difference into a large one (proofs/secure-joint.md, attacked by
        packages/veilwood-secure/tests/protocols/test_joint_private_forest.py).
        """
        owners = sorted(self._channels)  # the same order at all servers, independent of arrival
        parts = {owner: self._engine.load(self._receive_share(owner, shape)) for owner in owners}
        for owner, part in parts.items():
            if not may_be_summed(self._engine, part, len(parts), self._histograms):
                raise PartyError(
                    f"the answer of owner {owner} is refused: shares that do not fit together, or sums of more rows "
                    "than are allowed. Hint: the owner, or one of the servers, did not keep to the protocol."
                )
        return sum_shares(list(parts.values()))

    def _receive_share(self, owner: str, shape: tuple[int, ...]) -> Any:
        data = self._channels[owner].receive()
        try:
            return pair_from_bytes(memoryview(data), shape, RING)
        except ValueError:
            raise PartyError(
                f"owner {owner} sent an answer of the wrong shape. Hint: compare versions.", party=f"owner {owner}"
            ) from None

    def send_opened(self, opened: Ints) -> None:
        """Send the opened values to every owner."""
        for channel in self._channels.values():
            channel.send(np.ascontiguousarray(opened, "<i8").tobytes())


def sum_shares(parts: Sequence[Shared]) -> Shared:
    """Add the owners' shares."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


@dataclass(frozen=True, repr=False)
class SharedSums(Source):
    """Source of a server, which has no rows: sums arrive in shares."""

    engine: Engine | None = None
    collect: Callable[[tuple[int, ...]], Shared] | None = None

    @classmethod
    def from_collector(cls, engine: Engine, collect: Callable[[tuple[int, ...]], Shared]) -> SharedSums:
        """Return the source of a server; ``collect`` returns shared sums of a given shape."""
        return cls(no_batches, False, 1, engine, collect)

    def share_sums(self, sums: Ints) -> Ints:
        """Return the shared sums over all owners' rows, in place of sums over this server's rows."""
        assert self.engine is not None
        assert self.collect is not None
        found: Any = SecretArray(self.engine, self.collect(sums.shape))
        return found  # type: ignore[no-any-return]

    @property
    def is_complete(self) -> bool:
        """False: the owners have the rows."""
        return False


def no_batches() -> Iterator[Callable[[], Batch]]:
    """Return no batches: a server has no rows."""
    return iter(())


def run_server(
    engine: Engine,
    estimator: BaseForest,
    plan: Plan,
    noise_protocol: NoiseProtocol,
    source: Source,
    broadcast: Callable[[Ints], None] | None = None,
) -> Ints:
    """Run a method on shares, at a server. Return all opened values in order, flattened.

    Notes
    -----
    Guarantee

    The opened values have the plan's privacy loss, also towards one of the servers (proofs/secure-joint.md, attacked by
    packages/veilwood-secure/tests/protocols/test_joint_forest.py and
    packages/veilwood-secure/tests/protocols/test_joint_private_forest.py).
    """
    design, method = joint_design(estimator, plan), estimator._make_method()
    with ServerDoor(plan, engine, noise_protocol, broadcast) as door:
        method.measure_rows(design, source, door, 1)
    return np.concatenate([np.zeros(0, np.int64), *door.opened])


class ServerDoor(UnchargedDoor):
    """Release door of a server: draws noise on shares and opens only what the step releases.

    The server's ledger is charged before the door is created. Owners and analyst have doors and ledgers of their own.
    """

    joint_noise_variance = DEALT_JOINT_VARIANCE

    def __init__(
        self, plan: Plan, engine: Engine, noise_protocol: NoiseProtocol, broadcast: Callable[[Ints], None] | None = None
    ) -> None:
        super().__init__(plan, None)
        self._engine, self._noise_protocol, self._broadcast = engine, noise_protocol, broadcast
        self._draws: list[tuple[Fraction, int]] = []
        self.opened: list[Ints] = []

    def refine(self, plan: Plan) -> None:
        """Replace the plan by one derived from opened values, and keep the delta allowed for sampled noise."""
        super().refine(replace(plan, loss=self.plan.loss))

    def release_counts(self, step: Step, exact: Any) -> Ints:
        """Add the planned noise on shares and open the result."""
        self._admit_step(step, exact.shape)
        shared, mechanism = _to_shared(self._engine, exact), step.mechanism
        if isinstance(mechanism, JointLaplace):
            added = noise.dealt_joint_laplace(self._engine, mechanism, shared.shape)
        elif not isinstance(mechanism, DiscreteLaplace):
            raise PlanError(f"step {step.name!r} is planned with {step.mechanism_text}, but servers add Laplace noise.")
        elif self._noise_protocol == "dealt":
            added = noise.dealt_laplace(self._engine, mechanism.scale, shared.shape)
        else:
            self._check_delta(mechanism.scale, 2 * shared.size)
            added = noise.discrete_laplace(self._engine, mechanism.scale, shared.shape)
        return self._record_opened(self._engine.open(shared + added))

    def select(self, step: Step, scores: Any, admissible: Bools | None = None) -> Ints:
        """Select by a noisy maximum on shares and open only the index of the winner."""
        if scores.ndim != 2 or len(scores) > step.shape[0]:
            raise PlanError(f"step {step.name!r} was planned for at most {step.shape[0]} choices, got {scores.shape}.")
        self._admit_step(step, (step.shape[0], scores.shape[1]))
        if not isinstance(step.mechanism, NoisyMax | PermuteAndFlip):
            raise PlanError(
                f"step {step.name!r} is planned with {step.mechanism_text}, but servers select by noisy maxima."
            )
        if not len(scores):
            return self._record_opened(np.zeros(0, np.int64))
        shared = _to_shared(self._engine, scores)
        scale = Fraction(step.mechanism.score_range) / step.mechanism.epsilon
        self._check_delta(scale, shared.size)
        noisy = shared + noise.geometric(self._engine, scale, shared.shape)
        if admissible is not None:
            mask = np.broadcast_to(admissible, shared.shape).astype(np.int64)
            noisy = noisy * mask - (1 << self._engine.counted_bits - EXCLUDED_SCORE_BITS) * (1 - mask)
        winner = argmax(self._engine, noisy.transpose())
        index = np.arange(winner.shape[0]).reshape(-1, 1)
        return self._record_opened(self._engine.open((winner * index).sum(axis=0)))

    def release_sparse(self, step: Step, cells: Ints, counts: Ints, n_cells: int) -> tuple[Ints, Ints]:
        """Raise PlanError: no party may list the non-empty cells."""
        raise PlanError("non-empty cells cannot be listed on shares.")

    def _check_delta(self, scale: Fraction, draws: int) -> None:
        """Raise MechanismError if the sampling error of all noise so far exceeds the plan's delta."""
        self._draws.append((scale, draws))
        epsilon = self.plan.loss.epsilon
        assert epsilon is not None
        if sampling_delta(epsilon, self._draws) > self.plan.loss.delta:
            raise MechanismError(
                "the sampling error of the noise exceeds the plan's delta. Hint: choose a smaller epsilon."
            )

    def _record_opened(self, opened: Ints) -> Ints:
        self.opened.append(opened.ravel())
        if self._broadcast is not None:
            self._broadcast(opened)
        return opened


def _to_shared(engine: Engine, exact: Any) -> Shared:
    """Return exact numbers in shares. Numbers that no row can change, such as unused leaves, become public zeros."""
    return exact.shared if isinstance(exact, SecretArray) else engine.constant(exact)


# One array of sums that is shared once


def compute_owner_sums(estimator: Any, X: Any, y: Any = None) -> Ints:
    """Return the exact sums over an owner's rows, to be secret-shared and never sent in plaintext."""
    design = joint_design(estimator)
    source = open_rows(X, y, design.encoding, unit=design.plan.neighbours.unit, invalid=estimator.invalid)
    return source.aggregate(estimator._make_method().make_count(design), n_jobs=estimator.n_jobs).ravel()


# Analyst


class JointDoor(Door):
    """Release door of an owner or analyst: charges its own ledger and releases the values that servers opened.

    Notes
    -----
    Guarantee

    The loss is recorded in the ledger before the servers are contacted (proofs/secure.md, attacked by
    packages/veilwood-secure/tests/protocols/test_joint_forest.py).
    """

    joint_noise_variance = DEALT_JOINT_VARIANCE

    def __init__(
        self, plan: Plan, ledger: Ledger, receive_opened: Callable[[int], Ints], participation: ServerParticipation
    ) -> None:
        super().__init__(plan, ledger)
        self._receive_opened, self._participation = receive_opened, participation

    def refine(self, plan: Plan) -> None:
        """Replace the plan by one derived from opened values, and keep the delta allowed for sampled noise."""
        super().refine(replace(plan, loss=self.plan.loss))

    def release_counts(self, step: Step, exact: Ints) -> Ints:
        """Return the values that the servers opened; nothing is counted here."""
        self._admit_step(step, exact.shape)
        return self._receive_opened(math.prod(step.shape)).reshape(step.shape)

    def select(self, step: Step, scores: Ints, admissible: Bools | None = None) -> Ints:
        """Return the selections that the servers opened."""
        self._admit_step(step, (step.shape[0], scores.shape[1]))
        chosen = self._receive_opened(len(scores))
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < scores.shape[1]:
            raise PartyError(f"the servers selected an index that is not a candidate of step {step.name!r}.")
        return chosen


class AnalystDoor(JointDoor):
    """Release door of an analyst: starts the plan when the first value is needed, and replays the opened values."""

    def __init__(
        self, plan: Plan, ledger: Ledger, execute: Callable[[], Ints], participation: ServerParticipation
    ) -> None:
        super().__init__(plan, ledger, self._take_opened, participation)
        self._execute, self._opened = execute, cast("Ints | None", None)

    def _take_opened(self, count: int) -> Ints:
        if self._opened is None:
            self._opened = self._execute()
        if len(self._opened) < count:
            raise PartyError("the servers released fewer numbers than the plan requires.")
        first, self._opened = self._opened[:count], self._opened[count:]
        return first

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)
        if error is None and self._opened is not None and len(self._opened):
            raise PartyError("the servers released more numbers than the plan requires.")


@dataclass(frozen=True, repr=False)
class NoRows(Source):
    """Source of an analyst, which has no rows. All sums are zeros, which the release door replaces."""

    def select_part(self, row_filter: RowFilter) -> Source:
        """Raise UseError: the analyst cannot select rows that it does not have."""
        raise UseError(
            "rows of several owners cannot be held out. Hint: evaluate on a separate table with vw.evaluate."
        )

    @property
    def is_complete(self) -> bool:
        """False: the owners have the rows."""
        return False


class Parties(JointRows):
    """Owners and servers as input of ``fit``: ``PrivateForestClassifier(...).fit(parties)``.

    Parameters
    ----------
    noise_protocol : {"dealt", "sampled"}, optional
        With "dealt", each server adds noise that it draws itself; with "sampled", all three sample the noise on shares.
        By default, dealt noise if it is sufficient.
    """

    def __init__(self, noise_protocol: NoiseProtocol | None = None) -> None:
        if noise_protocol is not None and noise_protocol not in NOISE_PROTOCOLS:
            raise ParameterError(
                "noise_protocol", noise_protocol, "is not a noise protocol", "choose 'dealt' or 'sampled'"
            )
        self.noise_protocol = noise_protocol

    @abstractmethod
    def release(self, estimator: BaseForest, plan: Plan) -> Ints:
        """Let owners and servers execute the plan. Return the opened values in order, flattened."""

    def resolve_noise_protocol(self, estimator: BaseForest) -> NoiseProtocol:
        """Return the requested noise protocol, or the default of the estimator."""
        return self.noise_protocol or default_noise_protocol(estimator)

    def open_source(self) -> Source:
        """Return the source of the analyst, which has no rows."""
        return NoRows(no_batches)

    def make_door(self, estimator: Any, ledger: Ledger) -> Door:
        """Return the door of the analyst. Its ledger is charged before owners and servers are contacted."""
        noise_protocol = self.resolve_noise_protocol(estimator)
        plan = joint_plan(estimator, noise_protocol)
        participation = server_participation(estimator, noise_protocol, "counts")
        return AnalystDoor(plan, ledger, lambda: self.release(estimator, plan), participation)
