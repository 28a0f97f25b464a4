# SPDX-License-Identifier: Apache-2.0
"""Forests that ask question after question, fitted by several owners: what one table teaches, at the same price."""

from __future__ import annotations

import threading
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.arrays import Ints
from veilwood.errors import BudgetExceededError, MechanismError, PartyError
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.joint_noise import JointLaplace
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.selection import PermuteAndFlip
from veilwood.privacy.steps import Step, selection_step
from veilwood_audit.statistics import epsilon_lower_bound
from veilwood_secure.mpc.replicated import Links, ReplicatedEngine, run_in_threads
from veilwood_secure.mpc.shares import share
from veilwood_secure.protocols import joint_forest as joint
from veilwood_secure.protocols import noise
from veilwood_secure.protocols.joint_forest import RING, ServerDoor
from veilwood_secure.protocols.secret_array import SecretArray
from veilwood_secure.roles.config import Task
from veilwood_secure.roles.program import program_for_task
from veilwood_testing.errors import rejects
from veilwood_testing.mpc_engines import PlainEngine
from veilwood_testing.parties import CAR, OWNERS, Recorded, Tap, Threads, Whisper, fit_on_shares, fit_online

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

NUMBERS = vw.Schema.from_dict({
    "name": "numbers", "task": "regression", "target": "y",
    "columns": [
        {"name": "a", "kind": "numeric", "lower": 0, "upper": 1},
        {"name": "b", "kind": "categorical", "values": ["u", "v", "w"]},
        {"name": "y", "kind": "numeric", "lower": -2, "upper": 3},
    ],
})  # fmt: skip
TWO = vw.Schema.from_dict({
    **NUMBERS.to_dict(), "name": "two", "task": "classification",
    "columns": [*NUMBERS.to_dict()["columns"][:2], {"name": "y", "kind": "categorical", "values": ["no", "yes"]}],
})  # fmt: skip


def rows(n: int, *, classes: bool) -> tuple[pd.DataFrame, Any]:
    rng = np.random.default_rng(5)
    X = pd.DataFrame({"a": rng.random(n), "b": rng.choice(["u", "v", "w"], n)})
    y = np.sin(4 * X["a"]) + (X["b"] == "u") + rng.normal(0, 0.2, n)
    return X, np.where(y > 0.5, "yes", "no") if classes else y


def halves(X: Any, y: Any) -> list[tuple[Any, Any]]:
    cut = len(X) // 3
    return [(X[:cut], y[:cut]), (X[cut:], y[cut:])]


FITS: dict[str, tuple[Any, list[tuple[Any, Any]]]] = {
    "four classes": (vw.PrivateForestClassifier(CAR.schema, random_state=0), OWNERS),
    "two classes": (vw.PrivateForestClassifier(TWO, epsilon=2, random_state=0), halves(*rows(600, classes=True))),
    "numbers": (vw.PrivateForestRegressor(NUMBERS, epsilon=2, random_state=0), halves(*rows(900, classes=False))),
    "greedy": (
        vw.GreedyForestClassifier(CAR.schema, random_state=0, n_estimators=10, max_depth=2, trees="shared"),
        OWNERS,
    ),
    "medians": (
        vw.MedianForestClassifier(
            TWO, random_state=0, n_estimators=10, max_depth=3, variant="random-attribute", trees="shared"
        ),
        halves(*rows(600, classes=True)),
    ),
}

GINI = vw.GreedyForestClassifier(
    CAR.schema, random_state=0, n_estimators=1, max_depth=2, trees="shared", quality="gini"
)


