# SPDX-License-Identifier: Apache-2.0
"""Places at a door: each party has its own."""

from __future__ import annotations

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles import transport as listener_module
from veilwood_secure.roles.identity import PartyName


def test_each_party_has_places_of_its_own() -> None:
    guests = listener_module._PartyConnections(max_connections=3, max_per_party=16)
    greedy = [PartyName("user", f"u{number}") for number in range(5)]
    for who in greedy:
        guests.count_in(who)
        guests.count_in(who)
    for _ in range(3):
        guests.count_in(greedy[0])
    with pytest.raises(PartyError, match="this server is full: others have too many connections open"):
        guests.count_in(greedy[1])
    guests.count_in(PartyName("owner", "north"))  # an owner that comes late
    guests.count_out(greedy[0])
    guests.count_in(greedy[1])
