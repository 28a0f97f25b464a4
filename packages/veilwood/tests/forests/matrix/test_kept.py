# SPDX-License-Identifier: Apache-2.0
"""Strategies kept on disk: searched once, never believed, never kept for what was read off the data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import veilwood as vw
from veilwood.errors import PlanError
from veilwood.forests.matrix import measurement, training
from veilwood.forests.matrix import search as kept
from veilwood.privacy.loss import Loss
from veilwood.safe_io import cache_folder

pytestmark = pytest.mark.filterwarnings("ignore::veilwood.PrivacyWarning")

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
    asked = {**SIZED, "n_rows": 625}
    first = forest(**asked).plan()
    for file in folder.iterdir():
        if "error" in json.loads(file.read_text()):
            file.write_text(f'{{"leaves": 4, "error": {error}}}')
    assert forest(**asked).plan() == first


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
    asked: dict[str, Any] = {"delta": delta, "schema": schema, "n_estimators": 1, "max_depth": 1}

    def one_column() -> vw.MatrixForestClassifier:
        return vw.MatrixForestClassifier(epsilon=1, random_state=3, **asked)

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
