# SPDX-License-Identifier: Apache-2.0
"""Tests of training batch by batch and from iterators: the same model, one charge, and no exact count that stays."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import veilwood as vw
from veilwood.data.batches import Source
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import BudgetExceededError, OutOfSchemaError, ParameterError, UseError
from veilwood.estimators import one_pass
from veilwood.privacy import entropy
from veilwood.privacy.door import Door
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

SCHEMA = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
STAY = vw.Schema.numeric((0, 1), target_bounds=(0, 9), n_features=3)
N = 900
X = np.random.default_rng(0).random((N, 3))
Y = np.where(X[:, 0] > 0.5, "yes", "no")

FORESTS: dict[str, Callable[..., Any]] = {
    "shared": partial(vw.RandomTreesClassifier, SCHEMA, n_estimators=3, max_depth=3),
    "disjoint": partial(vw.RandomTreesClassifier, SCHEMA, n_estimators=3, max_depth=3, trees="disjoint"),
    "regression": partial(vw.RandomTreesRegressor, STAY, n_estimators=3, max_depth=3),
    "matrix": partial(vw.MatrixForestClassifier, SCHEMA, n_estimators=3, max_depth=2),
    "matrix, laplace": partial(vw.MatrixForestClassifier, SCHEMA, n_estimators=3, max_depth=2, mechanism="laplace"),
}


def forest(name: str = "shared", **params: Any) -> Any:
    return FORESTS[name](random_state=0, **params)


def targets(name: str) -> Any:
    return X[:, 1] * 9 if name == "regression" else Y


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(target=Y)


def pieces(size: int = 250) -> Iterator[pd.DataFrame]:
    return (frame()[start : start + size] for start in range(0, N, size))


# -- the same model, one charge ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORESTS)
def test_batches_give_what_files_give(name: str, tmp_path: Path) -> None:
    """Batch i is partition i, as is file i of a folder."""
    y, ledger = targets(name), MemoryLedger()
    by_batch = forest(name, ledger=ledger)
    with entropy.seeded_for_tests(3):
        for i, start in enumerate(range(0, N, 400)):
            rows = slice(start, start + 400)
            by_batch.partial_fit(X[rows], y[rows])
            table = pd.DataFrame(X[rows], columns=["x0", "x1", "x2"]).assign(target=y[rows])
            table.to_parquet(tmp_path / f"{i}.parquet", index=False)
        assert ledger.entries() == []
        by_batch.release()
    with entropy.seeded_for_tests(3):
        by_file = forest(name).fit(str(tmp_path))
    np.testing.assert_array_equal(by_batch.leaf_counts_, by_file.leaf_counts_)
    assert [entry.state for entry in ledger.entries()] == ["committed"]
    assert by_batch.privacy_.composition == by_file.privacy_.composition


def test_a_batch_may_be_anything_that_fit_takes(tmp_path: Path) -> None:
    frame()[:300].to_csv(tmp_path / "a.csv", index=False)
    mixed = forest(epsilon=float("inf")).partial_fit(str(tmp_path / "a.csv")).partial_fit(X[300:600], Y[300:600])
    mixed.partial_fit(iter([frame()[600:]])).release()
    np.testing.assert_array_equal(mixed.leaf_counts_, forest(epsilon=float("inf")).fit(X, Y).leaf_counts_)


def test_no_two_rows_of_different_batches_share_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[int, int]] = []

    def note(count: Any, by: int, batches: Any, *, n_jobs: Any = 1) -> Any:
        batches = list(batches)
        places.extend((b.partition + by, b.first_row + i) for b in batches for i in range(len(b.target)))
        return count(batches)

    monkeypatch.setattr(one_pass, "_count_shifted", note)
    batches = forest("disjoint")
    for _ in range(3):
        batches.partial_fit(X[:100], Y[:100])
    assert len(set(places)) == len(places) == 300


def test_the_charge_stands_before_the_counts_meet_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger, seen = MemoryLedger(), []
    sound = Door.release_counts
    monkeypatch.setattr(Door, "release_counts", lambda *args: seen.append(ledger.spent.epsilon) or sound(*args))  # type: ignore[func-returns-value]
    batches = forest(ledger=ledger).partial_fit(X, Y)
    assert seen == []
    batches.release()
    assert seen == [1]


# -- what stays, and what leaves --------------------------------------------------------------------------------------


def walk(thing: Any, seen: set[int]) -> Iterator[Any]:
    """Everything reachable from an object through its attributes, containers and closures."""
    if id(thing) in seen or isinstance(thing, type):
        return
    seen.add(id(thing))
    yield thing
    inside = list(vars(thing).values()) if hasattr(thing, "__dict__") else []
    if isinstance(thing, dict):
        inside += list(thing.values())
    elif isinstance(thing, list | tuple | set):
        inside += list(thing)
    for inner in inside:
        yield from walk(inner, seen)


def holds_exact_counts(fitted: Any) -> bool:
    exact = forest(epsilon=float("inf")).fit(X, Y).leaf_counts_
    arrays = [thing for thing in walk(fitted, set()) if isinstance(thing, np.ndarray)]
    return any(array.shape == exact.shape and (array == exact).all() for array in arrays)


def test_nothing_exact_is_left_after_the_release() -> None:
    batches = forest().partial_fit(X, Y)
    assert holds_exact_counts(batches)  # so that the walk is known to find them
    batches.release()
    assert not holds_exact_counts(batches)
    assert not holds_exact_counts(pickle.loads(pickle.dumps(batches)))


def test_an_unfinished_fit_cannot_be_copied_or_shown() -> None:
    batches = forest().partial_fit(X, Y)
    for copying in (pickle.dumps, copy.deepcopy, copy.copy):  # a shallow copy would go on with the same counts
        with rejects(UseError, raised_in="OnePassForest.__getstate__"):
            copying(batches)
    assert not holds_exact_counts(clone(batches))
    assert repr(batches) == repr(forest())
    assert batches.get_params() == forest().get_params()
    for needs_a_model in (batches.predict, batches.predict_proba, lambda path: vw.save(batches, path)):
        with pytest.raises(NotFittedError):
            needs_a_model(X)
    assert not hasattr(batches, "privacy_")


def test_a_fit_drops_what_was_unfinished() -> None:
    batches = forest().partial_fit(X, Y).fit(X[:100], Y[:100])
    assert not holds_exact_counts(batches)
    with rejects(UseError, raised_in="OnePassForest.release"):
        batches.release()


def test_a_second_release_needs_new_rows_and_pays_again() -> None:
    ledger = MemoryLedger(epsilon=2)
    batches = forest(ledger=ledger).partial_fit(X, Y).release()
    with rejects(UseError, raised_in="OnePassForest.release"):
        batches.release()
    batches.partial_fit(X, Y).release()
    assert ledger.spent.epsilon == 2


# -- refusals ---------------------------------------------------------------------------------------------------------


def test_a_refused_batch_leaves_no_trace() -> None:
    batches = forest(epsilon=float("inf")).partial_fit(X, Y)
    bad = frame()
    bad.loc[5, "target"] = "maybe"
    with pytest.raises(OutOfSchemaError):
        batches.partial_fit(bad)
    np.testing.assert_array_equal(batches.release().leaf_counts_, forest(epsilon=float("inf")).fit(X, Y).leaf_counts_)
    with pytest.raises(OutOfSchemaError):
        forest().partial_fit(bad)


def test_an_unaffordable_release_is_refused_at_the_first_batch_and_at_the_end() -> None:
    ledger = MemoryLedger(epsilon=0.5)
    with rejects(BudgetExceededError, raised_in="ChainedLedger.check_affordable"):
        forest(ledger=ledger).partial_fit(X, Y)
    ledger = MemoryLedger(epsilon=1)
    one, other = forest(ledger=ledger).partial_fit(X, Y), forest(ledger=ledger).partial_fit(X, Y)
    one.release()
    with pytest.raises(BudgetExceededError):
        other.release()
    assert not hasattr(other, "privacy_")


def test_parameters_may_not_change_in_between() -> None:
    batches = forest().partial_fit(X, Y)
    batches.set_params(epsilon=100.0)
    for later in (batches.release, lambda: batches.partial_fit(X, Y)):
        with rejects(UseError, raised_in="OnePassForest._check_params"):
            later()
    batches.set_params(epsilon=1.0).release()


def test_a_key_drawn_from_seeded_bits_is_not_private() -> None:
    with entropy.seeded_for_tests(0):
        batches = forest("disjoint").partial_fit(X, Y)
    batches.release()
    assert not batches.privacy_.is_private
    assert "seeded" in batches.privacy_.reason


def test_an_inferred_schema_is_that_of_the_first_batch_and_not_private() -> None:
    inferred = vw.RandomTreesClassifier("infer", n_estimators=20, max_depth=2).partial_fit(
        X[:500], Y[:500], classes=["no", "yes"]
    )
    assert inferred.n_features_in_ == 3
    inferred.partial_fit(X[500:], Y[500:]).release()
    assert "inferred" in str(inferred.privacy_.reason)


@pytest.mark.parametrize("kind", [vw.MedianForestClassifier, vw.GreedyForestClassifier])
def test_forests_of_several_passes_have_no_partial_fit_and_refuse_iterators(kind: Any) -> None:
    assert not hasattr(kind, "partial_fit")
    ledger = MemoryLedger()
    with rejects(UseError, raised_in="Source.check_passes"):
        kind(SCHEMA, ledger=ledger).fit(pieces())
    assert ledger.entries() == []


def test_what_batches_cannot_do() -> None:
    with rejects(ParameterError, name="classes"):
        forest().partial_fit(X, Y, classes=["no", "maybe"])
    with rejects(UseError, raised_in="OnePassForest._start_partial_fit"):
        forest(privacy_unit={"id": "who", "at_most": 2}).partial_fit(frame().assign(who=1))
    with rejects(UseError, raised_in="open_stream"):
        forest(privacy_unit={"id": "who", "at_most": 2}).fit(pieces())
    with rejects(UseError, raised_in="BaseForest._reject_arguments"):
        forest().partial_fit(X, Y, sample_weight=np.ones(N))


# -- iterators and threads --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["frames", "pairs", "arrow"])
def test_an_iterator_gives_what_memory_gives(kind: str) -> None:
    batches: Any = {
        "frames": pieces(),
        "pairs": ((X[start : start + 100], Y[start : start + 100]) for start in range(0, N, 100)),
        "arrow": pa.Table.from_pandas(frame(), preserve_index=False).to_reader(max_chunksize=77),
    }[kind]
    with entropy.seeded_for_tests(1):
        streamed = forest("disjoint").fit(batches)
    with entropy.seeded_for_tests(1):
        whole = forest("disjoint").fit(X, Y)
    np.testing.assert_array_equal(streamed.leaf_counts_, whole.leaf_counts_)


def test_an_iterator_is_read_once() -> None:
    batches, ledger = pieces(), MemoryLedger()
    forest(ledger=ledger).fit(batches)
    with rejects(OutOfSchemaError, raised_in="open_stream.<locals>.read_pieces"):
        forest(ledger=ledger).fit(batches)
    assert [entry.state for entry in ledger.entries()] == ["committed", "cancelled"]
    with rejects(OutOfSchemaError, raised_in="Opener.check"):
        forest().fit(pieces(), Y)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_matter(threads: int, tmp_path: Path) -> None:
    pa.parquet.write_table(pa.Table.from_pandas(frame(), preserve_index=False), tmp_path / "a.parquet")
    encoding = Encoding(SCHEMA)
    expected = forest(epsilon=float("inf")).fit(X, Y).leaf_counts_
    for rows in (frame(), str(tmp_path / "a.parquet")):
        source = open_rows(rows, None, encoding, batch_rows=100)
        model = forest(epsilon=float("inf"))
        design = model._design_for(SCHEMA)
        count = model._make_method().make_count(design)
        np.testing.assert_array_equal(source.aggregate(count, n_jobs=threads), expected)


def test_an_error_on_one_thread_ends_the_pass() -> None:
    class Broken(RuntimeError):
        pass

    def read() -> Iterator[Any]:
        good = open_rows(X, Y, Encoding(SCHEMA), batch_rows=10)
        for i, unread in enumerate(good._read()):
            yield unread if i != 5 else fail

    def fail() -> Any:
        raise Broken

    model = forest()
    count = model._make_method().make_count(model._design_for(SCHEMA))
    with pytest.raises(Broken):
        Source(read).aggregate(count, n_jobs=2)


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_interrupted_work_says_what_was_spent(error: type[BaseException]) -> None:
    def interrupted() -> Iterator[Any]:
        yield frame()
        raise error

    ledger = MemoryLedger()
    with pytest.raises(error) as stopped:
        forest(ledger=ledger).fit(interrupted())
    assert stopped.value.__notes__ == ["epsilon=1 counts as spent (ledger in memory)."]
    assert ledger.spent.epsilon == 1
    ledger = MemoryLedger()
    with pytest.raises(error) as stopped:
        forest(ledger=ledger).partial_fit(interrupted())
    assert ledger.entries() == []
