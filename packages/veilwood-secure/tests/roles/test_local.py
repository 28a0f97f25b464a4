# SPDX-License-Identifier: Apache-2.0
"""Three servers as processes of one machine."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest

from veilwood.errors import PartyError, VeilwoodError
from veilwood_secure.roles.local import LocalServers
from veilwood_testing.secure_roles import CAR_ROWS, CAR_X, CAR_Y, expected_predictions

pytestmark = pytest.mark.slow


def test_a_frozen_server_is_named_and_thawed_again(servers: LocalServers) -> None:
    for owner, rows in CAR_ROWS.items():
        servers.owner(owner).contribute(CAR_X[rows], CAR_Y[rows])
    servers.owner("north").wait(60)
    process = servers.processes[2]
    assert process is not None
    with servers.user("analyst") as analyst:
        answers = analyst.predict(CAR_X[:10])
        os.kill(process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(PartyError) as caught:
                analyst.predict(CAR_X[:10])
        finally:
            os.kill(process.pid, signal.SIGCONT)
        assert caught.value.party == "server 2"
        assert np.array_equal(analyst.predict(CAR_X[:10]), answers)


def test_twenty_users_ask_while_a_second_job_trains(servers: LocalServers) -> None:
    """20 users, 1,000 questions each, during a training: every answer is that of the plaintext twin."""
    first = servers.owner("north").task
    users = tuple(f"user-{number}" for number in range(20))
    request = replace(first, name="asked", users=users)
    servers.add_task(request)
    for owner, rows in CAR_ROWS.items():
        servers.owner(owner, "asked").contribute(CAR_X[rows], CAR_Y[rows])
    servers.owner("north", "asked").wait(60)
    truth = expected_predictions(servers, "asked")
    wrong: list[str] = []

    def ask(name: str, seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            with servers.user(name, "asked") as user:
                for _ in range(10):
                    rows = rng.integers(0, len(CAR_X), 100)
                    if not np.array_equal(user.predict(CAR_X.iloc[rows]), truth[rows]):
                        wrong.append(f"{name}: a wrong answer")
        except VeilwoodError as error:
            wrong.append(f"{name}: {error}")

    threads = [threading.Thread(target=ask, args=(name, seed)) for seed, name in enumerate(users)]
    for thread in threads:
        thread.start()
    for owner, rows in CAR_ROWS.items():
        servers.owner(owner, "car").contribute(CAR_X[rows], CAR_Y[rows])
    servers.owner("south", "car").wait(120)
    for thread in threads:
        thread.join()
    assert not wrong
    with servers.user("analyst", "car") as analyst:
        assert np.array_equal(analyst.predict(CAR_X), expected_predictions(servers, "car"))
