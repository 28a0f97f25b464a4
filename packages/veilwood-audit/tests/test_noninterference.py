# SPDX-License-Identifier: Apache-2.0
"""Traces and leaks: what is recorded, forced and held fixed; what a fitted forest must not hold."""

from __future__ import annotations

import functools
import json
import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood_audit as audit
from veilwood import RandomTreesClassifier
from veilwood.arrays import Ints
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.loss import Loss
from veilwood.privacy.neighbours import Neighbours, Rows
from veilwood.privacy.steps import counting_step
from veilwood.trees.counting import Assignment, leaf_totals
from veilwood_audit.noninterference import find_interference, find_leaks, force_outcomes, record_trace, result_or_error
from veilwood_testing.neighbour_pairs import (
    Row,
    pair_of,
)  # fmt: skip
from veilwood_testing.small_forests import (
    RANDOM_TREES,
    TASKS,
    TWO_COLUMN_SCHEMAS,
    fit_two_columns,
    patch_estimators,
    two_column_table,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


def test_exact_inputs_of_neighbours_differ_and_are_recorded(tmp_path: Path) -> None:
    moved = 0
    for number in range(20):
        pair = pair_of(number)
        one, other = (record_trace(pair.run, rows, tmp_path / "run", pair.draw) for rows in (pair.one, pair.other))
        assert isinstance(one.visible["returned"], dict), one.visible["returned"][-1]
        assert one.events
        exact = zip(one.events, other.events, strict=True)
        moved += any(not np.array_equal(own.exact, yours.exact) for own, yours in exact)  # type: ignore[arg-type]
    assert moved > 15


def test_an_exit_code_that_depends_on_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(rows: list[Row], folder: Path) -> dict[str, int]:
        return {"code": 2 if len(rows) > 3 else 0}

    assert find_interference(program, pair_of(0).queries, pair_of(0).queries[:3]) == ["seen['returned']['code']"]


def test_a_cap_of_all_passages_is_held() -> None:
    """Each passage may be within its plan and all of them beyond what was promised."""
    step = counting_step("counts", (1,), Loss.pure(Fraction(1)), Neighbours(unit=Rows(1)), l1=1, squared_l2=1)

    def program(count: int, folder: Path) -> None:
        assert step.mechanism is not None
        for _ in range(2):
            with vw_door(step) as door:
                door.release_counts(step, np.array([count]))

    assert find_interference(program, 0, 1) == []
    assert find_interference(program, 0, 1, allowed=Fraction(2)) == []
    assert find_interference(program, 0, 1, allowed=Fraction(1)) == ["cost of all: 2, promised 1"]


def vw_door(step: Any) -> Door:
    from veilwood.privacy.ledger_stores import MemoryLedger
    from veilwood.privacy.plan import Layout, Plan

    plan = Plan("Audit", step.loss, Neighbours(), (step,), "a count", "audit", "0", Layout(leaves=1), 1.0)
    return Door(plan, MemoryLedger())


def test_forced_outcomes_follow_from_the_public_step_alone() -> None:
    step = counting_step("counts", (4,), Loss.pure(Fraction(1)), Neighbours(), l1=1, squared_l2=1)
    seen = []
    for exact, draw in ((0, 0), (500, 0), (0, 1)):
        with force_outcomes(draw), vw_door(step) as door:
            seen.append(door.release_counts(step, np.full(4, exact)).tolist())
    assert seen[0] == seen[1] != seen[2]


def test_what_an_action_ends_with_is_told_whole() -> None:
    story = result_or_error(lambda: json.loads("{"))
    assert story[0] == "JSONDecodeError"
    assert "Expecting property name" in story[-1]


# -- 4. what must not depend on the data ------------------------------------------------------------------


RELEASED = ("leaf_counts_", "measurements_", "model_")


def public_parts(forest: Any) -> dict[str, Any]:
    """Everything about a fit but the released numbers."""
    model = {name: value for name, value in vars(forest.model_).items() if name not in ("leaf_counts", "leaf_values")}
    return {name: value for name, value in vars(forest).items() if name not in RELEASED} | model


@pytest.mark.parametrize("params", [{}, {"trees": "disjoint"}, {"delta": 1e-6}, {"adjacency": "replace-one"}], ids=str)
@pytest.mark.parametrize("task", TASKS)
def test_everything_but_the_released_numbers_is_independent_of_the_data(task: str, params: dict[str, Any]) -> None:
    X, y = two_column_table(task, 300)
    fits = []
    for rows in (slice(0, 299), slice(0, 300), slice(0, 1)):
        with entropy.seeded_for_tests(16):
            fits.append(public_parts(fit_two_columns(task, X[rows], y[rows], **params)))
    assert audit.diff_values(fits[0], fits[1]) == []
    assert audit.diff_values(fits[0], fits[2]) == []


def test_the_comparison_catches_a_depth_chosen_by_n() -> None:
    class DepthByN(RandomTreesClassifier):
        def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
            self.max_depth = len(X).bit_length()
            return super().fit(X, y, **unsupported)

    X, y = two_column_table("classification", 256)
    fits = []
    for rows in (255, 256):
        with entropy.seeded_for_tests(16):
            fits.append(
                DepthByN(TWO_COLUMN_SCHEMAS["classification"], n_estimators=2, random_state=0).fit(X[:rows], y[:rows])
            )
    assert audit.diff_values(public_parts(fits[0]), public_parts(fits[1])) != []


def test_records_keep_their_tree_whatever_the_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assigned: list[NDArray[Any]] = []
    sound = Assignment.trees_of_rows

    def spy(self: Assignment, partition: int, first_row: int, n_rows: int) -> NDArray[Any]:
        assigned.append(sound(self, partition, first_row, n_rows))
        return assigned[-1]

    monkeypatch.setattr(Assignment, "trees_of_rows", spy)
    X, y = two_column_table("classification", 300)
    for rows in (299, 300):
        with entropy.seeded_for_tests(17):
            fit_two_columns("classification", X[:rows], y[:rows], trees="disjoint")
    changed = X.copy()
    changed[7] = 0.99
    with entropy.seeded_for_tests(17):
        fit_two_columns("classification", changed, y, trees="disjoint")
    shorter, longer, replaced = assigned
    assert (shorter == longer[:299]).all()
    assert (longer == replaced).all()


def test_the_trees_of_records_are_independent_uniform_and_keyed() -> None:
    trees = Assignment(b"a" * 32, 7).trees_of_rows(0, 0, 70_000)
    assert np.abs(np.bincount(trees, minlength=7) - 10_000).max() < 600
    pairs = np.bincount(trees[:-1] * 7 + trees[1:], minlength=49)
    assert np.abs(pairs - 70_000 / 49).max() < 250
    for other in (
        Assignment(b"b" * 32, 7).trees_of_rows(0, 0, 70_000),
        Assignment(b"a" * 32, 7).trees_of_rows(1, 0, 70_000),
    ):
        assert abs((trees == other).mean() - 1 / 7) < 0.01
    parts = [Assignment(b"a" * 32, 7).trees_of_rows(0, first, 1000) for first in range(0, 70_000, 1000)]
    assert (np.concatenate(parts) == trees).all()


@pytest.mark.parametrize("params", [{}, {"trees": "disjoint"}, {"delta": 1e-6}], ids=str)
def test_the_same_random_state_gives_the_same_structure_and_other_noise(params: dict[str, Any]) -> None:
    X, y = two_column_table("classification", 300)
    one, other = (fit_two_columns("classification", X, y, **params) for _ in range(2))
    assert audit.diff_values(one.forest_, other.forest_) == []
    assert (one.leaf_counts_ != other.leaf_counts_).any()
    assert one.privacy_.is_private


# -- 5. leaks ---------------------------------------------------------------------------------------------

N_ROWS = 1613  # a number that does not turn up by chance


NOISE_SEED = 90_210_481


def fit_and_secrets(kind: Any, task: str, trees: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, dict[str, Any]]:
    """Fit, and collect what must not be found in the result."""
    X, y = two_column_table(task, N_ROWS)
    keys: list[bytes] = []
    exact: list[Ints] = []

    def spy_key() -> bytes:
        keys.append(entropy.secret_key())
        return keys[-1]

    def spy_totals(*args: Any, **kwargs: Any) -> Ints:
        exact.append(leaf_totals(*args, **kwargs))
        return exact[-1]

    patch_estimators(monkeypatch, "secret_key", spy_key)
    patch_estimators(monkeypatch, "leaf_totals", spy_totals)
    with entropy.seeded_for_tests(NOISE_SEED):
        forest = kind(TWO_COLUMN_SCHEMAS[task], n_estimators=3, max_depth=3, trees=trees, random_state=0, n_jobs=1).fit(
            X, y
        )
    assert len(keys) == (trees == "disjoint")
    counts = exact[0]
    secrets: dict[str, Any] = {
        "n": N_ROWS,
        "noise seed": NOISE_SEED,
        "exact counts": counts,
        "exact counts of a column": counts[:, 0].copy(),
        "exact counts of four leaves": counts[:4].copy(),
        "noise": forest.leaf_counts_ - counts,
        "first row": X[0],
        "a code": Encoding(TWO_COLUMN_SCHEMAS[task]).encode(X[:1])[0],
    }
    if keys:
        secrets["assignment key"] = keys[0]
    return forest, secrets


@pytest.mark.parametrize("trees", ["shared", "disjoint"])
@pytest.mark.parametrize("task", TASKS)
def test_a_fitted_forest_holds_nothing_private(task: str, trees: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forest, secrets = fit_and_secrets(RANDOM_TREES[task], task, trees, monkeypatch)
    X, _ = two_column_table(task, 10, seed=1)
    forest.predict(X)  # caches, if any, are part of the object
    visible = {
        "object": forest,
        "text": [repr(forest), str(forest.privacy_), forest.privacy_.to_json(), forest.plan_.to_json()],
        "markdown": forest.privacy_.to_markdown(),
        "parameters": forest.get_params(),
        "pickle": pickle.dumps(forest),
        "unpickled": pickle.loads(pickle.dumps(forest)),
    }
    for name, thing in visible.items():
        assert find_leaks(thing, secrets) == [], name


class KeepsN(RandomTreesClassifier):
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
        super().fit(X, y, **unsupported)
        self.n_samples_ = len(X)
        return self


class KeepsRows(RandomTreesClassifier):
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
        super().fit(X, y, **unsupported)
        self.reader_ = functools.partial(lambda rows: rows[0], X[:5])
        return self


class KeepsCounts(RandomTreesClassifier):
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
        super().fit(X, y, **unsupported)
        rows = open_rows(X, y, self.model_.encoding).batches()
        hidden = leaf_totals(self.forest_, rows, n_classes=2).astype(np.int32)
        self.report_ = {"nodes": [lambda: hidden]}
        return self


KEPT_KEY = b"0123456789abcdef" * 2


class KeepsKey(RandomTreesClassifier):
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
        super().fit(X, y, **unsupported)
        self.assignment_ = Assignment(KEPT_KEY, 3)
        return self


class KeepsSeed(RandomTreesClassifier):
    def fit(self, X: Any, y: Any = None, **unsupported: Any) -> Any:
        super().fit(X, y, **unsupported)
        self.log_ = f"fitted (seed={NOISE_SEED})"
        return self


@pytest.mark.parametrize(
    ("mutant", "secret"),
    [(KeepsN, "n at"), (KeepsRows, "first row at"), (KeepsCounts, "exact counts at"), (KeepsSeed, "noise seed at")],
)
def test_leaky_forests_are_caught(mutant: Any, secret: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forest, secrets = fit_and_secrets(mutant, "classification", "shared", monkeypatch)
    assert any(found.startswith(secret) for found in find_leaks(forest, secrets))


def test_a_kept_key_is_caught() -> None:
    X, y = two_column_table("classification", 50)
    forest = KeepsKey(TWO_COLUMN_SCHEMAS["classification"], trees="disjoint", random_state=0).fit(X, y)
    assert find_leaks(forest, {"key": KEPT_KEY}) == ["key at .assignment_[0]"]
    assert find_leaks(pickle.dumps(forest), {"key": KEPT_KEY})


def test_counts_in_a_pickle_are_caught() -> None:
    counts = np.array([[17, 4], [9, 31]])
    for dtype in (np.int64, np.int32, np.float64):
        assert find_leaks(pickle.dumps({"hidden": counts.astype(dtype)}), {"counts": counts})


def test_walk_handles_cycles_slots_and_frames() -> None:
    class Slotted:
        __slots__ = ("inner", "unset")

        def __init__(self) -> None:
            self.inner = {"deep": (np.arange(3), b"raw")}

    loop: list[Any] = [Slotted(), pd.DataFrame({"a": [1.5]}), {1, 2}]
    loop.append(loop)
    found = dict(audit.walk_values(loop))
    assert (found["[0].inner['deep'][0]"] == np.arange(3)).all()
    assert found["[0].inner['deep'][1]"] == b"raw"
    assert found["[1].values"].tolist() == [[1.5]]
