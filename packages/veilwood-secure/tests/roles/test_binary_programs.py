# SPDX-License-Identifier: Apache-2.0
"""Programs that train binary trees on shares."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.errors import VeilwoodError
from veilwood_secure.protocols import noise
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import ROWS, TASK, X, Y, place


def test_noise_is_drawn_as_it_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever halves a scale on the way from the plan to the draw is caught; the law itself is that of hidden trees."""
    program: Any = program_for_task(replace(TASK, protocol="binary-tree", settings={"max_depth": 2}))
    draw, drawn = noise.geometric, []

    def keep(engine: Any, scale: Fraction, shape: Any) -> Any:
        drawn.append((scale, shape))
        return draw(engine, scale, shape)

    monkeypatch.setattr(noise, "geometric", keep)
    engine = PlainEngine()
    rows = {
        o: {k: engine.load((a,)) for k, a in program.encode_rows(o, X[p], Y[p])[0].items()} for o, p in ROWS.items()
    }
    program.train(engine, rows)
    planned = [(step.mechanism.score_range / step.mechanism.epsilon, step.shape[::-1]) for step in program.plan.steps]
    assert drawn == planned
    assert sum(step.loss.epsilon for step in program.plan.steps) == 2


@pytest.mark.parametrize("n_trees", [1, 3])
def test_roles_train_and_ask_binary_trees(n_trees: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(noise, "geometric", lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))
    settings = {"max_depth": 3, "n_trees": n_trees}
    with place(tmp_path, replace(TASK, protocol="binary-tree", settings=settings)) as here:
        for owner, rows in ROWS.items():
            here.owner(owner).contribute(X[rows], Y[rows])
        with here.user() as analyst:
            assert analyst.wait(60).epsilon == 2
            assert (analyst.predict(X) == Y).mean() > 0.6


def test_rows_and_questions_that_are_not_one_hot_are_refused() -> None:
    program: Any = program_for_task(replace(TASK, protocol="binary-tree", settings={"max_depth": 1}))
    engine = PlainEngine()
    arrays, _ = program.encode_rows("north", X[:9], Y[:9])
    good = {key: engine.load((array,)) for key, array in arrays.items()}
    program.check_rows(engine, "north", good)
    for place_, value in ((0, 2), (0, 1), (1, -1)):
        bad = arrays["features"].astype(np.int64)
        bad[place_, 0] += value
        with pytest.raises(VeilwoodError, match="one-hot"):
            program.check_rows(engine, "north", {**good, "features": engine.load((bad,))})
        with pytest.raises(VeilwoodError, match="do not fit the schema"):
            program.check_queries(engine, "u", {"features": engine.load((bad,))})
