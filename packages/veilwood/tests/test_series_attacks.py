# SPDX-License-Identifier: Apache-2.0
"""Attacks on whole series: the joint distribution of all releases, sensitivity on a small stream, noninterference.

Every attack runs the public class on two neighbouring streams, and is also made on a mutant that it must catch.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import veilwood as vw
from veilwood.errors import UseError
from veilwood.forests.adaptive import private_forest
from veilwood.privacy import entropy
from veilwood.privacy.door import Door, SeriesDoor
from veilwood.privacy.noise import DiscreteGaussian, DiscreteLaplace
from veilwood.privacy.steps import counting_step
from veilwood.privacy.time_factors import SeriesNoise, TimeFactor
from veilwood.series import ReleaseSeries
from veilwood_audit.noninterference import find_interference, visible_values
from veilwood_audit.statistics import epsilon_lower_bound

pytestmark = [
    pytest.mark.filterwarnings("ignore::veilwood.errors.PrivacyWarning"),
    pytest.mark.filterwarnings("ignore::veilwood.errors.UtilityWarning"),
]

# -- the joint distribution --------------------------------------------------------------------------------------------

N_VALUES, RUNS, T = 4000, 8, 3
VALUES = vw.Schema.from_dict({
    "name": "values", "task": "classification", "target": "c",
    "columns": [
        {"name": "v", "kind": "categorical", "values": list(range(N_VALUES))},
        {"name": "c", "kind": "categorical", "values": ["0", "1"]},
    ],
})  # fmt: skip


Part = tuple[NDArray[np.int64], int, DiscreteLaplace | DiscreteGaussian]


def releases_of_cells(rows: pd.DataFrame, delta: float, strategy: str) -> list[Part]:
    """What was measured of every value of the column, what one row adds to it, and the noise that is claimed.

    The noise of each value is drawn apart from that of the others. "tables" are those of PrivateForest: the choice is
    a part of the attack.
    """
    settings: dict[str, Any] = {"epsilon": 1.0, "delta": delta, "invalid": "drop", "random_state": 0}
    forest: Any = vw.MatrixForestClassifier(VALUES, n_estimators=1, max_depth=1, mechanism="laplace", **settings)
    if strategy == "tables":
        forest, strategy = vw.PrivateForestClassifier(VALUES, n_rows=10**7, **settings), "toeplitz"
    series = ReleaseSeries(forest, releases=T, period="month", ledger=vw.MemoryLedger(), strategy=strategy)
    for _ in range(T):
        series.release(rows)
    leaves = series._design.forest  # type: ignore[attr-defined]
    assert leaves.n_leaves == N_VALUES
    *choice, step = series.plan(1).steps
    assert isinstance(step.mechanism, SeriesNoise)
    parts: list[Part] = [(series._choice[:, 0], 1, each.mechanism) for each in choice]  # type: ignore[index, misc]
    for number in series.numbers:
        values = next(iter(series._records[number].values.values()))[:, 0]
        parts.append((values, step.mechanism.factor.period_weights(number)[0], step.mechanism.base))
    return parts


def joint_attack(delta: float, strategy: str) -> float:
    """How much more probable are all releases together with one row of the first period than without it?

    Every cell is an attack of its own, since its counts differ by one row. The event was fixed before: the likelihood
    ratio of all releases is above a threshold.
    """
    empty = pd.DataFrame({"v": [-1], "c": ["0"], "month": [1]})  # a row that is dropped
    full = pd.DataFrame({"v": np.arange(N_VALUES), "c": "0", "month": 1})
    seen: dict[str, list[NDArray[np.bool_]]] = {"with": [], "without": []}
    for _run in range(RUNS):
        for name, rows in (("with", full), ("without", empty)):
            scores, most = np.zeros(N_VALUES), 0.0
            for measured, added, noise in releases_of_cells(rows, delta, strategy):
                if isinstance(noise, DiscreteGaussian):
                    scores += added * measured / float(noise.sigma_squared)
                    most += added**2 / float(noise.sigma_squared)
                else:
                    scores += (np.abs(measured) - np.abs(measured - added)) / float(noise.scale)
                    most += added / float(noise.scale)
            used_up = 2.2 if isinstance(noise, DiscreteGaussian) else 0.999  # 2.2: where delta = 0.01 is used up
            seen[name].append(scores > used_up * most)
    likely, unlikely = (np.concatenate(seen[name]) for name in ("with", "without"))
    return epsilon_lower_bound(
        int(likely.sum()), len(likely), int(unlikely.sum()), len(unlikely), delta=delta
    )  # fails by chance with a probability below one in a million


def half_noise(patch: pytest.MonkeyPatch) -> None:
    def perturb(noise: SeriesNoise, weighted: Any) -> Any:
        base = noise.base
        if isinstance(base, DiscreteGaussian):
            return DiscreteGaussian(base.sigma_squared / 4).perturb(weighted)
        return DiscreteLaplace(base.scale / 2).perturb(weighted)

    patch.setattr(SeriesNoise, "perturb", perturb)


def one_release_only(patch: pytest.MonkeyPatch) -> None:
    """Mutant: noise for the largest weight, as if a row were measured in one release only."""
    patch.setattr(
        TimeFactor, "norm",
        lambda factor, *, squared: max(w**2 if squared else w for row in factor.weights for w in row),
    )  # fmt: skip


SETTINGS = [
    (0.0, "toeplitz"), (0.01, "toeplitz"), (0.01, "optimized"), (0.0, "splitting"), (0.0, "tables"), (0.01, "tables"),
]  # fmt: skip


@pytest.mark.parametrize(("delta", "strategy"), SETTINGS)
def test_all_releases_together_keep_epsilon(delta: float, strategy: str) -> None:
    """At least 0.6 of the claim is seen, so the attack has power, and not more than the claim."""
    with entropy.seeded_for_tests(31):
        found = joint_attack(delta, strategy)
    assert (0.2 if delta else 0.6) < found <= 1, found


MUTANTS = [(half_noise, *setting) for setting in SETTINGS] + [(one_release_only, *setting) for setting in SETTINGS[:2]]


@pytest.mark.parametrize(("mutant", "delta", "strategy"), MUTANTS)
def test_mutants_with_too_little_noise_are_caught(
    mutant: Callable[[pytest.MonkeyPatch], None], delta: float, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    with entropy.seeded_for_tests(32):
        found = joint_attack(delta, strategy)
    assert found > 1, found


# -- sensitivity on a small stream -------------------------------------------------------------------------------------

SMALL = vw.Schema.from_dict({
    "name": "small", "task": "classification", "target": "c",
    "columns": [
        {"name": "v", "kind": "categorical", "values": ["a", "b"]},
        {"name": "c", "kind": "categorical", "values": ["0", "1"]},
    ],
})  # fmt: skip
OTHERS = [("b", "1", 1, "x"), ("a", "0", 2, "x"), ("b", "0", 3, "y")]
Stream = tuple[list[tuple[str, str, int, str]], ...]  # the table at every release: value, class, period, id


def exact_counts(stream: Stream, delta: float, **privacy: Any) -> tuple[NDArray[np.int64], SeriesNoise, int]:
    """The weighted counts that meet noise, of all releases, with the mechanism and the sensitivity of one period."""
    forest = vw.RandomTreesClassifier(
        SMALL,
        epsilon=1.0,
        delta=delta,
        n_estimators=9,
        max_depth=1,
        trees="shared",
        random_state=0,
        invalid="drop",
        **privacy,
    )
    series = ReleaseSeries(forest, releases=T, period="month", ledger=vw.MemoryLedger(), strategy="optimized")
    exact: list[NDArray[np.int64]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Door, "release_counts", lambda door, step, counts: exact.append(counts) or counts)  # type: ignore[func-returns-value]
        for rows in stream:
            table = pd.DataFrame([*rows, *OTHERS], columns=["v", "c", "month", "case"])
            by_id = isinstance(privacy.get("privacy_unit"), dict)
            series.release(table if by_id else table.drop(columns="case"))
    (step,) = series.plan(1).steps
    assert isinstance(step.mechanism, SeriesNoise)
    return np.stack(exact), step.mechanism, step.sensitivity


def excess(one: Stream, other: Stream, delta: float, **privacy: Any) -> Fraction:
    """The distance of two streams over all releases, relative to the sensitivity that noise is calibrated to."""
    (mine, mechanism, sensitivity), (yours, *_) = (exact_counts(each, delta, **privacy) for each in (one, other))
    away = [abs(int(change)) ** (2 if mechanism.is_gaussian else 1) for change in (mine - yours).ravel()]
    return Fraction(sum(away), sensitivity * mechanism.factor.norm(squared=mechanism.is_gaussian))


NONE: Stream = ([], [], [])


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_one_row_in_every_history(delta: float) -> None:
    """A row that arrives on time or late, vanishes and comes back: the bound holds, and a row that stays attains it."""
    found = {}
    for period, present in product((1, 2, 3), product((False, True), repeat=3)):
        stream = tuple([("a", "1", period, "z")] if is_there else [] for is_there in present)
        found[period, present] = excess(stream, NONE, delta)
    assert max(found.values()) <= 1
    assert max(found[period, (True,) * 3] for period in (1, 2, 3)) > 0.999  # unless rounding to the grid loses some


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_replaced_rows_and_groups_of_rows(delta: float) -> None:
    one, other = ([("a", "1", 1, "z")],) * 3, ([("b", "0", 1, "z")],) * 3
    assert 0.999 < excess(one, other, delta, adjacency="replace-one") <= 1
    two = ([("a", "1", 1, "z"), ("a", "1", 1, "z")],) * 3
    assert 0.999 < excess(two, NONE, delta, privacy_unit=2) <= 1


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_all_rows_of_an_id(delta: float) -> None:
    """Three rows in any periods, of which two count: the first in time. Removing all of them is covered."""
    unit, worst = {"privacy_unit": {"id": "case", "at_most": 2}}, Fraction(0)
    for periods in product((1, 2, 3), repeat=3):
        rows = [("a", "1", period, "z") for period in periods]
        on_time = tuple([row for row in rows if row[2] <= release] for release in (1, 2, 3))
        worst = max(worst, excess(on_time, NONE, delta, **unit))
        withdrawn: Stream = (on_time[0], on_time[1], [])
        worst = max(worst, excess(withdrawn, NONE, delta, **unit))
    assert 0.999 < worst <= 1


TWO = vw.Schema.from_dict({
    "name": "two", "task": "classification", "target": "c",
    "columns": [
        {"name": "v", "kind": "categorical", "values": ["a", "b"]},
        {"name": "x", "kind": "numeric", "lower": 0, "upper": 1},
        {"name": "c", "kind": "categorical", "values": ["0", "1"]},
    ],
})  # fmt: skip


def loss_of_tables(stream: Stream, delta: float) -> tuple[list[NDArray[np.int64]], list[Any], ReleaseSeries]:
    """Exact counts that meet noise in a series of PrivateForest, the choice first; released are zeros."""
    forest = vw.PrivateForestClassifier(TWO, epsilon=1.0, delta=delta, n_rows=10**6, random_state=0, invalid="drop")
    series = ReleaseSeries(forest, releases=T, period="month", ledger=vw.MemoryLedger(), strategy="toeplitz")
    exact: list[NDArray[np.int64]] = []
    steps: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Door, "release_counts",
            lambda door, step, counts: exact.append(counts) or steps.append(step) or np.zeros_like(counts),  # type: ignore[func-returns-value]
        )  # fmt: skip
        for rows in stream:
            table = pd.DataFrame([*rows, *OTHERS], columns=["v", "c", "month", "case"]).assign(x=0.5)
            series.release(table.drop(columns="case"))
    return exact, steps, series


def tables_excess(one: Stream, other: Stream, delta: float) -> float:
    """The loss of two streams over the choice and all releases, relative to that of the series."""
    (mine, steps, series), (yours, *_) = (loss_of_tables(each, delta) for each in (one, other))
    loss, spent, gaussian = series.plan().loss, Fraction(0), False
    for first, second, step in zip(mine, yours, steps, strict=True):
        noise = getattr(step.mechanism, "base", step.mechanism)
        away = [abs(int(change)) for change in (first - second).ravel()]
        gaussian = isinstance(noise, DiscreteGaussian)
        spent += sum(a * a for a in away) / (2 * noise.sigma_squared) if gaussian else sum(away) / noise.scale
    assert gaussian == (delta > 0)
    promised = loss.rho if gaussian else loss.epsilon
    assert promised is not None
    return float(spent / promised)


def choice_of_one_column(patch: pytest.MonkeyPatch) -> None:
    """Mutant: the choice gets noise as if a row were counted in one column."""
    patch.setattr(
        private_forest, "counting_step",
        lambda *of, l1, squared_l2: counting_step(*of, l1=1, squared_l2=1) if "choice" in of[0] else counting_step(
            *of, l1=l1, squared_l2=squared_l2),
    )  # fmt: skip


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_tables_of_private_forest_with_their_choice(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row adds to the choice and to every release: all of it together attains the loss, and no history exceeds it."""
    found = {}
    for period, present in product((1, 2, 3), product((False, True), repeat=3)):
        stream = tuple([("a", "1", period, "z")] if is_there else [] for is_there in present)
        found[period, present] = tables_excess(stream, NONE, delta)
    assert max(found.values()) <= 1
    assert found[1, (True,) * 3] > 0.999
    assert found[2, (True,) * 3] < 0.95  # the choice is made on rows of the first period
    choice_of_one_column(monkeypatch)
    assert tables_excess(([("a", "1", 1, "z")],) * 3, NONE, delta) > 1.04


