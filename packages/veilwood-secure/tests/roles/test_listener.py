# SPDX-License-Identifier: Apache-2.0
"""Places at a door: each party has its own."""

from __future__ import annotations

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles import transport as listener_module
from veilwood_secure.roles.identity import Name


def test_each_party_has_places_of_its_own() -> None:
    guests = listener_module._Guests(most=3, of_one=16)
    greedy = [Name("user", f"u{number}") for number in range(5)]
    for who in greedy:
        guests.enter(who)
        guests.enter(who)
    for _ in range(3):
        guests.enter(greedy[0])
    with pytest.raises(PartyError, match="this server is full: others have too many connections open"):
        guests.enter(greedy[1])
    guests.enter(Name("client", "north"))  # an owner that comes late
    guests.leave(greedy[0])
    guests.enter(greedy[1])
