# SPDX-License-Identifier: Apache-2.0
"""The search for strategies: bounds, published figures, and the cache on disk."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import approx_fprime

import veilwood as vw
from veilwood.errors import PlanError
from veilwood.forests.matrix import measurement, training
from veilwood.forests.matrix import search as kept
from veilwood.forests.matrix import search as strategy_search
from veilwood.forests.matrix.search import lower_bound, optimize
from veilwood.forests.matrix.strategies import Marginals, NoiseName, Strategy, expected_error
from veilwood.forests.matrix.workloads import LeafVoteWorkload, PathWorkload, VoteWorkload, Workload
from veilwood.privacy.loss import Loss
from veilwood.safe_io import cache_folder
from veilwood_testing.matrix_forests import (
    CAR_SIZES,
    NOISES,
    SMALL_EPSILON,
    WORKLOAD_KINDS,
    published_error,
    random_binary_masks,
    random_paths,
    small_workloads,
    value_only,
)

pytestmark = [pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")]


@pytest.mark.parametrize("budget", [Fraction(1, 10), Fraction(1), Fraction(10), Fraction(1000)])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("kind", WORKLOAD_KINDS)
def test_never_worse_than_identity_nor_better_than_the_bound(kind: str, noise: NoiseName, budget: Fraction) -> None:
    for seed in range(2):
        workload = small_workloads(seed)[kind]
        best = optimize(workload, noise, budget, starts=6)
        error = expected_error(workload, best, noise, budget)
        assert error <= expected_error(workload, Marginals.identity(workload), noise, budget)
        assert error >= lower_bound(workload, noise, budget) * (1 - 1e-9)


def test_the_search_is_a_function_of_its_seed() -> None:
    workload = PathWorkload.from_leaves(CAR_SIZES, *random_paths(CAR_SIZES, 2, 8, np.random.default_rng(0)))
    one, other = (optimize(workload, seed=3, starts=6) for _ in range(2))
    assert isinstance(one, Marginals)
    assert isinstance(other, Marginals)
    assert one.weights == other.weights


@pytest.mark.parametrize(
    ("sizes", "depth", "trees", "identity", "known"),
    [(CAR_SIZES, 2, 32, 110592, 59500), (CAR_SIZES, 1, 32, 110592, 5700), ((5,) * 4, 2, 128, 160000, 138800)],
)
def test_shallow_forests_beat_the_identity_as_known(
    sizes: tuple[int, ...], depth: int, trees: int, identity: float, known: float
) -> None:
    workload = PathWorkload.from_leaves(sizes, *random_paths(sizes, depth, trees, np.random.default_rng(0)))
    assert published_error(workload, Marginals.identity(workload)) == pytest.approx(identity, rel=1e-6)
    assert published_error(workload, optimize(workload, budget=SMALL_EPSILON)) < known


def test_gaussian_noise_on_car_reaches_the_known_figure() -> None:
    workload = PathWorkload.from_leaves(CAR_SIZES, *random_paths(CAR_SIZES, 4, 128, np.random.default_rng(0)))
    error = expected_error(workload, optimize(workload, "gaussian", SMALL_EPSILON), "gaussian", SMALL_EPSILON)
    assert error / workload.n_queries * 2 * float(SMALL_EPSILON) < 6.6


def test_ordered_features_of_binary_trees_gain_from_products() -> None:
    sizes = (48, 48)
    workload = PathWorkload.from_masks(sizes, random_binary_masks(sizes, 4, 30, np.random.default_rng(0)))
    best = optimize(workload, starts=8)
    assert best.name == "kronecker p-identity"
    assert expected_error(workload, best) < 0.6 * expected_error(workload, Marginals.identity(workload))


@pytest.mark.parametrize("noise", NOISES)
def test_p_identity_descends_to_what_its_inverse_says(noise: NoiseName, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    W = rng.random((5, 6))
    seen: dict[str, Any] = {}

    def spy(objective: Any, start: NDArray[np.float64], **_: Any) -> Any:
        seen["objective"] = objective
        return type("Result", (), {"x": start})

    monkeypatch.setattr(strategy_search, "minimize", spy)
    start = rng.random((2, 6))
    strategy_search._p_identity((W.T @ W).__matmul__, (W**2).sum(axis=0), start, noise, 1)
    value, gradient = seen["objective"](start.ravel())
    direct = (strategy_search._p_identity_inverse(start, noise) * (W.T @ W)).sum() / (W**2).sum()
    assert value == pytest.approx(direct)
    numeric = approx_fprime(start.ravel(), value_only(seen["objective"]), 1e-7)
    np.testing.assert_allclose(gradient, numeric, atol=1e-5)


def test_rounded_p_identity_columns_add_up_exactly() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        b = rng.random((7, 5)) * 10.0 ** rng.integers(-2, 6)
        rounded = strategy_search._rounded_p_identity(b, "laplace", 1 << 10)
        np.testing.assert_array_equal(rounded.sum(axis=0), 1 << 10)
        assert rounded.min() >= 0
        assert np.diag(rounded[:5]).min() >= 1


def test_twenty_features_without_the_domain() -> None:
    sizes = (4,) * 20  # 10^12 cells
    rng = np.random.default_rng(0)
    workload = PathWorkload.from_leaves(sizes, *random_paths(sizes, 2, 4, rng))
    best = optimize(workload, starts=2)
    codes, classes = rng.integers(4, size=(500, 20)), rng.integers(2, size=500)
    answers = best.reconstruct(best.measure_exact(codes, classes, 2), workload)
    features, values = random_paths(sizes, 2, 4, np.random.default_rng(0))
    for leaf in range(0, workload.n_queries, 7):
        inside = (codes[:, features[leaf]] == values[leaf]).all(axis=1)
        np.testing.assert_allclose(answers[leaf], np.bincount(classes[inside], minlength=2), atol=1e-8)


BALANCE_SIZES, IRIS_SIZES = (5, 5, 5, 5), (4, 3, 6, 5)


EPSILON = Fraction(1, 1000)  # so small that discrete noise has the variance of continuous noise


class Claim(NamedTuple):
    """A workload, the reference's error on it, and the largest that is found here over draws of the trees."""

    sizes: tuple[int, ...]
    depth: int
    trees: int
    queries: int
    kind: str
    reference: float
    ours: float