def test_an_edited_row_costs_what_the_page_says() -> None:
    """A changed value in the same period: one row. A new period: at most two rows, and more than one."""
    kept = tuple([("a" if release == 1 else "b", "1", 1, "z")] for release in (1, 2, 3))
    moved = tuple([("a", "1", release, "z")] for release in (1, 2, 3))
    assert excess(kept, NONE, 1e-6) <= 1
    assert 1 < excess(moved, NONE, 1e-6) <= 3
    once = ([("a", "1", 1, "z")], [("a", "1", 2, "z")], [("a", "1", 2, "z")])
    assert 1 < excess(once, NONE, 1e-6) <= 2


def test_single_rows_removed_from_an_id_count_as_more_rows() -> None:
    unit = {"privacy_unit": {"id": "case", "at_most": 1}}
    rows = [("a", "1", period, "z") for period in (1, 2, 3)]
    one_by_one = ([rows[0]], [rows[1]], [rows[2]])
    assert 1 < excess(one_by_one, NONE, 1e-6, **unit) <= 3**2


# -- what is visible ---------------------------------------------------------------------------------------------------


def run_series(
    rows: list[tuple[str, str, int, str]], folder: Path, kind: str = "RandomTreesClassifier"
) -> dict[str, Any]:
    """Make two releases and collect everything that anyone sees."""
    table = pd.DataFrame([*rows, *OTHERS], columns=["v", "c", "month", "case"])
    of_trees: dict[str, Any] = {"n_estimators": 9, "max_depth": 1, "trees": "shared"}
    own = of_trees if kind == "RandomTreesClassifier" else {"n_rows": 100}
    forest = getattr(vw, kind)(
        SMALL, epsilon=1.0, delta=1e-6, invalid="drop", random_state=0, n_jobs=1,
        privacy_unit={"id": "case", "at_most": 2}, **own,
    )  # fmt: skip
    ledger = vw.SQLiteLedger(folder / "spends.db")
    series = ReleaseSeries(forest, releases=T, period="month", ledger=ledger)
    series.save(folder / "small.series")
    shown: dict[str, Any] = {"plan": series.plan().to_json()}
    for number in (1, 2):
        model = series.release(table)
        shown[f"release {number}"] = visible_values(model)
        shown[f"file {number}"] = (folder / "small.series").read_bytes()
    again = ReleaseSeries.load(folder / "small.series", ledger=ledger)
    shown |= {"entries": repr(ledger.entries()), "text": repr(again), "withdrawn": again.withdrawn()}
    return shown


