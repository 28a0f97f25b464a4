# SPDX-License-Identifier: Apache-2.0
"""Accuracy of private estimators on a development and a validation suite of tables, at seven budgets.

    python benchmarks/suite.py --suite development --data DATA --cache suite.csv --out suite.md

Skill = (score - floor) / (best - floor), cut to [-1, 1.05]. The score is accuracy or R2 on a quarter of the rows, held
back; the floor is what the most frequent class, or the mean, of the training rows has there; the best is the better of
ExtraTrees and HistGradientBoosting without privacy, on the same split. A table in which they are not LEAST_GAP above
the floor has no skill; its scores are told apart.

Every result is one line of the cache, by table, estimator, epsilon, delta and seed: a run that was broken off goes on
where it stopped, and what is there is not computed again. An estimator is a name of ESTIMATORS, or FILE.py:NAME, a
class that takes (schema, epsilon=, delta=, random_state=) and has fit, predict and, for classes, predict_proba.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.metrics import log_loss, r2_score
from suite_tables import Suite, SuiteTable, load, names

import veilwood as vw

BUDGETS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)
MOST_TESTED: Final = 5_000
LEAST_GAP: Final = 0.02
PLAIN, FLOOR = ("ExtraTrees", "HistGradientBoosting"), "floor"
SIBLINGS: Final = ("RandomTrees", "MedianForest", "GreedyForest")
ESTIMATORS: Final = ("PrivateForest", *SIBLINGS)
FIELDS: Final = ("suite", "table", "estimator", "epsilon", "delta", "seed", "score", "log_loss", "cpu_s", "note")


class Job(NamedTuple):
    """One fit; ``epsilon`` is infinite without privacy."""

    suite: Suite
    table: str
    estimator: str
    epsilon: float
    delta: float
    seed: int


def split(n: int, seed: int) -> tuple[Any, Any]:
    """Return training rows and at most ``MOST_TESTED`` test rows."""
    order = np.random.default_rng([seed, 7]).permutation(n)
    n_test = max(1, n // 4)
    return order[n_test:], order[: min(n_test, MOST_TESTED)]


@lru_cache(maxsize=2)
def _loaded(suite: Suite, name: str, folder: Path | None) -> SuiteTable:
    return load(suite, name, folder)


@lru_cache(maxsize=8)
def _class_in(place: str) -> Any:
    file, _, name = place.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise ValueError(f"{place!r} is not a class in a file of Python")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _private(job: Job, table: SuiteTable) -> Any:
    budget = {"epsilon": job.epsilon, "delta": job.delta, "random_state": job.seed}
    if ".py:" in job.estimator:
        return _class_in(job.estimator)(table.schema, **budget)
    kind = "Classifier" if table.schema.task == "classification" else "Regressor"
    return getattr(vw, job.estimator + kind)(table.schema, **budget, n_jobs=1)


def _plain(job: Job, table: SuiteTable) -> Any:
    regression = table.schema.task == "regression"
    if job.estimator == "ExtraTrees":
        return (ExtraTreesRegressor if regression else ExtraTreesClassifier)(100, random_state=job.seed, n_jobs=1)
    return (HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier)(random_state=job.seed)


def _as_numbers(table: SuiteTable) -> Any:
    """One column for each number and for each category of a column of few, and codes of the others."""
    X, few = table.X, [c.name for c in table.schema.features if c.kind == "categorical" and len(c.values) <= 50]
    many = [c.name for c in table.schema.features if c.kind == "categorical" and len(c.values) > 50]
    X = X.assign(**{name: X[name].astype("category").cat.codes for name in many})
    return pd.get_dummies(X, columns=few, dummy_na=False).astype(np.float32).fillna(-1.0).to_numpy()


def run(job: Job, folder: Path | None) -> dict[str, Any]:
    """Fit and score once."""
    warnings.simplefilter("ignore")
    table = _loaded(job.suite, job.table, folder)
    train, test = split(len(table.y), job.seed)
    y_train, y_test = table.y.iloc[train], table.y.iloc[test]
    classes, began, note, told = table.schema.classes, time.process_time(), "", float("nan")
    if job.estimator == FLOOR:
        if classes:
            shares = y_train.value_counts(normalize=True).reindex(classes).fillna(0).to_numpy()
            predicted: Any = np.full(len(test), y_train.mode()[0], object)
            told = _log_loss(y_test, np.tile(shares, (len(test), 1)), classes)
        else:
            predicted = np.full(len(test), y_train.mean())
    elif job.estimator in PLAIN:
        X = _as_numbers(table)
        model = _plain(job, table).fit(X[train], y_train.to_numpy())
        predicted = model.predict(X[test])
    else:
        try:
            model = _private(job, table).fit(table.X.iloc[train], y_train)
        except vw.VeilwoodError as error:  # a method that refuses a table or a budget
            return {**job._asdict(), "score": "", "log_loss": "", "cpu_s": "", "note": f"refused: {error}"[:80]}
        predicted = model.predict(table.X.iloc[test])
        note = str(model.plan_.choices.get("learned", "")) if hasattr(model, "plan_") else getattr(model, "note_", "")
        if classes and hasattr(model, "predict_proba"):
            order = [list(map(str, model.classes_)).index(name) for name in classes]
            told = _log_loss(y_test, model.predict_proba(table.X.iloc[test])[:, order], classes)
    score = float(np.mean(np.asarray(predicted) == y_test.to_numpy())) if classes else _r2(y_test, predicted)
    took = round(time.process_time() - began, 3)
    return {**job._asdict(), "score": round(score, 5), "log_loss": round(told, 5), "cpu_s": took, "note": note}


def _r2(truth: Any, predicted: Any) -> float:
    if np.ptp(truth) == 0:  # a constant target: how near its scale the prediction is
        return 1.0 - float(np.mean((np.asarray(predicted) - np.asarray(truth)) ** 2))
    return float(r2_score(truth, predicted))


def _log_loss(truth: Any, shares: Any, classes: tuple[str, ...]) -> float:
    shares = np.clip(np.asarray(shares, float), 1e-6, 1.0)
    place = np.array([classes.index(value) for value in truth])
    return float(log_loss(place, shares / shares.sum(axis=1, keepdims=True), labels=list(range(len(classes)))))


# -- the cache -------------------------------------------------------------------------------------------------------


def done(cache: Path) -> pd.DataFrame:
    """Read what was computed."""
    if not cache.exists():
        return pd.DataFrame(columns=list(FIELDS))
    return pd.read_csv(cache, dtype={"note": str}).drop_duplicates(subset=list(FIELDS[:6]), keep="last")


def _key(row: Any) -> tuple[Any, ...]:
    return (row.suite, row.table, row.estimator, float(row.epsilon), float(row.delta), int(row.seed))


def _worker(job: Job, folder: Path | None) -> dict[str, Any]:
    return run(job, folder)


def compute(jobs: Iterable[Job], folder: Path | None, cache: Path, n_jobs: int) -> None:
    """Run what is not in the cache; every result is written as soon as it is there."""
    known = {_key(row) for row in done(cache).itertuples()}
    # Jobs of one table stand together, so that a process loads it once.
    left = sorted((job for job in dict.fromkeys(jobs) if _key(job) not in known), key=lambda j: (j.table, j.seed))
    new = not cache.exists()
    with cache.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        for count, result in enumerate(_results(left, folder, n_jobs), 1):
            writer.writerow(result)
            file.flush()
            if count % 100 == 0:
                print(f"{count} of {len(left)}", flush=True)


def _results(jobs: list[Job], folder: Path | None, n_jobs: int) -> Iterator[dict[str, Any]]:
    if n_jobs == 1:
        yield from (run(job, folder) for job in jobs)
        return
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with ProcessPoolExecutor(n_jobs) as pool:
        yield from pool.map(_worker, jobs, [folder] * len(jobs), chunksize=4)


# -- skills ----------------------------------------------------------------------------------------------------------


def skills(found: pd.DataFrame) -> pd.DataFrame:
    """Add the skill of each private result whose references were computed, and its table's gap."""
    found = found[found.score.notna()]
    reference = ["suite", "table", "seed"]
    floor = found[found.estimator == FLOOR].set_index(reference)["score"].rename("floor")
    best = found[found.estimator.isin(PLAIN)].groupby(reference)["score"].max().rename("best")
    rest = found[~found.estimator.isin([*PLAIN, FLOOR])].join(floor, on=reference).join(best, on=reference)
    gaps = (best - floor).groupby(level=["suite", "table"]).mean().rename("gap")
    rest = rest.join(gaps, on=["suite", "table"])
    # The gap is the table's, not the split's: a small test part must not divide by nearly nothing.
    rest["skill"] = ((rest.score - rest.floor) / rest.gap).clip(-1.0, 1.05)
    return rest


