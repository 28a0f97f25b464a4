# SPDX-License-Identifier: Apache-2.0
"""What a training may have opened stays spent: at the servers and at the analyst, whatever goes wrong afterwards.

That trainings which open nothing are refunded is in test_sessions.py and test_faults.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.errors import OutOfSchemaError
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.plan import Plan
from veilwood_secure.roles.checkpoints import ModelStore
from veilwood_secure.roles.program import TrainingResult
from veilwood_secure.roles.server import Server
from veilwood_testing.parties import CAR, OWNERS, Threads
from veilwood_testing.secure_roles import (
    PUBLIC_FOREST_TASK,
    ROWS,
    TREE_PARAMETERS,
    Place,
    X,
    Y,
    assert_spent,
    place,
    train_until_failure,
)


class Crash(BaseException):
    """The end of a server, which nothing in it can catch."""


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path, PUBLIC_FOREST_TASK) as made:
        yield made


def wait_until(done: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not done():
        assert time.monotonic() < until
        time.sleep(0.01)


def test_a_training_that_fails_after_it_opened_its_sums_stays_spent(
    public: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(vault: ModelStore, name: str, model: Any) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(public.servers[1]._model_store, "save", full.__get__(public.servers[1]._model_store))
    train_until_failure(public, "was not trained")
    assert all(server._task_states["scale"].model is None for server in public.servers)
    assert_spent(public)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_server_that_crashed_after_opening_finds_the_training_spent_when_it_starts_again(
    public: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(task_state: Any, links: Any, engine: Any, outcome: TrainingResult, spend: Any) -> None:
        assert outcome.released["opened"].size
        raise Crash

    monkeypatch.setattr(public.servers[2], "_build_stored_model", crash)
    train_until_failure(public, "was not trained")
    monkeypatch.undo()
    public.stop()
    again = Server(public.config("server-2"))
    again._reload_config()
    public.servers[2] = again
    assert [entry.state for entry in again._ledger.entries()] == ["reserved"]
    assert_spent(public)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_hidden_model_that_can_be_asked_is_paid_for_after_a_crash(
    here: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash comes when all three have stored their parts, and before one of them has booked it.

    The others are through with the training by then: a thread that ends here still says goodbye, as no crash would.
    """

    crashed = threading.Event()

    def crash(number: int, state: str) -> None:
        wait_until(lambda: all(not here.servers[other]._task_states["scale"].is_training for other in (0, 2)))
        crashed.set()
        raise Crash

    monkeypatch.setattr(here.servers[1]._ledger, "settle", crash)
    for owner, rows in ROWS.items():
        here.owner(owner).contribute(X[rows], Y[rows])
    assert crashed.wait(60)
    here.settle()
    assert here.servers[1]._model_store.list_names() == ["scale"]
    monkeypatch.undo()
    here.stop()
    here.start()
    with here.user() as analyst:
        assert len(analyst.predict(X[:3])) == 3
    for server in here.servers:
        assert [(str(entry.state), float(entry.loss.epsilon or 0)) for entry in server._ledger.entries()] == [
            ("committed", 2.0)
        ]


def test_a_model_that_not_all_servers_stored_stays_spent_when_it_is_discarded(public: Place) -> None:
    for owner, rows in ROWS.items():
        public.owner(owner).contribute(X[rows], Y[rows])
    public.owner("north").wait(60)
    public.stop()
    (public.folder / "server-1" / "models" / "scale.share").unlink()
    public.start()
    public.owner("north").contribute(X[:250], Y[:250])  # the models of servers 0 and 2 are discarded
    assert all(server._task_states["scale"].model is None for server in public.servers)
    assert_spent(public)


def test_an_analyst_pays_for_what_the_servers_opened_before_they_failed() -> None:
    class Refused(Threads):
        def release(self, estimator: Any, plan: Plan) -> Ints:
            super().release(estimator, plan)
            raise OutOfSchemaError("a row of north is outside the schema.")

    ledger = MemoryLedger(1)
    forest = vw.RandomTreesClassifier(CAR.schema, **TREE_PARAMETERS, ledger=ledger)
    with pytest.raises(OutOfSchemaError) as caught:
        forest.fit(Refused(OWNERS))
    assert ledger.spent.epsilon == 1
    assert not any("Nothing was spent" in note for note in caught.value.__notes__)
