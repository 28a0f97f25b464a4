# SPDX-License-Identifier: Apache-2.0
"""Accuracy of private estimators on a development and a validation suite of tables, at seven budgets.

Skill = (score - floor) / (best - floor), clipped to [-1, 1.05]; best - floor is averaged per table.

- The score is accuracy or R2 on a held-out quarter of the rows.
- The floor is the score of the most frequent class, or the mean, of the training rows.
- The best is the higher score of ExtraTrees and HistGradientBoosting without privacy, on the same split.

A table whose gap (best - floor) is below MIN_GAP has no skill; its scores are listed separately.

Each result is one line of the cache, keyed by table, estimator, epsilon, delta and seed. An interrupted run resumes;
cached results are not computed again. An estimator is one of ESTIMATORS, one of another library (``peers``), or
FILE.py:NAME: a class that takes (schema, epsilon=, delta=, random_state=) and has fit, predict and, for
classification, predict_proba.
"""

from __future__ import annotations

import csv
import importlib.util
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
from sklearn.ensemble import (
    ExtraTreesClassifier,
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)

from veilwood import estimators
from veilwood.errors import UseError, VeilwoodError
from veilwood_papers.suite.peers import PEERS, PeerError, fit_peer_models
from veilwood_papers.suite.synthetic_tables import Suite, SuiteTable
from veilwood_papers.suite.tables import (
    FitJob,
    load_table,
    result_row,
    skipped_row,
    split_rows,
    table_names,
)

BUDGETS: Final = (0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 20.0)
MIN_GAP: Final = 0.02
PLAIN, FLOOR = ("ExtraTrees", "HistGradientBoosting"), "floor"
SIBLINGS: Final = ("RandomTrees", "MedianForest", "GreedyForest")
ESTIMATORS: Final = ("PrivateForest", *SIBLINGS)
FIELDS: Final = ("suite", "table", "estimator", "epsilon", "delta", "seed", "score", "log_loss", "auc", "cpu_s", "note")
SECONDS_BETWEEN_LINES: Final = 20.0

PrintLine = Callable[[str], None]


def run_suite(
    suite: Suite,
    folder: Path | None,
    cache: Path,
    *,
    estimators: Sequence[str] = ESTIMATORS,
    epsilons: Sequence[float] = BUDGETS,
    delta: float = 0.0,
    seeds: int = 10,
    tables: Sequence[str] | None = None,
    n_jobs: int = 1,
    references: bool = True,
    others: Sequence[Path] = (),
    print_line: PrintLine = print,
) -> str:
    """Compute the results that the cache lacks, and return the report on this cache and others."""
    jobs = list_jobs(
        suite, tables or table_names(suite, folder), estimators, epsilons, delta, seeds, references=references
    )
    compute_results(jobs, folder, cache, n_jobs, print_line)
    return render_report(read_results(cache, *others), suite, delta)


def list_jobs(
    suite: Suite,
    tables: Sequence[str],
    estimators: Sequence[str],
    epsilons: Sequence[float],
    delta: float,
    seeds: int,
    *,
    references: bool = True,
) -> list[FitJob]:
    """Return the fits: non-private references, and each estimator at each budget."""
    free = [
        FitJob(suite, table, estimator, float("inf"), 0.0, seed)
        for table in tables for estimator in (FLOOR, *PLAIN) for seed in range(seeds)
    ]  # fmt: skip
    private = [
        FitJob(suite, table, estimator, epsilon, delta, seed)
        for table in tables for estimator in estimators for epsilon in epsilons for seed in range(seeds)
    ]  # fmt: skip
    return [*(free if references else []), *private]


# -- one fit -------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def _load_cached(suite: Suite, name: str, folder: Path | None) -> SuiteTable:
    return load_table(suite, name, folder)


