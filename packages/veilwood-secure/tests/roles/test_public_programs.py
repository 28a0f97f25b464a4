# SPDX-License-Identifier: Apache-2.0
"""The paper's protocols by roles over TLS: equal to their plain twins, with the planned noise, or NOT PRIVATE."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding, class_labels
from veilwood.errors import MechanismError, ParameterError, VeilwoodError
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import ExponentialMechanism, NoisyMax
from veilwood_papers.mpc import plain as plaintext
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.public_trees import PlainTree
from veilwood_secure.protocols.records import Domain
from veilwood_secure.roles import hidden_programs
from veilwood_secure.roles.config import set_up_roles
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.secure_roles import ROWS, SCHEMA, TASK, Place, X, Y, place

DOMAIN = Domain.from_schema(SCHEMA)
PROTOCOLS: dict[str, dict[str, Any]] = {
    "mpc-id3": {},
    "cdp-id3": {"leaves": "laplace"},
    "odp-id3": {"leaves": "laplace"},
    "extra-trees": {"n_trees": 3},
}


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place(tmp_path_factory.mktemp("papers")) as made:
        yield made


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    for law in ("discrete_laplace", "geometric"):
        monkeypatch.setattr(noise, law, lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))


def task_of(protocol: str, **settings: Any) -> Any:
    chosen = {"max_depth": 2, **PROTOCOLS[protocol], **settings}
    return replace(TASK, name=f"{protocol}-task", protocol=protocol, settings=chosen)


def control() -> Any:
    """The exact tree, in the open."""
    encoding = Encoding(SCHEMA, "bins")
    codes, target = np.asarray(encoding.encode(X), np.int64), np.asarray(encoding.encode_target(Y), np.int64)
    return class_labels(SCHEMA)[exact_tree(codes, target).predict(codes)]


def exact_tree(codes: Ints, target: Ints) -> PlainTree:
    return plaintext.grow_tree(
        codes, target, sizes=DOMAIN.sizes, n_classes=DOMAIN.n_classes, depth=2, split=plaintext.first_largest,
        label=plaintext.first_largest,
    )  # fmt: skip


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_roles_give_what_the_twin_gives(here: Place, protocol: str) -> None:
    task = task_of(protocol)
    set_up_roles(here.folder, task)
    for owner, rows in ROWS.items():
        here.owner(owner, task.name).contribute(X[rows], Y[rows])
    with here.user("analyst", task.name) as analyst:
        statement = analyst.wait(60)
        answers = analyst.predict(X)
    private = protocol in ("cdp-id3", "extra-trees")
    assert statement.is_private == private
    if private:
        assert statement.epsilon == 2
    else:
        assert statement.epsilon is None
        assert statement.reason
        assert "noise" in statement.reason
    if protocol == "extra-trees":
        assert (answers == Y).mean() > 0.5
    else:
        assert (answers == control()).all()


def test_roles_select_leaves_by_the_exponential_mechanism(here: Place) -> None:
    """With an epsilon of 200 a class that leads by one row is missed with probability exp(-100): no draw is mocked."""
    task = replace(task_of("odp-id3", leaves="exponential"), name="exponential-task", epsilon="200")
    set_up_roles(here.folder, task)
    for owner, rows in ROWS.items():
        here.owner(owner, task.name).contribute(X[rows], Y[rows])
    with here.user("analyst", task.name) as analyst:
        certificate = analyst.wait(60)
        answers = analyst.predict(X)
    assert not certificate.is_private
    assert program_for_task(task).plan.notes["leaves"] != program_for_task(task_of("odp-id3")).plan.notes["leaves"]
    encoding = Encoding(SCHEMA, "bins")
    codes, target = np.asarray(encoding.encode(X), np.int64), np.asarray(encoding.encode_target(Y), np.int64)
    tree = exact_tree(codes, target)
    leaves = tree.leaf_indices(codes)
    counts = np.zeros((len(tree.leaves), DOMAIN.n_classes), np.int64)
    np.add.at(counts, (leaves, target), 1)
    ordered = np.sort(counts, axis=1)
    untied = (ordered[:, -1] > ordered[:, -2])[leaves]
    assert untied.mean() > 0.5
    assert (answers == class_labels(SCHEMA)[tree.predict(codes)])[untied].all()


def test_programs_refuse_leaf_mechanisms_that_they_do_not_have() -> None:
    with pytest.raises(ParameterError) as refused:
        program_for_task(task_of("odp-id3", leaves="noisy-max"))
    assert (refused.value.name, refused.value.value) == ("leaves", "noisy-max")
    with pytest.raises(MechanismError):  # its weights would need 2 * 10^10 comparisons
        program_for_task(replace(task_of("odp-id3", leaves="exponential"), epsilon="1e-7"))


@pytest.mark.parametrize("leaves", ["laplace", "exponential", "noisy-max"])
@pytest.mark.parametrize("splits", ["noisy-max", "exponential"])
def test_noise_is_drawn_as_it_is_planned(splits: str, leaves: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever halves a scale on the way from the plan to the draw is caught."""
    drawn: list[Fraction] = []
    for law in ("geometric", "discrete_laplace"):
        original = getattr(noise, law)

        def keep(engine: Any, scale: Fraction, shape: Any, original: Any = original) -> Any:
            drawn.append(scale)
            return original(engine, scale, shape)

        monkeypatch.setattr(noise, law, keep)
    weigh = noise.cumulative_weights

    def with_weights(engine: Any, scores: Any, epsilon: Fraction, allowed: Any) -> Any:
        drawn.append(2 / epsilon)  # weights are exp(epsilon score / 2)
        return weigh(engine, scores, epsilon, allowed)

    monkeypatch.setattr(noise, "cumulative_weights", with_weights)
    program = program_for_task(task_of("cdp-id3", splits=splits, leaves=leaves))
    engine = PlainEngine(program.ring)
    rows = {
        o: {k: engine.load((a,)) for k, a in program.encode_rows(o, X[p], Y[p])[0].items()} for o, p in ROWS.items()
    }
    opened = program.train(engine, rows).released["trees"]
    planned = []
    for step in program.plan.steps:
        match step.mechanism:
            case DiscreteLaplace() as added:
                planned.append(added.scale)
            case NoisyMax() | ExponentialMechanism() as choice:
                planned.append(choice.score_range / choice.epsilon)
    assert drawn == planned
    assert sum(step.loss.epsilon or 0 for step in program.plan.steps) == 2
    assert len(program.read_model(opened).trees) == 1  # type: ignore[attr-defined]
    with pytest.raises(VeilwoodError, match="trees of the task"):
        program.read_model(opened[:-1])  # type: ignore[attr-defined]


