# SPDX-License-Identifier: Apache-2.0
"""Attacks on estimators, and replays that give a fit the exact answers it had before."""

from __future__ import annotations

import pickle
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
import veilwood_audit as audit
from veilwood import estimators
from veilwood.data.encoding import TARGET_LEVELS
from veilwood.data.open_rows import open_rows
from veilwood.errors import UseError
from veilwood.forests.random_trees import RandomTrees
from veilwood.models import file as model_file
from veilwood.privacy import entropy
from veilwood.privacy.ledger import Reservation
from veilwood.privacy.ledger_stores import MemoryLedger
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.trees.counting import leaf_totals
from veilwood_audit.attacks import (
    attack_estimator,
    audit_one_run,
    canary_estimator,
    canary_schema,
    estimators_of,
    record_releases,
)
from veilwood_audit.noninterference import force_outcomes
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]


ESTIMATORS = {name: getattr(estimators, name) for name in estimators.__all__}


MODELS = [name for name in ESTIMATORS if name != "MatrixForestPredictor"]  # which holds exact counts, by its nature


SETTINGS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in ESTIMATORS),
    ("RandomTreesClassifier", {"n_estimators": 2, "trees": "disjoint"}),
    ("MatrixForestClassifier", {"mechanism": "laplace", "n_estimators": 2}),
    ("MatrixForestPredictor", {"mode": "subsample", "voting": "hard"}),
    ("GreedyForestClassifier", {"leaf_update": "exponential"}),
]


def halve_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wire the mutant into the library: half the scale, whatever was planned."""
    laplace, gaussian = DiscreteLaplace.sample, DiscreteGaussian.sample
    monkeypatch.setattr(DiscreteLaplace, "sample", lambda self, n: laplace(DiscreteLaplace(self.scale / 2), n))
    monkeypatch.setattr(
        DiscreteGaussian, "sample", lambda self, n: gaussian(DiscreteGaussian(self.sigma_squared / 4), n)
    )


# -- canaries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "params"), SETTINGS, ids=str)
def test_one_run_of_every_estimator(name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    forest = canary_estimator(ESTIMATORS[name], 1.0, params)
    labels = params.get("leaf_update") == "exponential"  # of which one row shows less than of a count
    with entropy.seeded_for_tests(1):
        found = audit_one_run(forest).epsilon_lower_bound
    assert (0.2 if labels else 0.5) < found <= 1
    if labels:
        forest.set_params(epsilon=3)  # the twin: selections have no scale to be halved
    else:
        halve_noise(monkeypatch)
    with entropy.seeded_for_tests(1):
        assert audit_one_run(forest).epsilon_lower_bound > 1.1


def test_one_run_under_gaussian_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run shows little of an epsilon with a tiny delta; the mutant shows when it has hardly any noise."""
    forest = canary_estimator(vw.RandomTreesClassifier, 1.0, {"delta": 1e-12})
    with entropy.seeded_for_tests(2):
        assert 0 < audit_one_run(forest).epsilon_lower_bound <= 1
    with entropy.seeded_for_tests(2):
        assert audit_one_run(forest.set_params(epsilon=8)).epsilon_lower_bound > 1