MORE = [
    [("a", "1", 1, "z")], [("a", "1", 3, "z")], [("a", "1", 9, "z")], [("q", "1", 1, "z")],
    [("a", "1", period, "z") for period in (1, 2, 3)],
]  # fmt: skip


@pytest.mark.parametrize("kind", ["RandomTreesClassifier", "PrivateForestClassifier"])
@pytest.mark.parametrize("rows", MORE, ids=range(len(MORE)))
def test_neighbouring_streams_leave_the_same_traces(rows: list[tuple[str, str, int, str]], kind: str) -> None:
    assert find_interference(partial(run_series, kind=kind), rows, []) == []


def test_a_planted_leak_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: the statement for whoever withdraws consent tells how many rows were counted."""
    seen: list[int] = []
    sound = SeriesDoor.release_counts

    def release_counts(door: SeriesDoor, step: Any, exact: Any) -> Any:
        seen.append(int(exact.sum()))
        return sound(door, step, exact)

    monkeypatch.setattr(SeriesDoor, "release_counts", release_counts)
    text = ReleaseSeries.withdrawn
    monkeypatch.setattr(ReleaseSeries, "withdrawn", lambda series: f"{text(series)} {seen[-1]}")
    assert find_interference(run_series, MORE[0], []) != []


def test_a_door_of_a_series_certifies_nothing_by_itself() -> None:
    forest = vw.RandomTreesClassifier(SMALL, n_estimators=2, max_depth=1, trees="shared")
    series = ReleaseSeries(forest, releases=T, period="month", ledger=vw.MemoryLedger())
    with pytest.raises(UseError):
        SeriesDoor(series.plan(1), vw.MemoryLedger(), "key").certificate()
    with pytest.raises(UseError):
        SeriesDoor(vw.RandomTreesClassifier(SMALL, epsilon=float("inf")).plan(), vw.MemoryLedger(), "key")