def test_a_ledger_with_a_budget_refuses_what_is_not_private(tmp_path: Path) -> None:
    from veilwood.privacy.ledger_stores import SQLiteLedger

    with place(tmp_path, task_of("mpc-id3")) as room:
        room.stop()
        for party in range(3):
            (tmp_path / f"server-{party}" / "ledger.db").unlink(missing_ok=True)
            SQLiteLedger(tmp_path / f"server-{party}" / "ledger.db", epsilon=3)
        room.start()
        for owner, rows in ROWS.items():
            room.owner(owner).contribute(X[rows], Y[rows])
        with pytest.raises(VeilwoodError, match="NOT PRIVATE"):
            room.owner("north").wait(60)


def test_private_votes_choose_their_trees_by_how_often_answers_are_right() -> None:
    plan = program_for_task(replace(TASK, protocol="private-votes", settings={"max_depth": 1})).plan
    lines = [note for note in plan.notes if "100%" in note]
    assert lines
    assert plan.notes[lines[0]] in ("95%", "96%")
    two, four = (hidden_programs.choose_n_trees(Fraction(1, 4), 2, k) for k in (2, 4))
    assert two < four < 60
    for k, trees in ((2, two), (4, four)):
        assert hidden_programs.vote_accuracy(trees, 1.0, Fraction(1, 4), 2, k) >= 0.95
        assert hidden_programs.vote_accuracy(trees - 1, 1.0, Fraction(1, 4), 2, k) < 0.95
