# SPDX-License-Identifier: Apache-2.0
"""A plan is what runs: saved, signed by its hash, loaded elsewhere and carried out exactly, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood import estimators
from veilwood.cli.main import main
from veilwood.errors import PlanError
from veilwood_testing.errors import rejects

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning")

RNG = np.random.default_rng(5)
X = RNG.random((400, 3))
CLASSES = vw.Schema.numeric((0, 1), classes=["no", "yes"], n_features=3)
NUMBERS = vw.Schema.numeric((0, 1), target_bounds=(0, 1), n_features=3)
Y = np.where(X[:, 0] > 0.5, "yes", "no")
KINDS = [getattr(estimators, name) for name in estimators.__all__ if not name.endswith("Predictor")]
SMALL: dict[str, Any] = {"n_estimators": 2, "max_depth": 2}


def made(kind: Any, **params: Any) -> Any:
    schema = NUMBERS if kind.__name__.endswith("Regressor") else CLASSES
    return kind(schema, **({} if kind.__name__.startswith("Private") else SMALL), **params)


def target(kind: Any) -> Any:
    return X[:, 0] if kind.__name__.endswith("Regressor") else Y


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("random_state", [None, 7])
def test_what_was_planned_on_monday_is_certified_on_friday(kind: Any, random_state: Any, tmp_path: Path) -> None:
    plan = made(kind, random_state=random_state).plan()
    plan.save(tmp_path / "plan.json")
    signed = vw.Plan.load(tmp_path / "plan.json")
    assert signed == plan
    assert signed.fingerprint() == plan.fingerprint()
    fitted = made(kind, random_state=random_state).fit(X, target(kind), plan=tmp_path / "plan.json")
    assert fitted.privacy_.plan_hash == plan.fingerprint()
    assert (fitted.plan_.opened_as or fitted.plan_.fingerprint()) == plan.fingerprint()
    assert fitted.plan_.public_seed == plan.public_seed


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_planning_again_gives_the_same_plan_and_fit_carries_it_out(kind: Any) -> None:
    forest = made(kind)
    hashes = {forest.plan().fingerprint() for _ in range(3)}
    forest.fit(X, target(kind))
    assert hashes == {forest.privacy_.plan_hash}
    assert forest.plan().fingerprint() not in hashes  # the next fit has a structure of its own


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "change", [{"epsilon": 2.0}, {"adjacency": "replace-one"}, {"privacy_unit": 2}, {"random_state": 8}]
)
def test_anything_else_than_the_plan_is_refused_and_costs_nothing(kind: Any, change: dict[str, Any]) -> None:
    plan, ledger = made(kind, random_state=7).plan(), vw.MemoryLedger()
    with rejects(PlanError, raised_in="BaseForest._design_for"):
        made(kind, **({"random_state": 7, "ledger": ledger} | change)).fit(X, target(kind), plan=plan)
    assert ledger.entries() == []


def test_what_differs_is_said() -> None:
    plan = vw.RandomTreesClassifier(CLASSES, n_estimators=3, random_state=7).plan()
    with rejects(PlanError, raised_in="BaseForest._design_for"):
        vw.RandomTreesClassifier(CLASSES, n_estimators=4, random_state=7).fit(X, Y, plan=plan)
    other = vw.Schema.numeric((0, 2), classes=["no", "yes"], n_features=3)
    with rejects(PlanError, raised_in="BaseForest._design_for"):
        vw.RandomTreesClassifier(other, n_estimators=3, random_state=7).fit(X, Y, plan=plan)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("choices", "structure"), "0" * 64),
        (("public_seed",), 9),
        (("version",), "9.9.9"),
        (("layout", "trees"), 3),
        (("steps", 0, "shape", 0), 99),
        (("released",), "nothing at all"),
    ],
)
def test_an_edited_plan_is_refused(path: tuple[Any, ...], value: Any, tmp_path: Path) -> None:
    forest, file = vw.RandomTreesClassifier(CLASSES, **SMALL), tmp_path / "plan.json"
    forest.plan().save(file)
    data = json.loads(file.read_text())
    here = data
    for key in path[:-1]:
        here = here[key]
    here[path[-1]] = value
    file.write_text(json.dumps(data))
    with pytest.raises(PlanError):
        forest.fit(X, Y, plan=file)


def test_a_plan_holds_neither_a_noise_seed_nor_a_key(tmp_path: Path) -> None:
    forest = vw.RandomTreesClassifier(CLASSES, trees="disjoint", **SMALL)
    forest.plan().save(tmp_path / "plan.json")
    first, second = (vw.RandomTreesClassifier(CLASSES, trees="disjoint", **SMALL) for _ in range(2))
    first.fit(X, Y, plan=tmp_path / "plan.json")
    second.fit(X, Y, plan=tmp_path / "plan.json")
    assert first.privacy_.plan_hash == second.privacy_.plan_hash
    assert not np.array_equal(first.leaf_counts_, second.leaf_counts_)  # noise and assignment are fresh


def test_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema, table, plan = tmp_path / "s.json", tmp_path / "t.csv", tmp_path / "plan.json"
    CLASSES.save(schema)
    names = [*CLASSES.feature_names, CLASSES.target.name]
    rows = [",".join([*map(str, x), y]) for x, y in zip(X, Y, strict=True)]
    table.write_text("\n".join([",".join(names), *rows]) + "\n")
    words = ["--schema", str(schema), "--estimator", "median-forest", "--epsilon", "0.5"]
    assert main(["plan", *words, "-p", "max_depth=2", "-o", str(plan)]) == 0
    assert vw.Plan.load(plan).fingerprint() in capsys.readouterr().out
    model = tmp_path / "m.veilwood"
    assert main(["fit", str(table), "--schema", str(schema), "--plan", str(plan), "-o", str(model)]) == 0
    assert vw.load(model).privacy_.plan_hash == vw.Plan.load(plan).fingerprint()
    plan.write_text(plan.read_text().replace('"max_depth": 2', '"max_depth": 3'))
    again = ["fit", str(table), "--schema", str(schema), "--plan", str(plan), "-o", str(tmp_path / "n.veilwood")]
    capsys.readouterr()
    assert main([*again, "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"] == "PlanError"


@pytest.mark.parametrize("branching", ["multiway", "binary"])
def test_a_strategy_is_carried_by_the_plan_and_not_searched_again(
    branching: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    car = vw.datasets.car()
    forest = vw.MatrixForestClassifier(car.schema, n_estimators=4, max_depth=2, branching=branching, random_state=1)
    forest.plan().save(tmp_path / "plan.json")

    def search(*_: Any, **__: Any) -> Any:
        raise AssertionError("searched again")

    monkeypatch.setattr("veilwood.forests.matrix.measurement.optimize", search)
    forest.fit(car.X, car.y)  # the plan that was just made
    again = vw.MatrixForestClassifier(car.schema, n_estimators=4, max_depth=2, branching=branching, random_state=1)
    again.fit(car.X, car.y, plan=tmp_path / "plan.json")
    assert again.privacy_.plan_hash == forest.privacy_.plan_hash


@pytest.mark.parametrize(
    "strategies",
    [[], [None, None], [{}], [{"marginals": [[[0], -1]]}], [{"marginals": [[[0], 1]]}], [{"factors": [[[1]]]}], 3],
)
def test_an_edited_strategy_is_refused(strategies: Any) -> None:
    car = vw.datasets.car()
    forest = vw.MatrixForestClassifier(car.schema, n_estimators=4, max_depth=2, random_state=1)
    data = forest.plan().to_dict()
    data["choices"]["strategies"] = strategies
    with pytest.raises(PlanError):
        forest.fit(car.X, car.y, plan=vw.Plan.from_dict(data))
