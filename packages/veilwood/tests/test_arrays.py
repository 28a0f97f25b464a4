# SPDX-License-Identifier: Apache-2.0
"""Tests of threads: order, errors, nesting, and identical models for any number of them."""

from __future__ import annotations

import os
import threading

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_config

import veilwood as vw
from veilwood import arrays
from veilwood.privacy.entropy import seeded_for_tests


def test_results_are_in_order_and_every_thread_works() -> None:
    """Items are divided evenly, and results come back in the order of the items."""
    meeting = threading.Barrier(3)

    def square(number: int) -> tuple[int, int]:
        meeting.wait(timeout=60)  # passes only if three threads are here at the same time
        return number**2, threading.get_ident()

    results = arrays.map_on_threads(square, [2, 3, 4], 3)
    assert [value for value, _ in results] == [4, 9, 16]
    assert len({thread for _, thread in results}) == 3


def test_an_error_waits_for_the_other_threads() -> None:
    """An error is raised only when no thread writes to the caller's arrays any more."""
    running, done = threading.Event(), []

    def work(number: int) -> None:
        if number == 1:
            assert running.wait(60)
            raise ZeroDivisionError
        running.set()
        done.append(number)

    with pytest.raises(ZeroDivisionError):
        arrays.map_on_threads(work, [0, 1], 2)
    assert done == [0]


def test_nested_calls_use_no_more_threads() -> None:
    """Work inside a thread of the pool runs alone: it would otherwise wait for itself."""
    names = arrays.map_on_threads(
        lambda _: set(arrays.map_on_threads(lambda _: threading.get_ident(), range(4), 2)), range(2), 2
    )
    assert len(names[0]) == 1


def test_workers_of_a_search_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a joblib worker, a forest uses at most the threads that joblib left to it."""
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert arrays.count_threads(3) == 3
    assert arrays.count_threads(None) == 1
    with parallel_config(n_jobs=2):
        assert arrays.count_threads(None) == 2
    with parallel_config(backend="threading"):
        assert Parallel(n_jobs=2)(delayed(arrays.count_threads)(4) for _ in range(2)) == [1, 1]
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    with parallel_config(backend="threading"):
        assert Parallel(n_jobs=2)(delayed(arrays.count_threads)(4) for _ in range(2)) == [2, 2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_process_makes_threads_of_its_own() -> None:
    """A forked process does not inherit threads, so it must not wait for them."""
    arrays.map_on_threads(abs, [1, 2], 2)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, bytes(arrays.map_on_threads(abs, [1, 2], 2)))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reading, 2) == bytes([1, 2])


@pytest.mark.parametrize("n_classes", [0, 2, 3])
def test_models_are_identical_for_any_number_of_threads(monkeypatch: pytest.MonkeyPatch, n_classes: int) -> None:
    """Noise seeded alike, 1, 2 and 4 threads give the same model and the same predictions, bit for bit."""
    monkeypatch.setattr(arrays, "MIN_THREAD_ROWS", 64)
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (3000, 5))
    score = X[:, 0] + X[:, 1] * X[:, 2]
    y = np.searchsorted([0.6, 1.0][: n_classes - 1], score) if n_classes else score / 2
    target: dict[str, object] = {"classes": list(range(n_classes))} if n_classes else {"target_bounds": (0, 1)}
    schema = vw.Schema.numeric((0, 1), n_features=5, **target)  # type: ignore[arg-type]
    predictions = []
    for n_jobs in (1, 2, 4):
        make = vw.PrivateForestClassifier if n_classes else vw.PrivateForestRegressor
        with seeded_for_tests(3):
            forest = make(schema, epsilon=4, random_state=0, n_jobs=n_jobs).fit(X, y)
        predictions.append(forest.predict_proba(X) if n_classes else forest.predict(X))
    assert np.ptp(predictions[0]) > 0.1
    for other in predictions[1:]:
        np.testing.assert_array_equal(predictions[0], other)