CLAIMS = {
    "Car T, depth 4": Claim(CAR_SIZES, 4, 128, 0, "T", 442_368, 442_368),
    "Car T, depth 3": Claim(CAR_SIZES, 3, 32, 0, "T", 110_592, 110_592),
    "Car T, depth 2": Claim(CAR_SIZES, 2, 32, 0, "T", 110_592, 60_000),
    "Car T, depth 1": Claim(CAR_SIZES, 1, 32, 0, "T", 110_592, 5_700),
    "Car T, four features": Claim((4, 4, 3, 3), 4, 64, 0, "T", 18_432, 18_432),
    "Balance T, depth 2": Claim(BALANCE_SIZES, 2, 128, 0, "T", 160_000, 139_000),
    "Balance T, depth 1": Claim(BALANCE_SIZES, 1, 64, 0, "T", 80_000, 9_500),
    "Iris T, depth 2": Claim(IRIS_SIZES, 2, 64, 0, "T", 46_080, 46_080),
    "Car QT', depth 3": Claim(CAR_SIZES, 3, 16, 346, "QT'", 11_072, 9_600),
    "Car QT'T, depth 4": Claim(CAR_SIZES, 4, 128, 346, "QT'T", 35_800_000, 36_500_000),
    "Balance QT'T, depth 2": Claim(BALANCE_SIZES, 2, 128, 125, "QT'T", 31_800_000, 32_500_000),
    "Iris QT'T, depth 2": Claim(IRIS_SIZES, 2, 64, 30, "QT'T", 1_663_000, 1_750_000),
}


QUICK = ("Car T, depth 1", "Car T, four features", "Balance T, depth 1", "Iris T, depth 2")


NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in CLAIMS]


def build(claim: Claim) -> tuple[Workload, Workload]:
    """The workload, and the same with every value told apart, as the reference has it."""
    rng = np.random.default_rng(0)
    features, values = random_paths(claim.sizes, claim.depth, claim.trees, rng)
    merged, plain = (PathWorkload.from_leaves(claim.sizes, features, values, merge=merge) for merge in (True, False))
    if claim.kind == "T":
        return merged, plain
    cells = rng.permutation(math.prod(claim.sizes))[: claim.queries]
    codes = np.stack(np.unravel_index(cells, claim.sizes), axis=1)
    reached = np.array([np.flatnonzero((point[features] == values).all(axis=1)) for point in codes])
    if claim.kind == "QT'":
        return LeafVoteWorkload(len(features), reached), LeafVoteWorkload(len(features), reached, merge=False)
    return VoteWorkload(merged, reached), VoteWorkload(plain, reached)