@lru_cache(maxsize=8)
def _load_class(place: str) -> Any:
    file, _, name = place.partition(":")
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise UseError(f"{place!r} is not a class in a Python file. Hint: write FILE.py:NAME.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _make_private(job: FitJob, table: SuiteTable) -> Any:
    budget = {"epsilon": job.epsilon, "delta": job.delta, "random_state": job.seed}
    if ".py:" in job.estimator:
        return _load_class(job.estimator)(table.schema, **budget)
    name = job.estimator + ("Classifier" if table.schema.task == "classification" else "Regressor")
    if name not in estimators.__all__:
        raise UseError(
            f"there is no {name}. Hint: choose one of {', '.join((*ESTIMATORS, *PEERS))}, or pass FILE.py:NAME."
        )
    return getattr(estimators, name)(table.schema, **budget, n_jobs=1)


def _make_reference(job: FitJob, table: SuiteTable) -> Any:
    regression = table.schema.task == "regression"
    if job.estimator == "ExtraTrees":
        return (ExtraTreesRegressor if regression else ExtraTreesClassifier)(100, random_state=job.seed, n_jobs=1)
    return (HistGradientBoostingRegressor if regression else HistGradientBoostingClassifier)(random_state=job.seed)


def _as_numbers(table: SuiteTable) -> Any:
    """Return numeric features: one-hot encoded columns of up to 50 categories, and codes of larger columns."""
    X, few = table.X, [c.name for c in table.schema.features if c.kind == "categorical" and len(c.values) <= 50]
    many = [c.name for c in table.schema.features if c.kind == "categorical" and len(c.values) > 50]
    X = X.assign(**{name: X[name].astype("category").cat.codes for name in many})
    return pd.get_dummies(X, columns=few, dummy_na=False).astype(np.float32).fillna(-1.0).to_numpy()


def run_fit(job: FitJob, folder: Path | None) -> dict[str, Any]:
    """Fit and score one job, and return its line for the cache."""
    warnings.simplefilter("ignore")
    table = _load_cached(job.suite, job.table, folder)
    train, test = split_rows(len(table.y), job.seed)
    y_train = table.y.iloc[train]
    classes, began, note, shares = table.schema.classes, time.process_time(), "", None
    if job.estimator == FLOOR:
        if classes:
            predicted: Any = np.full(len(test), y_train.mode()[0], object)
            known = y_train.value_counts(normalize=True).reindex(classes).fillna(0).to_numpy()
            shares = np.tile(known, (len(test), 1))
        else:
            predicted = np.full(len(test), y_train.mean())
    elif job.estimator in PLAIN:
        X = _as_numbers(table)
        predicted = _make_reference(job, table).fit(X[train], y_train.to_numpy()).predict(X[test])
    else:
        try:
            model = _make_private(job, table).fit(table.X.iloc[train], y_train)
        except VeilwoodError as error:  # the estimator does not support this table or budget
            return skipped_row(job, str(error))
        predicted = model.predict(table.X.iloc[test])
        note = model.plan_.learned if hasattr(model, "plan_") else getattr(model, "note_", "")
        if classes and hasattr(model, "predict_proba"):
            order = [list(map(str, model.classes_)).index(name) for name in classes]
            shares = model.predict_proba(table.X.iloc[test])[:, order]
    return result_row(job, table, test, predicted, shares, time.process_time() - began, note)


# -- the cache -----------------------------------------------------------------------------------------------------


def read_results(*caches: Path) -> pd.DataFrame:
    """Return the results in the given caches; if a fit has several, the last one."""
    frames = [pd.read_csv(cache, dtype={"note": str}) for cache in caches if cache.exists()]
    if not frames:
        return pd.DataFrame(columns=list(FIELDS))
    return pd.concat(frames).drop_duplicates(subset=list(FIELDS[:6]), keep="last").reset_index(drop=True)


def _result_key(row: Any) -> tuple[Any, ...]:
    return (row.suite, row.table, row.estimator, float(row.epsilon), float(row.delta), int(row.seed))


def compute_results(
    jobs: Iterable[FitJob], folder: Path | None, cache: Path, n_jobs: int = 1, print_line: PrintLine = print
) -> None:
    """Run the jobs that the cache lacks, and append each result as soon as it is computed."""
    known = {_result_key(row) for row in read_results(cache).itertuples()}
    # Sorting by table lets a process load each table once.
    left = sorted(
        (job for job in dict.fromkeys(jobs) if _result_key(job) not in known), key=lambda j: (j.table, j.seed)
    )
    own_jobs = [job for job in left if job.estimator not in PEERS]
    peer_jobs = [job for job in left if job.estimator in PEERS]
    new = not cache.exists()
    began = last_line = time.monotonic()
    with cache.open("a", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        if new:
            writer.writeheader()
        for count, result in enumerate(_run_fits(own_jobs, peer_jobs, folder, n_jobs, print_line), 1):
            writer.writerow(result)
            file.flush()
            if time.monotonic() - last_line > SECONDS_BETWEEN_LINES:
                last_line = time.monotonic()
                minutes = (last_line - began) / count * (len(left) - count) / 60
                print_line(f"{count} of {len(left)} fits, about {minutes:.0f} minutes left")


def _run_fits(
    own_jobs: list[FitJob], peer_jobs: list[FitJob], folder: Path | None, n_jobs: int, print_line: PrintLine
) -> Iterator[dict[str, Any]]:
    if n_jobs == 1:
        yield from (run_fit(job, folder) for job in own_jobs)
    elif own_jobs:
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        with ProcessPoolExecutor(n_jobs) as pool:
            yield from pool.map(run_fit, own_jobs, [folder] * len(own_jobs), chunksize=4)
    for peer in dict.fromkeys(job.estimator for job in peer_jobs):
        of_peer = [job for job in peer_jobs if job.estimator == peer]
        try:
            for name in dict.fromkeys(job.table for job in of_peer):
                table = _load_cached(of_peer[0].suite, name, folder)
                yield from fit_peer_models(peer, [job for job in of_peer if job.table == name], table, print_line)
        except PeerError as error:
            print_line(f"{peer} is skipped: {error}")


# -- skills --------------------------------------------------------------------------------------------------------


def add_skills(results: pd.DataFrame) -> pd.DataFrame:
    """Return the private results with their skill and their table's gap, if the references were computed."""
    results = results[results.score.notna()]
    reference = ["suite", "table", "seed"]
    floor = results[results.estimator == FLOOR].set_index(reference)["score"].rename("floor")
    best = results[results.estimator.isin(PLAIN)].groupby(reference)["score"].max().rename("best")
    rest = results[~results.estimator.isin([*PLAIN, FLOOR])].join(floor, on=reference).join(best, on=reference)
    gaps = (best - floor).groupby(level=["suite", "table"]).mean().rename("gap")
    rest = rest.join(gaps, on=["suite", "table"])
    # Use the gap of the table, not of the split: on a small test set a split's gap may be close to 0.
    rest["skill"] = ((rest.score - rest.floor) / rest.gap).clip(-1.0, 1.05)
    return rest


def render_report(results: pd.DataFrame, suite: Suite, delta: float) -> str:
    """Return a report of mean skill by estimator and budget, and of all tables. Results at another delta are labelled.

    Other libraries do not support every table. They are compared on the tables and splits that they support.
    """
    results = results[results.suite == suite]
    skills = add_skills(results)
    if not skills.gap.notna().any():
        return f"# Suite of {suite}: no skill, as no floor and no plain forest was computed, or nothing else\n"
    named = skills.estimator.where(
        skills.delta == delta, skills.estimator + ", delta " + skills.delta.map("{:g}".format)
    )
    skills = skills.assign(peer=skills.estimator.isin(PEERS), estimator=named)
    skilled = skills[skills.gap >= MIN_GAP]
    cells = _skill_by_table(skilled)
    head = "| | " + " | ".join(f"{epsilon:g}" for epsilon in cells.columns) + " |"
    rule = "|---" * (len(cells.columns) + 1) + "|"
    ours = skilled[~skilled.peer]
    n_tables = ours.groupby("estimator").table.nunique()
    most = n_tables.max()
    lines = [f"# Suite of {suite}: skill, delta {delta:g}", "", f"{cells.index.unique('table').size} tables.", ""]
    lines += [head, rule] if len(ours) else []
    for name, row in _iter_rows(_skill_by_table(ours).groupby("estimator").mean()):
        lines.append(_format_row(name if n_tables[name] == most else f"{name} ({n_tables[name]} tables)", row))
    split = ["table", "seed"]
    for name, own in skilled[skilled.peer].groupby("estimator"):
        fitted = own[split].drop_duplicates()
        alike = _skill_by_table(pd.concat([ours.merge(fitted, on=split), own]))
        tables, splits = fitted.table.nunique(), fitted.seed.nunique()
        lines += ["", f"Tables that {name!s} takes: {tables}, splits of each: {splits}.", "", head, rule]
        lines += [_format_row(other, row) for other, row in _iter_rows(alike.groupby("estimator").mean())]
    free = results[results.estimator.isin([FLOOR, *PLAIN])].groupby(["table", "estimator"]).score.mean()
    for name, rows in cells.groupby("table"):
        scores = ", ".join(f"{other} {free[name, other]:.3f}" for other in (FLOOR, *PLAIN) if (name, other) in free)
        lines += ["", f"## {name!s}", "", f"Scores without privacy: {scores}.", "", head, rule]
        lines += [_format_row(i[0], row) for i, row in _iter_rows(rows)]
    flat = skills[skills.gap < MIN_GAP]
    if len(flat):
        by_table = flat.groupby(["table", "estimator", "epsilon"]).score.mean().unstack("epsilon")
        lines += ["", "## Tables without skill: scores", "", head, rule]
        lines += [_format_row(f"{i[0]}, {i[1]}", row.reindex(cells.columns)) for i, row in _iter_rows(by_table)]
    return "\n".join([*lines, ""])


def _skill_by_table(skills: pd.DataFrame) -> pd.DataFrame:
    """Return the mean skill of each estimator on each table at each budget."""
    return skills.groupby(["estimator", "table", "epsilon"]).skill.mean().unstack("epsilon")


def _iter_rows(frame: pd.DataFrame) -> Iterator[tuple[Any, Any]]:
    yield from frame.iterrows()


def _format_row(name: Any, row: Any) -> str:
    return f"| {name} | " + " | ".join("" if np.isnan(value) else f"{value:.3f}" for value in row) + " |"
