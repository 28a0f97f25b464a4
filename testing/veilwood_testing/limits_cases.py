# SPDX-License-Identifier: Apache-2.0
"""Shared by secure/roles/test_limits.py and other tests."""

from __future__ import annotations

from veilwood_secure.roles.identity import PartyName, tls_context
from veilwood_secure.roles.transport import Channel, dial_server
from veilwood_testing.places import Place

PEER = PartyName("server", "0")


def connect(here: Place, role: str = "user-analyst") -> Channel:
    config = here.config(role)
    context = tls_context(config.identity, config.servers_authority, listens=False)
    return dial_server("127.0.0.1", config.servers[0].participants, context, PEER, timeout=30, limit=1 << 16)
