# SPDX-License-Identifier: Apache-2.0
"""Shares: uniform one by one, exact together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("cryptography")
from veilwood.errors import UnreadableError
from veilwood_secure.mpc.shares import pair_from_bytes, pair_to_bytes, reconstruct, share
from veilwood_testing.errors import rejects
from veilwood_testing.mpc_engines import EDGE_VALUES, N_DRAWS, RINGS


def test_shares_of_one_server_are_uniform_whatever_the_secret() -> None:
    for secret in (0, -1):
        for pair in share(np.full(N_DRAWS, secret)):
            for words in (*pair, pair[0] - pair[1], pair[0] + pair[1]):
                counts = np.bincount(words.view(np.uint8), minlength=256)
                assert stats.chisquare(counts).pvalue > 1e-7


@pytest.mark.parametrize("ring", RINGS)
def test_shares_join_again_and_travel_as_bytes(ring: Any) -> None:
    values = EDGE_VALUES.reshape(3, 4)
    pairs = [pair_from_bytes(pair_to_bytes(pair), values.shape, ring) for pair in share(values, ring)]
    np.testing.assert_array_equal(reconstruct(pairs), values)
    with rejects(UnreadableError, raised_in="pair_from_bytes"):
        pair_from_bytes(pair_to_bytes(pairs[0]), (3, 5), ring)


def test_a_user_notices_a_server_that_sends_something_else() -> None:
    pairs = share([1, 2, 3])
    pairs[1] = (pairs[1][0] + np.uint32(1), pairs[1][1])
    with rejects(UnreadableError, raised_in="reconstruct"):
        reconstruct(pairs)
