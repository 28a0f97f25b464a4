# SPDX-License-Identifier: Apache-2.0
"""Model files in which one claim was forged and all hashes mended: load, report and sign refuse each of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save as write_safetensors

import veilwood as vw
from veilwood.cli.main import main
from veilwood.errors import PlanError, UseError
from veilwood.models import file as model_file
from veilwood.models import file as signed
from veilwood.privacy import signature
from veilwood.privacy.certificate import PrivacyCertificate, adaptive_decisions, assumptions_of
from veilwood.privacy.loss import Loss
from veilwood.privacy.noise import DiscreteLaplace
from veilwood.privacy.plan import Plan
from veilwood.privacy.steps import Step
from veilwood.reporting import render_report
from veilwood_testing.errors import rejects

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.UtilityWarning"),
]

SCHEMA = vw.Schema.from_dict({
    "name": "clinic", "task": "classification", "target": "ill", "columns": [
        {"name": "age", "kind": "numeric", "lower": 0, "upper": 100, "nullable": True},
        {"name": "dose", "kind": "numeric", "lower": 0, "upper": 10},
        {"name": "ward", "kind": "categorical", "values": ["A", "B", "C"]},
        {"name": "ill", "kind": "categorical", "values": ["no", "perhaps", "yes"]},
    ],
})  # fmt: skip
RNG = np.random.default_rng(0)
AGE, DOSE, WARD = RNG.uniform(0, 100, 2000), RNG.uniform(0, 10, 2000), RNG.choice(["A", "B", "C"], 2000)
X = pd.DataFrame({"age": AGE, "dose": DOSE, "ward": WARD})
Y = np.array(["no", "perhaps", "yes"])[(AGE > 60).astype(int) + ((DOSE > 5) & (WARD == "B"))]


def fitted(kind: Any, **parameters: Any) -> Any:
    return kind(SCHEMA, random_state=0, n_jobs=1, **parameters).fit(X, Y)


def telling() -> Any:
    """Return a fit that explains all columns and has rounds: noise decides."""
    fits = (fitted(vw.PrivateForestClassifier, epsilon=4.0) for _ in range(30))
    return next(
        fit for fit in fits
        if {0, 1, 2} <= set(fit.model_.effects.forest.feature.tolist())
        and any(s.name.endswith(": rows") for s in fit.plan_.steps)
    )  # fmt: skip


MODELS: dict[str, Callable[[], Any]] = {
    "trees": lambda: fitted(vw.RandomTreesClassifier, n_estimators=4, max_depth=3),
    "sized": lambda: fitted(vw.RandomTreesClassifier),
    "matrix": lambda: fitted(vw.MatrixForestClassifier, n_estimators=4, max_depth=2),
    "private": telling,
    "exact": lambda: fitted(vw.RandomTreesClassifier, n_estimators=4, max_depth=3, epsilon=float("inf")),
}


@cache
def model(name: str) -> Any:
    return MODELS[name]()


@dataclass
class Forged:
    """A file taken apart, to be put together again with hashes and a certificate that fit."""

    parameters: dict[str, Any]
    schema: dict[str, Any]
    plan: dict[str, Any]
    certificate: dict[str, Any]
    arrays: dict[str, Any]
    metadata: dict[str, str]
    text: str = ""  # about privacy, in the header; by default that of the certificate
    mends: bool = True  # whether the certificate is made to say what the plan says

    @classmethod
    def of(cls, path: Path) -> Forged:
        metadata, arrays = model_file._parse_file(path.read_bytes())
        parts = {key: json.loads(metadata[key]) for key in ("parameters", "schema", "plan", "certificate")}
        return cls(**parts, arrays=dict(arrays), metadata=metadata)

    def step(self, change: Callable[[Any], Step], place: int = 0) -> None:
        """Change a step, in exact numbers and in words."""
        self.plan["steps"][place] = change(Step.from_dict(self.plan["steps"][place])).to_dict()

    def loss(self, loss: Loss) -> None:
        """Promise another loss, everywhere."""
        plan = replace(Plan.from_dict(self.plan), loss=loss)
        self.plan = json.loads(plan.to_json())

    def write(self, path: Path) -> None:
        if self.mends:
            steps = self.plan["steps"]
            text = json.dumps(self.plan, sort_keys=True)
            self.certificate |= {name: self.plan[name] for name in ("adjacency", "unit", "released", "schema_hash")}
            self.certificate |= {
                "composition": steps,
                "mechanism": "; ".join(dict.fromkeys(s["mechanism"] for s in steps)),
            }
            self.certificate["plan_hash"] = self.plan["opened_as"] or hashlib.sha256(text.encode()).hexdigest()
            if self.certificate["is_private"]:
                self.certificate |= {name: float(Fraction(self.plan[name])) for name in ("epsilon", "delta")}
            try:
                plan = Plan.from_dict(self.plan)
                rests = [each.value.format(unit=plan.neighbours.unit) for each in assumptions_of(plan, "not", None)]
                self.certificate["assumptions"] = rests
                self.certificate["chosen"] = json.loads(json.dumps(adaptive_decisions(plan, plan.fingerprint())))
            except vw.VeilwoodError:
                pass
        whole = {key: json.dumps(getattr(self, key)) for key in ("parameters", "schema", "plan", "certificate")}
        metadata = {**self.metadata, **whole}
        with suppress(vw.VeilwoodError):
            metadata["privacy"] = self.text or str(PrivacyCertificate.from_dict(self.certificate))
        digest = model_file._content_digest(metadata, self.arrays)
        path.write_bytes(write_safetensors(self.arrays, {**metadata, "sha256": digest}))


# -- what a forger may try ---------------------------------------------------------------------------------------------


def both(name: str, value: Any) -> Callable[[Forged], None]:
    """Change a parameter, and the plan's word of it too."""

    def change(forged: Forged) -> None:
        forged.parameters[name] = value
        if name in forged.plan["parameters"]:
            forged.plan["parameters"][name] = value
        if name == "adjacency":
            forged.plan["adjacency"] = value
        if name == "privacy_unit":
            forged.plan |= {"privacy_unit": value, "unit": f"any {value} rows"}

    return change


