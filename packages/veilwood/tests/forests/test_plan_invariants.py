# SPDX-License-Identifier: Apache-2.0
"""Laws that every plan of the classic families keeps, over random schemas and settings, without any data.

More epsilon, a delta, or a smaller unit never raise the expected error of a leaf; k rows at epsilon are planned like
one row at epsilon / k; an optimised strategy is never above a baseline.
"""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood.errors import PlanError
from veilwood.forests import noisy_leaves
from veilwood.forests.matrix import marginals as marginal_search
from veilwood.forests.matrix import search
from veilwood.forests.matrix import training as ensembles
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.loss import exact_fraction
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.trees.counting import sum_over_trees
from veilwood_testing.errors import rejects

FAMILIES = ("RandomTrees", "MedianForest", "GreedyForest", "MatrixForest")
HAIR = 1 + 1e-7  # rho is rounded down by a part in 10^9


def random_schema(rng: np.random.Generator, task: str) -> vw.Schema:
    """A few columns of either kind."""
    columns: list[dict[str, Any]] = []
    for i in range(int(rng.integers(2, 6))):
        if rng.random() < 0.5:
            columns.append(
                {"name": f"n{i}", "kind": "numeric", "lower": 0, "upper": 1, "bins": int(rng.integers(2, 7))}
            )
        else:
            columns.append(
                {"name": f"c{i}", "kind": "categorical", "values": list("abcdef"[: int(rng.integers(2, 7))])}
            )
    target: dict[str, Any] = {"name": "target", "kind": "numeric", "lower": 0, "upper": 1}
    if task == "classification":
        target = {"name": "target", "kind": "categorical", "values": ["x", "y", "z"][: int(rng.integers(2, 4))]}
    return vw.Schema.from_dict({"name": "random", "task": task, "target": "target", "columns": [*columns, target]})


def random_forest(seed: int, family: str) -> Any:
    """An estimator of a family with random settings, and none of its promise."""
    rng = np.random.default_rng(seed)
    regression = family != "MatrixForest" and rng.random() < 0.4
    schema = random_schema(rng, "regression" if regression else "classification")
    depth = int(rng.integers(1, min(4, len(schema.features)) + 1))
    chosen: dict[str, Any] = {
        "n_estimators": int(rng.choice([1, 2, 5, 30, 128])),
        "max_depth": depth,
        "random_state": int(rng.integers(2**31)),
        "trees": str(rng.choice(["shared", "disjoint"])),
    }
    if family == "MatrixForest":
        chosen |= {"branching": str(rng.choice(["multiway", "binary"])), "trees": "shared"}
        if rng.random() < 0.3 and chosen["n_estimators"] > 1:
            chosen |= {"n_ensembles": 2, "max_features": int(rng.integers(depth, len(schema.features) + 1))}
    if family == "RandomTrees":
        chosen["thresholds"] = str(rng.choice(["path", "range"]))
    if family == "GreedyForest" and not regression:
        chosen["leaf_update"] = str(rng.choice(["laplace", "laplace", "exponential"]))
    return getattr(vw, f"{family}{'Regressor' if regression else 'Classifier'}")(schema, **chosen)


def error(forest: Any, **promise: Any) -> float:
    """The expected error of a leaf; where leaves release labels, how blurred their choice is."""
    plan = forest.set_params(
        **{"epsilon": 1.0, "delta": 0.0, "privacy_unit": "row", "adjacency": "add-remove"} | promise
    ).plan()
    noise = plan.steps[-1].mechanism
    return float(
        plan.expected_leaf_mse
        if isinstance(noise, DiscreteLaplace | DiscreteGaussian)
        else noise.score_range / noise.epsilon
    )


def keeps_the_laws(seed: int, family: str) -> None:
    rng = np.random.default_rng(seed + 10**6)
    forest, epsilon = random_forest(seed, family), float(f"{10 ** rng.uniform(-1.5, 1.3):.3g}")
    delta = float(f"{10 ** rng.uniform(-9, -2.1):.3g}")
    before = error(forest, epsilon=epsilon)
    more = float(f"{epsilon * rng.choice([1.05, 1.3, 2, 6]):.6g}")
    assert error(forest, epsilon=more) <= before * HAIR
    with_delta = error(forest, epsilon=epsilon, delta=delta)
    assert with_delta <= before * HAIR
    assert error(forest, epsilon=more, delta=delta) <= with_delta * HAIR
    assert error(forest, epsilon=epsilon, delta=min(5 * delta, 0.01)) <= with_delta * HAIR
    rows = int(rng.integers(2, 6))
    assert error(forest, epsilon=epsilon, privacy_unit=rows) >= before / HAIR
    assert error(forest, epsilon=epsilon, delta=delta, privacy_unit=rows) >= with_delta / HAIR
    assert error(forest, epsilon=rows * epsilon, privacy_unit=rows) == pytest.approx(before, rel=1e-9)
    assert error(forest, epsilon=epsilon, adjacency="replace-one") >= before / HAIR
    if family == "MatrixForest":
        for promise in ({"epsilon": epsilon}, {"epsilon": epsilon, "delta": delta}):
            optimised = error(forest.set_params(mechanism="optimized"), **promise)
            assert optimised <= error(forest.set_params(mechanism="laplace"), **promise) * HAIR


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_keep_the_laws(family: str, seed: int) -> None:
    keeps_the_laws(seed, family)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