def report(found: pd.DataFrame, suite: Suite, delta: float) -> str:
    """Mean skill by estimator and budget, and every table."""
    told = skills(found[(found.suite == suite)])
    told = told[told.delta == delta]
    cells = told[told.gap >= LEAST_GAP].groupby(["estimator", "table", "epsilon"]).skill.mean().unstack("epsilon")
    means = cells.groupby("estimator").mean()
    lines = [f"# Suite of {suite}: skill, delta {delta:g}", "", f"{cells.index.unique('table').size} tables.", ""]
    head = "| | " + " | ".join(f"{epsilon:g}" for epsilon in cells.columns) + " |"
    rule = "|---" * (len(cells.columns) + 1) + "|"
    lines += [head, rule, *(_line(name, row) for name, row in means.iterrows())]
    for name, rows in cells.groupby("table"):
        lines += ["", f"## {name}", "", head, rule, *(_line(i[0], row) for i, row in _rows(rows))]
    flat = told[told.gap < LEAST_GAP]
    if len(flat):
        scores = flat.groupby(["table", "estimator", "epsilon"]).score.mean().unstack("epsilon")
        lines += ["", "## Tables without skill: scores", "", head, rule]
        lines += [_line(f"{i[0]}, {i[1]}", row.reindex(cells.columns)) for i, row in _rows(scores)]
    return "\n".join([*lines, ""])


