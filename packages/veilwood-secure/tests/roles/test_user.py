# SPDX-License-Identifier: Apache-2.0
"""Who may ask."""

from __future__ import annotations

from dataclasses import replace

import pytest

from veilwood.errors import PartyError
from veilwood_secure.roles.config import set_up_roles
from veilwood_secure.roles.user import User
from veilwood_testing.secure_roles import TASK, Place, X, first_word


def test_only_those_a_task_names_may_take_part(trained: Place) -> None:
    private = replace(TASK, name="private", users=("guest",), owners={"south": None})
    set_up_roles(trained.folder, private)
    outsider = replace(trained.config("user-analyst"), tasks=(private,))
    with pytest.raises(PartyError, match="user analyst does not take part in task 'private'"):
        User(outsider).predict(X[:1])
    with pytest.raises(PartyError, match="owner north does not take part"):
        first_word(trained.config("owner-north"), private, "contribute", rows=3)


def test_users_cannot_do_what_clients_do(trained: Place) -> None:
    config = trained.config("user-analyst")
    for do in ("contribute", "retire", "nonsense"):
        with pytest.raises(PartyError, match="user analyst may not do that"):
            first_word(config, TASK, do, rows=3)
