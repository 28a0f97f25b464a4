# SPDX-License-Identifier: Apache-2.0
"""When a private answer is sent and becomes visible: at a time fixed before rows are read and noise is drawn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("fastapi")

from veilwood.privacy.noise import DiscreteLaplace
from veilwood_service import private_queries, store
from veilwood_service.settings import Limits
from veilwood_testing.running_service import CAR, Running, serving

PREDICTOR: dict[str, Any] = {
    "estimator": "MatrixForestPredictor",
    "epsilon": 0.05,
    "parameters": {"n_estimators": 2, "max_depth": 1, "mechanism": "laplace"},
}
SECONDS_PER_UNIT = 1e-4  # of noise: a sampler that counts trials, as in published attacks
SCHEDULE = 0.5


class Clock:
    """Clock of the service, which passes only while noise is drawn and while an answer is held back."""

    def __init__(self) -> None:
        self.now, self.during_sleep = 1000.0, list[Any]()
        self.look: Any = lambda: None

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.during_sleep.append(self.look())
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock that the attacker reads exactly, and a sampler whose time is its noise."""
    clock, perturb = Clock(), DiscreteLaplace.perturb

    def timed(self: DiscreteLaplace, exact: Any) -> Any:
        noisy = perturb(self, exact)
        clock.now += SECONDS_PER_UNIT * float(np.abs(noisy - exact).sum())
        return noisy

    monkeypatch.setattr(private_queries, "time", clock)
    monkeypatch.setattr(DiscreteLaplace, "perturb", timed)
    return clock


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with serving(tmp_path, limits=Limits(answer_milliseconds=int(1000 * SCHEDULE))) as found:
        found.add_cars(epsilon=1000)
        yield found


def response_times(running: Running, clock: Clock, n_batches: int) -> tuple[list[float], str]:
    model = running.run(running.signed(**PREDICTOR))["id"]
    rows, times = CAR.X.to_dict("records"), list[float]()
    running.post("analyst", f"/v1/models/{model}/quote", {"rows": rows[:1]})  # counts the rows
    for number in range(n_batches):
        start = clock.now
        running.post("analyst", f"/v1/models/{model}/answers", {"rows": rows[number : number + 1]})
        times.append(round(clock.now - start, 9))
    return times, model


def test_the_attack_sees_noise_in_the_time_of_an_answer_that_is_not_held_back(
    running: Running, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the schedule each time is a sum of absolute noise."""
    monkeypatch.setattr(private_queries, "_hold_back", lambda _: nullcontext())
    times, _ = response_times(running, clock, 12)
    assert len(set(times)) > 9


def test_the_time_of_an_answer_is_the_schedule_whatever_the_noise(running: Running, clock: Clock) -> None:
    times, model = response_times(running, clock, 12)
    assert set(times) == {SCHEDULE}
    start = clock.now
    repeated = {"rows": CAR.X[:1].to_dict("records")}
    running.post("analyst", f"/v1/models/{model}/answers", repeated)
    assert clock.now == start, "what was answered before is sent at once"


def test_nothing_of_an_answer_is_visible_before_its_time(running: Running, clock: Clock) -> None:
    """Another connection could ask for the same batch, or read the ledger, to see when an answer is computed."""

    def look() -> Any:
        stored = running.service.database.find_all(store.answers)
        return [row["labels"] for row in stored][-1:], [entry["state"] for entry in running.ledger()["entries"]][:1]

    model = running.run(running.signed(**PREDICTOR))["id"]
    batch = {"rows": CAR.X[:1].to_dict("records")}
    running.post("analyst", f"/v1/models/{model}/quote", batch)
    clock.look = look
    running.post("analyst", f"/v1/models/{model}/answers", batch)
    assert clock.during_sleep[-1] == ([None], ["reserved"])
    assert look()[1] == ["committed"]
    assert look()[0] != [None]


def test_a_long_computation_tells_only_its_doubling(clock: Clock) -> None:
    for seconds, expected in [(0.1, 0.5), (0.49, 0.5), (0.51, 1.0), (0.99, 1.0), (1.7, 2.0), (3.9, 4.0)]:
        start = clock.now
        with private_queries._hold_back(SCHEDULE):
            clock.now += seconds
        assert clock.now - start == pytest.approx(expected)


def test_a_failure_after_the_charge_waits_for_its_time_too(
    running: Running, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = running.run(running.signed(**PREDICTOR))["id"]
    batch = {"rows": CAR.X[:1].to_dict("records")}
    running.post("analyst", f"/v1/models/{model}/quote", batch)
    monkeypatch.setattr(DiscreteLaplace, "perturb", lambda *_: (_ for _ in ()).throw(ArithmeticError("7")))
    start = clock.now
    assert running.ask("analyst", "POST", f"/v1/models/{model}/answers", json=batch).status_code == 500
    assert clock.now - start == pytest.approx(SCHEDULE)