def _rows(frame: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    yield from frame.iterrows()


def _line(name: Any, row: Any) -> str:
    return f"| {name} | " + " | ".join("" if np.isnan(value) else f"{value:.3f}" for value in row) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--suite", choices=("development", "validation"), default="development")
    parser.add_argument("--data", type=Path, help="folder of real tables: NAME.csv.gz and NAME.json")
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--estimators", nargs="*", default=list(ESTIMATORS))
    parser.add_argument("--epsilons", nargs="*", type=float, default=list(BUDGETS))
    parser.add_argument("--delta", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only-report", action="store_true")
    arguments = parser.parse_args()
    suite, tables = arguments.suite, arguments.tables or names(arguments.suite, arguments.data)
    if not arguments.only_report:
        free = [Job(suite, table, estimator, float("inf"), 0.0, seed)
                for table in tables for estimator in (FLOOR, *PLAIN) for seed in range(arguments.seeds)]  # fmt: skip
        jobs = [Job(suite, table, estimator, epsilon, arguments.delta, seed)
                for table in tables for estimator in arguments.estimators
                for epsilon in arguments.epsilons for seed in range(arguments.seeds)]  # fmt: skip
        compute([*free, *jobs], arguments.data, arguments.cache, arguments.jobs)
    text = report(done(arguments.cache), suite, arguments.delta)
    print(text.split("\n## ")[0])
    if arguments.out:
        arguments.out.write_text(text)


if __name__ == "__main__":
    main()
