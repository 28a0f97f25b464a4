# SPDX-License-Identifier: Apache-2.0
"""The commands that question claims: reports, exit codes, and forged claims that they must catch."""

from __future__ import annotations

import json
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

import veilwood as vw
from veilwood.audit import attacks, peers, reports
from veilwood.audit import model_file as model_audit
from veilwood.audit.attacks import Attack, Canaries
from veilwood.cli.audit import REFUTED
from veilwood.cli.main import main
from veilwood.privacy.selection import PermuteAndFlip

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

CAR = vw.datasets.car()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def fitted(**params: Any) -> Any:
    params = {"n_estimators": 8, "max_depth": 3, "random_state": 0, "n_jobs": 1, **params}
    return vw.RandomTreesClassifier(CAR.schema, **params).fit(CAR.X, CAR.y)


class Tags(HTMLParser):
    """Collects tags, and checks that they are closed in order."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[str] = []
        self._open: list[str] = []
        self.feed(page)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.append(tag)
        if tag not in ("meta", "img"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


# -- audit estimator ----------------------------------------------------------------------------------------


def test_audit_estimator_writes_a_report(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["audit", "estimator", "RandomTreesClassifier", "--epsilon", "1", "--param", "max_depth=12", "-o", "out"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "claimed epsilon 1" in out
    assert "twin caught" in out
    assert (here / "out/audit.png").read_bytes().startswith(b"\x89PNG")
    assert "| RandomTreesClassifier | n_estimators=1, max_depth=12" in (here / "out/audit.md").read_text()
    assert {"table", "img", "h1"} <= set(Tags((here / "out/audit.html").read_text()).seen)


def test_audit_estimator_for_machines(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "audit",
        "estimator",
        "median-forest",
        "--epsilon",
        "2",
        "-p",
        "max_depth=10",
        "--canaries",
        "900",
        "--json",
    ]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)["attacks"]
    assert [one["estimator"] for one in found] == ["MedianForestClassifier", "MedianForestRegressor"]
    assert all(one["epsilon"] == 2 and one["sound"]["canaries"] == 900 and not one["refuted"] for one in found)


def test_a_refuted_claim_is_said_and_has_its_exit_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Attack("RandomTreesClassifier", "", 1.0, 0.0, 0.99, Canaries(9, 9, 9, 1.2), Canaries(9, 9, 9, 3.0))
    monkeypatch.setattr(attacks, "attack", lambda *args, **kwargs: broken)
    assert main(["audit", "estimator", "RandomTreesClassifier"]) == REFUTED
    assert "REFUTED" in capsys.readouterr().out
    weak = Attack("RandomTreesClassifier", "", 1.0, 0.0, 0.99, Canaries(9, 9, 9, 0.1), Canaries(9, 9, 9, 0.3))
    assert "too weak" in reports.attack_report([weak])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["estimator", "forest"], "there is no estimator 'forest'"),
        (["estimator", "random-trees", "--param", "depth"], "KEY=VALUE"),
        (["estimator", "random-trees", "--param", "depth=3"], "does not take 'depth'"),
        (["estimator", "random-trees", "--epsilon", "inf"], "nothing to attack"),
        (["estimator", "random-trees", "--epsilon", "-1"], "epsilon"),
        (["estimator", "random-trees", "-o", "file"], "is a file"),
        (["model", "file"], "not a Veilwood model"),
        (["model", "none"], "no such file"),
        (["peer", "sklearn"], "there is no attack on 'sklearn'"),
    ],
    ids=" ".join,
)
def test_mistakes_are_one_line(words: Any, says: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("x")
    assert main(["audit", *words]) == (4 if words[0] == "model" else 2)
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line


# -- audit model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, {"delta": 1e-6}, {"random_state": None}, {"trees": "disjoint"}], ids=str)
def test_a_sound_model_passes(params: dict[str, Any], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fitted(**params), "car.veilwood")
    assert main(["audit", "model", "car.veilwood", "-o", "out"]) == 0
    out = capsys.readouterr().out
    assert "NO " not in out
    assert "Cannot be checked from a file" in out
    assert "ledger" in (here / "out/model-audit.md").read_text()
    assert "ul" in Tags((here / "out/model-audit.html").read_text()).seen


def failing(model: Any) -> list[str]:
    return [check.question for check in model_audit.check_model(model) if not check.holds]


def test_forged_models_are_caught() -> None:
    """Mutants: claims and contents that do not go together, as a broken fit or an editor could leave them."""
    assert failing(fitted()) == []

    halved = fitted()
    halved.epsilon = 0.5  # the parameters promise more than the plan keeps
    assert "Do the parameters lead to this plan?" in failing(halved)

    kept = fitted()
    object.__setattr__(kept.plan_.steps[0].mechanism, "scale", kept.plan_.steps[0].mechanism.scale / 2)
    assert any(question.startswith("Does the noise") for question in failing(kept))

    claims = fitted()
    object.__setattr__(claims.privacy_, "epsilon", 0.1)
    assert any("certified loss" in question for question in failing(claims))

    unit = fitted()
    object.__setattr__(unit.privacy_, "adjacency", "replace-one")
    assert "Does the certificate say what the plan says?" in failing(unit)

    talks = fitted()
    talks.plan_.notes["rows"] = 1728
    assert "Does it hold nothing else?" in failing(talks)

    exact = fitted()
    exact.model_ = fitted(epsilon=float("inf")).model_
    assert failing(exact) == ["Do the counts look noisy?"]

    assert failing(fitted(epsilon=float("inf"))) == ["Is it private?"]
    other = fitted()
    other.schema_ = vw.datasets.iris().schema
    assert "Is the certificate of this schema?" in failing(other)


def test_a_model_that_does_not_hold_has_its_exit_code(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fitted(epsilon=float("inf")), "car.veilwood")
    assert main(["audit", "model", "car.veilwood", "--json"]) == REFUTED
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert [check["question"] for check in checks if not check["holds"]] == ["Is it private?"]


# -- certificate --------------------------------------------------------------------------------------------


def test_the_certificate_is_verified_and_fits_on_a_page(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vw.save(fitted(), "car.veilwood")
    assert main(["certificate", "car.veilwood"]) == 0
    assert "\n\nVerified against car.veilwood" in capsys.readouterr().out
    assert main(["certificate", "car.veilwood", "--html", "page.html"]) == 0
    page = (here / "page.html").read_text()
    assert "Verified" in capsys.readouterr().out
    assert {"h1", "h2", "table", "ul", "strong"} <= set(Tags(page).seen)
    assert fitted().privacy_.schema_hash in page
    assert main(["certificate", "car.veilwood", "--html", "page.html"]) == 2
    assert "exists already" in capsys.readouterr().err
    content = bytearray((here / "car.veilwood").read_bytes())
    content[-1] ^= 1
    (here / "car.veilwood").write_bytes(content)
    assert main(["certificate", "car.veilwood"]) == 4
    assert "Verified" not in capsys.readouterr().out


def test_html_is_escaped() -> None:
    page = reports.html_page("# A\n\n| <script> | b |\n|---|---|\n| `x<y` | **z** |\n\n- one\n- two <b>")
    assert "<script>" not in page
    assert "<b>" not in page
    assert "<code>x&lt;y</code>" in page
    assert Tags(page).seen.count("li") == 2


# -- audit peer ---------------------------------------------------------------------------------------------


class PeerTree(BaseEstimator):  # type: ignore[misc]
    """The tree of a small re-implementation of the peer: a label by permute-and-flip, drawn from its own seed."""

    def __init__(self, random_state: Any = None) -> None:
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Any:
        rng = np.random.default_rng(self.random_state)
        counts = np.bincount(y, minlength=2)
        label = int(rng.choice(2, p=PermuteAndFlip(1, 1).law(counts)))
        self.tree_ = SimpleNamespace(threshold=rng.random(4), value=np.array([label]))
        return self

    def predict(self, X: Any) -> Any:
        return np.repeat(self.tree_.value, len(X))


def peer(parts: Any, seeded: bool) -> ModuleType:
    """A module in place of the peer's, whose forest gives rows to trees by ``parts``."""

    class Forest:
        def __init__(self, n_estimators: int, **ignored: Any) -> None:
            self.n_estimators = n_estimators

        def fit(self, X: Any, y: Any) -> Any:
            trees = parts(len(y), self.n_estimators)
            seeds = np.random.default_rng().integers(2**31, size=self.n_estimators)
            self.estimators_ = [
                PeerTree(int(seeds[t]) if seeded else None).fit(X[trees == t], y[trees == t])
                for t in range(self.n_estimators)
            ]
            return self

    module = ModuleType("diffprivlib.models")
    module.RandomForestClassifier = Forest  # type: ignore[attr-defined]
    return module


