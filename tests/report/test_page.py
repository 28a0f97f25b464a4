# SPDX-License-Identifier: Apache-2.0
"""A report is one page that loads nothing, says what the certificate says, and shows every estimator."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood import pictures
from veilwood.cli.main import main
from veilwood.models import signed
from veilwood.privacy import signature
from veilwood.report import page_of
from veilwood.report.words import WHY, afterwards, guarantee, why_of


class Tags(HTMLParser):
    """What a browser would see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


@pytest.fixture(scope="module")
def forest() -> Any:
    car = vw.datasets.car()
    return vw.PrivateForestClassifier(car.schema, epsilon=2.0, random_state=0).fit(car.X, car.y, evaluate_share=0.3)


def test_the_page_loads_nothing_and_is_whole(forest: Any) -> None:
    seen = Tags(page_of(forest))
    assert seen.open == []
    assert {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in seen.tags} == set()
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", page_of(forest))
    text = " ".join(seen.text)
    for told in ("epsilon = 2", "How good it is", "accuracy", "safety", "Certificate", forest.privacy_.plan_hash):
        assert told in text, told
    for assumption in forest.privacy_.assumptions:
        assert assumption in text


@pytest.mark.parametrize(
    "name", ["RandomTreesClassifier", "MatrixForestClassifier", "MedianForestClassifier", "GreedyForestClassifier"]
)
def test_every_estimator_has_a_page(name: str) -> None:
    car = vw.datasets.car()
    model = getattr(vw, name)(car.schema, n_estimators=2, max_depth=2, random_state=0).fit(car.X, car.y)
    text = " ".join(Tags(page_of(model)).text)
    assert name in text
    assert "was not measured" in text


def test_names_from_outside_are_text_and_never_tags() -> None:
    evil = "<script>alert(1)</script>"
    schema = vw.Schema.from_dict({"name": evil, "task": "classification", "target": "<b>y", "columns": [
        {"name": evil, "kind": "categorical", "values": ["<i>a", "b&amp;"]},
        {"name": "<b>y", "kind": "categorical", "values": ["<u>0", "1"]}]})  # fmt: skip
    rng = np.random.default_rng(0)
    X, y = rng.choice(["<i>a", "b&amp;"], (200, 1)), rng.choice(["<u>0", "1"], 200)
    ledger = vw.MemoryLedger(5, of=evil)
    model = vw.PrivateForestClassifier(schema, epsilon=2.0, ledger=ledger, random_state=0)
    model.fit(X, y, evaluate_share=0.3)
    seen = Tags(page_of(model, ledger=ledger))
    assert {"script", "i", "u"}.isdisjoint({tag for tag, attrs in seen.tags if "style" not in attrs} - {"i"})
    assert not any(tag in ("script", "u", "b") for tag, _ in seen.tags)
    assert evil in " ".join(seen.text)


def test_what_is_not_private_says_so_loudly() -> None:
    car = vw.datasets.car()
    with pytest.warns(vw.PrivacyWarning):
        model = vw.RandomTreesClassifier(car.schema, epsilon=float("inf"), random_state=0).fit(car.X, car.y)
    text = " ".join(Tags(page_of(model)).text)
    assert "NOT PRIVATE" in text
    assert "no guarantee" in text
    assert "How far a belief" not in text


def test_an_evaluation_of_another_model_is_refused(forest: Any) -> None:
    car = vw.datasets.car()
    other = vw.RandomTreesClassifier(car.schema, random_state=1).fit(car.X, car.y)
    found = vw.evaluate(other, car.X, car.y, epsilon=1.0)
    with pytest.raises(vw.VeilwoodError, match="another model"):
        page_of(forest, evaluation=found)
    with pytest.raises(vw.VeilwoodError, match="not a fitted"):
        page_of(object())