@pytest.mark.parametrize("family", FAMILIES)
def test_plans_keep_the_laws_widely(family: str, seed: int) -> None:
    keeps_the_laws(seed, family)


# -- sizes that are chosen --------------------------------------------------------------------------------------------


def choosing(seed: int, family: str) -> Any:
    """A random estimator that chooses its size, for a number of rows that is declared."""
    forest = random_forest(seed, family).set_params(n_estimators="auto", max_depth="auto", leaves="auto")
    if family == "MatrixForest":
        forest.set_params(n_ensembles=1, max_features=None)
    return forest.set_params(n_rows=int(10 ** np.random.default_rng(seed).uniform(2, 5)))


def size(plan: vw.Plan) -> tuple[Any, ...]:
    return plan.choices["n_estimators"], plan.choices["max_depth"], plan.n_leaves


def keeps_the_laws_of_sizes(seed: int, family: str) -> None:
    rng = np.random.default_rng(seed + 10**7)
    forest, epsilon = choosing(seed, family), float(f"{10 ** rng.uniform(-1.5, 0.7):.3g}")
    rows = int(rng.integers(2, 6))
    promise: dict[str, Any] = {"epsilon": epsilon, "delta": 0.0, "privacy_unit": "row", "adjacency": "add-remove"}
    plan = forest.set_params(**promise).plan()
    assert sum((step.loss.epsilon for step in plan.steps), Fraction(0)) == plan.loss.epsilon == exact_fraction(epsilon)
    # Rows of a person: planned like one row at a smaller epsilon, also in what is chosen.
    scaled = float(rows * exact_fraction(epsilon))
    of_a_person = forest.set_params(epsilon=scaled, privacy_unit=rows).plan()
    assert size(of_a_person) == size(plan)
    assert of_a_person.expected_leaf_mse == pytest.approx(plan.expected_leaf_mse, rel=1e-9)
    # A delta may choose another size. Where it does not, it never costs anything.
    with_delta = forest.set_params(**promise | {"delta": 1e-5}).plan()
    assert with_delta.loss.delta in (0, exact_fraction(1e-5))
    if size(with_delta) == size(plan):
        assert with_delta.expected_leaf_mse <= plan.expected_leaf_mse * HAIR
    # More budget for the same size is never worse.
    more = forest.set_params(**promise | {"epsilon": 2 * epsilon}).plan()
    if size(more) == size(plan):
        assert more.expected_leaf_mse <= plan.expected_leaf_mse * HAIR
    # Without n_rows the plan tells what it would choose, and that is what is chosen.
    result = forest.set_params(**promise, n_rows=None).plan().notes["at 1,000 rows"]
    declared = forest.set_params(n_rows=1000).plan()
    trees, depth = (np.max(declared.choices[name]) for name in ("n_estimators", "max_depth"))
    assert result == f"{trees} trees of depth {depth}, at most"


@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_sizes_keep_the_laws(family: str) -> None:
    keeps_the_laws_of_sizes(1, family)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(200, 215))
@pytest.mark.parametrize("family", FAMILIES)
def test_chosen_sizes_keep_the_laws_widely(family: str, seed: int) -> None:
    keeps_the_laws_of_sizes(seed, family)


def test_labels_are_not_taken_for_noiseless_when_a_size_is_chosen() -> None:
    schema = vw.datasets.car().schema
    labels, counts = (
        vw.GreedyForestClassifier(schema, epsilon=0.2, n_rows=1000, leaf_update=update, random_state=0).plan()
        for update in ("exponential", "laplace")
    )
    assert size(labels) == size(counts)


@pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning", "ignore::veilwood.UtilityWarning")
@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_fits_err_by_what_the_plan_of_a_chosen_size_expects(family: str) -> None:
    """Trees may differ from fit to fit: each is judged by what is in its own leaves."""
    rng = np.random.default_rng(0)
    X, y = rng.random((150, 2)), rng.integers(0, 3, 150)
    schema = vw.Schema.numeric((0, 1), classes=[0, 1, 2], n_features=2)
    # One tree that grows from data sees all rows, whatever key gives rows to trees.
    trees = 1 if family in ("MedianForest", "GreedyForest") else 4
    made = getattr(vw, f"{family}Classifier")(schema, epsilon=1.0, n_rows=150, n_estimators=trees, random_state=0)
    plan, errors = made.plan(), []
    with seeded_for_tests(0):
        for _ in range(200):
            model = clone(made).fit(X, y, plan=plan).model_
            inside = sum_over_trees(model.forest, model.encoding.encode(X), np.eye(model.forest.n_leaves))
            errors.append(((model.leaf_counts - inside.T @ np.eye(3)[y]) ** 2).mean())
    assert abs(np.mean(errors) - plan.expected_leaf_mse) < 5.5 * np.std(errors, ddof=1) / np.sqrt(200)