def in_plan(*path: Any, value: Any) -> Callable[[Forged], None]:
    def change(forged: Forged) -> None:
        inner: Any = forged.plan
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = value(inner[path[-1]]) if callable(value) else value

    return change


def in_certificate(**changes: Any) -> Callable[[Forged], None]:
    def change(forged: Forged) -> None:
        forged.mends = False
        for name, value in changes.items():
            forged.certificate[name] = value(forged.certificate[name]) if callable(value) else value

    return change


def for_fewer_trees(forged: Forged) -> None:
    """Noise for a row in half of the trees."""
    forged.step(lambda step: replace(
        step, sensitivity=step.sensitivity // 2, mechanism=DiscreteLaplace(step.mechanism.scale / 2),
    ))  # fmt: skip


def half_the_loss(forged: Forged) -> None:
    """The same noise, sold as twice as private by a smaller sensitivity."""
    half = Loss.pure(Fraction(1, 2))
    forged.step(lambda step: replace(step, sensitivity=step.sensitivity // 2, loss=half))
    forged.loss(half)
    forged.parameters["epsilon"] = 0.5


def less_noise(forged: Forged) -> None:
    forged.step(lambda step: replace(step, mechanism=DiscreteLaplace(step.mechanism.scale * 3 / 4), sensitivity=3))


def more_noise(forged: Forged) -> None:
    """Numbers sold as noisier than they are."""
    forged.step(lambda step: replace(step, mechanism=DiscreteLaplace(2 * step.mechanism.scale)))


def declared(forged: Forged) -> None:
    forged.plan["layout"] |= {"rows_planned": 9, "rows_known": "declared"}


def less_for_rows(forged: Forged) -> None:
    a_step("rows", loss=Loss.pure(Fraction(1, 30)), mechanism=DiscreteLaplace(Fraction(30)))(forged)


def with_delta(forged: Forged) -> None:
    forged.loss(Loss(Fraction(1), Fraction(1, 10**6)))
    forged.parameters["delta"] = 1e-6


def trees_of_another_seed(forged: Forged) -> None:
    other = fitted(vw.RandomTreesClassifier, n_estimators=4, max_depth=3).set_params(random_state=1)
    other = other.fit(X, Y)
    forged.arrays = other.model_.to_arrays()
    forged.plan["choices"] = dict(other.plan_.choices)


def other_schema(change: Callable[[dict[str, Any]], None]) -> Callable[[Forged], None]:
    """Another schema, whose hash stands wherever it should."""

    def forge(forged: Forged) -> None:
        change(forged.schema)
        forged.plan["schema_hash"] = vw.Schema.from_dict(forged.schema).fingerprint()

    return forge


def wider(schema: dict[str, Any]) -> None:
    schema["columns"][1]["upper"] = 20


def bounds_alone(forged: Forged) -> None:
    wider(forged.schema)


def permuted(schema: dict[str, Any]) -> None:
    schema["columns"][3]["values"] = ["yes", "no", "perhaps"]


def private_after_all(forged: Forged) -> None:
    forged.mends = False
    forged.certificate |= {"is_private": True, "reason": None, "epsilon": 1.0, "delta": 0.0}
    forged.parameters["epsilon"] = 1.0


def told_of(column: int) -> Callable[[Forged], None]:
    """Explanations of a column as those of another one."""

    def forge(forged: Forged) -> None:
        feature = forged.arrays["effects_feature"].copy()
        feature[feature == 1] = column
        forged.arrays["effects_feature"] = feature

    return forge


def told_of_other_groups(forged: Forged) -> None:
    cut = forged.arrays["effects_cut"].copy()
    cut[np.flatnonzero((forged.arrays["effects_feature"] == 1) & (cut > 1))[-1]] += 1
    forged.arrays["effects_cut"] = cut


def a_step(name: str, **changes: Any) -> Callable[[Forged], None]:
    def forge(forged: Forged) -> None:
        places = [place for place, step in enumerate(forged.plan["steps"]) if step["name"].endswith(name)]
        forged.step(lambda step: replace(step, **changes), places[0])

    return forge


def sampled_by_servers(forged: Forged) -> None:
    """A delta that only noise sampled on shares may have."""
    forged.loss(Loss(Fraction(1), Fraction(1, 10**13)))


FORGERIES: dict[str, tuple[str, Callable[[Forged], None]]] = {
    "sensitivity and scale for fewer trees": ("trees", for_fewer_trees),
    "sensitivity and loss halved": ("trees", half_the_loss),
    "scale and sensitivity lowered": ("trees", less_noise),
    "more noise than there was": ("trees", more_noise),
    "another name of a step": ("trees", in_plan("steps", value=lambda steps: [{**steps[0], "name": "leaves"}])),
    "another shape of a step": ("trees", a_step("leaves", shape=(7, 3))),
    "a delta": ("trees", with_delta),
    "the delta of servers": ("trees", sampled_by_servers),
    "a unit of three rows": ("trees", both("privacy_unit", 3)),
    "another adjacency": ("trees", both("adjacency", "replace-one")),
    "a largest weight": ("trees", both("max_weight", 5)),
    "more trees in the parameters": ("trees", both("n_estimators", 40)),
    "deeper trees in the parameters": ("trees", both("max_depth", 5)),
    "more trees in one place": ("trees", lambda forged: forged.parameters.update(n_estimators=40)),
    "another public seed": ("trees", in_plan("public_seed", value=7)),
    "trees of another seed": ("trees", trees_of_another_seed),
    "another hash of the trees": ("trees", in_plan("choices", "structure", value="0" * 64)),
    "a choice that nobody makes": ("trees", in_plan("choices", value=lambda c: {**c, "x": 1})),
    "more trees in the layout": ("trees", in_plan("layout", "trees", value=40)),
    "rows in one tree each": ("trees", in_plan("layout", "records", value="each to one tree")),
    "rows declared": ("trees", declared),
    "other words of what is released": ("trees", in_plan("released", value="nothing at all")),
    "another seed in the parameters": ("trees", lambda forged: forged.parameters.update(random_state=1)),
    "no version": ("trees", in_plan("version", value="x")),
    "planned by another version": ("trees", in_plan("version", value="0.0.9")),
    "another rho of a pure step": (
        "private", in_plan("steps", 0, "exact", "rho", value=lambda rho: str(2 * Fraction(rho))),
    ),
    "an expectation in the notes": ("trees", in_plan("notes", value={"x": "What to expect: accuracy 0.99"})),
    "a quality to expect": ("trees", in_plan("expected", value={"at 300 rows": "accuracy 0.99"})),
    "less noise to expect": ("trees", in_plan("expected_leaf_mse", value=0.01)),
    "another estimator in the plan": ("trees", in_plan("estimator", value="MedianForestClassifier")),
    "another schema's name": ("trees", in_plan("schema", value="census")),
    "refined, it says": ("trees", in_plan("opened_as", value="1" * 64)),
    "a text about privacy": ("trees", lambda forged: vars(forged).update(text="epsilon=0.01 for one row")),
    "an assumption left out": ("trees", in_certificate(assumptions=lambda all_of_them: all_of_them[1:])),
    "an assumption reworded": ("trees", in_certificate(assumptions=lambda a: [*a[:-1], "nothing else"])),
    "another ledger than in memory": ("trees", in_certificate(ledger="spends.db")),
    "an entry that no ledger has": ("trees", in_certificate(ledger_entry=0)),
    "another mechanism": ("trees", in_certificate(mechanism="discrete Laplace, scale 400")),
    "other words in the certificate": ("trees", in_certificate(released="nothing at all")),
    "an empty composition": ("trees", in_certificate(composition=[])),
    "a smaller epsilon": ("trees", in_certificate(epsilon=0.1)),
    "another unit in words": ("trees", in_certificate(unit="any 1,000 rows")),
    "a choice in the certificate": ("trees", in_certificate(chosen={"choices": {}, "layout": {}, "plan_hash": ""})),
    "bounds changed": ("trees", bounds_alone),
    "private after all": ("exact", private_after_all),
    "more trees chosen": ("sized", in_plan("choices", "n_estimators", value=lambda n: 2 * n)),
    "rows declared that were measured": ("sized", in_plan("layout", "rows_known", value="declared")),
    "more rows than were measured": ("sized", in_plan("layout", "rows_planned", value=lambda n: 10 * n)),
    "another share of the first step": ("sized", less_for_rows),
    "other shares of ensembles": ("matrix", in_plan("choices", "shares", value=lambda s: ["1/2", "1/2"])),
    "no strategy": ("matrix", in_plan("choices", "strategies", value=[])),
    "another division": ("matrix", in_plan("choices", "division", value=lambda n: n + 1)),
    "more noise in a strategy": ("matrix", more_noise),
    "explained a column as another": ("private", told_of(0)),
    "explained other groups": ("private", told_of_other_groups),
    "odd limits of many classes": ("private", in_plan("choices", "limits", value=[4096, 5])),
    "limits that are no numbers": ("private", in_plan("choices", "limits", value=[True, "4096"])),
    "a choice beside": ("private", in_plan("choices", value=lambda chosen: {**chosen, "x": 1})),
    "more leaves in the layout": ("private", in_plan("layout", "leaves", value=lambda n: n + 1)),
    "more steps in the layout": ("private", in_plan("layout", "trees", value=lambda n: n + 1)),
    "rows counted": ("private", in_plan("layout", "rows_known", value="counted")),
    "opened by another plan": ("private", in_plan("opened_as", value="2" * 64)),
    "rows of a round in other cells": ("private", a_step(": rows", shape=(77,))),
    "wider bounds, with all hashes of them": ("private", other_schema(wider)),
    "classes permuted, with all hashes of them": ("private", other_schema(permuted)),
}  # fmt: skip


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "clinic.key"
    signature.generate_key_pair(path)
    return path


@pytest.mark.parametrize("name", MODELS)
def test_files_put_together_again_are_taken(name: str, tmp_path: Path, key: Path) -> None:
    path = tmp_path / "model"
    vw.save(model(name), path)
    Forged.of(path).write(path)
    assert vw.load(path).privacy_ == model(name).privacy_
    assert vw.report(path, tmp_path / "page.html").exists()
    assert signed.sign(path, key).exists()


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_claim_is_refused(name: str, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of, forge = FORGERIES[name]
    path, page = tmp_path / "model", tmp_path / "page.html"
    vw.save(model(of), path)
    honest = path.read_bytes()
    forged = Forged.of(path)
    forge(forged)
    forged.write(path)
    assert path.read_bytes() != honest
    with pytest.raises(vw.ModelFileError) as caught:
        vw.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(vw.ModelFileError):
        vw.report(path, page)
    with pytest.raises(vw.ModelFileError):
        signed.sign(path, key)
    for words in (["sign", str(path), "--key", str(key)], ["report", str(path), "-o", str(page)]):
        assert main(words) != 0
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not page.exists()
    assert not signature.signature_path(path).exists()


# -- models in memory, and plans ---------------------------------------------------------------------------------------


def tampered() -> dict[str, Callable[[Any], None]]:
    return {
        "epsilon": lambda forest: forest.set_params(epsilon=0.1),
        "parameter": lambda forest: forest.set_params(max_depth=2),
        "certificate": lambda forest: vars(forest).update(privacy_=replace(forest.privacy_, epsilon=0.1)),
        "assumptions": lambda forest: vars(forest).update(privacy_=replace(forest.privacy_, assumptions=())),
        "notes": lambda forest: vars(forest).update(plan_=replace(forest.plan_, notes={"x": "y"})),
        "leaves": lambda forest: vars(forest).update(
            model_=replace(forest.model_, leaf_values=forest.model_.leaf_values[::-1])
        ),
    }


@pytest.mark.parametrize("name", tampered())
def test_a_report_refuses_a_model_that_was_changed_in_memory(name: str) -> None:
    forest = fitted(vw.RandomTreesClassifier, n_estimators=4, max_depth=3)
    assert "<h3>Recomputed</h3>" in render_report(forest)
    tampered()[name](forest)
    with rejects(UseError, raised_in="render_report"):
        render_report(forest)


def test_a_report_looks_the_entry_up(tmp_path: Path) -> None:
    ledger, other = vw.MemoryLedger(), vw.MemoryLedger()
    forest = fitted(vw.RandomTreesClassifier, n_estimators=4, max_depth=3, ledger=ledger)
    assert "NOT FOUND" not in render_report(forest, ledger=ledger)
    assert "NOT FOUND" in render_report(forest, ledger=other)


def edited(plan: dict[str, Any]) -> dict[str, dict[str, Any]]:
    step = plan["steps"][0]
    exact = step["exact"]
    return {
        "sensitivity": {"steps": [{**step, "sensitivity": 400}]},
        "words": {"steps": [{**step, "mechanism": "discrete Laplace, scale 400"}]},
        "scale": {"steps": [{**step, "exact": {**exact, "mechanism": {**exact["mechanism"], "scale": "1/9"}}}]},
        "epsilon": {"epsilon": "1/10"},
        "no number": {"epsilon": True},
        "unit": {"privacy_unit": 3},
        "adjacency": {"adjacency": "nearly"},
        "lines": {"adjacency": "two\nlines"},
        "more": {"more": 1},
        "steps": {"steps": []},
    }


@pytest.mark.parametrize("name", edited(vw.RandomTreesClassifier(SCHEMA, n_estimators=2, max_depth=2).plan().to_dict()))
def test_a_plan_edited_by_hand_is_refused_in_one_line(
    name: str, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, path = model("trees").plan_.to_dict(), tmp_path / "plan.json"
    path.write_text(json.dumps({**plan, **edited(plan)[name]}))
    with pytest.raises(PlanError) as caught:
        Plan.load(path)
    assert "\n" not in str(caught.value)
    with pytest.raises(PlanError):
        signed.sign(path, key)
    assert_one_line(path, tmp_path, key, capsys)


def test_a_plan_for_fewer_trees_is_refused_where_it_is_carried_out(
    tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By itself such a plan keeps its loss: only schema and parameters show that more can move."""
    plan, path = model("trees").plan_.to_dict(), tmp_path / "plan.json"
    path.write_text(json.dumps({**plan, "steps": [{**plan["steps"][0], "sensitivity": 1}]}))
    assert main(["sign", str(path), "--key", str(key)]) == 0
    assert "veilwood fit --plan checks" in capsys.readouterr().out
    signature.signature_path(path).unlink()
    with rejects(PlanError, raised_in="BaseForest._design_for") as caught:
        vw.RandomTreesClassifier(SCHEMA, n_estimators=4, max_depth=3).fit(X, Y, plan=path)
    assert "\n" not in str(caught.value)


def assert_one_line(path: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Sign and fit say in one line what is wrong with a plan."""
    (tmp_path / "rows.csv").write_text("age,dose,ward,ill\n1,1,A,no\n")
    SCHEMA.save(tmp_path / "schema.json")
    out = str(tmp_path / "model")
    for words in (
        ["sign", str(path), "--key", str(key)],
        ["fit", str(tmp_path / "rows.csv"), "--schema", str(tmp_path / "schema.json"), "--plan", str(path), "-o", out],
    ):
        assert main(words) != 0
        assert len(capsys.readouterr().err.strip().splitlines()) == 1
