# SPDX-License-Identifier: Apache-2.0
"""The GPU's integers and sums are those of the processor: on a GPU where there is one, and everywhere on a stand-in.

The stand-in is in ``fixtures.devices``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.data.batches import Batch
from veilwood.data.encoding import EncodedColumn
from veilwood.errors import VeilwoodError
from veilwood.trees.counting import Assignment, leaf_totals, sum_over_trees
from veilwood.trees.forest import Forest
from veilwood.trees.random import grow_binary, grow_multiway
from veilwood_engines import gpu
from veilwood_testing.devices import DEVICES, stand_in

COLUMNS = [
    EncodedColumn("number", ordered=True, n_codes=40, missing_code=None),
    EncodedColumn("nullable", ordered=True, n_codes=12, missing_code=11),
    EncodedColumn("category", ordered=False, n_codes=7, missing_code=None),
    EncodedColumn("coin", ordered=False, n_codes=2, missing_code=None),
]
LEVELS = 65535


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compiled")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    gpu._load_kernel.cache_clear()
    if request.param == "stand-in":
        monkeypatch.setitem(sys.modules, "cupy", stand_in(folder))
        monkeypatch.setattr(gpu, "_BLOCK_THREADS", 1)
        monkeypatch.setattr(gpu, "_MIN_ROWS_PER_BLOCK", 7)
    yield request.param
    gpu._load_kernel.cache_clear()


@pytest.fixture(params=["one group", "groups", "rows afar", "all afar"])
def shared_memory(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Shared memory of different sizes: the forests go through it at once, in parts, or not at all."""
    rows = 2 * len(COLUMNS) * gpu._BLOCK_THREADS
    sizes = {"one group": None, "groups": 4000 + rows, "rows afar": 2 * rows - 2, "all afar": 0}
    size = sizes[request.param]
    if size is not None:
        attributes = {"MaxSharedMemoryPerBlockOptin": size, "MultiProcessorCount": 3}
        monkeypatch.setattr(gpu, "device_attribute", attributes.__getitem__)
    return str(request.param)


def forest_of(shape: str, seed: int) -> Forest:
    return grow_binary(COLUMNS, 7, 5, seed) if shape == "binary" else grow_multiway(COLUMNS, 4, 3, seed)


def rows_of(n: int, seed: int, targets: int = 3) -> tuple[NDArray[np.uint16], NDArray[np.int32]]:
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(column.n_codes, size=n) for column in COLUMNS], axis=1).astype(np.uint16)
    return codes, rng.integers(targets, size=n).astype(np.int32)


def both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a result of the GPU and that of the processor."""
    with gpu.use():
        found = work()
    return found, work()


@pytest.mark.parametrize("disjoint", [False, True], ids=["shared", "disjoint"])
@pytest.mark.parametrize("n_classes", [3, None], ids=["classes", "regression"])
@pytest.mark.parametrize("shape", ["binary", "multiway"])
def test_totals_are_those_of_the_processor(
    shape: str, n_classes: int | None, disjoint: bool, shared_memory: str, device: str
) -> None:
    forest = forest_of(shape, 0)
    codes, target = rows_of(20_000 if device == "gpu" else 500, 1, targets=n_classes or LEVELS + 1)
    assignment = Assignment(bytes(32), forest.n_trees) if disjoint else None
    step = len(codes) // 3

    def count() -> NDArray[np.int64]:
        batches = [
            Batch(codes[start : start + step], target[start : start + step], 0, start)
            for start in range(0, len(codes), step)
        ]
        return leaf_totals(
            forest, batches, n_classes=n_classes, target_levels=LEVELS, assignment=assignment, fast=False
        )  # fmt: skip

    found, expected = both(count)
    assert found.dtype == expected.dtype
    assert (found == expected).all()
    assert found.sum() == len(codes) * (1 if disjoint else forest.n_trees) * (1 if n_classes else LEVELS)


@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("shape", ["binary", "multiway"])
def test_sums_round_as_on_the_processor(
    shape: str, width: int, shared_memory: str, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "_PREDICTED_ROWS", 300)
    forest = forest_of(shape, 2)
    codes, _ = rows_of(1000, 3)
    # From tiny to huge, so that another order of the trees would round otherwise.
    values = np.random.default_rng(4).lognormal(sigma=20, size=(forest.n_leaves, width))
    found, expected = both(lambda: sum_over_trees(forest, codes, values, fast=False))
    assert (found == expected).all()
    backwards = sum(values[forest_leaf] for forest_leaf in reversed(leaves_by_tree(forest, codes)))
    assert (backwards != expected).any()


def leaves_by_tree(forest: Forest, codes: NDArray[np.uint16]) -> list[NDArray[np.int32]]:
    from veilwood.trees.counting import route_rows

    return list(route_rows(forest, codes).T)


def test_counters_of_a_block_do_not_overflow(device: str) -> None:
    forest = forest_of("binary", 0)
    codes = np.zeros((9, len(COLUMNS)), np.uint16)  # all in the same leaves
    target, levels = np.full(9, 2**31 - 2, np.int32), 2**31 - 1
    found, expected = both(
        lambda: leaf_totals(forest, [Batch(codes, target, 0, 0)], n_classes=None, target_levels=levels, fast=False)
    )
    assert expected.max() == 9 * (2**31 - 2) > 2**32
    assert (found == expected).all()


def test_no_rows_count_nothing(device: str) -> None:
    forest = forest_of("binary", 0)
    empty = Batch(np.empty((0, len(COLUMNS)), np.uint16), np.empty(0, np.int32), 0, 0)
    with gpu.use():
        assert not leaf_totals(forest, [], n_classes=2).any()
        assert not leaf_totals(forest, [empty], n_classes=2).any()
        assert sum_over_trees(forest, empty.codes, np.ones((forest.n_leaves, 2))).shape == (0, 2)


def test_an_estimator_predicts_alike(device: str) -> None:
    schema = vw.Schema.numeric((0, 1), classes=["a", "b"], n_features=3)
    rng = np.random.default_rng(0)
    X = rng.random((2000, 3))
    y = np.where(X[:, 0] > 0.5, "a", "b")
    forest = vw.RandomTreesClassifier(schema, epsilon=50, n_estimators=10, max_depth=4, random_state=0)
    with gpu.use():
        forest.fit(X, y)
    found, expected = both(lambda: forest.predict_proba(X))
    assert (found == expected).all()
    assert forest.score(X, y) > 0.8


def test_the_choice_ends_with_the_block(device: str) -> None:
    def fail() -> None:
        with gpu.use():
            assert gpu.in_use()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not gpu.in_use()


def test_without_cupy_the_way_to_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(VeilwoodError, match=r"veilwood\[gpu\]"), gpu.use():
        pass


def test_without_a_gpu_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cupy: Any = stand_in(tmp_path)
    cupy.cuda.runtime.getDeviceCount = lambda: 0
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    with pytest.raises(VeilwoodError, match="no GPU"), gpu.use():
        pass
