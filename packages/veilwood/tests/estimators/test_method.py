# SPDX-License-Identifier: Apache-2.0
"""The protocol of methods: the same for every family, with no scikit-learn in it, and prepared once."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

import veilwood as vw
from veilwood import estimators, forests, trees
from veilwood.data.encoding import Encoding
from veilwood.data.open_rows import open_rows
from veilwood.errors import ParameterError, PlanError, UseError
from veilwood.estimators.method import Decisions
from veilwood.estimators.parameters import SharedParameters
from veilwood.privacy.door import Door
from veilwood.privacy.entropy import seeded_for_tests
from veilwood.privacy.selection import ExponentialMechanism, PermuteAndFlip
from veilwood_testing.errors import rejects
from veilwood_testing.noise_checks import prefer_zcdp

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

CAR = vw.datasets.car()
LINE = vw.Schema.numeric((0, 1), target_bounds=(0, 10), n_features=3)
X_LINE = np.random.default_rng(0).random((400, 3))
MODELS = sorted(name for name in estimators.__all__ if hasattr(getattr(estimators, name), "predict"))


def table_for(name: str) -> tuple[Any, Any, vw.Schema]:
    if getattr(estimators, name)._task == "regression":
        return X_LINE, 10 * X_LINE[:, 0], LINE
    return CAR.X, CAR.y, CAR.schema


def small(name: str, **parameters: Any) -> Any:
    kind = getattr(estimators, name)
    usual = {"n_estimators": 4, "max_depth": 2, "random_state": 0, "epsilon": 5.0} | parameters
    return kind(table_for(name)[2], **{key: usual[key] for key in usual if key in kind._get_param_names()})


@pytest.mark.parametrize("name", MODELS)
def test_a_method_runs_without_its_shell(name: str) -> None:
    X, y, schema = table_for(name)
    shell = small(name)
    method = shell._make_method()
    with seeded_for_tests(1):
        design = method.make_design(shell._fit_request(schema, 0))
        with Door(design.plan, vw.MemoryLedger()) as door:
            released = method.measure_rows(design, open_rows(X, y, design.encoding), door)
        model = method.build_model(design, door.plan, released)
    with seeded_for_tests(1):
        fitted = small(name).fit(X, y)
    codes = model.encoding.encode(X)
    again = method.restore_model(schema, door.plan, model.to_arrays())
    np.testing.assert_array_equal(model.predict_outputs(codes), again.predict_outputs(codes))
    values = fitted.predict_proba(X) if hasattr(fitted, "predict_proba") else fitted.predict(X)
    np.testing.assert_array_equal(model.predict_outputs(codes), values)
    assert all(hasattr(fitted, f"{each}_") for each in model.public_attributes)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_prepared_again_for_a_prediction(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y, _ = table_for(name)
    fitted = small(name).fit(X, y)
    vw.save(fitted, tmp_path / "model")
    loaded = vw.load(tmp_path / "model")
    expected = fitted.predict(X)

    def refuse(*_: object) -> None:
        raise AssertionError("an encoding was made for a prediction")

    monkeypatch.setattr(Encoding, "__post_init__", refuse)
    for model in (fitted, loaded):
        np.testing.assert_array_equal(model.predict(X), expected)
    with pytest.raises(AssertionError):  # the watch can fail
        Encoding(fitted.schema_)


@pytest.mark.parametrize("name", estimators.__all__)
def test_parameters_are_declared_once(name: str) -> None:
    kind = getattr(estimators, name)
    signature = inspect.signature(kind).parameters
    assert next(iter(signature)) == "schema"
    assert all(each.kind is each.KEYWORD_ONLY for each in list(signature.values())[1:])
    shared = {each.name for each in fields(SharedParameters)}
    assert shared <= set(signature)
    declared = [base for base in kind.__mro__[1:] if is_dataclass(base) and "__annotations__" in vars(base)]
    assert "__init__" not in inspect.getsource(kind)
    assert set(signature) == {each.name for base in declared for each in fields(base) if each.init}
    first = kind(CAR.schema, n_jobs=2, invalid="drop")
    assert clone(first).get_params() == first.get_params()
    with rejects(ParameterError, name="invalid"):
        kind(CAR.schema if kind._task == "classification" else LINE, invalid="maybe")._requested_privacy()


def test_methods_know_no_scikit_learn() -> None:
    """But the sparse histogram, which fits trees to released cells, and two modules that hold estimator classes too."""
    found = set()
    for path in (path for room in (forests, trees) for path in Path(room.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found |= {path.stem for name in names if name.split(".")[0] == "sklearn"}
    assert found == {"sparse_histogram", "answering", "private_forest"}


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith(("Greedy", "Median"))])
def test_the_better_selection_is_chosen_by_the_budget(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer_zcdp(monkeypatch)

    def chosen_by(**parameters: Any) -> set[type]:
        return {type(step.mechanism) for step in small(name, **parameters).plan().steps[:-1]}

    assert chosen_by() == chosen_by(selection="flip") == chosen_by(selection="flip", delta=1e-6) == {PermuteAndFlip}
    assert chosen_by(delta=1e-6) == chosen_by(selection="exponential") == {ExponentialMechanism}
    # With a delta a choice of the same price is sharper by the exponential mechanism.
    sharp, blunt = (small(name, delta=1e-6, selection=by).plan().steps[0].mechanism for by in ("auto", "flip"))
    assert sharp.epsilon > blunt.epsilon


def test_a_model_read_otherwise_than_fitted_is_not_saved(tmp_path: Path) -> None:
    fitted = small("RandomTreesClassifier").fit(CAR.X, CAR.y)
    expected = fitted.predict(CAR.X)
    fitted.set_params(voting="threshold")
    np.testing.assert_array_equal(fitted.predict(CAR.X), expected)
    with rejects(UseError, raised_in="save"):
        vw.save(fitted, tmp_path / "model")


@dataclass(frozen=True, kw_only=True)
class ShapeDecisions(Decisions):
    """Decisions of a family, as a test declares them."""

    sizes: Sequence[int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sizes is not None and min(self.sizes) < 1:
            raise ValueError("sizes are at least 1")


def test_decisions_in_a_plan_are_json_and_read_back() -> None:
    choices = ShapeDecisions(law="pure", sizes=(2, 3)).to_choices()
    assert choices == {"law": "pure", "sizes": [2, 3]}
    assert ShapeDecisions.from_choices(choices).to_choices() == choices


@pytest.mark.parametrize("forged", [{"size": [1]}, {"sizes": [0]}, {"sizes": 3}, {"sizes": []}, {"law": 1}])
def test_forged_decisions_are_refused(forged: dict[str, Any]) -> None:
    with pytest.raises(PlanError):
        ShapeDecisions.from_choices(forged)
