# SPDX-License-Identifier: Apache-2.0
"""Several programs in the rounds of one: the same results, fewer messages, and a failure ends all."""

from __future__ import annotations

import threading
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest

from veilwood.errors import VeilwoodError
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.round_batching import run_in_lockstep
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.circuits import argmax
from veilwood_testing.mpc_engines import PlainEngine


def work(values: Any, engine: Engine) -> Any:
    """A bit of everything, of any length."""
    x = engine.constant(np.asarray(values))
    hot = argmax(engine, engine.mul(x, x) - x)
    some = engine.matmul(x.reshape(1, -1), hot.reshape(-1, 1))
    total = engine.dot(x.reshape(1, -1), x.reshape(1, -1), axis=1)
    drawn = noise.geometric(engine, Fraction(1), (3,))
    return engine.open(engine.refresh(some.reshape(1) + total)), engine.open(drawn).shape


INPUTS = [[3, -4, 1], [5], [7, 7, 7, -20, 2]]


def test_programs_give_what_they_give_alone_in_the_rounds_of_the_longest() -> None:
    alone, rounds = [], []
    for values in INPUTS:
        engine = PlainEngine()
        alone.append(work(values, engine))
        rounds.append(engine.stats.rounds)
    engine = PlainEngine()
    found = run_in_lockstep(engine, [partial(work, values) for values in INPUTS])
    assert [one[0].tolist() for one in found] == [one[0].tolist() for one in alone]
    assert max(rounds) < engine.stats.rounds < sum(rounds)
    same = PlainEngine()
    run_in_lockstep(same, [partial(work, INPUTS[0])] * 20)
    assert same.stats.rounds == rounds[0]


def test_three_servers_run_programs_together() -> None:
    def program(links: Links) -> Any:
        engine = ReplicatedEngine(links)
        return [one[0].tolist() for one in run_in_lockstep(engine, [partial(work, values) for values in INPUTS])]

    expected = [work(values, PlainEngine())[0].tolist() for values in INPUTS]
    assert run_in_threads(program) == [expected] * 3


def test_a_program_that_fails_ends_the_others() -> None:
    before = threading.active_count()

    def fails(engine: Engine) -> Any:
        engine.open(engine.constant([1]))
        raise VeilwoodError("no further")

    programs: list[Any] = [partial(work, INPUTS[0]), fails, partial(work, INPUTS[2])]
    with pytest.raises(VeilwoodError, match="no further"):
        run_in_lockstep(PlainEngine(), programs)
    assert threading.active_count() == before