def gram(workload: Workload) -> NDArray[np.float64]:
    """The explicit matrix W' W over all cells."""
    n = math.prod(workload.sizes)
    total = np.zeros((n, n))
    for rows in workload.iter_rows(merged=False):
        total += rows.T @ rows
    return total


def dense_error(workload: Workload, strategy: Strategy) -> float:
    """The error at epsilon 1 by the pseudo-inverse of the explicit strategy: nothing of the code under test."""
    cells = np.eye(math.prod(workload.sizes), dtype=np.int64).reshape(*workload.sizes, -1)
    tables = [table.reshape(-1, cells.shape[-1]).astype(float) for table in strategy.measure_cells(cells)]
    scales = [float(scale * EPSILON) for scale in strategy.laplace_scales(EPSILON)]
    precision = sum(table.T @ table / (2 * scale**2) for table, scale in zip(tables, scales, strict=True))
    return float((np.linalg.pinv(np.asarray(precision), rcond=1e-12, hermitian=True) * gram(workload)).sum())


@pytest.mark.parametrize("name", NAMES)
def test_the_error_of_the_reference_and_ours_by_explicit_matrices(name: str) -> None:
    claim = CLAIMS[name]
    merged, plain = build(claim)
    unit = float(EPSILON) ** 2
    reference = expected_error(plain, Marginals.identity(plain), budget=EPSILON) * unit
    assert reference == pytest.approx(2 * np.trace(gram(plain)), rel=1e-5)  # A = I: twice the squares of all entries
    assert reference == pytest.approx(claim.reference, rel=1e-5 if claim.kind != "QT'T" else 0.05)  # queries are drawn
    best = optimize(merged, budget=EPSILON)
    ours = expected_error(merged, best, budget=EPSILON) * unit
    assert ours == pytest.approx(dense_error(merged, best), rel=1e-4)
    assert ours <= min(claim.ours, reference) * (1 + 1e-5)


SCHEMA, X, Y = vw.datasets.balance_scale()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VEILWOOD_CACHE", str(tmp_path))
    return tmp_path / "strategies"


def forest(**more: Any) -> vw.MatrixForestClassifier:
    return vw.MatrixForestClassifier(
        SCHEMA, **{"epsilon": 1, "random_state": 3, "n_estimators": 4, "max_depth": 3, **more}
    )


def never(*given: Any, **more: Any) -> Any:
    raise AssertionError("searched again")


def test_a_search_is_made_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = forest().plan()
    (file,) = folder.iterdir()
    assert file.stat().st_mode & 0o077 == 0 or folder.stat().st_mode & 0o077 == 0
    monkeypatch.setattr(measurement, "optimize", never)
    again = forest().plan()
    assert again == first
    assert again.fingerprint() == first.fingerprint()
    with pytest.raises(AssertionError, match="searched again"):
        forest(epsilon=2).plan()  # another budget, another search


SIZED: dict[str, Any] = {"n_estimators": "auto", "max_depth": "auto"}