@pytest.fixture
def no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both doors add nothing, and choose the first of the best."""
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, shape: np.zeros(shape, np.int64))
    monkeypatch.setattr(JointLaplace, "sample", lambda self, n: np.zeros((sum(self.sizes), n), np.int64))
    monkeypatch.setattr(
        PermuteAndFlip,
        "_select_columns",
        lambda self, gaps, admissible: np.where(admissible, -gaps, -(2**62)).argmax(axis=1),
    )
    for law in ("discrete_laplace", "geometric"):
        monkeypatch.setattr(noise, law, lambda engine, scale, shape: engine.constant(np.zeros(shape, np.int64)))


@pytest.mark.usefixtures("no_noise")
@pytest.mark.parametrize("name", FITS)
def test_owners_together_teach_what_one_table_teaches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Door, "joint_noise_variance", joint.DEALT_JOINT_VARIANCE)  # plans go by the noise of servers
    forest, owners = FITS[name]
    together = {key: array.copy() for key, array in forest.fit(Threads(owners)).model_.to_arrays().items()}
    X, y = pd.concat([x for x, _ in owners]), np.concatenate([np.asarray(y) for _, y in owners])
    alone = forest.fit(X, y).model_.to_arrays()
    assert set(alone) == set(together)
    for key, array in alone.items():
        assert np.array_equal(array, together[key]), key


def test_a_joint_fit_is_charged_everywhere_and_says_who_took_part() -> None:
    forest, owners = FITS["two classes"]
    ledger = MemoryLedger()
    fitted = forest.set_params(ledger=ledger).fit(Threads(owners))
    forest.set_params(ledger=None)
    assert fitted.privacy_.is_private
    assert (fitted.privacy_.epsilon, fitted.privacy_.delta) == (2.0, float(joint.ADAPTIVE_DELTA))
    assert any("no two of the three servers" in text for text in fitted.privacy_.assumptions)
    # The analyst and both owners use this ledger here: each of them charged its own door.
    assert [entry.loss.epsilon for entry in ledger.entries()] == [2, 2, 2]
    assert fitted.predict_proba(owners[0][0]).shape == (200, 2)


def test_an_owner_whose_budget_is_spent_sends_nothing() -> None:
    forest, owners = FITS["two classes"]
    forest = vw.PrivateForestClassifier(TWO, epsilon=2, random_state=0, ledger=MemoryLedger(1))
    own, other = zip(*[Whisper.pair() for _ in range(3)], strict=True)
    with pytest.raises(BudgetExceededError):
        joint.run_owner(forest, joint.joint_plan(forest, "sampled"), *owners[0], own)
    assert all(voice._mine.empty() for voice in other)


# -- the door of the servers -----------------------------------------------------------------------------------------


def chosen(scores: list[int], epsilon: Fraction, times: int) -> Ints:
    """Choose many times between the same scores."""
    step = selection_step("s", (times, len(scores)), Loss.pure(epsilon), Neighbours(), score_range=1)
    plan = vw.PrivateForestClassifier(TWO, random_state=0).plan()
    engine = PlainEngine(RING)
    with door_of(step, engine) as door:
        assert plan.loss.epsilon == 1
        return door.select(step, SecretArray(engine, engine.constant(np.tile(scores, (times, 1)))))


def door_of(step: Step, engine: Any) -> ServerDoor:
    forest = vw.PrivateForestClassifier(TWO, epsilon=10, random_state=0)
    plan = replace(joint.joint_plan(forest, "sampled"), steps=(step,))
    return ServerDoor(plan, engine, "sampled")


def test_choices_keep_their_epsilon_and_halved_noise_is_caught() -> None:
    times = 40_000
    with entropy.seeded_for_tests(7):
        one, other = chosen([1, 0, 0], Fraction(1), times), chosen([0, 0, 0], Fraction(1), times)
        lower = epsilon_lower_bound(int((one == 0).sum()), times, int((other == 0).sum()), times)
        assert 0.2 < lower <= 1
        far = chosen([0, 3, 3], Fraction(1), times), chosen([1, 3, 3], Fraction(1), times)
        assert epsilon_lower_bound(int((far[1] == 0).sum()), times, int((far[0] == 0).sum()), times) <= 1
        twice = chosen([0, 3, 3], Fraction(2), times), chosen([1, 3, 3], Fraction(2), times)
        assert epsilon_lower_bound(int((twice[1] == 0).sum()), times, int((twice[0] == 0).sum()), times) > 1.05


def test_what_may_not_be_chosen_is_not() -> None:
    step = selection_step("s", (2, 3), Loss.pure(Fraction(1)), Neighbours(), score_range=1)
    engine = PlainEngine(RING)
    with door_of(step, engine) as door:
        allowed = np.array([[False, True, False], [True, False, False]])
        scores = SecretArray(engine, engine.constant(np.array([[2**40, -(2**40), 0], [-5, 2**40, 9]])))
        assert door.select(step, scores, allowed).tolist() == [1, 0]


def test_a_door_refuses_more_draws_than_its_delta_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    step = selection_step("s", (4, 3), Loss.pure(Fraction(1)), Neighbours(), score_range=1)
    engine = PlainEngine(RING)
    monkeypatch.setattr(noise, "total_variation", lambda scale, count: Fraction(count, 10**17))
    with door_of(step, engine) as door, rejects(MechanismError, raised_in="sampling_delta"):
        door.select(step, SecretArray(engine, engine.constant(np.zeros((4, 3), np.int64))))


# -- owners that do not follow the protocol --------------------------------------------------------------------------


def larger_of_two(others: list[int], wrong: list[int], shift: int = 0) -> int:
    """Open the larger of two sums, to which a wrong owner adds; ``shift`` makes its shares disagree."""
    voices = [[Whisper.pair() for _ in range(3)] for _ in range(2)]
    for sums, voice in zip((others, wrong), voices, strict=True):
        joint.ServerChannels([own for own, _ in voice]).send_share(np.array(sums))
    if shift:
        first = voices[1][0][1]
        first._mine.put((np.frombuffer(first.receive(), "<u8") + np.uint64(shift)).tobytes())

    def served(links: Links) -> int:
        engine = ReplicatedEngine(links, ring=RING)
        present = joint.OnlineOwners(
            engine, {str(i): voice[links.party][1] for i, voice in enumerate(voices)}, FITS["numbers"][0]
        )
        found = SecretArray(engine, present.collect_sums((2,))).max()
        return int(engine.open(found.shared.reshape(1))[0])

    return run_in_threads(served)[0]


def test_numbers_that_would_wrap_around_are_refused() -> None:
    """One row more in the first sum would move the larger one by 2^63: far beyond any noise."""
    assert larger_of_two([5, 7], [3, 4]) == 11
    assert larger_of_two([5, 7], [-(2**50), 2**50]) == 2**50 + 7
    for wrong in ([2**62, 3 - 2**62], [2**63 - 6, 0], [0, -(2**63)], [2**61, 0]):
        with rejects(PartyError, party=None, raised_in="OnlineOwners.collect_sums"):
            larger_of_two([5, 7], wrong)


def test_shares_that_disagree_are_refused() -> None:
    with rejects(PartyError, party=None, raised_in="OnlineOwners.collect_sums"):
        larger_of_two([5, 7], [3, 4], shift=1)


# -- secret numbers --------------------------------------------------------------------------------------------------


# -- what one server sees --------------------------------------------------------------------------------------------


def run_once(forest: Any, tables: list[tuple[Any, Any]], script: list[Ints] | None) -> tuple[list[Ints], Tap]:
    """Fit once; return what was opened, one after the other, and what server 1 was sent by the others."""
    plan = joint.joint_plan(forest, "sampled")
    voices = [[Whisper.pair() for _ in range(3)] for _ in tables]
    owners = [
        threading.Thread(target=joint.run_owner, args=(forest, plan, *table, [own for own, _ in voice]), daemon=True)
        for table, voice in zip(tables, voices, strict=True)
    ]
    for owner in owners:
        owner.start()
    taps: dict[int, Tap] = {}

    def served(links: Links) -> list[Ints]:
        taps[links.party] = Tap(links)
        engine = Recorded(taps[links.party], ring=RING)
        engine.script = None if script is None else iter(script)
        present = joint.OnlineOwners(engine, {str(i): voice[links.party][1] for i, voice in enumerate(voices)}, forest)
        method, design = forest._make_method(), joint.joint_design(forest)
        with ServerDoor(plan, engine, "sampled", present.send_opened) as door:
            method.measure_rows(design, joint.SharedSums.from_collector(engine, present.collect_sums), door, 1)
        return door.opened

    opened = run_in_threads(served)[1]
    for owner in owners:
        owner.join(60)
    return opened, taps[1]


@pytest.mark.parametrize("name", ["two classes", "numbers", "gini"])
def test_what_a_server_is_sent_has_one_shape_and_looks_uniform(name: str) -> None:
    """Two tables, one of which has half the rows: the same questions bring the same messages, of fair coins."""
    forest, tables = FITS.get(name, (GINI, OWNERS))
    script, first = run_once(forest, tables, None)
    fewer = [(X[: len(X) // 2], y[: len(X) // 2]) for X, y in tables]
    for given in (tables, fewer):
        _, again = run_once(forest, given, script)
        assert again.shape == first.shape
        bits = np.unpackbits(np.frombuffer(b"".join(again.shares), np.uint8))
        spread = abs(bits.mean() - 0.5) * 2 * np.sqrt(bits.size)
        assert spread < 5.5
    opened = [length // 8 for sender, kind, length in first.shape if (sender, kind) == (0, "opened")]  # 2: digests
    assert opened == [part.size for part in script]


SHARED: dict[str, Any] = {
    "rows": {"north": None, "south": None},
    "columns": {"north": ["a", "y"], "south": ["b"]},
}


@pytest.mark.parametrize("held", SHARED)
def test_on_shares_a_server_sees_what_is_opened_and_uniform_words(held: str) -> None:
    """Rows are replaced by others: the same messages, of fair coins; nothing is opened but what is released."""
    task = Task("t", TWO.to_dict(), "2", SHARED[held], ("user",), "forest-on-shares")
    program = program_for_task(task)
    X, y = rows(200, classes=True)
    other = X.assign(a=1 - X["a"], b="u"), np.where(y == "no", "yes", "no")
    script: list[Ints] | None = None
    shapes = []
    for table, target in ((X, y), (X, y), other):
        if task.is_vertical:
            tables = {"north": (table[["a"]], target), "south": (table[["b"]], None)}
        else:
            tables = {"north": (table[:90], target[:90]), "south": (table[90:], target[90:])}
        given = {owner: program.encode_rows(owner, *own, pad_to=256)[0] for owner, own in tables.items()}
        shared = {owner: {key: share(a, RING) for key, a in arrays.items()} for owner, arrays in given.items()}
        taps: dict[int, Tap] = {}

        def served(links: Links, shared: Any = shared, taps: Any = taps, script: Any = script) -> Ints:
            taps[links.party] = Tap(links)
            engine = Recorded(taps[links.party], ring=RING)
            engine.script = None if script is None else iter(script)
            loaded = {o: {k: engine.load(p[links.party]) for k, p in own.items()} for o, own in shared.items()}
            for owner in loaded:
                program.check_rows(engine, owner, loaded[owner])
            return program.train(engine, loaded).released["opened"]

        opened = run_in_threads(served)[1]
        sizes = [length // 8 for sender, kind, length in taps[1].shape if (sender, kind) == (0, "opened")]
        assert sum(sizes) == len(opened)
        script = script or np.split(opened, np.cumsum(sizes)[:-1])
        shapes.append(taps[1].shape)
        bits = np.unpackbits(np.frombuffer(b"".join(taps[1].shares), np.uint8))
        assert abs(bits.mean() - 0.5) * 2 * np.sqrt(bits.size) < 5.5
    assert shapes[0] == shapes[1] == shapes[2]


@pytest.mark.slow
def test_on_shares_the_model_is_as_good_as_of_one_table() -> None:
    """With hardly any noise, on rows and on columns, two classes, four, and numbers."""
    X, y = rows(600, classes=False)
    cases: list[tuple[Any, Any, Any, str]] = [
        (TWO, *rows(600, classes=True), "PrivateForestClassifier"),
        (NUMBERS, X, y, "PrivateForestRegressor"),
        (CAR.schema, CAR.X, CAR.y, "PrivateForestClassifier"),
    ]
    for schema, table, target, name in cases:
        first = list(schema.feature_names[:1])
        rest = [*schema.feature_names[1:], schema.target.name]
        task = Task(
            "t", schema.to_dict(), "8", {"n": first, "s": rest}, ("user",), "forest-on-shares", {"estimator": name}
        )
        tables = {"n": (table[first], None), "s": (table[rest[:-1]], target)}
        together = fit_on_shares(task, tables).score(table, target)
        alone = np.mean([getattr(vw, name)(schema, epsilon=8, random_state=0).fit(table, target).score(table, target)
                         for _ in range(3)])  # fmt: skip
        assert together > alone - 0.15, (name, together, alone)  # without fine cells, which shares do not have


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [1, 2])
def test_joint_fits_of_a_small_table_are_as_accurate_as_pooled_ones(epsilon: int) -> None:
    """Owners online and rows on shares, over 60 splits of Car: within two points; the standard error is below 0.5."""
    scores: dict[str, list[float]] = {"pooled": [], "online": [], "shares": []}
    for seed in range(60):
        order = np.random.default_rng(seed).permutation(len(CAR.X))
        test, train = order[:345], order[345:]
        X, y = CAR.X.iloc[train], CAR.y.iloc[train]
        forest = vw.PrivateForestClassifier(CAR.schema, epsilon=epsilon, random_state=seed)
        settings = {"parameters": {"random_state": seed}}
        task = Task(
            "t", CAR.schema.to_dict(), str(epsilon), {"n": None, "s": None}, ("u",), "forest-on-shares", settings
        )
        ways = {
            "pooled": lambda forest=forest, X=X, y=y: forest.fit(X, y),
            "online": lambda forest=forest, X=X, y=y: fit_online(forest, X, y),
            "shares": lambda t=task, X=X, y=y: fit_on_shares(t, {"n": (X[:500], y[:500]), "s": (X[500:], y[500:])}),
        }
        for way, fit in ways.items():
            scores[way].append(fit().score(CAR.X.iloc[test], CAR.y.iloc[test]))  # type: ignore[no-untyped-call]
    means = {way: float(np.mean(found)) for way, found in scores.items()}
    assert min(means["online"], means["shares"]) > means["pooled"] - 0.02, means


def test_cells_that_the_schema_does_not_have_are_refused_on_shares() -> None:
    task = Task("t", TWO.to_dict(), "2", SHARED["rows"], ("user",), "forest-on-shares")
    program, engine = program_for_task(task), PlainEngine(RING)
    arrays, _ = program.encode_rows("north", *rows(100, classes=True))
    program.check_rows(engine, "north", {key: engine.load((array,)) for key, array in arrays.items()})
    arrays["cells"][-2:, 0] |= np.uint64(1)  # b is 3, of three values
    with rejects(PartyError, raised_in="Program.check_rows"):
        program.check_rows(engine, "north", {key: engine.load((array,)) for key, array in arrays.items()})
