# SPDX-License-Identifier: Apache-2.0
"""Two owners of the cars, and the tree that three servers have of them, put together."""

from __future__ import annotations

import numpy as np

import veilwood as vw
from veilwood.data.encoding import Encoding
from veilwood_secure.mpc.shares import reconstruct
from veilwood_secure.protocols.public_trees import PlainTree
from veilwood_secure.protocols.records import Domain
from veilwood_secure.roles.checkpoints import ModelStore
from veilwood_secure.roles.local import LocalServers

SCHEMA, X, Y = vw.datasets.car()
HALF = len(X) // 2
ROWS = {"north": slice(0, HALF), "south": slice(HALF, None)}


def tree_in_the_open(servers: LocalServers, task: str, depth: int) -> PlainTree:
    """Put the stored shares of the three servers together, with all three secrets."""
    parts = []
    for party in range(3):
        secret = (servers.folder / "secrets" / f"server-{party}.secret").read_bytes().strip()
        parts.append(
            ModelStore(servers.folder / f"server-{party}" / "models", secret, f"server {party}").load(task).arrays
        )
    joined = {
        key.removeprefix("first."): reconstruct([(p[key], p[key.replace("first", "second", 1)]) for p in parts])
        for key in parts[0]
        if key.startswith("first.")
    }
    splits = tuple(joined[f"0.{level}"].argmax(axis=0) for level in range(depth))
    domain = Domain.from_schema(SCHEMA)
    return PlainTree(splits, joined["0.leaves"].argmax(axis=0), (domain.width,) * domain.n_features)


def expected(servers: LocalServers, task: str = "car", depth: int = 3) -> np.ndarray:
    codes = Encoding(SCHEMA, "bins").encode(X).astype(np.int64)
    return np.array(SCHEMA.classes, dtype=object)[tree_in_the_open(servers, task, depth).predict(codes)]