@pytest.mark.parametrize("family", FAMILIES)
def test_gaussian_noise_wherever_there_is_a_delta_breaks_the_law(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that forests were before: a delta raised the error of few trees many times over."""
    car = vw.datasets.car().schema
    forest = getattr(vw, f"{family}Classifier")(car, n_estimators=1, max_depth=2, random_state=0)
    assert error(forest, delta=1e-6) == error(forest)
    monkeypatch.setattr(noisy_leaves, "_noise_rank", lambda plan: plan.loss.delta == 0)
    forest._prepared = None
    assert error(forest, delta=1e-6) > 5 * error(forest)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_plan_says_whether_its_delta_is_spent(family: str, tmp_path: Path) -> None:
    data = vw.datasets.car()
    shared: dict[str, Any] = {"epsilon": 0.5, "delta": 1e-3, "max_depth": 1, "random_state": 0, "trees": "shared"}
    few, many = (getattr(vw, f"{family}Classifier")(data.schema, n_estimators=n, **shared) for n in (1, 300))
    assert (few.plan().loss.delta, few.plan().choices["law"]) == (0, "pure")
    assert "Delta: not spent" in few.plan().explain()
    assert "Costs epsilon=0.5, protecting" in few.plan().explain()
    if family == "MatrixForest":
        many.set_params(mechanism="laplace")
    assert (float(many.plan().loss.delta), many.plan().choices["law"]) == (1e-3, "zcdp")
    for forest in (few, many):
        plan = forest.plan()
        plan.save(tmp_path / "plan.json")
        again = clone(forest)
        assert again._design_for(data.schema, tmp_path / "plan.json").plan == plan
        spent = clone(forest).set_params(delta=plan.loss.delta)  # as an estimator is made from a plan alone
        assert spent._design_for(data.schema, tmp_path / "plan.json").plan == plan
        forged = vw.Plan.from_dict({**plan.to_dict(), "choices": {**plan.choices, "law": "none"}})
        with rejects(PlanError, raised_in="lower_noise_design"):
            again._design_for(data.schema, forged)


@pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning")
@pytest.mark.parametrize(
    "settings", [{"n_estimators": 3}, {"n_estimators": 40}, {"n_estimators": 9, "n_ensembles": 3, "max_features": 4}]
)
def test_what_a_plan_found_is_not_searched_again(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = vw.datasets.car()
    made: dict[str, Any] = {"max_depth": 2, "random_state": 0, "delta": 1e-5, **settings}
    forest = vw.MatrixForestClassifier(data.schema, **made)
    plan = forest.plan()
    plan.save(tmp_path / "plan.json")

    def searched(*_: Any, **__: Any) -> Any:
        raise AssertionError("searched again")

    for module in (marginal_search, search):
        monkeypatch.setattr(module, "search_marginals", searched)
    forest.fit(data.X, data.y)
    ensembles._grow_cached.cache_clear()  # another process
    loaded = vw.MatrixForestClassifier(data.schema, **made).fit(data.X, data.y, plan=tmp_path / "plan.json")
    assert loaded.plan_ == forest.plan_ == plan
    ensembles._grow_cached.cache_clear()
    with pytest.raises(AssertionError, match="searched again"):
        vw.MatrixForestClassifier(data.schema, **made).fit(data.X, data.y)


def test_shares_that_were_tampered_with_are_refused() -> None:
    schema = vw.datasets.car().schema
    forest = vw.MatrixForestClassifier(
        schema, n_estimators=4, max_depth=1, n_ensembles=2, max_features=3, random_state=0
    )
    plan = forest.plan()
    for shares in (["1/2", "2/3"], ["1", "0"], ["2", "-1"], ["1"], "1", None, ["x", "y"]):
        forged = vw.Plan.from_dict({**plan.to_dict(), "choices": {**plan.choices, "shares": shares}})
        with pytest.raises(vw.VeilwoodError):
            forest._design_for(schema, forged)


def test_infinite_epsilon_needs_no_law() -> None:
    schema = vw.datasets.car().schema
    for family in FAMILIES:
        plan = getattr(vw, f"{family}Classifier")(schema, epsilon=math.inf, max_depth=1, n_estimators=2).plan()
        assert plan.expected_leaf_mse == 0
        assert "law" not in plan.choices
