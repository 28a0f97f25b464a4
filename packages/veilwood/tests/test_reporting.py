# SPDX-License-Identifier: Apache-2.0
"""One-page reports: nothing is loaded, the guarantee is the certificate's, every estimator is shown."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.charts import posterior_range
from veilwood.errors import UseError
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.matrix.measurement import MatrixStep
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.reporting import STEP_PURPOSES, describe_guarantee, purpose_of, render_report
from veilwood_testing.commands import PageTags
from veilwood_testing.errors import rejects


@pytest.fixture(scope="module")
def forest() -> Any:
    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X, car.y, holdout_fraction=0.3)


def test_the_page_loads_nothing_and_is_whole(forest: Any) -> None:
    seen = PageTags(render_report(forest))
    assert seen.open == []
    assert {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in seen.tags} == set()
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", render_report(forest))
    text = " ".join(seen.text)
    for result in ("epsilon = 2", "Quality", "accuracy", "safety", "Certificate", forest.privacy_.plan_hash):
        assert result in text, result
    for assumption in forest.privacy_.assumptions:
        assert assumption in text


@pytest.mark.parametrize(
    "name", ["RandomTreesClassifier", "MatrixForestClassifier", "MedianForestClassifier", "GreedyForestClassifier"]
)
def test_every_estimator_has_a_page(name: str) -> None:
    car = vw.datasets.car()
    model = getattr(vw, name)(car.schema, n_estimators=2, max_depth=2, random_state=0).fit(car.X, car.y)
    text = " ".join(PageTags(render_report(model)).text)
    assert name in text
    assert "was not measured" in text


def test_names_from_outside_are_text_and_never_tags() -> None:
    evil = "<script>alert(1)</script>"
    schema = vw.Schema.from_dict({"name": evil, "task": "classification", "target": "<b>y", "columns": [
        {"name": evil, "kind": "categorical", "values": ["<i>a", "b&amp;"]},
        {"name": "<b>y", "kind": "categorical", "values": ["<u>0", "1"]}]})  # fmt: skip
    rng = np.random.default_rng(0)
    X, y = rng.choice(["<i>a", "b&amp;"], (200, 1)), rng.choice(["<u>0", "1"], 200)
    ledger = vw.MemoryLedger(5, population=evil)
    model = vw.PrivateForestClassifier(schema, epsilon=2.0, ledger=ledger, random_state=0)
    model.fit(X, y, holdout_fraction=0.3)
    seen = PageTags(render_report(model, ledger=ledger))
    assert {"script", "i", "u"}.isdisjoint({tag for tag, attrs in seen.tags if "style" not in attrs} - {"i"})
    assert not any(tag in ("script", "u", "b") for tag, _ in seen.tags)
    assert evil in " ".join(seen.text)


def test_what_is_not_private_says_so_loudly() -> None:
    car = vw.datasets.car()
    with pytest.warns(vw.PrivacyWarning):
        model = vw.RandomTreesClassifier(car.schema, epsilon=float("inf"), random_state=0).fit(car.X, car.y)
    text = " ".join(PageTags(render_report(model)).text)
    assert "NOT PRIVATE" in text
    assert "no guarantee" in text
    assert "How far a belief" not in text


def test_an_evaluation_of_another_model_is_refused(forest: Any) -> None:
    car = vw.datasets.car()
    other = vw.RandomTreesClassifier(car.schema, random_state=1).fit(car.X, car.y)
    found = vw.evaluate(other, car.X, car.y, epsilon=1.0)
    with rejects(UseError, raised_in="render_report"):
        render_report(forest, evaluation=found)
    with rejects(UseError, raised_in="render_report"):
        render_report(object())


def test_notebooks_show_certificates_plans_effects_tunings_and_ledgers(forest: Any) -> None:
    ledger = vw.MemoryLedger(3, population="<people>")
    car = vw.datasets.car()
    vw.RandomTreesClassifier(car.schema, ledger=ledger, random_state=0).fit(car.X, car.y)
    found = vw.tune(car.schema, vw.RandomTreesClassifier, n_rows=1700, epsilon=1.0, grid={"max_depth": [2, 4]})
    for thing, result in (
        (forest.privacy_, "epsilon=2"), (forest.plan(), "Plan of PrivateForestClassifier"),
        (forest.explain(), "safety"), (found, "Nothing was spent"), (ledger, "<people>"),
    ):  # fmt: skip
        seen = PageTags(thing._repr_html_())
        assert seen.open == []
        assert result in " ".join(seen.text)


def test_the_repr_of_an_estimator_always_shows_epsilon() -> None:
    car = vw.datasets.car()
    assert repr(vw.RandomTreesClassifier()) == "RandomTreesClassifier(epsilon=1.0)"
    assert repr(vw.RandomTreesClassifier(max_depth=3)) == "RandomTreesClassifier(epsilon=1.0, max_depth=3)"
    assert repr(vw.PrivateForestRegressor(epsilon=0.5)).count("epsilon=0.5") == 1
    fitted = vw.RandomTreesClassifier(car.schema, random_state=0).fit(car.X, car.y)
    assert "(epsilon=1.0, " in repr(fitted)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0, 31.0, 600.0])
def test_the_picture_of_odds_is_bayes_rule(epsilon: float) -> None:
    """The worst two answers of a mechanism with this epsilon move a belief exactly to the ends of the band."""
    low, high = posterior_range(0.3, epsilon)
    for answer, end in ((np.exp(epsilon), high), (np.exp(-epsilon), low)):
        assert end == pytest.approx(0.3 * answer / (0.3 * answer + 0.7))


def test_words() -> None:
    assert purpose_of("nothing of the kind").startswith("Part of")
    assert set(STEP_PURPOSES) <= {kind.key for family in (AdaptiveStep, TreeStep, MatrixStep) for kind in family}
    car = vw.datasets.car()
    weak = vw.RandomTreesClassifier(car.schema, epsilon=10.0, random_state=0).fit(car.X, car.y).privacy_
    assert describe_guarantee(weak)[-1].endswith(weak.strength.verdict[1:])
