# SPDX-License-Identifier: Apache-2.0
"""Programs on shares: at three servers, which are threads, and in the clear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_testing.mpc_oracle import PlainEngine

RINGS = [np.uint32, np.uint64]
Program = Callable[..., Any]
EDGES = np.array([0, 1, -1, 2, -2, 2**30, -(2**30), 2**31 - 1, -(2**31 - 1), -(2**31), 255, -256])
COUNT = 20_000


def at_three(program: Program, *secrets: Any, ring: Any = np.uint32) -> list[Any]:
    """Share the secrets, run the program at three servers, return what each of them returns."""
    shared = [share(secret, ring) for secret in secrets]

    def serve(links: Links) -> Any:
        engine = ReplicatedEngine(links, ring=ring)
        return program(engine, *(engine.load(pairs[engine.party]) for pairs in shared))

    return run_in_threads(serve)


def in_the_clear(program: Program, *secrets: Any, ring: Any = np.uint32) -> Any:
    engine = PlainEngine(ring)
    return program(engine, *(engine.load((secret,)) for secret in secrets))


def numbers(*shape: int, bits: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-(2 ** (bits - 1)), 2 ** (bits - 1), shape)
