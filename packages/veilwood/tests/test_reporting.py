# SPDX-License-Identifier: Apache-2.0
"""One-page reports: nothing is loaded, the guarantee is the certificate's, every estimator is shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import veilwood as vw
from veilwood.charts import posterior_range
from veilwood.errors import ParameterError, UseError
from veilwood.evaluation.quality import Quality, estimate_quality
from veilwood.evaluation.scoring import SCORE_BINS
from veilwood.forests.adaptive.steps import AdaptiveStep
from veilwood.forests.matrix.measurement import MatrixStep
from veilwood.forests.noisy_leaves import TreeStep
from veilwood.reporting import STEP_PURPOSES, describe_guarantee, purpose_of, render_report
from veilwood.reporting.effects import contributions
from veilwood.reporting.quality import score_spread
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


# -- what a reviewer and a statistician look for -------------------------------------------------------------------

DAYS = {
    "name": "visits", "task": "classification", "target": "back", "left_out": {"note": "free text"},
    "columns": [
        {"name": "days", "kind": "numeric", "lower": 0, "upper": 365, "whole": True, "nullable": True,
         "known_from": "definition of a stay"},
        {"name": "ward", "kind": "categorical", "values": ["A", "B"], "known_from": "list of wards"},
        {"name": "back", "kind": "categorical", "values": ["no", "yes"], "known_from": "codebook"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def visits() -> tuple[Any, vw.MemoryLedger]:
    rng = np.random.default_rng(0)
    days = np.minimum(np.floor(rng.exponential(6, 4000)), 365)
    chance = 0.15 + 0.4 * (days > 5)
    X = pd.DataFrame({"days": np.where(rng.random(4000) < 0.1, np.nan, days), "ward": rng.choice(["A", "B"], 4000)})
    y = np.where(rng.random(4000) < chance, "yes", "no")
    ledger = vw.MemoryLedger(5, population="patients")
    model = vw.PrivateForestClassifier(vw.Schema.from_dict(DAYS), epsilon=2.0, ledger=ledger, random_state=0)
    return model.fit(X, y, holdout_fraction=0.3), ledger


def test_the_page_answers_a_reviewer(visits: tuple[Any, vw.MemoryLedger]) -> None:
    model, ledger = visits
    page = render_report(model, ledger=ledger, card={"Use": "to plan beds", "Contact": "the statistics office"})
    text = " ".join(PageTags(page).text)
    for column in (*model.schema_.features, model.schema_.target):  # every bound with its source
        assert column.describe() in text
        assert str(column.known_from) in text
    for wanted in (
        "note: free text", ledger.entries()[0].time[:10], "Base rate", "measured, for training", "sensitivity",
        "specificity", "positive predictive value", "best balance", "One prediction, step by step",
        "would typically move a predicted probability", "No subgroup was evaluated", "to plan beds",
        "the statistics office", "times what one unit can change", "missing",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert re.search(r"about [\d,]+ rows", text)  # noise
    assert "prefers-color-scheme: dark" in page
    assert [float(size) for size in re.findall(r'font-size="([\d.]+)"', page) if float(size) < 11] == []
    assert [float(size) for size in re.findall(r"font(?:-size)?: (?:\d+ )?([\d.]+)px", page) if float(size) < 11] == []
    assert max(map(float, re.findall(r'viewBox="0 0 ([\d.]+) ', page))) <= 340  # a telephone shows it whole


def test_one_prediction_by_hand_is_that_of_the_model(visits: tuple[Any, vw.MemoryLedger]) -> None:
    model, _ = visits
    row = {"days": 7, "ward": "B"}
    score = float(model.model_.start[0]) + sum(contributions(model, row).values())
    predicted = model.predict_proba(pd.DataFrame({name: [value] for name, value in row.items()}))[0, 1]
    assert 1 / (1 + np.exp(-score)) == pytest.approx(predicted)


def test_whole_numbers_are_cut_between_integers(visits: tuple[Any, vw.MemoryLedger]) -> None:
    main = next(main for main in visits[0].explain().main if main.column == "days")
    assert main.groups[-1] == "missing"
    assert all(re.fullmatch(r"\d+( to \d+)?", group) for group in main.groups[:-1])
    assert len(set(main.groups)) == len(main.groups)
    assert main.rows is not None
    assert main.rows.sum() == pytest.approx(2800, rel=0.2)


def test_losses_of_steps_add_up_to_that_of_the_certificate(visits: tuple[Any, vw.MemoryLedger]) -> None:
    whole = re.findall(r"together ([\d.]+) of epsilon 2", render_report(visits[0]))
    assert len(whole) == 1
    assert 1.5 < float(whole[0]) <= 2


def test_subgroups_stand_beside_all_rows(visits: tuple[Any, vw.MemoryLedger]) -> None:
    model, ledger = visits
    group = pd.DataFrame({"days": [1.0] * 300 + [9.0] * 300, "ward": ["A"] * 600})
    found = vw.evaluate(model, group, ["no"] * 300 + ["yes"] * 300, epsilon=1.0, ledger=ledger)
    text = " ".join(PageTags(render_report(model, subgroups={"ward A": found})).text)
    assert "ward A" in text
    other = vw.RandomTreesClassifier(vw.Schema.from_dict(DAYS), random_state=1).fit(group, ["no"] * 600)
    with rejects(UseError, raised_in="ReportFacts.collect"):
        render_report(other, subgroups={"ward A": found})


def test_a_model_card_in_markdown(visits: tuple[Any, vw.MemoryLedger], tmp_path: Path) -> None:
    card = tmp_path / "card.toml"
    card.write_text('[facts]\ntitle = "Beds"\ncontact = "office"\n[sentences]\npurpose = "Planning of beds only."\n')
    text = vw.report(visits[0], tmp_path / "model.md", card=card).read_text(encoding="utf-8")
    assert text.startswith("---\nlibrary_name: veilwood\n")
    for wanted in ("# Beds", "Planning of beds only", "office", "definition of a stay", "AUC"):
        assert wanted in text
    card.write_text('[facts]\nowner = "x"\n')
    with rejects(ParameterError, name="card"):
        vw.report(visits[0], tmp_path / "model.md", card=card)


def test_thresholds_are_those_of_the_counts() -> None:
    """Noise-free counts: sensitivity and the other fractions are recomputed from them."""
    rng = np.random.default_rng(0)
    counts = rng.integers(50, 400, (2, SCORE_BINS)).astype(float)
    quality = estimate_quality({"scores": counts}, 1e-9, ("no", "yes"), None)
    assert len(quality.thresholds) == SCORE_BINS - 1
    for first, each in enumerate(quality.thresholds, 1):
        flagged, spared = counts[:, first:].sum(axis=1), counts[:, :first].sum(axis=1)
        assert each.sensitivity.value == pytest.approx(flagged[1] / counts[1].sum())
        assert each.specificity.value == pytest.approx(spared[0] / counts[0].sum())
        assert each.positive_value.value == pytest.approx(flagged[1] / flagged.sum())
        assert each.negative_value.value == pytest.approx(spared[0] / spared.sum())
        assert each.flagged.value == pytest.approx(flagged.sum() / counts.sum())
    assert Quality.from_dict(quality.to_dict()) == quality


@pytest.mark.slow
def test_a_second_fit_differs_as_the_page_says() -> None:
    """Fits on other rows of the same kind: the estimate from released errors is right within a factor of three."""
    scores, estimates = [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        X = pd.DataFrame({"days": rng.integers(0, 30, 4000).astype(float), "ward": rng.choice(["A", "B"], 4000)})
        y = np.where(rng.random(4000) < 0.2 + 0.4 * (X["days"] > 12), "yes", "no")
        model = vw.PrivateForestClassifier(vw.Schema.from_dict(DAYS), epsilon=0.5, ledger=vw.MemoryLedger())
        model.fit(X, y)
        new = pd.DataFrame({"days": np.tile(np.arange(30.0), 2), "ward": np.repeat(["A", "B"], 30)})
        scores.append(model.decision_function(new))
        estimates.append(score_spread(model))
    measured = float(np.sqrt(np.var(scores, axis=0, ddof=1).mean()))
    assert measured / 3 < float(np.median([each for each in estimates if each is not None])) < 3 * measured
