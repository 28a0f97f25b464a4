# SPDX-License-Identifier: Apache-2.0
"""What a client checks before it sends anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.owner import Owner
from veilwood_testing.secure_roles import TASK, Place, X, Y


def test_swapped_addresses_are_found_before_anything_is_sent(trained: Place) -> None:
    config = trained.config("owner-north")
    swapped = replace(config, servers=(config.servers[1], config.servers[0], config.servers[2]))
    with pytest.raises(PartyError, match="is not server 0"):
        Owner(swapped).contribute(X, Y)


def test_a_task_that_means_something_else_is_refused(trained: Place) -> None:
    cheaper = replace(TASK, epsilon="0.1")
    client = Owner(replace(trained.config("owner-north"), tasks=(cheaper,)))
    with pytest.raises(PartyError, match="is another one at server"):
        client.contribute(X, Y)