@pytest.mark.parametrize("known", [{"n_rows": 625}, {}])
def test_a_chosen_size_is_searched_once(known: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the comparison of sizes nor the strategy of the chosen one is searched again, in another process."""
    monkeypatch.setenv("VEILWOOD_CACHE", "off")
    alone = forest(**SIZED, **known).plan()
    monkeypatch.setenv("VEILWOOD_CACHE", str(folder.parent))
    assert forest(**SIZED, **known).plan().fingerprint() == alone.fingerprint()
    monkeypatch.setattr(measurement, "optimize", never)
    monkeypatch.setattr(training, "optimize", never)
    assert forest(**SIZED, **known).plan().fingerprint() == alone.fingerprint()
    with pytest.raises(AssertionError, match="searched again"):
        forest(**SIZED, **known, epsilon=2).plan()


def test_a_size_that_rows_decide_is_searched_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = forest(**SIZED, epsilon=50).fit(X, Y).plan_
    monkeypatch.setattr(measurement, "optimize", never)
    again = forest(**SIZED, epsilon=50).fit(X, Y).plan_  # so much budget that the number of rows is about the same
    assert again.choices["strategies"] == first.choices["strategies"]


@pytest.mark.parametrize("error", ["NaN", "-1.0", "1e400", '"1"', "null"])
def test_what_is_no_error_is_compared_again(error: str, folder: Path) -> None:
    request = {**SIZED, "n_rows": 625}
    first = forest(**request).plan()
    for file in folder.iterdir():
        if "error" in json.loads(file.read_text()):
            file.write_text(f'{{"leaves": 4, "error": {error}}}')
    assert forest(**request).plan() == first


def test_nothing_is_kept_of_what_was_read_off_the_data(folder: Path) -> None:
    with pytest.warns(vw.PrivacyWarning):
        vw.MatrixForestClassifier("infer", random_state=3, n_estimators=4, max_depth=3).fit(X, Y)
    with pytest.warns(vw.PrivacyWarning):
        vw.MatrixForestClassifier("infer", random_state=3).fit(X, Y)
    assert not folder.exists()


def test_the_folder_can_be_switched_off(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VEILWOOD_CACHE", "off")
    assert cache_folder("strategies") is None
    forest().plan()
    assert not folder.exists()


@pytest.mark.parametrize("content", ["", "[]", '{"strategies": 1, "structure": 2}'])
def test_what_is_no_strategy_is_searched_again(content: str, folder: Path) -> None:
    first = forest().plan()
    (file,) = folder.iterdir()
    file.write_text(content)
    assert forest().plan() == first
    assert json.loads(file.read_text())["strategies"] == first.choices["strategies"]


def test_a_changed_strategy_costs_accuracy_and_no_privacy(folder: Path) -> None:
    """Weights a thousand times as large claim more of the budget: all of them together still get what was promised."""
    first = forest().plan()
    (file,) = folder.iterdir()
    choices = json.loads(file.read_text())
    (strategy,) = choices["strategies"]
    if strategy["marginals"]:
        strategy["marginals"][0][1] *= 1000
    else:
        strategy["trees"][0][0] *= 1000
    file.write_text(json.dumps(choices))
    plan = forest().plan()
    total = Loss.total([step.loss for step in plan.steps])
    assert plan.loss == first.loss
    assert plan.choices["strategies"] != first.choices["strategies"]
    assert total.epsilon is not None
    assert total.epsilon <= 1
    assert plan.expected_leaf_mse >= first.expected_leaf_mse
    fitted = forest().fit(X, Y)
    assert fitted.privacy_.is_private
    assert fitted.plan_.loss == first.loss


WRAPPING = {  # factors whose columns, or the squares in them, add up to 1 beyond the end of an int64
    "sums": [*np.diag([2**58 + 1, 1, 1, 1, 1]).tolist(), *[[2**58, 0, 0, 0, 0]] * 63],
    "squares": [*np.eye(5, dtype=int).tolist(), [2**32] * 5],
    "more of both": [*np.eye(5, dtype=int).tolist(), [2**62] * 5, [2**62] * 5, [2**62] * 5, [2**62] * 5],
}


@pytest.mark.parametrize(("wrapping", "delta"), [("sums", 0.0), ("squares", 1e-6), ("more of both", 0.0)])
def test_a_strategy_whose_sensitivity_would_wrap_around_is_no_strategy(
    wrapping: str, delta: float, folder: Path, tmp_path: Path
) -> None:
    """One row moves it by 2**64 and more, which int64 counts as 1: exact counts came out of a fit at epsilon 1."""
    columns = [column for column in SCHEMA.to_dict()["columns"] if column["name"] in ("left_weight", "class")]
    schema = vw.Schema.from_dict({**SCHEMA.to_dict(), "columns": columns})
    request: dict[str, Any] = {"delta": delta, "schema": schema, "n_estimators": 1, "max_depth": 1}

    def one_column() -> vw.MatrixForestClassifier:
        return vw.MatrixForestClassifier(epsilon=1, random_state=3, **request)

    first = one_column().plan()
    files = list(folder.iterdir())
    assert len(files) == (2 if delta else 1)  # one for each law
    for file in files:
        choices = json.loads(file.read_text()) | {"strategies": [{"factors": [WRAPPING[wrapping]]}]}
        file.write_text(json.dumps(choices))
    assert one_column().plan() == first
    choices |= {"law": "zcdp"} if delta else {}
    forged = first.to_dict() | {"choices": choices}
    (tmp_path / "plan.json").write_text(json.dumps(forged))
    with pytest.raises(PlanError):
        one_column().fit(X[["left_weight"]], Y, plan=tmp_path / "plan.json")


def test_old_files_go_first(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MAX_FILES", 2)
    for seed in range(4):
        forest(random_state=seed).plan()
    assert len(list(folder.iterdir())) == 2
