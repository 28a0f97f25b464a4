# SPDX-License-Identifier: Apache-2.0
"""Every protocol on checked servers, one of which lies: no wrong result is ever accepted.

Messages that deal a server's own draw are its input and are left out; what they may hold is tested below.
"""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.errors import PartyError, UseError
from veilwood.privacy.certificate import Assumption
from veilwood.privacy.joint_noise import JointLaplace
from veilwood_secure.mpc.checked import CheckedEngine, DeviationError
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.replicated import ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.noise import dealt_joint_laplace
from veilwood_secure.protocols.records import Domain, are_one_hot
from veilwood_secure.roles.program import PROTOCOLS, program_for_task
from veilwood_testing.lies import deal_zeros, make_checked_engine, protocol_program, protocol_task, run, try_lies
from veilwood_testing.secure_roles import SCHEMA

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

QUICK = ("hidden-tree", "binary-tree", "cdp-id3")
EVERY = {"hidden-tree": 9, "binary-tree": 9, "private-votes": 9, "cdp-id3": 4, "forest-on-shares": 61}
"""Of a long protocol, every so many messages are changed here; benchmarks/secure_checked.py changes all of them."""


@pytest.fixture(autouse=True)
def no_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is dealt: a server may choose its own draw."""
    monkeypatch.setattr(ReplicatedEngine, "deal_sum", deal_zeros)


def assert_caught(found: Counter[tuple[str, str]]) -> None:
    assert not any(how == "WRONG" for _, how in found), found
    assert sum(count for (_, how), count in found.items() if how == "aborted") > 0


@pytest.mark.parametrize("protocol", QUICK)
def test_no_lie_is_accepted_in_any_protocol(protocol: str) -> None:
    task = protocol_task(protocol)
    assert_caught(
        try_lies(
            protocol_program(task), make_checked_engine(task), ("flip", "random", "own number", "truncate"), every=131
        )
    )


@pytest.mark.slow
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_no_lie_is_accepted_wherever_it_is_told(protocol: str) -> None:
    task, every = protocol_task(protocol), EVERY.get(protocol, 1)
    changes = ("flip", "random", "zeros", "replay", "own number", "truncate")
    found = try_lies(protocol_program(task), make_checked_engine(task), changes, every=every)
    found += try_lies(protocol_program(task), make_checked_engine(task), ("drop",), every=40 * every, timeout_s=1.0)
    assert_caught(found)


def test_the_same_lies_are_accepted_by_servers_that_do_not_check() -> None:
    task = protocol_task("cdp-id3", servers="honest")
    ring = program_for_task(task).ring
    found = try_lies(
        protocol_program(task), lambda links, keys: ReplicatedEngine(links, keys, ring), ("random",), every=23
    )
    assert found["random", "WRONG"] > 0


def test_what_checked_servers_train_is_what_one_would() -> None:
    """Counts with noise are the same numbers in words with slack, since random bits come from the same keys."""
    task = protocol_task("extra-trees")
    results = run(protocol_program(task), make_checked_engine(task))
    assert all(np.array_equal(results[0][0], other[0]) for other in results)
    assert set(results[0][0]) <= set(range(len(SCHEMA.classes)))


def test_the_certificate_names_the_model_of_the_servers() -> None:
    for servers, assumption, other in (
        ("checked", Assumption.ONE_DEVIATES, Assumption.NO_COLLUSION),
        ("honest", Assumption.NO_COLLUSION, Assumption.ONE_DEVIATES),
    ):
        task = protocol_task("hidden-tree", servers=servers)
        found = program_for_task(task).make_certificate("ledger", 1).assumptions
        assert assumption.value in found
        assert other.value not in found
    assert protocol_task("hidden-tree").fingerprint() != protocol_task("hidden-tree", servers="honest").fingerprint()


@pytest.mark.parametrize(
    ("protocol", "settings"),
    [
        ("hidden-tree", {"servers": "honest-looking"}),
        ("cdp-id3", {"leaves": "exponential"}),
        ("public-forest", {"noise_protocol": "dealt"}),
        ("public-forest", {"estimator": "GreedyForestClassifier", "parameters": {"random_state": 0}}),
    ],
)
def test_what_needs_more_bits_or_trust_is_refused(protocol: str, settings: dict[str, Any]) -> None:
    with pytest.raises(UseError):
        program_for_task(protocol_task(protocol, **settings))


# -- dealt noise -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("liar", [0, 1])
def test_a_server_cannot_deal_more_noise_than_there_can_be(liar: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    mechanism, sample = JointLaplace(Fraction(3), (2, 3)), JointLaplace.sample

    def work(engine: Engine) -> Any:
        class Dealt(JointLaplace, kind="JointLaplace"):
            def sample(self, n: int) -> Ints:
                return sample(mechanism, n) + (10**6 if huge and engine.party == liar else 0)

        return engine.open(dealt_joint_laplace(engine, Dealt(Fraction(3), (2, 3)), (5, 2)))

    for huge in (False, True):
        found = run(work, lambda links, keys: CheckedEngine(links, keys, counted_bits=44))
        assert all(isinstance(one, DeviationError if huge else np.ndarray) for one in found), found
    assert issubclass(DeviationError, PartyError)


# -- a question that is no row, with the help of a server ------------------------------------------------------


class HelpingEngine(ReplicatedEngine):
    """A server that takes a number off the first product it makes, so that a wrong question may pass its check."""

    error: Any = 0

    def _reshare_parts(self, *arguments: Any, **more: Any) -> Any:
        own, received = super()._reshare_parts(*arguments, **more)
        if self.party == 0:
            own = own - own.dtype.type(self.error)  # a copy: what was sent may still be on its way
        elif self.party == 2:  # which holds the same part
            received = received - received.dtype.type(self.error)
        self.error = 0
        return own, received


class HelpingCheckedEngine(HelpingEngine, CheckedEngine):
    """The same server among others that check it: its only product is the one that is sacrificed."""


@pytest.mark.parametrize("checked", [False, True])
def test_a_question_that_reads_a_tree_does_not_pass_with_the_help_of_a_server(checked: bool) -> None:
    """(1 + T, -T) is as far from one-hot as T (1 + T) says, in both places: a number that the server knows."""
    T = 1 << 16
    ring = np.uint64 if checked else np.uint32
    pairs = share(np.array([[[1 + T], [-T]]]), ring)
    passed = 0
    for _ in range(10):

        def work(links: Any) -> Any:
            engine: Any = HelpingCheckedEngine(links) if checked else HelpingEngine(links, ring=ring)
            engine.error = T * (1 + T) % (1 << 8 * np.dtype(ring).itemsize)
            return are_one_hot(engine, engine.load(pairs[links.party]), Domain((2,), 2))

        passed += all(run_in_threads(work))
    assert passed == (0 if checked else 10)