@pytest.mark.parametrize("name", ["RandomTreesClassifier", "MatrixForestClassifier", "PrivateForestClassifier"])
def test_one_run_shows_four_fifths_of_epsilon_by_tradeoff(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forest = canary_estimator(ESTIMATORS[name], 1.0)
    with entropy.seeded_for_tests(7):
        assert 0.8 <= audit_one_run(forest).tradeoff_lower_bound <= 1
    halve_noise(monkeypatch)
    with entropy.seeded_for_tests(7):
        assert audit_one_run(forest).tradeoff_lower_bound > 1.5


def test_tradeoffs_show_gaussian_noise_where_a_delta_hides_it(monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)
    forest = canary_estimator(vw.RandomTreesClassifier, 1.0, {"delta": 1e-6})
    with entropy.seeded_for_tests(8):
        found = audit_one_run(forest)
    assert found.epsilon_lower_bound < 0.02 < 0.1 < found.tradeoff_lower_bound <= 1
    gaussian = DiscreteGaussian.sample
    monkeypatch.setattr(  # a quarter of the noise
        DiscreteGaussian, "sample", lambda self, n: gaussian(DiscreteGaussian(self.sigma_squared / 16), n)
    )
    with entropy.seeded_for_tests(8):
        twin = audit_one_run(forest)
    assert twin.epsilon_lower_bound <= 1 < twin.tradeoff_lower_bound


@pytest.mark.parametrize(
    ("name", "epsilon"),
    [("RandomTreesClassifier", 0.5), ("RandomTreesClassifier", 4.0), ("PrivateForestClassifier", 1.0),
     ("PrivateForestRegressor", 1.0)],
)  # fmt: skip
def test_an_attack_holds_and_catches_the_twin(name: str, epsilon: float) -> None:
    with entropy.seeded_for_tests(3):
        found = attack_estimator(canary_estimator(ESTIMATORS[name], epsilon))
    assert not found.refuted
    assert found.has_power
    assert found.to_dict()["audited"]["epsilon_lower_bound"] == found.audited.epsilon_lower_bound > 0.5 * epsilon


def test_guesses_at_random_show_nothing() -> None:
    class BlindTrees(RandomTrees):
        def build_model(self, design: Any, plan: Any, released: Any, n_jobs: Any = None) -> Any:
            return super().build_model(design, plan, np.random.default_rng(0).integers(-3, 4, released.shape), n_jobs)

    class Blind(vw.RandomTreesClassifier):
        _method_class = BlindTrees

    with entropy.seeded_for_tests(4):
        assert audit_one_run(canary_estimator(Blind, 1.0)).epsilon_lower_bound < 0.05


def test_who_can_be_attacked_is_said() -> None:
    assert {kind for name in ESTIMATORS for kind in estimators_of(name)} == set(ESTIMATORS.values())
    with rejects(UseError, raised_in="estimators_of"):
        estimators_of("random-tree")
    with rejects(UseError, raised_in="canary_estimator"):
        canary_estimator(vw.RandomTreesClassifier, 1.0, {"depth": 3})
    with rejects(UseError, raised_in="attack_estimator"):
        attack_estimator(canary_estimator(vw.RandomTreesClassifier, float("inf")))
    tables = vw.PrivateForestClassifier(canary_schema("classification", 4, 2), epsilon=1.0, n_rows=2000, random_state=0)
    with entropy.seeded_for_tests(5), rejects(UseError, raised_in="_released_leaves"):
        audit_one_run(tables, canaries=16)


# -- what must not depend on the data -----------------------------------------------------------------------


def schema_of(task: str) -> vw.Schema:
    columns: list[dict[str, Any]] = [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 1, "bins": 4},
        {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
        {"name": "score", "kind": "numeric", "lower": 0, "upper": 1, "bins": 3},
    ]
    target: dict[str, Any] = {"name": "target", "kind": "numeric", "lower": 0, "upper": 1}
    if task == "classification":
        target = {"name": "target", "kind": "categorical", "values": ["no", "yes"]}
    return vw.Schema.from_dict({"name": "toy", "task": task, "target": "target", "columns": [*columns, target]})


def table_of(task: str, n: int) -> tuple[pd.DataFrame, NDArray[Any]]:
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"age": rng.random(n), "ward": rng.choice(["A", "B", "C"], n), "score": rng.random(n)})
    y = X["age"].to_numpy() if task == "regression" else np.where(X["age"] > 0.4, "yes", "no")
    return X, y


def small(name: str, **params: Any) -> Any:
    kind = ESTIMATORS[name]
    params = {"n_estimators": 3, "max_depth": 2, "n_rows": 500, "random_state": 0, "n_jobs": 1, **params}
    return kind(schema_of(kind._task), **{key: params[key] for key in params if key in kind._get_param_names()})


# What a plan that goes on from what came out may decide by it; the rest, and which names there are, is decided before.
CHOSEN = {
    "plan_": {"steps", "layout", "choices", "released", "expected_leaf_mse", "notes"},
    "privacy_": {"composition", "released", "mechanism", "chosen"},
}


