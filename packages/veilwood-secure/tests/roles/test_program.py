# SPDX-License-Identifier: Apache-2.0
"""What a program says about itself, and what it costs when it fails."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from veilwood.arrays import Ints
from veilwood.errors import UseError
from veilwood_secure.mpc.engine import Shared
from veilwood_secure.roles import program as program_module
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.hidden_programs import HiddenForest
from veilwood_secure.roles.program import PROTOCOLS, TrainingResult, program_for_task
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import (
    PUBLIC_FOREST_TASK,
    ROWS,
    TASK,
    Place,
    X,
    Y,
    assert_spent,
    place,
    train_until_failure,
)


@pytest.fixture
def public(tmp_path: Path) -> Iterator[Place]:
    with place(tmp_path, PUBLIC_FOREST_TASK) as made:
        yield made


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_training_that_fails_while_it_opens_stays_spent(
    public: Place, failing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server has its result, and says that it failed: the others cannot know what it has seen."""
    program: Any = public.servers[failing]._find_task("scale", PUBLIC_FOREST_TASK.fingerprint()).program
    train = program.train

    def opened_and_lost(engine: Any, rows: Any, present: Any) -> TrainingResult:
        train(engine, rows, present)
        raise ArithmeticError("lost")

    monkeypatch.setattr(program, "train", opened_and_lost)
    train_until_failure(public, "was not trained")
    assert_spent(public)


class Open(PlainEngine):
    """An engine that keeps what is opened."""

    def __init__(self, ring: Any) -> None:
        super().__init__(ring)
        self.opened: list[Ints] = []

    def open(self, x: Shared) -> Ints:
        self.opened.append(super().open(x))
        return self.opened[-1]


@pytest.mark.parametrize("protocol", [*PROTOCOLS, "mpc-id3", "odp-id3"])
def test_a_protocol_says_whether_its_training_opens_anything(protocol: str) -> None:
    """A refund depends on it. The key by which rows get their trees is drawn without them, and may be opened."""
    settings = {} if protocol in ("public-forest", "forest-on-shares") else {"n_trees": 2}
    task: Task = (
        PUBLIC_FOREST_TASK if protocol == "public-forest" else replace(TASK, protocol=protocol, settings=settings)
    )
    program = program_for_task(task)
    engine = Open(program.ring)
    rows = {
        owner: {key: engine.load((array,)) for key, array in program.encode_rows(owner, X[part], Y[part])[0].items()}
        for owner, part in ROWS.items()
    }
    program.train(engine, rows)
    key = (8,)
    assert any(opened.shape != key for opened in engine.opened) == program.opens_values


def test_a_program_of_another_package_cannot_claim_a_guarantee(monkeypatch: pytest.MonkeyPatch) -> None:
    class Foreign:
        def load(self) -> Any:
            return HiddenForest

    monkeypatch.setattr(program_module, "entry_points", lambda group, name: [Foreign()])
    with pytest.raises(UseError, match="must declare that it is not private"):
        program_for_task(replace(TASK, protocol="better-trees"))