def in_order(n: int, trees: int) -> Any:
    return (np.arange(n) // (n / trees)).astype(int)


def independently(n: int, trees: int) -> Any:
    return np.random.default_rng().integers(trees, size=n)


@pytest.mark.parametrize(("parts", "seeded", "refuted"), [(in_order, True, True), (independently, False, False)])
def test_the_attack_on_a_peer(
    parts: Any, seeded: bool, refuted: bool, here: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    package = ModuleType("diffprivlib")
    package.__version__ = "0"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "diffprivlib", package)
    monkeypatch.setitem(sys.modules, "diffprivlib.models", peer(parts, seeded))
    code = main(["audit", "peer", "diffprivlib", "--runs", "400", "-o", "out", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == (REFUTED if refuted else 0)
    assert (found["epsilon_lower_bound"] > 1, found["seed_in_model"]) == (refuted, seeded)
    assert ("REFUTED" in (here / "out/diffprivlib-audit.md").read_text()) is refuted


def test_a_peer_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "diffprivlib.models", None)
    assert main(["audit", "peer", "diffprivlib"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install" in line
    with pytest.raises(vw.VeilwoodError):
        peers.attack_diffprivlib()


@pytest.mark.parametrize("command", ["estimator", "model", "peer"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", command, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"veilwood audit {command} " in out.split("Example:")[1]
    assert "--json" in out
