# SPDX-License-Identifier: Apache-2.0
"""Three processes linked by MPyC compute what one process computes, and what MPyC itself does."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from veilwood.errors import VeilwoodError
from veilwood_papers.mpc import plain as plaintext
from veilwood_papers.mpc.processes import run_three
from veilwood_secure.mpc.engine import Engine
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols.hidden_trees import grow_hidden_tree
from veilwood_secure.protocols.records import Domain, SharedRows, encode_classes, encode_one_hot
from veilwood_testing.hidden_trees import noise_of, open_tree, random_noise, random_rows, recipe_of
from veilwood_testing.processes import free_ports


def numbers(*shape: int, bits: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)


def busy(engine: Engine, x: Any, y: Any) -> list[Any]:
    x, y = engine.load(x), engine.load(y)
    secrets = [engine.mul(x, y), engine.matmul(x, y.transpose()), engine.is_negative(x - y)]
    return [engine.open(secret) for secret in secrets]


def failing(engine: Engine) -> None:
    if engine.party == 1:
        raise ArithmeticError("out of ink")
    engine.open(engine.constant([1]))


@pytest.fixture(scope="module")
def mpc() -> Any:
    pytest.importorskip("mpyc")
    arguments, sys.argv = sys.argv, ["test", "--no-log"]
    try:
        from mpyc.runtime import mpc as runtime
    finally:
        sys.argv = arguments
    return runtime


def test_three_processes_agree_with_mpyc(mpc: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from veilwood_papers.mpc.processes import run_three

    monkeypatch.setattr("veilwood_papers.mpc.processes._free_ports", lambda: free_ports(3))
    x, y = numbers(4, 5, bits=12), numbers(4, 5, bits=12, seed=3)
    secure = mpc.SecInt(32)
    ours = run_three(busy, share(x), share(y))
    a, b = (secure.array(values.astype(object)) for values in (x, y))
    other = [mpc.run(mpc.output(value)) for value in (a * b, a @ b.T, a < b)]
    for outcome in ours:
        for our, their in zip(outcome.result, other, strict=True):
            np.testing.assert_array_equal(our, np.array(their, dtype=np.int64))
        assert outcome.stats.rounds == 14
        assert outcome.stats.bytes_sent > 0
        assert outcome.peak_memory > 0
        assert outcome.wall_s > 0


@pytest.mark.slow
def test_a_process_that_fails_ends_the_run() -> None:
    pytest.importorskip("mpyc")
    from veilwood_papers.mpc.processes import run_three

    with pytest.raises(VeilwoodError, match=r"server [01] failed(.|\n)*(out of ink|closed its connection)"):
        run_three(failing)


def grown_by_a_server(engine: Engine, features: Any, classes: Any, domain: Domain, depth: int, extra: Any) -> Any:
    records = SharedRows(engine.load(features), engine.load(classes))
    return open_tree(engine, grow_hidden_tree(engine, records, recipe_of(domain, depth), noise_of(engine, extra)))


@pytest.mark.slow
def test_three_processes_grow_the_same_tree_as_one() -> None:
    rng = np.random.default_rng(11)
    domain, depth = Domain((4, 3, 4, 2), 2), 3
    codes, target = random_rows(rng, domain, 300)
    extra = random_noise(rng, domain, depth)
    inputs = share(encode_one_hot(codes, domain)), share(encode_classes(target, domain))
    choose = plaintext.noisy_largest(extra)
    control = plaintext.grow_tree(codes, target, sizes=(4,) * 4, n_classes=2, depth=depth, split=choose, label=choose)
    for outcome in run_three(grown_by_a_server, *inputs, domain, depth, extra):
        splits, leaves = outcome.result
        assert all((own == other).all() for own, other in zip(splits, control.splits, strict=True))
        assert (leaves == control.leaves).all()