def test_a_signed_model_by_the_command_line(
    forest: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cryptography")
    monkeypatch.chdir(tmp_path)
    vw.save(forest, "car.veilwood")
    forest.evaluation_.save("car.quality.json")
    signature.new_key("clinic.key")
    signed.sign("car.veilwood", "clinic.key")
    assert main(["report", "car.veilwood", "--signed-by", "clinic.key.pub", "-o", "car.html"]) == 0
    assert "car.html" in capsys.readouterr().out
    text = " ".join(Tags(Path("car.html").read_text(encoding="utf-8")).text)
    assert "is what the holder of clinic.key.pub has signed" in text
    assert "AUC" in text  # the evaluation beside the model was found
    assert main(["report", "car.veilwood", "-o", "car.html"]) == 2
    signature.new_key("other.key")
    assert main(["report", "car.veilwood", "--signed-by", "other.key.pub", "-o", "new.html"]) == 4
    assert not Path("new.html").exists()


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 5.0])
def test_the_picture_of_odds_is_bayes_rule(epsilon: float) -> None:
    """The worst two answers of a mechanism with this epsilon move a belief exactly to the ends of the band."""
    low, high = afterwards(0.3, epsilon)
    for answer, end in ((np.exp(epsilon), high), (np.exp(-epsilon), low)):
        assert end == pytest.approx(0.3 * answer / (0.3 * answer + 0.7))


def test_words() -> None:
    assert why_of("nothing of the kind").startswith("A part")
    assert len({why for _, why in WHY}) == len(WHY)
    car = vw.datasets.car()
    weak = vw.RandomTreesClassifier(car.schema, epsilon=10.0, random_state=0).fit(car.X, car.y).privacy_
    assert "weak" in guarantee(weak)[-1]


def test_pictures_take_any_label_and_any_number() -> None:
    labels = ["a" * 100, "<&>", "[0, 1)", "missing"]
    effect, error = np.array([[0.0], [1e9], [-1e-9], [0.5]]), np.zeros((4, 1))
    for picture in (pictures.steps(labels, effect, error, ["y"]), pictures.category_bars(labels, effect, error, ["y"])):
        assert Tags(picture).open == []
        assert "<&>" not in picture
    assert "unknown" in pictures.whiskers([("auc", None, 0.0, 1.0, 0.0, 1.0)])
    assert "nan" not in pictures.budget([("fit", 1.0, True)], None)


def test_an_axis_is_written_no_finer_than_it_can_show() -> None:
    """Ends of intervals are 46.86 and 73.12 of 120 years, or hundredths of a share; dates stay as they are."""
    groups = ["[0, 46.86)", "[46.86, 73.12)", "[73.12, 120]", "missing"]
    effect = np.zeros((4, 1))
    drawn = pictures.steps(groups, effect, effect, ["yes"])
    assert all(f">{end}<" in drawn for end in ("0", "47", "73", "120"))
    assert ".86" not in drawn
    shares = pictures.steps(["[0, 0.25)", "[0.25, 1]"], effect[:2], effect[:2], ["yes"])
    assert ">0.25<" in shares
    assert ">2020-01<" in pictures.steps(["[2020-01, 2021-01)"], effect[:1], effect[:1], ["yes"])


def test_notebooks_show_certificates_plans_effects_tunings_and_ledgers(forest: Any) -> None:
    ledger = vw.MemoryLedger(3, of="<people>")
    car = vw.datasets.car()
    vw.RandomTreesClassifier(car.schema, ledger=ledger, random_state=0).fit(car.X, car.y)
    found = vw.tune(car.schema, vw.RandomTreesClassifier, n=1700, epsilon=1.0, grid={"max_depth": [2, 4]})
    for thing, told in (
        (forest.privacy_, "epsilon=2"), (forest.plan(), "Plan of PrivateForestClassifier"),
        (forest.explain(), "safety"), (found, "Nothing was spent"), (ledger, "<people>"),
    ):  # fmt: skip
        seen = Tags(thing._repr_html_())
        assert seen.open == []
        assert told in " ".join(seen.text)


def test_the_repr_of_an_estimator_always_shows_epsilon() -> None:
    car = vw.datasets.car()
    assert repr(vw.RandomTreesClassifier()) == "RandomTreesClassifier(epsilon=1.0)"
    assert repr(vw.RandomTreesClassifier(max_depth=3)) == "RandomTreesClassifier(epsilon=1.0, max_depth=3)"
    assert repr(vw.PrivateForestRegressor(epsilon=0.5)).count("epsilon=0.5") == 1
    fitted = vw.RandomTreesClassifier(car.schema, random_state=0).fit(car.X, car.y)
    assert "(epsilon=1.0, " in repr(fitted)