def unreleased_parts(forest: Any) -> dict[str, Any]:
    """Attributes that are not noisy: all but the leaves, and the splits where they are chosen from data."""
    released = {"leaf_counts_", "leaf_values_", "start_", "model_", "measurements_"}
    if forest.plan_.opened_as or "structure" not in forest.plan_.choices:  # the splits are chosen from data
        released.add("forest_")
    parts = {key: value for key, value in vars(forest).items() if key not in released}
    if forest.plan_.opened_as:
        for name, chosen in CHOSEN.items():
            result = getattr(forest, name).to_dict()
            parts[name] = [list(result), {key: value for key, value in result.items() if key not in chosen}]
    return parts


@pytest.mark.parametrize("params", [{}, {"delta": 1e-6}, {"adjacency": "replace-one"}], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_all_but_what_was_released_is_independent_of_the_data(name: str, params: dict[str, Any]) -> None:
    X, y = table_of(ESTIMATORS[name]._task, 300)
    fits = []
    for rows in (slice(0, 299), slice(0, 300), slice(0, 1)):
        with entropy.seeded_for_tests(16):
            forest = small(name, **params).fit(X[rows], y[rows])
        fits.append(unreleased_parts(forest))
    assert audit.diff_values(fits[0], fits[1]) == []
    assert audit.diff_values(fits[0], fits[2]) == []
    with entropy.seeded_for_tests(16):
        other = small(name, **params).fit(X, y)
    assert audit.diff_values(fits[1] | {"leaf_counts_": 0}, vars(other))  # the comparison can fail


def test_the_plan_of_an_answer_is_independent_of_the_data() -> None:
    X, y = table_of("classification", 300)
    plans = [small("MatrixForestPredictor").fit(X[:rows], y[:rows]).plan_answer(X[:20]) for rows in (299, 300, 20)]
    assert audit.diff_values(plans[0], plans[1]) == audit.diff_values(plans[0], plans[2]) == []
    assert audit.diff_values(plans[0], small("MatrixForestPredictor").fit(X, y).plan_answer(X[:19]))


# -- what it holds ------------------------------------------------------------------------------------------

N_ROWS = 1613  # a number that does not turn up by chance


NOISE_SEED = 90_210_481


def fit_and_secrets(name: str, trees: str) -> tuple[Any, dict[str, Any]]:
    """Fit, and collect what must not be found in the result."""
    X, y = table_of(ESTIMATORS[name]._task, N_ROWS)
    own = {"mechanism": "laplace"} if name.startswith("Matrix") and trees == "disjoint" else {}
    with entropy.seeded_for_tests(NOISE_SEED):
        forest = small(name, trees=trees, **own).fit(X, y)
    source = open_rows(X, y, forest.model_.encoding)
    exact = leaf_totals(
        forest.forest_, source.batches(), n_classes=len(forest.schema_.classes) or None, target_levels=TARGET_LEVELS
    )
    secrets: dict[str, Any] = {
        "n": N_ROWS,
        "noise seed": NOISE_SEED,
        "exact counts of a column": exact[:, 0].copy(),
        "exact counts of four leaves": exact[:4].copy(),
        "first row": X[["age", "score"]].to_numpy()[0],
    }
    if hasattr(forest, "leaf_counts_"):
        secrets["noise"] = (forest.leaf_counts_ - exact).ravel()
    return forest, secrets


@pytest.mark.parametrize("trees", ["shared", "disjoint"])
@pytest.mark.parametrize("name", MODELS)
def test_no_fitted_estimator_or_file_holds_anything_private(name: str, trees: str, tmp_path: Path) -> None:
    forest, secrets = fit_and_secrets(name, trees)
    forest.predict(table_of(forest._task, 10)[0])  # caches, if any, are part of the object
    model_file.save(forest, tmp_path / "model")
    parts = model_file._parse_file((tmp_path / "model").read_bytes())
    visible = {
        "object": forest,
        "text": [repr(forest), str(forest.privacy_), forest.privacy_.to_markdown(), forest.plan_.to_json()],
        "pickle": pickle.dumps(forest),
        "file": [parts.metadata, parts.arrays],
        "loaded": vw.load(tmp_path / "model"),
    }
    for where, thing in visible.items():
        assert audit.find_leaks(thing, secrets) == [], where
    forest.report_ = {"rows": [secrets["n"]], "leaves": secrets["exact counts of a column"].astype(np.int32)}  # mutant
    found = " ".join(audit.find_leaks(forest, secrets) + audit.find_leaks(pickle.dumps(forest), secrets))
    assert "n at" in found
    assert "exact counts of a column at the top" in found


def test_a_predictor_shows_nothing_and_cannot_be_kept(tmp_path: Path) -> None:
    X, y = table_of("classification", N_ROWS)
    predictor = small("MatrixForestPredictor").fit(X, y)
    predictor.answer(X[:5])
    for keep in (pickle.dumps, lambda it: vw.save(it, tmp_path / "model")):
        with pytest.raises(vw.VeilwoodError):
            keep(predictor)
    assert list(tmp_path.iterdir()) == []
    public = [repr(predictor), predictor.privacy_, predictor.plan_, predictor.forest_, predictor.ledger_.entries()]
    assert audit.find_leaks(public, {"n": N_ROWS, "first row": X[["age", "score"]].to_numpy()[0]}) == []


# -- what was charged ---------------------------------------------------------------------------------------


def charged(name: str, ledger: MemoryLedger, **params: Any) -> tuple[Any, Loss]:
    """Fit (and answer), and return the estimator and the sum of what its plan's steps cost."""
    X, y = table_of(ESTIMATORS[name]._task, 200)
    forest = small(name, ledger=ledger, **params).fit(X, y)
    if name == "MatrixForestPredictor":
        forest.answer(X[:10])
    return forest, sum((step.loss for step in forest.plan_.steps), Loss.zero())


def agree(forest: Any, steps: Loss, ledger: MemoryLedger) -> bool:
    """Whether ledger, certificate, plan and the sum of its steps are one number."""
    entries = sum((entry.loss for entry in ledger.entries()), Loss.zero())
    certified = (Fraction(str(forest.privacy_.epsilon)), Fraction(str(forest.privacy_.delta)))
    loss = forest.plan_.loss
    spent = loss.rho == steps.rho == entries.rho if loss.delta else loss.epsilon == steps.epsilon == entries.epsilon
    return spent and certified == (loss.epsilon, loss.delta) == (ledger.spent.epsilon, ledger.spent.delta)


@pytest.mark.parametrize("params", [{}, {"delta": 1e-6}], ids=["pure", "Gaussian"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_ledger_certificate_and_plan_agree(name: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = MemoryLedger()
    assert agree(*charged(name, ledger, epsilon=0.7, **params), ledger)
    # Mutant: a ledger that books half of what was asked for.
    sound = MemoryLedger.reserve

    def half(self: MemoryLedger, loss: Loss, **facts: Any) -> Reservation:
        return sound(self, loss.scaled(Fraction(1, 2)), **facts)

    monkeypatch.setattr(MemoryLedger, "reserve", half)
    ledger = MemoryLedger()
    assert not agree(*charged(name, ledger, epsilon=0.7, **params), ledger)


def test_a_replayed_fit_gets_the_answers_it_got() -> None:
    schema = canary_schema("classification", 4, 2)
    table = pd.DataFrame([["0", "1", "0", "1"]] * 40, columns=list(schema.feature_names))
    target = np.array(["yes", "no"] * 20, dtype=object)

    def fit(rows: int) -> Any:
        forest = vw.MedianForestClassifier(schema, n_estimators=2, max_depth=2, random_state=0, trees="shared")
        return forest.fit(table[:rows], target[:rows])

    with record_releases() as heard:
        first = fit(40)
    with force_outcomes(answers=[out for _, out, _ in heard]) as passages:
        again = fit(7)
    assert (first.predict_proba(table) == again.predict_proba(table)).all()
    assert [passage.step for passage in passages] == [step for step, _, _ in heard]
    assert int(passages[-1].exact.sum()) == 2 * 7  # type: ignore[union-attr]
